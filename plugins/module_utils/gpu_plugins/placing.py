# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether kubelet and the container runtime heed what a node's plugin tells them of GPUs. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, List, Mapping, Sequence

from ..shared.finding import Finding
from ..shared.registers import mapping, metadata_of, resources
from ..shared.runtime_class import lacks_class

_ENDED = ("Succeeded", "Failed")
_SHOWN = 5
"""Pods that are named."""


@dataclass(frozen=True)
class PlacingSeen:
    """What was seen of kubelet, of the container runtime, and of a node's pods."""

    kubelet: Mapping[str, Any] = field(default_factory=dict)
    """The result of ``kubelet_info``."""
    runtime: Mapping[str, Any] = field(default_factory=dict)
    """The result of ``nvidia_runtime`` in check mode."""
    runtime_class: str = "nvidia"
    by_cdi: bool = False
    """Whether whole GPUs come by CDI."""
    pods: Mapping[str, Any] = field(default_factory=dict)
    """The result for the node's pods."""


def topology(seen: PlacingSeen, gpus: Sequence[Mapping[str, Any]]) -> Finding:
    """Return what kubelet does with the NUMA nodes that the plugin names."""
    settings = mapping(seen.kubelet.get("settings"))
    if not settings:
        why = str(seen.kubelet.get("reason") or "it was not asked")
        return Finding(
            "unknown",
            "topology",
            f"Kubelet's topologyManagerPolicy is not known: {why.rstrip('.')}.",
            "See topologyManagerPolicy in kubelet's configuration on the host.",
        )
    policy = str(settings["topology_manager_policy"])
    numa = sorted({int(gpu["numa_node"]) for gpu in gpus if gpu.get("numa_node") is not None})
    where = f" GPUs are on the NUMA nodes {', '.join(map(str, numa))}." if len(numa) > 1 else ""
    if policy == "none":
        return Finding(
            "ok",
            "topology",
            f"Kubelet's topologyManagerPolicy is none: kubelet ignores the NUMA nodes that the plugin reports.{where} "
            "docs/how-to/align-numa.md says how to set it.",
        )
    scope, processors = settings["topology_manager_scope"], settings["cpu_manager_policy"]
    words = f"Kubelet's topologyManagerPolicy is {policy}, by {scope}; its cpuManagerPolicy is {processors}.{where}"
    return Finding("ok", "topology", words)


def runtime_class(seen: PlacingSeen) -> Finding:
    """Return whether pods with whole GPUs need a runtime class, and which of them have none and find no driver."""
    default = str(seen.runtime.get("default_runtime") or "")
    if seen.by_cdi:
        return Finding("ok", "runtime class", "Containers get GPUs by CDI. Pods need no runtime class.")
    if default == seen.runtime_class or default.startswith("nvidia"):
        return Finding("ok", "runtime class", f"Runtime {default} is the default: pods need no runtime class.")
    without = _without_class(seen)
    if without:
        more = f" and {len(without) - _SHOWN} more" if len(without) > _SHOWN else ""
        why = "since" if default else "unless NVIDIA's runtime is the default, which did not say so, since"
        return Finding(
            "unstable" if default else "unknown",
            "runtime class",
            f"Pods hold GPUs and find no driver, {why} they name no runtime class: "
            f"{', '.join(without[:_SHOWN])}{more}.",
            f"Set runtimeClassName: {seen.runtime_class} in these pods, or container_runtime_default=true for the"
            " node.",
        )
    known = f"the default runtime is {default}" if default else "NVIDIA's runtime is not known to be the default"
    return Finding(
        "ok",
        "runtime class",
        f"Pods with whole GPUs have to name runtimeClassName: {seen.runtime_class}, since GPUs do not come by CDI and "
        f"{known}.",
    )


def _without_class(seen: PlacingSeen) -> List[str]:
    """Return namespace and name of the pods that hold a GPU of NVIDIA's and name no runtime class."""
    return [
        f"{metadata.get('namespace')}/{metadata.get('name')}"
        for pod in resources(seen.pods)
        for metadata in (metadata_of(pod),)
        if lacks_class(mapping(pod.get("spec"))) and mapping(pod.get("status")).get("phase") not in _ENDED
    ]
