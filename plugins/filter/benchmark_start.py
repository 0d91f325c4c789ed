# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter ``accel.kubernetes.benchmark_start``."""

from __future__ import annotations

DOCUMENTATION = r"""
name: benchmark_start
short_description: Return what a node has before the playbook benchmark switches it
version_added: 0.1.0
author: Accel Kubernetes contributors (@accel-kubernetes)
description:
  - Reads how the node is, and the annotation V(kube-accel.io/benchmark) that a run leaves there if it is killed.
options:
  _input:
    description:
      - The node as C(host), C(name), and C(node), and what is asked for as C(mode), C(mig_config), C(layouts), and
        C(check).
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Plan how the run begins
  ansible.builtin.debug:
    msg: "{{ seen | accel.kubernetes.benchmark_start }}"
  vars:
    seen:
      host: gpu-1
      name: gpu-1
      node: "{{ gpu_plugins_node_state }}"
      mode: pgpu
      mig_config: ""
      layouts: [{mode: vgpu, config: "", mig_config: "", name: vgpu}]
      check: true
"""

RETURN = r"""
_value:
  description:
    - The layout that the node comes back to (C(before)), the layouts in turn (C(steps)), and why nothing is measured
      (C(refusals)).
    - Whether a run was C(killed), the C(job) that it may have left, and what becomes of the node then (C(says)).
    - Patches of the node that write down how it is (C(remember)), and take that away (C(forget)).
  type: dict
"""

from typing import Any, Callable, Dict, Mapping

from ansible_collections.accel.kubernetes.plugins.module_utils.benchmark.start import Seen, start
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.plain import plain


def benchmark_start(seen: Mapping[str, Any]) -> Dict[str, Any]:
    """Return what a run begins with."""
    found: Dict[str, Any] = plain(start(Seen(**seen)))
    return found


class FilterModule:
    """The filters of this file."""

    def filters(self) -> Dict[str, Callable[..., Any]]:
        """Return the functions by their names."""
        return {"benchmark_start": benchmark_start}
