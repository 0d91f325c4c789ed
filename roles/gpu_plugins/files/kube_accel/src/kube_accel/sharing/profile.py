# SPDX-License-Identifier: Apache-2.0
"""The extended resources of each mode and what one unit of them is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from kube_accel.model import Mode
from kube_accel.sharing import whole


@dataclass(frozen=True, slots=True)
class Profile:
    """A mode whose containers get shares of a GPU."""

    mode: Mode
    core_resource: str | None
    """One unit is 1 % of a GPU; None where the mode divides memory only."""
    memory_resource: str
    memory_unit_bytes: int


PROFILES: Mapping[Mode, Profile] = MappingProxyType(
    {
        profile.mode: profile
        for profile in (
            Profile(Mode.VGPU, "tencent.com/vcuda-core", "tencent.com/vcuda-memory", 256 << 20),
            Profile(Mode.MPS, "nvidia.com/mps-core", "nvidia.com/mps-memory", 1 << 30),
            Profile(Mode.CGPU, None, "aliyun.com/gpu-mem", 1 << 30),
        )
    }
)
"""The fractional modes."""

WHOLE_GPU_RESOURCE = whole.RESOURCE
"""The resource of mode pgpu; one unit is a GPU."""

_MODES = {
    name: profile.mode
    for profile in PROFILES.values()
    for name in (profile.core_resource, profile.memory_resource)
    if name is not None
}


def mode_of(resource: str) -> Mode | None:
    """The mode that offers this resource; None when none of ours does.

    Mode pgpu has every name of NVIDIA's that no other has: a configuration may rename what it offers.
    """
    return _MODES.get(resource, Mode.PGPU if resource.startswith("nvidia.com/") else None)
