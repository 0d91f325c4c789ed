# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter ``accel.kubernetes.migration_progress``."""

from __future__ import annotations

DOCUMENTATION = r"""
name: migration_progress
short_description: Check whether another plugin has left a node, or offers its GPUs again
version_added: 0.1.0
author: Accel Kubernetes contributors (@accel-kubernetes)
description:
  - Reads what was found of the node, or of its pods, and what the plan has of the node.
options:
  _input:
    description: Result of M(kubernetes.core.k8s_info).
    type: dict
    required: true
  plan:
    description: Entry of the node in the plan.
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Wait until the other plugin has left
  kubernetes.core.k8s_info:
    kind: Pod
    field_selectors: [spec.nodeName=gpu-1]
  register: pods
  until: (pods | accel.kubernetes.migration_progress(plan)).left
"""

RETURN = r"""
_value:
  description:
    - Whether no pod that was found is of the other plugin (C(left)), and whether a node that was found offers what the
      other plugin does (C(offered)).
    - Whether ResourceSlices that were found have devices of the other DRA driver (C(gives)).
  type: dict
  sample: {left: true, offered: false, gives: false}
"""

from typing import Any, Callable, Dict, Mapping

from ansible_collections.accel.kubernetes.plugins.module_utils.playbooks.migration import (
    gives_devices,
    has_left,
    offers,
)


def migration_progress(found: Mapping[str, Any], plan: Mapping[str, Any]) -> Dict[str, bool]:
    """Return what has happened."""
    return {
        "left": has_left(found, plan["uids"]),
        "offered": offers(found, plan["offers"]),
        "gives": gives_devices(found, plan["driver"]),
    }


class FilterModule:
    """The filters of this file."""

    def filters(self) -> Dict[str, Callable[..., Any]]:
        """Return the functions by their names."""
        return {"migration_progress": migration_progress}
