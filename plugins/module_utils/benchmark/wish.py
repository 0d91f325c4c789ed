# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a benchmark of a node's GPUs is to run, and what of it makes no sense. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import List, Optional, Tuple

SHARERS = (1, 2, 4, 8)
"""How many pods share a GPU, where nobody says so: those of the node's layout that it has room for."""
LAUNCHES = 20_000
SECONDS = r'"seconds": ([0-9.]+)'
"""How ``kube-accel benchmark`` prints its figure."""
_MOST_SHARERS = 100
_MOST_REPEATS = 100
_MOST_LAUNCHES = 100_000_000
_MOST_SECONDS = 7 * 86400


@dataclass(frozen=True)
class Wish:
    """What a person asks for."""

    node: str
    sharers: Optional[Tuple[int, ...]] = None
    """None for those that the node has room for."""
    leave_out: bool = False
    """Whether sharers that the node has no room for are left out, and not refused."""
    repeats: int = 1
    image: str = ""
    """Empty for the image of the node's plugin, with the work that it brings."""
    command: Tuple[str, ...] = ()
    figure: str = ""
    """A regular expression with one group, the seconds that a pod prints; empty for how long its container ran."""
    launches: Optional[int] = None
    start_timeout: int = 300
    timeout: int = 3600

    @property
    def work(self) -> int:
        """Return how often the kernel of the plugins' image is launched."""
        return LAUNCHES if self.launches is None else self.launches

    @property
    def words(self) -> Tuple[str, ...]:
        """Return the command of a pod; none for that of its image."""
        return self.command if self.image else ("kube-accel", "benchmark", f"--launches={self.work}")

    @property
    def prints(self) -> str:
        """Return how the seconds are found in a pod's log; empty for how long its container ran."""
        return self.figure if self.image else SECONDS


def refusals(wish: Wish) -> List[str]:
    """Return what makes no sense whatever the node is, a sentence each: what, why, and what to do."""
    found = [] if wish.node else ["node is empty; name the node whose GPUs to measure"]
    if wish.sharers is not None:
        odd = [number for number in wish.sharers if not 1 <= number <= _MOST_SHARERS]
        if odd:
            found.append(f"sharers has {odd[0]}; give numbers of pods on a GPU, from 1 to {_MOST_SHARERS}")
        elif not wish.sharers:
            found.append("sharers is an empty list, so nothing would run; add numbers, or leave it out")
    for name, value, most in (
        ("repeats", wish.repeats, _MOST_REPEATS),
        ("launches", wish.work, _MOST_LAUNCHES),
        ("start_timeout", wish.start_timeout, _MOST_SECONDS),
        ("timeout", wish.timeout, _MOST_SECONDS),
    ):
        if not 1 <= value <= most:
            found.append(f"{name} is {value}; give a number from 1 to {most}")
    return found + _of_workload(wish)


def _of_workload(wish: Wish) -> List[str]:
    found = []
    if not wish.image:
        named = [name for name in ("command", "figure") if getattr(wish, name)]
        if named:
            found.append(
                f"{' and '.join(named)} would be for the plugins' image, which brings a workload of its own; name an "
                "image as well, or leave it out"
            )
    elif wish.launches is not None:
        found.append(
            f"launches is {wish.launches}, but image {wish.image} has a workload of its own; leave one of them out"
        )
    if re.search(r"\s", wish.image):
        found.append(f"image is '{wish.image}', which has a space in it; give a reference such as docker.io/a/b:1")
    if wish.image and wish.figure:
        found += _of_figure(wish.figure)
    return found


def _of_figure(figure: str) -> List[str]:
    remedy = "write a regular expression with one group, such as 'took ([0-9.]+) s'"
    try:
        groups = re.compile(figure).groups
    except (re.error, OverflowError, RecursionError) as error:
        return [f"figure is '{figure}', which is no regular expression ({error}); {remedy}"]
    return [] if groups == 1 else [f"figure is '{figure}', which has {groups} groups; {remedy}"]
