# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read a machine's GPUs from NVML by ctypes, so that targets need no package for it.

Names, numbers and structures are those of nvml.h. Reading happens in a child process with a deadline, because a call
into a sick driver may never return.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import time
from dataclasses import asdict, dataclass, field
from typing import Any, Callable, Dict, Iterator, Sequence

from ansible_collections.accel.kubernetes.plugins.module_utils.shared.gpu_exclusion import Exclusion, excluded_by
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.nvml_library import (
    MAX_MIG_DEVICES,
    NoAnswer,
    Nvml,
    NvmlError,
    opened,
    unusable,
)

_INVALID_ARGUMENT = 2
_NOT_SUPPORTED = 3
_NOT_FOUND = 6
_FUNCTION_NOT_FOUND = 13
_UNSUPPORTED = frozenset({_NOT_SUPPORTED, 4, _FUNCTION_NOT_FOUND, 25})
"""Also NO_PERMISSION and ARGUMENT_VERSION_MISMATCH: the value is not to be had, and nothing is wrong with the GPU."""
_LOST = frozenset({6, 15, 16, 28})
"""NOT_FOUND, GPU_IS_LOST, RESET_REQUIRED, GPU_NOT_FOUND."""
_ANCESTORS = {
    0: "internal",
    10: "single_switch",
    20: "multiple_switches",
    30: "host_bridge",
    40: "node",
    50: "system",
}
_MAX_NVLINKS = 36
_REMOTE_SWITCH = 2
_FIELD_RECOVERY_ACTION = 230


@dataclass
class Gpu:
    """One GPU. None stands for what could not be read."""

    index: int
    uuid: str | None = None
    model: str | None = None
    memory_bytes: int | None = None
    compute_capability: str | None = None
    pci_address: str | None = None
    numa_node: int | None = None
    mig: Dict[str, Any] = field(default_factory=lambda: {"supported": None, "enabled": None, "devices": []})
    health: str = "unknown"
    reason: str = ""


@dataclass
class Reading:
    """What NVML says, or in ``reason`` why it says nothing."""

    available: bool = False
    reason: str = ""
    driver_version: str | None = None
    cuda_version: str | None = None
    gpus: list[Gpu] = field(default_factory=list)
    links: list[Dict[str, Any]] = field(default_factory=list)
    excluded: list[Dict[str, Any]] = field(default_factory=list)
    """GPUs that are left alone: index, uuid, model, pci_address, and by which entry."""


class _Memory(ctypes.Structure):
    """nvmlMemory_t."""

    _fields_ = (("total", ctypes.c_ulonglong), ("free", ctypes.c_ulonglong), ("used", ctypes.c_ulonglong))


class _FieldValue(ctypes.Structure):
    """nvmlFieldValue_t with the unsigned member of its union."""

    _fields_ = (
        ("fieldId", ctypes.c_uint),
        ("scopeId", ctypes.c_uint),
        ("timestamp", ctypes.c_longlong),
        ("latencyUsec", ctypes.c_longlong),
        ("valueType", ctypes.c_uint),
        ("nvmlReturn", ctypes.c_uint),
        ("value", ctypes.c_uint),
        ("rest", ctypes.c_uint),
    )


def read(library: str, sysfs_root: str, timeout: float, exclusions: Sequence[Exclusion] = ()) -> Dict[str, Any]:
    """Return a Reading as plain data, after at most ``timeout`` seconds."""
    try:
        return in_child(library, lambda: asdict(_read(library, sysfs_root, exclusions)), timeout)
    except NoAnswer as error:
        return asdict(Reading(reason=str(error)))


def in_child(library: str, work: Callable[[], Dict[str, Any]], timeout: float) -> Dict[str, Any]:
    """Return what ``work`` returns in a child process, as plain data. The child is given up after ``timeout`` seconds.

    Raises NoAnswer when there is none; it names the library.
    """
    receive, send = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(receive)
        _become_worker(send, work)
    os.close(send)
    try:
        answer, in_time = _collect(receive, timeout)
    finally:
        os.close(receive)
        # Not waited for: one that hangs in the kernel does not die. init inherits it.
        os.kill(child, signal.SIGKILL)
    if not in_time:
        raise NoAnswer(
            f"NVML did not answer within {timeout:g} s: the driver hangs; see 'dmesg', and reboot if that does not pass"
        )
    if not answer:
        raise NoAnswer(
            f"the process that loaded {library} ended without an answer: the library does not work; reinstall it"
        )
    result: Dict[str, Any] = json.loads(answer)
    if "failed" in result:
        raise NoAnswer(f"asking NVML failed: {result['failed']}")
    return result


