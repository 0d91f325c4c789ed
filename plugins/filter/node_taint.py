# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter ``accel.kubernetes.node_taint``."""

from __future__ import annotations

DOCUMENTATION = r"""
name: node_taint
short_description: How a node comes to have our taint
version_added: 0.1.0
author: Accel Kubernetes contributors (@accel-kubernetes)
description:
  - Plans the change of the one taint of a node that a role put there. Taints of others stay.
options:
  _input:
    description: The node, as the API server has it.
    type: dict
    required: true
  wanted:
    description: The taint, with key, effect, and perhaps value; empty for none.
    type: dict
    required: true
  tolerations:
    description: Tolerations of the pods that are to stay on the node.
    type: list
    elements: dict
    default: []
"""

EXAMPLES = r"""
- name: Say whether the taint changes
  ansible.builtin.debug:
    msg: "{{ (node | accel.kubernetes.node_taint({'key': 'nvidia.com/gpu', 'effect': 'NoSchedule'})).due }}"
"""

RETURN = r"""
_value:
  description: Whether a change is due, the JSON patch that makes it, and whether the tolerations tolerate the taint.
  type: dict
  sample: {due: false, patch: [], tolerated: true}
"""

from typing import Any, Callable, Dict, Iterable, Mapping

from ansible_collections.accel.kubernetes.plugins.module_utils.gpu_plugins.taint import taint_plan


def node_taint(
    node: Mapping[str, Any], wanted: Mapping[str, Any], tolerations: Iterable[Mapping[str, Any]] = ()
) -> Dict[str, Any]:
    """Return how the node comes to have the wanted taint of ours alone."""
    return dict(vars(taint_plan(node, wanted, tolerations)))


class FilterModule:
    """The filters of this file."""

    def filters(self) -> Dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {"node_taint": node_taint}
