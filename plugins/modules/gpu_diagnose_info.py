#!/usr/bin/python
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_diagnose_info
short_description: Find out why a pod or a node with GPUs failed
version_added: 0.1.0
description:
  - Reads a pod, its events, the ends of its logs, its node, and the collection's daemons with their metrics, from the
    API server.
  - Lists findings, each with its facts, the remedy, and how certain the finding is. The most certain comes first.
  - Removes secrets that it recognizes from quoted text.
extends_documentation_fragment:
  - kubernetes.core.k8s_auth_options
  - accel.kubernetes.attributes
  - accel.kubernetes.attributes.info_module
  - accel.kubernetes.subject
requirements:
  - kubernetes
seealso:
  - module: accel.kubernetes.gpu_inspect_info
  - module: accel.kubernetes.cuda_compat
author:
  - Accel Kubernetes contributors (@accel-kubernetes)
"""

EXAMPLES = r"""
- name: Diagnose a pod
  accel.kubernetes.gpu_diagnose_info:
    pod: {name: train-0, namespace: team-a}
  register: told

- name: Show the diagnosis
  ansible.builtin.debug:
    msg: "{{ told.summary }}"

- name: Diagnose a node
  accel.kubernetes.gpu_diagnose_info:
    node: gpu-1
"""

RETURN = r"""
diagnosis:
  description: Findings about the pod or the node.
  returned: success
  type: dict
  contains:
    version:
      description: Version of this structure. The number grows when a key is removed or changes its meaning.
      type: int
      sample: 1
    findings:
      description: The surest first.
      type: list
      elements: dict
      contains:
        rule:
          description: Rule that applied. C(docs/reference/diagnosis-rules.md) lists all rules.
          type: str
          sample: quota_oom
        confidence:
          description: V(certain), V(likely) or V(possible).
          type: str
          sample: certain
        subject:
          description: Pod, container, GPU, or node that the finding is about.
          type: str
          sample: pod team-a/train-0 container main
        what:
          description: Findings about the pod or the node.
          type: str
          sample: it wanted more GPU memory than its own share has
        evidence:
          description: The facts, each with its source.
          type: list
          elements: dict
          sample: [{"where": "log", "text": "torch.OutOfMemoryError: CUDA out of memory."}]
        remedy:
          description: Remedy.
          type: str
          sample: Ask for more tencent.com/vcuda-memory, or make batches or contexts smaller.
    looked_at:
      description: Sources that the diagnosis used.
      type: list
      elements: str
    problems:
      description: Sources that the module could not read, each with its cause.
      type: list
      elements: str
complete:
  description: Whether everything could be read.
  returned: success
  type: bool
summary:
  description: The diagnosis for people, line by line.
  returned: success
  type: list
  elements: str
"""

import copy

from ansible_collections.accel.kubernetes.plugins.module_utils.cluster.api_server import ApiServerError, explained
from ansible_collections.accel.kubernetes.plugins.module_utils.diagnosis import verdict as gpu_diagnosis
from ansible_collections.accel.kubernetes.plugins.module_utils.diagnosis.collect import SUBJECT_SPEC, Collector, subject
from ansible_collections.kubernetes.core.plugins.module_utils.args_common import AUTH_ARG_SPEC
from ansible_collections.kubernetes.core.plugins.module_utils.k8s.client import get_api_client
from ansible_collections.kubernetes.core.plugins.module_utils.k8s.core import AnsibleK8SModule


def main() -> None:
    """Run the module."""
    module = AnsibleK8SModule(
        argument_spec={**copy.deepcopy(AUTH_ARG_SPEC), **SUBJECT_SPEC},
        mutually_exclusive=[("pod", "node")],
        supports_check_mode=True,
    )
    try:
        with explained():
            client = get_api_client(module=module)
        collector = Collector(client, module.params["plugins_namespace"])
        evidence = collector.evidence(*subject(module.params))
    except ApiServerError as error:
        module.fail_json(msg=str(error))
    findings = gpu_diagnosis.diagnose(evidence)
    told = gpu_diagnosis.document(findings, gpu_diagnosis.looked_at(evidence), collector.problems)
    module.exit_json(
        changed=False,
        diagnosis=told,
        complete=not collector.problems,
        summary=gpu_diagnosis.lines(told),
    )


if __name__ == "__main__":
    main()
