# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter ``accel.kubernetes.given_up_nodes``."""

from __future__ import annotations

DOCUMENTATION = r"""
name: given_up_nodes
short_description: List the GPU nodes that the playbook uninstall removes, and those that keep a mode
version_added: 0.1.0
author: Accel Kubernetes contributors (@accel-kubernetes)
description:
  - Compares the GPU nodes of the run with the nodes of the cluster that have a mode.
options:
  hosts:
    description: Names of the hosts of the run.
    type: list
    elements: str
    required: true
  labelled:
    description: Result of M(kubernetes.core.k8s_info) for nodes with the label of a mode.
    type: dict
    default: {}
extends_documentation_fragment:
  - accel.kubernetes.inventory
"""

EXAMPLES = r"""
- name: Report the nodes that uninstall removes
  ansible.builtin.debug:
    msg: "{{ (groups | accel.kubernetes.given_up_nodes(hostvars, ansible_play_hosts)).nodes }}"
"""

RETURN = r"""
_value:
  description:
    - C(nodes) lists the hosts of GPU nodes in the run. C(driver) is whether the role removed the driver of one of them.
      C(serving) lists the nodes that keep a mode.
  type: dict
  sample: {nodes: [gpu-1], driver: false, serving: []}
"""

from typing import Any, Callable, Dict, Mapping, Sequence

from ansible_collections.accel.kubernetes.plugins.module_utils.playbooks.uninstall import given_up
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.inventory import Inventory


def given_up_nodes(
    groups: Mapping[str, Sequence[str]],
    hostvars: Mapping[str, Mapping[str, Any]],
    hosts: Sequence[str],
    labelled: object = None,
) -> Dict[str, Any]:
    """Return what becomes of the nodes."""
    return dict(vars(given_up(Inventory(hostvars, groups), hosts, labelled)))


class FilterModule:
    """The filters of this file."""

    def filters(self) -> Dict[str, Callable[..., Any]]:
        """Return the functions by their names."""
        return {"given_up_nodes": given_up_nodes}
