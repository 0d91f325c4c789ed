# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which objects the plugins have in a cluster. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from hashlib import sha256
from typing import Any, Collection, Dict, Iterable, Mapping, Sequence

from ..shared.plain import plain
from ..shared.registers import metadata_of
from .rollout_objects import TEMPLATE


@dataclass(frozen=True)
class Objects:
    """What the cluster is to have."""

    objects: Sequence[Mapping[str, Any]]
    """All of them. Templates of DaemonSets have their own checksum, so that pods tell which one they were made of."""
    templates: Mapping[str, str]
    """The checksums by name of the DaemonSet."""


def wanted_objects(documents: Iterable[Mapping[str, Any]], disabled: Collection[str] = ()) -> Objects:
    """Return the objects of templates without the DaemonSets named in ``disabled``."""
    objects = [_marked(plain(item)) for item in documents if metadata_of(item).get("name") not in disabled]
    return Objects(
        objects,
        {item["metadata"]["name"]: _mark(item) for item in objects if item["kind"] == "DaemonSet"},
    )


def _marked(item: Dict[str, Any]) -> Dict[str, Any]:
    if item["kind"] == "DaemonSet":
        template = item["spec"]["template"]
        mark = sha256(json.dumps(template).encode()).hexdigest()
        template["metadata"].setdefault("annotations", {})[TEMPLATE] = mark
    return item


def _mark(daemonset: Mapping[str, Any]) -> str:
    mark: str = daemonset["spec"]["template"]["metadata"]["annotations"][TEMPLATE]
    return mark
