# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter ``accel.kubernetes.benchmark_layouts``."""

from __future__ import annotations

DOCUMENTATION = r"""
name: benchmark_layouts
short_description: List the layouts that the playbook benchmark gives a node in turn
version_added: 0.1.0
author: Accel Kubernetes contributors (@accel-kubernetes)
description:
  - Reads what a person asked for, and refuses what the node's host cannot have.
options:
  _input:
    description: Modes, or C(pgpu/NAME) with a configuration, as a list or as a text with commas.
    type: raw
    required: true
  node:
    description: Name of the node.
    type: str
    required: true
  hostvars:
    description: Variables of the hosts.
    type: dict
    required: true
  groups:
    description: Hosts by group.
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Plan the layouts
  ansible.builtin.debug:
    msg: "{{ 'pgpu,vgpu' | accel.kubernetes.benchmark_layouts('gpu-1', hostvars, groups) }}"
"""

RETURN = r"""
_value:
  description: The layouts, the host of the node, and why nothing is measured, as C(refusals).
  type: dict
  sample: {layouts: [{mode: vgpu, config: "", mig_config: "", name: vgpu}], host: gpu-1, refusals: []}
"""

from typing import Any, Callable, Dict, Mapping, Sequence

from ansible_collections.accel.kubernetes.plugins.module_utils.benchmark.layouts import turns


def benchmark_layouts(
    wanted: object, node: str, hostvars: Mapping[str, Mapping[str, Any]], groups: Mapping[str, Sequence[str]]
) -> Dict[str, Any]:
    """Return the layouts of a node in turn."""
    return turns(wanted, node, hostvars, groups).document()


class FilterModule:
    """The filters of this file."""

    def filters(self) -> Dict[str, Callable[..., Any]]:
        """Return the functions by their names."""
        return {"benchmark_layouts": benchmark_layouts}
