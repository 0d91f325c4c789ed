# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter ``accel.kubernetes.network_findings``."""

from __future__ import annotations

DOCUMENTATION = r"""
name: network_findings
short_description: How NetworkPolicies of a cluster differ from what was planned
version_added: 0.1.0
author: Accel Kubernetes contributors (@accel-kubernetes)
description:
  - Compares the NetworkPolicies of a cluster with those that P(accel.kubernetes.network_policies#filter) plans.
  - Says so where the cluster's network may keep the API server from pods.
options:
  _input:
    description: Results of M(kubernetes.core.k8s_info) for the kind C(NetworkPolicy).
    type: list
    elements: dict
    required: true
  plans:
    description: What P(accel.kubernetes.network_policies#filter) returned.
    type: list
    elements: dict
    required: true
  present:
    description: The same for policies of which it is only asked whether they are there.
    type: list
    elements: dict
    default: []
"""

EXAMPLES = r"""
- name: Find policies
  kubernetes.core.k8s_info:
    api_version: networking.k8s.io/v1
    kind: NetworkPolicy
  register: policies

- name: Say what is wrong with them
  ansible.builtin.debug:
    msg: "{{ [policies] | accel.kubernetes.network_findings(plans) }}"
"""

RETURN = r"""
_value:
  description: A row for each thing wrong, with C(verdict), C(what), C(found) and C(remedy). Empty where nothing is.
  type: list
  elements: dict
"""

from typing import Any, Callable, Dict

from ansible_collections.accel.kubernetes.plugins.module_utils.cluster.network_policy import network_findings


class FilterModule:
    """The filters of this file."""

    def filters(self) -> Dict[str, Callable[..., Any]]:
        """By name."""
        return {"network_findings": network_findings}
