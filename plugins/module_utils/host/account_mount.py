# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is to become of the file system that bounds the accounts of containers. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Dict, Iterator, List, Optional, Tuple

SOURCE = "kube-accel-accounts"
"""What a mount of ours is of; by it ours is known from an administrator's."""
_INODES_PER_MIB = 64
"""An account has 195 KiB, and with its directory, policy and build four inodes; a spare one as many."""
_LATER = "with the next restart of the host, or a run while none is there: 10 minutes after the last container ended"
_UNITS = {"k": 10, "m": 20, "g": 30}
_PLAIN = re.compile(r"[A-Za-z0-9:_]|(?<!^)\.")


@dataclass(frozen=True)
class Mount:
    """A file system, as the kernel lists it."""

    point: str
    device: str
    source: str
    options: Dict[str, str]
    """Those of the file system, with what they say."""


@dataclass(frozen=True)
class Found:
    """What a host has."""

    path: str
    """The directory of the accounts, without a symbolic link in it."""
    mount: Optional[Mount]
    """What is mounted there."""
    below: str
    """Device of the file system that the directory is on without it."""
    accounts: int
    """Containers that have an account there."""
    used_bytes: int
    """What these take."""
    systemd: bool


@dataclass(frozen=True)
class Plan:
    """What to do, and how far the accounts are bounded now."""

    unit: str
    """What the unit is to be: ``enabled``, to mount it at each start of the host, ``disabled`` or ``absent``."""
    action: str
    """What the unit is to do now: ``start``, ``reload``, ``stop`` or ``none``."""
    bounded: bool
    """Whether a file system of their own bounds the accounts now."""
    waits: bool
    """Whether what is wanted cannot be had now."""
    says: str
    """How that is, and why; a sentence or two."""


def mounts(text: str) -> Iterator[Mount]:
    """Yield the mounts of a ``mountinfo`` (proc(5)), oldest first; lines that cannot be read are passed over."""
    for line in text.splitlines():
        before, separator, after = line.partition(" - ")
        fields, rest = before.split(" "), after.split(" ")
        if not separator or len(fields) < 6 or len(rest) < 3:
            continue
        pairs = [option.partition("=")[::2] for option in rest[2].split(",")]
        yield Mount(_plain(fields[4]), fields[2], _plain(rest[1]), dict(pairs))


def _plain(text: str) -> str:
    """Text of a mountinfo, which has blanks and backslashes as octal numbers."""
    return re.sub(r"\\([0-7]{3})", lambda match: chr(int(match.group(1), 8)), text)


def placed(text: str, path: str) -> Tuple[Optional[Mount], str]:
    """Return what is mounted at a path, and the device of what it would be on without."""
    here: List[Mount] = []
    around: List[Mount] = []
    for mount in mounts(text):
        if mount.point == path:
            here.append(mount)
        elif path.startswith(mount.point.rstrip("/") + "/"):
            around.append(mount)
    # Of several at one place the last hides those before it.
    over = max(around, key=lambda mount: len(mount.point), default=None)
    same = [mount for mount in around if over is not None and mount.point == over.point]
    return (here[-1] if here else None), (same[-1].device if same else "")


def unit_name(path: str) -> str:
    """Return the name that systemd demands of the unit that mounts something at an absolute path."""
    inner = path.strip("/")
    text = "".join(
        "-"
        if char == "/"
        else char
        if _PLAIN.match(inner, place)
        else "".join(f"\\x{byte:02x}" for byte in char.encode(errors="surrogateescape"))
        for place, char in enumerate(inner)
    )
    return f"{text}.mount"


def options(mib: int) -> str:
    """Return the options of a mount of so many MiB."""
    return f"nosuid,nodev,noexec,size={mib}m,nr_inodes={mib * _INODES_PER_MIB},mode=0700"


def plan(found: Found, mib: int, absent: bool) -> Plan:
    """Decide what becomes of it. ``mib``: size wanted, 0 for none; ``absent``: it is to go, whoever has an account."""
    mount, where = found.mount, found.path
    if mount is not None and mount.source != SOURCE:
        if mount.device != found.below:
            return Plan("absent", "none", True, False, f"The file system {mount.source} at {where} bounds them.")
        says = (
            f"What is mounted at {where} is of the file system that is there anyway; mount a tmpfs with a size instead."
        )
        return Plan("absent", "none", False, True, says)
    if absent or not mib:
        return _without(found, absent)
    if mount is not None:
        return _resized(mount, found, mib)
    if not found.systemd:
        return Plan("absent", "none", False, True, f"The host runs no systemd; mount a tmpfs with a size at {where}.")
    if found.accounts:
        says = (
            f"{_of(found.accounts)} in {where}, and a mount would hide them from the plugin. The tmpfs comes {_LATER}."
        )
        return Plan("enabled", "none", False, True, says)
    return Plan("enabled", "start", False, False, f"No tmpfs is mounted at {where}.")


def _of(accounts: int) -> str:
    return f"{accounts} {'container has its account' if accounts == 1 else 'containers have their accounts'}"


def _without(found: Found, absent: bool) -> Plan:
    where, has = found.path, _of(found.accounts)
    if found.mount is None:
        return Plan("absent", "none", False, False, f"Only the file system of {where} bounds them.")
    if not found.accounts:
        return Plan("absent", "stop", True, False, f"The tmpfs at {where} is not wanted any more.")
    if absent:
        says = f"{has} in the tmpfs of {where}. Those that still run keep it, and its memory, until they end."
        return Plan("absent", "stop", True, True, says)
    return Plan("disabled", "none", True, True, f"{has} in the tmpfs of {where}. It goes {_LATER}.")


def _resized(mount: Mount, found: Found, mib: int) -> Plan:
    size, used = _bytes(mount.options.get("size", "")), -(-found.used_bytes >> 20)
    has = f"The tmpfs at {found.path} bounds them to {size >> 20} MiB together"
    if size == mib << 20 and mount.options.get("nr_inodes") == str(mib * _INODES_PER_MIB):
        return Plan("enabled", "none", True, False, f"{has}.")
    if used > mib:
        says = (
            f"{has}, {used} of which are in use. It gets {mib} MiB with the next restart of the host, or a later run."
        )
        return Plan("enabled", "none", True, True, says)
    return Plan("enabled", "reload", True, False, f"{has}, and not to {mib} MiB.")


def _bytes(text: str) -> int:
    """Return a size as the kernel writes it, such as ``262144k``; 0 for what is none."""
    match = re.fullmatch(r"([0-9]+)([kmg]?)", text)
    return int(match.group(1)) << _UNITS.get(match.group(2), 0) if match else 0
