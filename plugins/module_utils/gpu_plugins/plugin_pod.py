# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How the plugin's pod on a node is: whether it is the one that was rolled out, and why it does not serve. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, List, Mapping, Sequence

from ..shared.printable import line
from ..shared.registers import annotations_of, labels_of, mapping, mappings, metadata_of, resources
from .rollout_objects import TEMPLATE

RELEASED = "kube-accel.io/released"
"""Label of a plugin's pod that a rollout took from its DaemonSet, whose name it is."""
_HOPELESS = ("ImagePullBackOff", "InvalidImageName", "CreateContainerConfigError")
_RESTARTS = 3
_ATTEMPTS = 30
"""Seconds: kubelet says ErrImageNeverPull for good, and up to 15 s longer where the image was imported meanwhile."""
_LONGEST = 4096


@dataclass(frozen=True)
class Seen:
    """What was seen of a node's plugin."""

    node: str
    namespace: str
    daemonset: str
    templates: Mapping[str, str] = field(default_factory=dict)
    """Checksums of the templates that this run rolled out, by DaemonSet."""
    own: Mapping[str, Any] = field(default_factory=dict)
    """The result for pods of the DaemonSet on the node, if they were asked for."""
    listed: Mapping[str, Any] = field(default_factory=dict)
    """The result for the plugins' pods of all nodes."""
    log: Mapping[str, Any] = field(default_factory=dict)
    """What the pod said last."""


@dataclass(frozen=True)
class PluginPod:
    """How the newest pod of a node's plugin is."""

    name: str
    """Empty if there is none."""
    template: str
    """The checksum of the template that pods are to be made of; empty if this run rolled out none."""
    renewed: bool
    """Whether it is made of that, and ready."""
    stuck: bool
    """Whether that will not come by itself."""
    of_before: Sequence[str]
    """Names of the node's pods that are made of another template."""
    released: Sequence[str]
    """Names of pods that a rollout took from their DaemonSet and did not remove, as it was killed."""
    turns: int
    """Number of nodes that a DaemonSet renews one after the other."""
    says: str
    """What is to be said of it, as a line."""


def plugin_pod(seen: Seen) -> PluginPod:
    """Return how the plugin's pod on a node is."""
    listed = resources(seen.listed)
    here = [pod for pod in listed if mapping(pod.get("spec")).get("nodeName") == seen.node and _is_plugin(pod)]
    own = resources(seen.own) if "resources" in seen.own else here
    newest: Mapping[str, Any] = max(own, key=lambda pod: str(metadata_of(pod).get("creationTimestamp", "")), default={})
    template = str(mapping(seen.templates).get(seen.daemonset) or "")
    status = _status(newest)
    return PluginPod(
        name=str(metadata_of(newest).get("name", "")),
        template=template,
        renewed=not template or (_template(newest) == template and bool(status.get("ready"))),
        stuck=_is_stuck(status, int(seen.own.get("attempts") or 0)),
        of_before=[metadata_of(pod)["name"] for pod in own if template and _template(pod) != template],
        released=[metadata_of(pod)["name"] for pod in here if RELEASED in labels_of(pod)],
        turns=max(1, len(listed)),
        says=line(" ".join(_says(newest, seen).split()), _LONGEST),
    )


def _is_plugin(pod: Mapping[str, Any]) -> bool:
    containers = mappings(mapping(pod.get("spec")).get("containers"))
    return bool(containers) and containers[0].get("name") == "kube-accel"


def _template(pod: Mapping[str, Any]) -> str:
    return str(annotations_of(pod).get(TEMPLATE) or "")


def _status(pod: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the status of the pod's first container."""
    return next(iter(mappings(mapping(pod.get("status")).get("containerStatuses"))), {})


def _waits(status: Mapping[str, Any]) -> Mapping[str, Any]:
    return mapping(mapping(status.get("state")).get("waiting"))


def _is_stuck(status: Mapping[str, Any], attempts: int) -> bool:
    reason = _waits(status).get("reason")
    return (
        reason in _HOPELESS
        or (reason == "CrashLoopBackOff" and int(status.get("restartCount") or 0) >= _RESTARTS)
        or (reason == "ErrImageNeverPull" and attempts >= _ATTEMPTS)
    )


def _says(pod: Mapping[str, Any], seen: Seen) -> str:
    if not pod:
        return (
            f"No pod of DaemonSet {seen.namespace}/{seen.daemonset} is on the node. kubectl describe shows why, for"
            " example a taint that gpu_plugins_tolerations lacks, or a refused pod."
        )
    status, waits = mapping(pod.get("status")), _waits(_status(pod))
    words = (waits.get("reason") or status.get("phase"), waits.get("message") or status.get("message"))
    lines: List[str] = [str(text) for text in seen.log.get("log_lines") or () if text]
    last = f". Its last messages: {' | '.join(lines)}" if lines else "."
    name = f"{seen.namespace}/{metadata_of(pod)['name']}"
    return f"Its plugin is pod {name}: {': '.join(str(word) for word in words if word)}{last}"
