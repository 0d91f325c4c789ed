# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter ``accel.kubernetes.scheduler_refusals``."""

from __future__ import annotations

DOCUMENTATION = r"""
name: scheduler_refusals
short_description: List why the role scheduler cannot configure a host
version_added: 0.1.0
author: Accel Kubernetes contributors (@accel-kubernetes)
description:
  - Names values of variables that cannot be, and what on the host or in the cluster is against the plan.
extends_documentation_fragment:
  - accel.kubernetes.scheduler_asked
options:
  cluster:
    description: Result of M(kubernetes.core.k8s_info) in a loop over the C(reads) of the plan.
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Fail if the preflight checks found problems
  ansible.builtin.assert:
    that: refusals | length == 0
    fail_msg: "{{ refusals | map(attribute='message') | join(' ') }}"
  vars:
    refusals: "{{ __scheduler_asked | accel.kubernetes.scheduler_refusals(hostvars, groups, __scheduler_cluster) }}"
"""

RETURN = r"""
_value:
  description: A C(code) for programs, and a C(message) with the remedy, for each reason.
  type: list
  elements: dict
  sample:
    - code: policy_unknown
      message: scheduler_policy is 'pack'; set it to binpack or spread.
"""

from typing import Any, Callable, Dict

from ansible_collections.accel.kubernetes.plugins.module_utils.scheduler.role import scheduler_refusals


class FilterModule:
    """The filters of this file."""

    def filters(self) -> Dict[str, Callable[..., Any]]:
        """Return the functions by their names."""
        return {"scheduler_refusals": scheduler_refusals}
