# SPDX-License-Identifier: Apache-2.0
"""Our server, called by gRPC's own library, and by who knows no gRPC."""

from __future__ import annotations

import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import grpc
import pytest
from google.protobuf.wrappers_pb2 import BytesValue
from hypothesis import given
from hypothesis import strategies as st

from http2_bytes import PREFACE, frame, read_out
from kube_accel.rpc.server import Context, Method, Server
from kube_accel.rpc.status import Code, RpcError
from sim.kubelet.channel import open_channel
from waiting import wait

LIMIT = 4 << 20
SECONDS = 30


class Service:
    """Methods that are told what to do by their request."""

    def __init__(self) -> None:
        self.goes_on = threading.Event()
        self.begun = threading.Semaphore(0)
        self.ended: list[bool] = []

    def methods(self) -> dict[str, Method]:
        handlers: dict[str, Callable[[BytesValue, Context], Any]] = {
            "Echo": lambda request, context: request,
            "Many": lambda request, context: BytesValue(value=b"x" * int(request.value)),
            "Refuse": self._refuse,
            "Break": self._break,
            "Wait": self._wait,
        }
        unary = {f"/a.B/{name}": Method(handler, BytesValue) for name, handler in handlers.items()}
        at_once = {
            f"/a.B/{name}AtOnce": Method(handlers[name], BytesValue, at_once=True) for name in ("Many", "Refuse")
        }
        return unary | at_once | {"/a.B/Count": Method(self._count, BytesValue, streams=True)}

    def _refuse(self, request: BytesValue, context: Context) -> BytesValue:
        raise RpcError(Code.FAILED_PRECONDITION, request.value.decode())

    def _break(self, request: BytesValue, context: Context) -> BytesValue:
        raise ZeroDivisionError("by nothing")

    def _wait(self, request: BytesValue, context: Context) -> BytesValue:
        self.begun.release()
        self.goes_on.wait(SECONDS)
        self.ended.append(context.is_active())
        return request

    def _count(self, request: BytesValue, context: Context) -> Iterator[BytesValue]:
        over = threading.Event()
        assert context.add_callback(over.set)
        for number in range(int(request.value)):
            yield BytesValue(value=bytes([number]) * 100_000)
        self.begun.release()
        over.wait(SECONDS)
        self.ended.append(context.is_active())


class Host:
    def __init__(self, root: Path) -> None:
        self.path = root / "s.sock"
        self.service = Service()
        self.server = Server(self.path, self.service.methods())
        self.channel = open_channel(self.path, 64 << 20)

    def call(self, name: str, value: bytes = b"", **options: Any) -> bytes:
        reply: BytesValue = self._method(name)(BytesValue(value=value), timeout=SECONDS, **options)
        return reply.value

    def begin(self, name: str, value: bytes = b"") -> grpc.Future:
        return self._method(name).future(BytesValue(value=value), timeout=SECONDS)

    def count(self, number: int) -> grpc.Call:
        method = self.channel.unary_stream("/a.B/Count", BytesValue.SerializeToString, BytesValue.FromString)
        return method(BytesValue(value=str(number).encode()), timeout=SECONDS)

    def _method(self, name: str) -> Any:
        return self.channel.unary_unary(f"/a.B/{name}", BytesValue.SerializeToString, BytesValue.FromString)

    def close(self) -> None:
        self.service.goes_on.set()
        self.channel.close()
        self.server.stop()


@pytest.fixture
def host() -> Iterator[Host]:
    with tempfile.TemporaryDirectory(dir="/tmp") as root:
        host = Host(Path(root))
        yield host
        host.close()


def refused(error: pytest.ExceptionInfo[grpc.RpcError]) -> tuple[grpc.StatusCode, str]:
    return error.value.code(), error.value.details()


def test_messages_of_any_length_are_whole(host: Host) -> None:
    for size in (0, 1, 16_379, 16_384, 65_535, 65_536, LIMIT - 100):
        assert host.call("Echo", b"y" * size) == b"y" * size
    # More than a client gives room for before it has read some.
    assert len(host.call("Many", b"30000000")) == 30_000_000
    assert len(host.call("ManyAtOnce", b"30000000")) == 30_000_000


def test_request_that_is_too_long_is_refused_alone(host: Host) -> None:
    with pytest.raises(grpc.RpcError) as error:
        host.call("Echo", b"y" * (LIMIT + 1))
    assert error.value.code() is grpc.StatusCode.RESOURCE_EXHAUSTED
    assert host.call("Echo", b"short") == b"short"


def test_who_refuses_says_why(host: Host) -> None:
    for text in ("no GPU; 100 % are taken", "zwei\nZeilen, größer", ""):
        with pytest.raises(grpc.RpcError) as error:
            host.call("Refuse", text.encode())
        assert refused(error) == (grpc.StatusCode.FAILED_PRECONDITION, text)
    with pytest.raises(grpc.RpcError) as error:
        host.call("RefuseAtOnce", b"taken")
    assert refused(error) == (grpc.StatusCode.FAILED_PRECONDITION, "taken")
    with pytest.raises(grpc.RpcError) as error:
        host.call("Refuse", b"very long " * 10_000)
    assert error.value.details().startswith("very long very")


