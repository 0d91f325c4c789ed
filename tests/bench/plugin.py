# SPDX-License-Identifier: Apache-2.0
"""``make bench BENCH=plugin``: a device plugin, run and timed from outside, and NVIDIA's beside it when there is one.

Each plugin runs as its users run it: the shipped command in a process of its own, its sockets, a kubelet that is
simulated, GPUs that are simulated. Latencies are what a Python client in this process sees; those of an empty call to
the same plugin say how much of that is the client and the socket.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bench.measure import Result, Series, cpu_seconds, process_tree, pss_bytes, series, table
from bench.node import RESOURCE, Node, simulated_node
from kube_accel.kube.channel import open_channel
from kube_accel.kube.deviceplugin import DevicePluginClient
from sim.kubelet import Container, PodSpec

PROFILES = ("8xh100", "16xpcie")
SIZES = (1, 2, 4, 8)
SERIES_SECONDS = 20.0
"""Calls of one kind end here, however few they were."""
HELD = 3
"""GPUs that pods hold while calls are timed."""
PEER = "nvidia-device-plugin"

Command = Callable[[Node], list[str]]


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured; a tenth of ``calls`` more and one more start and restart come first and do not count."""

    starts: int = 10
    restarts: int = 10
    calls: int = 2000
    idle_seconds: float = 20


def ours(node: Node) -> list[str]:
    """The shipped command, with every path on the simulated node."""
    kube_accel = Path(sys.executable).with_name("kube-accel")
    return [
        str(kube_accel),
        "plugin",
        "--mode=pgpu",
        "--node-name=node",
        f"--kubelet-device-plugin-dir={node.plugin_dir}",
        f"--pod-resources-socket={node.root}/var/lib/kubelet/pod-resources/kubelet.sock",
        "--listen=127.0.0.1:0",
        f"--state-dir={node.root}/state",
        f"--sysfs-root={node.root}/sys",
        f"--dev-root={node.root}/dev",
        f"--service-account-dir={node.root}/serviceaccount",
    ]


def peer(binary: Path) -> Command:
    """NVIDIA's plugin, which has kubelet's directory built in: it gets a mount namespace where that is the node's."""
    mounts = (
        "mount -t tmpfs tmpfs /var/lib && mkdir -p /var/lib/kubelet/device-plugins && "
        'mount --bind "$1" /var/lib/kubelet/device-plugins && shift && exec "$@"'
    )
    unshare = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
    flags = ["--pass-device-specs", "--device-discovery-strategy=nvml"]

    def command(node: Node) -> list[str]:
        socket = "--kubelet-socket=/var/lib/kubelet/device-plugins/kubelet.sock"
        return [*unshare, "sh", "-c", mounts, "sh", str(node.plugin_dir), str(binary), *flags, socket]

    return command


def timed(action: Callable[[], object]) -> float:
    start = time.perf_counter()
    action()
    return time.perf_counter() - start


def start(node: Node, command: Sequence[str]) -> float:
    """From the start of the process until kubelet could hand out every GPU."""
    begin = time.perf_counter()
    with node.plugin(command):
        return time.perf_counter() - begin


def restart(node: Node) -> float:
    """From the moment a new kubelet begins to listen until it could hand out every GPU."""
    node.kubelet.stop()
    begin = time.perf_counter()
    node.kubelet.start()
    node.wait_for(node.gpus)
    return time.perf_counter() - begin


def allocate(client: DevicePluginClient, devices: Sequence[str], rng: random.Random) -> float:
    """Allocate of 1, 2, 4 or 8 random GPUs."""
    asked = rng.sample(devices, rng.choice(SIZES))
    return timed(lambda: client.allocate(asked))


def prefer(client: DevicePluginClient, devices: Sequence[str], size: int, rng: random.Random) -> float:
    """GetPreferredAllocation of ``size`` GPUs out of those other pods have left, at times with some already chosen."""
    available = rng.sample(devices, rng.randint(size, len(devices)))
    required = rng.sample(available, rng.choice((0, 0, 0, rng.randint(0, size - 1))))
    begin = time.perf_counter()
    answer = client.get_preferred_allocation(available, required, size)
    taken = time.perf_counter() - begin
    if len(answer) != size or not set(required) <= set(answer) <= set(available):
        raise RuntimeError(f"preferred {answer} for {size} out of {available} with {required}")
    return taken


