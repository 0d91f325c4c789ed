# SPDX-License-Identifier: Apache-2.0
"""From the GPUs of a node to the devices of its ResourceSlices. Pure."""

from __future__ import annotations

import re
from collections.abc import Container, Mapping, Sequence
from typing import Any, Final

from kube_accel.dra.portions import Portion, equal
from kube_accel.model import Gpu, Inventory, MigDevice
from kube_accel.shared.claim_devices import MIG, cut, device_names, gpu_device
from kube_accel.shared.modes import CORES, DRA_DRIVER, DRA_TAINT, MIB, OTHER_DRA_DRIVERS
from kube_accel.shared.semver import semver
from kube_accel.sharing.mig import part
from kube_accel.sharing.node_labels import family
from kube_accel.sharing.whole import Part, whole

DRIVER: Final = DRA_DRIVER
"""Name of the driver, and the domain of its attributes and capacities."""
NVIDIA: Final = OTHER_DRA_DRIVERS[0]
"""Domain of NVIDIA's driver: whatever selects devices by its names finds them here too."""
STANDARD: Final = "resource.kubernetes.io"
TAINT: Final = DRA_TAINT
SHARE_TYPE: Final = "share"
"""Attribute ``type`` of a fixed share; a GPU has another."""
SHARED: Final = "allowMultipleAllocations"
"""Field of a device that claims may take parts of."""
SLICE_DEVICES: Final = 64
"""Most devices of a slice of which one has a taint; 128 without, but taints come at any time."""

Device = Mapping[str, Any]

_BRANDS: Final = {
    "GEFORCE": "GeForce",
    "GRID": "Grid",
    "NVS": "NVS",
    "QUADRO RTX": "QuadroRTX",
    "QUADRO": "Quadro",
    "RTX": "NvidiaRTX",
    "TESLA": "Tesla",
    "TITAN": "Titan",
}
_ENGINES: Final = {
    "multiprocessors": "multiprocessors",
    "engines.copy": "copyEngines",
    "engines.decoder": "decoders",
    "engines.encoder": "encoders",
    "engines.jpeg": "jpegEngines",
    "engines.ofa": "ofaEngines",
}
"""NVIDIA's capacities, by what a MIG device calls them."""
_LONGEST: Final = 64
"""Characters of a text."""
_UNITS: Final = (("Ei", 60), ("Pi", 50), ("Ti", 40), ("Gi", 30), ("Mi", 20), ("Ki", 10))


def parts_by_device(inventory: Inventory) -> dict[str, Part]:
    """Return what the devices are, by their names: GPUs, and the MIG devices of those in MIG mode."""
    found: dict[str, Part] = {}
    for gpu in inventory.gpus:
        # A GPU that was lost keeps its index while the driver stays loaded.
        name = gpu_device(gpu.index)
        if not gpu.mig_enabled:
            found.setdefault(name, whole(gpu))
        for device in gpu.mig_devices:
            found.setdefault(f"{name}{MIG}{_label(device.profile)}-{device.slot}", part(gpu, device))
    return found


def fixed_share(device: str, gpu: Gpu) -> Portion | None:
    """Return what a device is of its GPU; None for all of it."""
    number = cut(device)[1]
    return equal(gpu.memory_bytes, number) if number else None


def devices(
    inventory: Inventory,
    good: Container[str],
    pcie_roots: Mapping[str, str],
    left_out: Container[str] = (),
    shared: bool = False,
    fixed: Mapping[str, int] | None = None,
) -> tuple[Device, ...]:
    """Return the devices of these GPUs and MIG devices, in the order of their indices and slots.

    A GPU whose UUID is not in ``good`` is tainted, and a device is not there at all if it is one of ``left_out``.
    ``pcie_roots`` has the root of a GPU by its PCI address, where it is known. Claims may take parts of a ``shared``
    one. What ``fixed`` names is cut into so many fixed shares.
    """
    versions = semver(inventory.driver_version), semver(".".join(map(str, inventory.cuda_version)))
    found: list[dict[str, Any]] = []
    for device, each in parts_by_device(inventory).items():
        gpu, number = each.gpu, (fixed or {}).get(device, 0)
        sick = {} if gpu.uuid in good else {"taints": [{"key": TAINT, "effect": "NoSchedule"}]}
        facts = _facts(each, versions, pcie_roots.get(gpu.pci_address))
        if number:
            facts = _of_share(facts, equal(gpu.memory_bytes, number), number)
        elif shared and each.uuid == gpu.uuid:
            facts |= {SHARED: True, "capacity": _parts(gpu)}
        found += ({"name": name, **facts, **sick} for name in device_names(device, number) if name not in left_out)
    return tuple(found)


