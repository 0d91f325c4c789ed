# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Tells how far a rollout of the extender is, by its objects in the cluster. Pure."""

from __future__ import annotations

from typing import Any, List, Mapping, Sequence

from ..shared.registers import mapping, mappings, metadata_of
from .layout import NAME, SECOND


def ready_pods(pods: Sequence[Mapping[str, Any]], layout: str) -> List[str]:
    """Return the names of the layout's pods that are ready. Until the sweep another layout's have the same label."""
    return [str(metadata_of(pod).get("name")) for pod in pods if _is_ready(pod, layout)]


def is_rolled(workloads: Sequence[Mapping[str, Any]]) -> bool:
    """Return whether the first workload has no pods left but those of its template, all of them ready."""
    found = workloads[0] if workloads else {}
    metadata, spec, status = (mapping(found.get(key)) for key in ("metadata", "spec", "status"))
    wanted = status.get("desiredNumberScheduled", spec.get("replicas", 0))
    counts = (
        status.get("updatedNumberScheduled", status.get("updatedReplicas", 0)),
        status.get("numberReady", status.get("readyReplicas", 0)),
        status.get("currentNumberScheduled", status.get("replicas", 0)),
    )
    return metadata.get("generation", 0) == status.get("observedGeneration", -1) and set(counts) == {wanted}


def _is_ready(pod: Mapping[str, Any], layout: str) -> bool:
    metadata = metadata_of(pod)
    conditions = mappings(mapping(pod.get("status")).get("conditions"))
    return (
        "deletionTimestamp" not in metadata
        and any(_is_layouts(owner, layout) for owner in mappings(metadata.get("ownerReferences")))
        and any(each.get("type") == "Ready" and each.get("status") == "True" for each in conditions)
    )


def _is_layouts(owner: Mapping[str, Any], layout: str) -> bool:
    name = SECOND if layout == "secondary" else NAME
    return (owner.get("kind") == "DaemonSet") == (layout == "local") and str(owner.get("name")).startswith(name)
