# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter ``accel.kubernetes.scheduler_progress``."""

from __future__ import annotations

DOCUMENTATION = r"""
name: scheduler_progress
short_description: Return the progress of a rollout of the extender
version_added: 0.1.0
author: Accel Kubernetes contributors (@accel-kubernetes)
description:
  - Looks at pods, or at the workload that makes them.
options:
  _input:
    description: Pods of the extender, or the DaemonSet or Deployment that makes them.
    type: list
    elements: dict
    required: true
  layout:
    description: The layout that is rolled out.
    type: str
    required: true
"""

EXAMPLES = r"""
- name: Wait until the extender is ready
  kubernetes.core.k8s_info:
    kind: Pod
    namespace: kube-system
    label_selectors: [app.kubernetes.io/name=kube-accel-extender]
  register: pods
  until: (pods.resources | accel.kubernetes.scheduler_progress('local')).ready | length > 0
"""

RETURN = r"""
_value:
  description: Names of the pods that are C(ready), and whether the workload is C(rolled) out.
  type: dict
  sample: {ready: [kube-accel-extender-x7k2p], rolled: false}
"""

from typing import Any, Callable, Dict

from ansible_collections.accel.kubernetes.plugins.module_utils.scheduler.role import scheduler_progress


class FilterModule:
    """The filters of this file."""

    def filters(self) -> Dict[str, Callable[..., Any]]:
        """Return the functions by their names."""
        return {"scheduler_progress": scheduler_progress}
