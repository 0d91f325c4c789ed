# SPDX-License-Identifier: Apache-2.0
"""``make bench BENCH=packing``: GPUs that a real kube-scheduler uses with our extender, configured as the role does.

Nodes are objects without a kubelet. All pods of a case exist within a second or so. In the last case, what the API
server answers reaches the extender a second late, so that tens of binds are under way at once.
"""

from __future__ import annotations

import asyncio
import math
import os
import random
import sys
import threading
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any
from urllib.parse import urlsplit

from bench.api_stub import GPUS, NAMESPACE, shares
from bench.measure import Result, report
from bench.scheduler import WAIT_SECONDS, Bound, made, make_node, scraped
from cluster.control_plane import ControlPlane, control_plane, entry, extender_beside, free_port, missing, wait_for
from kube_accel.kube.client import Credentials, KubeClient
from kube_accel.kube.watch import Watch, Watched
from kube_accel.sharing import assignment
from kube_accel.sharing.request import PLACEMENT

NODES = 100
BINPACK = {"nvidia.com/gpu": 1}
"""The role's default for ``scheduler_binpack_resources``."""
PROFILES: list[dict[str, Any]] = [
    {
        "schedulerName": "default-scheduler",
        "pluginConfig": [
            {
                "name": "NodeResourcesFit",
                "args": {
                    "scoringStrategy": {
                        "type": "MostAllocated",
                        "resources": [{"name": name, "weight": weight} for name, weight in BINPACK.items()],
                    }
                },
            }
        ],
    }
]
"""What the role makes of kube-scheduler's profiles."""
_UNITS = 8
"""2 GiB for each share."""
_LATE_SECONDS = 1.0
_PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"


@dataclass(frozen=True, slots=True)
class Case:
    """Pods, and between how many nodes and GPUs they may have in the end."""

    name: str
    percents: tuple[int, ...]
    """Of a GPU, in the order in which the pods come; more than 100 are whole GPUs."""
    nodes: tuple[int, int]
    gpus: tuple[int, int]
    policy: str = "binpack"
    beside: int = 0
    """Pods for 8 GPUs that come later, and have to find as many whole nodes."""
    late: bool = False
    """Answers of the API server come late."""
    binds: int = 0
    """Binds that have to be under way at once at some time."""


@dataclass(frozen=True, slots=True)
class Packed:
    """How a case ended."""

    case: Case
    nodes: int
    gpus: int
    binds: int
    """The most binds that were seen under way at once."""

    @property
    def misses(self) -> list[str]:
        """What does not hold."""
        held = {"nodes": (self.nodes, *self.case.nodes), "GPUs": (self.gpus, *self.case.gpus)}
        held["binds at once"] = self.binds, self.case.binds, max(self.binds, self.case.binds)
        return [
            f"{self.case.name}: {count} {what}, not {least} to {most}"
            for what, (count, least, most) in held.items()
            if not least <= count <= most
        ]


def fewest(percents: Sequence[int]) -> int:
    """No fewer GPUs can hold these shares, in whatever order they come (bound L2 of Martello and Toth)."""
    found = math.ceil(sum(percents) / 100)
    for most in range(51):
        large = sum(each > 100 - most for each in percents)
        middle = [each for each in percents if 50 < each <= 100 - most]
        small = sum(each for each in percents if most <= each <= 50)
        beside = 100 * len(middle) - sum(middle)
        found = max(found, large + len(middle) + max(0, math.ceil((small - beside) / 100)))
    return found


def mixed(seed: int, count: int = 600) -> Case:
    """Shares of 5 to 100 %, which may use 5 % more GPUs than they have to."""
    rng = random.Random(seed)
    percents = tuple(rng.randrange(5, 101, 5) for _ in range(count))
    least = fewest(percents)
    most = math.floor(1.05 * least)
    return Case(f"{count} of 5 to 100 %, seed {seed}", percents, (1, math.ceil(most / GPUS)), (least, most))


CASES = (
    Case("101 of 10 %, then 98 of 8 GPUs", (10,) * 101, (2, 2), (11, 11), beside=NODES - 2),
    Case("1,001 of 10 %", (10,) * 1001, (13, 13), (101, 101)),
    *(mixed(seed) for seed in range(3)),
    Case("200 whole GPUs", (100,) * 200, (25, 25), (200, 200)),
    Case("110 of 10 %, spread", (10,) * 110, (NODES - 5, NODES), (110, 110), policy="spread"),
    Case("1,001 of 10 %, answers late", (10,) * 1001, (13, 13), (101, 101), late=True, binds=50),
)


def packed(cases: Sequence[Case] = CASES) -> list[Packed]:
    """Run these cases, one after the other, on one control plane."""
    with control_plane() as plane:
        admin = plane.admin
        wait_for(lambda: made(admin, NAMESPACE), "a namespace")
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda number: make_node(admin, number), range(NODES)))
        return [_packed(plane, case) for case in cases]


