# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter ``accel.kubernetes.network_policies``."""

from __future__ import annotations

DOCUMENTATION = r"""
name: network_policies
short_description: Which NetworkPolicies servers get
version_added: 0.1.0
author: Accel Kubernetes contributors (@accel-kubernetes)
description:
  - Plans a NetworkPolicy for each server, which closes all ports of its pods but those that are asked from outside.
  - Where peers are named, admits these and the API server, by the addresses of its hosts, and nobody else.
  - Plans none where policies of others hold for the pods and no peers are named, as it would widen them.
options:
  _input:
    description:
      - A mapping for each server, with C(name), C(namespace), C(selector) as a label selector, C(pods) as labels of
        the pods that it selects, C(ports), C(peers) as NetworkPolicyPeers, C(variable) as the name of the variable
        with the peers, C(wanted), and C(labels) of the policy.
    type: list
    elements: dict
    required: true
  answers:
    description:
      - Results of M(kubernetes.core.k8s_info) for the kinds C(NetworkPolicy), and C(EndpointSlice) of the Service
        C(kubernetes).
    type: list
    elements: dict
    default: []
  nodes:
    description: All Nodes of the cluster.
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

- name: Create those for our server
  kubernetes.core.k8s:
    apply: true
    definition: "{{ plans | map(attribute='policy') | select | list }}"
  vars:
    plans: "{{ servers | accel.kubernetes.network_policies([policies]) }}"
    servers:
      - name: metrics
        namespace: default
        selector: {matchLabels: {app: metrics}}
        pods: [{app: metrics}]
        ports: [9445]
        peers: []
        variable: peers
"""

RETURN = r"""
_value:
  description:
    - A mapping for each server, with C(policy), which is empty where there is to be none, C(unwanted), which is what an
      earlier run left, C(says), C(problems) of the peers, and C(blind), which says that the cluster's network may not
      admit the API server by its addresses.
  type: list
  elements: dict
"""

from typing import Any, Callable, Dict

from ansible_collections.accel.kubernetes.plugins.module_utils.cluster.network_policy import network_policies


class FilterModule:
    """The filters of this file."""

    def filters(self) -> Dict[str, Callable[..., Any]]:
        """By name."""
        return {"network_policies": network_policies}
