# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter ``accel.kubernetes.before_rollout``."""

from __future__ import annotations

DOCUMENTATION = r"""
name: before_rollout
short_description: What a workload was before the rollout that is under way
version_added: 0.1.0
author: Accel Kubernetes contributors (@accel-kubernetes)
description:
  - Reads the annotation V(kube-accel.io/previous-object) that C(rollout.yml) writes.
  - A note that is of another object, or that cannot be read, is a problem.
options:
  _input:
    description: A DaemonSet, Deployment, or another object, as the API server has it.
    type: raw
    required: true
"""

EXAMPLES = r"""
- name: Show the image of before
  ansible.builtin.debug:
    msg: "{{ (daemonset | accel.kubernetes.before_rollout).image }}"
"""

RETURN = r"""
_value:
  description:
    - Whether a note is there, the object of before (null if there was none), its image, the checksum of its template,
      and the problem.
  type: dict
  sample: {noted: true, before: null, image: "", template: "", problem: ""}
"""

from typing import Any, Callable, Dict

from ansible_collections.accel.kubernetes.plugins.module_utils.cluster_told import before


def before_rollout(found: object) -> Dict[str, Any]:
    """Return what the object was."""
    was = before(found)
    return {
        "noted": was.noted,
        "before": was.object,
        "image": was.image,
        "template": was.template,
        "problem": was.problem,
    }


class FilterModule:
    """The filters of this file."""

    def filters(self) -> Dict[str, Callable[..., Any]]:
        """By name."""
        return {"before_rollout": before_rollout}
