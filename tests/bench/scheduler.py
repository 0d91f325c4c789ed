# SPDX-License-Identifier: Apache-2.0
"""``make bench BENCH=scheduler``: pods a second of a real kube-scheduler, with our extender, with claims, and alone.

kube-scheduler, kube-apiserver and etcd are those of Kubernetes, nodes are objects without a kubelet, kube-scheduler's
own limit of requests is out of the way, and all pods are there before it begins. Everything shares this machine: what
counts is the one compared with the other, in one run.
"""

from __future__ import annotations

import argparse
import os
import re
import ssl
import sys
import threading
import urllib.request
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from time import perf_counter
from typing import Any

from bench.api_stub import GPUS, MEMORY, NAMESPACE, UNIT, annotation, node_name, shares
from bench.measure import Result, cpu_seconds, report
from cluster.control_plane import (
    TOKEN,
    ControlPlane,
    control_plane,
    entry,
    extender_beside,
    free_port,
    missing,
    wait_for,
)
from kube_accel.dra.slices import DRIVER, devices
from kube_accel.kube.api import ApiRefusedError
from kube_accel.kube.client import KubeClient
from kube_accel.kube.watch import Watch, Watched
from kube_accel.shared.modes import DRA_SHARE_CLASS, dra_pool
from kube_accel.sharing import inventory_annotation

EXTENDED, CLAIMS, ALONE = "", "shares by claims", "kube-scheduler alone"
"""With the extender; shares by Dynamic Resource Allocation and no extender; counted resources and no extender."""
CONTENDERS = (EXTENDED, CLAIMS, ALONE)
CORES = 10
ROUNDS = 3
WAIT_SECONDS = 600.0
API = "resource.k8s.io/v1"
GROUP = f"/apis/{API}"
CLASS = {
    "apiVersion": API,
    "kind": "DeviceClass",
    "metadata": {"name": DRA_SHARE_CLASS},
    "spec": {"selectors": [{"cel": {"expression": f"device.driver == '{DRIVER}'"}}]},
}
_SAMPLE = re.compile(r"^(?P<name>\w+?)_(?P<part>sum|count)(?:\{(?P<labels>.*)\})? (?P<value>\S+)$", re.MULTILINE)
STEPS = {
    "kube-scheduler chooses a node": ("scheduler_scheduling_algorithm_duration_seconds", ""),
    "its filter plugins": ("scheduler_framework_extension_point_duration_seconds", 'extension_point="Filter"'),
    "its score plugins": ("scheduler_framework_extension_point_duration_seconds", 'extension_point="Score"'),
    "its own bind": ("scheduler_framework_extension_point_duration_seconds", 'extension_point="Bind"'),
    "extender filters": ("accel_extender_request_seconds", 'verb="predicates"'),
    "extender prioritizes": ("accel_extender_request_seconds", 'verb="priorities"'),
    "extender binds": ("accel_extender_request_seconds", 'verb="bind"'),
}
"""What takes time, each as a histogram tells it: its name, and a label."""


class Bound:
    """Notes when pods are seen bound."""

    def __init__(self) -> None:
        self.seen: dict[str, float] = {}
        self._before: set[str] = set()

    def begin(self) -> None:
        """Pods that were seen so far do not count."""
        self._before, self.seen = set(self.seen), {}

    def keep(self, item: dict[str, Any]) -> str | None:
        name = item["metadata"]["name"]
        if item["spec"].get("nodeName") and name not in self._before:
            self.seen.setdefault(name, perf_counter())
        return None

    def drop(self, item: dict[str, Any]) -> None:
        """Nothing is deleted."""

    def keys(self) -> set[str]:
        return set()

    def lose(self, key: str) -> None:
        """Nothing is kept."""


@dataclass(frozen=True, slots=True)
class Run:
    """What placing all pods took."""

    seconds: float
    """From the first to the last that was seen bound."""
    processors: Mapping[str, float]
    """Seconds of processor time, by program."""
    steps: Mapping[str, tuple[float, float]]
    """Seconds and how often, by step."""


