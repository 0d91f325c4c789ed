# SPDX-License-Identifier: Apache-2.0
"""From the GPUs of a node to the devices of its ResourceSlices. Pure."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping, Sequence
from typing import Any, Final

from kube_accel.dra.partitions import Divided, Partition, consumed, counter_set, label
from kube_accel.dra.portions import Portion, equal
from kube_accel.model import Gpu, Inventory
from kube_accel.shared.claim_devices import MIG, cut, device_names, device_of, gpu_device
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

CONSUMES: Final = "consumesCounters"
"""Field of a device that excludes others of its GPU by counters."""
SLICE_COUNTERS: Final = 8
"""Most sets of counters of a slice."""

Device = Mapping[str, Any]
_Versions = tuple[str | None, str | None]

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


def parts_by_device(inventory: Inventory, divided: Mapping[str, Divided] | None = None) -> dict[str, Part]:
    """Return what the devices are, by their names: GPUs, and the MIG devices of those in MIG mode.

    Of those that are ``divided``, by UUID, MIG devices are made for claims, and have other names.
    """
    found: dict[str, Part] = {}
    for gpu in inventory.gpus:
        # A GPU that was lost keeps its index while the driver stays loaded.
        name, division = gpu_device(gpu.index), (divided or {}).get(gpu.uuid)
        if division.whole if division is not None else not gpu.mig_enabled:
            found.setdefault(name, whole(gpu))
        for device in gpu.mig_devices if division is None else ():
            found.setdefault(f"{name}{MIG}{label(device.profile)}-{device.slot}", part(gpu, device))
    return found


def gpu_of(device: str, gpus: Iterable[Gpu]) -> Gpu | None:
    """Return the GPU of which a device is all or a part; None where it is not there."""
    name = device_of(device)
    return None if name is None else next((gpu for gpu in gpus if gpu.index == name.gpu), None)


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
    divided: Mapping[str, Divided] | None = None,
) -> tuple[Device, ...]:
    """Return the devices of these GPUs and MIG devices, in the order of their indices and slots.

    A GPU whose UUID is not in ``good`` is tainted, and a device is not there at all if it is one of ``left_out``.
    ``pcie_roots`` has the root of a GPU by its PCI address, where it is known. Claims may take parts of a ``shared``
    one. What ``fixed`` names is cut into so many fixed shares. The counters of GPUs that are ``divided``, by UUID, come
    first: they are no devices.
    """
    versions = semver(inventory.driver_version), semver(".".join(map(str, inventory.cuda_version)))
    found: list[dict[str, Any]] = []
    divisions = divided or {}
    for device, each in parts_by_device(inventory, divisions).items():
        gpu, number = each.gpu, (fixed or {}).get(device, 0)
        facts = _facts_of(each, versions, pcie_roots.get(gpu.pci_address))
        if number:
            facts = _of_share(facts, equal(gpu.memory_bytes, number), number)
        elif shared and each.uuid == gpu.uuid:
            facts |= {SHARED: True, "capacity": _parts(gpu)}
        if gpu.uuid in divisions and divisions[gpu.uuid].counters:
            facts[CONSUMES] = consumed(divisions[gpu.uuid], divisions[gpu.uuid].counters)
        names = (name for name in device_names(device, number) if name not in left_out)
        found += ({"name": name, **facts, **_taints(gpu, good)} for name in names)
    for gpu in inventory.gpus:
        division = divisions.get(gpu.uuid)
        for partition in division.partitions if division is not None else ():
            if division is not None and partition.device not in left_out:
                facts = _facts_of_partition(gpu, partition, versions, pcie_roots.get(gpu.pci_address))
                takes = {CONSUMES: consumed(division, partition.counters)}
                found.append({"name": partition.device, **facts, **takes, **_taints(gpu, good)})
    return (*(counter_set(each) for each in divisions.values() if each.counters), *found)


def _taints(gpu: Gpu, good: Container[str]) -> dict[str, Any]:
    return {} if gpu.uuid in good else {"taints": [{"key": TAINT, "effect": "NoSchedule"}]}


def in_slices(found: Sequence[Device]) -> tuple[tuple[Device, ...], ...]:
    """Return the devices of each slice; one slice at least, which says that there are none.

    Slices of counters come first: no slice has both.
    """
    counters = [each for each in found if is_counters(each)]
    devices = [each for each in found if not is_counters(each)]
    return (*_chunks(counters, SLICE_COUNTERS), *(_chunks(devices, SLICE_DEVICES) or ((),)))


def is_counters(item: Device) -> bool:
    """Return whether an item of a slice is a set of counters, not a device."""
    return "counters" in item


def _chunks(items: Sequence[Device], most: int) -> tuple[tuple[Device, ...], ...]:
    return tuple(tuple(items[start : start + most]) for start in range(0, len(items), most))


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


def _facts_of(part: Part, versions: _Versions, pcie_root: str | None) -> dict[str, Any]:
    """Return the facts of a GPU, or of a MIG device that is there."""
    mig = next((device for device in part.gpu.mig_devices if device.uuid == part.uuid), None)
    if mig is None:
        own = {"type": {"string": "gpu"}, "uuid": {"string": part.uuid}}
        return _facts(part.gpu, own, {"memory": part.gpu.memory_bytes}, versions, pcie_root)
    own = _of_mig(part.gpu, mig.profile) | {"uuid": {"string": part.uuid}}
    return _facts(part.gpu, own, {"memory": mig.memory_bytes, **dict(mig.attributes)}, versions, pcie_root)


def _facts_of_partition(gpu: Gpu, each: Partition, versions: _Versions, pcie_root: str | None) -> dict[str, Any]:
    """Return the facts of a MIG device that is not there yet, and so has no UUID."""
    own, amounts = _of_mig(gpu, each.placement.profile), {"memory": each.memory_bytes, **dict(each.engines)}
    return _facts(gpu, own, amounts, versions, pcie_root)


def _of_mig(gpu: Gpu, profile: str) -> dict[str, Any]:
    return {"type": {"string": "mig"}, "parentUUID": {"string": gpu.uuid}, "profile": {"string": profile}}


def _facts(
    gpu: Gpu, own: Mapping[str, Any], amounts: Mapping[str, int], versions: _Versions, pcie_root: str | None
) -> dict[str, Any]:
    major, minor = gpu.compute_capability
    known = {
        **own,
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
    memory = {"value": quantity(amounts["memory"])}
    # What a MIG device has of its GPU is told by NVIDIA's names alone: a device has 32 values at most.
    engines = {f"{NVIDIA}/{name}": {"value": str(amounts.get(key, 0))} for key, name in _ENGINES.items()}
    return {
        "attributes": known
        | {f"{NVIDIA}/{key}": value for key, value in known.items()}
        | {f"{STANDARD}/{key}": value for key, value in standard.items()},
        "capacity": {"memory": memory, f"{NVIDIA}/memory": memory, **(engines if "profile" in own else {})},
    }


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
