# SPDX-License-Identifier: Apache-2.0
"""``make bench BENCH=metrics``: what metrics of a full node cost, from outside.

The shipped command runs on a simulated node whose GPUs are all in use; scrapes go over its socket, each on a connection
of its own. How long a collection takes is what the page says of the collections before it.
"""

from __future__ import annotations

import argparse
import http.client
import os
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from bench.measure import Result, Series, cpu_seconds, process_tree, pss_bytes, report, series
from bench.node import NAMESPACE, Node, simulated_node
from bench.plugin import Shares, ours, say, wait
from kube_accel.enforce.policy import STATE_DEVICE, STATE_HEADER, record
from kube_accel.model import Mode
from kube_accel.sharing.profile import WHOLE_GPU_RESOURCE
from sim.kubelet import Container, PodSpec
from sim.nvml.topology import edit

PROFILE = "8xh100"
MODES = (Mode.PGPU, Mode.VGPU)
TENANTS = 8
"""Containers on a GPU, in modes that share them."""
MIB = 1 << 20
_DURATION = "accel_collector_duration_seconds"
_LAUNCH_SECONDS = 0.4
"""From one launch of a container to the next; looks are a second apart."""
_SCRAPE_SECONDS = 10.0
"""From one scrape to the next while processor time is counted."""


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured."""

    scrapes: int = 2000
    collections: int = 20
    idle_seconds: float = 20
    interval: float = 10
    """Between collections, while scrapes, processor time and memory are measured: as shipped."""
    settle_seconds: float = 5
    """From the start of a plugin to the first of them."""


class Scraper:
    """Gets pages as Prometheus does."""

    def __init__(self, port: int) -> None:
        self._port = port
        self.page = ""

    def scrape(self) -> float:
        """Seconds it took."""
        taken, self.page = self.get("/metrics")
        return taken

    def get(self, path: str) -> tuple[float, str]:
        """Seconds it took, and the text. Raises RuntimeError for anything but an answer."""
        begin = time.perf_counter()
        connection = http.client.HTTPConnection("127.0.0.1", self._port, timeout=10)
        connection.request("GET", path)
        response = connection.getresponse()
        body = response.read()
        taken = time.perf_counter() - begin
        connection.close()
        if response.status != 200:
            raise RuntimeError(f"{path} answered {response.status}")
        return taken, body.decode()

    def values(self, name: str) -> list[float]:
        """The values of a family's series, on the last page."""
        return [float(line.rpartition(" ")[2]) for line in self.page.splitlines() if line.startswith(f"{name}{{")]


