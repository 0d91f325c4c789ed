# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
import trustme

from kube_accel.kube.api import ApiRefusedError, ApiUnreachableError
from kube_accel.kube.client import Credentials, KubeClient

OK = b'HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 12\r\n\r\n{"answer":1}'
CHUNKED = b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n"
SECONDS = 10


class Scripted:
    """An API server that answers each request with the next bytes of a script, whatever it asks."""

    def __init__(self, script: list[bytes], context: ssl.SSLContext | None = None) -> None:
        self.script = script
        self._context = context
        self.connections = 0
        self.heads: list[bytes] = []
        self._listener = socket.create_server(("127.0.0.1", 0))
        self._listener.settimeout(SECONDS)
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def _run(self) -> None:
        while True:
            try:
                connection = self._listener.accept()[0]
            except OSError:
                return
            connection.settimeout(SECONDS)
            if self._context is not None:
                connection = self._context.wrap_socket(connection, server_side=True)
            self.connections += 1
            with connection:
                while self.script:
                    if not (head := connection.recv(1 << 16)):
                        break
                    self.heads.append(head)
                    answer = self.script.pop(0)
                    connection.sendall(answer)
                    # An answer without its end, and one that says so, end the connection.
                    if b"close" in answer or not answer.endswith((b"}", b"\r\n\r\n")):
                        break

    def end(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        self._thread.join(SECONDS)


@pytest.fixture
def served(request: pytest.FixtureRequest) -> Iterator[Scripted]:
    server = Scripted(list(request.param))
    yield server
    server.script.clear()
    server.end()


def client(server: Scripted, **credentials: str | Path) -> KubeClient:
    return KubeClient(server.url, Credentials(**credentials), timeout=SECONDS)  # type: ignore[arg-type]


@pytest.mark.parametrize("served", [[OK, OK, OK]], indirect=True)
def test_requests_share_a_kept_connection(served: Scripted) -> None:
    api = client(served, token="secret")
    assert [api.get("/api/v1/nodes"), api.post("/api", {"a": 1}), api.patch("/x", {})] == [{"answer": 1}] * 3
    assert served.connections == 1
    assert served.heads[1].startswith(b"POST /api HTTP/1.1\r\nHost: 127.0.0.1:")
    assert served.heads[1].endswith(b'Authorization: Bearer secret\r\nContent-Length: 8\r\n\r\n{"a": 1}')


def test_requests_share_a_kept_connection_with_tls(tmp_path: Path) -> None:
    authority = trustme.CA()
    authority.cert_pem.write_to_path(tmp_path / "ca.crt")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    server = Scripted([OK, OK + OK, OK], context)
    server.url = server.url.replace("http:", "https:")
    api = client(server, ca_file=tmp_path / "ca.crt")
    try:
        assert [api.get("/"), api.get("/")] == [{"answer": 1}] * 2
        assert server.connections == 1
        # What nobody asked for came with the second answer.
        assert api.get("/") == {"answer": 1}
        assert server.connections == 2
    finally:
        server.end()


@pytest.mark.parametrize(
    "served",
    [
        [OK.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"), OK],
        [b'HTTP/1.0 200 OK\r\nContent-Length: 12\r\n\r\n{"answer":1}', OK],
        [b'HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{"answer":1}', OK],
    ],
    indirect=True,
    ids=["close", "1.0", "no length"],
)
def test_a_closed_connection_is_followed_by_another(served: Scripted) -> None:
    api = client(served)
    assert api.get("/")["answer"] == 1
    assert api.get("/")["answer"] == 1
    assert served.connections == 2


@pytest.mark.parametrize("served", [[OK + b"HTTP/1.1 408 Request Timeout\r\n\r\n", OK]], indirect=True)
def test_an_answer_that_nobody_asked_for_is_not_taken(served: Scripted) -> None:
    api = client(served)
    assert api.get("/")["answer"] == 1
    assert api.get("/")["answer"] == 1
    assert served.connections == 2


@pytest.mark.parametrize(
    "served",
    [
        [CHUNKED + b'5\r\n{"ans\r\n7;x=y\r\nwer":1}\r\n0\r\n\r\n', OK],
        [CHUNKED + b'c\r\n{"answer":1}\r\n0\r\nTrailer: x\r\n\r\n', OK],
        [b"HTTP/1.1 103 Early Hints\r\nLink: x\r\n\r\n" + OK, OK],
    ],
    indirect=True,
)
def test_chunks_and_early_answers_are_read_to_their_end(served: Scripted) -> None:
    api = client(served)
    assert [api.get("/"), api.get("/")] == [{"answer": 1}] * 2
    assert served.connections == 1


@pytest.mark.attack
@pytest.mark.parametrize(
    "served",
    [
        [b""],
        [b"HTTP/1.1 200"],
        [b"HTTP/1.1 200 OK\r\nContent-Ty"],
        [b"SSH-2.0-OpenSSH\r\n\r\n"],
        [b"HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\n{"],
        [b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\n{}"],
        [b"HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n{}"],
        [b"HTTP/1.1 200 OK\r\nContent-Length: 99999999999999\r\n\r\n{}"],
        [CHUNKED[:-2] + b"Content-Length: 2\r\n\r\n2\r\n{}\r\n0\r\n\r\n"],
        [b"HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip, chunked\r\n\r\n{}"],
        [b"HTTP/1.1 101 Switching Protocols\r\n\r\n"],
        [CHUNKED + b"-1\r\n{}"],
        [CHUNKED + b"2\r\n{}}}"],
        [CHUNKED + b"c\r\n{"],
        [b"HTTP/1.1 200 OK\r\nX: " + b"x" * 200_000],
    ],
    indirect=True,
    ids=lambda script: ascii(script[0][:60]),
)
def test_a_broken_answer_is_an_api_error(served: Scripted) -> None:
    with pytest.raises(ApiUnreachableError, match="not reached: the "):
        client(served).get("/")


@pytest.mark.parametrize("served", [[OK.replace(b"200 OK", b"307 Moved")]], indirect=True)
def test_a_redirect_is_an_answer_and_is_not_followed(served: Scripted) -> None:
    with pytest.raises(ApiRefusedError, match="307") as caught:
        client(served).get("/")
    assert (caught.value.status, len(served.heads)) == (307, 1)


@pytest.mark.attack
@pytest.mark.parametrize("served", [[OK, OK]], indirect=True)
def test_a_token_of_two_lines_is_not_sent(served: Scripted, tmp_path: Path) -> None:
    (tmp_path / "token").write_text("one\r\nX-Remote-User: admin")
    api = client(served, token_file=tmp_path / "token")
    with pytest.raises(ApiUnreachableError, match="without line breaks"):
        api.get("/")
    assert not served.heads
    (tmp_path / "token").write_text("two\n")
    assert api.get("/")["answer"] == 1
    assert b"Authorization: Bearer two\r\n" in served.heads[0]


@pytest.mark.parametrize("served", [[OK]], indirect=True)
def test_the_path_of_the_servers_url_comes_first(served: Scripted) -> None:
    served.url += "/k8s/clusters/c-1/"
    client(served).get("/api", {"limit": "1"})
    assert served.heads[0].startswith(b"GET /k8s/clusters/c-1/api?limit=1 HTTP/1.1\r\n")


WATCH = ("/api/v1/pods", {"watch": "true"}, SECONDS)


@pytest.mark.parametrize(
    "served",
    [
        [CHUNKED + b'6\r\n{"a":1\r\n5\r\n}\n{"b\r\n6\r\n":2}\n\n\r\n0\r\n\r\n'],
        [b'HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n{"a":1}\n{"b":2}\n\n'],
        [b'HTTP/1.1 200 OK\r\nContent-Length: 17\r\n\r\n{"a":1}\n{"b":2}\n\n'],
    ],
    indirect=True,
    ids=["chunks", "until closed", "length"],
)
def test_lines_of_a_stream_are_put_together(served: Scripted) -> None:
    with client(served, token="secret").lines(*WATCH) as lines:
        assert list(lines) == [b'{"a":1}', b'{"b":2}', b""]
    assert served.heads[0].startswith(b"GET /api/v1/pods?watch=true HTTP/1.1\r\n")
    assert b"Authorization: Bearer secret\r\n" in served.heads[0]


@pytest.mark.parametrize("served", [[CHUNKED + b'8\r\n{"a":1}\n\r\n9\r\n{"b"']], indirect=True)
def test_a_stream_that_breaks_off_ends_in_an_api_error(served: Scripted) -> None:
    with client(served).lines(*WATCH) as lines:
        assert next(lines) == b'{"a":1}'
        with pytest.raises(ApiUnreachableError, match="closed the connection"):
            next(lines)


@pytest.mark.parametrize(
    "served", [[b'HTTP/1.1 410 Gone\r\nContent-Length: 22\r\n\r\n{"message": "too old"}']], indirect=True
)
def test_a_refused_stream_says_why(served: Scripted) -> None:
    with pytest.raises(ApiRefusedError, match="410: too old"), client(served).lines(*WATCH):
        pass


@pytest.mark.parametrize("served", [[CHUNKED + b'8\r\n{"a":1}\n\r\n']], indirect=True)
def test_an_error_in_who_reads_a_stream_is_not_the_servers(served: Scripted) -> None:
    full = OSError("disk full")

    def read() -> None:
        with client(served).lines(*WATCH) as lines:
            next(lines)
            raise full

    with pytest.raises(OSError, match="disk full") as caught:
        read()
    assert caught.value is full
