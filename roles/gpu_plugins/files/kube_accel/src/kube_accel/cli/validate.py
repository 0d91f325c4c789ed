# SPDX-License-Identifier: Apache-2.0
"""``kube-accel validate``: checks a node from inside, one line a check."""

from __future__ import annotations

import argparse
import subprocess
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from enum import Enum
from pathlib import Path
from typing import Any

from kube_accel import exclusions
from kube_accel.dra.options import NOT_WANTED, OFFERED, WELL
from kube_accel.enforce import selinux
from kube_accel.enforce.mps import MpsPaths
from kube_accel.kube.deviceplugin import KUBELET_SOCKET
from kube_accel.kube.podresources import PodResourcesClient, PodResourcesError
from kube_accel.model import DriverState, ExcludedGpu, Gpu, GpuHealth, Health, Inventory, Mode, Snapshot
from kube_accel.nvml import machine
from kube_accel.nvml.monitor import GpuMonitor
from kube_accel.nvml.options import MonitorOptions
from kube_accel.nvml.translate import MAKE_NODES
from kube_accel.plugin.admin import AdminError, call
from kube_accel.plugin.mode_lock import DRA
from kube_accel.shared.printable import line
from kube_accel.sharing.profile import PROFILES
from kube_accel.sharing.whole import NEEDED_NODES

_NVML_DEADLINE = 30.0
_SAMPLES_DEADLINE = 10.0
_NOT_YET = (DriverState.STARTING, DriverState.WEDGED)
_SMI_DEADLINE = 30.0
_OLDEST_DRIVER = 470
_PROC = Path("/proc")
_LOOK = "read NVRM and Xid lines in the kernel log"
_DISPLAY_CLASSES = ("0x0300", "0x0302")
_NVIDIA = "0x10de"


class Status(Enum):
    """Outcome of a check."""

    OK = "ok"
    WARN = "warn"
    FAIL = "fail"


@dataclass(frozen=True, slots=True)
class Check:
    """One line for a person."""

    status: Status
    name: str
    detail: str
    remedy: str = ""

    def __str__(self) -> str:
        return line(f"{self.status.value:<4}  {self.name}: {self.detail}{'; ' if self.remedy else ''}{self.remedy}")


def run(arguments: argparse.Namespace) -> int:
    """Print every check, and return 1 when one of them failed."""
    if arguments.share:
        from kube_accel.cli.validate_share import run as run_with_share

        return run_with_share(arguments)
    if arguments.pod:
        # Loaded here: a node's checks have none of it.
        from kube_accel.cli.validate_pod import run as run_in_pod

        return run_in_pod(arguments)
    failed = False
    for check in _checks(arguments):
        print(check, flush=True)
        failed = failed or check.status is Status.FAIL
    return int(failed)


