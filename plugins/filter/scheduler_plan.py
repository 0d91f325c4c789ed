# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter ``accel.kubernetes.scheduler_plan``."""

from __future__ import annotations

DOCUMENTATION = r"""
name: scheduler_plan
short_description: Plan the changes of the role scheduler to kube-scheduler on a host
version_added: 0.1.0
author: Accel Kubernetes contributors (@accel-kubernetes)
description:
  - Decides on the layout, the extenders that kube-scheduler calls, what is mounted into its pod, and what a host needs.
extends_documentation_fragment:
  - accel.kubernetes.scheduler_asked
"""

EXAMPLES = r"""
- name: Report how GPUs are shared
  ansible.builtin.debug:
    msg: "{{ (__scheduler_asked | accel.kubernetes.scheduler_plan(hostvars, groups)).layout }}"
"""

RETURN = r"""
_value:
  description:
    - The C(layout), the C(extenders) and C(mounts) as options of M(accel.kubernetes.scheduler_extender), its C(state),
      and further decisions that the class C(Plan) of the collection's C(module_utils/scheduler/layout.py) describes.
  type: dict
  sample: {layout: local, state: present}
"""

from typing import Any, Callable, Dict

from ansible_collections.accel.kubernetes.plugins.module_utils.scheduler.role import scheduler_plan


class FilterModule:
    """The filters of this file."""

    def filters(self) -> Dict[str, Callable[..., Any]]:
        """Return the functions by their names."""
        return {"scheduler_plan": scheduler_plan}
