# Apache License 2.0 (see https://www.apache.org/licenses/LICENSE-2.0)
# SPDX-License-Identifier: Apache-2.0
"""NVML by ctypes: its library, its functions by name, its errors in words. Names and numbers are those of nvml.h."""

from __future__ import annotations

import ctypes
import os
import platform
import re
from typing import Any, List, Tuple

LIBRARY = "libnvidia-ml.so.1"

_FUNCTION_NOT_FOUND = 13
_UNKNOWN = 999
_ADDRESS = re.compile(r"[0-9a-f]{8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-9a-f]\Z")
MAX_MIG_DEVICES = 64
"""Slots of a GPU that are looked at, however many it claims: there are 7 as of 2026."""
_TEXT = 96
_CACHE = "/etc/ld.so.cache"
_ELF_HEADER = 20
"""Bytes of an ELF file up to its machine."""
_MACHINES = {3: "x86", 21: "ppc64", 40: "arm", 62: "x86-64", 183: "aarch64", 243: "riscv"}  # elf.h, EM_*
_REMEDIES = {
    9: "the NVIDIA kernel driver is not loaded: install it, or load it with 'modprobe nvidia' and see 'dmesg'",
    18: "the NVIDIA library and the loaded kernel driver are of different versions: reload the modules or reboot",
}
_NAMES = {
    1: "uninitialized",
    3: "not supported",
    4: "no permission",
    6: "not found",
    9: "driver not loaded",
    12: "library not found",
    13: "function not found",
    15: "GPU is lost",
    16: "reset required",
    19: "in use",
    18: "library and driver versions differ",
    23: "insufficient resources",
    999: "unknown error",
}


class NvmlError(Exception):
    """NVML refused a call."""

    def __init__(self, code: int, text: str) -> None:
        super().__init__(f"{text}, {_NAMES.get(code, 'error')} ({code})")
        self.code = code


class NoAnswer(Exception):
    """The process that was to ask NVML did not answer. Says why, and what to do."""


class _Pci(ctypes.Structure):
    """nvmlPciInfo_t."""

    _fields_ = (
        ("busIdLegacy", ctypes.c_char * 16),
        ("domain", ctypes.c_uint),
        ("bus", ctypes.c_uint),
        ("device", ctypes.c_uint),
        ("pciDeviceId", ctypes.c_uint),
        ("pciSubSystemId", ctypes.c_uint),
        ("busId", ctypes.c_char * 32),
    )


def found(library: str, driver_root: str) -> str:
    """Return the library's path below the driver's root. Its plain name where it is not, for the linker."""
    if driver_root.strip("/") and "/" not in library:
        for directory in ("usr/lib64", f"usr/lib/{platform.machine()}-linux-gnu", "usr/lib"):
            path = os.path.join(driver_root, directory, library)
            if os.path.exists(path):
                return path
    return library


def opened(library: str) -> Nvml:
    """Return the library, initialised. Raises NoAnswer with the remedy."""
    try:
        nvml = Nvml(library)
        nvml.call("nvmlInit_v2")
    except OSError as error:
        why = unloadable(library) or str(error)
        raise NoAnswer(f"{library} cannot be loaded ({why}): install the NVIDIA driver") from error
    except NvmlError as error:
        raise NoAnswer(unusable(error)) from error
    return nvml


def unusable(error: NvmlError) -> str:
    """Return why NVML as a whole cannot be used, with the remedy."""
    remedy = _REMEDIES.get(error.code, "NVML cannot be used; nvidia-smi may show more")
    return f"{remedy} (NVML: {error})"


def unloadable(library: str = LIBRARY) -> str:
    """Return why the loader cannot load the library although it is there, with its path; empty where it is not.

    The loader passes over files of other machines and such that it may not read, and says "not found" in the end.
    """
    for path in _copies(library):
        try:
            ctypes.CDLL(path)
        except OSError as error:
            said = _foreign(path) or str(error)
            return said if path in said else f"{path}: {said}"
    return ""


