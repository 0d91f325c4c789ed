# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter ``accel.kubernetes.driver_plan``."""

from __future__ import annotations

DOCUMENTATION = r"""
name: driver_plan
short_description: Plan the changes to a host's driver
version_added: 0.1.0
author: Accel Kubernetes contributors (@accel-kubernetes)
description:
  - Decides what the role C(driver) does on a host, of its variables and of what was seen there.
options:
  _input:
    description:
      - C(options), the role's variables by their names, and C(seen), what is known of the host so far.
      - C(seen) has C(observation), the text that the role's C(observe.sh) printed, and C(connection), how the host is
        reached.
      - C(check), whether this is a dry run, C(branch_given), whether the inventory names a branch, and
        C(runfile_on_controller), whether the installer is a file there.
      - What tasks of the role registered as C(packages), C(source), C(installer), C(installation), C(fabric),
        C(reload), and C(nvml). What is not there counts as a task that has not run.
    type: dict
    required: true
  facts:
    description: Facts of the host, with those of M(accel.kubernetes.nvml_facts) once it was asked.
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Fail if the preflight checks found problems
  ansible.builtin.fail:
    msg: "{{ plan.refusals.preflight | map(attribute='message') | join(' ') }}"
  when: plan.refusals.preflight | length > 0
  vars:
    plan: "{{ asked | accel.kubernetes.driver_plan(ansible_facts) }}"
    asked:
      options: {driver_method: none}
      seen: {observation: "{{ observed.stdout }}", connection: ssh}
"""

RETURN = r"""
_value:
  description:
    - The plan. Its C(refusals) are lists of mappings with C(code) and C(message), by the moment at which the role asks.
  type: dict
"""

from typing import Any, Callable, Dict, Mapping

from ansible_collections.accel.kubernetes.plugins.module_utils.driver.plan import plan
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.plain import plain


def driver_plan(asked: Mapping[str, Any], facts: Mapping[str, Any]) -> Dict[str, object]:
    """Return the plan as a template reads it."""
    return dict(plain(plan(asked["options"], facts, asked["seen"])))


class FilterModule:
    """The filters of this file."""

    def filters(self) -> Dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {"driver_plan": driver_plan}
