# SPDX-License-Identifier: Apache-2.0
"""``make bench BENCH=plugin``: a device plugin, run and timed from outside, and NVIDIA's beside it when there is one.

Each plugin runs as its users run it: the shipped command in a process of its own, its sockets, a kubelet that is
simulated, GPUs that are simulated. Calls for whole GPUs are timed over the bare socket (``bench.wire``), because gRPC
for Python takes longer as a client than what is to be measured. Modes that share GPUs are called as kubelet calls them,
with gRPC for Python, for pods that an API server has bound here with their GPUs assigned. An empty call by the same
client, Allocate for no container, says how much of a latency is the way there and back.
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
from typing import Any

from bench.measure import Result, Series, cpu_seconds, process_tree, pss_bytes, report, series
from bench.node import NAME, NAMESPACE, Node, simulated_node
from bench.wire import Channel
from kube_accel.kube.proto import deviceplugin_pb2 as pb
from kube_accel.model import Assignment, Mode, Share
from kube_accel.sharing import assignment
from kube_accel.sharing.profile import PROFILES as SHARED
from kube_accel.sharing.profile import WHOLE_GPU_RESOURCE as RESOURCE
from sim import native
from sim.kubelet import Container, PodSpec
from sim.kubelet.channel import open_channel
from sim.kubelet.client import DevicePluginClient

RUNS = (
    ("8xh100", Mode.PGPU),
    ("16xpcie", Mode.PGPU),
    ("8xh100", Mode.VGPU),
    ("16xpcie", Mode.VGPU),
    ("8xh100", Mode.MPS),
    ("8xh100", Mode.CGPU),
)
SIZES = (1, 2, 4, 8)
SERIES_SECONDS = 20.0
"""Calls of one kind end here, however few they were."""
HELD = 3
"""GPUs that pods hold while calls are timed."""
SHARES, WAVE = 5, 10
"""Pods on each GPU before anything is timed; pods that come at once, admitted one after the other."""
HEARD_SECONDS = 0.2
"""From a pod's binding to its admission: its containers' images have been there, kubelet has made its directories."""
PEER = "nvidia-device-plugin"
PEER_PATH = Path(os.environ.get("KUBEBUILDER_ASSETS", "/usr/local/kubebuilder/bin")) / PEER

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
        f"--mode={node.mode.value}",
        f"--node-name={NAME}",
        f"--kubelet-device-plugin-dir={node.plugin_dir}",
        f"--pod-resources-socket={node.root}/var/lib/kubelet/pod-resources/kubelet.sock",
        "--listen=127.0.0.1:0",
        f"--state-dir={node.root}/state",
        f"--sysfs-root={node.root}/sys",
        f"--dev-root={node.root}/dev",
        f"--proc-root={node.root}/proc",
        f"--service-account-dir={node.root}/serviceaccount",
        f"--mps-root={node.root}/mps",
        f"--mps-control-command={node.root}/bin/nvidia-cuda-mps-control",
        f"--container-driver-root={node.root}",
        f"--shim-dir={native.build()}",
        "--watch-resource-slices",
    ]


def in_place(node: Node, command: Sequence[str]) -> list[str]:
    """The command in a namespace where kubelet's directory, /sys and /dev, which NVIDIA's programs have built in, are
    the node's."""
    mounts = (
        "mount -t tmpfs tmpfs /var/lib && mkdir -p /var/lib/kubelet/device-plugins && "
        'mount --bind "$1" /var/lib/kubelet/device-plugins && mount --bind "$2" /sys/bus/pci && '
        'mount --bind "$3" /dev && if [ -d "$4" ]; then mount --bind "$4" /proc/driver; fi && shift 4 && exec "$@"'
    )
    unshare = ["unshare", "--mount"] if os.geteuid() == 0 else ["unshare", "--user", "--map-root-user", "--mount"]
    places = [str(node.plugin_dir), *(str(node.root / name) for name in ("sys/bus/pci", "dev", "proc/driver"))]
    return [*unshare, "sh", "-c", mounts, "sh", *places, *command]


def peer(binary: Path) -> Command:
    """NVIDIA's plugin."""
    flags = ["--pass-device-specs", "--device-discovery-strategy=nvml"]
    socket = "--kubelet-socket=/var/lib/kubelet/device-plugins/kubelet.sock"
    return lambda node: in_place(node, [str(binary), *flags, socket])


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
    node.wait_for(node.devices)
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


