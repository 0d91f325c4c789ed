# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter ``accel.kubernetes.pod_trial``."""

from __future__ import annotations

DOCUMENTATION = r"""
name: pod_trial
short_description: The pod by which a node is tried
version_added: 0.1.0
author: Accel Kubernetes contributors (@accel-kubernetes)
description:
  - Says what a pod that asks for a GPU or a small share of one is to ask for, and whether the node has room for it.
  - Says what came of the pod, from its object and its log.
options:
  _input:
    description:
      - What was seen, C(node), C(pods) of the node, C(name) of the pod, C(mode) that the node is to serve, C(serves),
        C(offered) by resource, C(daemonsets) of the plugin, C(check_mode), and, once it was started, C(trials) and
        C(log).
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Say what came of the pod
  ansible.builtin.debug:
    msg: "{{ (seen | accel.kubernetes.pod_trial).row }}"
"""

RETURN = r"""
_value:
  description:
    - Limits of the pod, the bytes that it is to be held to, why it is not to be started, and whether it is over.
    - The row of a report with verdict, what, found, and remedy, and the code of why it is not well.
  type: dict
  sample:
    asks: {nvidia.com/gpu: 1}
    memory_bytes: 0
    obstacle: ""
    over: true
    row: {verdict: ok, what: pod, found: CUDA 13.0 allocates, remedy: ""}
    code: ""
"""

from dataclasses import asdict
from typing import Any, Callable, Dict, Mapping

from ansible_collections.accel.kubernetes.plugins.module_utils.gpu_plugins.trial import Seen, trial


def pod_trial(seen: Mapping[str, Any]) -> Dict[str, Any]:
    """Return the pod, and what came of it."""
    found = asdict(trial(Seen(**seen)))
    return {**found, "code": found["row"].pop("code")}


class FilterModule:
    """The filters of this file."""

    def filters(self) -> Dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {"pod_trial": pod_trial}