def test_a_fault_ends_its_call_alone(host: Host, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(grpc.RpcError) as error:
        host.call("Break")
    assert refused(error) == (grpc.StatusCode.UNKNOWN, "ZeroDivisionError: by nothing")
    assert "a call failed" in caplog.text
    assert host.call("Echo", b"a") == b"a"


def test_what_is_not_served_is_said(host: Host) -> None:
    with pytest.raises(grpc.RpcError) as error:
        host.call("Nothing")
    assert refused(error) == (grpc.StatusCode.UNIMPLEMENTED, "there is no method /a.B/Nothing")
    with pytest.raises(grpc.RpcError) as error:
        host.call("Echo", b"a" * 10_000, compression=grpc.Compression.Gzip)
    assert "it is compressed" in error.value.details()


def test_who_waits_keeps_nobody_waiting(host: Host) -> None:
    waiting = [host.begin("Wait", bytes([number])) for number in range(40)]
    for _ in waiting:
        assert host.service.begun.acquire(timeout=SECONDS)
    assert host.server.busy == 40
    assert host.call("Echo", b"a") == b"a"
    host.service.goes_on.set()
    assert [call.result().value for call in waiting] == [bytes([number]) for number in range(40)]
    wait(lambda: host.server.busy == 0)
    # Threads that nobody needs any more go.
    host.call("Echo")
    wait(lambda: sum(thread.name == "rpc" for thread in threading.enumerate()) <= 3)


def test_calls_beyond_a_clients_limit_are_answered(host: Host) -> None:
    host.service.goes_on.set()
    calls = [host.begin("Wait", str(number).encode()) for number in range(300)]
    assert [call.result().value for call in calls] == [str(number).encode() for number in range(300)]


def test_a_stream_goes_on_until_its_client_cancels_it(host: Host) -> None:
    stream = host.count(50)
    assert [next(stream).value[0] for _ in range(50)] == list(range(50))
    assert host.service.begun.acquire(timeout=SECONDS)
    assert host.call("Echo", b"meanwhile") == b"meanwhile"
    stream.cancel()
    wait(lambda: host.service.ended == [False])
    assert host.call("Echo", b"after") == b"after"


def test_a_client_that_is_gone_is_told_to_handlers(host: Host) -> None:
    next(host.count(1))
    assert host.service.begun.acquire(timeout=SECONDS)
    host.channel.close()
    wait(lambda: host.service.ended == [False])
    wait(lambda: host.server.busy == 0)


def test_a_server_that_stops_lets_calls_end(host: Host) -> None:
    call = host.begin("Wait", b"a")
    assert host.service.begun.acquire(timeout=SECONDS)
    with ThreadPoolExecutor(1) as pool:
        stopped = pool.submit(host.server.stop, SECONDS)
        wait(lambda: not host.path.exists())
        assert not stopped.done()
        host.service.goes_on.set()
        stopped.result(SECONDS)
    assert call.result().value == b"a"
    with pytest.raises(grpc.RpcError) as error:
        host.call("Echo")
    assert error.value.code() is grpc.StatusCode.UNAVAILABLE


def test_a_server_that_stops_at_once_ends_streams(host: Host) -> None:
    stream = host.count(1)
    next(stream)
    host.server.stop()
    with pytest.raises(grpc.RpcError) as error:
        next(stream)
    assert error.value.code() is grpc.StatusCode.UNAVAILABLE


def test_client_that_reads_nothing_does_not_block_stopping(host: Host) -> None:
    headers = b"\x83\x86" + b"".join(
        b"\0" + bytes((len(name),)) + name + bytes((len(value),)) + value
        for name, value in ((b":path", b"/a.B/Many"), (b":authority", b"localhost"), (b"te", b"trailers"))
    )
    body = BytesValue(value=b"4000000").SerializeToString()
    message = b"\0" + len(body).to_bytes(4) + body
    with socket.socket(socket.AF_UNIX) as stuck:
        stuck.connect(str(host.path))
        windows = frame(4, 0, 0, b"\0\4\x7f\xff\xff\xff") + frame(8, 0, 0, b"\x7f\xff\0\0")
        stuck.sendall(PREFACE + windows + frame(1, 4, 1, headers) + frame(0, 1, 1, message))
        wait(lambda: host.server.busy == 1)
        host.server.stop(0.2)
        wait(lambda: host.server.busy == 0)


def test_a_path_that_is_taken_is_named(host: Host) -> None:
    with pytest.raises(OSError, match=f"cannot listen on {host.path}: Address already in use"):
        Server(host.path, {})


@pytest.fixture(scope="module")
def lasting() -> Iterator[Host]:
    with tempfile.TemporaryDirectory(dir="/tmp") as root:
        host = Host(Path(root))
        yield host
        host.close()


FRAMES = st.builds(
    frame,
    st.integers(0, 10),
    st.integers(0, 255),
    st.integers(0, 5),
    st.binary(max_size=40),
)


@given(sent=st.one_of(st.binary(max_size=200), st.lists(FRAMES, max_size=8).map(lambda made: PREFACE + b"".join(made))))
def test_nonsense_ends_its_connection_at_most(lasting: Host, sent: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as stranger:
        stranger.settimeout(SECONDS)
        stranger.connect(str(lasting.path))
        stranger.sendall(sent)
        stranger.shutdown(socket.SHUT_WR)
        read_out(stranger)
    assert lasting.call("Echo", b"a") == b"a"
    wait(lambda: lasting.server.busy == 0)
