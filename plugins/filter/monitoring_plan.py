# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter ``accel.kubernetes.monitoring_plan``."""

from __future__ import annotations

DOCUMENTATION = r"""
name: monitoring_plan
short_description: Plan how Prometheus finds the GPU metrics
version_added: 0.1.0
author: Accel Kubernetes contributors (@accel-kubernetes)
description:
  - Decides on the method, what is scraped, where objects go and with which labels, and how long samples are kept.
  - Names what is against that, and what of an earlier run is no longer wanted.
options:
  _input:
    description:
      - What the role is asked for and saw, as its variable C(__monitoring_asked) has it. C(options) are variables by
        name, and C(seen) are results of tasks.
    type: dict
    required: true
  hostvars:
    description: The variables of all hosts.
    type: dict
    required: true
  groups:
    description: The hosts of each group.
    type: dict
    required: true
  rule_files:
    description: Texts of files with groups of rules for Prometheus. Without them the result has no rules.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: Report how Prometheus gets to know of the GPUs
  ansible.builtin.debug:
    msg: "{{ (__monitoring_asked | accel.kubernetes.monitoring_plan(hostvars, groups)).method }}"
"""

RETURN = r"""
_value:
  description:
    - As the classes C(Plan) and C(Files) of the collection's C(module_utils/monitoring) describe. Each of the
      C(refusals) has a C(code) for programs, and a C(message) with the remedy.
  type: dict
  sample: {method: operator, namespace: monitoring, refusals: []}
"""

from typing import Any, Callable, Dict

from ansible_collections.accel.kubernetes.plugins.module_utils.monitoring.role import monitoring_plan


class FilterModule:
    """The filters of this file."""

    def filters(self) -> Dict[str, Callable[..., Any]]:
        """Return the functions by their names."""
        return {"monitoring_plan": monitoring_plan}
