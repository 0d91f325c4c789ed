# Apache License 2.0 (see https://www.apache.org/licenses/LICENSE-2.0)
# SPDX-License-Identifier: Apache-2.0
"""Which pods need a runtime class to find the driver, and what to say to the owner of one without. Pure."""

from __future__ import annotations

from typing import Any, Mapping

from .asked import asked
from .registers import mappings

_HELD = ("nvidia.com/",)
"""Beginnings of the resources that NVIDIA's runtime brings into a container."""
_LIMITED = ("nvidia.com/mps-",)
"""Those of them that are shares, which mounts bring."""


def lacks_class(spec: Mapping[str, Any]) -> bool:
    """Return whether a pod asks for a GPU of NVIDIA's that is no share, and names no runtime class."""
    containers = [*mappings(spec.get("containers")), *mappings(spec.get("initContainers"))]
    try:
        return not spec.get("runtimeClassName") and any(asked(container, _is_whole) for container in containers)
    except ValueError:
        return False


def finds_no_driver(name: str) -> str:
    """Return what to tell the owner of such a pod, who is to name this runtime class."""
    return (
        "a pod that asks for nvidia.com/ resources and names no runtime class holds its GPU and finds no driver, "
        f"unless NVIDIA's runtime is the node's default; set spec.runtimeClassName to {name}"
    )


def _is_whole(name: str) -> bool:
    return name.startswith(_HELD) and not name.startswith(_LIMITED)
