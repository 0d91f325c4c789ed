# Apache License 2.0 (see https://www.apache.org/licenses/LICENSE-2.0)
# SPDX-License-Identifier: Apache-2.0
"""The driver's XIDs in words: what each means, whose fault it mostly is, and what to do.

Health, alerts, runbooks and the diagnosis are made from this table, which tests hold them to.
Sources: NVIDIA, "XID Errors" with its catalog for Ampere and newer and its archive for older GPUs, "GPU debug
guidelines", and nverror.h of the open kernel modules, whose numbers are all here that a GPU of a node can have.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, Sequence

PROGRAM, DEVICE, NOBODY = "program", "GPU", ""
"""Whose fault an XID mostly is: a program's on the GPU, or the GPU's, its driver's and its machine's. With nobody's
the GPU works on: NVIDIA's catalog has it ignored."""


@dataclass(frozen=True)
class Xid:
    """An XID: its number, meaning, fault and remedy."""

    number: int
    meaning: str
    fault: str
    """``PROGRAM``, ``DEVICE`` or ``NOBODY``."""
    remedy: str
    alert: str = "GpuXidCritical"
    """The alert that it raises where it is the GPU's fault; empty for none."""

    @property
    def verdict(self) -> str:
        """Return what it means, and whose fault it mostly is."""
        return f"{self.meaning}; usually the fault of the {self.fault}" if self.fault else self.meaning


_DEBUG = "Run the program under compute-sanitizer. If it works on another GPU, check this GPU."
_RESET = (
    "End the GPU's pods, make the plugin release the GPU (kube-accel quiesce), and reset it (nvidia-smi --gpu-reset),"
    " or reboot the node. If the XID returns, replace the GPU."
)
_REPLACE = "Drain the node, and replace the GPU. It has no spare memory left."
_REBOOT = "Drain the node and power-cycle it. If the XID returns, check the GPU's power and slot, or replace the GPU."
_FIRMWARE = "Reset the GPU or reboot the node, and upgrade the driver. If the XID returns, run nvidia-bug-report.sh."
_NOTHING = "Look for the XID before this one. This one only shows that a process ended."

_LINK = (
    "Read the link and the severity in the kernel's line. If the error is fatal or returns, drain and reset the GPUs of"
    " the link. Then check the fabric manager, switches, and cables."
)
_INFORM = "Look at the XID that came with this one, and at nvidia-smi -q."
_AGAIN = (
    "Start the program again. If other programs get this XID on the GPU too, reset the GPU and upgrade the driver. If"
    " the XID returns, replace the GPU."
)
_SLOT = "Upgrade the driver. Check the GPU's PCIe slot and risers."
_LATER = "Reset the GPU after its pods have ended."
_IDLE = "Do nothing: the GPU still works. If the XID returns often, upgrade the driver."
_SENSITIVE = "Drain and reset the GPUs of the link, and start the confidential virtual machines again."
_SMOOTHING = "If the site bears swings of power, do nothing. Otherwise "
_IGNORE = "Do nothing."

_ENGINES: Dict[str, Sequence[int]] = {
    "copy": (39, 40, 41, 70, 71, 72, 75, 76, 77, 85, *range(126, 136)),
    "video decoding (NVDEC)": (68, 83, 84, 88, 89, 96, 97, 98),
    "video encoding (NVENC)": (47, 65, 73, 142),
    "JPEG decoding (NVJPG)": (82, *range(99, 106)),
    "optical flow (OFA)": (86, 139),
    "deep learning (DLA)": (138, 152, 153),
    "video": (20, 21, 22, 27, 28, 29, 34, 35, 36, 42, 60),
}
"""XIDs of the engines that run no kernels. NVIDIA's catalog has the program started again."""