def _become_worker(send: int, work: Callable[[], Dict[str, Any]]) -> None:
    """Work, answer and end, as the child. It keeps none of the parent's streams: Ansible would wait for them."""
    try:
        null = os.open(os.devnull, os.O_RDWR)
        for stream in (0, 1, 2):
            os.dup2(null, stream)
        try:
            result = work()
        except Exception as error:
            result = {"failed": repr(error)}
        with os.fdopen(send, "w") as answer:
            json.dump(result, answer)
    finally:
        os._exit(0)


def _collect(receive: int, timeout: float) -> tuple[bytes, bool]:
    """Return all the child wrote until its end, and whether that came in time."""
    deadline = time.monotonic() + timeout
    parts: list[bytes] = []
    while True:
        ready, _writable, _failed = select.select([receive], [], [], max(0.0, deadline - time.monotonic()))
        if not ready:
            return b"", False
        part = os.read(receive, 65536)
        if not part:
            return b"".join(parts), True
        parts.append(part)


def _read(library: str, sysfs_root: str, exclusions: Sequence[Exclusion]) -> Reading:
    try:
        nvml = opened(library)
    except NoAnswer as error:
        return Reading(reason=str(error))
    try:
        cuda = nvml.number("nvmlSystemGetCudaDriverVersion_v2")
        reading = Reading(
            available=True,
            driver_version=nvml.text("nvmlSystemGetDriverVersion"),
            cuda_version=f"{cuda // 1000}.{cuda % 1000 // 10}",
        )
        count = nvml.number("nvmlDeviceGetCount_v2")
    except NvmlError as error:
        return Reading(reason=unusable(error))
    handles = {}
    for index in range(count):
        gpu, handle = Gpu(index), None
        with _failure_of(gpu):
            handle = nvml.handle(index)
            _describe(nvml, handle, gpu, sysfs_root)
        by = excluded_by(exclusions, index, gpu.uuid, gpu.pci_address, gpu.model)
        if by:
            known = {name: getattr(gpu, name) for name in ("index", "uuid", "model", "pci_address")}
            reading.excluded.append({**known, "by": by})
            continue
        reading.gpus.append(gpu)
        if handle is not None:
            handles[index] = handle
    reading.links = _links(nvml, reading.gpus, handles)
    return reading


def _describe(nvml: Nvml, handle: ctypes.c_void_p, gpu: Gpu, sysfs_root: str) -> None:
    """Fill in a GPU; what was read before an error stays."""
    gpu.uuid = nvml.text("nvmlDeviceGetUUID", handle)
    gpu.pci_address = nvml.pci_address("nvmlDeviceGetPciInfo_v3", handle)
    gpu.numa_node = _numa_node(sysfs_root, gpu.pci_address)
    gpu.model = nvml.text("nvmlDeviceGetName", handle)
    major, minor = ctypes.c_int(), ctypes.c_int()
    nvml.call("nvmlDeviceGetCudaComputeCapability", handle, ctypes.byref(major), ctypes.byref(minor))
    gpu.compute_capability = f"{major.value}.{minor.value}"
    gpu.memory_bytes = _memory_bytes(nvml, handle)
    gpu.mig = _mig(nvml, handle)
    gpu.reason = _complaint(nvml, handle)
    gpu.health = "unhealthy" if gpu.reason else "healthy"


@contextlib.contextmanager
def _failure_of(gpu: Gpu) -> Iterator[None]:
    try:
        yield
    except NvmlError as error:
        gpu.health = "unhealthy" if error.code in _LOST else "unknown"
        gpu.reason = f"NVML: {error}"


def _memory_bytes(nvml: Nvml, handle: ctypes.c_void_p) -> int:
    """NVML does not report it for a GPU that has the host's memory (GB10): it has all of that."""
    memory = _Memory()
    try:
        nvml.call("nvmlDeviceGetMemoryInfo", handle, ctypes.byref(memory))
    except NvmlError as error:
        if error.code != _NOT_SUPPORTED:
            raise
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    return int(memory.total)


def _mig(nvml: Nvml, handle: ctypes.c_void_p) -> Dict[str, Any]:
    current, pending = ctypes.c_uint(), ctypes.c_uint()
    try:
        nvml.call("nvmlDeviceGetMigMode", handle, ctypes.byref(current), ctypes.byref(pending))
    except NvmlError as error:
        if error.code not in _UNSUPPORTED:
            raise
        known = False if error.code in (_NOT_SUPPORTED, _FUNCTION_NOT_FOUND) else None
        return {"supported": known, "enabled": known, "devices": []}
    enabled = bool(current.value)
    return {"supported": True, "enabled": enabled, "devices": _mig_devices(nvml, handle) if enabled else []}


