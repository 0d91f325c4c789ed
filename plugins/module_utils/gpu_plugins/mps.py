# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which MPS control daemons a node is to have. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, List, Mapping, Sequence

from ..shared.registers import lines

_UNITS = "kube-accel-mps@"
_TEMPLATE = f"{_UNITS}.service"
_RECORD = "{}.command"
_UNIT = re.compile(r"kube-accel-mps@(.+)\.service")


@dataclass(frozen=True)
class Seen:
    """What was seen of a host."""

    offer: Mapping[str, Any]
    """What its node is to offer."""
    looked: Mapping[str, Any] = field(default_factory=dict)
    """What ``mps_look.sh`` printed: units of control daemons, and records of those that the command has set up."""
    programs: Sequence[str] = ()
    """Programs of the driver that run and look after a control daemon."""
    found: Mapping[str, Any] = field(default_factory=dict)
    """The answer of ``ls`` to where systemd finds programs."""
    removed: bool = False
    """Whether the plugins are uninstalled."""
    check_mode: bool = False
    driver: bool = True
    """Whether the driver tells about the GPUs."""


@dataclass(frozen=True)
class Mps:
    """Which control daemons a node is to have."""

    used: bool
    """Whether MPS shares GPUs of the node."""
    wanted: List[str]
    """UUIDs of GPUs that are to have a control daemon."""
    unwanted: List[str]
    """UUIDs of GPUs that have one, and are to have none."""
    kept: List[str]
    """UUIDs of GPUs that have one, and are to have it."""
    outdated: List[str]
    """Those of ``kept`` whose control daemon another command has set up, so that it is to be reloaded."""
    foretold: List[str]
    """What a dry run foretells of ``wanted`` by itself: systemd knows no unit whose file is still to be written.

    Where the driver is still to come, one entry stands for GPUs that nobody knows yet.
    """
    present: bool
    """Whether there is a unit of a control daemon."""
    missing: List[str]
    """Programs that the host lacks."""


def mps(seen: Seen) -> Mps:
    """Return which control daemons a node is to have."""
    used = bool(seen.offer["by_mps"]) and not seen.removed
    wanted: List[str] = list(seen.offer["mps_gpus"]) if used else []
    looked, found = _names(seen.looked), _names(seen.found)
    units = [name for name in looked if name.startswith(_UNITS)]
    running = list(dict.fromkeys(match[1] for match in map(_UNIT.fullmatch, units) if match))
    kept = [uuid for uuid in running if uuid in wanted]
    unknown = seen.check_mode and used and _TEMPLATE not in units
    return Mps(
        used,
        wanted,
        [uuid for uuid in running if uuid not in wanted],
        kept,
        [uuid for uuid in kept if _RECORD.format(uuid) not in looked],
        (wanted if seen.driver else ["each GPU"]) if unknown else [],
        bool(units),
        [name for name in seen.programs if name not in found],
    )


def _names(register: Mapping[str, Any]) -> List[str]:
    return [line.rpartition("/")[2] for line in lines(register)]
