# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter ``accel.kubernetes.rollout_objects``."""

from __future__ import annotations

DOCUMENTATION = r"""
name: rollout_objects
short_description: Plan what a rollout writes to objects, and what restores them
version_added: 0.1.0
author: Accel Kubernetes contributors (@accel-kubernetes)
description:
  - Plans the objects to apply with the annotation V(kube-accel.io/previous-object), which notes what each of them was,
    and the same with DaemonSets that are held by C(OnDelete).
  - Reads the notes of a rollout that is under way, which tell what to put back and what to remove.
options:
  _input:
    description:
      - Results of M(kubernetes.core.k8s_info) in a loop over the objects to apply, each with the object as C(item), and
        with C(resources) as the cluster has it.
    type: list
    elements: dict
    required: true
  check:
    description: Whether this is check mode, which shows the change without notes.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Read the current objects
  kubernetes.core.k8s_info:
    api_version: "{{ item.apiVersion }}"
    kind: "{{ item.kind }}"
    namespace: "{{ item.metadata.namespace | default(omit) }}"
    name: "{{ item.metadata.name }}"
  loop: "{{ objects }}"
  register: found

- name: Restore the previous objects
  kubernetes.core.k8s:
    apply: true
    definition: "{{ item }}"
  loop: "{{ (found.results | accel.kubernetes.rollout_objects).put_back }}"
"""

RETURN = r"""
_value:
  description:
    - C(changes) names the objects. C(noted) and C(held) are the objects to apply. C(put_back) are the objects of
      before, C(remove) those that were not there, and C(templates) the checksums of templates that DaemonSets had.
      C(problems) are notes that cannot be read.
  type: dict
  sample: {changes: [DaemonSet plugin], noted: [], held: [], put_back: [], remove: [], templates: {}, problems: []}
"""

from typing import Any, Callable, Dict, Iterable, Mapping

from ansible_collections.accel.kubernetes.plugins.module_utils.gpu_plugins.rollout_objects import rollout_objects
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.plain import plain


def rollout_objects_filter(found: Iterable[Mapping[str, Any]], check: bool = False) -> Dict[str, Any]:
    """Return what becomes of the objects, as plain values."""
    planned: Dict[str, Any] = plain(rollout_objects(found, check))
    return planned


class FilterModule:
    """The filters of this file."""

    def filters(self) -> Dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {"rollout_objects": rollout_objects_filter}
