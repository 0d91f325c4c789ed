# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import pytest
import trustme

from kube_accel.kube.api import ApiClient, ApiRefusedError, ApiUnreachableError, in_cluster
from kube_accel.kube.client import Credentials, KubeClient
from old_authority import OldAuthority, strict
from unit.kube_accel.api_server import ApiServer, service_account, serving


@pytest.fixture(scope="module")
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def server(authority: trustme.CA) -> Iterator[ApiServer]:
    with serving(authority) as server:
        yield server


@pytest.fixture
def account(tmp_path: Path, authority: trustme.CA) -> Path:
    return service_account(tmp_path, authority)


@pytest.fixture
def client(server: ApiServer, account: Path) -> ApiClient:
    return ApiClient(f"https://127.0.0.1:{server.port}", account)


def test_annotations_are_sent_as_a_merge_patch_of_the_node(client: ApiClient, server: ApiServer) -> None:
    client.annotate_node("node-1", {"a/b": "text", "a/gone": None})
    (request,) = server.requests
    assert (request.method, request.path) == ("PATCH", "/api/v1/nodes/node-1")
    assert request.headers["Content-Type"] == "application/merge-patch+json"
    assert request.headers["Authorization"] == "Bearer first"
    assert request.body == {"metadata": {"annotations": {"a/b": "text", "a/gone": None}}}


def test_a_rotated_token_is_used(client: ApiClient, server: ApiServer, account: Path) -> None:
    client.annotate_node("n", {})
    (account / "token").write_text("second")
    client.annotate_node("n", {})
    assert [request.headers["Authorization"] for request in server.requests] == ["Bearer first", "Bearer second"]


def test_a_refusal_carries_status_and_reason(client: ApiClient, server: ApiServer) -> None:
    server.status, server.reply = 403, {"kind": "Status", "message": 'nodes "n" is forbidden'}
    with pytest.raises(ApiRefusedError, match='403: nodes "n" is forbidden') as caught:
        client.annotate_node("n", {})
    assert caught.value.status == 403


@pytest.mark.parametrize("reply", [b"bad gateway", b"[1]", b"\xff\xfe", b'{"message": 7}'])
def test_a_refusal_that_is_no_status_is_quoted(client: ApiClient, server: ApiServer, reply: bytes) -> None:
    server.status, server.reply = 502, reply
    with pytest.raises(ApiRefusedError, match="502: "):
        client.annotate_node("n", {})


def test_a_redirect_does_not_get_our_token(client: ApiClient, server: ApiServer) -> None:
    server.status = 307
    with pytest.raises(ApiRefusedError) as caught:
        client.annotate_node("n", {})
    assert caught.value.status == 307


@pytest.mark.parametrize("other", [False, True])
def test_an_authority_of_old_is_known_by_its_key(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, other: bool) -> None:
    strict(monkeypatch)
    authority = OldAuthority()
    account = service_account(tmp_path, OldAuthority() if other else authority)
    refused = pytest.raises(ApiUnreachableError, match="certificate verify failed") if other else nullcontext()
    with serving(authority) as server:
        url = f"https://127.0.0.1:{server.port}"
        with refused:
            ApiClient(url, account).annotate_node("n", {"a/b": "text"})
        with refused:
            KubeClient(url, Credentials(account / "ca.crt", account / "token")).get("/api/v1/nodes/n")
        assert len(server.requests) == (0 if other else 2)


def test_a_server_of_another_authority_is_not_told_the_token(server: ApiServer, account: Path) -> None:
    trustme.CA().cert_pem.write_to_path(account / "ca.crt")
    with pytest.raises(ApiUnreachableError, match="certificate verify failed"):
        ApiClient(f"https://127.0.0.1:{server.port}", account).annotate_node("n", {})
    assert server.requests == []


def test_no_server_and_no_token_are_unreachable(client: ApiClient, account: Path) -> None:
    with pytest.raises(ApiUnreachableError, match=r"https://127\.0\.0\.1:1 not reached"):
        ApiClient("https://127.0.0.1:1", account).annotate_node("n", {})
    (account / "token").unlink()
    with pytest.raises(ApiUnreachableError, match="token"):
        client.annotate_node("n", {})


def test_the_server_comes_from_the_environment(tmp_path: Path) -> None:
    assert in_cluster(tmp_path, {}) is None
    for host, url in (("10.0.0.1", "https://10.0.0.1:6443"), ("fd00::1", "https://[fd00::1]:6443")):
        found = in_cluster(tmp_path, {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": "6443"})
        assert found == ApiClient(url, tmp_path)


def test_node_is_read_and_patched_in_one_request(client: ApiClient, server: ApiServer) -> None:
    server.node = {"metadata": {"labels": {"a": "1"}}}
    assert client.node("node-1") == server.node
    assert "Content-Type" not in server.requests[0].headers
    client.patch_node("node-1", {"labels": {"a": None, "b": "2"}, "annotations": {}})
    assert server.requests[1].body == {"metadata": {"labels": {"a": None, "b": "2"}}}
    assert client.node("node-1") == {"metadata": {"labels": {"b": "2"}}}


@pytest.mark.parametrize("node", [[], {"metadata": []}, {"metadata": {"name": "n", "labels": {"a": 1}}}])
def test_a_node_that_is_no_object_is_an_error(client: ApiClient, server: ApiServer, node: Any) -> None:
    server.node = node
    with pytest.raises(ApiRefusedError, match="its answer is no node"):
        client.node("n")


@pytest.mark.parametrize(
    "body", [b"[" * 100_000, b'{"a":' * 100_000, b'{"a": NaN}', b'{"metadata": 1}', b'{"a": 1e999}']
)
def test_an_answer_that_no_api_server_gives_is_an_api_error(
    server: ApiServer, account: Path, client: ApiClient, body: bytes
) -> None:
    server.status, server.reply = 200, body
    asking = KubeClient(client.url, Credentials(account / "ca.crt", account / "token"))
    with pytest.raises(ApiUnreachableError, match="the API server's answer"):
        asking.post("/api/v1/namespaces/n/events", {})
    server.status = 500
    with pytest.raises(ApiRefusedError):
        asking.post("/api/v1/namespaces/n/events", {})


def test_words_of_an_api_server_are_one_harmless_line(client: ApiClient, server: ApiServer) -> None:
    server.status, server.reply = 403, {"message": "\x1b[2J\x9b31m\u202eno\n" + "x" * 100_000}
    with pytest.raises(ApiRefusedError) as caught:
        client.annotate_node("n", {})
    assert str(caught.value).isprintable()
    assert len(str(caught.value)) < 1100