def _checks(arguments: argparse.Namespace) -> Iterable[Check]:
    snapshot = look(arguments.sysfs_root, arguments.state_dir / exclusions.FILE)
    yield check_nvml(snapshot)
    inventory = snapshot.inventory
    if inventory is None or not inventory.gpus:
        yield from check_platform(machine.unsupported_platform(arguments.sysfs_root, _PROC))
    if inventory is not None:
        yield from check_gpus(snapshot, inventory)
        yield check_driver(inventory, _kernel_module_version(arguments.sysfs_root))
        yield check_pci(pci_gpus(arguments.sysfs_root), [*inventory.gpus, *inventory.excluded])
        yield check_device_nodes(inventory.gpus, lambda name: (arguments.dev_root / name).exists())
    else:
        yield check_pci(pci_gpus(arguments.sysfs_root), ())
    try:
        status, problem = call(arguments.state_dir, "status", timeout=5), ""
    except AdminError as error:
        status, problem = {}, str(error)
    if status.get("mode") == DRA:
        yield from check_dra(status)
        return
    yield check_kubelet(arguments.kubelet_device_plugin_dir / KUBELET_SOCKET)
    yield check_pod_resources(arguments.pod_resources_socket)
    if problem:
        yield Check(Status.FAIL, "plugin", problem)
        return
    yield check_plugin(status)
    mode = Mode(status.get("mode", Mode.PGPU))
    gpus = inventory.gpus if inventory is not None else ()
    clients = {gpu.uuid for gpu in gpus} if mode is Mode.MPS else set(status.get("shared_by_mps", ()))
    if gpus:
        yield check_compute_mode(mode, gpus, arguments.smi_command, clients)
    # Loaded here: whole GPUs have none of it.
    if inventory is not None and clients:
        from kube_accel.cli.validate_shares import check_mps

        paths = MpsPaths(arguments.mps_root, arguments.mps_control_command)
        shared = replace(inventory, gpus=tuple(gpu for gpu in gpus if gpu.uuid in clients))
        yield check_mps(shared, paths, selinux.wanted(arguments.sysfs_root))
    if mode in PROFILES:
        from kube_accel.cli.validate_shares import check_capabilities, check_enforcement, check_ledger

        yield check_enforcement(status)
        if (found := check_capabilities(status)) is not None:
            yield found
        yield check_ledger(arguments.state_dir, PROFILES[mode], gpus, arguments.pod_resources_socket)


def look(sysfs_root: Path, excluded: Path | None = None) -> Snapshot:
    """Return NVML's first answer, or the lack of one within 30 s. ``excluded`` lists GPUs to leave alone."""
    monitor = GpuMonitor(MonitorOptions(sysfs_root=sysfs_root, excluded=excluded))
    monitor.start()
    try:
        deadline = time.monotonic() + _NVML_DEADLINE
        snapshot = monitor.snapshot()
        # One that hangs for one GPU alone is asked without that next.
        while snapshot.driver_state in _NOT_YET and (left := deadline - time.monotonic()) > 0:
            snapshot = monitor.wait(snapshot.version, left)
        # What only metrics ask for may be what a GPU does not report, or may hang: the next answer names it then.
        if snapshot.driver_state is DriverState.READY and monitor.samples(True, True, _SAMPLES_DEADLINE) is None:
            monitor.samples(True, True, _SAMPLES_DEADLINE)
        return monitor.snapshot()
    finally:
        monitor.stop()


def check_nvml(snapshot: Snapshot) -> Check:
    """Check that NVML loads and answers."""
    if snapshot.driver_state is DriverState.READY:
        count = len(snapshot.inventory.gpus) if snapshot.inventory else 0
        excluded = snapshot.inventory.excluded if snapshot.inventory else ()
        left_alone = "; left alone: " + ", ".join(map(str, excluded)) if excluded else ""
        return Check(Status.OK, "nvml", f"answers, {count} GPUs{left_alone}")
    # Why NVML cannot be used has its remedy with it.
    known = snapshot.driver_state in (DriverState.UNAVAILABLE, DriverState.WEDGED)
    remedy = "" if known else "install or reload the NVIDIA driver; in a pod, check runtimeClassName nvidia"
    return Check(Status.FAIL, "nvml", f"{snapshot.driver_state.value}: {snapshot.detail}", remedy)


def check_platform(unsupported: str) -> Iterable[Check]:
    """Check, where NVML describes no GPU, that the machine is one whose GPUs it describes."""
    if unsupported:
        what, _, remedy = unsupported.partition("; ")
        yield Check(Status.FAIL, "platform", what, remedy)


def check_gpus(snapshot: Snapshot, inventory: Inventory) -> Iterable[Check]:
    """Check that every GPU can be read and allocated: a line for each that cannot, and for each missing value."""
    for unreadable in inventory.unreadable:
        what, _, remedy = unreadable.reason.partition("; ")
        name = f" ({unreadable.uuid})" if unreadable.uuid else ""
        yield Check(Status.FAIL, f"GPU {unreadable.index}{name}", what, remedy or _LOOK)
    for gpu in inventory.gpus:
        health = snapshot.health.get(gpu.uuid, GpuHealth(Health.UNKNOWN))
        name = f"GPU {gpu.index} ({gpu.uuid})"
        if health.health is Health.UNHEALTHY:
            yield Check(Status.FAIL, name, health.reason, "" if "; " in health.reason else _LOOK)
        for text in filter(None, (health.advice, *health.faults)):
            yield Check(Status.WARN, name, text)


