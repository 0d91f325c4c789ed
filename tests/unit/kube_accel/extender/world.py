# SPDX-License-Identifier: Apache-2.0
"""A cluster in memory: an API server that says what really happened, and extenders that hear of it when told to."""

from __future__ import annotations

import json
import random
import threading
from collections import Counter
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

from kube_accel.extender.binder import Binder, Outcome
from kube_accel.extender.cache import Cluster
from kube_accel.extender.decide import Decider, Verdicts
from kube_accel.extender.leader_lease import LeaderLease, NotOursError
from kube_accel.extender.metrics import Metrics
from kube_accel.extender.pods import Pod, PodReader
from kube_accel.extender.quota import Quotas
from kube_accel.extender.service import VERBS, Layout, Scheduling, Service
from kube_accel.extender.sinks import PodSink
from kube_accel.kube.api import ApiError, ApiRefusedError, ApiUnreachableError
from kube_accel.model import Gpu, GpuHealth, Inventory, Mode
from kube_accel.sharing import assignment, inventory_annotation
from kube_accel.sharing.inventory_annotation import Holding, NodeInventory
from kube_accel.web.head import Head
from kube_accel.web.pages import Pages
from kube_accel.web.site import Request, Response
from unit.kube_accel.plugin.fakes import HEALTHY, inventory

GIB = 1 << 30
UNIT = 256 << 20


def share(cores: int, gib: int) -> dict[str, str]:
    """Limits of a container."""
    return {"tencent.com/vcuda-core": str(cores), "tencent.com/vcuda-memory": str(gib * 4)}


def pod_object(name: str, limits: Mapping[str, str], **changed: Any) -> dict[str, Any]:
    """A pod as the API server has it; ``changed`` goes into its spec."""
    return {
        "metadata": {"name": name, "namespace": "team", "uid": f"uid-{name}", "annotations": {}},
        "spec": {"containers": [{"name": "main", "resources": {"limits": dict(limits)}}], **changed},
        "status": {"phase": "Pending"},
    }


def node_object(
    name: str,
    gpus: int = 1,
    mode: Mode = Mode.VGPU,
    held: Mapping[str, tuple[Holding, ...]] | None = None,
    health: Mapping[str, GpuHealth] | None = None,
    labels: Mapping[str, str] | None = None,
    known: Inventory | None = None,
    divided: frozenset[str] = frozenset(),
) -> dict[str, Any]:
    """A node whose plugin has reported H100s with 80 GiB."""
    known = known or Inventory("580.1", (13, 0), tuple(_of(name, gpu) for gpu in inventory(gpus).gpus))
    healthy = {gpu.uuid: HEALTHY for gpu in known.gpus}
    node = NodeInventory(mode, known, {**healthy, **(health or {})}, held or {}, UNIT, divided)
    text = inventory_annotation.encode(node)
    return {
        "metadata": {"name": name, "labels": dict(labels or {}), "annotations": {inventory_annotation.ANNOTATION: text}}
    }


def _of(node: str, gpu: Gpu) -> Gpu:
    return Gpu(
        uuid(node, gpu.index), gpu.index, gpu.minor, gpu.model, gpu.memory_bytes, (9, 0), gpu.pci_address, None, False
    )


def uuid(node: str, index: int) -> str:
    return f"GPU-{node}-{index}"