def nothing(channel: Any, effort: Effort) -> str:
    """What an empty call takes, as a note beside others."""
    call = channel.unary_unary(
        "/v1beta1.DevicePlugin/Allocate", pb.AllocateRequest.SerializeToString, pb.AllocateResponse.FromString
    )
    found = calls(lambda: timed(lambda: call(pb.AllocateRequest())), effort.calls)
    return f"an empty call {found.quantile(0.99) * 1000:.2f}"


def whole_calls(node: Node, effort: Effort, add: Callable[[str, float, str], None]) -> None:
    """Calls for whole GPUs, any of them free; Allocate last, because it is written about when there is time."""
    rng = random.Random(0)
    for number in range(HELD):
        container = Container("main", {RESOURCE: 1})
        node.kubelet.admit(PodSpec(NAMESPACE, f"pod-{number}", f"uid-{number}", (container,)))
    devices = sorted(node.kubelet.devices(RESOURCE))
    with Channel(node.plugin_socket()) as channel:
        client = DevicePluginClient(channel)
        by_size = {size: calls(partial(prefer, client, devices, size, rng), effort.calls) for size in SIZES}
        worst = max(SIZES, key=lambda size: by_size[size].quantile(0.99))
        each = ", ".join(f"{size}: {by_size[size].quantile(0.99) * 1000:.2f}" for size in SIZES)
        beside = nothing(channel, effort)
        note = f"of {worst} GPUs: {quantiles(by_size[worst])}; p99 by size {each}; {beside}"
        add("preferred_p99_seconds", by_size[worst].quantile(0.99), note)
        found = calls(lambda: allocate(client, devices, rng), effort.calls)
        add("allocate_p99_seconds", found.quantile(0.99), f"{quantiles(found)}; {beside}")


