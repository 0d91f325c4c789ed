# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter ``accel.kubernetes.scheduler_leftovers``."""

from __future__ import annotations

DOCUMENTATION = r"""
name: scheduler_leftovers
short_description: List what earlier runs of the role scheduler left
version_added: 0.1.0
author: Accel Kubernetes contributors (@accel-kubernetes)
description:
  - Compares the role's objects in the cluster and on the host with the plan, and returns which to remove.
extends_documentation_fragment:
  - accel.kubernetes.scheduler_asked
options:
  swept:
    description: Result of M(kubernetes.core.k8s_info) in a loop over kinds, for objects of this collection.
    type: dict
    required: true
  files:
    description: Result of M(ansible.builtin.find) for the directory of certificates.
    type: dict
"""

EXAMPLES = r"""
- name: Report what is no longer wanted
  ansible.builtin.debug:
    msg: "{{ left.unwanted }}"
  vars:
    left: "{{ __scheduler_asked | accel.kubernetes.scheduler_leftovers(hostvars, groups, __scheduler_swept) }}"
"""

RETURN = r"""
_value:
  description: As the class C(Leftovers) of the collection's C(module_utils/scheduler/leftovers.py) describes.
  type: dict
  sample: {unwanted: [], unedited: [], remove: false, report: "", files: []}
"""

from typing import Any, Callable, Dict

from ansible_collections.accel.kubernetes.plugins.module_utils.scheduler.role import scheduler_leftovers


class FilterModule:
    """The filters of this file."""

    def filters(self) -> Dict[str, Callable[..., Any]]:
        """Return the functions by their names."""
        return {"scheduler_leftovers": scheduler_leftovers}