def occupy(node: Node) -> int:
    """Have containers take all GPUs and work on them; how many they are."""
    pods = list(_whole(node) if node.mode is Mode.PGPU else _shares(node))
    with edit(node.root / "gpusim.conf") as topology:
        for gpu in topology.gpus:
            topology.set_load(gpu.index, 80, memutil=40)
        for pid, (uuid, _) in enumerate(pods, 1000):
            topology.add_process(node.uuids.index(uuid), pid, mem=512 * MIB, sm=80 // TENANTS)
    return len(pods)


def _whole(node: Node) -> Iterator[tuple[str, PodSpec]]:
    for number in range(len(node.uuids)):
        pod = PodSpec(NAMESPACE, f"pod-{number}", f"uid-{number}", (Container("main", {WHOLE_GPU_RESOURCE: 1}),))
        (ids,) = node.kubelet.admit(pod)["main"].device_ids.values()
        yield ids[0], pod


def _shares(node: Node) -> Iterator[tuple[str, PodSpec]]:
    shares = Shares(node)
    for pid, uuid in enumerate(node.uuids * TENANTS, 1000):
        pod = shares.bind(uuid)
        shares.admit(pod)
        identity = f"{pid:064x}"

        def runs(item: dict[str, Any], identity: str = identity) -> None:
            item["status"]["containerStatuses"] = [{"name": "main", "containerID": f"containerd://{identity}"}]

        node.store.edit("pods", NAMESPACE, pod.name, runs)
        directory = node.root / "proc" / str(pid)
        directory.mkdir(parents=True)
        unit = f"kubepods-pod{pod.uid.replace('-', '_')}.slice/cri-containerd-{identity}.scope"
        (directory / "cgroup").write_text(f"0::/kubepods.slice/{unit}\n")
        (directory / "stat").write_text(f"{pid} (python3) S {' '.join('0' for _ in range(40))}\n")
        yield uuid, pod


def launch(node: Node, stop: threading.Event) -> None:
    """Have every container's account tell of one launch more, again and again until ``stop``."""
    before = STATE_HEADER + STATE_DEVICE[: [name for name, _ in STATE_DEVICE].index("launches")]
    place, count = record(before).size, 0
    while not stop.wait(_LAUNCH_SECONDS):
        count += 1
        for path in (node.root / "state/containers").glob("*/state"):
            with path.open("r+b") as file:
                os.pwrite(file.fileno(), count.to_bytes(8, "little"), place)


@contextmanager
def launching(node: Node) -> Iterator[None]:
    """Containers that share a GPU are at work: no look at an account finds what the one before found."""
    stop = threading.Event()
    thread = threading.Thread(target=launch, args=(node, stop))
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()


@contextmanager
def running(node: Node, interval: float) -> Iterator[tuple[int, Scraper]]:
    """The shipped command on a full node, once it tells of every container at work; its process id."""
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    command = [word for word in ours(node) if not word.startswith("--listen")]
    command += [f"--listen=127.0.0.1:{port}", f"--metrics-interval={interval:g}"]
    with node.plugin(command) as process, launching(node):
        scraper = Scraper(port)
        yield process.pid, scraper


def told(scraper: Scraper, containers: int) -> bool:
    scraper.scrape()
    busy = scraper.values("accel_container_gpu_utilization_ratio")
    return len(busy) == containers and min(busy) > 0


def collections(scraper: Scraper, number: int) -> Series:
    """How long so many took, one after the other."""
    taken: list[float] = []
    stamps: set[float] = set()
    while len(taken) < number:
        scraper.scrape()
        stamp = max(scraper.values("accel_collector_last_success_timestamp_seconds"))
        if stamp not in stamps:
            stamps.add(stamp)
            taken.append(sum(scraper.values(_DURATION)))
        time.sleep(0.1)
    return Series(tuple(sorted(taken)), 0)


def idle(pid: int, seconds: float, scraper: Scraper | None) -> float:
    """Part of a core that the tree takes while nobody but a scraper wants anything."""
    before, end = cpu_seconds(pid), time.monotonic() + seconds
    while (left := end - time.monotonic()) > 0:
        time.sleep(min(_SCRAPE_SECONDS, left))
        if scraper is not None:
            scraper.scrape()
    return (cpu_seconds(pid) - before) / seconds


def measure(mode: Mode, effort: Effort) -> list[Result]:
    """Everything about one mode."""
    results: list[Result] = []
    with simulated_node(PROFILE, mode) as node:
        params: dict[str, int | str] = {"gpus": len(node.uuids), "containers": 0, "mode": mode.value}

        def add(metric: str, value: float, note: str) -> None:
            results.append(Result("metrics", metric, value, dict(params), note))

        say(f"{mode.value}: collections")
        with running(node, 1) as (_, scraper):
            params["containers"] = occupy(node)
            wait(lambda: told(scraper, int(params["containers"])), "metrics of every container", 60)
            found = collections(scraper, effort.collections)
            add("collect_seconds", found.quantile(0.5), f"median of {found.counts}, worst {ms(found.samples[-1])}")
        say(f"{mode.value}: {effort.idle_seconds:g} s of rest, with and without metrics, and scrapes")
        with running(node, effort.interval) as (pid, scraper):
            wait(lambda: told(scraper, int(params["containers"])), "metrics of every container", 60)
            time.sleep(effort.settle_seconds)
            ratio = idle(pid, effort.idle_seconds, scraper)
            memory, processes = pss_bytes(pid), len(process_tree(pid))
            scrapes = series(scraper.scrape, effort.scrapes, effort.scrapes // 10)
            empty = series(lambda: scraper.get("/healthz")[0], effort.scrapes, effort.scrapes // 10)
            size = f"{len(scraper.page) / 1024:.0f} KiB, {scraper.page.count(chr(10))} lines"
            note = f"p50 {ms(scrapes.quantile(0.5))}, worst {ms(scrapes.samples[-1])}, {scrapes.counts}; {size}; "
            note += f"/healthz p99 {ms(empty.quantile(0.99))}"
            add("scrape_p99_seconds", scrapes.quantile(0.99), note)
        with running(node, 0) as (pid, _):
            time.sleep(effort.settle_seconds)
            without = idle(pid, effort.idle_seconds, None)
            bare = pss_bytes(pid)
        seconds = f"over {effort.idle_seconds:g} s, a scrape every {_SCRAPE_SECONDS:g} s"
        add("cpu_ratio", ratio, f"of one core, {seconds}; {without:.2%} without metrics")
        add("pss_bytes", memory, f"{processes} processes; {bare / MIB:.1f} MiB without metrics")
    return results


def ms(seconds: float) -> str:
    return f"{seconds * 1000:.2f} ms"


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.metrics", description="Measure metrics of a full node from outside.")
    parser.add_argument("--mode", type=Mode, action="append", help="only this one; may be repeated")
    modes = parser.parse_args().mode or MODES
    load = f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f} before"
    results = [result for mode in modes for result in measure(mode, Effort())]
    print(f"{load} and {os.getloadavg()[0]:.1f} after")
    report(results)


if __name__ == "__main__":
    main()
