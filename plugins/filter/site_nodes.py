# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter ``accel.kubernetes.site_nodes``."""

from __future__ import annotations

DOCUMENTATION = r"""
name: site_nodes
short_description: Return what the playbook site knows of the GPU nodes
version_added: 0.1.0
author: Accel Kubernetes contributors (@accel-kubernetes)
description:
  - Reads the facts that the playbook and the role driver left on the hosts that were checked.
extends_documentation_fragment:
  - accel.kubernetes.inventory
"""

EXAMPLES = r"""
- name: Report what became of the nodes
  ansible.builtin.debug:
    msg: "{{ groups | accel.kubernetes.site_nodes(hostvars) }}"
"""

RETURN = r"""
_value:
  description:
    - By host its C(mode). Where NVML answered, C(driver) and the number of C(gpus). Where it is known,
      C(reboot_required).
  type: dict
  sample: {gpu-1: {mode: pgpu, driver: 580.95.05, gpus: 8, reboot_required: false}}
"""

from typing import Any, Callable, Dict, Mapping, Sequence

from ansible_collections.accel.kubernetes.plugins.module_utils.playbooks.site import nodes
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.inventory import Inventory


def site_nodes(
    groups: Mapping[str, Sequence[str]], hostvars: Mapping[str, Mapping[str, Any]]
) -> Dict[str, Dict[str, Any]]:
    """Return what is known of each node."""
    known: Dict[str, Dict[str, Any]] = nodes(Inventory(hostvars, groups))
    return known


class FilterModule:
    """The filters of this file."""

    def filters(self) -> Dict[str, Callable[..., Any]]:
        """Return the functions by their names."""
        return {"site_nodes": site_nodes}
