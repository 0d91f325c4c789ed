# SPDX-License-Identifier: Apache-2.0
"""A simulated GPU node for one plugin to run on: NVML, sysfs, kubelet and an API server."""

from __future__ import annotations

import os
import ssl
import subprocess
import tempfile
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import trustme

from sim.kubelet import FakeKubelet
from sim.nvml import build, sysfs
from sim.nvml.profiles import PROFILES

RESOURCE = "nvidia.com/gpu"
REGISTER_TIMEOUT = 60.0
STOP_TIMEOUT = 15.0


@dataclass(frozen=True, slots=True)
class Node:
    root: Path
    gpus: int
    kubelet: FakeKubelet
    environment: dict[str, str]
    annotated: threading.Event

    @property
    def plugin_dir(self) -> Path:
        return self.root / "var/lib/kubelet/device-plugins"

    def plugin_socket(self) -> Path:
        """The socket of the one plugin that runs."""
        (socket,) = (path for path in self.plugin_dir.glob("*.sock") if path.name != "kubelet.sock")
        return socket

    @contextmanager
    def plugin(self, command: Sequence[str]) -> Iterator[subprocess.Popen[bytes]]:
        """Start a plugin, wait until kubelet can hand out every GPU, stop it, wait until it can hand out none.

        Raises RuntimeError with the plugin's log when it does not register.
        """
        log = self.root / "plugin.log"
        with log.open("wb") as output:
            process = subprocess.Popen(command, env=self.environment, stdout=output, stderr=subprocess.STDOUT)
        try:
            try:
                self.wait_for(self.gpus)
            except TimeoutError as error:
                raise RuntimeError(f"{command[0]} did not register all GPUs; its log: {log.read_text()}") from error
            yield process
        finally:
            process.terminate()
            try:
                process.wait(STOP_TIMEOUT)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.wait_for(0)

    def wait_for(self, gpus: int) -> None:
        """Return once kubelet counts so many healthy GPUs. Raises TimeoutError."""
        self.kubelet.wait(lambda: self.kubelet.allocatable().get(RESOURCE, 0) == gpus, REGISTER_TIMEOUT)


@contextmanager
def simulated_node(profile: str) -> Iterator[Node]:
    """A node with the GPUs of a profile of ``sim.nvml``, in a directory short enough for sockets."""
    with tempfile.TemporaryDirectory(prefix="b", dir="/tmp") as name, _api_server(Path(name)) as (api, annotated):
        root = Path(name)
        topology = PROFILES[profile]("node")
        topology.save(root / "gpusim.conf")
        sysfs.write(topology, root)
        sysfs.load_driver(topology, root)
        build(root / "usr/lib")
        nvml = {"LD_LIBRARY_PATH": str(root / "usr/lib"), "GPUSIM_FILE": str(root / "gpusim.conf")}
        with FakeKubelet(root / "var/lib/kubelet") as kubelet:
            yield Node(root, len(topology.gpus), kubelet, {**os.environ, **nvml, **api}, annotated)


@contextmanager
def _api_server(root: Path) -> Iterator[tuple[dict[str, str], threading.Event]]:
    """An API server that takes node annotations: what a pod finds of it in its environment, and "one was taken"."""
    annotated = threading.Event()

    class Handler(BaseHTTPRequestHandler):
        def do_PATCH(self) -> None:
            self.rfile.read(int(self.headers["Content-Length"]))
            self.send_response(200)
            self.send_header("Content-Length", "2")
            self.end_headers()
            self.wfile.write(b"{}")
            annotated.set()

        def log_message(self, format: str, *arguments: object) -> None:
            pass

    class Server(ThreadingHTTPServer):
        def handle_error(self, request: object, client_address: object) -> None:
            """A plugin that is stopped hangs up on us; whether it annotated is seen in ``annotated``."""

    account = root / "serviceaccount"
    account.mkdir()
    authority = trustme.CA()
    authority.cert_pem.write_to_path(account / "ca.crt")
    (account / "token").write_text("token")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("127.0.0.1").configure_cert(context)
    with Server(("127.0.0.1", 0), Handler) as server:
        server.socket = context.wrap_socket(server.socket, server_side=True)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        where = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(server.server_port)}
        yield where, annotated
        server.shutdown()