def measure(profile: str, make: Command, who: str, effort: Effort) -> list[Result]:
    """Everything about one plugin on one kind of node; ``who`` is empty for our own."""
    results: list[Result] = []
    rng = random.Random(0)

    def step(text: str) -> None:
        say(f"{profile}: {who or 'kube-accel'}: {text}")

    with simulated_node(profile) as node:
        command = make(node)

        def add(metric: str, value: float, note: str) -> None:
            results.append(Result("plugin", metric, value, {"gpus": node.gpus}, note, who))

        def add_median(metric: str, found: Series) -> None:
            add(metric, found.quantile(0.5), f"median of {found.counts}, worst {found.samples[-1] * 1000:.0f} ms")

        step("starts")
        add_median("register_seconds", series(lambda: start(node, command), effort.starts, 1))
        with node.plugin(command) as process:
            step("calls")
            for number in range(HELD):
                container = Container("main", {RESOURCE: 1})
                node.kubelet.admit(PodSpec("bench", f"pod-{number}", f"uid-{number}", (container,)))
            devices = sorted(node.kubelet.devices(RESOURCE))
            with open_channel(node.plugin_socket()) as channel:
                client = DevicePluginClient(channel)
                empty = calls(lambda: timed(client.get_options), effort.calls)
                beside = f"an empty call {empty.quantile(0.99) * 1000:.2f}"
                found = calls(lambda: allocate(client, devices, rng), effort.calls)
                add("allocate_p99_seconds", found.quantile(0.99), f"{quantiles(found)}; {beside}")
                by_size = {size: calls(partial(prefer, client, devices, size, rng), effort.calls) for size in SIZES}
                worst = max(SIZES, key=lambda size: by_size[size].quantile(0.99))
                each = ", ".join(f"{size}: {by_size[size].quantile(0.99) * 1000:.2f}" for size in SIZES)
                note = f"of {worst} GPUs: {quantiles(by_size[worst])}; p99 by size {each}; {beside}"
                add("preferred_p99_seconds", by_size[worst].quantile(0.99), note)
            if not who and not node.annotated.wait(10):
                raise RuntimeError(f"the node was not annotated; log: {(node.root / 'plugin.log').read_text()}")
            step(f"idle for {effort.idle_seconds:g} s")
            before = cpu_seconds(process.pid)
            waited = timed(lambda: time.sleep(effort.idle_seconds))
            add("idle_cpu_ratio", (cpu_seconds(process.pid) - before) / waited, f"of one core, over {waited:.0f} s")
            step("kubelet restarts")
            add_median("reregister_seconds", series(lambda: restart(node), effort.restarts, 1))
            processes = len(process_tree(process.pid))
            add("pss_bytes", pss_bytes(process.pid), f"{processes} processes, after all of the above")
    return results


def calls(call: Callable[[], float], number: int) -> Series:
    return series(call, number, number // 10, SERIES_SECONDS)


def quantiles(found: Series) -> str:
    return f"p50 {found.quantile(0.5) * 1000:.2f}, worst {found.samples[-1] * 1000:.2f} ms, {found.counts}"


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def main() -> None:
    tools = Path(os.environ.get("KUBEBUILDER_ASSETS", "/usr/local/kubebuilder/bin"))
    parser = argparse.ArgumentParser(prog="bench.plugin", description="Measure kube-accel plugin from outside.")
    parser.add_argument("--peer", type=Path, default=tools / PEER, help="NVIDIA's binary (default: %(default)s)")
    arguments = parser.parse_args()

    candidates: list[tuple[str, Command]] = [("", ours)]
    if arguments.peer.is_file():
        candidates.append((PEER, peer(arguments.peer)))
    else:
        say(f"no {arguments.peer}: {PEER} is not measured; --peer says where it is")
    load = f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f} before"
    results = [
        result
        for profile in PROFILES
        for who, command in candidates
        for result in measure(profile, command, who, Effort())
    ]
    print(f"{load} and {os.getloadavg()[0]:.1f} after")
    print(table(results))
    for result in results:
        print(result.json())


if __name__ == "__main__":
    main()
