#!/usr/bin/python
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_share_check
short_description: Prove the limits of a GPU share in pods
version_added: 0.1.0
description:
  - Runs a pod with a share of a GPU alone, and then two of them on the same GPU. Each reports what it sees of the GPU,
    the last byte that it gets, what is refused beyond, and how much of the GPU's time it has.
  - The pods run C(kube-accel validate --share) of the image of the node's plugin.
  - Refuses a node whose GPUs are in use, and a node of a mode without shares. Changes nothing about the node.
  - The pods belong to one Job. The module removes the Job at the end, after a failure, and if Ansible ends or dies.
    If all processes are killed at once, the Job ends and is removed within minutes.
options:
  node:
    description: Node whose shares are proved.
    type: str
    required: true
  sharers:
    description: Number of equal shares of a GPU, 2 to 50. A pod gets one. Unused with O(cores) or O(memory_mib).
    type: int
    default: 4
  cores:
    description: Percent of a GPU that a pod gets, 1 to 50. With 0, it is the same part as that of the memory.
    type: int
    default: 0
  memory_mib:
    description: MiB of GPU memory that a pod gets, at most half. With 0, it is the same part as that of the cores.
    type: int
    default: 0
  seconds:
    description: Seconds for which each pod measures its time of the GPU.
    type: int
    default: 10
extends_documentation_fragment:
  - kubernetes.core.k8s_auth_options
  - accel.kubernetes.attributes
  - accel.kubernetes.measurement
seealso:
  - module: accel.kubernetes.gpu_benchmark
author:
  - Accel Kubernetes contributors (@accel-kubernetes)
"""

EXAMPLES = r"""
- name: Prove a quarter of a GPU
  accel.kubernetes.gpu_share_check:
    node: gpu-2
  register: proved

- name: Prove 30 % and 8 GiB
  accel.kubernetes.gpu_share_check:
    node: gpu-2
    cores: 30
    memory_mib: 8192

- name: Show it
  ansible.builtin.debug:
    msg: "{{ proved.table }}"
"""

RETURN = r"""
report:
  description: The report. What is not known is null.
  returned: success, and where it was interrupted
  type: dict
  contains:
    version:
      description: Version of this structure. The number grows when a key is removed or changes its meaning.
      type: int
      sample: 1
    node:
      description: Node that the pods ran on.
      type: str
      sample: gpu-2
    gpu:
      description: Model of the GPU.
      type: str
      sample: NVIDIA A100 80GB PCIe
    driver:
      description: Version of the driver on the node.
      type: str
      sample: 580.95.05
    mode:
      description: Mode of the node.
      type: str
      sample: vgpu
    share:
      description: What the interposer holds a pod to, C(cores) in percent and C(memory_bytes); 0 where it does not.
      type: dict
      sample: {cores: 25, memory_bytes: 21206401024}
    rows:
      description: Report of each pod, with its C(setting), C(pod), C(checks), and C(figures).
      type: list
      elements: dict
    problems:
      description: Limits that did not hold, and values that are unknown, one sentence each.
      type: list
      elements: str
complete:
  description: Whether every check was made and holds.
  returned: success
  type: bool
table:
  description: The report for people, line by line; in check mode what would run.
  returned: success
  type: list
  elements: str
"""

import copy
from typing import Any, Dict

from ansible_collections.accel.kubernetes.plugins.module_utils.benchmark import rows, share
from ansible_collections.accel.kubernetes.plugins.module_utils.benchmark.answer import answer
from ansible_collections.accel.kubernetes.plugins.module_utils.benchmark.options import Refused
from ansible_collections.accel.kubernetes.plugins.module_utils.benchmark.run import Interrupted, Run, heeding_signals
from ansible_collections.accel.kubernetes.plugins.module_utils.benchmark.surroundings import look, namespace_of, place
from ansible_collections.accel.kubernetes.plugins.module_utils.cluster.api_server import ApiServerError, explained
from ansible_collections.accel.kubernetes.plugins.module_utils.host.replaced_file import misplaced
from ansible_collections.accel.kubernetes.plugins.module_utils.shared import plugin_pods, printable
from ansible_collections.kubernetes.core.plugins.module_utils.args_common import AUTH_ARG_SPEC
from ansible_collections.kubernetes.core.plugins.module_utils.k8s.client import get_api_client
from ansible_collections.kubernetes.core.plugins.module_utils.k8s.core import AnsibleK8SModule

_ARGUMENTS: Dict[str, Any] = {
    "node": {"type": "str", "required": True},
    "sharers": {"type": "int", "default": 4},
    "cores": {"type": "int", "default": 0},
    "memory_mib": {"type": "int", "default": 0},
    "seconds": {"type": "int", "default": 10},
    "runtime_class": {"type": "str", "default": "nvidia"},
    "plugins_namespace": {"type": "str", "default": plugin_pods.NAMESPACE},
    "start_timeout": {"type": "int", "default": 300},
    "json_file": {"type": "path"},
}
_OF_BENCHMARKS: Dict[str, Any] = {"image": "", "namespace": "", "image_pull_secrets": []}
"""Options of the module gpu_benchmark that have no meaning here."""


def main() -> None:
    """Run the module."""
    module = AnsibleK8SModule(argument_spec={**copy.deepcopy(AUTH_ARG_SPEC), **_ARGUMENTS}, supports_check_mode=True)
    params = {**module.params, **_OF_BENCHMARKS}
    wish = share.ShareWish(params["node"].strip(), start_timeout=params["start_timeout"], seconds=params["seconds"])
    size = share.Size(params["sharers"], params["cores"], params["memory_mib"])
    try:
        wrong = share.refusals(wish, size)
        odd = misplaced("json_file", params["json_file"])
        if wrong or odd:
            raise Refused("; ".join([*wrong, *([odd] if odd else [])]))
        with explained():
            client = get_api_client(module=module)
        seen = look(client, wish.node, namespace_of(params))
        plan = share.plan(wish, size, seen)
        if plan.refusals:
            raise Refused("; ".join(plan.refusals))
        where = place(client, params, seen)
    except (Refused, ApiServerError) as error:
        module.fail_json(msg=f"{printable.line(error)}. Nothing was started")
    if module.check_mode:
        told = share.document(plan, {})
        module.exit_json(changed=False, report=told, complete=True, table=share.planned(plan))
    outcomes: Dict[str, share.Outcome] = {}
    run, stopped = Run(client, plan.wish, where, seen.node), ""
    with heeding_signals(run):
        try:
            for name, row in plan.rows.items():
                outcomes[name] = _outcome(run, row)
        except (Interrupted, ApiServerError) as error:
            stopped = str(error)
    told = share.document(plan, outcomes)
    files = {"json_file": printable.json_text(told, indent=2)}
    answer(module, told, files, stopped, "proved", table=share.table(told))


def _outcome(run: Run, row: rows.Row) -> share.Outcome:
    """Run the pods of a row. Raises Interrupted or ApiServerError."""
    run.logs = []
    run.all([row])
    return share.outcome(run.logs, run.outcomes[-1].problem)


if __name__ == "__main__":
    main()
