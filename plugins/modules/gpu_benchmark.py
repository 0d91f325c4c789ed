#!/usr/bin/python
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_benchmark
short_description: Measure what sharing the GPUs of a node costs
version_added: 0.1.0
description:
  - Runs pods of one workload on a node, with an increasing number on each GPU. Reports how long each took, and what
    was lost compared with the whole GPU.
  - "Measures the node's current layout, which can be whole GPUs, time-slices, MIG devices, or shares of mode vgpu,
    mps, or cgpu. Does not change the layout."
  - The loss is relative to an ideal. A pod with half of a GPU should take twice as long as a pod with a whole one.
  - Refuses a node whose GPUs are in use. If another pod with GPUs starts during a row, the row is not measured.
  - The pods belong to one Job. The module removes the Job at the end, after a failure, and if Ansible ends or dies.
    If all processes are killed at once, the Job ends and is removed within minutes.
options:
  node:
    description: Node whose GPUs are measured.
    type: str
    required: true
  sharers:
    description:
      - Numbers of pods on a GPU. Each number is a row. The module refuses numbers that the node has no room for.
      - The default is those of 1, 2, 4, and 8 that the node has room for. Whole GPUs and MIG devices have one row
        each.
    type: list
    elements: int
  leave_out:
    description: Whether to skip numbers in O(sharers) that the node has no room for, for example if one list is for
      several layouts.
    type: bool
    default: false
  repeats:
    description: Number of runs of each row. The result is the median.
    type: int
    default: 1
  image:
    description:
      - Image of your own workload. It must use the GPU that it sees, and end.
      - The default is the image of the node's plugin, which runs a kernel with a fixed amount of arithmetic. This
        kernel does not measure the GPU's memory.
    type: str
    default: ""
  command:
    description: Command for O(image), instead of the image's own. Text is split as in a shell.
    type: raw
  figure:
    description:
      - A regular expression with one group, which finds the seconds in what a pod of O(image) prints. The last one in
        its log counts.
      - The default is how long the container ran, including its start, in whole seconds as kubelet reports.
    type: str
    default: ""
  launches:
    description: Number of launches of the kernel in the plugin's image. The default is 20000. Only without O(image).
    type: int
  namespace:
    description: Namespace of the pods. The default is the namespace of the plugins.
    type: str
    default: ""
  image_pull_secrets:
    description: Names of the Secrets in O(namespace) with which O(image) is pulled.
    type: list
    elements: str
    default: []
  timeout:
    description: Seconds to wait until all pods of a row have ended.
    type: int
    default: 3600
  earlier:
    description:
      - A file that O(json_file) made earlier, or RV(report) of an earlier run. Its rows are in the report, too, but for
        those that are measured again.
      - This brings several layouts of a node into one table, and compares shares with the whole GPU.
    type: raw
  text_file:
    description: Path of the file to write RV(table) to. The directories of all output files must exist.
    type: path
  csv_file:
    description: Path of the CSV file to write, with the environment in each row.
    type: path
extends_documentation_fragment:
  - kubernetes.core.k8s_auth_options
  - accel.kubernetes.attributes
  - accel.kubernetes.measurement
seealso:
  - module: accel.kubernetes.gpu_usage_report
author:
  - Accel Kubernetes contributors (@accel-kubernetes)
"""

EXAMPLES = r"""
- name: Measure the node in its current layout
  accel.kubernetes.gpu_benchmark:
    node: gpu-1
    json_file: /srv/benchmarks/whole.json
  register: whole

- name: Show the measurements
  ansible.builtin.debug:
    msg: "{{ whole.table }}"

- name: Measure shares of the node with a custom training
  accel.kubernetes.gpu_benchmark:
    node: gpu-1
    image: registry.example.com/ml/train:3
    command: [python, train.py, --steps=2000]
    figure: 'trained in ([0-9.]+) s'
    sharers: [1, 2, 4]
    repeats: 3
    earlier: /srv/benchmarks/train-whole.json
    csv_file: /srv/benchmarks/train.csv
    json_file: /srv/benchmarks/train.json
"""

RETURN = r"""
report:
  description: The report. Unknown values are null.
  returned: success, and where it was interrupted
  type: dict
  contains:
    version:
      description: Version of this structure. It increases when a key changes its meaning or is removed.
      type: int
      sample: 1
    rows:
      description: Rows of O(earlier) and of this run.
      type: list
      elements: dict
      sample:
        - layout: vGPU x2
          sharers: 2
          pods: 2
          runs: 1
          share: 0.5
          seconds: 81.204
          slowest_seconds: 81.377
          ideal_seconds: 79.6
          loss_percent: 2.02
          overlap_percent: 98.8
          against: whole
          date: "2026-11-28T04:00:00Z"
          note: ""
          problem: ""
          environment:
            node: gpu-1
            gpu: NVIDIA A100-SXM4-40GB
            gpus: 1
            memory_mib: 40960
            driver: 580.95.05
            mode: vgpu
            config: ""
            kubernetes: v1.34.1
            runtime: containerd://2.1.4
            os: Ubuntu 24.04.3 LTS
            kernel: 6.8.0-87-generic
            image: registry.example.com/gpu/kube-accel:0.1.0
            command: kube-accel benchmark --launches=20000
            figure: '"seconds": ([0-9.]+)'
    notes:
      description: Reasons for rows that the node does not have, one sentence each.
      type: list
      elements: str
    problems:
      description: Reasons for rows that could not be measured, one sentence each.
      type: list
      elements: str
