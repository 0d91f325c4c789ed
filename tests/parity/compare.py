# SPDX-License-Identifier: Apache-2.0
"""``python -m parity.compare``: what our plugin and NVIDIA's offer and hand out for the same GPUs and configuration.

Both run as their users run them, one after the other, on a simulated node with a simulated kubelet. Each difference
has a kind, which ``docs/reference/parity.md`` justifies.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import grpc

from bench.node import NAME, Node, simulated_node
from bench.plugin import PEER, Command, in_place, ours, peer, wait
from kube_accel.model import Mode
from sim.kubelet.channel import open_channel
from sim.kubelet.client import DevicePluginClient

LABELLER = "gpu-feature-discovery"
PREFIX = "nvidia.com/"
TIMESTAMP = "nvidia.com/gfd.timestamp"
START_SECONDS = 60.0
SHARED = """
version: v1
sharing:
  timeSlicing:
    {extra}
    resources:
    - name: nvidia.com/gpu
      replicas: 4
"""


@dataclass(frozen=True, slots=True)
class Case:
    """A node and a configuration, and what kubelet can hand out when all is well."""

    name: str
    profile: str
    offered: Mapping[str, int]
    configuration: str = ""


FOUR_EACH = {"nvidia.com/gpu": 32}

MIXED = {"nvidia.com/gpu": 2, "nvidia.com/mig-1g.5gb": 8, "nvidia.com/mig-2g.10gb": 1, "nvidia.com/mig-3g.20gb": 1}

CASES = (
    Case("whole GPUs", "8xh100", {"nvidia.com/gpu": 8}),
    Case("GPUs on PCIe", "16xpcie", {"nvidia.com/gpu": 16}),
    Case("memory of the host", "gb10", {"nvidia.com/gpu": 1}),
    Case("time-slicing", "8xh100", FOUR_EACH, SHARED.format(extra="renameByDefault: false")),
    Case("renamed", "8xh100", {"nvidia.com/gpu.shared": 32}, SHARED.format(extra="renameByDefault: true")),
    Case("one each", "8xh100", FOUR_EACH, SHARED.format(extra="failRequestsGreaterThanOne: true")),
    Case("MIG left alone", "4xa100-mig", {"nvidia.com/gpu": 4}, "version: v1\nflags:\n  migStrategy: none\n"),
    Case("MIG as GPUs", "4xa100-mig-alike", {"nvidia.com/gpu": 28}, "version: v1\nflags:\n  migStrategy: single\n"),
    Case("MIG by profile", "4xa100-mig", MIXED, "version: v1\nflags:\n  migStrategy: mixed\n"),
)


@dataclass(frozen=True, slots=True)
class Device:
    healthy: bool
    numa_nodes: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Answer:
    """To an Allocate: what a container gets, or the status it is refused with."""

    refused: str = ""
    envs: Mapping[str, str] = field(default_factory=dict)
    mounts: frozenset[tuple[str, str, bool]] = frozenset()
    devices: Mapping[str, str] = field(default_factory=dict)
    """Permissions by path in the container, which is the host's too unless ``moved``."""
    moved: frozenset[str] = frozenset()
    annotations: Mapping[str, str] = field(default_factory=dict)
    cdi: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Offer:
    """All that kubelet learns of a plugin."""

    devices: Mapping[str, Mapping[str, Device]]
    """By resource and id."""
    options: Mapping[str, tuple[bool, bool]]
    """By resource: whether a call before each start is wanted, and whether preferences are given."""
    answers: Mapping[str, Mapping[int, Answer]]
    """By resource, to Allocate of the first so many ids in order."""


@dataclass(frozen=True, slots=True, order=True)
class Difference:
    case: str
    kind: str
    subject: str
    ours: str
    theirs: str


def offer(case: Case, command: Command) -> Offer:
    """What a plugin offers and answers. Raises RuntimeError when it does not come to offer what the case says."""
    with simulated_node(case.profile, Mode.PGPU) as node:
        words = [*command(node), *_configured(case, node)]
        log = node.root / "plugin.log"
        with _running(node, words, log):
            try:
                node.kubelet.wait(lambda: node.kubelet.allocatable() == dict(case.offered), START_SECONDS)
                return _asked(node)
            except TimeoutError as error:
                raise RuntimeError(f"{case.name}: {words[0]}: {error}; its log: {log.read_text()[-2000:]}") from error


