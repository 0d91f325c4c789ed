# SPDX-License-Identifier: Apache-2.0
"""The shipped extender in a process of its own, the API server it watches, and kube-scheduler's side of a connection.

Everything goes over sockets with TLS, as it does on a control plane.
"""

from __future__ import annotations

import http.client
import json
import re
import socket
import ssl
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import trustme

from bench.api_stub import HttpsServer, Size, Stub, node_name, pod
from cluster.control_plane import free_port
from kube_accel.extender.service import Layout
from unit.kube_accel.extender.world import Api, taken
from waiting import wait


class Scheduler:
    """What kube-scheduler asks, over a kept connection. One thread at a time."""

    def __init__(self, port: int, context: ssl.SSLContext | None, timeout: float = 30) -> None:
        """Without a ``context`` there is no TLS. ``timeout`` in seconds."""
        self._connection = (
            http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
            if context is None
            else http.client.HTTPSConnection("127.0.0.1", port, context=context, timeout=timeout)
        )

    def close(self) -> None:
        """The next call connects again."""
        self._connection.close()

    def send(self, method: str, path: str, body: bytes | str | None = None) -> tuple[int, bytes]:
        """Status and body of an answer. Raises OSError or HTTPException."""
        try:
            self._connection.request(method, path, body)
            response = self._connection.getresponse()
            return response.status, response.read()
        except (OSError, http.client.HTTPException):
            self.close()
            raise

    def call(self, verb: str, document: object) -> Any:
        """The answer to a verb."""
        status, body = self.send("POST", f"/scheduler/{verb}", json.dumps(document))
        assert status == 200, body
        return json.loads(body)

    def filter(self, item: Mapping[str, Any], names: list[str]) -> dict[str, Any]:
        answer = self.call("predicates", {"Pod": item, "NodeNames": names})
        assert isinstance(answer, dict)
        return answer

    def best(self, item: Mapping[str, Any], names: list[str]) -> str:
        """The node of highest score; empty when none has room."""
        passed = self.filter(item, names)["NodeNames"]
        if not passed:
            return ""
        scores = self.call("priorities", {"Pod": item, "NodeNames": passed})
        return str(max(scores, key=lambda entry: entry["Score"])["Host"])

    def bind(self, item: Mapping[str, Any], node: str) -> str:
        """Why it failed, or an empty string."""
        metadata = item["metadata"]
        names = {"PodName": metadata["name"], "PodNamespace": metadata["namespace"], "PodUID": metadata["uid"]}
        return str(self.call("bind", {**names, "Node": node})["Error"])

    def schedule(self, item: Mapping[str, Any], names: list[str]) -> str:
        """One cycle; why the pod was not bound, or an empty string."""
        node = self.best(item, names)
        return self.bind(item, node) if node else "no room"


