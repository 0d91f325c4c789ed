# SPDX-License-Identifier: Apache-2.0
"""The process that holds NVML: ``python -m kube_accel.nvml.worker <parent pid> <sysfs root> <proc root> <excluded>``.

A call into a sick driver may never return, so it happens here, where the parent can give up on it. Requests are
JSON lines on stdin, ``{"id": 1, "op": "inventory"}`` with ``"note"`` and ``"hung"`` (``asking``), ``"poll"``, or
``"usage"`` with ``"uuids"``, or ``"samples"`` with ``"slow"`` and ``"profile"``, or ``"limit"`` with ``"uuid"``,
``"cgroup"`` and ``"bytes"``; answers on stdout are ``{"id": 1, "ok": ...}`` or ``{"id": 1, "error": FAULT}``, and in
between come ``{"event": "xid", "uuid": ..., "xid": 79}`` and ``{"event": "wait", "code": 15}`` (waiting for events
failed: a reason to poll now). NVML is initialised once in a process's life; for a fresh look the daemon starts a fresh
process.

A fault is ``{"code": 999, "text": ..., "function": "nvmlDeviceGetName"}``, with the code None where NVML said success.
A GPU has one as ``error`` when nothing can be known of it, and a list of ``faults`` of single values.

Imports are few on purpose, and pathlib is not among them: this process lives beside every daemon.
"""

from __future__ import annotations

import contextlib
import ctypes
import io
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from types import ModuleType
from typing import TYPE_CHECKING

from kube_accel import exclusions
from kube_accel.nvml.asking import Attempts, Calls, cause, number, text, token
from kube_accel.nvml.device import Device, sysfs_address
from kube_accel.nvml.links import links_of
from kube_accel.nvml.mig_devices import MigReader
from kube_accel.nvml.sampling import Sampler, each_mig_device, memory, process_sample, remapped_rows
from kube_accel.shared.gpu_exclusion import Exclusion, excluded_by

if TYPE_CHECKING:
    from kube_accel.nvml.profiling import Profiler

Record = dict[str, object]
Emit = Callable[[Record], None]

EVENT_SLICE_MS = 1000
EVENT_RETRY_SECONDS = 1.0
_PR_SET_PDEATHSIG = 1  # linux/prctl.h
_LIBRARY_NOT_FOUND = 12  # nvmlReturn_t
_OF_PROCESSES = "c_nvmlProcessInfo_v3_t", "c_nvmlProcessUtilizationSample_t"
"""Structures of numbers alone, of which there is one a process."""


