# SPDX-License-Identifier: Apache-2.0
"""The node's labels: those of NVIDIA's GPU feature discovery, and the CUDA version in two more. Pure.

Names and values are those of GPU feature discovery 0.20, so that what selects nodes by them need not know who writes
them. Labels that node feature discovery keeps, and those that others set, are left alone.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from kube_accel.model import Gpu, Inventory, Mode
from kube_accel.shared import label_names
from kube_accel.shared.offers import mig_problem, mig_resource
from kube_accel.shared.reading import read_owned_labels
from kube_accel.sharing import mig
from kube_accel.sharing.whole import RESOURCE, Part

PREFIX = "nvidia.com/"
TIMESTAMP = f"{PREFIX}gfd.timestamp"
OWNED = label_names.OWNED
"""Annotation that lists the labels that are ours, separated by commas."""
NFD_OWNED = "nfd.node.kubernetes.io/feature-labels"
"""Annotation in which nfd-master lists its labels; an instance of it writes one with its name before."""

_PCI_MODES = {0x030000: "graphics", 0x030200: "compute"}
"""PCI class codes: VGA controller, 3D controller."""
_VALUE_LIMIT = 63


@dataclass(frozen=True, slots=True)
class Machine:
    """What the kernel says about a node."""

    product: str = ""
    """Product name by the board's vendor; empty where it is not known."""
    pci_classes: tuple[int, ...] = ()
    """Class codes of its GPUs; none where they are not known."""


def labels(
    inventory: Inventory,
    mode: Mode,
    offered: Mapping[str, Sequence[Part]],
    machine: Machine,
    strategy: mig.Strategy = mig.Strategy.NONE,
) -> dict[str, str]:
    """Return the labels of a node with these GPUs, none without GPUs. ``offered`` is by resource, for mode pgpu."""
    if not inventory.gpus:
        return {}
    return {
        **_versions(inventory),
        **_resource(inventory.gpus, mode, offered),
        **(_mig(inventory, offered, strategy) if mode is Mode.PGPU else {}),
        f"{PREFIX}gpu.machine": clean(machine.product) or "unknown",
        f"{PREFIX}gpu.mode": _pci_mode(machine.pci_classes),
        f"{PREFIX}mig.capable": _truth(any(gpu.mig_capable for gpu in inventory.gpus)),
        f"{PREFIX}mps.capable": _truth(mode is Mode.MPS or any(map(_by_mps, offered.values()))),
    }


def _by_mps(parts: Iterable[Part]) -> bool:
    return any(part.mps_replicas for part in parts)


def clean(text: str) -> str:
    """Return a text as a label's value: foreign characters gone, words joined by dashes."""
    words = re.sub(r"[^A-Za-z0-9\-_. ]", "", text).split()
    return "-".join(words)[:_VALUE_LIMIT].strip("-_.")


def _product(model: str, ending: str = "") -> str:
    """Return a model as a label's value with this ending, which is never cut off."""
    return (clean(model) or "unknown")[: _VALUE_LIMIT - len(ending)].rstrip("-_.") + ending


def _versions(inventory: Inventory) -> dict[str, str]:
    driver, (major, minor) = inventory.driver_version, inventory.cuda_version
    driver_major, driver_minor, revision = (*driver.split("."), "", "")[:3]
    return {
        "cuda-major-version": str(major),
        "cuda-minor-version": str(minor),
        f"{PREFIX}cuda.driver-version.full": driver,
        f"{PREFIX}cuda.driver-version.major": driver_major,
        f"{PREFIX}cuda.driver-version.minor": driver_minor,
        f"{PREFIX}cuda.driver-version.revision": revision,
        f"{PREFIX}cuda.runtime-version.full": f"{major}.{minor}",
        f"{PREFIX}cuda.runtime-version.major": str(major),
        f"{PREFIX}cuda.runtime-version.minor": str(minor),
        # Deprecated there, and still what many select nodes by.
        f"{PREFIX}cuda.driver.major": driver_major,
        f"{PREFIX}cuda.driver.minor": driver_minor,
        f"{PREFIX}cuda.driver.rev": revision,
        f"{PREFIX}cuda.runtime.major": str(major),
        f"{PREFIX}cuda.runtime.minor": str(minor),
    }


def _resource(gpus: Iterable[Gpu], mode: Mode, offered: Mapping[str, Sequence[Part]]) -> dict[str, str]:
    """Label the most frequent model; of several, the one with the lowest index."""
    listed = sorted(gpus, key=lambda gpu: gpu.index)
    model, count = Counter(gpu.model for gpu in listed).most_common(1)[0]
    alike = [gpu for gpu in listed if gpu.model == model]
    # As feature discovery says it of GPUs that are cut: none of them is to be had whole.
    replicas = 0 if mode is Mode.PGPU and all(gpu.mig_enabled for gpu in alike) else 1
    strategy, shared = ("none" if mode is Mode.PGPU else mode.value), ""
    uuids = {gpu.uuid for gpu in alike}
    for name, parts in offered.items():
        most = max(Counter(part.uuid for part in parts if part.uuid in uuids).values(), default=1)
        if most > 1:
            strategy = "mps" if _by_mps(parts) else "time-slicing"
            replicas, shared = most, "-SHARED" if name == RESOURCE else ""
    major, minor = alike[0].compute_capability
    return {
        f"{RESOURCE}.product": _product(model, shared),
        f"{RESOURCE}.count": str(count),
        f"{RESOURCE}.replicas": str(replicas),
        f"{RESOURCE}.sharing-strategy": strategy,
        f"{RESOURCE}.memory": str(alike[0].memory_bytes >> 20),
        f"{RESOURCE}.family": family(major, minor),
        f"{RESOURCE}.compute.major": str(major),
        f"{RESOURCE}.compute.minor": str(minor),
    }


