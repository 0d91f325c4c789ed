# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a cluster has for nodes that dynamic resource allocation serves, and what keeps a node from it. Pure."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field, replace
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Sequence, Set, Tuple

from ..shared.fixed_shares import MOST
from ..shared.gpu_givers import driver_offers, plugin_offers
from ..shared.label_names import FIXED_SHARES
from ..shared.mig_offers import parse_offers, plain
from ..shared.minimums import version_in
from ..shared.modes import (
    DRA_DRIVER,
    DRA_FIXED_CLASS,
    DRA_MIG_CLASS,
    DRA_MODE,
    DRA_SHARE_CLASS,
    DRA_TAINT,
    MODE_LABEL,
    OTHER_DRA_DRIVERS,
    WHOLE_MODE,
    WHOLE_RESOURCE,
)
from ..shared.options import OptionReader
from ..shared.refusal import Refusal
from ..shared.registers import entries, labels_of, mapping, mappings, metadata_of, resources
from ..shared.sharing_config import renamed
from .fixed import has_cut_gpus

_KUBERNETES = (1, 34)
_ALL_OF_IT = (1, 36)
"""The first version whose kubelet serves extended resources of device classes without a feature gate."""
_OF_A_RUNTIME = re.compile(r"(?:containerd|cri-o|docker)://")
_HAS_CDI = re.compile(r"containerd://(?:1[.]7|[2-9]|[0-9]{2})|cri-o://(?:1[.](?:2[89]|[3-9][0-9])|[2-9])")
_OLD_CONTAINERD = "containerd://1."
"""Of these, 1.7 does CDI where its configuration says so."""
_ACCOUNT = "kube-accel-dra"
_MANAGED = "app.kubernetes.io/managed-by"


@dataclass(frozen=True)
class Seen:
    """What was seen of a cluster, and what is asked for."""

    nodes: Mapping[str, Any]
    """The result for all nodes."""
    node: Mapping[str, Any]
    """How the node of this host is, as ``NodeState`` has it."""
    options: Mapping[str, object]
    """``gpu_plugins_dra_extended_resource``, ``_shares``, ``_fixed_shares``, and ``_mig_offers``."""
    namespace: str
    daemonset: str
    device_classes: Mapping[str, Any] = field(default_factory=dict)
    hosts: Sequence[str] = ()
    """The hosts with GPUs."""
    hostvars: Mapping[str, Any] = field(default_factory=dict)
    kept: Mapping[str, Any] = field(default_factory=dict)
    """What the API server made of a slice with a device that claims may take parts of."""
    slices: Mapping[str, Any] = field(default_factory=dict)
    """The result for ResourceSlices of all nodes."""
    kept_class: Mapping[str, Any] = field(default_factory=dict)
    """What the API server made of a device class that serves an extended resource."""
    removed: bool = False
    """Whether the plugins are uninstalled."""
    settled: Sequence[str] = ()
    """Hosts whose nodes are taken to have the labels that the inventory gives them, and GPUs as these say."""


@dataclass(frozen=True)
class Dra:
    """What becomes of the objects that serve such nodes."""

    made: bool
    """Whether the cluster is to have them, or may have them while they are uninstalled."""
    extended_resource: str
    """What the device class serves as an extended resource; empty for nothing."""
    shares: bool
    """Whether claims may say how much of a GPU they want, by a class of their own."""
    fixed: bool
    """Whether nodes have GPUs that are cut into equal shares, which have a class of their own."""
    asks: bool
    """Whether a slice is to be tried, which tells whether the cluster keeps shares."""
    asks_extended: bool
    """Whether a device class is to be tried, which tells whether the cluster keeps extended resources."""
    yields: bool
    """Whether the extended resource is left to another DRA driver, which may have ended since."""
    watched: bool
    """Whether device plugins are to look for DRA drivers with GPUs of their node: the cluster may have some."""
    mig: bool
    """Whether the driver is to see MIG devices that are made while it runs."""
    mig_offers: str
    """The MIG devices that it is to make for claims, as JSON; empty for none."""
    unwanted: List[Mapping[str, Any]]
    """Objects that are to go, as no node is served so any more."""
    warnings: List[str]
    differs_later: bool = False
    """Whether this is another answer once all hosts have the labels that the inventory gives them."""