def _mig_devices(nvml: Nvml, gpu: ctypes.c_void_p) -> list[Dict[str, Any]]:
    """Return UUID, profile, and slot of each MIG device, in the order of their slots."""
    devices = []
    for slot in range(min(nvml.number("nvmlDeviceGetMaxMigDeviceCount", gpu), MAX_MIG_DEVICES)):
        handle = ctypes.c_void_p()
        try:
            nvml.call("nvmlDeviceGetMigDeviceHandleByIndex", gpu, ctypes.c_uint(slot), ctypes.byref(handle))
        except NvmlError as error:
            if error.code not in (_NOT_FOUND, _INVALID_ARGUMENT):  # nothing in this slot
                raise
            continue
        profile = nvml.text("nvmlDeviceGetName", handle).rpartition("MIG ")[2]
        devices.append({"uuid": nvml.text("nvmlDeviceGetUUID", handle), "profile": profile, "slot": slot})
    return devices


def _complaint(nvml: Nvml, handle: ctypes.c_void_p) -> str:
    """Return why the GPU must not be used although it answers; empty where nothing is wrong."""
    rows = [ctypes.c_uint() for _row in range(4)]
    with _where_supported():
        nvml.call("nvmlDeviceGetRemappedRows", handle, *map(ctypes.byref, rows))
        if rows[3].value:
            return "a faulty memory row could not be remapped: replace the GPU"
    value = _FieldValue(fieldId=_FIELD_RECOVERY_ACTION)
    with _where_supported():
        nvml.call("nvmlDeviceGetFieldValues", handle, 1, ctypes.byref(value))
        if value.nvmlReturn == 0 and value.value:
            return f"the driver asks for recovery (action {value.value}): see 'nvidia-smi -q'"
    return ""


@contextlib.contextmanager
def _where_supported() -> Iterator[None]:
    try:
        yield
    except NvmlError as error:
        if error.code not in _UNSUPPORTED:
            raise


def _numa_node(sysfs_root: str, address: str) -> int | None:
    """Return the NUMA node; the kernel says -1 where there is one node or none is known."""
    try:
        with open(os.path.join(sysfs_root, "bus/pci/devices", address, "numa_node"), encoding="ascii") as handle:
            node = int(handle.read())
    except (OSError, ValueError):
        return None
    return node if node >= 0 else None


def _links(nvml: Nvml, gpus: list[Gpu], handles: Dict[int, ctypes.c_void_p]) -> list[Dict[str, Any]]:
    """Return the links of each pair once; a pair that could not be read is left out."""
    links = []
    ends: Dict[int, list[str]] = {}
    for index, handle in handles.items():
        with contextlib.suppress(NvmlError):
            ends[index] = _nvlink_ends(nvml, handle)
    known = [gpu for gpu in gpus if gpu.index in ends]
    for position, left in enumerate(known):
        for right in known[position + 1 :]:
            direct = ends[left.index].count(str(right.pci_address))
            # Every GPU on NVSwitch reaches every other with all its links.
            switched = min(ends[left.index].count("switch"), ends[right.index].count("switch"))
            with contextlib.suppress(NvmlError):
                level = nvml.number("nvmlDeviceGetTopologyCommonAncestor", handles[left.index], handles[right.index])
                links.append(
                    {
                        "gpus": [left.uuid, right.uuid],
                        "ancestor": _ANCESTORS.get(level, "system"),
                        "nvlinks": direct or switched,
                    }
                )
    return links


def _nvlink_ends(nvml: Nvml, handle: ctypes.c_void_p) -> list[str]:
    """Return what is at the far end of each active NVLink: a PCI address or ``switch``."""
    ends = []
    for link in range(_MAX_NVLINKS):
        number = ctypes.c_uint(link)
        try:
            if nvml.number("nvmlDeviceGetNvLinkState", handle, number):
                ends.append(_far_end(nvml, handle, number))
        except NvmlError as error:
            # One past the last link of this model.
            if error.code == _INVALID_ARGUMENT:
                break
            if error.code not in _UNSUPPORTED:
                raise
    return ends


def _far_end(nvml: Nvml, handle: ctypes.c_void_p, link: ctypes.c_uint) -> str:
    with _where_supported():
        if nvml.number("nvmlDeviceGetNvLinkRemoteDeviceType", handle, link) == _REMOTE_SWITCH:
            return "switch"
    address = nvml.pci_address("nvmlDeviceGetNvLinkRemotePciInfo_v2", handle, link)
    # Drivers without the device type name a switch by an address that cannot be.
    return "switch" if address.startswith("ffff") else address