def _mig(inventory: Inventory, offered: Mapping[str, Sequence[Part]], strategy: mig.Strategy) -> dict[str, str]:
    """Label the devices of GPUs in MIG mode: ``nvidia.com/gpu`` with strategy single, by profile with mixed."""
    if strategy is mig.Strategy.NONE:
        return {}
    found = {f"{PREFIX}mig.strategy": strategy.value}
    cut = [(gpu, device) for gpu in inventory.gpus for device in gpu.mig_devices]
    if mig_problem(strategy, inventory.gpus):
        nothing = dict.fromkeys((f"{RESOURCE}.{key}" for key in ("count", "replicas", "memory")), "0")
        return found | nothing | {f"{RESOURCE}.product": _product(inventory.gpus[0].model, "-MIG-INVALID")}
    times = Counter(part.uuid for parts in offered.values() for part in parts)
    for profile in dict.fromkeys(device.profile for _gpu, device in cut):
        name = RESOURCE if strategy is mig.Strategy.SINGLE else mig_resource(profile)
        alike = [(gpu, device) for gpu, device in cut if device.profile == profile]
        gpu, device = alike[0]
        replicas = max(times[device.uuid], 1)
        shared = "-SHARED" if replicas > 1 and name in offered else ""
        ending = f"-MIG-{profile.replace('+', '.')}{shared}"
        found |= {
            f"{name}.product": _product(gpu.model, ending),
            f"{name}.count": str(len(alike)),
            f"{name}.replicas": str(replicas),
            f"{name}.sharing-strategy": "time-slicing" if replicas > 1 else "none",
            f"{name}.memory": str(device.memory_bytes >> 20),
            **{f"{name}.{key}": str(value) for key, value in device.attributes},
        }
    return found


def family(major: int, minor: int) -> str:
    """Return the generation of a GPU by its compute capability, as feature discovery names it."""
    if major == 7:
        return "volta" if minor < 5 else "turing"
    if major == 8:
        return "ampere" if minor < 9 else "ada-lovelace"
    if major == 10:
        return "blackwell" if minor < 7 else "rubin"
    # Thor's 11.0 was 10.1 before CUDA 13.
    names = {3: "kepler", 5: "maxwell", 6: "pascal", 9: "hopper", 11: "blackwell", 12: "blackwell", 13: "rubin"}
    return names.get(major, "undefined")


def _pci_mode(classes: Sequence[int]) -> str:
    return _PCI_MODES.get(classes[0], "unknown") if len(set(classes)) == 1 else "unknown"


def _truth(value: bool) -> str:
    return "true" if value else "false"


@dataclass(frozen=True, slots=True)
class Patch:
    """What to change of a node's metadata; None takes something away."""

    labels: dict[str, str | None] = field(default_factory=dict)
    annotations: dict[str, str | None] = field(default_factory=dict)
    foreign: tuple[str, ...] = ()
    """Labels that say something else, and are not ours to change."""

    def __bool__(self) -> bool:
        return bool(self.labels or self.annotations)


def plan(labels: Mapping[str, str], annotations: Mapping[str, str], wanted: Mapping[str, str], seconds: int) -> Patch:
    """Return the change that gives a node with these labels and annotations the wanted ones; empty when it has them.

    Where node feature discovery keeps one of NVIDIA's labels, feature discovery runs, and all of NVIDIA's are its. The
    timestamp, in seconds since the epoch, says when one of the others changed last.
    """
    owned = {name for name in annotations.get(OWNED, "").split(",") if name}
    kept = {name for key, text in annotations.items() if key.endswith(NFD_OWNED) for name in text.split(",")}
    theirs = any(name.startswith(PREFIX) for name in kept)
    ours = {name: value for name, value in wanted.items() if not (theirs and name.startswith(PREFIX))}
    foreign = {name for name in ours if name in labels and name not in owned} | kept
    mine = {name: value for name, value in ours.items() if name not in foreign}
    changed: dict[str, str | None] = {name: value for name, value in mine.items() if labels.get(name) != value}
    stamped = TIMESTAMP in owned and TIMESTAMP in labels
    if (
        any(name.startswith(PREFIX) for name in mine)
        and TIMESTAMP not in foreign
        and (stamped or TIMESTAMP not in labels)
    ):
        if changed or not stamped:
            changed[TIMESTAMP] = str(seconds)
        mine[TIMESTAMP] = ""
    gone = set(read_owned_labels(annotations.get(OWNED))) - mine.keys() - kept
    changed |= dict.fromkeys(sorted(gone & labels.keys()))
    text = ",".join(sorted(mine))
    noted: dict[str, str | None] = {} if text == annotations.get(OWNED, "") else {OWNED: text or None}
    return Patch(
        changed, noted, tuple(sorted(name for name in foreign & ours.keys() if labels.get(name) != ours[name]))
    )