class Driver:
    """NVML as this process sees it.

    Methods raise ``pynvml.NVMLError`` only for errors that concern the driver as a whole; whatever goes wrong with one
    GPU is part of that GPU's record.
    """

    def __init__(
        self,
        nvml: ModuleType,
        sysfs_root: str,
        proc_root: str = "/proc",
        excluded: str = "",
        clock: Callable[[], float] = time.time,
    ) -> None:
        self._nvml = self.calls = Calls(nvml)
        self._attempts = Attempts(self.calls)
        self._optional = self._attempts.optional
        self._pci = f"{sysfs_root}/bus/pci"
        self._mig = MigReader(self._nvml, self._attempts, f"{proc_root}/driver/nvidia/capabilities")
        self._excluded = excluded
        """File that lists the GPUs to leave alone; empty for none."""
        self.left_alone: list[Record] = []
        self._bound: frozenset[str] = frozenset()
        self._fixed: dict[tuple[object, str], Record] = {}
        """Fixed facts of GPUs, by UUID and address."""
        self._sampled: dict[str, int] = {}
        """The newest sample of utilization that was passed on, by UUID, in NVML's microseconds."""
        self._sampler = Sampler(self._nvml, self._attempts, clock)
        self._profiler: Profiler | None = None
        self._start_faults: dict[int, list[Record]] = {}
        """Faults of what is asked once, by index."""
        self.events: object = None
        """An event set that collects XIDs; None where there are no events."""
        self.event_uuids: dict[int | None, object] = {}
        """UUIDs of the GPUs in it, by handle."""
        self.devices: list[Device] = []

    def inventory(self) -> Record:
        """Initialize NVML; return what stays the same while the driver is loaded, and each GPU's status."""
        nvml = self._nvml
        nvml.nvmlInit()
        self._bound = self._bound_addresses()
        cuda = nvml.nvmlSystemGetCudaDriverVersion_v2()
        with self._attempts.all():
            self.devices = self._enumerate()
            self._start_faults = {}
            links = links_of(self._nvml, self._attempts, self.devices, self._keep)
            self._register_events()
            gpus = [{**device.facts, **self._status(device)} for device in self.devices]
        return {
            "driver": nvml.nvmlSystemGetDriverVersion(),
            "cuda": [cuda // 1000, cuda % 1000 // 10],
            "gpus": gpus,
            "links": links,
            "excluded": self.left_alone,
        }

    def poll(self) -> Record:
        """Return each GPU's status, and ``stale``: a start now would report other GPUs than this process did."""
        with self._attempts.all():
            devices = self._enumerate()
            gpus = [
                {"index": device.facts["index"], "uuid": device.facts.get("uuid"), **self._status(device)}
                for device in devices
            ]
        changed = any(new.readable and new.facts != old.facts for new, old in zip(devices, self.devices, strict=False))
        stale = changed or len(devices) != len(self.devices) or self._bound_addresses() != self._bound
        return {"gpus": gpus, "stale": stale}

    def usage(self, uuids: Iterable[str]) -> Record:
        """Return memory and time that processes had of these GPUs since the last question, by host process id."""
        wanted = set(uuids)
        chosen = [device for device in self.devices if device.readable and device.facts["uuid"] in wanted]
        return {"gpus": [self._usage(device) for device in chosen]}

    def samples(self, slow: bool, profiled: bool = False) -> Record:
        """Return what every GPU does, for metrics; ``slow`` adds what changes rarely or takes long.

        ``profiled`` adds what its counters say of its parts.
        """
        return {"gpus": [self._samples(device, slow, profiled) for device in self.devices if device.readable]}

    def limit(self, uuid: str, cgroup: str, memory: int) -> Record:
        """Have the kernel keep a cgroup's processes to so many bytes of a GPU; drivers before 615 cannot."""
        nvml = self._nvml
        record: Record = {}
        device = next((device for device in self.devices if device.readable and device.facts["uuid"] == uuid), None)
        if device is None:
            return {"error": {"code": None, "text": f"there is no GPU {uuid}"}}
        with self._attempts.about(device.index), self._attempts.into(record):
            limits = nvml.c_nvmlSetMemoryLimits_v1_t(nameSpace=cgroup.encode(), softLimit=0, hardLimit=memory)
            nvml.nvmlDeviceSetMemoryLimits_v1(device.handle, limits)
        return record

    def _samples(self, device: Device, slow: bool, profiled: bool) -> Record:
        uuid = str(device.facts["uuid"])
        record: Record = {}
        with self._attempts.about(device.index) as faults, self._attempts.into(record):
            mig = bool(device.facts.get("mig"))
            record |= self._sampler.read(device.handle, uuid, slow, mig)
            if profiled:
                record["profile"] = self._profile(device.handle, uuid, mig)
        if not faults:
            return {"uuid": uuid, **record}
        if all(value is None for value in _values(record)):
            return {"uuid": uuid, "error": faults[0]}
        if record.get("memory") is None:
            record["memory"] = {"total": device.facts["memory"], "used": None, "reserved": None}
        return {"uuid": uuid, **record, "faults": faults}

    def _profile(self, handle: object, uuid: str, mig: bool) -> Record:
        """Read the counters of the GPU, and of MIG devices that have a GPU instance for themselves."""
        nvml = self._nvml
        if self._profiler is None:
            from kube_accel.nvml.profiling import Profiler

            self._profiler = Profiler(nvml, self._attempts.failed)
        profiler = self._profiler
        found: Record = {"gpu": profiler.read(handle, uuid)}
        if mig:

            def place(part: object, _: int) -> tuple[int, str]:
                return number(nvml.nvmlDeviceGetGpuInstanceId(part)), token(nvml.nvmlDeviceGetUUID(part))

            parts = self._optional(lambda: each_mig_device(nvml, handle, place, self._attempts.failed)) or []
            instances = [instance for instance, _ in parts]
            found["parts"] = {
                name: profiler.read(handle, uuid, instance)
                for instance, name in parts
                if instances.count(instance) == 1
            }
        return found

    def _usage(self, device: Device) -> Record:
        uuid = str(device.facts["uuid"])
        record: Record = {"uuid": uuid}
        with self._attempts.about(device.index) as faults:
            record["memory"] = self._sampler.processes(device.handle) or []
            if faults:
                # Part of the processes is worse than none: who acts on it would take the others for gone.
                return {"uuid": uuid, "error": faults[0]}
            record["time"] = self._process_time(device.handle, uuid)
        return record | ({"faults": faults} if faults else {})

    def _process_time(self, handle: object, uuid: str) -> list[tuple[int, int]] | None:
        """Return percent by process; none where nothing ran, None where that is not known."""
        now = self._sampler.now()
        since = min(self._sampled.get(uuid, now - 1_000_000), now)
        samples = self._sampler.since(lambda: self._nvml.nvmlDeviceGetProcessUtilization(handle, since), process_sample)
        if samples is None:
            return None
        self._sampled[uuid] = max((stamp for _, stamp, _ in samples), default=since)
        return [(pid, min(percent, 100)) for pid, stamp, percent in samples if stamp > since]

    def _enumerate(self) -> list[Device]:
        devices = self._used(number(self._nvml.nvmlDeviceGetCount()))
        owners: dict[object, int] = {}
        for device in devices:
            uuid = device.facts.get("uuid")
            if uuid is not None and owners.setdefault(uuid, device.index) != device.index:
                claim = f"{uuid} is the UUID of GPU {owners[uuid]}"
                device.facts = {
                    "index": device.index,
                    "error": {"code": None, "text": claim, "function": "nvmlDeviceGetUUID"},
                }
        return devices

    def _used(self, count: int) -> list[Device]:
        """Return the GPUs that are not excluded. Where the list cannot be read, there are none: it might name any."""
        self.left_alone, used, problem = [], [], ""
        excluded: tuple[Exclusion, ...] = ()
        try:
            excluded = exclusions.read(self._excluded) if self._excluded else ()
        except ValueError as error:
            problem = str(error)
        for index in range(count):
            device = self._device(index)
            known = {name: device.facts.get(name) for name in ("uuid", "pci", "model")}
            by = problem or excluded_by(excluded, index, *map(_text_or_none, known.values()))
            if by:
                self.left_alone.append({"index": index, "by": by, **known})
            else:
                used.append(device)
        return used

    def _device(self, index: int) -> Device:
        nvml = self._nvml
        facts: Record = {"index": index}
        handle = None
        with self._attempts.about(index) as faults, self._attempts.into(facts):
            handle = nvml.nvmlDeviceGetHandleByIndex(index)
            facts["uuid"] = token(nvml.nvmlDeviceGetUUID(handle))
            address = sysfs_address(text(nvml.nvmlDeviceGetPciInfo(handle).busId))
            facts["pci"] = address
            facts |= self._fixed_facts(handle, address, facts["uuid"])
            facts["memory"], _ = memory(nvml, handle)  # asks the GPU, the others a cache
            mode = self._mig.mode(handle)
            facts["mig_capable"] = mode is not None
            enabled = mode == nvml.NVML_DEVICE_MIG_ENABLE
            facts["mig_devices"] = self._mig.devices(handle, facts["minor"]) if enabled else []
            facts["mig"] = enabled
        return Device(handle, facts, faults)

    def _fixed_facts(self, handle: object, address: str, uuid: object) -> Record:
        """Return what stays with a GPU as long as the driver does. Asked once: all are asked for at every poll."""
        nvml = self._nvml
        known = self._fixed.get((uuid, address))
        if known is None:
            major, minor = nvml.nvmlDeviceGetCudaComputeCapability(handle)
            capability = [number(major, _MOST_SMALL), number(minor, _MOST_SMALL)]
            known = self._fixed[uuid, address] = {
                "numa": self._numa_node(address),
                "minor": number(nvml.nvmlDeviceGetMinorNumber(handle), _MOST_SMALL),
                "model": text(nvml.nvmlDeviceGetName(handle)),
                "cc": capability,
            }
        return known

    def _status(self, device: Device) -> Record:
        """Return ``error`` when the GPU does not answer, else its counters; None where not supported."""
        if not device.readable:
            return {"error": device.facts["error"]}
        nvml, handle, optional = self._nvml, device.handle, self._optional
        status: Record = {}
        with self._attempts.about(device.index) as faults:
            status["ecc"] = optional(
                lambda: number(
                    nvml.nvmlDeviceGetTotalEccErrors(
                        handle, nvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED, nvml.NVML_VOLATILE_ECC
                    )
                )
            )
            rows = optional(lambda: remapped_rows(nvml, handle))
            pending, failed = rows[2:] if rows is not None else (None, None)
            status |= {"remap_pending": pending, "remap_failed": failed}
            # Before Ampere pages are retired instead.
            status["retire_pending"] = None if rows is not None else optional(lambda: self._retiring(handle))
            status["recovery"] = optional(lambda: self._recovery_action(handle))
        met = [*device.faults, *self._start_faults.get(device.index, ()), *faults]
        return status | ({"faults": met} if met else {})

    def _retiring(self, handle: object) -> bool:
        nvml = self._nvml
        return bool(nvml.nvmlDeviceGetRetiredPagesPendingStatus(handle) == nvml.NVML_FEATURE_ENABLED)

    def _recovery_action(self, handle: object) -> int | None:
        """Return ``nvmlDeviceGpuRecoveryAction_t``, 0 for none and for drivers that do not know the field."""
        value = self._nvml.nvmlDeviceGetFieldValues(handle, [self._nvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION])[0]
        return int(value.value.uiVal) if value.nvmlReturn == self._nvml.NVML_SUCCESS else None

    def _numa_node(self, address: str) -> int | None:
        """Return the NUMA node; the kernel says -1 where there is one node or none is known."""
        try:
            with open(f"{self._pci}/devices/{address}/numa_node", encoding="ascii") as file:  # noqa: PTH123
                node = int(file.read())
        except (OSError, ValueError):
            return None
        return node if 0 <= node <= _MOST_SMALL else None

    def _bound_addresses(self) -> frozenset[str]:
        """Return the PCI functions the driver holds. NVML learns of a hot-plugged GPU only when it is initialized."""
        try:
            with os.scandir(f"{self._pci}/drivers/nvidia") as entries:
                return frozenset(entry.name for entry in entries if entry.name.count(":") == 2)
        except OSError:
            return frozenset()

    def _keep(self, device: Device, faults: Iterable[Record]) -> None:
        kept = self._start_faults.setdefault(device.index, [])
        kept += [fault for fault in faults if fault not in kept]

    def _register_events(self) -> None:
        """Have the driver report XIDs of each GPU, where it does that: the poll alone has to do elsewhere."""
        nvml = self._nvml
        try:
            self.events = nvml.nvmlEventSetCreate()
        except nvml.NVMLError:
            return

        def register(device: Device) -> None:
            kinds = nvml.nvmlDeviceGetSupportedEventTypes(device.handle) & nvml.nvmlEventTypeXidCriticalError
            if kinds:
                nvml.nvmlDeviceRegisterEvents(device.handle, kinds, self.events)
                self.event_uuids[_address_of(device.handle)] = device.facts.get("uuid")

        for device in self.devices:
            if device.handle is not None:
                with self._attempts.about(device.index) as faults:
                    self._optional(partial(register, device))
                self._keep(device, faults)


_MOST_SMALL = 1 << 16
"""Largest value of what is a small number: device files and capabilities."""


def _values(record: Mapping[str, object]) -> Iterator[object]:
    for value in record.values():
        if isinstance(value, Mapping):
            yield from _values(value)
        else:
            yield value


def error_record(error: Exception, function: str) -> Record:
    """Return the driver's error as the parent reads it; for a library that does not load, the loader's words."""
    code = getattr(error, "value", None)
    record: Record = {"code": code, "text": cause(error), "function": function}
    if code == _LIBRARY_NOT_FOUND:
        from kube_accel.shared.nvml_library import unloadable

        record["loader"] = unloadable()
    return record


def watch_events(nvml: ModuleType, events: object, uuids: Mapping[int | None, object], emit: Emit) -> None:
    """Report XIDs until the process ends."""
    while True:
        try:
            event = nvml.nvmlEventSetWait_v2(events, EVENT_SLICE_MS)
        except Exception as error:
            code = getattr(error, "value", None)
            if code != nvml.NVML_ERROR_TIMEOUT:
                emit({"event": "wait", "code": code})
                time.sleep(EVENT_RETRY_SECONDS)
            continue
        if event.eventType & nvml.nvmlEventTypeXidCriticalError:
            emit({"event": "xid", "uuid": uuids.get(_address_of(event.device)), "xid": event.eventData})


def _address_of(handle: object) -> int | None:
    return ctypes.cast(handle, ctypes.c_void_p).value  # type: ignore[arg-type]


def serve(requests: io.BufferedReader, emit: Emit, driver: Driver, nvml: ModuleType) -> None:
    """Answer until the requests end."""
    for line in requests:
        request = json.loads(line)
        try:
            if request["op"] == "inventory":
                driver.calls.watched(request.get("note"), map(tuple, request.get("hung", ())))
                answer = driver.inventory()
                if uuids := driver.event_uuids:
                    events = (nvml, driver.events, uuids, emit)
                    threading.Thread(target=watch_events, args=events, daemon=True).start()
            elif request["op"] == "usage":
                answer = driver.usage(request["uuids"])
            elif request["op"] == "samples":
                answer = driver.samples(request["slow"], request["profile"])
            elif request["op"] == "limit":
                answer = driver.limit(request["uuid"], request["cgroup"], request["bytes"])
            else:
                answer = driver.poll()
            emit({"id": request["id"], "ok": answer})
        except Exception as error:
            emit({"id": request["id"], "error": error_record(error, driver.calls.function)})


def die_with(parent: int) -> None:
    """Have the kernel end this process when its parent dies, even while NVML holds the main thread."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
    if os.getppid() != parent:
        raise SystemExit(0)


def private_pipes() -> tuple[io.BufferedReader, io.BufferedWriter]:
    """Move the protocol away from descriptors 0 and 1, so that nothing a library prints can get into it."""
    requests, answers = os.fdopen(os.dup(0), "rb"), os.fdopen(os.dup(1), "wb")
    nothing = os.open(os.devnull, os.O_RDONLY)
    os.dup2(nothing, 0)
    os.close(nothing)
    os.dup2(2, 1)
    return requests, answers


def load_nvml() -> ModuleType:
    """Load NVIDIA's binding without ``ctypes.util``, which it imports, never calls, and would pay a MiB for."""
    name = "ctypes.util"
    known = sys.modules.get(name)
    empty = ModuleType(name)
    empty.find_library = None  # type: ignore[attr-defined]
    sys.modules[name] = empty
    try:
        import pynvml
    finally:
        del sys.modules[name]
        if known is not None:
            sys.modules[name] = known
    for structure in _OF_PROCESSES:
        # The binding looks for text to decode at every access, which takes a third of the time of a look at processes.
        getattr(pynvml, structure).__getattribute__ = ctypes.Structure.__getattribute__
    return pynvml  # type: ignore[no-any-return]


def _text_or_none(value: object) -> str | None:
    return value if isinstance(value, str) else None


def main(parent: int, sysfs_root: str, proc_root: str, excluded: str) -> None:
    """Serve the parent on stdin and stdout until it closes them or dies."""
    die_with(parent)
    requests, answers = private_pipes()
    nvml = load_nvml()
    with contextlib.suppress(AttributeError):  # glibc only: give back what loading NVML needed for a moment
        ctypes.CDLL(None).malloc_trim(0)
    writing = threading.Lock()

    def emit(record: Record) -> None:
        with writing:
            answers.write(json.dumps(record).encode() + b"\n")
            answers.flush()

    serve(requests, emit, Driver(nvml, sysfs_root, proc_root, excluded), nvml)
    os._exit(0)  # the kernel lets go of the driver faster than NVML does, and the event thread may be inside it


if __name__ == "__main__":
    main(int(sys.argv[1]), *sys.argv[2:5])
