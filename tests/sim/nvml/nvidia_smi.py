# SPDX-License-Identifier: Apache-2.0
"""Stands in for nvidia-smi on a simulated host: ``-L``, GPUs and processes as CSV, ``-c``, its messages and codes."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pynvml

_NO_DRIVER = (
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. "
    "Make sure that the latest NVIDIA driver is installed and running.\n"
)
_NO_LIBRARY = "NVIDIA-SMI couldn't find libnvidia-ml.so library in your system.\n"
_BAD_ARGUMENTS = 2
_NO_DEVICES = 6

Show = Callable[[Any, int], list[str]]
"""What to print of a GPU: handle, index."""

_COMPUTE_MODES = {"DEFAULT": 0, "PROHIBITED": 2, "EXCLUSIVE_PROCESS": 3}
_SHOWN_MODES = {0: "Default", 2: "Prohibited", 3: "Exclusive_Process"}

_FIELDS: dict[str, Callable[[Any], object]] = {
    "index": pynvml.nvmlDeviceGetIndex,
    "uuid": pynvml.nvmlDeviceGetUUID,
    "name": pynvml.nvmlDeviceGetName,
    "pci.bus_id": lambda gpu: pynvml.nvmlDeviceGetPciInfo(gpu).busId,
    "driver_version": lambda _: pynvml.nvmlSystemGetDriverVersion(),
    "compute_mode": lambda gpu: _SHOWN_MODES[pynvml.nvmlDeviceGetComputeMode(gpu)],
    "memory.total": lambda gpu: pynvml.nvmlDeviceGetMemoryInfo(gpu).total >> 20,
}


_UNITS = {"memory.total": " MiB"}


def _mig_lines(gpu: Any) -> list[str]:
    lines: list[str] = []
    for slot in range(pynvml.nvmlDeviceGetMaxMigDeviceCount(gpu)):
        try:
            mig = pynvml.nvmlDeviceGetMigDeviceHandleByIndex(gpu, slot)
        except pynvml.NVMLError_NotFound:
            continue
        profile = pynvml.nvmlDeviceGetName(mig).rpartition(" ")[2]
        lines.append(f"  MIG {profile:<12}Device {len(lines):>2}: (UUID: {pynvml.nvmlDeviceGetUUID(mig)})")
    return lines


def _list(gpu: Any, index: int) -> list[str]:
    name, uuid = pynvml.nvmlDeviceGetName(gpu), pynvml.nvmlDeviceGetUUID(gpu)
    return [f"GPU {index}: {name} (UUID: {uuid})", *_mig_lines(gpu)]


def _each_gpu(show: Show, chosen: str) -> int:
    """Prints what ``show`` says of the chosen GPU or all; the code of the last that could not be asked, else 0."""
    code = 0
    for index in range(pynvml.nvmlDeviceGetCount()):
        try:
            gpu = pynvml.nvmlDeviceGetHandleByIndex(index)
            if chosen in ("", pynvml.nvmlDeviceGetUUID(gpu)):
                print("".join(f"{line}\n" for line in show(gpu, index)), end="")
        except pynvml.NVMLError as error:
            print(f"Unable to determine the device handle for GPU{index}: {error}")
            code = error.value
    return code


def _query(names: list[str], *, units: bool) -> Show:
    return lambda gpu, _: [", ".join(f"{_FIELDS[name](gpu)}{units * _UNITS.get(name, '')}" for name in names)]


def _processes(gpu: Any, index: int) -> list[str]:
    return [str(process.pid) for process in pynvml.nvmlDeviceGetComputeRunningProcesses(gpu)]


def _set_compute_mode(wanted: int) -> Show:
    from sim.nvml import topology

    def show(gpu: Any, index: int) -> list[str]:
        uuid, bus = pynvml.nvmlDeviceGetUUID(gpu), pynvml.nvmlDeviceGetPciInfo(gpu).busId
        with topology.edit(Path(os.environ["GPUSIM_FILE"])) as edited:
            next(item for item in edited.gpus if item.uuid == uuid).compute_mode = wanted
        return [f"Set compute mode to {_SHOWN_MODES[wanted].upper()} for GPU {bus}.", "All done."]

    return show


def main(arguments: list[str]) -> int:
    """Runs one command line and returns the exit code: 0, or NVML's (9 no driver, 12 no library, 15 GPU lost)."""
    show: Show
    chosen = ""
    if arguments[:1] == ["-i"]:
        chosen, arguments = arguments[1], arguments[2:]
    match arguments:
        case ["-L"]:
            show = _list
        case ["-c", mode] if mode in _COMPUTE_MODES:
            show = _set_compute_mode(_COMPUTE_MODES[mode])
        case [query, "--format=csv,noheader,nounits" | "--format=csv,noheader"] if query.startswith("--query-gpu="):
            names = query.partition("=")[2].split(",")
            unknown = [name for name in names if name not in _FIELDS]
            if unknown:
                print(f'Field "{unknown[0]}" is not a valid field to query.')
                return _BAD_ARGUMENTS
            show = _query(names, units="nounits" not in arguments[1])
        case ["--query-compute-apps=pid", "--format=csv,noheader"]:
            show = _processes
        case _:
            print("Invalid combination of input arguments. Please run 'nvidia-smi -h' for help.")
            return _BAD_ARGUMENTS
    try:
        pynvml.nvmlInit()
        if pynvml.nvmlDeviceGetCount() == 0:
            print("No devices were found")
            return _NO_DEVICES
        return _each_gpu(show, chosen)
    except pynvml.NVMLError_LibraryNotFound as error:
        print(_NO_LIBRARY)
        return int(error.value)
    except pynvml.NVMLError_DriverNotLoaded as error:
        print(_NO_DRIVER)
        return int(error.value)
    except pynvml.NVMLError as error:
        print(f"Failed to initialize NVML: {error}")
        return int(error.value) & 0xFF


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
