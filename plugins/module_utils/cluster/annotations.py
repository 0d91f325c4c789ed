# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What annotations of nodes and workloads, and logs of pods, tell the roles. Pure.

Others may have written each of them: what cannot be read costs only its own object, and is reported.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Dict, Iterable, List, Mapping, Optional

from ansible_collections.accel.kubernetes.plugins.module_utils.shared import inventory_annotation, label_names
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.printable import line
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.reading import read_object, read_owned_labels
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.registers import (
    annotations_of,
    mapping,
    metadata_of,
)

BEFORE = "kube-accel.io/previous-object"
TAINT = "kube-accel.io/taint"
LABELS = label_names.OWNED
_LONGEST = 256 << 10
"""Characters of an annotation: the API server accepts no more for all of an object."""
_TAINT_KEYS = ("key", "value", "effect")
_CHECK_KEYS = ("name", "status", "detail", "remedy")
_MOST_CHECKS = 64


@dataclass(frozen=True)
class NodeTold:
    """What annotations of ours say of a node."""

    healthy: Optional[int] = 0
    """GPUs that are; None where that cannot be read."""
    driver: str = ""
    taint: Dict[str, str] = field(default_factory=dict)
    """The taint that a role put there."""
    labels: List[str] = field(default_factory=list)
    """Names of the labels that the plugin keeps."""
    problems: List[str] = field(default_factory=list)
    """Which annotations cannot be read, a sentence each: node, annotation, cause, and remedy."""


@dataclass(frozen=True)
class Before:
    """What a workload's note says that it was before a rollout."""

    noted: bool = False
    object: Optional[Dict[str, Any]] = None
    """None where it was not there."""
    image: str = ""
    """The image of its first container."""
    template: str = ""
    """Checksum of its pods' template."""
    problem: str = ""


def node_told(node: object) -> NodeTold:
    """Return what the annotations of ours say of a node, by its object; nothing of a node that is not there."""
    metadata = metadata_of(node)
    name, annotations = str(metadata.get("name") or ""), mapping(metadata.get("annotations"))
    healthy: Optional[int] = 0
    driver, taint, problems = "", {}, []
    if inventory_annotation.INVENTORY in annotations:
        try:
            said = inventory_annotation.read_inventory(annotations[inventory_annotation.INVENTORY])
            healthy, driver = said.healthy, said.driver
        except ValueError as error:
            healthy = None
            problems.append(
                f"node {name}: {inventory_annotation.unreadable(name, inventory_annotation.INVENTORY, error)}"
            )
    if TAINT in annotations:
        try:
            taint = _taint(annotations[TAINT])
        except ValueError as error:
            problems.append(
                f"node {name}: annotation {TAINT} cannot be read: {error}; so the role does not know which taint it"
                f" added. Remove this taint yourself, and run kubectl annotate node {name} {TAINT}-"
            )
    return NodeTold(healthy, driver, taint, read_owned_labels(annotations.get(LABELS)), problems)


def before(found: object) -> Before:
    """Return what a workload was before the rollout that is under way, by its object as it is."""
    metadata = metadata_of(found)
    note = mapping(metadata.get("annotations")).get(BEFORE)
    if note is None:
        return Before()
    if note == "null":
        return Before(noted=True)
    try:
        was = read_object(note, _LONGEST)
        image, template = _workload(was, mapping(found))
    except ValueError as error:
        what = f"{mapping(found).get('kind')} {metadata.get('namespace', '')}/{metadata.get('name')}"
        return Before(
            problem=f"{what}: annotation {BEFORE} cannot be read: {error}; so the object before the rollout"
            " is not known. Run site.yml with the previous settings, which applies the object again"
        )
    return Before(True, was, image, template)


def checks(lines: Iterable[object]) -> List[Dict[str, str]]:
    """Return what ``kube-accel validate --pod`` found, from the last line of its pod's log that tells; each as text."""
    for said in reversed(list(lines)):
        try:
            found = read_object(said, _LONGEST).get("checks")
        except ValueError:
            continue
        if isinstance(found, list):
            entries = [mapping(entry) for entry in found[:_MOST_CHECKS]]
            return [{key: line(entry.get(key) or "") for key in _CHECK_KEYS} for entry in entries]
    return []


def _taint(text: object) -> Dict[str, str]:
    found: Dict[str, str] = read_object(text, _LONGEST)
    if not all(key in _TAINT_KEYS and isinstance(value, str) for key, value in found.items()):
        raise ValueError("not a taint with key, value, and effect")
    return found


def _workload(was: Mapping[str, Any], found: Mapping[str, Any]) -> "tuple[str, str]":
    """Image and checksum of the template of an object that was noted. Raises ValueError unless it is the same one."""
    then, now = metadata_of(was), metadata_of(found)
    same = was.get("kind", found.get("kind")) == found.get("kind")
    if not same or any(then.get(key, now.get(key)) != now.get(key) for key in ("name", "namespace")):
        raise ValueError("it belongs to another object")
    template = mapping(mapping(was.get("spec")).get("template"))
    containers = mapping(template.get("spec")).get("containers")
    image = mapping(containers[0]).get("image") if isinstance(containers, list) and containers else ""
    mark = annotations_of(template).get("kube-accel.io/template")
    if found.get("kind") in ("DaemonSet", "Deployment") and not (isinstance(image, str) and image):
        raise ValueError("it has no container with an image")
    return str(image or ""), mark if isinstance(mark, str) else ""
