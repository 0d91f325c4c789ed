# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Options of the modules that say what happened."""

from __future__ import annotations


class ModuleDocFragment:
    """Documentation fragment ``accel.kubernetes.subject``."""

    DOCUMENTATION = r"""
options:
  pod:
    description: The pod. Its node is looked at too, or all nodes with GPUs while it has none.
    type: dict
    suboptions:
      name:
        description: Its name. Of a pod that is gone its events are looked at.
        type: str
        required: true
      namespace:
        description: Its namespace.
        type: str
        default: default
  node:
    description: The node. Without it and without O(pod), all nodes with GPUs and our daemons.
    type: str
  plugins_namespace:
    description: Where plugins run.
    type: str
    default: kube-system
"""
