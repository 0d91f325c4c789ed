# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a rollout writes to the objects of a cluster, what it puts back, and which one was left unfinished. Pure.

A rollout notes in each object what it was. The note is written together with the change, and goes with the next run
that applies the object without one. DaemonSets of plugins are held (``OnDelete``) until the first nodes serve.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence

from ..cluster.annotations import BEFORE, before
from ..shared.registers import annotations_of, labels_of, mapping, mappings, metadata_of

TEMPLATE = "kube-accel.io/template"
"""Annotation with the checksum of the template that a pod was made of."""
APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
_HELD = "OnDelete"


@dataclass(frozen=True)
class RolloutObjects:
    """What becomes of objects that a rollout changes, and what takes them back."""

    changes: Sequence[str]
    """Kind and name of each."""
    noted: Sequence[Mapping[str, Any]]
    """The objects to apply, with notes of what they were."""
    held: Sequence[Mapping[str, Any]]
    """The same, the DaemonSets held."""
    put_back: Sequence[Mapping[str, Any]]
    """What was noted of objects that there were."""
    remove: Sequence[Mapping[str, Any]]
    """Objects that were not there."""
    templates: Mapping[str, str]
    """Checksums of the templates that DaemonSets had, by name."""
    problems: Sequence[str]
    """Notes that cannot be read, a sentence each."""


@dataclass(frozen=True)
class Unfinished:
    """A workload that a rollout has neither kept nor put back."""

    name: str
    says: str


def rollout_objects(found: Iterable[Mapping[str, Any]], check: bool = False) -> RolloutObjects:
    """Return what becomes of objects.

    ``found`` are results of ``kubernetes.core.k8s_info``, each with the object to apply as ``item``, and with
    ``resources`` as they are. Nothing is noted or held in check mode, which shows the change alone.
    """
    pairs = [(dict(answer["item"]), next(iter(mappings(answer.get("resources"))), None)) for answer in found]
    noted = [wanted if check else _noted(wanted, there) for wanted, there in pairs]
    notes = [(wanted, before(there)) for wanted, there in pairs]
    return RolloutObjects(
        changes=[f"{wanted['kind']} {wanted['metadata']['name']}" for wanted in noted],
        noted=noted,
        held=[wanted if check else _held(wanted) for wanted in noted],
        put_back=[note.object for unused, note in notes if note.object],
        remove=[wanted for wanted, note in notes if note.noted and not note.object],
        templates={
            wanted["metadata"]["name"]: note.template
            for wanted, note in notes
            if note.object and wanted["kind"] == "DaemonSet"
        },
        problems=[note.problem for unused, note in notes if note.problem],
    )


def unfinished_rollouts(
    workloads: Iterable[Mapping[str, Any]], pods: Sequence[Mapping[str, Any]] = ()
) -> List[Unfinished]:
    """Return the workloads of ours that are noted or held, and on which nodes pods are still as before."""
    return [
        Unfinished(metadata_of(item)["name"], _says(item, pods))
        for item in workloads
        if BEFORE in annotations_of(item) or _is_held(item)
    ]


def _noted(wanted: Dict[str, Any], there: Optional[Mapping[str, Any]]) -> Dict[str, Any]:
    """Return an object with a note: of the rollout that was cut off, of what was applied last, or of none."""
    written = {APPLIED: "null"} if there is None else annotations_of(there)
    note = written.get(BEFORE, written.get(APPLIED))
    if note is None:
        return wanted
    head = dict(metadata_of(wanted))
    return {**wanted, "metadata": {**head, "annotations": {**mapping(head.get("annotations")), BEFORE: note}}}


def _held(wanted: Dict[str, Any]) -> Dict[str, Any]:
    if wanted["kind"] != "DaemonSet":
        return wanted
    return {**wanted, "spec": {**wanted["spec"], "updateStrategy": {"type": _HELD}}}


def _is_held(workload: Mapping[str, Any]) -> bool:
    return mapping(mapping(workload.get("spec")).get("updateStrategy")).get("type") == _HELD


def _says(workload: Mapping[str, Any], pods: Sequence[Mapping[str, Any]]) -> str:
    was, head = before(workload), metadata_of(workload)
    image = _image(workload)
    if was.noted and not was.object:
        says = f"image {image}, new"
    else:
        says = f"image {image}" if was.image in ("", image) else f"from image {was.image} to {image}"
    old = _nodes_of_before(workload, pods)
    words = (
        says,
        was.problem,
        "held, OnDelete" if _is_held(workload) else "",
        f"not yet changed on {', '.join(old)}" if old else "",
    )
    name = f"{workload.get('kind')} {head.get('namespace')}/{head.get('name')}"
    return f"{name} ({'; '.join(filter(None, words))})"


def _image(workload: Mapping[str, Any]) -> str:
    containers = mappings(mapping(_template(workload).get("spec")).get("containers"))
    return str(containers[0].get("image", "")) if containers else ""


def _template(workload: Mapping[str, Any]) -> Mapping[str, Any]:
    return mapping(mapping(workload.get("spec")).get("template"))


def _nodes_of_before(workload: Mapping[str, Any], pods: Sequence[Mapping[str, Any]]) -> List[str]:
    """Return the nodes with a pod of the workload that was made of another template than it has."""
    mark, head = annotations_of(_template(workload)).get(TEMPLATE), metadata_of(workload)
    nodes = {
        mapping(pod.get("spec")).get("nodeName")
        for pod in pods
        if metadata_of(pod).get("namespace") == head.get("namespace")
        and labels_of(pod).get("app.kubernetes.io/name") == head.get("name")
        and annotations_of(pod).get(TEMPLATE) != mark
    }
    return sorted(filter(None, nodes)) if mark else []