@dataclass(frozen=True)
class NodeSeen:
    """What was seen of a node and its cluster."""

    name: str
    node: Mapping[str, Any]
    """How it is, as ``NodeState`` has it."""
    device_classes: Mapping[str, Any]
    slices: Mapping[str, Any]
    options: Mapping[str, object]
    """``container_runtime_cdi``, and ``gpu_plugins_configs``, which may rename what a plugin offers."""
    leaving: str = ""
    """Another DRA driver that this run takes off the node."""
    plugin_leaves: bool = False
    """Whether this run takes another device plugin off the node. Our driver waits until kubelet offers no GPU."""


def dra(seen: Seen) -> Dra:
    """Return what a cluster is to have. Raise ValueError if an option has another type than it is to have.

    A node needs what serves it until it has its new labels, so that nothing goes before.
    """
    now = _by_labels(seen)
    return replace(now, differs_later=now != _by_labels(replace(seen, settled=seen.hosts)))


def _by_labels(seen: Seen) -> Dra:
    options = OptionReader(seen.options)
    extended = options.boolean("gpu_plugins_dra_extended_resource")
    shares = options.boolean("gpu_plugins_dra_shares")
    number = options.number("gpu_plugins_dra_fixed_shares", 0, MOST)
    offered = options.mappings("gpu_plugins_dra_mig_offers")
    options.require_values()
    offers = _mig_offers(offered)
    nodes, modes = resources(seen.nodes), _modes(seen)
    settled = {_node_name(seen, host) for host in seen.settled}
    served = [node for node in nodes if _is_served(node, modes, settled)]
    used = bool(served) or DRA_MODE in (seen.node["target"], *modes.values())
    new = bool(served) and all(_kubelet(node) >= _ALL_OF_IT for node in served)
    classes = {str(metadata_of(item).get("name")) for item in resources(seen.device_classes)}
    has_api = has_api_of(seen.device_classes)
    kept = _keeps_shares(seen.kept, DRA_SHARE_CLASS in classes)
    extends, lacks = _extends(seen, used and extended, new)
    gone = seen.removed and has_api
    own = {DRA_SHARE_CLASS: shares and used and kept, DRA_FIXED_CLASS: _cuts(seen, served, settled, number)}
    unwanted = [_class(name) for name, offered in own.items() if name in classes and not offered]
    return Dra(
        made=used or gone,
        extended_resource=WHOLE_RESOURCE if extends else "",
        shares=own[DRA_SHARE_CLASS] or gone,
        fixed=own[DRA_FIXED_CLASS] or gone,
        asks=used and shares and has_api,
        asks_extended=extended and new and has_api,
        yields=extended and new and bool(_others_extend(seen)),
        watched=has_api,
        mig=bool(_of_hosts(seen, "gpu_plugins_mig_config")) or bool(offers),
        mig_offers=offers,
        unwanted=(_objects(seen) if DRA_DRIVER in classes and not used else []) + unwanted,
        warnings=_warnings(lacks, used and shares and not kept),
    )


def _extends(seen: Seen, wanted: bool, new: bool) -> Tuple[bool, str]:
    """Return whether our class serves the extended resource, and why it does not although that is ``wanted``.

    Where the API server was not asked whether it keeps the field, what our class has stays.
    """
    if not wanted:
        return False, ""
    if not new:
        return False, f"{WHOLE_RESOURCE} is served from Kubernetes 1.36 on"
    theirs = _others_extend(seen)
    if theirs:
        return False, (
            f"DeviceClass {', '.join(theirs)} serves {WHOLE_RESOURCE} for nodes of another DRA driver, and"
            " kube-scheduler goes by the youngest class alone. Once that driver serves no node, site.yml and"
            " migrate.yml have ours serve it"
        )
    asked = [mapping(seen.kept_class.get("result"))] if seen.kept_class.get("result") else []
    stored = [item for item in resources(seen.device_classes) if metadata_of(item).get("name") == DRA_DRIVER]
    if not all(_spec(item).get("extendedResourceName") for item in asked or stored):
        return False, (
            "the API server does not keep extendedResourceName of a DeviceClass, as its feature gate"
            " DRAExtendedResource is off. Turn it on, or set gpu_plugins_dra_extended_resource=false"
        )
    return True, ""


