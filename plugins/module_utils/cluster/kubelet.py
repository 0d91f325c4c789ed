# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a kubelet says of how it places containers, by its ``configz``. Pure."""

from __future__ import annotations

import json
from dataclasses import dataclass
from urllib.parse import quote

MOST = 1 << 20
"""Bytes of what kubelet says that are read; it says some thousand."""


@dataclass(frozen=True)
class KubeletSettings:
    """Settings by which kubelet places containers on NUMA nodes."""

    topology_manager_policy: str
    topology_manager_scope: str
    cpu_manager_policy: str
    memory_manager_policy: str


def configz_path(node: str) -> str:
    """Return where the API server has a node's kubelet say how it is configured."""
    return f"/api/v1/nodes/{quote(node, safe='')}/proxy/configz"


def kubelet_settings(text: str) -> KubeletSettings:
    """Return what kubelet says. A setting that it leaves out has its default. Raise ValueError for anything else."""
    try:
        said = json.loads(text)
    except RecursionError as error:
        raise ValueError("it is nested too deeply") from error
    config = said.get("kubeletconfig") if isinstance(said, dict) else None
    if not isinstance(config, dict):
        raise ValueError("it has no kubeletconfig")

    def setting(name: str, default: str) -> str:
        value = config.get(name) or default
        if not isinstance(value, str):
            raise ValueError(f"{name} is not text")
        return value

    return KubeletSettings(
        topology_manager_policy=setting("topologyManagerPolicy", "none"),
        topology_manager_scope=setting("topologyManagerScope", "container"),
        cpu_manager_policy=setting("cpuManagerPolicy", "none"),
        memory_manager_policy=setting("memoryManagerPolicy", "None"),
    )
