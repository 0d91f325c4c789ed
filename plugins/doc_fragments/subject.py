# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Options of the modules that say what happened."""

from __future__ import annotations


class ModuleDocFragment:
    """Documentation fragment ``accel.kubernetes.subject``."""

    DOCUMENTATION = r"""
options:
  pod:
    description: The pod. The module also looks at its node, or at all nodes with GPUs while it has none.
    type: dict
    suboptions:
      name:
        description: Name of the pod. If the pod is gone, the module looks at its events.
        type: str
        required: true
      namespace:
        description: Namespace of the pod.
        type: str
        default: default
  node:
    description: The node. Without O(node) and O(pod), the module looks at all nodes with GPUs and at the daemons of
      this collection.
    type: str
  plugins_namespace:
    description: Namespace of the plugins.
    type: str
    default: kube-system
"""
