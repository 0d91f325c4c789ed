# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a program is started with, and what that gives a flag: by the rules of the library that reads its flags.

Sources: proc(5), cmdline; Go's package flag, which containerd, CRI-O, k3s and rke2 read by (urfave/cli); pflag, which
dockerd and kube-scheduler read by.
"""

from __future__ import annotations

import os
import re
from dataclasses import dataclass, field
from typing import Dict, List, Sequence, Tuple

_GO_FLAG = re.compile(r"--?([^-=][^=]*)(?:=(.*))?", re.DOTALL)
"""With one dash or two."""
_PFLAG = re.compile(r"--([^-=][^=]*)(?:=(.*))?", re.DOTALL)
"""With one dash it takes names of one letter."""
_OFF = ("false", "f", "0")


@dataclass(frozen=True)
class Given:
    """A word of the command line or a value of the environment, and the file that says it."""

    value: str
    path: str


@dataclass
class Start:
    """What a program is started with."""

    words: List[Given] = field(default_factory=list)
    """The program, then its arguments."""
    environment: Dict[str, Given] = field(default_factory=dict)

    def go_flags(self, names: Sequence[str], switches: Sequence[str] = ()) -> List[Tuple[str, Given]]:
        """Return the flags of those names, without their dashes, and their values in their order, as Go's flag has it.

        A switch takes no word after it for its value. What hands its value on to another program, as k3s's
        ``--kubelet-arg`` does, has a value that may look like a flag.
        """
        return self._flags(_GO_FLAG, names, switches)

    def pflags(self, names: Sequence[str]) -> List[Tuple[str, Given]]:
        """Return the flags of those long names and their values in their order, as pflag has it."""
        return self._flags(_PFLAG, names, ())

    def _flags(self, form: re.Pattern[str], names: Sequence[str], switches: Sequence[str]) -> List[Tuple[str, Given]]:
        found = []
        words = iter(self.words[1:])
        for word in words:
            match = form.fullmatch(word.value)
            if match is None:
                continue
            name, value = match.groups()
            if name in switches:
                found.append((name, Given("true" if value is None else value, word.path)))
            elif name in names or name.endswith("-arg"):
                value = next(words, Given("", "")).value if value is None else value
                found += [(name, Given(value, word.path))] if name in names else []
        return found


def started(words: Sequence[str], path: str = "") -> Start:
    """Return what a program of that command line is started with; ``path`` is where it was read."""
    return Start([Given(word, path) for word in words])


def of_process(proc: str, number: str) -> List[str]:
    """Return the words of a process below the mounted ``proc``, one that is empty when it has ended."""
    try:
        with open(os.path.join(proc, number, "cmdline"), "rb") as handle:
            return handle.read().decode(errors="replace").rstrip("\0").split("\0")
    except OSError:
        return [""]


def last(flags: Sequence[Tuple[str, Given]]) -> str:
    """Return the last value of the flags that were found, which holds; empty when there are none."""
    return flags[-1][1].value if flags else ""


def is_on(value: str) -> bool:
    """Return whether a switch of that value is on, as Go's strconv.ParseBool has it; what is neither counts as on."""
    return value.lower() not in _OFF
