# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter ``accel.kubernetes.unfinished_rollouts``."""

from __future__ import annotations

DOCUMENTATION = r"""
name: unfinished_rollouts
short_description: Workloads that a rollout has neither kept nor put back
version_added: 0.1.0
author: Accel Kubernetes contributors (@accel-kubernetes)
description:
  - Finds workloads of the collection that have a note of before, or whose DaemonSet is held by C(OnDelete).
options:
  _input:
    description: Results of M(kubernetes.core.k8s_info) in a loop over the kinds of workloads.
    type: dict
    required: true
  pods:
    description: The result for the pods of these workloads, which tell on which nodes they are still as before.
    type: dict
    default: {}
"""

EXAMPLES = r"""
- name: Name the workloads
  ansible.builtin.debug:
    msg: "{{ workloads | accel.kubernetes.unfinished_rollouts(pods) | map(attribute='says') | join(', ') }}"
"""

RETURN = r"""
_value:
  description: The name of each workload, and what is to be said of it.
  type: list
  elements: dict
  sample: [{name: plugin, says: "DaemonSet kube-system/plugin (from image i:1 to i:2; held, OnDelete)"}]
"""

from typing import Any, Callable, Dict, List, Mapping

from ansible_collections.accel.kubernetes.plugins.module_utils.gpu_plugins.plain import plain
from ansible_collections.accel.kubernetes.plugins.module_utils.gpu_plugins.rollout_objects import unfinished_rollouts
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.registers import resources


def unfinished_rollouts_filter(workloads: Mapping[str, Any], pods: object = None) -> List[Dict[str, str]]:
    """Return the workloads as plain values."""
    found: List[Dict[str, str]] = plain(unfinished_rollouts(resources(workloads), resources(pods)))
    return found


class FilterModule:
    """The filters of this file."""

    def filters(self) -> Dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {"unfinished_rollouts": unfinished_rollouts_filter}