def read_steps(text: str) -> dict[str, tuple[float, float]]:
    """The sums and counts of ``STEPS`` in Prometheus' text format; a step that is not told of is absent."""
    totals: dict[str, dict[str, float]] = {}
    for sample in _SAMPLE.finditer(text):
        for step, (name, label) in STEPS.items():
            if sample["name"] == name and label in (sample["labels"] or ""):
                parts = totals.setdefault(step, {"sum": 0.0, "count": 0.0})
                parts[sample["part"]] += float(sample["value"])
    return {step: (parts["sum"], parts["count"]) for step, parts in totals.items() if parts["count"]}


def measured(nodes: int, pods: int, who: str) -> Run:
    """One run of one of the contenders, on a control plane of its own."""
    with control_plane() as plane, ExitStack() as stack:
        admin = plane.admin
        wait_for(lambda: made(admin, NAMESPACE), "a namespace")
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda number: make_node(admin, number), range(nodes)))
            if who == CLAIMS:
                admin.post(f"{GROUP}/deviceclasses", CLASS)
                list(pool.map(lambda number: make_slice(admin, number), range(nodes)))
        pids = {name: plane.programs[name].process.pid for name in ("etcd", "kube-apiserver")}
        extenders, ports = [], [free_port()]
        if who == EXTENDED:
            ports.append(free_port())
            pids["extender"] = stack.enter_context(extender_beside(plane, ports[1])).process.pid
            extenders = [entry(plane, ports[1])]
        found, stop = Bound(), threading.Event()
        watch = Watch(admin, Watched("/api/v1/pods"), found)
        threading.Thread(target=watch.run, args=(stop,), daemon=True).start()
        stack.callback(stop.set)
        make_pod(admin, pods, who == CLAIMS)
        scheduler = stack.enter_context(plane.scheduler(extenders, port=ports[0]))
        # From here on the extender is the one that binds, as it is in a cluster that runs.
        wait_for(lambda: found.seen, "a first pod to be bound", WAIT_SECONDS)
        scheduler.kill()
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda number: make_pod(admin, number, who == CLAIMS), range(pods)))
        found.begin()
        before = {name: cpu_seconds(pid) for name, pid in pids.items()}
        scheduler.start()
        pids["kube-scheduler"] = scheduler.process.pid
        wait_for(lambda: len(found.seen) == pods, "all pods to be bound", WAIT_SECONDS)
        taken = {name: cpu_seconds(pid) - before.get(name, 0.0) for name, pid in pids.items()}
        text = "".join(scraped(plane, port) for port in ports)
        seconds = max(found.seen.values()) - min(found.seen.values())
        return Run(seconds, taken, read_steps(text))


def scraped(plane: ControlPlane, port: int) -> str:
    """The metrics served at a port."""
    request = urllib.request.Request(f"https://127.0.0.1:{port}/metrics", headers={"Authorization": f"Bearer {TOKEN}"})
    context = ssl._create_unverified_context()
    with urllib.request.urlopen(request, timeout=30, context=context) as answer:
        return str(answer.read().decode())


def pods_per_second(nodes: int, pods: int, rounds: int = 1) -> list[Result]:
    """Each contender in so many rounds, whose order rotates, and where the time of the last one goes."""
    params = {"nodes": nodes, "names": True}
    runs: dict[str, list[Run]] = {who: [] for who in CONTENDERS}
    for number in range(rounds):
        for place in range(len(CONTENDERS)):
            who = CONTENDERS[(number + place) % len(CONTENDERS)]
            runs[who].append(measured(nodes, pods, who))
    results, rates = [], {who: pods * rounds / sum(run.seconds for run in found) for who, found in runs.items()}
    for who, found in runs.items():
        taken = {name: sum(run.processors[name] for run in found) / rounds for name in found[0].processors}
        spent = ", ".join(f"{name} {1000 * seconds / pods:.1f}" for name, seconds in sorted(taken.items()))
        each = ", ".join(f"{run.seconds:.1f}" for run in found)
        note = f"{pods} pods in {each} s; processor time a pod, in ms: {spent}"
        results.append(Result("scheduler", "pods_per_second", rates[who], params, note, who))
        for step, (seconds, count) in found[-1].steps.items():
            mean = Result(
                "scheduler", "step_mean_seconds", seconds / count, params | {"step": step}, f"{count:.0f} times", who
            )
            results.append(mean)
    for who, what in ((EXTENDED, "with the extender"), (CLAIMS, "with claims")):
        ratio = rates[who] / rates[ALONE]
        results.append(Result("scheduler", "pods_per_second_ratio", ratio, params, f"{what}, to it alone", who))
    return results


