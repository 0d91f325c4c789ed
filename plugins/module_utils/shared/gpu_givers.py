# Apache License 2.0 (see https://www.apache.org/licenses/LICENSE-2.0)
# SPDX-License-Identifier: Apache-2.0
"""What gives away a node's GPUs, as the cluster shows it: device plugins by resources, DRA drivers by slices. Pure.

One of them may. kube-scheduler counts resources and slices apart, so that a GPU of both is given away twice. Roles
refuse such a node, a plugin offers nothing while a driver does, and our driver nothing while a plugin does.
"""

from __future__ import annotations

from typing import Any, Container, Dict, Iterable, List, Mapping, Optional

from .modes import DRA_DRIVER, OTHER_DRA_DRIVERS, gives_gpus, mode_of
from .quantity import whole_units
from .registers import mapping

API_VERSIONS = ("resource.k8s.io/v1", "resource.k8s.io/v1beta2", "resource.k8s.io/v1beta1")
"""Versions of slices and claims, in which drivers of others have them. Ours needs the first."""
SLICES_PATH = "/apis/resource.k8s.io/v1/resourceslices"
"""Where the API server has ResourceSlices."""
DRA_DRIVERS = (DRA_DRIVER, *OTHER_DRA_DRIVERS)
"""DRA drivers that give away GPUs, ours first."""


def plugin_offers(node: Mapping[str, Any], renamed: Container[str] = ()) -> Dict[str, Optional[str]]:
    """Return the resources of GPUs that kubelet offers for a device plugin, each with the mode that has it.

    ``renamed`` are names that configurations of the plugin give them.
    """
    amounts = mapping(mapping(node.get("status")).get("allocatable"))
    given = (name for name, amount in amounts.items() if gives_gpus(name, renamed) and whole_units(amount))
    return {name: mode_of(name) for name in given}


def driver_offers(slices: Iterable[Mapping[str, Any]]) -> List[str]:
    """Return the names of the DRA drivers that give away GPUs by these ResourceSlices of a node."""
    specs = (mapping(item.get("spec")) for item in slices)
    found = {str(spec.get("driver")) for spec in specs if spec.get("devices")}
    return [name for name in DRA_DRIVERS if name in found]
