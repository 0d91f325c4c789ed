# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter ``accel.kubernetes.admission_findings``."""

from __future__ import annotations

DOCUMENTATION = r"""
name: admission_findings
short_description: What keeps ValidatingAdmissionPolicies from holding
version_added: 0.1.0
author: Accel Kubernetes contributors (@accel-kubernetes)
description:
  - Compares the policies and bindings of a cluster with those that are expected there.
  - Says so where the cluster serves none, which is before Kubernetes 1.30.
options:
  _input:
    description:
      - Results of M(kubernetes.core.k8s_info) for the kinds C(ValidatingAdmissionPolicy) and
        C(ValidatingAdmissionPolicyBinding).
    type: list
    elements: dict
    required: true
  expected:
    description: Names of the policies that the cluster is to have, each with a binding that denies.
    type: list
    elements: str
    required: true
"""

EXAMPLES = r"""
- name: Find policies and bindings
  kubernetes.core.k8s_info:
    api_version: admissionregistration.k8s.io/v1
    kind: "{{ item }}"
  loop: [ValidatingAdmissionPolicy, ValidatingAdmissionPolicyBinding]
  register: admission

- name: Say what is wrong with them
  ansible.builtin.debug:
    msg: "{{ admission.results | accel.kubernetes.admission_findings(['kube-accel-plugin-nodes']) }}"
"""

RETURN = r"""
_value:
  description: A row for each thing wrong, with C(verdict), C(what), C(found) and C(remedy). Empty where they hold.
  type: list
  elements: dict
"""

from typing import Any, Callable, Dict

from ansible_collections.accel.kubernetes.plugins.module_utils.cluster.admission import admission_findings


class FilterModule:
    """The filters of this file."""

    def filters(self) -> Dict[str, Callable[..., Any]]:
        """By name."""
        return {"admission_findings": admission_findings}