def _mig_offers(offers: Sequence[Mapping[str, Any]]) -> str:
    try:
        found = plain(parse_offers(offers))
    except ValueError as error:
        raise ValueError(f"gpu_plugins_dra_mig_offers cannot be used: {error}.") from error
    return json.dumps(found) if found else ""


def _keeps_shares(kept: Mapping[str, Any], offered: bool) -> bool:
    """Return whether the API server keeps what makes a device one of which claims take parts.

    Where it was not asked, what is ``offered`` stays. From an older server, and by a feature gate, such a field is
    gone without a word, and a claim for a share would be one for a whole GPU.
    """
    devices = mappings(_spec(mapping(kept.get("result"))).get("devices"))
    return all(device.get("allowMultipleAllocations") for device in devices) if devices else offered


def _cuts(seen: Seen, served: Sequence[Mapping[str, Any]], settled: Set[str], number: int) -> bool:
    """Return whether nodes of the mode have their GPUs cut into fixed shares, or are to have.

    A GPU that a claim has stays cut after the label has gone: its driver has to know shares until then.
    """
    mine = number > 0 and seen.node["target"] == DRA_MODE
    labeled = any(labels_of(node).get(FIXED_SHARES, "0") != "0" for node in served if _name(node) not in settled)
    slices = (item for item in resources(seen.slices) if str(_spec(item).get("nodeName")) not in settled)
    others = (mapping(seen.hostvars.get(host)) for host in seen.hosts)
    return mine or labeled or has_cut_gpus(slices) or any(_mode(each) == DRA_MODE and _is_cut(each) for each in others)


def _is_cut(variables: Mapping[str, Any]) -> bool:
    return str(variables.get("gpu_plugins_dra_fixed_shares") or 0) != "0"


def _others_extend(seen: Seen) -> List[str]:
    """Return the names of device classes of others that serve the extended resource for nodes that they may have.

    NVIDIA and HAMi name theirs as their drivers, which have slices on nodes that they serve.
    """
    serving = driver_offers(resources(seen.slices))
    names = foreign_classes(seen.device_classes, lambda resource: resource == WHOLE_RESOURCE)
    return [name for name in names if name in serving or name not in OTHER_DRA_DRIVERS]


def foreign_classes(device_classes: Mapping[str, Any], serves: Callable[[str], object]) -> List[str]:
    """Return the names of device classes that are not ours, and serve an extended resource for which this holds."""
    others = [item for item in resources(device_classes) if labels_of(item).get(_MANAGED) != "accel.kubernetes"]
    return [
        str(metadata_of(item).get("name"))
        for item in others
        if serves(str(_spec(item).get("extendedResourceName") or ""))
    ]


def _warnings(unextended: str, unshared: bool) -> List[str]:
    """Return what the cluster cannot do although it is asked for."""
    alone = f"Pods get GPUs of nodes of mode dra by ResourceClaims alone: {unextended}."
    whole = (
        "Claims get no shares by size: the API server does not keep allowMultipleAllocations of devices, as its feature"
        " gate DRAConsumableCapacity is off. It is on from Kubernetes 1.36; before, set gpu_plugins_dra_fixed_shares."
    )
    return [text for lacks, text in ((unextended, alone), (unshared, whole)) if lacks]


def has_api_of(answer: Mapping[str, Any]) -> bool:
    """Return whether the API server has the kind that was asked for; True where nobody asked."""
    return all(each.get("api_found", True) for each in mappings(answer.get("results")))