def made(admin: KubeClient, namespace: str) -> bool:
    """Whether there is such a namespace; it is made."""
    try:
        admin.post("/api/v1/namespaces", {"metadata": {"name": namespace}})
    except ApiRefusedError as error:
        return error.status == 409
    return True


def make_node(admin: KubeClient, number: int) -> None:
    """A node that is ready and offers its GPUs. No kubelet runs."""
    name, amounts = node_name(number), {"cpu": "1000", "memory": "8000Gi", "pods": "1000"}
    amounts |= shares(100 * GPUS, GPUS * MEMORY // UNIT)
    annotations = {inventory_annotation.ANNOTATION: annotation(number, [])}
    admin.post(
        "/api/v1/nodes", {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name, "annotations": annotations}}
    )
    status = {"capacity": amounts, "allocatable": amounts, "conditions": [{"type": "Ready", "status": "True"}]}
    admin.patch(f"/api/v1/nodes/{name}/status", {"status": status})
    # An admission plugin holds new nodes for unready; the controller that ends this does not run.
    admin.patch(f"/api/v1/nodes/{name}", {"spec": {"taints": []}})


def make_slice(admin: KubeClient, number: int) -> None:
    """The GPUs of a node as the DRA driver publishes them."""
    name = node_name(number)
    found = inventory_annotation.decode(annotation(number, [])).inventory
    offered = devices(found, {gpu.uuid for gpu in found.gpus}, {}, shared=True)
    described = {"name": dra_pool(name), "generation": 1, "resourceSliceCount": 1}
    spec = {"driver": DRIVER, "nodeName": name, "pool": described, "devices": list(offered)}
    body = {"apiVersion": API, "kind": "ResourceSlice", "metadata": {"name": f"{name}-gpus"}, "spec": spec}
    admin.post(f"{GROUP}/resourceslices", body)


def make_pod(admin: KubeClient, number: int, claims: bool) -> None:
    """A pod that asks for 10 % of a GPU and 2 GiB, by a claim or by counted resources."""
    name, limits = f"pod-{number}", shares(CORES, 8)
    container: dict[str, Any] = {"name": "main", "image": "none", "resources": {"limits": limits, "requests": limits}}
    spec: dict[str, Any] = {"containers": [container]}
    if claims:
        amounts = {"requests": {"cores": str(CORES), "memory": f"{8 * UNIT >> 20}Mi"}}
        asked = {"name": "share", "exactly": {"deviceClassName": DRA_SHARE_CLASS, "capacity": amounts}}
        claim = {"apiVersion": API, "kind": "ResourceClaim", "metadata": {"name": name}}
        admin.post(
            f"{GROUP}/namespaces/{NAMESPACE}/resourceclaims", {**claim, "spec": {"devices": {"requests": [asked]}}}
        )
        container["resources"] = {"claims": [{"name": "share"}]}
        spec["resourceClaims"] = [{"name": "share", "resourceClaimName": name}]
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": spec}
    admin.post(f"/api/v1/namespaces/{NAMESPACE}/pods", body)


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.scheduler", description="Measure pods a second of kube-scheduler.")
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--pods", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=ROUNDS)
    arguments = parser.parse_args()
    if reason := missing():
        sys.exit(reason)
    results = pods_per_second(arguments.nodes, arguments.pods, arguments.rounds)
    print(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}", file=sys.stderr)
    report(results)


if __name__ == "__main__":
    main()
