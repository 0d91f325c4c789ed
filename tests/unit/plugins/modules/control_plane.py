# SPDX-License-Identifier: Apache-2.0
"""A machine whose kube-scheduler the module scheduler_extender changes, and what starts it there."""

from __future__ import annotations

import contextlib
import http.server
import json
import shutil
import ssl
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trustme
import yaml

from waiting import wait

FIXTURES = Path(__file__).parents[1] / "fixtures"
EXTENDER = {
    "url_prefix": "https://127.0.0.1:9446/scheduler",
    "filter_verb": "predicates",
    "bind_verb": "bind",
    "enable_https": True,
    "managed_resources": [{"name": "tencent.com/vcuda-core", "ignored_by_scheduler": False}],
}
BINPACK = [{"name": "nvidia.com/gpu", "weight": 3}]
CHECKSUM = "kube-accel.io/scheduler-config-checksum"


class Healthz(http.server.BaseHTTPRequestHandler):
    configz: dict[str, Any] | None = None
    """For those who show a certificate."""

    def do_GET(self) -> None:
        body = b""
        if self.path == "/configz":
            known = isinstance(self.connection, ssl.SSLSocket) and self.connection.getpeercert()
            if self.configz is None or not known:
                self.send_error(403)
                return
            body = json.dumps({"componentconfig": internal(self.configz)}).encode()
        self.send_response(200)
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_args: object) -> None:
        pass


def internal(value: Any) -> Any:
    """As Go writes a type without names for JSON."""
    acronyms = {"urlPrefix": "URLPrefix", "enableHTTPS": "EnableHTTPS", "tlsConfig": "TLSConfig"}
    if isinstance(value, dict):
        return {acronyms.get(name, name[:1].upper() + name[1:]): internal(item) for name, item in value.items()}
    return [internal(item) for item in value] if isinstance(value, list) else value


@dataclass
class Kubelet:
    """Runs a scheduler, each time with a new certificate, for as long as the manifest stays the same."""

    manifests: Path
    accepts: Callable[[str], bool] = lambda manifest: True
    file: str = "kube-scheduler.yaml"
    certificate: Path | None = None
    """What it shows at each start; a new one each time when there is none."""
    processes: Path | None = None
    """Where its process can be seen."""
    flags: Callable[[], str] = lambda: "--v=2"
    """What its process is started with."""
    heeds: Callable[[], dict[str, Any]] | None = None
    """What it makes of its configuration at each start; it tells those of ``administrators``."""
    administrators: trustme.CA = field(default_factory=trustme.CA)
    port: int = 0
    seen: set[str] = field(default_factory=set)
    starts: int = 0
    stopping: threading.Event = field(default_factory=threading.Event)

    def run(self) -> None:
        running = ""
        server: http.server.HTTPServer | None = None
        while not self.stopping.wait(0.02):
            self.seen.update(path.name for path in self.manifests.iterdir() if not path.name.startswith("."))
            manifest = (self.manifests / self.file).read_text(errors="replace")
            # Empty is a file that is being written: truncated, and not filled yet.
            if manifest and manifest != running:
                self._stop(server)
                server = self._start() if self.accepts(manifest) else None
                running = manifest
        self._stop(server)

    def _start(self) -> http.server.HTTPServer:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        if self.certificate is None:
            trustme.CA().issue_cert("127.0.0.1").configure_cert(context)
        else:
            context.load_cert_chain(self.certificate)
        context.verify_mode = ssl.CERT_OPTIONAL
        self.administrators.configure_trust(context)
        server = self._listen(self.heeds() if self.heeds else None)
        server.socket = context.wrap_socket(server.socket, server_side=True)
        self.port = server.server_address[1]
        threading.Thread(target=server.serve_forever, args=(0.02,), daemon=True).start()
        self.starts += 1
        if self.processes is not None:
            shutil.rmtree(self.processes / f"{self.starts - 1}", ignore_errors=True)
            (self.processes / f"{self.starts}").mkdir(parents=True)
            (self.processes / f"{self.starts}/cmdline").write_bytes(
                b"/usr/local/bin/kube-scheduler\0" + self.flags().encode()
            )
        return server

    def _listen(self, heeded: dict[str, Any] | None) -> http.server.HTTPServer:
        if heeded is not None:
            heeded = {"extenders": None, "profiles": [], **heeded}
        while True:
            try:
                handler = type("Handler", (Healthz,), {"configz": heeded})
                return http.server.ThreadingHTTPServer(("127.0.0.1", self.port), handler)
            except OSError:
                # Somebody else has the port for a moment.
                if self.stopping.wait(0.1):
                    raise

    def _stop(self, server: http.server.HTTPServer | None) -> None:
        if server is not None:
            server.shutdown()
            server.server_close()


@dataclass
class ControlPlane:
    """A machine with kubeadm's scheduler."""

    run_module: Callable[..., dict[str, Any]]
    root: Path
    kubelet: Kubelet

    @property
    def manifest(self) -> Path:
        return self.root / "etc/kubernetes/manifests/kube-scheduler.yaml"

    @property
    def config(self) -> Path:
        return self.root / "etc/kubernetes/kube-accel/scheduler.yaml"

    def arguments(self, **options: Any) -> dict[str, Any]:
        return {
            "host_root": str(self.root),
            "backup_dir": str(self.root.parent / "backups"),
            "health_url": f"https://127.0.0.1:{self.kubelet.port}/healthz",
            "timeout": 30,
            **options,
        }

    def run(self, *, check: bool = False, **options: Any) -> dict[str, Any]:
        return self.run_module("scheduler_extender", self.arguments(**options), check=check)

    def pod(self) -> dict[str, Any]:
        pod: dict[str, Any] = yaml.safe_load(self.manifest.read_text())
        return pod

    def files(self) -> dict[str, bytes]:
        paths = (path for path in (self.root / "etc").rglob("*") if path.is_file())
        return {str(path.relative_to(self.root)): path.read_bytes() for path in paths}


def administrator(kubelet: Kubelet, path: Path) -> Path:
    """A kubeconfig that the scheduler lets in."""
    pem = path.with_suffix(".pem")
    leaf = kubelet.administrators.issue_cert("admin.example", organization_name="system:masters")
    leaf.private_key_and_cert_chain_pem.write_to_path(pem)
    user = {"client-certificate": pem.name, "client-key": pem.name}
    document = {
        "clusters": [{"name": "a", "cluster": {"server": "https://127.0.0.1:1"}}],
        "contexts": [{"name": "a", "context": {"cluster": "a", "user": "a"}}],
        "current-context": "a",
        "users": [{"name": "a", "user": user}],
    }
    path.write_text(yaml.safe_dump(document))
    return path


def heeded(file: Path) -> dict[str, Any]:
    """What a scheduler makes of a file, which may not be there."""
    found: dict[str, Any] = yaml.safe_load(file.read_text()) if file.exists() else {}
    return found


@contextlib.contextmanager
def running(kubelet: Kubelet) -> Iterator[Kubelet]:
    thread = threading.Thread(target=kubelet.run)
    thread.start()
    wait(lambda: kubelet.starts or not thread.is_alive())
    assert kubelet.starts
    try:
        yield kubelet
    finally:
        kubelet.stopping.set()
        thread.join()