_TABLE: Sequence[Xid] = (
    Xid(8, "the GPU stopped processing a program's work", PROGRAM, _AGAIN),
    Xid(11, "invalid or corrupted push buffer", PROGRAM, _AGAIN),
    Xid(12, "the driver could not handle an exception of the GPU", DEVICE, _FIRMWARE, ""),
    Xid(13, "graphics engine exception: a kernel made an illegal access", PROGRAM, _DEBUG),
    Xid(14, "a test error, not a real one", NOBODY, _IGNORE),
    Xid(16, "the display engine hung", DEVICE, _IDLE, ""),
    Xid(18, "the GPU cannot write to the memory of the host: bus mastering is off", DEVICE, _REBOOT),
    Xid(19, "display engine error", DEVICE, _IDLE, ""),
    Xid(23, "the logging of errors was turned on", NOBODY, _IGNORE),
    Xid(24, "a semaphore of the GPU timed out", DEVICE, _FIRMWARE, ""),
    Xid(25, "invalid or illegal push buffer", PROGRAM, _AGAIN),
    Xid(26, "the GPU's memory interface timed out", DEVICE, _RESET),
    Xid(30, "the GPU used a bad address for a semaphore", DEVICE, _FIRMWARE, ""),
    Xid(31, "memory page fault: a kernel used a bad address", PROGRAM, _DEBUG),
    Xid(32, "invalid or corrupted push buffer", DEVICE, _SLOT),
    Xid(33, "internal micro-controller error", DEVICE, _FIRMWARE),
    Xid(37, "driver firmware error: a program used a method that the firmware lacks", NOBODY, _IDLE),
    Xid(38, "driver firmware error", DEVICE, _FIRMWARE),
    Xid(43, "the GPU stopped processing a program's work", PROGRAM, _DEBUG),
    Xid(44, "graphics engine fault during a context switch", NOBODY, _IDLE),
    Xid(45, "work was cleaned up after a process ended", PROGRAM, _NOTHING),
    Xid(46, "the GPU stopped processing, and its engine did not recover", DEVICE, _RESET),
    Xid(48, "double-bit ECC error", DEVICE, _RESET),
    Xid(54, "the board has no auxiliary power", DEVICE, "Turn the node off, and connect the power cables of the GPU."),
    Xid(56, "display engine error", DEVICE, _IDLE, ""),
    Xid(57, "the interface to the GPU's memory could not be set up", DEVICE, _RESET),
    Xid(58, "the interface to the GPU's memory is unstable", DEVICE, _RESET),
    Xid(59, "internal micro-controller error", DEVICE, _FIRMWARE),
    Xid(61, "internal micro-controller breakpoint", DEVICE, _RESET),
    Xid(62, "internal micro-controller halt", DEVICE, _RESET),
    Xid(
        63, "row remapping recorded", DEVICE, "Reset the GPU when its pods have ended. The reset replaces the row.", ""
    ),
    Xid(64, "row remapping failed", DEVICE, _REPLACE),
    Xid(66, "the driver made an illegal access", NOBODY, _IDLE),
    Xid(67, "the driver made an illegal access", NOBODY, _IDLE),
    Xid(69, "graphics engine class error", PROGRAM, _DEBUG),
    Xid(74, "NVLink error", DEVICE, "Drain and reset the GPUs of the link. Then check bridges and switches."),
    Xid(
        78,
        "a vGPU could not be started",
        DEVICE,
        "Install drivers on the hypervisor and in the guest that support each other.",
        "",
    ),
    Xid(79, "GPU has fallen off the bus", DEVICE, _REBOOT),
    Xid(80, "data was corrupted on its way to the GPU", DEVICE, _SLOT),
    Xid(81, "VGA subsystem error", DEVICE, _RESET, ""),
    Xid(87, "a report of the driver for NVIDIA's telemetry", NOBODY, _IGNORE),
    Xid(90, "level 2 cache error", DEVICE, _RESET),
    Xid(92, "high rate of single-bit ECC errors", DEVICE, "Watch the rate. If it stays high, replace the GPU."),
    Xid(
        93,
        "the driver did not write the InfoROM: it reached its limit of wear",
        NOBODY,
        "Clear the limit that was set with nvflash.",
    ),
    Xid(
        94,
        "contained memory error",
        DEVICE,
        "Restart the pod, and reset the GPU after all its pods have ended.",
        "GpuXidContained",
    ),
    Xid(95, "uncontained memory error", DEVICE, _RESET),
    Xid(106, "a test message of the management interface (SMBPBI)", NOBODY, _IGNORE),
    Xid(107, "a silent test message of the management interface (SMBPBI)", NOBODY, _IGNORE),
    Xid(
        108,
        "NVLink could not translate an address: a program used memory of another GPU without permission",
        PROGRAM,
        _DEBUG,
    ),
    Xid(109, "a context switch timed out", PROGRAM, _DEBUG),
    Xid(110, "security fault: the GPU refused firmware or an access", DEVICE, _RESET),
    *(Xid(number, "display error", NOBODY, _IDLE) for number in range(111, 119)),
    Xid(119, "GSP firmware timeout", DEVICE, _FIRMWARE),
    Xid(120, "GSP firmware error", DEVICE, _FIRMWARE),
    Xid(121, "corrected C2C link error", DEVICE, _LATER),
    Xid(122, "the flash memory of the board could not be read", DEVICE, _REBOOT),
    Xid(123, "the flash memory of the board could not be written", DEVICE, _REBOOT),
    Xid(124, "the flash memory of the board could not be erased", DEVICE, _REBOOT),
    Xid(125, "the file system of the InfoROM is damaged", DEVICE, _REBOOT),
    Xid(136, "NVLink training failed", DEVICE, _LINK),
    Xid(137, "NVLink access error: a program used memory of another GPU without permission", PROGRAM, _DEBUG),
    Xid(140, "unrecovered ECC error", DEVICE, _RESET),
    Xid(141, "CUDA fast path error", NOBODY, _IDLE),
    Xid(143, "GPU initialization failure", DEVICE, _REBOOT),
    Xid(144, "NVLink error in the link's SAW unit", DEVICE, _LINK),
    Xid(145, "NVLink error in the link's RLW unit", DEVICE, _LINK),
    Xid(146, "NVLink error in the link's TLW unit", DEVICE, _LINK),
    Xid(147, "NVLink error in the link's TREX unit", DEVICE, _LINK),
    Xid(148, "NVLink error in the control of the link's power", DEVICE, _LINK),
    Xid(149, "NVLink error in the network interface (NETIR)", DEVICE, _LINK),
    Xid(150, "NVLink error in the link's management engine (MSE)", DEVICE, _LINK),
    Xid(151, "the key rotation of confidential computing failed", DEVICE, _REBOOT),
    Xid(154, "the driver changed its recovery advice", DEVICE, "Do what nvidia-smi -q shows as GPU Recovery Action."),
    Xid(155, "NVLink error defined by software", DEVICE, _LINK),
    Xid(156, "a part of the GPU was taken out of use", DEVICE, "Reset the GPU after its pods have ended.", ""),
    Xid(157, "a part of the GPU could not be taken out of use", DEVICE, _REPLACE),
    Xid(158, "the GPU did not answer in time", DEVICE, _RESET),
    Xid(159, "the link to the CPU (CHI) failed without loss of data", DEVICE, _LATER),
    Xid(160, "a channel of the GPU was taken out of use", DEVICE, _LATER, ""),
    Xid(161, "a channel of the GPU could not be taken out of use", DEVICE, _FIRMWARE),
    Xid(162, "power smoothing works again", NOBODY, _IGNORE),
    Xid(163, "power smoothing is off", NOBODY, _SMOOTHING + "check the GPU's temperature, and reset the GPU."),
    Xid(164, "power smoothing nears the end of its life", NOBODY, _SMOOTHING + "plan to replace the GPU."),
    Xid(165, "power smoothing reached the end of its life", NOBODY, _SMOOTHING + "replace the GPU."),
    Xid(166, "NVLink carried data before its encryption was set up", DEVICE, _SENSITIVE),
    Xid(167, "PCI Express timed out and did not recover", DEVICE, _REBOOT),
    Xid(
        168,
        "a part of the GPU's memory is faulty and not used",
        DEVICE,
        "Turn on ECC, so that the GPU can remap rows, and reboot the node.",
    ),
    Xid(169, "internal micro-controller halt (SEC2)", DEVICE, _RESET),
    Xid(170, "NVLink error with confidential computing", DEVICE, _SENSITIVE),
    Xid(171, "the GPU's DRAM had the error of XID 48", DEVICE, _INFORM, ""),
    Xid(172, "an SRAM of the GPU had the error of XID 48", DEVICE, _INFORM, ""),
    Xid(173, "C2C link failure: the link to the CPU is down", DEVICE, _REBOOT),
    Xid(174, "a program's work was ended with its process", PROGRAM, _NOTHING),
    Xid(175, "memory subsystem error", DEVICE, _RESET),
    Xid(176, "many corrected PCI Express errors", DEVICE, _SLOT),
)
_OF_ENGINES = (
    Xid(number, f"exception in {engine} engine {index}", PROGRAM, _AGAIN)
    for engine, numbers in _ENGINES.items()
    for index, number in enumerate(numbers)
)
XIDS: Dict[int, Xid] = {xid.number: xid for xid in sorted((*_TABLE, *_OF_ENGINES), key=lambda xid: xid.number)}

OF_PROGRAMS = frozenset(xid.number for xid in XIDS.values() if xid.fault == PROGRAM)
"""XIDs that a faulty program causes; the GPU is fine."""
HARMLESS = frozenset(xid.number for xid in XIDS.values() if xid.fault != DEVICE)
"""XIDs that leave the GPU in use: those of programs, and those without fault."""


def described(number: int) -> Xid:
    """Return the row of an XID; of one that is not in the table, where to look."""
    unknown = Xid(number, "an unknown XID", NOBODY, "Look up the number in NVIDIA's list of XID errors.", "")
    return XIDS.get(number, unknown)


def alerting(alert: str) -> Sequence[int]:
    """Return the XIDs that raise this alert, in order."""
    return [xid.number for xid in XIDS.values() if xid.fault == DEVICE and xid.alert == alert]
