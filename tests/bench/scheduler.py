# SPDX-License-Identifier: Apache-2.0
"""``make bench BENCH=scheduler``: pods a second of a real kube-scheduler, with our extender and without, and why.

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
from kube_accel.kube.api import ApiRefusedError
from kube_accel.kube.client import KubeClient
from kube_accel.kube.watch import Watch, Watched
from kube_accel.sharing import inventory_annotation

ALONE = "kube-scheduler alone"
WAIT_SECONDS = 600.0
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


def measured(nodes: int, pods: int, extended: bool) -> Run:
    """One run, on a control plane of its own."""
    with control_plane() as plane, ExitStack() as stack:
        admin = plane.admin
        wait_for(lambda: made(admin, NAMESPACE), "a namespace")
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda number: make_node(admin, number), range(nodes)))
        pids = {name: plane.programs[name].process.pid for name in ("etcd", "kube-apiserver")}
        extenders, ports = [], [free_port()]
        if extended:
            ports.append(free_port())
            pids["extender"] = stack.enter_context(extender_beside(plane, ports[1])).process.pid
            extenders = [entry(plane, ports[1])]
        found, stop = Bound(), threading.Event()
        watch = Watch(admin, Watched("/api/v1/pods"), found)
        threading.Thread(target=watch.run, args=(stop,), daemon=True).start()
        stack.callback(stop.set)
        make_pod(admin, pods)
        scheduler = stack.enter_context(plane.scheduler(extenders, port=ports[0]))
        # From here on the extender is the one that binds, as it is in a cluster that runs.
        wait_for(lambda: found.seen, "a first pod to be bound", WAIT_SECONDS)
        scheduler.kill()
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda number: make_pod(admin, number), range(pods)))
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


def pods_per_second(nodes: int, pods: int) -> list[Result]:
    """With the extender and without, and where the time goes."""
    params = {"nodes": nodes, "names": True}
    runs = {who: measured(nodes, pods, extended=not who) for who in ("", ALONE)}
    rates = {who: pods / run.seconds for who, run in runs.items()}
    results = []
    for who, run in runs.items():
        spent = ", ".join(f"{name} {1000 * taken / pods:.1f}" for name, taken in sorted(run.processors.items()))
        note = f"{pods} pods in {run.seconds:.1f} s; processor time a pod, in ms: {spent}"
        results.append(Result("extender", "pods_per_second", rates[who], params, note, who))
        for step, (seconds, count) in run.steps.items():
            mean = Result(
                "extender", "step_mean_seconds", seconds / count, params | {"step": step}, f"{count:.0f} times", who
            )
            results.append(mean)
    ratio = rates[""] / rates[ALONE]
    return [*results, Result("extender", "pods_per_second_ratio", ratio, params, "with the extender to without")]


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


def make_pod(admin: KubeClient, number: int) -> None:
    """A pod that asks for 10 % of a GPU and 2 GiB."""
    limits = shares(10, 8)
    container = {"name": "main", "image": "none", "resources": {"limits": limits, "requests": limits}}
    body = {"metadata": {"name": f"pod-{number}"}, "spec": {"containers": [container]}}
    admin.post(f"/api/v1/namespaces/{NAMESPACE}/pods", {"apiVersion": "v1", "kind": "Pod", **body})


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.scheduler", description="Measure pods a second of kube-scheduler.")
    parser.add_argument("--nodes", type=int, default=100)
    parser.add_argument("--pods", type=int, default=1000)
    arguments = parser.parse_args()
    if reason := missing():
        sys.exit(reason)
    results = pods_per_second(arguments.nodes, arguments.pods)
    print(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}", file=sys.stderr)
    report(results)


if __name__ == "__main__":
    main()
