# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter ``accel.kubernetes.quantity``."""

from __future__ import annotations

DOCUMENTATION = r"""
name: quantity
short_description: Return a Kubernetes quantity in whole units
version_added: 0.1.0
author: Accel Kubernetes contributors (@accel-kubernetes)
description:
  - Reads amounts as they stand in objects of a cluster, whose API server writes V(1000) as V(1k).
options:
  _input:
    description: Quantity, as in a node's C(status.allocatable), a container's limits or a ResourceQuota.
    type: raw
    required: true
"""

EXAMPLES = r"""
- name: Report the GPUs that a node offers
  ansible.builtin.debug:
    msg: "{{ offered['tencent.com/vcuda-core'] | default(0) | accel.kubernetes.quantity // 100 }} GPUs"
  vars:
    offered: "{{ node.resources[0].status.allocatable }}"
"""

RETURN = r"""
_value:
  description: The number, without the part of a unit.
  type: int
  sample: 1000
"""

from typing import Any, Callable, Dict

from ansible.errors import AnsibleFilterError
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.quantity import whole_units


def quantity(value: object) -> int:
    """Raises AnsibleFilterError for what is no quantity."""
    number = whole_units(value)
    if number is None:
        raise AnsibleFilterError(f"{value!r} is not a Kubernetes quantity; give it a number such as 8, 1k or 320Gi")
    return number


class FilterModule:
    """The filters of this file."""

    def filters(self) -> Dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {"quantity": quantity}
