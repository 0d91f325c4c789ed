# Apache License 2.0 (see https://www.apache.org/licenses/LICENSE-2.0)
# SPDX-License-Identifier: Apache-2.0
"""The driver's XIDs in words: what each means, whose fault it mostly is, and what to do.

Health, alerts, runbooks and the diagnosis are made from this table, which tests hold them to.
Source: NVIDIA, "XID Errors" with its catalog, and "GPU debug guidelines".
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Dict, Sequence

PROGRAM, DEVICE = "program", "GPU"
"""Whose fault an XID mostly is: a program's on the GPU, or the GPU's, its driver's and its machine's."""


@dataclass(frozen=True)
class Xid:
    """One number."""

    number: int
    meaning: str
    fault: str
    """``PROGRAM`` or ``DEVICE``."""
    remedy: str
    alert: str = "GpuXidCritical"
    """The alert that it raises where it is not a program's fault; empty for none."""


_DEBUG = "Run the program under compute-sanitizer; where it runs on another GPU, look at this one."
_RESET = (
    "Drain the GPU's pods, have its plugin let go of it (kube-accel quiesce) and reset it (nvidia-smi --gpu-reset), or"
    " reboot the node; replace it if this returns."
)
_REPLACE = "Drain the node and have the GPU replaced: it has no spare memory left."
_REBOOT = "Drain the node and power-cycle it; if this returns, look at the card's power and slot, or replace it."
_FIRMWARE = "Reset the GPU or reboot the node, then upgrade the driver; collect nvidia-bug-report if this returns."
_NOTHING = "Nothing now: it is the trace of a process that was ended. Look for the XID before it."

_LINK = (
    "Read link and severity in the kernel's line. Where it is fatal or returns, drain and reset the link's GPUs; then"
    " look at fabric manager, switches and cables."
)
_INFORM = "Nothing at once: look at the XID that came with it, and at nvidia-smi -q."

_TABLE: Sequence[Xid] = (
    Xid(13, "graphics engine exception: a kernel went where it may not", PROGRAM, _DEBUG),
    Xid(31, "memory page fault: a kernel used a bad address", PROGRAM, _DEBUG),
    Xid(32, "invalid or corrupted push buffer", DEVICE, "Upgrade the driver; look at the card's PCIe slot and risers."),
    Xid(38, "driver firmware error", DEVICE, _FIRMWARE),
    Xid(43, "the GPU stopped processing a program's work", PROGRAM, _DEBUG),
    Xid(45, "work was cleaned up after a process ended", PROGRAM, _NOTHING),
    Xid(46, "the GPU stopped processing, and its engine did not come back", DEVICE, _RESET),
    Xid(48, "double-bit ECC error", DEVICE, _RESET),
    Xid(61, "internal micro-controller breakpoint", DEVICE, _RESET),
    Xid(62, "internal micro-controller halt", DEVICE, _RESET),
    Xid(63, "row remapping recorded", DEVICE, "Reset the GPU when its pods have ended: the row is replaced then.", ""),
    Xid(64, "row remapping failed", DEVICE, _REPLACE),
    Xid(68, "video decoder exception", PROGRAM, _DEBUG),
    Xid(69, "graphics engine class error", PROGRAM, _DEBUG),
    Xid(74, "NVLink error", DEVICE, "Drain and reset the link's GPUs; then look at bridges and switches."),
    Xid(79, "GPU has fallen off the bus", DEVICE, _REBOOT),
    Xid(92, "high rate of single-bit ECC errors", DEVICE, "Watch it; have the GPU replaced if the rate stays."),
    Xid(
        94,
        "contained memory error",
        DEVICE,
        "Start the pod again, and reset the GPU when its pods have ended.",
        "GpuXidContained",
    ),
    Xid(95, "uncontained memory error", DEVICE, _RESET),
    Xid(109, "a context switch timed out", PROGRAM, _DEBUG),
    Xid(110, "security fault: the GPU refused firmware or an access", DEVICE, _RESET),
    Xid(119, "GSP firmware timeout", DEVICE, _FIRMWARE),
    Xid(120, "GSP firmware error", DEVICE, _FIRMWARE),
    Xid(121, "C2C link error", DEVICE, _RESET),
    Xid(136, "NVLink training failed", DEVICE, _LINK),
    Xid(137, "NVLink access error: a program used memory of another GPU that it may not", PROGRAM, _DEBUG),
    Xid(140, "unrecovered ECC error", DEVICE, _RESET),
    Xid(143, "GPU initialization failure", DEVICE, _REBOOT),
    Xid(144, "NVLink error in the link's SAW unit", DEVICE, _LINK),
    Xid(145, "NVLink error in the link's RLW unit", DEVICE, _LINK),
    Xid(146, "NVLink error in the link's TLW unit", DEVICE, _LINK),
    Xid(147, "NVLink error in the link's TREX unit", DEVICE, _LINK),
    Xid(148, "NVLink error in the control of the link's power", DEVICE, _LINK),
    Xid(149, "NVLink error in the network interface (NETIR)", DEVICE, _LINK),
    Xid(150, "NVLink error in the link's management engine (MSE)", DEVICE, _LINK),
    Xid(151, "the key rotation of confidential computing failed", DEVICE, _REBOOT),
    Xid(154, "the driver's advice changed", DEVICE, "Do what nvidia-smi -q names as GPU Recovery Action."),
    Xid(155, "NVLink error that software defined", DEVICE, _LINK),
    Xid(156, "a part of the GPU was taken out of use", DEVICE, "Reset the GPU when its pods have ended.", ""),
    Xid(157, "a part of the GPU could not be taken out of use", DEVICE, _REPLACE),
    Xid(158, "the GPU did not answer in time", DEVICE, _RESET),
    Xid(171, "names the memory of XID 48: the GPU's DRAM", DEVICE, _INFORM, ""),
    Xid(172, "names the memory of XID 48: an SRAM of the GPU", DEVICE, _INFORM, ""),
)
XIDS: Dict[int, Xid] = {xid.number: xid for xid in _TABLE}

OF_PROGRAMS = frozenset(xid.number for xid in _TABLE if xid.fault == PROGRAM)
"""XIDs that a faulty program causes; the GPU is fine."""


def alerting(alert: str) -> Sequence[int]:
    """Return the XIDs that raise this alert, in order."""
    return [xid.number for xid in _TABLE if xid.fault == DEVICE and xid.alert == alert]
