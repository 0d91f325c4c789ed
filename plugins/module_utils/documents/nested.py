# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Places in nested plain data, as a parsed configuration is: read, set, delete and edit them. No I/O."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any, Dict, Mapping, Sequence, Tuple

Path = Tuple[str, ...]


@dataclass(frozen=True)
class Edit:
    """One difference; value None deletes."""

    path: Path
    value: Any


def get(data: object, path: Path) -> Any:  # noqa: ANN401
    """Return what is at a place, None when nothing is."""
    for key in path:
        if not isinstance(data, dict) or key not in data:
            return None
        data = data[key]
    return data


def put(data: Dict[str, Any], path: Path, value: object) -> None:
    """Set what is at a place; dictionaries on the way are created."""
    for key in path[:-1]:
        data = data.setdefault(key, {})
    data[path[-1]] = value


def delete(data: Dict[str, Any], path: Path) -> None:
    """Delete what is at a place, if anything is."""
    parent = get(data, path[:-1])
    if isinstance(parent, dict):
        parent.pop(path[-1], None)


def edited(data: Mapping[str, Any], edits: Sequence[Edit]) -> Dict[str, Any]:
    """Return a copy of the data with the edits made in their order."""
    result: Dict[str, Any] = copy.deepcopy(dict(data))
    for edit in edits:
        if edit.value is None:
            delete(result, edit.path)
        else:
            put(result, edit.path, edit.value)
    return result
