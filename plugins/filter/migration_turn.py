# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter ``accel.kubernetes.migration_turn``."""

from __future__ import annotations

DOCUMENTATION = r"""
name: migration_turn
short_description: Plan what the playbook migrate does to a cluster
version_added: 0.1.0
author: Accel Kubernetes contributors (@accel-kubernetes)
description:
  - Decides for all nodes that the run reaches. Hosts without the facts of the playbook do not count.
options:
  _input:
    description: Variables of the hosts.
    type: list
    elements: dict
    required: true
  back:
    description: Whether nodes are given back to the other plugin.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Report whether our extender replaces another
  ansible.builtin.debug:
    msg: "{{ (groups.gpu_nodes | map('extract', hostvars) | accel.kubernetes.migration_turn).extended }}"
"""

RETURN = r"""
_value:
  description:
    - C(extended) is whether kube-scheduler must call this collection's extender instead of the other plugin's.
      C(hold) is the patches that keep this collection's plugin off nodes until their turn. C(ends) is whether
      kube-scheduler is given back.
  type: dict
  sample: {extended: false, hold: [], ends: false}
"""

from typing import Any, Callable, Dict, Iterable, Mapping

from ansible_collections.accel.kubernetes.plugins.module_utils.playbooks.migration import turn


def migration_turn(hosts: Iterable[Mapping[str, Any]], back: bool = False) -> Dict[str, Any]:
    """Return what is done to the cluster."""
    return dict(vars(turn(hosts, back)))


class FilterModule:
    """The filters of this file."""

    def filters(self) -> Dict[str, Callable[..., Any]]:
        """Return the functions by their names."""
        return {"migration_turn": migration_turn}
