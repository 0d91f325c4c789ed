# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter ``accel.kubernetes.rollout_plan``."""

from __future__ import annotations

DOCUMENTATION = r"""
name: rollout_plan
short_description: Plan whether a rollout begins, continues, is kept, or is undone
version_added: 0.1.0
author: Accel Kubernetes contributors (@accel-kubernetes)
description:
  - Decides for C(rollout.yml) by the facts that its hosts have kept.
options:
  _input:
    description: Variables of all hosts, C(hostvars).
    type: dict
    required: true
  groups:
    description: The groups of the inventory.
    type: dict
    required: true
  asked:
    description:
      - C(numbers) has C(rollout_first), C(rollout_soak), and C(rollout_pods_lost). C(layout) is that of the
        scheduler. C(played) are the hosts that C(--limit) leaves. C(check) is whether it is check mode. C(step) is
        the fact of the step that hosts must have passed.
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Decide whether the rollout goes on
  ansible.builtin.set_fact:
    rollout: "{{ hostvars | accel.kubernetes.rollout_plan(groups, {'numbers': numbers, 'step': 'rollout_renewed'}) }}"
"""

RETURN = r"""
_value:
  description:
    - The host of the C(extender), why the rollout is C(refused), its C(first_hosts), and the C(failure) for which it
      is undone. C(goes_on) and C(undoes) are whether it continues or undoes its changes. C(changes), C(result), and
      C(message) describe it.
  type: dict
"""

from typing import Any, Callable, Dict, Mapping

from ansible_collections.accel.kubernetes.plugins.module_utils.gpu_plugins.rollout_plan import Asked, rollout_plan
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.plain import plain


def rollout_plan_filter(
    hostvars: Mapping[str, Any], groups: Mapping[str, Any], asked: Mapping[str, Any]
) -> Dict[str, Any]:
    """Return how the rollout goes on, as plain values."""
    planned: Dict[str, Any] = plain(rollout_plan(hostvars, groups, Asked(**asked)))
    return planned


class FilterModule:
    """The filters of this file."""

    def filters(self) -> Dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {"rollout_plan": rollout_plan_filter}
