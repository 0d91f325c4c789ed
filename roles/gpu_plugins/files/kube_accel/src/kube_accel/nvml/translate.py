# SPDX-License-Identifier: Apache-2.0
"""The worker's answers in the words of the model. Pure; the wire is described in ``worker``."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any

from kube_accel.model import Ancestor, ExcludedGpu, Gpu, GpuLink, GpuUsage, Inventory, MigDevice, UnreadableGpu
from kube_accel.nvml.health import Poll

Record = dict[str, Any]

DRIVER_NOT_LOADED = 9
_LIBRARY_NOT_FOUND = 12
_NOT_SUPPORTED = 3
_LOST = frozenset({6, 15, 16, 28})  # nvmlReturn_t: NOT_FOUND, GPU_IS_LOST, RESET_REQUIRED, GPU_NOT_FOUND
_GONE = frozenset({15, 16})
"""Those of ``_LOST`` that a GPU answers to every function."""

NOT_ENUMERATED = Poll("not enumerated by the driver", lost=True, answered=False)

_RETIRE_PENDING = "a faulty memory page will be retired when the GPU is reset: reset it once no pod uses it"
# No program gets a context on the GPU until then (NVIDIA, "Dynamic Page Retirement").
_RETIRE_BLOCKS = "a memory page with an uncorrectable error waits to be retired: reset the GPU"

_REMAP_FAILED = "a faulty memory row could not be remapped: replace the GPU"
# The driver keeps programs off the row until then (NVIDIA, "GPU Memory Error Management").
_REMAP_PENDING = "a faulty memory row will be remapped when the GPU is reset: reset it once no pod uses it"

_RECOVERY = {  # nvmlDeviceGpuRecoveryAction_t
    1: "a GPU reset",
    2: "a reboot of the node",
    3: "its peer-to-peer traffic to be drained",
    4: "draining and a GPU reset",
    5: "recovery of the IMEX domain",
    6: "a bus reset",
    7: "a reboot of the system",
}

_REMEDY = {  # by nvmlReturn_t
    4: "NVML may not open the NVIDIA device files: let the container use /dev/nvidiactl and /dev/nvidia*",
    DRIVER_NOT_LOADED: "the NVIDIA kernel driver is not loaded: install it, or load it with `modprobe nvidia`"
    " and read `dmesg` if that fails",
    _LIBRARY_NOT_FOUND: "libnvidia-ml.so.1 was not found: install the NVIDIA driver on the node, and run the"
    " container with runtimeClassName nvidia and NVIDIA_DRIVER_CAPABILITIES=utility",
    18: "the NVIDIA library and the loaded kernel driver have different versions: reload the kernel modules or reboot"
    " the node, and restart this pod if it is older than the driver",
    999: "NVML reports an unknown error: if nvidia-smi works on the node, the container has lost its device files"
    " (`systemctl daemon-reload` does that) and this pod has to be restarted",
}


_RELOAD = (
    "install the NVIDIA driver's libraries for this machine, and let the plugin's user read them; a container that was"
    " started before has to be restarted"
)

MAKE_NODES = "run nvidia-modprobe -c0 -u on the host"
HANGS = "read NVRM messages in `dmesg`; reset the GPU, or reboot the node"

_FAULT_REMEDY = {  # by nvmlReturn_t, of one GPU
    3: "the driver does not tell this of the GPU: see which GPUs and drivers are supported",
    4: "let the plugin's container use the NVIDIA device files",
    999: "read NVRM lines in `dmesg`; reset the GPU, or restart the plugin's pod if nvidia-smi works on the node",
}
_ODD_ANSWER = "reset the GPU, and install another driver version if that does not help"
_ANY_CODE = "see `nvidia-smi -q` and NVRM lines in `dmesg` on the node; reset the GPU if the error returns"


@dataclass(frozen=True, slots=True)
class Fault:
    """What NVML does not report about one GPU."""

    function: str
    cause: str
    remedy: str

    def __str__(self) -> str:
        return f"{self.function}: {self.cause}; {self.remedy}"


def fault(error: Record, platform: str = "") -> Fault:
    """Return a fault of the wire.

    ``platform``: why this machine's GPUs report less than others, empty where there is no reason.
    """
    code = error["code"]
    if error.get("hung"):
        return Fault(error["function"], error["text"], HANGS)
    if code is None:
        return Fault(error["function"], error["text"], _ODD_ANSWER)
    remedy = platform if platform and code == _NOT_SUPPORTED else _FAULT_REMEDY.get(code, _ANY_CODE)
    return Fault(error["function"], f"{error['text']} ({code})", remedy)


def devices_missing(names: Iterable[str]) -> str:
    """Return why a GPU whose device files are not there cannot be handed out, with the remedy."""
    return f"no {', '.join(f'/dev/{name}' for name in names)}; {MAKE_NODES}"


def usage(raw: Record) -> dict[str, GpuUsage]:
    """Return the worker's answer to ``usage``, by UUID; of a process with several samples the highest counts."""
    found = {}
    for entry in raw["gpus"]:
        if "error" in entry:
            continue
        time = None if entry["time"] is None else _highest(entry["time"])
        found[entry["uuid"]] = GpuUsage(dict(entry["memory"]), time)
    return found


