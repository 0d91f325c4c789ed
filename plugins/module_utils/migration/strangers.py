# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Why a node is left alone whose GPUs something gives away that is not known here. Pure."""

from __future__ import annotations

from typing import Any, Dict, Mapping, Sequence

from ansible_collections.accel.kubernetes.plugins.module_utils.migration import claims, peers, resources
from ansible_collections.accel.kubernetes.plugins.module_utils.migration.peers import Object
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.gpu_givers import driver_offers
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.modes import DRA_DRIVER
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.waiting_pods import ENDED

_FRACTIONS = ("gpu-fraction", "gpu-memory", "gpu-fraction-num-devices")
"""Annotations of pods that share GPUs by run:ai's scheduler or KAI's, and ask for no resource."""


def offered(node: Object) -> Dict[str, Any]:
    """Return the resources of which the node offers some."""
    allocatable = (node.get("status") or {}).get("allocatable") or {}
    return {name: amount for name, amount in allocatable.items() if str(amount) != "0"}


def strange(daemonsets: Sequence[Object], node: Object, pods: Sequence[Object], hami: resources.Hami) -> str:
    """Return why nothing can be said of a node's GPUs: they are handed out, also or only, by something unknown."""
    all_offered = offered(node)
    served = {name: all_offered[name] for name in resources.unknown(all_offered, hami)}
    if served:
        return by_stranger(daemonsets, node, served)
    asking = {}
    for pod in pods:
        names = resources.unknown({name for _container, limits in claims.limits(pod, {}) for name in limits}, hami)
        names += [name for name in _FRACTIONS if name in peers.annotations_of(pod)]
        if names and (pod.get("status") or {}).get("phase") not in ENDED:
            asking[peers.full_name(pod)] = names
    return "; ".join(
        f"pod {pod} on it has {', '.join(names)} of an unknown plugin; end the pod, and remove that plugin"
        for pod, names in sorted(asking.items())
    )


def strange_driver(slices: Sequence[Object], node: Object, driver: str) -> str:
    """Return why nothing can be said of a node: a DRA driver of others, not ``driver``, gives away its GPUs."""
    own = (item for item in slices if item["spec"].get("nodeName") == node["metadata"]["name"])
    names = ", ".join(name for name in driver_offers(own) if name not in (DRA_DRIVER, driver))
    return names and f"DRA driver {names} has ResourceSlices with its GPUs, and no DaemonSet known here runs it there"


def by_stranger(daemonsets: Sequence[Object], node: Object, amounts: Mapping[str, Any]) -> str:
    """Return that something unknown offers these resources of the node."""
    who = [peers.full_name(item) for item in peers.strangers(daemonsets) if peers.selects(item, node)]
    suspects = f"; it may be DaemonSet {', '.join(who)}" if who else ""
    words = ", ".join(f"{amount} {name}" for name, amount in sorted(amounts.items()))
    return (
        f"it offers {words} by a plugin that is not known here{suspects}; take that one off the node and run site.yml"
    )
