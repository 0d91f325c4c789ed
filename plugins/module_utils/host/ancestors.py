# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The processes above this one, by which it learns that nobody waits for it any more."""

from __future__ import annotations

import os
from typing import List, Tuple

_SHELLS = frozenset({"sh", "ash", "bash", "busybox", "dash", "ksh", "zsh"})
_MOST = 64
"""No process has as many above it, unless a process id was given anew meanwhile."""


def ancestors(most: int) -> Tuple[int, ...]:
    """Return the process ids of parent, grandparent and so on, up to ``most`` that are no shells.

    How many shells are between is the platform's: some become the last command that they start. Without ``/proc`` this
    is the parent alone.
    """
    found: List[int] = [os.getppid()]
    while most > 0 and found[-1] > 1 and len(found) < _MOST:
        try:
            with open(f"/proc/{found[-1]}/stat", encoding="ascii", errors="replace") as file:
                # The name of a process is in brackets, and may have any character in it.
                head, _bracket, rest = file.read().rpartition(")")
                above = int(rest.split()[1])
        except (OSError, ValueError, IndexError):
            break
        most -= head.partition("(")[2] not in _SHELLS
        if most > 0:
            found.append(above)
    return tuple(found)