class Clock:
    """Seconds that a test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Api:
    """Pods as the API server has them. Binds fail at random, before or after they are done."""

    fail: float = 0.0
    rng: random.Random = field(default_factory=lambda: random.Random(0))
    gone: bool = False
    pods: dict[str, dict[str, Any]] = field(default_factory=dict)
    events: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    lock: threading.Lock = field(default_factory=threading.Lock)
    binds: int = 0
    version: int = 0
    leases: dict[str, dict[str, Any]] = field(default_factory=dict)
    holds: BaseException | None = None
    """Binds are kept on their way and raise this to who sends them."""
    late: list[tuple[str, Any]] = field(default_factory=list)
    """Those that are."""
    stubborn: dict[str, ApiError] = field(default_factory=dict)
    """What a pod that cannot be changed is answered with, by name. It can be bound."""
    changes: int = 0
    throttled: int = 0
    """Number of changes that are refused for want of time."""

    def create(self, item: dict[str, Any]) -> dict[str, Any]:
        with self.lock:
            self.pods[item["metadata"]["name"]] = item
            self._tell("keep", item)
        return item

    def delete(self, name: str) -> None:
        with self.lock:
            self._tell("drop", self.pods.pop(name))

    def annotate(self, name: str, annotations: Mapping[str, str]) -> None:
        with self.lock:
            if name not in self.pods:
                raise ApiRefusedError(404, "not found")
            self.pods[name]["metadata"]["annotations"] |= annotations
            self._tell("keep", self.pods[name])

    def _changed(self, item: dict[str, Any]) -> None:
        self.version += 1
        item["metadata"]["resourceVersion"] = str(self.version)

    def _tell(self, what: str, item: dict[str, Any]) -> None:
        self._changed(item)
        self.events.append((what, json.loads(json.dumps(item))))

    def get(self, path: str, query: Mapping[str, str] | None = None) -> dict[str, Any]:
        if self.gone:
            raise ApiUnreachableError("no API server")
        with self.lock:
            name = path.rpartition("/")[2]
            found = self.leases.get(name) if "/leases/" in path else self.pods.get(name)
            if found is None:
                raise ApiRefusedError(404, "not found")
            return json.loads(json.dumps(found))  # type: ignore[no-any-return]

    def put(self, path: str, body: Any) -> dict[str, Any]:
        if self.gone:
            raise ApiUnreachableError("no API server")
        with self.lock:
            name = path.rpartition("/")[2]
            known, told = self.leases.get(name), body["metadata"].get("resourceVersion")
            if told != (known and known["metadata"]["resourceVersion"]):
                raise ApiRefusedError(409, "changed by another")
            self.leases[name] = json.loads(json.dumps(body))
            self._changed(self.leases[name])
        return {}

    def patch(self, path: str, body: Any) -> dict[str, Any]:
        if self.gone:
            raise ApiUnreachableError("no API server")
        name, metadata = path.rpartition("/")[2], body["metadata"]
        with self.lock:
            if self.throttled:
                self.throttled -= 1
                raise ApiRefusedError(429, "too many requests")
            if (refusal := self.stubborn.get(name)) is not None:
                raise refusal
            if name not in self.pods:
                raise ApiRefusedError(404, "not found")
            self.changes += 1
            for key in ("annotations", "labels"):
                self.pods[name]["metadata"].setdefault(key, {}).update(metadata.get(key, {}))
            self._tell("keep", self.pods[name])
        return self.get(path)

    def deliver(self) -> None:
        """What was on its way arrives; nobody waits for the answers."""
        while self.late:
            with suppress(ApiRefusedError, ApiUnreachableError):
                self.post(*self.late.pop(0))

    def post(self, path: str, body: Any) -> dict[str, Any]:
        if self.holds is not None:
            self.late.append((path, body))
            raise self.holds
        if self.gone:
            raise ApiUnreachableError("no API server")
        with self.lock:
            self.binds += 1
            failure = self.rng.random() < self.fail
            after = self.rng.random() < 0.5
            if failure and not after:
                raise ApiRefusedError(500, "failed before")
            name = path.split("/")[-2]
            pod = self.pods.get(name)
            if pod is None:
                raise ApiRefusedError(404, "not found")
            if pod["metadata"]["uid"] != body["metadata"]["uid"] or pod["spec"].get("nodeName"):
                raise ApiRefusedError(409, "already assigned")
            if pod["metadata"]["resourceVersion"] != body["metadata"]["resourceVersion"]:
                raise ApiRefusedError(409, "changed by another")
            pod["spec"]["nodeName"] = body["target"]["name"]
            pod["metadata"]["annotations"] |= body["metadata"]["annotations"]
            self._tell("keep", pod)
            if failure:
                raise ApiUnreachableError("failed after")
        return {}


class Stepped(LeaderLease):
    """Looks at the Lease when somebody waits for that: there is no thread that does."""

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.lock = threading.RLock()
        self.asks = True
        """Otherwise no bind that needs another look at the Lease goes on."""

    def wait(self, pod: Pod) -> str:
        with self.lock:
            try:
                for _ in range(3):
                    version = pod.version
                    if self._proves(version):
                        return version[0]
                    if self.asks:
                        self.step()
            except ApiError as error:
                raise NotOursError(str(error)) from error
            raise NotOursError(self._problem)


class Extender:
    """An extender without threads or sockets. It hears of pods in ``listen``, of nodes at once."""

    def __init__(self, api: Api, clock: Clock | None = None, layout: Layout = Layout.LOCAL, **reader: Any) -> None:
        self.api = api
        self.clock = clock or Clock()
        verdicts = Verdicts()
        pod_reader = PodReader(**reader)
        self.cluster = Cluster(pod_reader, verdicts.forget)
        self.decider = Decider(self.cluster, verdicts)
        self.quotas = Quotas(self.cluster, self.decider.choose)
        self.sink = PodSink(self.cluster)
        self.lease = Stepped(api, self.cluster, pause=lambda: self.listen(1), clock=self.clock, writers=1)
        self.binder = Binder(api, self.cluster, self.decider, self.quotas, self.lease, clock=self.clock)
        metrics = Metrics(VERBS, [outcome.value for outcome in Outcome])
        scheduling = Scheduling(
            pod_reader, self.cluster, self.decider, self.binder, self.lease, self.quotas.limits, metrics
        )
        self.service = Service(layout, scheduling, Pages({}, {}), self.clock)
        self._position = 0
        self.lease.step()

    def listen(self, events: int | None = None) -> None:
        """Hear of what happened to pods, all of it or so many events of it."""
        end = len(self.api.events) if events is None else min(len(self.api.events), self._position + events)
        for what, item in self.api.events[self._position : end]:
            if what == "keep":
                self.sink.keep(item)
            else:
                self.sink.drop(item)
        self._position = end

    def call(self, verb: str, body: object, status: int = 200, known: bool = True) -> Any:
        """What kube-scheduler would get."""
        path, text = f"/scheduler/{verb}", json.dumps(body).encode()
        admitted = self.service.admit(Head("POST", path, len(text), True), known)
        response = (
            admitted if isinstance(admitted, Response) else self.service.handle(Request("POST", path, text, known))
        )
        if response.afterwards is not None:
            response.afterwards()
        assert response.status == status, response.body
        return json.loads(response.body) if status == 200 else response.body.decode()

    def filter(self, pod: dict[str, Any], *names: str) -> dict[str, Any]:
        answer = self.call("predicates", {"Pod": pod, "NodeNames": list(names)})
        assert isinstance(answer, dict)
        return answer

    def bind(self, pod: dict[str, Any], node: str) -> str:
        metadata = pod["metadata"]
        names = {"PodName": metadata["name"], "PodNamespace": metadata["namespace"], "PodUID": metadata["uid"]}
        return str(self.call("bind", {**names, "Node": node})["Error"])

    def schedule(self, pod: dict[str, Any], *names: str) -> str:
        """One cycle of kube-scheduler; why the pod was not bound, or an empty string."""
        answer = self.filter(pod, *names)
        if answer["Error"]:
            return str(answer["Error"])
        if not answer["NodeNames"]:
            return "; ".join({**answer["FailedNodes"], **answer["FailedAndUnresolvableNodes"]}.values())
        scores = self.call("priorities", {"Pod": pod, "NodeNames": answer["NodeNames"]})
        return self.bind(pod, max(scores, key=lambda entry: entry["Score"])["Host"])


def taken(api: Api) -> dict[str, tuple[int, int]]:
    """Cores and memory of each GPU that bound pods were assigned, by what the API server has."""
    cores: Counter[str] = Counter()
    memory: Counter[str] = Counter()
    for pod in api.pods.values():
        text = (pod["metadata"].get("annotations") or {}).get(assignment.ANNOTATION)
        if pod["spec"].get("nodeName") and text:
            for shares in assignment.decode(text).containers.values():
                for entry in shares:
                    cores[entry.uuid] += entry.cores
                    memory[entry.uuid] += entry.memory_bytes
    return {gpu: (cores[gpu], memory[gpu]) for gpu in cores}


def bound(api: Api) -> list[str]:
    return sorted(name for name, pod in api.pods.items() if pod["spec"].get("nodeName"))
