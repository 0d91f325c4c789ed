# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The command line that a process runs with, and what it gives a flag. Source: proc(5), cmdline."""

from __future__ import annotations

import os
from typing import List, Sequence


def of_process(proc: str, number: str) -> List[str]:
    """Return the words of a process below the mounted ``proc``, one that is empty when it has ended."""
    try:
        with open(os.path.join(proc, number, "cmdline"), "rb") as handle:
            return handle.read().decode(errors="replace").rstrip("\0").split("\0")
    except OSError:
        return [""]


def given(words: Sequence[str], *flags: str) -> List[str]:
    """Return what a command line gives a flag, in its order; ``flags`` are all its names, with their dashes."""
    found = []
    for place, word in enumerate(words):
        if word in flags and place + 1 < len(words):
            found.append(words[place + 1])
        found += [word[len(flag) + 1 :] for flag in flags if word.startswith(f"{flag}=")]
    return found


def last_given(words: Sequence[str], *flags: str) -> str:
    """Return the last of what a command line gives these flags, which holds; empty when it gives none."""
    return ["", *given(words, *flags)][-1]