class Shares:
    """Pods with shares of GPUs: bound by the API server with their GPUs assigned, then admitted by kubelet."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._profile = SHARED[node.mode]
        self._rng = random.Random(0)
        self._created = 0

    def bind(self, gpu: str) -> PodSpec:
        """A pod with a share of this GPU, of which 20 would fit."""
        self._created += 1
        name = f"pod-{self._created}"
        limits = {self._profile.memory_resource: self._rng.randint(1, 2 << 30) // self._profile.memory_unit_bytes + 1}
        if self._profile.core_resource is not None:
            limits[self._profile.core_resource] = self._rng.randint(1, 5)
        text = assignment.encode(Assignment(NAME, {"main": (Share(gpu, 1, 1 << 30),)}))
        amounts = {resource: str(count) for resource, count in limits.items()}
        container = {"name": "main", "image": "i", "resources": {"limits": amounts, "requests": amounts}}
        metadata = {"name": name, "namespace": NAMESPACE, "annotations": {assignment.ANNOTATION: text}}
        spec = {"containers": [container], "nodeName": NAME}
        body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        uid = self._node.store.create("pods", NAMESPACE, body)["metadata"]["uid"]
        return PodSpec(NAMESPACE, name, uid, (Container("main", limits),))

    def admit(self, pod: PodSpec) -> set[str]:
        """Kubelet takes the pod and runs it; the GPUs it got."""
        got = self._node.kubelet.admit(pod)["main"]

        def runs(item: dict[str, Any]) -> None:
            item["status"] |= {"phase": "Running"}

        self._node.store.edit("pods", NAMESPACE, pod.name, runs)
        return {device.partition("::")[0] for ids in got.device_ids.values() for device in ids}

    def wave(self) -> None:
        """Pods come at once to random GPUs, and end when all run. Raises RuntimeError when they got other GPUs."""
        assigned = self._rng.choices(self._node.uuids, k=WAVE)
        pods = [self.bind(gpu) for gpu in assigned]
        time.sleep(HEARD_SECONDS)
        got = [self.admit(pod) for pod in pods]
        # Pods that ask for the same may have changed places.
        if sorted(gpu for gpus in got for gpu in gpus) != sorted(assigned):
            raise RuntimeError(f"pods were assigned {assigned} and got {got}")
        for pod in pods:
            self._node.kubelet.remove(pod)
            self._node.store.delete("pods", NAMESPACE, pod.name, {"gracePeriodSeconds": 0})


def share_calls(node: Node, effort: Effort, add: Callable[[str, float, str], None]) -> None:
    """Calls for shares, as kubelet makes them for pods the plugin has heard of."""
    with open_channel(node.plugin_socket()) as channel:
        beside = nothing(channel, effort)
    shares = Shares(node)
    for gpu in node.uuids * SHARES:
        shares.admit(shares.bind(gpu))
    seconds = node.kubelet.seconds
    for wanted in (effort.calls // 10, effort.calls):
        seconds.clear()
        deadline = time.monotonic() + SERIES_SECONDS
        while len(seconds["Allocate"]) < wanted and time.monotonic() < deadline:
            shares.wave()
    pods = f"waves of {WAVE} pods, {len(node.uuids) * SHARES} running"
    for method, metric in (
        ("Allocate", "allocate_p99_seconds"),
        ("GetPreferredAllocation", "preferred_p99_seconds"),
        ("PreStartContainer", "prestart_p99_seconds"),
    ):
        found = Series(tuple(sorted(seconds[method])), effort.calls // 10)
        add(metric, found.quantile(0.99), f"{quantiles(found)}; {pods}; {beside}")


def measure(profile: str, mode: Mode, make: Command, who: str, effort: Effort) -> list[Result]:
    """Everything about one plugin on one kind of node; ``who`` is empty for our own."""
    results: list[Result] = []

    def step(text: str) -> None:
        say(f"{profile} {mode.value}: {who or 'kube-accel'}: {text}")

    with simulated_node(profile, mode) as node:
        command = make(node)

        def add(metric: str, value: float, note: str) -> None:
            params = {"gpus": len(node.uuids), "mode": mode.value}
            results.append(Result("plugin", metric, value, params, note, who))

        def add_median(metric: str, found: Series) -> None:
            add(metric, found.quantile(0.5), f"median of {found.counts}, worst {found.samples[-1] * 1000:.0f} ms")

        step("starts")
        add_median("register_seconds", series(lambda: start(node, command), effort.starts, 1))
        with node.plugin(command) as process:
            if not who:
                wait(node.told, "the node's annotation and condition")
            step(f"idle for {effort.idle_seconds:g} s")
            length = f"over {effort.idle_seconds:g} s"
            add("idle_cpu_ratio", spent(process.pid, effort.idle_seconds), f"of one core, {length}, nothing was asked")
            step("calls")
            (whole_calls if mode is Mode.PGPU else share_calls)(node, effort, add)
            step(f"{effort.idle_seconds:g} s after the calls")
            add("after_calls_cpu_ratio", spent(process.pid, effort.idle_seconds), f"of one core, {length}")
            step("kubelet restarts")
            add_median("reregister_seconds", series(lambda: restart(node), effort.restarts, 1))
            processes = len(process_tree(process.pid))
            add("pss_bytes", pss_bytes(process.pid), f"{processes} processes, after all of the above")
    return results


def spent(pid: int, seconds: float) -> float:
    """Part of a core that a process and its children take meanwhile."""
    before = cpu_seconds(pid)
    waited = timed(lambda: time.sleep(seconds))
    return (cpu_seconds(pid) - before) / waited


def wait(condition: Callable[[], bool], what: str, seconds: float = 10) -> None:
    deadline = time.monotonic() + seconds
    while not condition():
        if time.monotonic() > deadline:
            raise RuntimeError(f"{what} did not come")
        time.sleep(0.02)


def calls(call: Callable[[], float], number: int) -> Series:
    return series(call, number, number // 10, SERIES_SECONDS)


def quantiles(found: Series) -> str:
    return f"p50 {found.quantile(0.5) * 1000:.2f}, worst {found.samples[-1] * 1000:.2f} ms, {found.counts}"


def say(text: str) -> None:
    print(text, file=sys.stderr, flush=True)


def measured(modes: Sequence[Mode], plugins: Sequence[tuple[str, Command]]) -> list[Result]:
    """Each of these plugins, by name and command, on each kind of node of these modes; shares are ours alone."""
    return [
        result
        for profile, mode in RUNS
        if mode in modes
        for who, command in plugins
        if not who or mode is Mode.PGPU
        for result in measure(profile, mode, command, who, Effort())
    ]


def no_peer(binary: Path) -> str:
    """Why NVIDIA's plugin cannot be measured; empty when it can."""
    return "" if binary.is_file() else f"no {binary}; --peer names NVIDIA's binary"


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.plugin", description="Measure kube-accel plugin from outside.")
    parser.add_argument("--peer", type=Path, default=PEER_PATH, help="NVIDIA's binary (default: %(default)s)")
    parser.add_argument("--mode", type=Mode, action="append", help="only this one; may be repeated")
    arguments = parser.parse_args()

    plugins: list[tuple[str, Command]] = [("", ours)]
    if reason := no_peer(arguments.peer):
        say(f"{PEER} is not measured: {reason}")
    else:
        plugins.append((PEER, peer(arguments.peer)))
    load = f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f} before"
    results = measured(arguments.mode or list(Mode), plugins)
    print(f"{load} and {os.getloadavg()[0]:.1f} after")
    report(results)


if __name__ == "__main__":
    main()
