# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter ``accel.kubernetes.migration_step``."""

from __future__ import annotations

DOCUMENTATION = r"""
name: migration_step
short_description: Plan what the playbook migrate does to a node
version_added: 0.1.0
author: Accel Kubernetes contributors (@accel-kubernetes)
description:
  - Decides whether a step is due, and if not, why.
  - A node that is given back needs what it was taken over from, and pods that can return.
options:
  _input:
    description: The C(migration) that M(accel.kubernetes.gpu_migration_info) returned.
    type: dict
    required: true
  node:
    description: Name of the node.
    type: str
    required: true
  back:
    description: Whether nodes are given back to the other plugin.
    type: bool
    default: false
  strand:
    description: Whether pods may be evicted that ask for what nodes offer no longer.
    type: bool
    default: false
  control_planes:
    description: Whether the run reaches hosts whose kube-scheduler can ask our extender.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Report whether the node is to be migrated
  ansible.builtin.debug:
    msg: "{{ (seen.migration | accel.kubernetes.migration_step('gpu-1')).due }}"
"""

RETURN = r"""
_value:
  description:
    - The node's part of the plan. C(due) is whether a step is due, and C(reason) is why the node is drained. C(avoid)
      is the patches with which DaemonSets avoid marked nodes. C(extended) is whether this collection's extender
      should replace another, and C(extender_coming) is whether the run installs it. C(refusals) each have a C(code)
      and a C(message).
  type: dict
  sample: {state: due, due: true, reason: is taken over from HAMi, avoid: [], refusals: []}
"""

from typing import Any, Callable, Dict, Mapping

from ansible_collections.accel.kubernetes.plugins.module_utils.playbooks.migration import Terms, step


def migration_step(
    migration: Mapping[str, Any], node: str, back: bool = False, strand: bool = False, control_planes: bool = False
) -> Dict[str, Any]:
    """Return what is done to the node, beside what the plan has of it."""
    planned = step(migration, node, Terms(back, strand, control_planes))
    refusals = [dict(vars(each)) for each in planned.refusals]
    return {**migration["nodes"][node], **vars(planned), "refusals": refusals}


class FilterModule:
    """The filters of this file."""

    def filters(self) -> Dict[str, Callable[..., Any]]:
        """Return the functions by their names."""
        return {"migration_step": migration_step}