@contextmanager
def _running(node: Node, words: Sequence[str], log: Path) -> Iterator[None]:
    with log.open("wb") as output:
        process = subprocess.Popen(words, env=node.environment, stdout=output, stderr=subprocess.STDOUT)
    try:
        yield
    finally:
        process.kill()
        process.wait()


def _configured(case: Case, node: Node) -> list[str]:
    if not case.configuration:
        return []
    file = node.root / "plugin.yaml"
    file.write_text(case.configuration)
    return [f"--config-file={file}"]


def our_labels(case: Case) -> dict[str, str]:
    """What our plugin labels the node with. Raises RuntimeError."""
    with simulated_node(case.profile, Mode.PGPU) as node:
        _machine(node)

        def labels() -> dict[str, str]:
            return dict(node.store.get("nodes", "", NAME)["metadata"].get("labels", {}))

        words = [*ours(node), *_configured(case, node)]
        with _running(node, words, node.root / "plugin.log"):
            wait(lambda: f"{PREFIX}gpu.product" in labels(), f"{case.name}: labels of the node", START_SECONDS)
            return {name: value for name, value in labels().items() if name.startswith(PREFIX)}


def their_labels(case: Case, labeller: Path) -> dict[str, str]:
    """What NVIDIA's feature discovery would label the node with. Raises CalledProcessError."""
    with simulated_node(case.profile, Mode.PGPU) as node:
        machine, output = _machine(node), node.root / "features"
        flags = ["--oneshot", "--use-node-feature-api=false", "--device-discovery-strategy=nvml"]
        files = [f"--output-file={output}", f"--machine-type-file={machine}", *_configured(case, node)]
        words = in_place(node, [str(labeller), *flags, *files])
        subprocess.run(words, env=node.environment, check=True, capture_output=True, timeout=START_SECONDS)
        return dict(line.partition("=")[::2] for line in output.read_text().split())


def _machine(node: Node) -> Path:
    file = node.root / "sys/class/dmi/id/product_name"
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text("PowerEdge XE9680\n")
    return file


def label_differences(case: str, our: Mapping[str, str], their: Mapping[str, str]) -> Iterator[Difference]:
    """Every label that is another, or is lacking; of the time of labelling only whether it is there. Pure."""
    our, their = (
        {name: "a time" if name == TIMESTAMP else value for name, value in each.items()} for each in (our, their)
    )
    for name in sorted(our.keys() | their.keys()):
        if our.get(name) != their.get(name):
            yield Difference(case, f"label {name}", "node", _shown(our.get(name)), _shown(their.get(name)))


def _asked(node: Node) -> Offer:
    kubelet = node.kubelet
    devices, options, answers = {}, {}, {}
    for resource, socket in kubelet.plugins().items():
        listed = kubelet.devices(resource)
        devices[resource] = {name: Device(device.healthy, device.numa_nodes) for name, device in listed.items()}
        with open_channel(node.plugin_dir / socket) as channel:
            client = DevicePluginClient(channel)
            said = client.get_options()
            options[resource] = (said.pre_start_required, said.get_preferred_allocation_available)
            answers[resource] = {count: _allocate(client, sorted(listed)[:count]) for count in (1, 2)}
    return Offer(devices, options, answers)


def _allocate(client: DevicePluginClient, devices: Sequence[str]) -> Answer:
    try:
        (answer,) = client.allocate(list(devices)).container_responses
    except grpc.RpcError as error:
        return Answer(refused=error.code().name)
    return Answer(
        envs=dict(answer.envs),
        mounts=frozenset((mount.container_path, mount.host_path, mount.read_only) for mount in answer.mounts),
        devices={device.container_path: device.permissions for device in answer.devices},
        moved=frozenset(
            device.container_path for device in answer.devices if device.host_path != device.container_path
        ),
        annotations=dict(answer.annotations),
        cdi=tuple(device.name for device in answer.cdi_devices),
    )