def in_slices(found: Sequence[Device]) -> tuple[tuple[Device, ...], ...]:
    """Return the devices of each slice; one slice at least, which says that there are none."""
    starts = range(0, len(found), SLICE_DEVICES)
    return tuple(tuple(found[start : start + SLICE_DEVICES]) for start in starts) or ((),)


def usable_bytes(gpu: Gpu) -> int:
    """Return the memory of a GPU that shares may take."""
    return gpu.memory_bytes // MIB * MIB


def _parts(gpu: Gpu) -> dict[str, Any]:
    """Return what claims take of a GPU: all of it where they do not say how much.

    A capacity without a policy would be taken whole by the first share. So NVIDIA's name is there to be selected by,
    and nothing can be taken of it.
    """
    memory = quantity(usable_bytes(gpu))
    return {
        "cores": _capacity(str(CORES), "1"),
        "memory": _capacity(memory, "1Mi"),
        f"{NVIDIA}/memory": {"value": memory, "requestPolicy": {"default": "0", "validValues": ["0"]}},
    }


def _of_share(facts: Mapping[str, Any], portion: Portion, number: int) -> dict[str, Any]:
    """Return the facts of one of so many fixed shares of a GPU, by those of the GPU."""
    kind = {"string": SHARE_TYPE}
    attributes = facts["attributes"] | {"type": kind, f"{NVIDIA}/type": kind, "shares": {"int": number}}
    memory = {"value": quantity(portion.memory_bytes)}
    capacity = {"cores": {"value": str(portion.cores)}, "memory": memory, f"{NVIDIA}/memory": memory}
    return {"attributes": attributes, "capacity": capacity}


def _capacity(amount: str, step: str) -> dict[str, Any]:
    steps = {"min": step, "max": amount, "step": step}
    return {"value": amount, "requestPolicy": {"default": amount, "validRange": steps}}


def _facts(part: Part, versions: tuple[str | None, str | None], pcie_root: str | None) -> dict[str, Any]:
    gpu = part.gpu
    major, minor = gpu.compute_capability
    mig = next((device for device in gpu.mig_devices if device.uuid == part.uuid), None)
    known = {
        "type": {"string": "gpu" if mig is None else "mig"},
        "uuid": {"string": part.uuid},
        **({} if mig is None else {"parentUUID": {"string": gpu.uuid}, "profile": {"string": mig.profile}}),
        "productName": {"string": gpu.model[:_LONGEST]},
        "brand": {"string": _brand(gpu.model)},
        "architecture": {"string": _architecture(major, minor)},
        "cudaComputeCapability": {"version": f"{major}.{minor}.0"},
        **{
            key: {"version": version}
            for key, version in zip(("driverVersion", "cudaDriverVersion"), versions, strict=True)
            if version
        },
    }
    standard: dict[str, Any] = {"pciBusID": {"string": gpu.pci_address}}
    if pcie_root is not None:
        standard["pcieRoot"] = {"string": pcie_root}
    if gpu.numa_node is not None:
        standard["numaNode"] = {"int": gpu.numa_node}
    memory = {"value": quantity(gpu.memory_bytes if mig is None else mig.memory_bytes)}
    return {
        "attributes": known
        | {f"{NVIDIA}/{key}": value for key, value in known.items()}
        | {f"{STANDARD}/{key}": value for key, value in standard.items()},
        "capacity": {"memory": memory, f"{NVIDIA}/memory": memory, **({} if mig is None else _engines(mig))},
    }


def _engines(mig: MigDevice) -> dict[str, Any]:
    """Return what a MIG device has of its GPU, by NVIDIA's names alone: a device has 32 values at most."""
    told = dict(mig.attributes)
    return {f"{NVIDIA}/{name}": {"value": str(told.get(key, 0))} for key, name in _ENGINES.items()}


def _label(profile: str) -> str:
    """Return a profile as a part of a device's name: ``1g.10gb+me`` as ``1g10gb-me``."""
    return re.sub(r"[^a-z0-9]+", "-", profile.replace(".", ""))


def _brand(model: str) -> str:
    """Return the product line, with which NVIDIA's names begin, as NVIDIA's driver spells it.

    Never nothing: a selector that reads what is not there ends a pod's scheduling.
    """
    name = model.removeprefix("NVIDIA ")
    found = (brand for start, brand in _BRANDS.items() if name.upper().startswith(start))
    return next(found, "Nvidia" if name != model else "Unknown")


def _architecture(major: int, minor: int) -> str:
    """Return the generation as NVIDIA's driver spells it."""
    name = family(major, minor)
    return "Unknown" if name == "undefined" else name.replace("-", " ").title()


def quantity(amount: int) -> str:
    """Return bytes as the API server spells them, which otherwise would seem to change what it stores."""
    for unit, shift in _UNITS:
        if amount and not amount % (1 << shift):
            return f"{amount >> shift}{unit}"
    return str(amount)
