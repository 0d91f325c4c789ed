# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter ``accel.kubernetes.container_runtime_plan``."""

from __future__ import annotations

DOCUMENTATION = r"""
name: container_runtime_plan
short_description: Plan the changes to a host's container runtime
version_added: 0.1.0
author: Accel Kubernetes contributors (@accel-kubernetes)
description:
  - Decides what the role C(container_runtime) does on a host, of its variables and of what was seen there.
options:
  _input:
    description: The role's variables by their names, with C(gpu_mode) and C(gpu_plugins_device_list_strategy).
    type: dict
    required: true
  facts:
    description: Facts of the host.
    type: dict
    required: true
  seen:
    description:
      - The C(host), its C(groups), and C(removing), whether the role takes its part away.
      - What tasks of the role registered as C(found), C(looked), C(kubelet), C(key), C(installation), and C(answer).
        What is not there counts as a task that has not run.
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Fail if the preflight checks found problems
  ansible.builtin.fail:
    msg: "{{ plan.refusals.preflight | map(attribute='message') | join(' ') }}"
  when: plan.refusals.preflight | length > 0
  vars:
    plan: "{{ {'container_runtime_name': 'docker'} | accel.kubernetes.container_runtime_plan(ansible_facts, seen) }}"
    seen: {host: "{{ inventory_hostname }}", found: "{{ found }}"}
"""

RETURN = r"""
_value:
  description:
    - The plan, as the class C(Plan) of the collection's C(module_utils/runtime/plan.py) describes it. Its C(refusals)
      are lists of mappings with C(code) and C(message), by the moment at which the role asks.
  type: dict
"""

from typing import Any, Callable, Dict, Mapping

from ansible_collections.accel.kubernetes.plugins.module_utils.runtime.plan import plan
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.plain import plain


def container_runtime_plan(
    options: Mapping[str, Any], facts: Mapping[str, Any], seen: Mapping[str, Any]
) -> Dict[str, Any]:
    """Return the plan as a template reads it."""
    return dict(plain(plan(options, facts, seen)))


class FilterModule:
    """The filters of this file."""

    def filters(self) -> Dict[str, Callable[..., Any]]:
        """Return the functions by their names."""
        return {"container_runtime_plan": container_runtime_plan}