def differences(case: str, our: Offer, their: Offer) -> Iterator[Difference]:
    """Every way in which the two differ. Pure."""

    def differ(kind: str, subject: str, one: object, other: object) -> Iterator[Difference]:
        if one != other:
            yield Difference(case, kind, subject, _shown(one), _shown(other))

    yield from differ("resource names", "resources", sorted(our.devices), sorted(their.devices))
    for resource in sorted(our.devices.keys() & their.devices.keys()):
        mine, yours = our.devices[resource], their.devices[resource]
        yield from differ("device ids", resource, sorted(mine), sorted(yours))
        common = sorted(name for name in mine.keys() & yours.keys() if mine[name] != yours[name])
        for kind, of in (("device health", _health), ("NUMA nodes", _numa)):
            yield from differ(kind, resource, [of(mine, name) for name in common], [of(yours, name) for name in common])
        (start, prefers), (their_start, they_prefer) = our.options[resource], their.options[resource]
        yield from differ("PreStartContainer", resource, start, their_start)
        yield from differ("GetPreferredAllocation", resource, prefers, they_prefer)
        for count, answer in our.answers[resource].items():
            other = their.answers[resource][count]
            subject = f"{resource} x {count}"
            yield from differ("refusal", subject, answer.refused, other.refused)
            if answer.refused or other.refused:
                continue
            for name in sorted(answer.envs.keys() | other.envs.keys()):
                yield from differ(f"environment {name}", subject, answer.envs.get(name), other.envs.get(name))
            yield from differ("mounts", subject, sorted(answer.mounts), sorted(other.mounts))
            yield from differ("device nodes", subject, sorted(answer.devices), sorted(other.devices))
            for path in sorted(answer.devices.keys() & other.devices.keys()):
                yield from differ("device permissions", f"{subject} {path}", answer.devices[path], other.devices[path])
            yield from differ("device paths", subject, sorted(answer.moved), sorted(other.moved))
            yield from differ("annotations", subject, dict(answer.annotations), dict(other.annotations))
            yield from differ("CDI devices", subject, answer.cdi, other.cdi)


def _health(devices: Mapping[str, Device], name: str) -> str:
    return f"{name}: {'good' if devices[name].healthy else 'bad'}"


def _numa(devices: Mapping[str, Device], name: str) -> str:
    return f"{name}: {devices[name].numa_nodes}"


def _shown(value: object) -> str:
    return str(value) if value not in (None, "", [], (), {}) else "none"


def binary(name: str = PEER) -> Path:
    """Where NVIDIA's program is looked for."""
    return Path(os.environ.get("KUBEBUILDER_ASSETS", "/usr/local/kubebuilder/bin")) / name


def compare(case: Case, theirs: Path) -> list[Difference]:
    """The differences of one case. Raises RuntimeError."""
    return list(differences(case.name, offer(case, ours), offer(case, peer(theirs))))


def compare_labels(case: Case, theirs: Path) -> list[Difference]:
    """The differences between the labels of one case. Raises RuntimeError, CalledProcessError."""
    return list(label_differences(case.name, our_labels(case), their_labels(case, theirs)))


def main() -> int:
    parser = argparse.ArgumentParser(prog="parity.compare", description="Compare our device plugin with NVIDIA's.")
    parser.add_argument("--peer", type=Path, default=binary(), help="NVIDIA's binary (default: %(default)s)")
    parser.add_argument("--labeller", type=Path, default=binary(LABELLER), help="and for labels (default: %(default)s)")
    arguments = parser.parse_args()
    for theirs in (arguments.peer, arguments.labeller):
        if not theirs.is_file():
            print(f"no {theirs}: --peer and --labeller say where NVIDIA's programs are", file=sys.stderr)
            return 2
    for case in CASES:
        found = compare(case, arguments.peer) + compare_labels(case, arguments.labeller)
        print(f"== {case.name}: {len(found)} differences")
        for each in found:
            print(f"{each.kind}: {each.subject}\n  ours   {each.ours}\n  theirs {each.theirs}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
