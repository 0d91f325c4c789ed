# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter ``accel.kubernetes.scheduler_kubeadm``."""

from __future__ import annotations

DOCUMENTATION = r"""
name: scheduler_kubeadm
short_description: Plan what the role scheduler writes to kubeadm's configuration
version_added: 0.1.0
author: Accel Kubernetes contributors (@accel-kubernetes)
description:
  - Decides the settings of kube-scheduler in kubeadm's ClusterConfiguration, because an upgrade rewrites its
    manifest.
extends_documentation_fragment:
  - accel.kubernetes.scheduler_asked
options:
  cluster:
    description: Result of M(kubernetes.core.k8s_info) in a loop over the C(reads) of the plan.
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Report whether kubeadm is told something
  ansible.builtin.debug:
    msg: "{{ (__scheduler_asked | accel.kubernetes.scheduler_kubeadm(hostvars, groups, __scheduler_cluster)).differs }}"
"""

RETURN = r"""
_value:
  description: As the class C(Kubeadm) of the collection's C(module_utils/scheduler/kubeadm.py) describes.
  type: dict
  sample: {known: true, differs: false, unlike: {}}
"""

from typing import Any, Callable, Dict

from ansible_collections.accel.kubernetes.plugins.module_utils.scheduler.role import scheduler_kubeadm


class FilterModule:
    """The filters of this file."""

    def filters(self) -> Dict[str, Callable[..., Any]]:
        """Return the functions by their names."""
        return {"scheduler_kubeadm": scheduler_kubeadm}
