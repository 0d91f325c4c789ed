# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The resources by which a container asks each mode for a share of a GPU. Pure."""

from __future__ import annotations

from typing import Mapping, NamedTuple, Optional

MIB, GIB = 1 << 20, 1 << 30


class ShareResources(NamedTuple):
    """Their names."""

    cores: Optional[str]
    """None where cores are not asked for."""
    memory: str
    memory_unit_bytes: int
    """What one of ``memory`` is."""


BY_MODE: Mapping[str, ShareResources] = {
    "vgpu": ShareResources("tencent.com/vcuda-core", "tencent.com/vcuda-memory", 256 * MIB),
    "mps": ShareResources("nvidia.com/mps-core", "nvidia.com/mps-memory", GIB),
    "cgpu": ShareResources(None, "aliyun.com/gpu-mem", GIB),
}
