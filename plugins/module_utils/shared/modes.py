# Apache License 2.0 (see https://www.apache.org/licenses/LICENSE-2.0)
# SPDX-License-Identifier: Apache-2.0
"""The modes of a node, the extended resources that each offers, and what one unit of them is. Pure."""

from __future__ import annotations

import re
from typing import Container, Mapping, NamedTuple, Optional

MIB, GIB = 1 << 20, 1 << 30
WHOLE_MODE = "pgpu"
WHOLE_RESOURCE = "nvidia.com/gpu"
"""The resource of mode pgpu; one unit is a GPU."""
RESOURCE = re.compile(r"(?:tencent\.com/vcuda-(?:core|memory)|aliyun\.com/gpu-mem|nvidia\.com/.+)\Z")
"""Names of what pods ask for: a configuration may rename what is NVIDIA's."""
MODE_LABEL = "nvidia-device-enable"
CGPU_LABEL = "cgpu"
"""Labels of a node by which it serves a mode."""
HELD_LABEL = "kube-accel.io/served-by-another"
"""Label of a node that keeps ours off while the plugin of its value serves it by a label that ours go by as well."""
CORES = 100
"""Units of a core resource that a GPU has: one is 1 %."""


class ShareResources(NamedTuple):
    """The resources by which a container asks for a share of a GPU."""

    cores: Optional[str]
    """None where the mode divides memory only."""
    memory: str
    memory_unit_bytes: int


BY_MODE: Mapping[str, ShareResources] = {
    "vgpu": ShareResources("tencent.com/vcuda-core", "tencent.com/vcuda-memory", 256 * MIB),
    "mps": ShareResources("nvidia.com/mps-core", "nvidia.com/mps-memory", GIB),
    "cgpu": ShareResources(None, "aliyun.com/gpu-mem", GIB),
}
"""The modes that divide GPUs."""
MODES = (WHOLE_MODE, *BY_MODE)
"""The modes that device plugins serve."""
DRA_MODE = "dra"
"""The mode of GPUs and their shares by dynamic resource allocation: no device plugin; ResourceSlices for resources."""
NODE_MODES = (*MODES, DRA_MODE)
"""The modes that a node may serve."""
DRA_DRIVER = "gpu.kube-accel.io"
"""Name of our DRA driver, and of its device class."""
DRA_SHARE_CLASS = "share.kube-accel.io"
"""Name of the device class by which claims ask for shares of the same GPUs."""
DRA_FIXED_CLASS = "fixed-share.kube-accel.io"
"""Name of the device class by which claims ask for shares of GPUs that are cut into equal ones."""
DRA_MIG_CLASS = "mig.kube-accel.io"
"""Name of the device class of MIG devices."""
DRA_CLASSES = (DRA_DRIVER, DRA_SHARE_CLASS, DRA_FIXED_CLASS, DRA_MIG_CLASS)
"""The device classes of our driver."""
DRA_TAINT = f"{DRA_DRIVER}/unhealthy"
"""Taint of a device that is not to be given away."""
OTHER_DRA_DRIVERS = ("gpu.nvidia.com", "hami-core-gpu.project-hami.io")
"""DRA drivers that give away the same GPUs."""
_GPU_RESOURCE = re.compile(r"nvidia\.com/(?:gpu|mig-).*\Z")
_MODE_OF = {name: mode for mode, share in BY_MODE.items() for name in share[:2] if isinstance(name, str)}


def dra_pool(node: str) -> str:
    """Return the name of a node's pool of our driver; not the node's own, which other drivers' have (k#140434)."""
    return f"{node}/kube-accel"


def mode_of(resource: str) -> Optional[str]:
    """Return the mode that offers this resource; None when none of ours does.

    Mode pgpu has every name of NVIDIA's that no other mode has: a configuration may rename what it offers.
    """
    return _MODE_OF.get(resource, WHOLE_MODE if resource.startswith("nvidia.com/") else None)


def gives_gpus(resource: str, renamed: Container[str] = ()) -> bool:
    """Return whether a resource that a node offers is of GPUs: of a mode, nvidia.com/gpu..., MIG, or ``renamed``.

    Not every name of NVIDIA's is: its network operator offers nvidia.com/hostdev, for one.
    """
    return resource in _MODE_OF or bool(_GPU_RESOURCE.match(resource)) or resource in renamed