def slices_of(slices: Mapping[str, Any], node: str) -> List[Mapping[str, Any]]:
    """Return the slices of our driver on a node; none while its pool is not complete."""
    found = [item for item in _of_node(slices, node) if _spec(item).get("driver") == DRA_DRIVER]
    latest = max((_generation(item) for item in found), default=0)
    found = [item for item in found if _generation(item) == latest]
    return [] if any(_pool(item).get("resourceSliceCount") != len(found) for item in found) else found


def devices_offered(slices: Iterable[Mapping[str, Any]]) -> int:
    """Return the number of GPUs that slices offer."""
    devices = (each for item in slices for each in mappings(_spec(item).get("devices")))
    return len({_gpu(each) for each in devices if not _is_tainted(each) and not _is_to_be_made(each)})


def driver_versions(slices: Iterable[Mapping[str, Any]]) -> Set[str]:
    """Return which versions of NVIDIA's driver the devices of slices have, as they were when the devices were read."""
    devices = (device for item in slices for device in mappings(_spec(item).get("devices")))
    told = (mapping(mapping(device.get("attributes")).get("driverVersion")).get("version") for device in devices)
    return {version for version in told if isinstance(version, str)}


def node_refusals(seen: NodeSeen) -> Iterator[Refusal]:
    """Yield why a node cannot serve by this mode, or by a device plugin beside a driver."""
    yield from served_twice(seen)
    if seen.node["target"] == DRA_MODE:
        yield from _lacks(seen)


def served_twice(seen: NodeSeen) -> Iterator[Refusal]:
    """Yield what gives away the GPUs of a node beside what serves it, by slices and by what kubelet offers."""
    serves, target = seen.node["serves"], seen.node["target"]
    others = [name for name in other_drivers(seen.slices, seen.name) if name != seen.leaving]
    if others:
        yield Refusal(
            "dra_driver",
            f"DRA driver {', '.join(others)} has ResourceSlices with GPUs of node '{seen.name}', and two would give"
            " them away. Keep that driver off the node by a node affinity, or leave the node out of gpu_nodes.",
        )
    if DRA_MODE not in (serves, target) and DRA_DRIVER in driver_offers(_of_node(seen.slices, seen.name)):
        yield Refusal(
            "dra_left",
            f"Node '{seen.name}' is not of mode dra, and DRA driver {DRA_DRIVER} has ResourceSlices with its GPUs: two"
            " would give them away. Kubelet removes slices 30 s after their driver has ended. If they stay, remove the"
            " driver from the node.",
        )
    names = renamed(mapping(seen.options.get("gpu_plugins_configs")))
    # What a node leaves, it may still offer.
    offered = [name for name, mode in plugin_offers(seen.node["object"], names).items() if mode != serves]
    if DRA_MODE in (serves, target) and offered and not seen.plugin_leaves:
        yield Refusal(
            "dra_plugin",
            f"Node '{seen.name}' offers {', '.join(offered)} by a device plugin, and two would give away its GPUs."
            " Take the node over with migrate.yml, remove that plugin, or leave the node out of mode dra.",
        )


def _lacks(seen: NodeSeen) -> Iterator[Refusal]:
    info = _info(seen.node["object"])
    version, runtime = str(info.get("kubeletVersion") or ""), str(info.get("containerRuntimeVersion") or "")
    if not has_api_of(seen.device_classes) or () < version_in(version) < _KUBERNETES:
        yield Refusal(
            "dra_kubernetes",
            f"Mode dra needs resource.k8s.io/v1, which Kubernetes has from 1.34 on, and node '{seen.name}' has"
            f" {version or 'an unknown version'}. Upgrade Kubernetes, or set gpu_mode to {WHOLE_MODE}.",
        )
    off = runtime.startswith(_OLD_CONTAINERD) and not _cdi_enabled(seen.options)
    if _OF_A_RUNTIME.match(runtime) and (off or not _HAS_CDI.match(runtime)):
        remedy = "set container_runtime_cdi=true" if off and _HAS_CDI.match(runtime) else "Upgrade to containerd 2"
        yield Refusal(
            "dra_cdi",
            f"Mode dra gives containers their GPUs by CDI, and {runtime} of node '{seen.name}' does not do that: pods"
            f" would start without their GPUs. {remedy[:1].upper()}{remedy[1:]}, or set gpu_mode to {WHOLE_MODE}.",
        )


