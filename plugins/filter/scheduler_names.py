# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter ``accel.kubernetes.scheduler_names``."""

from __future__ import annotations

DOCUMENTATION = r"""
name: scheduler_names
short_description: Names for which kube-scheduler schedules
version_added: 0.1.0
author: Accel Kubernetes contributors (@accel-kubernetes)
description:
  - Lists what a pod may have as C(spec.schedulerName) for one of these kube-schedulers to schedule it.
options:
  _input:
    description: KubeSchedulerConfigurations. One without profiles, as V({}), has the profile V(default-scheduler).
    type: list
    elements: dict
    required: true
  more:
    description: Names to add.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: Say which schedulers there are
  ansible.builtin.debug:
    msg: "{{ [configuration] | accel.kubernetes.scheduler_names(['volcano']) }}"
"""

RETURN = r"""
_value:
  description: The names, each once.
  type: list
  elements: str
  sample: [default-scheduler, volcano]
"""

from typing import Any, Callable, Dict

from ansible_collections.accel.kubernetes.plugins.module_utils.admission import scheduler_names


class FilterModule:
    """The filters of this file."""

    def filters(self) -> Dict[str, Callable[..., Any]]:
        """By name."""
        return {"scheduler_names": scheduler_names}