def _packed(plane: ControlPlane, case: Case) -> Packed:
    with ExitStack() as stack:
        asked = plane
        if case.late:
            port = stack.enter_context(_late(int(urlsplit(plane.admin.url).port or 0), _LATE_SECONDS))
            asked = replace(plane, admin=KubeClient(f"https://127.0.0.1:{port}", Credentials(plane.ca)))
        port = free_port()
        stack.enter_context(extender_beside(asked, port))
        stack.enter_context(plane.scheduler([entry(plane, port)], profiles=PROFILES))
        found, stop = Bound(), threading.Event()
        watch = Watch(plane.admin, Watched("/api/v1/pods"), found)
        threading.Thread(target=watch.run, args=(stop,), daemon=True).start()
        stack.callback(stop.set)
        binds = 0

        def all_bound(count: int) -> bool:
            nonlocal binds
            binds = max(binds, _gauge(plane, port, "accel_extender_reservations"))
            return len(found.seen) >= count

        _create(plane, case.percents, case.policy)
        wait_for(lambda: all_bound(len(case.percents)), f"{case.name}: all pods to be bound", WAIT_SECONDS)
        nodes, gpus = _in_use(plane)
        _create(plane, [100 * GPUS] * case.beside, case.policy, "whole")
        count = len(case.percents) + case.beside
        wait_for(lambda: all_bound(count), f"{case.name}: whole nodes for the others", WAIT_SECONDS)
        names = [item["metadata"]["name"] for item in plane.admin.get(_PODS)["items"]]
        with ThreadPoolExecutor(8) as pool:
            list(pool.map(lambda name: plane.admin.send("DELETE", f"{_PODS}/{name}", {"gracePeriodSeconds": 0}), names))
        return Packed(case, nodes, gpus, binds)


def _create(plane: ControlPlane, percents: Sequence[int], policy: str, prefix: str = "pod") -> None:
    def create(numbered: tuple[int, int]) -> None:
        number, percent = numbered
        limits = shares(percent, 0 if percent >= 100 else _UNITS)
        metadata = {"name": f"{prefix}-{number}", "annotations": {PLACEMENT: policy}}
        container = {"name": "main", "image": "none", "resources": {"limits": limits, "requests": limits}}
        plane.admin.post(
            _PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container]}}
        )

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(create, enumerate(percents)))


def _in_use(plane: ControlPlane) -> tuple[int, int]:
    """Nodes and GPUs of which pods have some, by the API server. No GPU has more than it holds."""
    cores: dict[str, int] = {}
    nodes = set()
    for item in plane.admin.get(_PODS)["items"]:
        found = assignment.decode(item["metadata"]["annotations"][assignment.ANNOTATION])
        nodes.add(found.node)
        for each in found.containers.values():
            for share in each:
                cores[share.uuid] = cores.get(share.uuid, 0) + share.cores
    over = {uuid: percent for uuid, percent in cores.items() if percent > 100}
    if over:
        raise RuntimeError(f"GPUs of which more was given than there is, in percent: {over}")
    return len(nodes), len(cores)


def _gauge(plane: ControlPlane, port: int, name: str) -> int:
    lines = scraped(plane, port).splitlines()
    return int(float(next(line.rpartition(" ")[2] for line in lines if line.startswith(f"{name} "))))


@contextmanager
def _late(port: int, seconds: float) -> Iterator[int]:
    """A port that leads to another one, from which everything arrives so many seconds late."""
    loop = asyncio.new_event_loop()
    tasks: set[asyncio.Task[None]] = set()

    def write(writer: asyncio.StreamWriter, data: bytes) -> None:
        if not writer.is_closing():
            writer.write(data)

    async def forward(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, delay: float) -> None:
        while data := await reader.read(1 << 16):
            loop.call_later(delay, write, writer, data)
        loop.call_later(delay, writer.close)

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        far, near = await asyncio.open_connection("127.0.0.1", port)
        for one, other, delay in ((reader, near, 0.0), (far, writer, seconds)):
            task = loop.create_task(forward(one, other, delay))
            tasks.add(task)
            task.add_done_callback(tasks.discard)

    server = loop.run_until_complete(asyncio.start_server(serve, "127.0.0.1", 0))
    thread = threading.Thread(target=loop.run_forever, daemon=True)
    thread.start()
    try:
        yield int(server.sockets[0].getsockname()[1])
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()


def results(found: Sequence[Packed]) -> list[Result]:
    """A line of the table for each case."""
    return [
        Result(
            "scheduler",
            "gpus_in_use_count",
            each.gpus,
            {"pods": len(each.case.percents), "case": each.case.name},
            f"{each.case.gpus[0]} to {each.case.gpus[1]} allowed; {each.nodes} nodes of {each.case.nodes[0]} to "
            f"{each.case.nodes[1]}; up to {each.binds} binds at once",
        )
        for each in found
    ]


def main() -> None:
    if reason := missing():
        sys.exit(reason)
    found = packed()
    print(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}", file=sys.stderr)
    report(results(found))
    sys.exit("\n".join(miss for each in found for miss in each.misses))


if __name__ == "__main__":
    main()
