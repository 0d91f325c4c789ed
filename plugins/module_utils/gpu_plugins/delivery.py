# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How containers are given the devices that they were promised: by CDI, or by mounts and the environment. Pure."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, List, Mapping, Sequence, Tuple

from ..shared import label_names
from ..shared.modes import MODE_LABEL
from ..shared.options import OptionReader
from ..shared.plain import plain
from ..shared.registers import labels_of, mapping, metadata_of, resources

ENFORCEMENTS = {
    "auto": ("vgpu", "mps", "cgpu"),
    "interposer": ("vgpu", "mps", "cgpu"),
    "mps": ("mps",),
    "dmem": ("vgpu", "cgpu"),
    "none": ("vgpu", "cgpu"),
}
"""The modes that can have each way of enforcing shares."""
ENFORCEMENT_LABEL = label_names.ENFORCEMENT
INTERPOSED = ("interposer", "mps-interposer")
"""Ways of enforcement by which a program has CUDA and NVML alone, and sees no more memory than its share has."""
_KUBELET = (1, 29)
_RUNTIME = re.compile(r"containerd://(?:[2-9]|[0-9]{2})|cri-o://(?:1[.](?:2[89]|[3-9][0-9])|[2-9])")
"""Runtimes that have CDI."""
_MAY_HAVE = re.compile(r"(?:containerd|cri-o)://")
"""Runtimes that do not fail where their CDI is off, as Docker behind cri-dockerd does."""


@dataclass(frozen=True)
class Seen:
    """What was seen of the nodes, and what is asked for."""

    nodes: Mapping[str, Any]
    """The result for all nodes."""
    named: Sequence[str]
    """Names of nodes that are GPU nodes whatever their labels."""
    options: Mapping[str, object]
    """``gpu_plugins_device_list_strategy``."""
    configs: object
    enforcement: str


@dataclass(frozen=True)
class Delivery:
    """How containers are given devices."""

    strategies: Sequence[str]
    """For whole GPUs. What a configuration says counts where nothing else was said."""
    cdi_used: bool
    share_cdi: Sequence[str]
    """The one CDI device that gives a container its share; empty if mounts do."""
    share_hooks: bool
    """Whether mounts come with a device that has the loader's cache know them."""
    enforcement: Mapping[str, str]
    """By mode."""


def delivery(seen: Seen) -> Delivery:
    """Return how containers are given devices."""
    options = OptionReader(seen.options)
    named = list(options.words("gpu_plugins_device_list_strategy"))
    options.require_values()
    configured = json.dumps(plain(seen.configs), default=str)
    nodes = resources(seen.nodes)
    by_cdi = ["cdi-cri"] if not named and _have_cdi(nodes, seen.named) else []
    strategies = named or (by_cdi if "deviceListStrategy" not in configured else [])
    share = [strategy for strategy in named if strategy.startswith("cdi-")][:1] or by_cdi
    runtimes = [str(_info(node).get("containerRuntimeVersion") or "") for node in nodes]
    return Delivery(
        strategies,
        any(strategy.startswith("cdi-") for strategy in strategies) or "cdi-" in configured,
        share,
        not named and not share and bool(runtimes) and all(map(_MAY_HAVE.match, runtimes)),
        {
            mode: seen.enforcement if mode in ENFORCEMENTS.get(seen.enforcement, ()) else "auto"
            for mode in ENFORCEMENTS["auto"]
        },
    )


def _have_cdi(nodes: Sequence[Mapping[str, Any]], named: Sequence[str]) -> bool:
    """Return whether there are GPU nodes, and each has a kubelet and a container runtime with CDI."""
    serving = [node for node in nodes if MODE_LABEL in labels_of(node) or metadata_of(node).get("name") in named]
    return bool(serving) and all(
        _version(_info(node)) >= _KUBELET and _RUNTIME.match(str(_info(node).get("containerRuntimeVersion") or ""))
        for node in serving
    )


def _info(node: Mapping[str, Any]) -> Mapping[str, Any]:
    return mapping(mapping(node.get("status")).get("nodeInfo"))


def _version(info: Mapping[str, Any]) -> Tuple[int, ...]:
    found = re.search(r"([0-9]+)[.]([0-9]+)", str(info.get("kubeletVersion") or ""))
    parts: List[int] = [int(part) for part in found.groups()] if found else [0]
    return tuple(parts)
