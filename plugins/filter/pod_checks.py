# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter ``accel.kubernetes.pod_checks``."""

from __future__ import annotations

DOCUMENTATION = r"""
name: pod_checks
short_description: What kube-accel validate --pod found
version_added: 0.1.0
author: Accel Kubernetes contributors (@accel-kubernetes)
description:
  - Reads the last line of the pod's log that is its JSON. Other lines, and what is no check, are left out.
options:
  _input:
    description: Lines of the pod's log.
    type: list
    required: true
"""

EXAMPLES = r"""
- name: Show what failed
  ansible.builtin.debug:
    msg: "{{ log.log_lines | accel.kubernetes.pod_checks | selectattr('status', 'eq', 'fail') }}"
"""

RETURN = r"""
_value:
  description: Name, status, detail, and remedy of each check, as one harmless line each.
  type: list
  elements: dict
  sample: [{name: cuda, status: ok, detail: CUDA 13.0 allocates on H100, remedy: ""}]
"""

from typing import Any, Callable, Dict, Iterable, List

from ansible_collections.accel.kubernetes.plugins.module_utils.cluster.annotations import checks


def pod_checks(lines: Iterable[object]) -> List[Dict[str, str]]:
    """Return the checks that the lines tell of."""
    return checks(lines)


class FilterModule:
    """The filters of this file."""

    def filters(self) -> Dict[str, Callable[..., Any]]:
        """By name."""
        return {"pod_checks": pod_checks}
