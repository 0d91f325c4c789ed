# SPDX-License-Identifier: Apache-2.0
"""The extended resources of each mode and what one unit of them is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from kube_accel.model import Mode
from kube_accel.shared import modes


@dataclass(frozen=True, slots=True)
class Profile:
    """A mode whose containers get shares of a GPU."""

    mode: Mode
    core_resource: str | None
    """One unit is 1 % of a GPU; None where the mode divides memory only."""
    memory_resource: str
    memory_unit_bytes: int


PROFILES: Mapping[Mode, Profile] = MappingProxyType(
    {Mode(mode): Profile(Mode(mode), *resources) for mode, resources in modes.BY_MODE.items()}
)
"""The fractional modes."""

WHOLE_GPU_RESOURCE = modes.WHOLE_RESOURCE
"""The resource of mode pgpu; one unit is a GPU."""


def mode_of(resource: str) -> Mode | None:
    """Return the mode that offers this resource; None when none of ours does."""
    mode = modes.mode_of(resource)
    return None if mode is None else Mode(mode)
