# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which nodes lack an image that plugins are to have. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Iterator, List, Mapping, Sequence, Tuple

from ..shared.modes import CGPU_LABEL, MODE_LABEL
from ..shared.registers import labels_of, metadata_of, resources


@dataclass(frozen=True)
class Seen:
    """What was seen of nodes that are to have an image."""

    made: str
    """The image that this run has assembled; empty if it has not."""
    wanted: str
    """The image that the plugins are to have."""
    delivery: str
    running: Sequence[str]
    """Images of the plugins' DaemonSets."""
    nodes: Mapping[str, Any]
    modes: Mapping[str, Any]
    hosts: Sequence[str] = ()
    """The GPU nodes of the inventory."""
    hostvars: Mapping[str, Any] = field(default_factory=dict)


def nodes_without_image(seen: Seen) -> List[str]:
    """Return nodes that serve and would wait for an image that no registry has and this run has not given them."""
    if not seen.made or seen.delivery != "import" or all(image == seen.wanted for image in seen.running):
        return []
    given = {str(host.get("gpu_plugins_node_name") or name) for name, host in _given(seen)}
    return [
        metadata_of(node)["name"]
        for node in resources(seen.nodes)
        if metadata_of(node)["name"] not in given
        and (labels_of(node).get(MODE_LABEL) in seen.modes or labels_of(node).get(CGPU_LABEL) == "true")
    ]


def _given(seen: Seen) -> Iterator[Tuple[str, Mapping[str, Any]]]:
    """Yield the hosts that this run has given the image."""
    for name in seen.hosts:
        if seen.hostvars[name].get("kube_accel_image_here") == seen.wanted:
            yield name, seen.hostvars[name]