def _copies(library: str) -> List[str]:
    """Return where the loader looks for it and it is, in its order: ld.so(8)."""
    if "/" in library:
        return [library] if os.path.lexists(library) else []
    triplet = f"{platform.machine()}-linux-gnu"
    directories = [entry for entry in os.environ.get("LD_LIBRARY_PATH", "").replace(";", ":").split(":") if entry]
    try:
        with open(_CACHE, "rb") as file:
            cached = re.findall(rb"/[^\0]*/" + re.escape(library.encode()) + rb"(?=\0)", file.read())
    except OSError:
        cached = []
    defaults = (f"/lib/{triplet}", f"/usr/lib/{triplet}", "/lib64", "/usr/lib64", "/lib", "/usr/lib")
    paths = [
        *(os.path.join(directory, library) for directory in directories),
        *(os.fsdecode(path) for path in cached),
        *(os.path.join(directory, library) for directory in defaults),
    ]
    return [path for path in dict.fromkeys(paths) if os.path.lexists(path)]


def _foreign(path: str) -> str:
    """Return that a library is of another machine than this process; empty where it is not."""
    try:
        with open(path, "rb") as theirs, open("/proc/self/exe", "rb") as ours:
            found, wanted = theirs.read(_ELF_HEADER), ours.read(_ELF_HEADER)
    except OSError:
        return ""
    if len(found) < _ELF_HEADER or found[:4] != b"\x7fELF":
        return "no ELF file"
    machine, mine = _machine(found), _machine(wanted)
    return f"it is a library for {machine}, and this machine runs {mine}" if machine != mine else ""


def _machine(header: bytes) -> str:
    """Return an ELF file's machine, by e_ident[EI_CLASS] and e_machine."""
    order: Any = "little" if header[5] == 1 else "big"
    number = int.from_bytes(header[18:20], order)
    bits = {1: "32-bit", 2: "64-bit"}.get(header[4], "odd")
    return f"{bits} {_MACHINES.get(number, f'machine {number}')}"


class Nvml:
    """The library, its functions by name. Raises OSError when it cannot be loaded."""

    def __init__(self, library: str) -> None:
        self._library = ctypes.CDLL(library)

    def call(self, name: str, *arguments: Any) -> None:  # noqa: ANN401
        """Call a function, raise NvmlError when it or the library refuses."""
        try:
            function = getattr(self._library, name)
        except AttributeError:
            raise NvmlError(_FUNCTION_NOT_FOUND, f"{name} is not in this driver") from None
        code = function(*arguments)
        if code != 0:
            raise NvmlError(code, f"{name} failed")

    def number(self, name: str, *arguments: Any) -> int:  # noqa: ANN401
        """Return the unsigned integer a function gives by its last parameter."""
        value = ctypes.c_uint()
        self.call(name, *arguments, ctypes.byref(value))
        return value.value

    def text(self, name: str, *arguments: Any) -> str:  # noqa: ANN401
        """Return the string a function writes into its last two parameters."""
        buffer = ctypes.create_string_buffer(_TEXT)
        self.call(name, *arguments, buffer, ctypes.c_uint(_TEXT))
        return buffer.value.decode(errors="replace")

    def handle(self, index: int) -> ctypes.c_void_p:
        """Return a GPU's handle."""
        handle = ctypes.c_void_p()
        self.call("nvmlDeviceGetHandleByIndex_v2", ctypes.c_uint(index), ctypes.byref(handle))
        return handle

    def pci_address(self, name: str, *arguments: Any) -> str:  # noqa: ANN401
        """Return a PCI address in sysfs spelling: NVML writes eight digits of domain, in capitals."""
        pci = _Pci()
        self.call(name, *arguments, ctypes.byref(pci))
        address = pci.busId.decode(errors="replace").lower()
        if _ADDRESS.match(address) is None:
            raise NvmlError(_UNKNOWN, f"{name} answered {address!r}, which is no PCI address")
        return re.sub("^0000(?=.{4}:)", "", address)

    def pci_ids(self, handle: ctypes.c_void_p) -> Tuple[int, int]:
        """Return a GPU's PCI device and vendor id in one number, as 0x233510DE, and those of its board."""
        pci = _Pci()
        self.call("nvmlDeviceGetPciInfo_v3", handle, ctypes.byref(pci))
        return int(pci.pciDeviceId), int(pci.pciSubSystemId)