def check_driver(inventory: Inventory, kernel_module: str | None) -> Check:
    """Check that we support the driver, and that the library is that of the loaded kernel module."""
    version = inventory.driver_version
    if kernel_module is not None and kernel_module != version:
        return Check(
            Status.FAIL,
            "driver",
            f"the library is {version}, the loaded kernel module {kernel_module}",
            "reload the module or reboot",
        )
    major = version.partition(".")[0]
    if major.isdecimal() and int(major) < _OLDEST_DRIVER:
        return Check(Status.WARN, "driver", f"{version} is older than {_OLDEST_DRIVER}", "upgrade the driver")
    return Check(Status.OK, "driver", f"{version}, CUDA {'.'.join(map(str, inventory.cuda_version))}")


def check_pci(on_bus: Collection[str], gpus: Iterable[Gpu | ExcludedGpu]) -> Check:
    """Check that NVML sees every NVIDIA GPU on the PCI bus."""
    missing = sorted(set(on_bus) - {gpu.pci_address for gpu in gpus})
    if missing:
        return Check(
            Status.FAIL,
            "pci",
            f"NVML does not see {', '.join(missing)}",
            "look for NVRM and Xid lines in the kernel log; the GPU may have fallen off the bus",
        )
    if not on_bus:
        return Check(
            Status.WARN, "pci", "no NVIDIA GPU on the bus", "remove the label nvidia-device-enable from the node"
        )
    return Check(Status.OK, "pci", f"NVML sees all {len(on_bus)} NVIDIA GPUs on the bus")


def check_device_nodes(gpus: Collection[Gpu], exists: Callable[[str], bool]) -> Check:
    """Check that the device nodes that a container is given exist."""
    names = (*(f"nvidia{gpu.minor}" for gpu in gpus), *NEEDED_NODES)
    missing = [name for name in names if not exists(name)]
    if missing:
        return Check(
            Status.FAIL,
            "device nodes",
            f"no {', '.join(f'/dev/{name}' for name in missing)}",
            MAKE_NODES,
        )
    return Check(Status.OK, "device nodes", f"all {len(names)} exist")


def check_kubelet(socket: Path) -> Check:
    """Check that kubelet takes registrations."""
    if socket.is_socket():
        return Check(Status.OK, "kubelet", f"{socket} exists")
    return Check(Status.FAIL, "kubelet", f"no socket {socket}", "start kubelet, or set --kubelet-device-plugin-dir")


def check_pod_resources(socket: Path) -> Check:
    """Check that kubelet reports which container holds which device."""
    try:
        listed = PodResourcesClient(socket).list(timeout=5)
    except PodResourcesError as error:
        return Check(Status.FAIL, "pod resources", str(error), "start kubelet, or set --pod-resources-socket")
    return Check(Status.OK, "pod resources", f"{len(listed)} containers hold devices")


def check_plugin(status: Mapping[str, Any]) -> Check:
    """Check that our daemon runs and that kubelet has registered every resource of its mode."""
    # A daemon of an earlier release reports all resources together.
    resources = status.get("resources") or {"": status}
    missing = sorted(name for name, found in resources.items() if not found["registered"])
    if missing:
        what = " and ".join(filter(None, missing)) or "it"
        detail = f"{what} not registered: {status['registration']}"
        return Check(Status.FAIL, "plugin", detail, "see the daemon's log")
    counts = ", ".join(f"{found['healthy']} of {found['devices']} {name}".strip() for name, found in resources.items())
    counts = f"registered, {counts} healthy"
    if status["healthy"] < status["devices"]:
        return Check(Status.WARN, "plugin", counts, "see the annotation kube-accel.io/inventory")
    return Check(Status.OK, "plugin", counts)


