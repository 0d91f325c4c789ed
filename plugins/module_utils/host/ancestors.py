# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The processes above this one, by which it learns that nobody waits for it any more."""

from __future__ import annotations

import os
from typing import Tuple


def ancestors(most: int) -> Tuple[int, ...]:
    """Return the process ids of parent, grandparent and so on, at most so many; the parent's alone without /proc."""
    found = [os.getppid()]
    while len(found) < most and found[-1] > 1:
        try:
            with open(f"/proc/{found[-1]}/stat", encoding="ascii", errors="replace") as file:
                # The name of a process is in brackets, and may have any character in it.
                found.append(int(file.read().rpartition(")")[2].split()[1]))
        except (OSError, ValueError, IndexError):
            break
    return tuple(found)
