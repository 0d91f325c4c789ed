# Apache License 2.0 (see https://www.apache.org/licenses/LICENSE-2.0)
# SPDX-License-Identifier: Apache-2.0
"""The inventory, as planners see it. Pure."""

from __future__ import annotations

from typing import Any, Callable, Dict, Mapping, Sequence

CONTROL_PLANES, GPU_NODES = "kube_control_plane", "gpu_nodes"
"""The groups of the inventory that playbooks work on."""


class Inventory:
    """The hosts of the inventory by group. Variables of a host are read when they are asked for, which is slow."""

    def __init__(self, hostvars: Mapping[str, Mapping[str, Any]], groups: Mapping[str, Sequence[str]]) -> None:
        self.hostvars = hostvars
        self._groups = groups

    def members(self, group: str) -> Sequence[str]:
        """Return the names of a group's hosts; none of a group that is not there."""
        return self._groups.get(group) or ()

    def variables(self, host: str) -> Mapping[str, Any]:
        """Return the variables of a host."""
        return self.hostvars.get(host, {})

    def each(self, group: str, read: Callable[[Mapping[str, Any]], Any]) -> Dict[str, Any]:
        """Return what is read from the variables of each of a group's hosts, by host."""
        return {host: read(self.variables(host)) for host in self.members(group)}