@dataclass
class Outside:
    """An API server whose cluster is ``stub``, and extenders beside it."""

    root: Path
    nodes: int
    authority: trustme.CA = field(default_factory=trustme.CA)
    stub: Stub = field(init=False)
    api: HttpsServer = field(init=False)

    def __post_init__(self) -> None:
        self.stub = Stub(Size(self.nodes, 0, 20))
        self.authority.cert_pem.write_to_path(self.root / "ca.crt")
        self.certify(self.authority, "server", "127.0.0.1")
        self.certify(self.authority, "client", "scheduler")
        self.serve()
        threading.Thread(target=self.stub.run_plugins, daemon=True).start()

    @property
    def names(self) -> list[str]:
        """Return the names of all nodes."""
        return [node_name(number) for number in range(self.nodes)]

    def certify(self, authority: trustme.CA, name: str, host: str) -> Path:
        """A PEM file with key and certificate."""
        path = self.root / f"{name}.pem"
        authority.issue_cert(host).private_key_and_cert_chain_pem.write_to_path(path)
        return path

    def serve(self, port: int = 0) -> None:
        """The API server is there."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.root / "server.pem")
        self.api = HttpsServer(self.stub, context, port)
        threading.Thread(target=self.api.serve_forever, kwargs={"poll_interval": 0.01}, daemon=True).start()

    def client(self, certificate: str = "client", ca: str = "ca.crt") -> ssl.SSLContext:
        """A client's side of TLS; without a certificate when that is empty."""
        context = ssl.create_default_context(cafile=self.root / ca)
        if certificate:
            context.load_cert_chain(self.root / f"{certificate}.pem")
        return context

    def create(
        self, name: str, limits: dict[str, str], annotations: dict[str, str] | None = None, **spec: Any
    ) -> dict[str, Any]:
        """A pod that waits; ``spec`` has further fields of it."""
        item = pod(name, f"uid-{name}", limits, annotations=annotations)
        item["spec"] |= spec
        self.stub.create(item)
        return item

    def bound(self) -> dict[str, str]:
        """The nodes of pods that are bound, as the API server has it."""
        with self.stub.lock:
            return {
                name: item["spec"]["nodeName"] for name, item in self.stub.added.items() if item["spec"].get("nodeName")
            }

    def waiting(self) -> list[dict[str, Any]]:
        """The pods that are not bound."""
        with self.stub.lock:
            return [item for item in self.stub.added.values() if not item["spec"].get("nodeName")]

    def never_twice(self) -> None:
        """No GPU has more pods than it has room for."""
        with self.stub.lock:
            pods = json.loads(json.dumps(self.stub.added))
        for cores, memory in taken(Api(pods=pods)).values():
            assert cores <= 100
            assert memory <= 80 << 30

    def _kubeconfig(self) -> Path:
        path = self.root / "kubeconfig"
        cluster = {"server": f"https://127.0.0.1:{self.api.server_port}", "certificate-authority": "ca.crt"}
        user = {"client-certificate": "client.pem", "client-key": "client.pem"}
        document = {
            "clusters": [{"name": "test", "cluster": cluster}],
            "users": [{"name": "test", "user": user}],
            "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
            "current-context": "test",
        }
        path.write_text(json.dumps(document))
        return path

    @contextmanager
    def extender(
        self,
        port: int | None = None,
        name: str = "extender",
        dies: bool = False,
        layout: Layout = Layout.LOCAL,
        flags: tuple[str, ...] = (),
    ) -> Iterator[Running]:
        """The shipped command, ready. It must still run at the end, unless the test is what it ``dies`` of."""
        port = port or free_port()
        kubeconfig = self._kubeconfig()
        command = [str(Path(sys.executable).with_name("kube-accel")), "extender", f"--listen=127.0.0.1:{port}"]
        command += [f"--kubeconfig={kubeconfig}", f"--layout={layout.value}", *flags]
        if layout is Layout.LOCAL:
            command += [f"--tls-cert={self.root}/server.pem", f"--tls-key={self.root}/server.pem"]
            command += [f"--client-ca={self.root}/ca.crt"]
        with (self.root / f"{name}.log").open("ab") as log:
            process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            running = Running(self, port, process, layout)
            wait(running.ready, f"{name} ready")
            yield running
            assert dies or process.poll() is None, (self.root / f"{name}.log").read_text()[-3000:]
        finally:
            process.kill()
            process.wait()


@dataclass(frozen=True)
class Running:
    """An extender's process."""

    outside: Outside
    port: int
    process: subprocess.Popen[bytes]
    layout: Layout = Layout.LOCAL

    def scheduler(self, certificate: str = "client", ca: str = "ca.crt") -> Scheduler:
        """A client of it."""
        return Scheduler(self.port, self.outside.client(certificate, ca) if self.layout is Layout.LOCAL else None)

    def get(self, path: str) -> tuple[int, str]:
        """A page for anyone."""
        scheduler = self.scheduler("")
        try:
            status, body = scheduler.send("GET", path)
            return status, body.decode()
        finally:
            scheduler.close()

    def ready(self) -> bool:
        """Whether it says so."""
        assert self.process.poll() is None, "it has ended"
        try:
            return self.get("/readyz")[0] == 200
        except OSError:
            return False

    def metric(self, name: str) -> float:
        """A value of /metrics; ``name`` with its labels."""
        found = re.search(rf"^{re.escape(name)} (\S+)$", self.get("/metrics")[1], re.MULTILINE)
        assert found is not None, name
        return float(found[1])

    def plain(self) -> socket.socket:
        """A connection on which nothing was said yet."""
        return socket.create_connection(("127.0.0.1", self.port), timeout=30)
