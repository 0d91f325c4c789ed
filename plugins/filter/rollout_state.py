# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter ``accel.kubernetes.rollout_state``."""

from __future__ import annotations

DOCUMENTATION = r"""
name: rollout_state
short_description: Compare the health of nodes and pods with that before a rollout
version_added: 0.1.0
author: Accel Kubernetes contributors (@accel-kubernetes)
description:
  - Reads the GPUs that plugins report for their nodes, and the pods that run.
  - Compares both with an earlier state. Four changes count as harm. These are fewer healthy GPUs, a node with
    C(GpusHealthy=False), GPU pods that no longer run, and pods of the collection that restarted.
options:
  _input:
    description: The result of M(kubernetes.core.k8s_info) for nodes.
    type: dict
    required: true
  pods:
    description: The result for pods.
    type: dict
    required: true
  holders:
    description: Namespace and name of the pods that hold GPUs.
    type: list
    elements: str
    required: true
  before:
    description: Earlier result of this filter.
    type: dict
    default: {}
  lost:
    description: Number of pods with GPUs that may have failed.
    type: int
    default: 0
"""

EXAMPLES = r"""
- name: Fail if nodes or pods are worse than before
  ansible.builtin.fail:
    msg: "{{ state.harm | join(' ') }}"
  when: state.harm | length > 0
  vars:
    state: "{{ nodes | accel.kubernetes.rollout_state(pods, [], before) }}"
"""

RETURN = r"""
_value:
  description:
    - C(nodes) by name have the number of C(healthy) GPUs and what is C(bad). C(pods) are by uid. C(problems) are
      about annotations that cannot be read. C(harm) has a sentence for each thing that is worse than before.
  type: dict
  sample: {nodes: {gpu-1: {healthy: 8, bad: ""}}, pods: {}, problems: [], harm: []}
"""

from dataclasses import replace
from typing import Any, Callable, Collection, Dict, Mapping

from ansible_collections.accel.kubernetes.plugins.module_utils.gpu_plugins.rollout_state import (
    cluster_state,
    harm,
    read_state,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.plain import plain
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.registers import resources


def rollout_state_filter(
    nodes: Mapping[str, Any],
    pods: Mapping[str, Any],
    holders: Collection[str],
    before: object = None,
    lost: object = 0,
) -> Dict[str, Any]:
    """Return how nodes and pods are, as plain values."""
    now = cluster_state(resources(nodes), resources(pods), set(holders))
    worse = harm(read_state(before), now, int(str(lost)))
    found: Dict[str, Any] = plain(replace(now, harm=worse))
    return found


class FilterModule:
    """The filters of this file."""

    def filters(self) -> Dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {"rollout_state": rollout_state_filter}
