# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter ``accel.kubernetes.scheduler_objects``."""

from __future__ import annotations

DOCUMENTATION = r"""
name: scheduler_objects
short_description: List what the role scheduler creates in the cluster
version_added: 0.1.0
author: Accel Kubernetes contributors (@accel-kubernetes)
description:
  - Decides what the templates of the role need beside the plan, such as NetworkPolicies and names of schedulers.
extends_documentation_fragment:
  - accel.kubernetes.scheduler_asked
options:
  answers:
    description:
      - C(cluster), the result of M(kubernetes.core.k8s_info) in a loop over the C(reads) of the plan, that for the
        C(secret) of the second scheduler, and the C(version) of M(kubernetes.core.k8s_cluster_info).
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Report for which schedulers a pod with a share may ask
  ansible.builtin.debug:
    msg: "{{ (__scheduler_asked | accel.kubernetes.scheduler_objects(hostvars, groups, {})).schedulers }}"
"""

RETURN = r"""
_value:
  description: As the class C(Objects) of the collection's C(module_utils/scheduler/objects.py) describes.
  type: dict
  sample: {policies: [kube-accel-shares], schedulers: [default-scheduler]}
"""

from typing import Any, Callable, Dict

from ansible_collections.accel.kubernetes.plugins.module_utils.scheduler.role import scheduler_objects


class FilterModule:
    """The filters of this file."""

    def filters(self) -> Dict[str, Callable[..., Any]]:
        """Return the functions by their names."""
        return {"scheduler_objects": scheduler_objects}
