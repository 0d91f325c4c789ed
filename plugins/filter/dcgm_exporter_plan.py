# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter ``accel.kubernetes.dcgm_exporter_plan``."""

from __future__ import annotations

DOCUMENTATION = r"""
name: dcgm_exporter_plan
short_description: Plan the changes to NVIDIA's dcgm-exporter in a cluster
version_added: 0.1.0
author: Accel Kubernetes contributors (@accel-kubernetes)
description:
  - Takes what the role dcgm_exporter saw and what it is asked for, and returns what it is to do.
options:
  _input:
    description: >-
      Variables of the role, with those of gpu_plugins that it has in common with it, as C(options), and as C(answers)
      the results for NetworkPolicies, the API server's EndpointSlices and Nodes. C(removed) says that the role is
      uninstalled.
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Fail if the preflight checks found problems
  ansible.builtin.fail:
    msg: "{{ plan.words }}"
  vars:
    plan: "{{ seen | accel.kubernetes.dcgm_exporter_plan }}"
    seen:
      options:
        dcgm_exporter_enabled: true
        dcgm_exporter_fields: [DCGM_FI_PROF_SM_ACTIVE]
        dcgm_exporter_port: 9400
        gpu_plugins_namespace: kube-system
        gpu_plugins_network_policy_enabled: true
        gpu_plugins_network_policy_from: []
      answers: {}
  when: plan.refusals | length > 0
"""

RETURN = r"""
_value:
  description: >-
    The C(name) of the exporter, whether it is C(wanted), its C(fields) and C(port), its network C(policies), and
    those that are C(unwanted). C(refusals) each have a C(code) and a C(message). C(words) has them all as text.
  type: dict
"""

from typing import Any, Callable, Dict, Mapping

from ansible_collections.accel.kubernetes.plugins.module_utils.dcgm_exporter.plan import Seen, plan
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.plain import plain


def dcgm_exporter_plan(seen: Mapping[str, Any]) -> Dict[str, Any]:
    """Return what becomes of dcgm-exporter, as plain values."""
    found: Dict[str, Any] = plain(plan(Seen(**seen)))
    return found


class FilterModule:
    """The filters of this file."""

    def filters(self) -> Dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {"dcgm_exporter_plan": dcgm_exporter_plan}
