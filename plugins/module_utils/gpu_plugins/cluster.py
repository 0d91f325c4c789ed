# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Who else serves GPUs in a cluster, which of our workloads it has, and whether it lacks an extender. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any, Iterator, List, Mapping, Sequence

from ..shared import label_names
from ..shared.modes import BY_MODE, RESOURCE, WHOLE_MODE
from ..shared.options import OptionReader
from ..shared.registers import labels_of, mapping, mappings, metadata_of, resources
from .dra import foreign_classes
from .monitors import exporter_found

MIGRATION = label_names.MIGRATION
"""Annotation of a node whose other plugin was taken off, with what is needed to put it back."""
_MANAGED = "app.kubernetes.io/managed-by"
_WHOLE = "scheduler_manage_whole_gpus"
_FOREIGN_NAME = re.compile(
    r"(?:nvidia-device-plugin(?:-daemonset)?|nvidia-gpu-device-plugin|hami-device-plugin|gpu-operator.*"
    r"|gpushare-device-plugin.*)"
)
_FOREIGN_IMAGE = re.compile(
    r"/(?:k8s-device-plugin|gpu-operator|hami|nvidia-gpu-device-plugin|k8s-gpushare-plugin|gpu-manager)(?::|@|$)"
)
"""Images of the first containers of other plugins and operators."""


@dataclass(frozen=True)
class Seen:
    """What was seen of a cluster and of a node that is to serve."""

    daemonsets: Mapping[str, Any] = field(default_factory=dict)
    deployments: Mapping[str, Any] = field(default_factory=dict)
    """The result for Deployments of extenders."""
    device_classes: Mapping[str, Any] = field(default_factory=dict)
    runtime_classes: Mapping[str, Any] = field(default_factory=dict)
    """The result for the runtime class of the plugins."""
    modes: Mapping[str, Any] = field(default_factory=dict)
    """What each mode is made of."""
    options: Mapping[str, object] = field(default_factory=dict)
    """Which modes are turned on: ``gpu_plugins_pgpu_enabled``, and so on. Those that are absent are."""
    name: str = ""
    """The node's."""
    node: Mapping[str, Any] = field(default_factory=dict)
    """How it is, as ``NodeState`` has it."""
    gpus: int = 0
    """Number of GPUs on the node."""
    extender_coming: object = False
    """Whether this run brings an extender."""
    scheduler: Mapping[str, Any] = field(default_factory=dict)
    """Variables of the host that runs the role scheduler."""
    migrating: object = False
    """Whether this run takes nodes over from another plugin."""


@dataclass(frozen=True)
class Cluster:
    """What a cluster has."""

    daemonset: str
    """Name of the DaemonSet of the mode that the node is to serve; empty if there is no such mode."""
    ours: Sequence[str]
    """Names of our plugins' DaemonSets."""
    images: Sequence[str]
    """Their images."""
    disabled_modes: Sequence[str]
    """Modes that are turned off."""
    disabled_daemonsets: Sequence[str]
    """Names of their DaemonSets."""
    disabled: Sequence[Mapping[str, Any]]
    """Those that the cluster has, with kind, namespace, and name."""
    foreign: Sequence[str]
    """Namespace and name of the DaemonSets of other device plugins."""
    device_classes: Sequence[str]
    """Names of all device classes, of which claims are for GPUs or for something else."""
    foreign_classes: Sequence[str]
    """Names of device classes through which dynamic resource allocation serves our resources."""
    runtime_class_handler: str
    """Empty if there is no such runtime class."""
    runtime_class_made: bool
    """Whether the runtime class is ours to make. One that another made is used and left alone."""
    migrated: bool
    """Whether the node was taken over from another plugin, or is being."""
    exporter_found: bool
    needs_extender: bool
    """Whether pods that fit the node and none of its GPUs would fail admission, as no extender chooses a GPU."""
    no_extender: str
    """That in words."""
    counts_pending: bool
    """Whether the plugins count the cluster's pending pods, as no extender does."""


