# SPDX-License-Identifier: Apache-2.0
"""The module scheduler_extender and the Lease by which schedulers elect their leader."""

from __future__ import annotations

import base64
import http.server
import json
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, cast

import pytest
import trustme
import yaml
from ansible_collections.accel.kubernetes.plugins.module_utils.host.machine import Host
from ansible_collections.accel.kubernetes.plugins.module_utils.scheduler.lease import Lease, renewed

from old_authority import OldAuthority, strict
from unit.plugins.modules.control_plane import BINPACK, CHECKSUM, EXTENDER, ControlPlane

PATH = "/apis/coordination.k8s.io/v1/namespaces/kube-system/leases/kube-scheduler"


@dataclass
class Api:
    """As much of an API server as the Lease needs. It asks for a client's certificate."""

    manifest: Path
    authority: trustme.CA
    leads: Callable[[str], bool] = lambda manifest: True
    """Whether the scheduler of a manifest renews the Lease."""
    port: int = 0
    renewed: int = 0

    def answer(self) -> tuple[int, dict[str, Any]]:
        self.renewed += self.leads(self.manifest.read_text())
        return 200, {"spec": {"holderIdentity": "control_1", "renewTime": f"2026-01-01T00:00:00.{self.renewed:06}Z"}}

    def kubeconfig(self, user: dict[str, Any]) -> str:
        ca = base64.b64encode(self.authority.cert_pem.bytes()).decode()
        cluster = {"server": f"https://127.0.0.1:{self.port}", "certificate-authority-data": ca}
        config = {
            "clusters": [{"name": "c", "cluster": cluster}],
            "contexts": [{"name": "x", "context": {"cluster": "c", "user": "u"}}],
            "current-context": "x",
            "users": [{"name": "other", "user": {}}, {"name": "u", "user": user}],
        }
        return yaml.safe_dump(config)


@pytest.fixture
def api(node: ControlPlane, request: pytest.FixtureRequest) -> Iterator[Api]:
    authority = getattr(request, "param", trustme.CA)()
    found = Api(node.manifest, authority)

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            known = bool(self.connection.getpeercert()) or self.headers["Authorization"] == "Bearer good"  # type: ignore[attr-defined]
            status, body = found.answer() if known and self.path == PATH else (403, {})
            self.send_response(status)
            self.end_headers()
            self.wfile.write(json.dumps(body).encode())

        def log_message(self, *_args: object) -> None:
            pass

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    authority.configure_trust(context)
    context.verify_mode = ssl.CERT_OPTIONAL
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    found.port = server.server_address[1]
    thread = threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True)
    thread.start()
    yield found
    server.shutdown()
    server.server_close()
    thread.join()


def as_data(api: Api, _root: Path) -> dict[str, Any]:
    leaf = api.authority.issue_cert(common_name="system:kube-scheduler")
    pems = {"client-certificate": leaf.cert_chain_pems[0], "client-key": leaf.private_key_pem}
    return {f"{name}-data": base64.b64encode(pem.bytes()).decode() for name, pem in pems.items()}


def as_files(api: Api, root: Path) -> dict[str, Any]:
    leaf = api.authority.issue_cert(common_name="system:kube-scheduler")
    (root / "var/lib/pki").mkdir(parents=True)
    leaf.cert_chain_pems[0].write_to_path(root / "var/lib/pki/client.crt")
    leaf.private_key_pem.write_to_path(root / "etc/kubernetes/client.key")
    return {"client-certificate": "/var/lib/pki/client.crt", "client-key": "client.key"}


def about_leases(result: dict[str, Any]) -> list[str]:
    return [text for text in map(str, result.get("warnings", ())) if "leads was not checked" in text]


@pytest.mark.parametrize("user", [as_data, as_files, lambda _api, _root: {"token": "good"}])
def test_a_lease_that_is_renewed_ends_the_wait(
    node: ControlPlane,
    api: Api,
    user: Callable[[Api, Path], dict[str, Any]],
) -> None:
    (node.root / "etc/kubernetes/scheduler.conf").write_text(api.kubeconfig(user(api, node.root)))

    result = node.run(binpack_resources=BINPACK)

    assert result["changed"]
    assert not about_leases(result)
    assert api.renewed >= 3


@pytest.mark.parametrize("api", [OldAuthority], indirect=True)
def test_an_api_server_of_an_old_authority_is_trusted(
    api: Api, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    strict(monkeypatch)
    kubeconfig = tmp_path / "scheduler.conf"
    kubeconfig.write_text(api.kubeconfig({"token": "good"}))

    assert renewed(Host(cast(Any, None)), Lease(str(kubeconfig), "kube-system", "kube-scheduler")).startswith("2026")


def test_scheduler_that_never_leads_gets_its_old_files(node: ControlPlane, api: Api) -> None:
    (node.root / "etc/kubernetes/scheduler.conf").write_text(api.kubeconfig({"token": "good"}))
    before = node.files()
    api.leads = lambda manifest: CHECKSUM not in manifest

    result = node.run(binpack_resources=BINPACK, timeout=6)

    assert result["failed"]
    assert "no kube-scheduler has renewed the Lease kube-system/kube-scheduler" in result["msg"]
    assert "the previous files are back and the service is well" in result["msg"]
    assert node.files() == before


@pytest.mark.parametrize("flag", ["--leader-elect=false", "--leader-elect-resource-name=another"])
def test_a_lease_of_before_a_flag_is_none_to_wait_for(node: ControlPlane, api: Api, flag: str) -> None:
    """The flags of the election win over the configuration, and Leases that nobody renews stay in the cluster."""
    (node.root / "etc/kubernetes/scheduler.conf").write_text(api.kubeconfig({"token": "good"}))
    node.run(binpack_resources=BINPACK)
    node.manifest.write_text(node.manifest.read_text().replace("--leader-elect=true", flag))
    api.leads = lambda _manifest: False

    result = node.run(extenders=[EXTENDER], timeout=6)

    assert not result.get("failed"), result


@pytest.mark.parametrize(
    ("user", "why"), [({"token": "bad"}, "status 403"), (None, "etc/kubernetes/scheduler.conf does not exist")]
)
def test_a_lease_that_could_not_be_read_before_is_warned_of(
    node: ControlPlane,
    api: Api,
    user: dict[str, Any] | None,
    why: str,
) -> None:
    if user is not None:
        (node.root / "etc/kubernetes/scheduler.conf").write_text(api.kubeconfig(user))

    result = node.run(binpack_resources=BINPACK)

    assert result["changed"]
    (warning,) = about_leases(result)
    assert why in warning