def other_drivers(slices: Mapping[str, Any], node: str) -> List[str]:
    """Return the names of DRA drivers of others that give away GPUs of a node."""
    return [name for name in driver_offers(_of_node(slices, node)) if name != DRA_DRIVER]


def _cdi_enabled(values: Mapping[str, object]) -> bool:
    name = "container_runtime_cdi"
    options = OptionReader({name: values.get(name, True)})
    enabled = options.boolean(name)
    options.require_values()
    return enabled


def _modes(seen: Seen) -> Dict[str, str]:
    """Return the mode of each host by the name of its node."""
    return {_node_name(seen, host): _mode(mapping(seen.hostvars.get(host))) for host in seen.hosts}


def _node_name(seen: Seen, host: str) -> str:
    return str(mapping(seen.hostvars.get(host)).get("gpu_plugins_node_name") or host)


def _name(node: Mapping[str, Any]) -> str:
    return str(metadata_of(node).get("name"))


def _mode(variables: Mapping[str, Any]) -> str:
    return str(variables.get("gpu_plugins_mode") or variables.get("gpu_mode") or WHOLE_MODE)


def _of_hosts(seen: Seen, name: str) -> List[object]:
    """Return what hosts of the mode have set a variable to."""
    found = [mapping(seen.hostvars.get(host)) for host in seen.hosts]
    return [variables[name] for variables in found if _mode(variables) == DRA_MODE and variables.get(name)]


def _is_served(node: Mapping[str, Any], modes: Mapping[str, str], settled: Set[str]) -> bool:
    labeled = labels_of(node).get(MODE_LABEL) == DRA_MODE and _name(node) not in settled
    return labeled or modes.get(_name(node)) == DRA_MODE


def _objects(seen: Seen) -> List[Mapping[str, Any]]:
    rbac = "rbac.authorization.k8s.io/v1"
    namespaced = {"namespace": seen.namespace}
    return [
        {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": seen.daemonset, **namespaced}},
        _class(DRA_MIG_CLASS),
        {"apiVersion": rbac, "kind": "ClusterRoleBinding", "metadata": {"name": _ACCOUNT}},
        {"apiVersion": rbac, "kind": "ClusterRole", "metadata": {"name": _ACCOUNT}},
        {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": _ACCOUNT, **namespaced}},
        # By this one a run that was killed is gone on with.
        _class(DRA_DRIVER),
    ]


def _class(name: str) -> Mapping[str, Any]:
    return {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": name}}


def _of_node(slices: Mapping[str, Any], node: str) -> List[Mapping[str, Any]]:
    return [item for item in resources(slices) if _spec(item).get("nodeName") == node]


def _spec(item: Mapping[str, Any]) -> Mapping[str, Any]:
    return mapping(item.get("spec"))


def _pool(item: Mapping[str, Any]) -> Mapping[str, Any]:
    return mapping(_spec(item).get("pool"))


def _generation(item: Mapping[str, Any]) -> int:
    found = _pool(item).get("generation")
    return found if isinstance(found, int) else 0


def _gpu(device: Mapping[str, Any]) -> str:
    """Return the UUID of a device's GPU, of which there may be several."""
    return str(mapping(mapping(device.get("attributes")).get("uuid")).get("string") or device.get("name"))


def _is_tainted(device: Mapping[str, Any]) -> bool:
    return any(mapping(taint).get("key") == DRA_TAINT for taint in entries(device.get("taints")))


def _is_to_be_made(device: Mapping[str, Any]) -> bool:
    """Return whether a device is a MIG device of a GPU that is offered itself: it has no UUID yet."""
    attributes = mapping(device.get("attributes"))
    return "parentUUID" in attributes and "uuid" not in attributes


def _info(node: Mapping[str, Any]) -> Mapping[str, Any]:
    return mapping(mapping(node.get("status")).get("nodeInfo"))


def _kubelet(node: Mapping[str, Any]) -> Tuple[int, ...]:
    return version_in(str(_info(node).get("kubeletVersion") or ""))