def cluster(seen: Seen) -> Cluster:
    """Return what a cluster has."""
    daemonsets = resources(seen.daemonsets)
    ours = [item for item in daemonsets if _container(item).get("name") == "kube-accel"]
    theirs = [item for item in daemonsets if _container(item).get("name") != "kube-accel"]
    runtime_class = next(iter(resources(seen.runtime_classes)), {})
    extenders = [item for item in (*daemonsets, *resources(seen.deployments)) if _is_extender(item)]
    options = OptionReader(
        {"gpu_plugins_extender_coming": seen.extender_coming, "gpu_plugins_migrating": seen.migrating}
    )
    names = {mode: f"gpu_plugins_{mode}_enabled" for mode in seen.modes}
    switches = OptionReader({name: seen.options.get(name, True) for name in names.values()})
    disabled = [mode for mode, name in names.items() if not switches.boolean(name)]
    switches.require_values()
    disabled_daemonsets = [seen.modes[mode]["daemonset"] for mode in disabled]
    coming, migrating = map(options.boolean, ("gpu_plugins_extender_coming", "gpu_plugins_migrating"))
    options.require_values()
    target = seen.node.get("target", WHOLE_MODE)
    return Cluster(
        str(mapping(seen.modes.get(target)).get("daemonset", "")),
        [metadata_of(item)["name"] for item in ours],
        [str(_container(item).get("image", "")) for item in ours],
        disabled,
        disabled_daemonsets,
        [_named(item) for item in ours if metadata_of(item)["name"] in disabled_daemonsets],
        list(dict.fromkeys(_foreign(theirs, [mode["daemonset"] for mode in seen.modes.values()]))),
        [metadata_of(item)["name"] for item in resources(seen.device_classes)],
        foreign_classes(seen.device_classes, RESOURCE.match),
        str(runtime_class.get("handler", "")),
        not runtime_class or labels_of(runtime_class).get(_MANAGED) == "accel.kubernetes",
        migrating or MIGRATION in mapping(seen.node.get("annotations")),
        exporter_found(seen.daemonsets),
        target in BY_MODE and seen.gpus > 1 and not extenders and not coming,
        f"Mode {target} on node '{seen.name}' shares {seen.gpus} GPUs, and no extender chooses among them: pods "
        "that fit the node and none of its GPUs would fail admission again and again.",
        not (_extends(seen.scheduler) if coming else extenders),
    )


def _extends(scheduler: Mapping[str, Any]) -> bool:
    """Return whether the cluster has an extender once the role scheduler has run: it removes one that is not needed."""
    if scheduler.get("scheduler_layout", "auto") != "auto":
        return bool(scheduler["scheduler_layout"] != "none")
    manages = OptionReader({_WHOLE: scheduler.get(_WHOLE, False)}).boolean(_WHOLE)
    return manages or any(mode in BY_MODE for mode in scheduler.get("scheduler_modes", BY_MODE))


def _foreign(daemonsets: Sequence[Mapping[str, Any]], own_names: Sequence[str]) -> Iterator[str]:
    """Yield those that are known by their name, by their image, or for having the name of one of ours."""
    for item in daemonsets:
        if _FOREIGN_NAME.fullmatch(str(metadata_of(item).get("name"))):
            yield _path(item)
    for item in daemonsets:
        if _FOREIGN_IMAGE.search(str(_container(item).get("image", ""))):
            yield _path(item)
    for item in daemonsets:
        if metadata_of(item).get("name") in own_names:
            yield _path(item)


def _named(daemonset: Mapping[str, Any]) -> Mapping[str, Any]:
    head = {key: metadata_of(daemonset).get(key) for key in ("namespace", "name")}
    return {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": head}


def _path(item: Mapping[str, Any]) -> str:
    return f"{metadata_of(item).get('namespace')}/{metadata_of(item).get('name')}"


def _container(workload: Mapping[str, Any]) -> Mapping[str, Any]:
    template = mapping(mapping(workload.get("spec")).get("template"))
    containers: List[Mapping[str, Any]] = mappings(mapping(template.get("spec")).get("containers"))
    return containers[0] if containers else {}


def _is_extender(workload: Mapping[str, Any]) -> bool:
    return labels_of(workload).get("app.kubernetes.io/component") == "extender"
