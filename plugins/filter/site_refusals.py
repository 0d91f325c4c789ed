# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter ``accel.kubernetes.site_refusals``."""

from __future__ import annotations

DOCUMENTATION = r"""
name: site_refusals
short_description: List why the playbook site refuses an inventory
version_added: 0.1.0
author: Accel Kubernetes contributors (@accel-kubernetes)
description:
  - Looks for groups without a host, and for values of C(gpu_mode) that are none of the modes.
options:
  layout:
    description: The C(scheduler_layout) of the controller.
    type: str
    default: auto
extends_documentation_fragment:
  - accel.kubernetes.inventory
"""

EXAMPLES = r"""
- name: Fail if the inventory is invalid
  ansible.builtin.fail:
    msg: "{{ refusals | map(attribute='message') | join(' ') }}"
  vars:
    refusals: "{{ groups | accel.kubernetes.site_refusals(hostvars) }}"
  when: refusals | length > 0
"""

RETURN = r"""
_value:
  description: Each reason, with a C(code) for programs, and a C(message) with the remedy.
  type: list
  elements: dict
  sample: []
"""

from typing import Any, Callable, Dict, List, Mapping, Sequence

from ansible_collections.accel.kubernetes.plugins.module_utils.playbooks.site import refusals
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.inventory import Inventory


def site_refusals(
    groups: Mapping[str, Sequence[str]], hostvars: Mapping[str, Mapping[str, Any]], layout: str = "auto"
) -> List[Dict[str, str]]:
    """Return each reason."""
    return [dict(vars(each)) for each in refusals(Inventory(hostvars, groups), layout)]


class FilterModule:
    """The filters of this file."""

    def filters(self) -> Dict[str, Callable[..., Any]]:
        """Return the functions by their names."""
        return {"site_refusals": site_refusals}
