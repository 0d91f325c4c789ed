# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which files of a state directory are the plugin's to remove. Others may use the directory too. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import List, Sequence

_OURS = re.compile(
    r"[.]?(?:ledger[.]db(?:[.](?:damaged|moved)-[0-9]+)?(?:-wal|-shm|-journal)?"
    r"|(?:admin|handover)[.]sock|(?:configuration|excluded-gpus|health|mig|reported)[.]json|mig[.]lock|tellers"
    r"|modes[.]lock|mode-[a-z]+[.]lock|claims[.](?:json|damaged)|(?:claims|publisher|sockets)[.]lock"
    r"|containers/(?:[.]lock|[.]spare-[0-9a-f]{8}|[0-9a-f]{32})|shim/[.]?[0-9a-f]{8,32}(?:[.]old)?)"
    r"(?:[.][0-9a-f]{6,8})?"
)
_CONTAINERS, _DIRECTORIES = "containers/", ("containers/", "shim/", "")


@dataclass(frozen=True)
class Seen:
    """What was seen of a state directory."""

    directory: str
    paths: Sequence[str]
    """All that is in it."""
    mounted: bool = False
    """Whether ``containers`` is the mount point of a file system that others mounted."""


def removed_state(seen: Seen) -> List[str]:
    """Return paths to remove, relative to the directory: files of ours, and our directories that then are empty."""
    start = seen.directory.rstrip("/") + "/"
    paths = [path[len(start) :] for path in seen.paths if path.startswith(start)]
    removed = [path for path in paths if _OURS.fullmatch(path)]
    alone = all(path in removed or f"{path}/" in _DIRECTORIES for path in paths)
    for directory in _DIRECTORIES:
        kept = {path for path in paths if path.startswith(directory)} - set(removed)
        # The role makes them, and a plugin that never started left them empty. Elsewhere an empty one may be of others.
        empty = alone and directory.rstrip("/") in paths
        ours = empty or any(path.startswith(directory) for path in removed)
        if ours and not kept and not (directory == _CONTAINERS and seen.mounted):
            removed.append(directory.rstrip("/"))
    return removed