complete:
  description: Whether all rows were measured.
  returned: success
  type: bool
table:
  description: Lines of the report for people. In check mode, the lines show what would run.
  returned: success
  type: list
  elements: str
csv:
  description: The report as CSV.
  returned: success
  type: str
"""

import copy
from typing import Any, Dict

from ansible_collections.accel.kubernetes.plugins.module_utils.benchmark import options, report, rows
from ansible_collections.accel.kubernetes.plugins.module_utils.benchmark.answer import answer
from ansible_collections.accel.kubernetes.plugins.module_utils.benchmark.run import Interrupted, Run, heeding_signals
from ansible_collections.accel.kubernetes.plugins.module_utils.benchmark.surroundings import look, namespace_of, place
from ansible_collections.accel.kubernetes.plugins.module_utils.benchmark.wish import refusals
from ansible_collections.accel.kubernetes.plugins.module_utils.cluster.api_server import ApiServerError, explained
from ansible_collections.accel.kubernetes.plugins.module_utils.shared import plugin_pods, printable
from ansible_collections.kubernetes.core.plugins.module_utils.args_common import AUTH_ARG_SPEC
from ansible_collections.kubernetes.core.plugins.module_utils.k8s.client import get_api_client
from ansible_collections.kubernetes.core.plugins.module_utils.k8s.core import AnsibleK8SModule

_ARGUMENTS: Dict[str, Any] = {
    "node": {"type": "str", "required": True},
    "sharers": {"type": "list", "elements": "int"},
    "leave_out": {"type": "bool", "default": False},
    "repeats": {"type": "int", "default": 1},
    "image": {"type": "str", "default": ""},
    "command": {"type": "raw"},
    "figure": {"type": "str", "default": ""},
    "launches": {"type": "int"},
    "namespace": {"type": "str", "default": ""},
    "image_pull_secrets": {"type": "list", "elements": "str", "default": [], "no_log": False},
    "runtime_class": {"type": "str", "default": "nvidia"},
    "plugins_namespace": {"type": "str", "default": plugin_pods.NAMESPACE},
    "start_timeout": {"type": "int", "default": 300},
    "timeout": {"type": "int", "default": 3600},
    "earlier": {"type": "raw"},
    "text_file": {"type": "path"},
    "csv_file": {"type": "path"},
    "json_file": {"type": "path"},
}


def main() -> None:
    """Run the module."""
    module = AnsibleK8SModule(argument_spec={**copy.deepcopy(AUTH_ARG_SPEC), **_ARGUMENTS}, supports_check_mode=True)
    try:
        wish = options.wish(module.params)
        wrong = [*refusals(wish), *options.misplaced_files(module.params)]
        earlier = options.earlier(module.params["earlier"])
        if wrong:
            raise options.Refused("; ".join(wrong))
        with explained():
            client = get_api_client(module=module)
        seen = look(client, wish.node, namespace_of(module.params))
        plan, where = rows.plan(wish, seen), place(client, module.params, seen)
    except (options.Refused, ApiServerError) as error:
        module.fail_json(msg=f"{printable.line(error)}. Nothing was started")
    if plan.refusals:
        module.fail_json(msg=f"{'; '.join(printable.lines(plan.refusals))}. Nothing was started")
    workload = report.Workload(where.image, wish.words, wish.prints)
    if module.check_mode:
        told = report.planned(plan.rows, plan.environment, workload, plan.left_out)
        empty = report.report((), plan.environment, workload, earlier, plan.left_out)
        module.exit_json(changed=False, report=report.document(empty), complete=True, table=told, csv="")
    run, stopped = Run(client, wish, where, seen.node), ""
    with heeding_signals(run):
        try:
            run.all(plan.rows)
        except (Interrupted, ApiServerError) as error:
            stopped = str(error)
    found = report.report(run.outcomes, plan.environment, workload, earlier, plan.left_out)
    told, csv, table = report.document(found), report.comma_separated(found), report.table(found)
    files = {"text_file": table, "csv_file": csv, "json_file": printable.json_text(told, indent=2)}
    answer(module, told, files, stopped, "measured", table=table.splitlines(), csv=csv)


if __name__ == "__main__":
    main()
