# SPDX-License-Identifier: Apache-2.0
"""As much of an API server as the extender speaks to, with a cluster of any size behind it: lists in pages, watches,
bindings. Objects look like real ones, managed fields and all, and are written when asked for; a process of its own.
"""

from __future__ import annotations

import argparse
import itertools
import json
import queue
import random
import socket
import ssl
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

from kube_accel.model import Ancestor, Gpu, GpuHealth, GpuLink, Health, Inventory, Mode, Share
from kube_accel.sharing import assignment, inventory_annotation
from kube_accel.sharing.inventory_annotation import Holding, NodeInventory

GPUS = 8
MEMORY = 80 << 30
UNIT = 256 << 20
CORES, UNITS = 25, 32
"""What every GPU pod of the start has: 25 % and 8 GiB."""
NAMESPACE = "team"


def gpu_uuid(node: int, gpu: int) -> str:
    return f"GPU-{node:08x}-{gpu:04x}-4000-8000-0123456789ab"


def node_name(node: int) -> str:
    return f"gpu-worker-{node:05d}.example.internal"


def node_number(name: str) -> int:
    return int(name.split(".")[0].rpartition("-")[2])


def annotation(node: int, pods: list[tuple[str, int]], more: list[tuple[str, Share]] | None = None) -> str:
    """The inventory of a node of 8 H100, with pods of the start on these GPUs, and more pods with their shares."""
    gpus = tuple(
        Gpu(gpu_uuid(node, i), i, i, "NVIDIA H100 80GB HBM3", MEMORY, (9, 0), f"0000:{16 + i:02x}:00.0", i // 4, False)
        for i in range(GPUS)
    )
    links = {
        frozenset((a.uuid, b.uuid)): GpuLink(Ancestor.NODE if a.numa_node == b.numa_node else Ancestor.SYSTEM, 18)
        for a, b in itertools.combinations(gpus, 2)
    }
    held: dict[str, list[Holding]] = {gpu.uuid: [] for gpu in gpus}
    for name, gpu in pods:
        held[gpu_uuid(node, gpu)].append(Holding(NAMESPACE, name, "main", CORES, UNITS * UNIT))
    for name, share in more or ():
        held[share.uuid].append(Holding(NAMESPACE, name, "main", share.cores, share.memory_bytes))
    health = {gpu.uuid: GpuHealth(Health.HEALTHY) for gpu in gpus}
    inventory = Inventory("580.159.04", (13, 0), gpus, links)
    return inventory_annotation.encode(
        NodeInventory(Mode.VGPU, inventory, health, {uuid: tuple(entries) for uuid, entries in held.items()}, UNIT)
    )


def managed_fields(paths: int) -> list[dict[str, Any]]:
    fields = {f"f:field{number}": {"f:value": {}, "f:other": {}} for number in range(paths)}
    common = {"apiVersion": "v1", "fieldsType": "FieldsV1", "time": "2026-01-01T00:00:00Z"}
    return [
        {**common, "manager": "kube-controller-manager", "operation": "Update", "fieldsV1": {"f:metadata": fields}},
        {
            **common,
            "manager": "kubelet",
            "operation": "Update",
            "subresource": "status",
            "fieldsV1": {"f:spec": fields},
        },
    ]


def pod(name: str, uid: str, limits: dict[str, str], node: str = "", annotations: dict[str, str] | None = None) -> dict:
    """A pod as the API server stores one of a Deployment."""
    condition = {"status": "True", "lastProbeTime": None, "lastTransitionTime": "2026-01-01T00:00:00Z"}
    container = {
        "name": "main",
        "image": "registry.example.internal/team/service:2026.01.1",
        "command": ["/usr/bin/python3", "-m", "service", "--config=/etc/service/config.yaml"],
        "env": [{"name": f"SETTING_{number}", "value": f"value-{number}"} for number in range(12)],
        "resources": {
            "limits": {"cpu": "2", "memory": "4Gi", **limits},
            "requests": {"cpu": "1", "memory": "4Gi", **limits},
        },
        "volumeMounts": [{"name": "kube-api-access", "readOnly": True, "mountPath": "/var/run/secrets"}],
        "terminationMessagePath": "/dev/termination-log",
        "terminationMessagePolicy": "File",
        "imagePullPolicy": "IfNotPresent",
    }
    return {
        "metadata": {
            "name": name,
            "generateName": "service-7d9c9c7f8b-",
            "namespace": NAMESPACE,
            "uid": uid,
            "resourceVersion": "1000",
            "creationTimestamp": "2026-01-01T00:00:00Z",
            "labels": {"app": "service", "pod-template-hash": "7d9c9c7f8b", "team": "research"},
            "annotations": annotations or {},
            "ownerReferences": [{"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "service", "uid": uid}],
            "managedFields": managed_fields(24),
        },
        "spec": {
            "volumes": [{"name": "kube-api-access", "projected": {"sources": [{"configMap": {"name": "ca"}}]}}],
            "containers": [container],
            "restartPolicy": "Always",
            "serviceAccountName": "default",
            "schedulerName": "default-scheduler",
            "tolerations": [{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute"}],
            "priority": 0,
            **({"nodeName": node} if node else {}),
        },
        "status": {
            "phase": "Running" if node else "Pending",
            "conditions": [{"type": kind, **condition} for kind in ("Initialized", "Ready", "PodScheduled")],
            "podIP": "10.0.0.1",
            "containerStatuses": [{"name": "main", "ready": True, "restartCount": 0, "image": container["image"]}],
        },
    }


def shares(cores: int, units: int) -> dict[str, str]:
    return {"tencent.com/vcuda-core": str(cores), "tencent.com/vcuda-memory": str(units)}


@dataclass
class Size:
    nodes: int
    gpu_pods: int
    other_pods: int


@dataclass
class Stub:
    """The cluster and who watches it."""

    size: Size
    version: int = 1000
    lock: threading.Lock = field(default_factory=threading.Lock)
    added: dict[str, dict[str, Any]] = field(default_factory=dict)
    """Pods made since the start, by name."""
    watchers: dict[queue.SimpleQueue[bytes | None], str] = field(default_factory=dict)
    past: deque[tuple[int, str, bytes]] = field(default_factory=lambda: deque(maxlen=10_000))
    """Version, kind and text of the last events."""
    bind_seconds: list[float] = field(default_factory=list)
    fail: float = 0.0
    """The ratio of binds that fail, half of them after they are done."""
    rng: random.Random = field(default_factory=lambda: random.Random(0))
    leases: dict[str, dict[str, Any]] = field(default_factory=dict)
    quota: dict[str, Any] | None = None
    """The ConfigMap."""
    events: list[dict[str, Any]] = field(default_factory=list)
    """Those that were posted."""
    held: dict[int, dict[str, tuple[Share, ...]]] = field(default_factory=dict)
    """By node, what kubelet handed to pods made since the start."""
    started: queue.SimpleQueue[tuple[int, str, str | None]] = field(default_factory=queue.SimpleQueue)
    """Node and name of pods that kubelet starts or ends, and the assignment of those it starts."""

    def placed(self, node: int) -> list[tuple[str, int]]:
        """Names and GPUs of the first pods of a node."""
        each, more = divmod(self.size.gpu_pods, self.size.nodes)
        count = each + (node < more)
        # Of 20 pods two GPUs are full, four have a quarter left, two are free.
        return [(f"gpu-{node}-{number}", number % (GPUS - 2)) for number in range(count)]

    def items(self, kind: str) -> Iterator[bytes]:
        """All objects, as bytes."""
        if kind == "nodes":
            for node in range(self.size.nodes):
                yield json.dumps(self.node(node), separators=(",", ":")).encode()
        elif kind == "pods":
            yield from self.gpu_pods()
            template = json.dumps(pod("@name@", "@uid@", {}, "@node@"), separators=(",", ":"))
            for number in range(self.size.other_pods):
                uid = f"00000000-0000-4000-9000-{number:012x}"
                text = template.replace("@name@", f"web-{number}").replace("@uid@", uid)
                yield text.replace("@node@", node_name(number % self.size.nodes)).encode()
            with self.lock:
                added = list(self.added.values())
            for item in added:
                yield json.dumps(item, separators=(",", ":")).encode()
        elif self.quota is not None:
            yield json.dumps(self.quota).encode()

    def gpu_pods(self) -> Iterator[bytes]:
        template = json.dumps(
            pod("@name@", "@uid@", shares(CORES, UNITS), "@node@", {assignment.ANNOTATION: "@assignment@"}),
            separators=(",", ":"),
        )
        for node in range(self.size.nodes):
            for number, (name, gpu) in enumerate(self.placed(node)):
                entry = [{"uuid": gpu_uuid(node, gpu), "cores": CORES, "memoryBytes": UNITS * UNIT}]
                stated = json.dumps({"version": 1, "node": node_name(node), "containers": {"main": entry}})
                text = template.replace("@name@", name).replace(
                    "@uid@", f"{node:08x}-{number:04x}-4000-8000-0123456789ab"
                )
                yield text.replace("@node@", node_name(node)).replace("@assignment@", json.dumps(stated)[1:-1]).encode()

    def node(self, number: int) -> dict[str, Any]:
        held = self.held.get(number, {})
        more = [(name, share) for name, shares in list(held.items()) for share in shares]
        labels = {f"feature.node.kubernetes.io/label-{index}": "true" for index in range(40)}
        return {
            "kind": "PartialObjectMetadata",
            "apiVersion": "meta.k8s.io/v1",
            "metadata": {
                "name": node_name(number),
                "uid": f"{number:08x}-0000-4000-a000-0123456789ab",
                "resourceVersion": "1000",
                "labels": labels,
                "annotations": {inventory_annotation.ANNOTATION: annotation(number, self.placed(number), more)},
                "managedFields": managed_fields(40),
            },
        }

    def run_plugins(self) -> None:
        """What the nodes' plugins do, for ever: tell what kubelet has handed out."""
        while True:
            node, name, stated = self.started.get()
            held = self.held.setdefault(node, {})
            if stated is None:
                held.pop(name, None)
            else:
                held[name] = assignment.decode(stated).containers["main"]
            with self.lock:
                self.change("MODIFIED", self.node(node), "nodes")

    def change(self, kind: str, item: dict[str, Any], watched: str = "pods") -> None:
        """Tell whoever watches this kind of object."""
        self.version += 1
        item["metadata"]["resourceVersion"] = str(self.version)
        line = json.dumps({"type": kind, "object": item}, separators=(",", ":")).encode() + b"\n"
        self.past.append((self.version, watched, line))
        for watcher, what in list(self.watchers.items()):
            if what == watched:
                watcher.put(line)

    def create(self, item: dict[str, Any]) -> None:
        with self.lock:
            self.added[item["metadata"]["name"]] = item
            self.change("ADDED", item)

    def delete(self, name: str) -> None:
        with self.lock:
            item = self.added.pop(name)
            self.change("DELETED", item)
        if item["spec"].get("nodeName"):
            self.started.put((node_number(item["spec"]["nodeName"]), name, None))

    def put_lease(self, name: str, lease: dict[str, Any]) -> int:
        with self.lock:
            known = self.leases.get(name)
            if lease["metadata"].get("resourceVersion") != (known and known["metadata"]["resourceVersion"]):
                return 409
            self.leases[name] = lease
            self.change("MODIFIED", lease, "leases")
        return 200

    def annotate(
        self,
        name: str,
        annotations: dict[str, str],
        status: dict[str, Any] | None = None,
        labels: dict[str, str] | None = None,
    ) -> int:
        with self.lock:
            item = self.added.get(name)
            if item is None:
                return 404
            item["metadata"]["annotations"] |= annotations
            item["metadata"].setdefault("labels", {}).update(labels or {})
            item["status"] |= status or {}
            self.change("MODIFIED", item)
        return 200

    def set_quota(self, text: str) -> None:
        """Write the ConfigMap."""
        with self.lock:
            kind = "MODIFIED" if self.quota else "ADDED"
            metadata = {"name": "kube-accel-quota", "namespace": "kube-system", "uid": "uid-quota"}
            self.quota = {"metadata": metadata, "data": {"quota.yaml": text}}
            self.change(kind, self.quota, "configmaps")

    def bind(self, name: str, binding: dict[str, Any]) -> int:
        failure, late = self.rng.random() < self.fail, self.rng.random() < 0.5
        if failure and not late:
            return 500
        status = self._bind(name, binding)
        return 500 if failure else status

    def _bind(self, name: str, binding: dict[str, Any]) -> int:
        with self.lock:
            item = self.added.get(name)
            if item is None:
                return 404
            version = binding["metadata"].get("resourceVersion")
            if item["spec"].get("nodeName") or version not in (None, item["metadata"]["resourceVersion"]):
                return 409
            item["spec"]["nodeName"] = binding["target"]["name"]
            item["metadata"]["annotations"] |= binding["metadata"].get("annotations") or {}
            self.change("MODIFIED", item)
        stated = item["metadata"]["annotations"].get(assignment.ANNOTATION)
        self.started.put((node_number(item["spec"]["nodeName"]), name, stated))
        return 201

    def churn(self, per_second: float) -> None:
        """News of pods that are none of the extender's business, for ever."""
        for number in itertools.count():
            time.sleep(1 / per_second)
            with self.lock:
                other = pod(f"web-{number % 1000}", f"00000000-0000-4000-9000-{number % 1000:012x}", {}, node_name(0))
                self.change("MODIFIED", other)

    def end_watches(self) -> None:
        """Every watch ends with "too old": all is listed again."""
        gone = {"type": "ERROR", "object": {"kind": "Status", "code": 410, "message": "too old resource version"}}
        for watcher in list(self.watchers):
            watcher.put(json.dumps(gone).encode() + b"\n")
            watcher.put(None)


class Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True
    wbufsize = -1
    stub: Stub
    begin: float
    pages: dict[str, tuple[int, Iterator[bytes]]]
    """Lists under way, and the version they are of."""

    def log_message(self, format: str, *arguments: object) -> None:
        pass

    def do_GET(self) -> None:
        url = urlsplit(self.path)
        query = {key: values[0] for key, values in parse_qs(url.query).items()}
        words = url.path.strip("/").split("/")
        if url.path == "/stub/bind-seconds":
            taken, self.stub.bind_seconds = self.stub.bind_seconds, []
            self.answer(200, json.dumps(taken).encode())
        elif url.path == "/stub/pods":
            with self.stub.lock:
                waiting = [item for item in self.stub.added.values() if not item["spec"].get("nodeName")]
                body = json.dumps(waiting)
            self.answer(200, body.encode())
        elif "leases" in words:
            lease = self.stub.leases.get(words[-1])
            self.answer(200 if lease else 404, json.dumps(lease or {}).encode())
        elif len(words) == 6:
            item = self.stub.added.get(words[5])
            self.answer(200 if item else 404, json.dumps(item or {}).encode())
        elif "watch" in query:
            self.watch(words[-1], int(query["resourceVersion"]))
        else:
            self.list(words[-1], int(query.get("limit", 500)), query.get("continue", ""))

    def list(self, kind: str, limit: int, token: str) -> None:
        if not token:
            token = f"{kind}-{time.monotonic_ns()}"
            self.pages[token] = self.stub.version, self.stub.items(kind)
        version, items = self.pages[token]
        page = list(itertools.islice(items, limit))
        more = f',"continue":"{token}"' if len(page) == limit else ""
        head = f'{{"kind":"List","apiVersion":"v1","metadata":{{"resourceVersion":"{version}"{more}}},"items":['
        self.answer(200, head.encode() + b",".join(page) + b"]}")

    def watch(self, kind: str, since: int) -> None:
        mine: queue.SimpleQueue[bytes | None] = queue.SimpleQueue()
        with self.stub.lock:
            for version, what, line in self.stub.past:
                if version > since and what == kind:
                    mine.put(line)
            self.stub.watchers[mine] = kind
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        self.wfile.flush()
        try:
            while (line := mine.get()) is not None:
                self.wfile.write(b"%x\r\n%s\r\n" % (len(line), line))
                self.wfile.flush()
            self.wfile.write(b"0\r\n\r\n")
        except OSError:
            self.close_connection = True
        finally:
            self.stub.watchers.pop(mine, None)

    def parse_request(self) -> bool:
        # The request line is here, the rest is still to come.
        self.begin = time.perf_counter()
        return super().parse_request()

    def do_PATCH(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        name = self.path.rpartition("/")[2]
        metadata = body["metadata"]
        status = self.stub.annotate(name, metadata.get("annotations", {}), labels=metadata.get("labels"))
        self.answer(status, json.dumps(self.stub.added.get(name, {})).encode())

    def do_PUT(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.answer(self.stub.put_lease(self.path.rpartition("/")[2], body), b"{}")

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        words = self.path.strip("/").split("/")
        if self.path == "/stub/relist":
            self.stub.end_watches()
            self.answer(200, b"{}")
        elif words[-1] == "binding":
            status = self.stub.bind(words[-2], json.loads(body))
            # Before the answer: who has it may ask for this at once.
            self.stub.bind_seconds.append(time.perf_counter() - self.begin)
            self.answer(status, b'{"kind":"Status"}')
        elif words[-1] == "events":
            self.stub.events.append(json.loads(body))
            self.answer(201, b"{}")
        else:
            item = json.loads(body)
            self.stub.create(item)
            self.answer(201, json.dumps(item).encode())

    def do_DELETE(self) -> None:
        self.stub.delete(self.path.rpartition("/")[2])
        self.answer(200, b"{}")

    def answer(self, status: int, body: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
        self.wfile.flush()


class HttpsServer(ThreadingHTTPServer):
    daemon_threads = True
    request_queue_size = 64

    def __init__(self, stub: Stub, context: ssl.SSLContext, port: int = 0) -> None:
        self.open: set[socket.socket] = set()
        super().__init__(("127.0.0.1", port), type("Bound", (Handler,), {"stub": stub, "pages": {}}))
        self.socket = context.wrap_socket(self.socket, server_side=True, do_handshake_on_connect=False)

    def process_request(self, request: Any, client_address: Any) -> None:
        self.open.add(request)
        super().process_request(request, client_address)

    def shutdown_request(self, request: Any) -> None:
        self.open.discard(request)
        super().shutdown_request(request)

    def stop(self) -> None:
        """Be gone: no new connections, none of the old ones."""
        self.shutdown()
        self.server_close()
        for request in list(self.open):
            with suppress(OSError):
                request.shutdown(socket.SHUT_RDWR)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that went away."""


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.api_stub")
    for name in ("nodes", "gpu-pods", "other-pods"):
        parser.add_argument(f"--{name}", type=int, required=True)
    parser.add_argument("--churn", type=float, default=50, help="events of other pods a second")
    parser.add_argument("--cert", type=Path, required=True)
    parser.add_argument("--port-file", type=Path, required=True)
    arguments = parser.parse_args()
    stub = Stub(Size(arguments.nodes, arguments.gpu_pods, arguments.other_pods))
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(arguments.cert)
    server = HttpsServer(stub, context)
    threading.Thread(target=stub.churn, args=(arguments.churn,), daemon=True).start()
    threading.Thread(target=stub.run_plugins, daemon=True).start()
    arguments.port_file.write_text(str(server.server_port))
    server.serve_forever()


if __name__ == "__main__":
    main()