def check_dra(status: Mapping[str, Any]) -> Iterator[Check]:
    """Check that the DRA driver is registered, and that it offers what it is to offer."""
    slices, shares, log = status["slices"], status["shares"], "see the driver's log"
    known = f"registered, {len(status['claims'])} claims prepared"
    if not status["registered"]:
        known = f"not registered: {status['registration']}"
    off = "correct that, or set gpu_plugins_dra_shares: false"
    for name, detail, well, remedy in (
        ("driver", known, status["registered"], log),
        ("slices", slices, slices == WELL, log),
        ("shares", shares, shares in (OFFERED, NOT_WANTED), off),
    ):
        yield Check(Status.OK, name, detail) if well else Check(Status.FAIL, name, detail, remedy)
    mig, notes = status["mig"], "; ".join(f"GPU {uuid}: {note}" for uuid, note in status["gpus"].items())
    if mig not in (OFFERED, NOT_WANTED):
        yield Check(Status.FAIL, "MIG devices", mig, "correct that, or leave gpu_plugins_dra_mig_offers empty")
    elif notes:
        yield Check(
            Status.WARN, "MIG devices", notes, "correct that, or leave the GPU out of gpu_plugins_dra_mig_offers"
        )
    else:
        yield Check(Status.OK, "MIG devices", mig)


def check_compute_mode(mode: Mode, gpus: Collection[Gpu], smi: str, clients: Collection[str] = ()) -> Check:
    """Check that every GPU takes several processes where the mode has them.

    GPUs whose UUIDs are in ``clients`` may take them by way of MPS.
    """
    query = [smi, "--query-gpu=uuid,compute_mode", "--format=csv,noheader"]
    try:
        text = subprocess.run(query, capture_output=True, text=True, timeout=_SMI_DEADLINE, check=True).stdout
    except (OSError, subprocess.SubprocessError) as error:
        return Check(Status.WARN, "compute mode", f"not known: {error}", "name the program with --smi-command")
    found = dict(line.split(", ", 1) for line in text.splitlines() if ", " in line)
    good = {Mode.MPS: ("Exclusive_Process",), Mode.PGPU: ("Default", "Exclusive_Process")}.get(mode, ("Default",))
    wanted = {gpu.uuid: ("Exclusive_Process",) if gpu.uuid in clients else good for gpu in gpus}
    bad = [
        f"GPU {gpu.index} {found.get(gpu.uuid, 'not told')}"
        for gpu in gpus
        if found.get(gpu.uuid) not in wanted[gpu.uuid]
    ]
    needs = f"mode {mode.value} needs {' or '.join(good)}"
    if clients and mode is not Mode.MPS:
        needs += ", and GPUs that MPS shares Exclusive_Process"
    if bad:
        return Check(
            Status.FAIL,
            "compute mode",
            f"{', '.join(bad)}; {needs}",
            "restart the unit kube-accel-mps@<uuid>" if clients else f"nvidia-smi -c {good[0].upper()}",
        )
    return Check(Status.OK, "compute mode", f"{' or '.join(good)} on all {len(gpus)} GPUs")


def pci_gpus(sysfs_root: Path) -> tuple[str, ...]:
    """Return the addresses of the NVIDIA GPUs on the bus that are not given to virtual machines."""
    return tuple(
        device.name
        for device in sorted((sysfs_root / "bus/pci/devices").glob("*"))
        if _text(device / "vendor") == _NVIDIA
        and (_text(device / "class") or "").startswith(_DISPLAY_CLASSES)
        and (device / "driver").resolve().name != "vfio-pci"
    )


def _kernel_module_version(sysfs_root: Path) -> str | None:
    return _text(sysfs_root / "module/nvidia/version")


def _text(path: Path) -> str | None:
    try:
        return path.read_text(errors="replace").strip()
    except OSError:
        return None