def inventory(raw: Record, previous: Inventory | None, platform: str = "") -> Inventory:
    """Return the worker's answer to ``inventory``. GPUs of ``previous`` that it lacks stay, with their links.

    ``platform`` as for ``fault``.
    """
    current = {gpu.uuid: gpu for gpu in (_gpu(entry) for entry in raw["gpus"]) if gpu is not None}
    excluded = tuple(
        ExcludedGpu(entry["index"], entry["uuid"], entry["pci"], entry["model"], entry["by"])
        for entry in raw.get("excluded", ())
    )
    gone = current.keys() | {gpu.uuid for gpu in excluded}
    kept = {gpu.uuid: gpu for gpu in (previous.gpus if previous else ()) if gpu.uuid not in gone}
    links = {
        pair: link for pair, link in (previous.links if previous else {}).items() if not pair.isdisjoint(kept.keys())
    }
    links |= {frozenset(link["pair"]): _link(link) for link in raw["links"]}
    known = current.keys() | kept.keys() | {gpu.index for gpu in kept.values()}
    unreadable = tuple(
        UnreadableGpu(entry["index"], entry.get("uuid"), _reason(entry["error"], platform))
        for entry in raw["gpus"]
        if entry.get("uuid", entry["index"]) not in known
    )
    major, minor = raw["cuda"]
    return Inventory(
        driver_version=raw["driver"],
        cuda_version=(major, minor),
        gpus=tuple(sorted((current | kept).values(), key=lambda gpu: (gpu.index, gpu.uuid))),
        links=MappingProxyType(links),
        unreadable=unreadable,
        excluded=excluded,
    )


def polls(entries: list[Record], inventory: Inventory) -> dict[str, Poll]:
    """Return what the ``gpus`` of an answer say of each GPU of the inventory.

    A GPU that is lost may not even report its UUID; it is then known by its index.
    """
    by_uuid = {entry["uuid"]: entry for entry in entries if entry.get("uuid")}
    nameless = {entry["index"]: entry for entry in entries if not entry.get("uuid")}
    found = {}
    for gpu in inventory.gpus:
        entry = by_uuid.get(gpu.uuid) or nameless.get(gpu.index)
        found[gpu.uuid] = _poll(entry) if entry else NOT_ENUMERATED
    return found


def unavailable(error: Record, platform: str = "") -> str:
    """Return one sentence on why NVML cannot be used, with the remedy. ``platform`` as for ``fault``."""
    code, text = error["code"], error["text"]
    remedy = platform or _REMEDY.get(code, "NVML cannot be used; nvidia-smi on the node shows more")
    if loader := error.get("loader"):
        remedy = f"libnvidia-ml.so.1 is there and cannot be loaded: {loader}; {_RELOAD}"
    return f"{remedy} (NVML: {text}, {code})" if code is not None else f"{remedy} ({error['function']}: {text})"


def _highest(samples: Iterable[tuple[int, int]]) -> dict[int, int]:
    found: dict[int, int] = {}
    for pid, percent in samples:
        found[pid] = max(found.get(pid, 0), percent)
    return found


def _poll(entry: Record) -> Poll:
    if error := entry.get("error"):
        return Poll(_reason(error), lost=error["code"] in _LOST, answered=False)
    ecc, retiring = entry["ecc"], entry.get("retire_pending")
    advice = _REMAP_PENDING if entry["remap_pending"] else _RETIRE_PENDING if retiring and not ecc else ""
    if action := entry["recovery"]:
        complaint = f"the driver asks for {_RECOVERY.get(action, f'recovery action {action}')}"
    else:
        complaint = _REMAP_FAILED if entry["remap_failed"] else _RETIRE_BLOCKS if retiring and ecc else ""
    return Poll(complaint, ecc=ecc, advice=advice)


def _reason(error: Record, platform: str = "") -> str:
    if error["code"] in _GONE or "function" not in error:
        return f"NVML: {error['text']} ({error['code']})"
    return str(fault(error, platform))


def _gpu(entry: Record) -> Gpu | None:
    """Return the GPU; None when facts are missing. One that failed after them is complete: its poll has the error."""
    if "mig" not in entry:
        return None
    major, minor = entry["cc"]
    return Gpu(
        uuid=entry["uuid"],
        index=entry["index"],
        minor=entry["minor"],
        model=entry["model"],
        memory_bytes=entry["memory"],
        compute_capability=(major, minor),
        pci_address=entry["pci"],
        numa_node=entry["numa"],
        mig_enabled=entry["mig"],
        mig_capable=entry["mig_capable"],
        mig_devices=tuple(
            MigDevice(
                mig["uuid"],
                mig["slot"],
                mig["profile"],
                mig["memory"],
                tuple(mig["caps"]),
                tuple(mig["attributes"].items()),
            )
            for mig in entry["mig_devices"]
        ),
    )


def _link(link: Record) -> GpuLink:
    level = link["ancestor"]
    known = [ancestor for ancestor in Ancestor if ancestor >= level]
    return GpuLink(ancestor=known[0] if known else Ancestor.SYSTEM, nvlinks=link["nvlinks"])
