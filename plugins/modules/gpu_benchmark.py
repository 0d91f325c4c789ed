#!/usr/bin/python
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_benchmark
short_description: Measure what sharing the GPUs of a node costs
version_added: 0.1.0
description:
  - Runs pods of one workload on a node, more and more of them on each GPU, and reports how long each took and what was
    lost against the whole GPU.
  - "Measures the layout that the node has: whole GPUs, time-slices, MIG devices, or shares of mode vgpu, mps or cgpu.
    Changes nothing about it."
  - What is lost is told against an ideal. A pod that is due half of a GPU should take twice as long as one that has all
    of it.
  - Refuses a node whose GPUs somebody holds. A row during which another pod with GPUs came is not measured.
  - The pods are those of one Job, which is removed at the end, after a failure, and where Ansible ends or dies. Where
    all of it is killed at once, the Job ends and goes by itself within minutes.
options:
  node:
    description: The node whose GPUs are measured.
    type: str
    required: true
  sharers:
    description:
      - How many pods share a GPU, a row for each number. More than the node has room for are refused.
      - Without it, those of 1, 2, 4 and 8 that the node has room for. Whole GPUs and MIG devices have one row each.
    type: list
    elements: int
  leave_out:
    description: Leave out rows of O(sharers) that the node has no room for, as where one list is for several layouts.
    type: bool
    default: false
  repeats:
    description: How often each row is run. Its seconds are the median of the runs.
    type: int
    default: 1
  image:
    description:
      - The image of a workload of your own, which uses the GPU that it is shown and ends.
      - Without it, the image of the node's plugin, which brings a kernel that does a fixed amount of arithmetic. It
        says nothing about the memory of a GPU.
    type: str
    default: ""
  command:
    description: The command of O(image), instead of the one that the image has. A text is divided as a shell does it.
    type: raw
  figure:
    description:
      - A regular expression with one group, which finds the seconds in what a pod of O(image) prints. The last one in
        its log counts.
      - Without it, how long the container ran, start-up included, in whole seconds as kubelet tells it.
    type: str
    default: ""
  launches:
    description: How often the kernel of the plugin's image is launched, instead of 20000 times. Without O(image) alone.
    type: int
  namespace:
    description: Where the pods run; where plugins run, if it is not given.
    type: str
    default: ""
  image_pull_secrets:
    description: Names of the Secrets in O(namespace) with which O(image) is pulled.
    type: list
    elements: str
    default: []
  runtime_class:
    description: The RuntimeClass of the pods; empty for none.
    type: str
    default: nvidia
  plugins_namespace:
    description: Where plugins run.
    type: str
    default: kube-system
  start_timeout:
    description: Seconds until all pods of a row run, images pulled.
    type: int
    default: 300
  timeout:
    description: Seconds until all pods of a row have ended.
    type: int
    default: 3600
  earlier:
    description:
      - A file that O(json_file) made earlier, or RV(report) of an earlier run. Its rows are in the report, too, but for
        those that are measured again.
      - So the layouts of a node, each measured when the node had it, come into one table, and shares are compared with
        the whole GPU.
    type: raw
  text_file:
    description: Where to write RV(table). The directory must be there, as that of the other files.
    type: path
  csv_file:
    description: Where to write the report as CSV, one row each with its environment.
    type: path
  json_file:
    description: Where to write RV(report) as JSON.
    type: path
extends_documentation_fragment:
  - kubernetes.core.k8s_auth_options
  - accel.kubernetes.attributes
requirements:
  - kubernetes
attributes:
  check_mode:
    support: full
    details: Says what would run, runs nothing, and writes no file.
  diff_mode:
    support: full
  idempotent:
    support: none
    details: No two measurements are alike.
  platform:
    support: full
    platforms: posix
seealso:
  - module: accel.kubernetes.gpu_usage_report
author:
  - Accel Kubernetes contributors (@accel-kubernetes)
"""

EXAMPLES = r"""
- name: Measure the node as it is
  accel.kubernetes.gpu_benchmark:
    node: gpu-1
    json_file: /srv/benchmarks/whole.json
  register: whole

- name: Show it
  ansible.builtin.debug:
    msg: "{{ whole.table }}"

- name: Measure shares of it with a training of our own, once its mode is vgpu
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
  description: The report. What is not known is null.
  returned: success, and where it was interrupted
  type: dict
  contains:
    version:
      description: Of this structure. It grows when a key changes its meaning or goes.
      type: int
      sample: 1
    rows:
      description: Those of O(earlier), and those of this run.
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
      description: What the node has no row of, one sentence each.
      type: list
      elements: str
    problems:
      description: What could not be measured, one sentence each.
      type: list
      elements: str
complete:
  description: Whether all that was to be measured was.
  returned: success
  type: bool
table:
  description: The report for people, line by line; in check mode what would run.
  returned: success
  type: list
  elements: str
csv:
  description: The report as CSV.
  returned: success
  type: str
"""

import contextlib
import copy
import shlex
import signal
import time
from dataclasses import replace
from datetime import datetime, timezone
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from ansible_collections.accel.kubernetes.plugins.module_utils.benchmark import jobs, report, rows
from ansible_collections.accel.kubernetes.plugins.module_utils.benchmark.wish import Wish, refusals
from ansible_collections.accel.kubernetes.plugins.module_utils.cluster.api_server import (
    ApiServerError,
    explained,
    objects,
    one,
    text_at,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.host.ancestors import ancestors
from ansible_collections.accel.kubernetes.plugins.module_utils.host.replaced_file import misplaced, written
from ansible_collections.accel.kubernetes.plugins.module_utils.shared import plugin_pods, printable
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.registers import metadata_of
from ansible_collections.kubernetes.core.plugins.module_utils.args_common import AUTH_ARG_SPEC
from ansible_collections.kubernetes.core.plugins.module_utils.k8s.client import K8SClient, get_api_client
from ansible_collections.kubernetes.core.plugins.module_utils.k8s.core import AnsibleK8SModule

with contextlib.suppress(ImportError):  # AnsibleK8SModule says what is missing.
    from kubernetes.dynamic.exceptions import NotFoundError

_FILES = ("text_file", "csv_file", "json_file")
_POLL_SECONDS = 1.0
_ALIVE_EVERY = jobs.ALIVE_SECONDS / 3
_PATIENCE = 60
"""Seconds without an answer of the API server that a measurement survives."""
_GONE_SECONDS = 120
_SCHEDULER = "accel-scheduler"
_ANSIBLE = 3
"""Processes above a module that are Ansible's: a shell, the worker, and the command."""

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


class Interrupted(Exception):
    """Nobody wants the rest any more. Says why."""


class _Refused(Exception):
    """Nothing was started. Says why."""


def main() -> None:
    """Run the module."""
    module = AnsibleK8SModule(argument_spec={**copy.deepcopy(AUTH_ARG_SPEC), **_ARGUMENTS}, supports_check_mode=True)
    try:
        wish = _wish(module.params)
        wrong = [*refusals(wish), *_misplaced(module.params)]
        earlier = _earlier(module.params["earlier"])
        if wrong:
            raise _Refused("; ".join(wrong))
        with explained():
            client = get_api_client(module=module)
        seen = look(client, wish.node)
        plan, place = rows.plan(wish, seen), _place(client, module.params, seen)
    except (_Refused, ApiServerError) as error:
        module.fail_json(msg=f"{printable.line(error)}. Nothing was started")
    if plan.refusals:
        module.fail_json(msg=f"{'; '.join(printable.lines(plan.refusals))}. Nothing was started")
    workload = report.Workload(place.image, wish.words, wish.prints)
    if module.check_mode:
        told = report.planned(plan.rows, plan.environment, workload, plan.left_out)
        empty = report.report((), plan.environment, workload, earlier, plan.left_out)
        module.exit_json(changed=False, report=report.document(empty), complete=True, table=told, csv="")
    run, stopped = Run(client, wish, place, seen.node), ""
    with _signals(run):
        try:
            run.all(plan.rows)
        except (Interrupted, ApiServerError) as error:
            stopped = str(error)
    found = report.report(run.outcomes, plan.environment, workload, earlier, plan.left_out)
    _tell(module, found, stopped)


def _wish(params: Mapping[str, Any]) -> Wish:
    sharers = params["sharers"]
    return Wish(
        node=params["node"].strip(),
        sharers=None if sharers is None else tuple(sharers),
        leave_out=params["leave_out"],
        repeats=params["repeats"],
        image=params["image"].strip(),
        command=_words(params["command"]),
        figure=params["figure"],
        launches=params["launches"],
        start_timeout=params["start_timeout"],
        timeout=params["timeout"],
    )


def _words(command: object) -> Tuple[str, ...]:
    """Return a command that is a list or a text. Raises _Refused."""
    try:
        found = shlex.split(command) if isinstance(command, str) else list(command or [])
    except (TypeError, ValueError) as error:
        raise _Refused(f"command is {command!r}, which is none ({error}); write it as a list of words") from error
    if not all(isinstance(word, (str, int, float)) for word in found):
        raise _Refused(f"command is {command!r}, which has more than words in it; write it as a list of words")
    return tuple(map(str, found))


def _misplaced(params: Mapping[str, Any]) -> List[str]:
    return [text for option in _FILES if (text := misplaced(option, params[option]))]


def _earlier(value: object) -> List[Dict[str, Any]]:
    """Return the rows of an earlier report. Raises _Refused."""
    if not value:
        return []
    where, found = "earlier", value
    if isinstance(value, str):
        where = f"earlier: {value}"
        try:
            with open(value, encoding="utf-8") as file:
                found = file.read()
        except (OSError, ValueError) as error:
            raise _Refused(f"{where}: {error}; name a file that json_file made") from error
    try:
        return report.read_earlier(found)
    except report.EarlierError as error:
        raise _Refused(f"{where}: {error}; name a file that json_file made") from error


def look(client: K8SClient, node: str) -> rows.Seen:
    """Return the node and its pods. Raises ApiServerError."""
    with explained():
        try:
            found = one(client, "Node", node)
        except NotFoundError:
            raise ApiServerError(f"there is no node {node}; see kubectl get nodes") from None
        pods = list(objects(client, "Pod", problems=[], field_selector=f"spec.nodeName={node}"))
    return rows.Seen(found, tuple(pods), jobs.job_name(node))


def _place(client: K8SClient, params: Mapping[str, Any], seen: rows.Seen) -> jobs.Place:
    """Return where and how the pods run. Raises ApiServerError or _Refused."""
    plugin = jobs.plugin_of(seen.pods, params["plugins_namespace"])
    namespace = params["namespace"].strip() or params["plugins_namespace"]
    if not params["image"].strip() and not plugin.image:
        raise _Refused(
            f"node {params['node']}: no plugin of ours runs there in {params['plugins_namespace']}, whose image would "
            "be run; say where plugins run, or name an image"
        )
    _exists(client, "Namespace", "v1", namespace, "name one that is there")
    if params["runtime_class"]:
        remedy = "name one that is there, or an empty one where the default runtime brings the driver"
        _exists(client, "RuntimeClass", "node.k8s.io/v1", params["runtime_class"], remedy)
    secrets, scheduler = tuple(params["image_pull_secrets"]), _scheduler(client)
    if params["image"].strip():
        return jobs.Place(
            namespace, params["image"].strip(), "IfNotPresent", secrets, params["runtime_class"], scheduler
        )
    return jobs.Place(
        namespace,
        plugin.image,
        plugin.pull_policy,
        secrets or plugin.pull_secrets,
        params["runtime_class"],
        scheduler,
    )


def _exists(client: K8SClient, kind: str, api_version: str, name: str, remedy: str) -> None:
    with explained():
        found = [metadata_of(each).get("name") for each in objects(client, kind, api_version, problems=[])]
    if name not in found:
        raise _Refused(f"there is no {kind} {name}; {remedy}")


def _scheduler(client: K8SClient) -> str:
    """Return the second scheduler, which alone asks the extender beside it; empty where there is none."""
    selected = {
        "label_selector": "app.kubernetes.io/managed-by=accel.kubernetes,app.kubernetes.io/component=extender",
        "field_selector": f"metadata.name={_SCHEDULER}",
    }
    with explained():
        found = list(objects(client, "Deployment", "apps/v1", problems=[], **selected))
    return _SCHEDULER if found else ""


class Run:
    """Runs rows one after the other, each as a Job that is gone when it is done."""

    def __init__(self, client: K8SClient, wish: Wish, place: jobs.Place, node: Mapping[str, Any]) -> None:
        self._client, self._wish, self._place, self._node = client, wish, place, node
        self._name = jobs.job_name(wish.node)
        self._above = ancestors(_ANSIBLE)
        self.asked = ""
        """Why it is to end; empty where nobody asked."""
        self.outcomes: List[report.Outcome] = []

    def all(self, wanted: Sequence[rows.Row]) -> None:
        """Measure each. Raises Interrupted, or ApiServerError where the API server is gone."""
        for row in wanted:
            self.outcomes.append(self._row(row))

    def _row(self, row: rows.Row) -> report.Outcome:
        runs: List[Tuple[float, ...]] = []
        overlaps: List[Optional[float]] = []
        date = datetime.now(timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
        for _number in range(self._wish.repeats):
            found = self._once(row)
            if found.problem:
                return report.Outcome(row, problem=found.problem, date=date)
            runs.append(found.seconds)
            overlaps.append(found.overlap)
        return report.Outcome(row, tuple(runs), tuple(overlaps), date=date)

    def _once(self, row: rows.Row) -> jobs.Measured:
        self._remove()
        try:
            with explained():
                resource = self._client.resource(jobs.KIND, jobs.API_VERSION)
                made = jobs.job(self._wish, row, self._node, self._place)
                self._client.create(resource, made, namespace=self._place.namespace)
            return self._watched(row)
        finally:
            self._remove()

    def _watched(self, row: rows.Row) -> jobs.Measured:
        began = alive = heard = time.monotonic()
        uneven = ""
        while True:
            self._stop_if_asked()
            now = time.monotonic()
            try:
                job, pods = self.state()
                if now - alive >= _ALIVE_EVERY:
                    self._keep_alive(int(now - began))
                    alive = now
                seen = look(self._client, self._wish.node)
                heard = now
            except ApiServerError:
                if now - heard > _PATIENCE:
                    raise
                time.sleep(_POLL_SECONDS)
                continue
            found = jobs.progress(job, pods, row.pods)
            foreign = rows.others(seen.pods, self._name)
            if foreign:
                return jobs.Measured(True, problem=f"{', '.join(foreign[:3])} came and held GPUs of the node as well")
            if job is None:
                return jobs.Measured(True, problem=f"somebody deleted its Job {self._place.namespace}/{self._name}")
            if found.started and not uneven:
                names = [str(metadata_of(pod).get("name")) for pod in pods]
                uneven = rows.spread(seen.node, row, names)
            if found.over or found.problem:
                return self._ended(found, pods, uneven)
            if not found.started and now - began > self._wish.start_timeout:
                why = f"not all of its pods ran within {self._wish.start_timeout} s: {found.waits or 'nobody says why'}"
                return jobs.Measured(True, problem=why)
            if now - began > self._wish.timeout:
                why = f"not all of its pods ended within {self._wish.timeout} s; give them less to do, or more time"
                return jobs.Measured(True, problem=why)
            time.sleep(_POLL_SECONDS)

    def _ended(self, found: jobs.Measured, pods: Sequence[Mapping[str, Any]], uneven: str) -> jobs.Measured:
        logs = [self.log(pod) for pod in pods if found.problem == "" or _phase(pod) == "Failed"]
        if found.problem:
            last = " | ".join(logs[0].strip().splitlines()[-3:]) if logs else ""
            return replace(found, problem=printable.line(f"{found.problem}{': ' if last else ''}{last}"))
        if uneven:
            return jobs.Measured(True, problem=uneven)
        return jobs.measured(self._wish, pods, logs)

    def state(self) -> Tuple[Optional[Dict[str, Any]], List[Dict[str, Any]]]:
        """Return the Job, None where it is gone, and its pods. Raises ApiServerError."""
        where = {"namespace": self._place.namespace, "label_selector": f"{rows.INSTANCE}={self._name}"}
        with explained():
            found = list(objects(self._client, jobs.KIND, jobs.API_VERSION, **where))
            pods = list(objects(self._client, "Pod", **where))
        return next(iter(found), None), pods

    def log(self, pod: Mapping[str, Any]) -> str:
        """Return the end of a pod's log; empty where it cannot be read."""
        name = metadata_of(pod).get("name")
        path = f"/api/v1/namespaces/{self._place.namespace}/pods/{name}/log?tailLines={jobs.LOG_LINES}"
        try:
            return text_at(self._client, path, jobs.LOG_BYTES)
        except ApiServerError as error:
            return str(error)

    def _keep_alive(self, seconds: int) -> None:
        body = {"spec": {"activeDeadlineSeconds": seconds + 2 * jobs.ALIVE_SECONDS}}
        with explained():
            resource = self._client.resource(jobs.KIND, jobs.API_VERSION)
            how = {"content_type": "application/merge-patch+json", "namespace": self._place.namespace}
            self._client.patch(resource, body, name=self._name, **how)

    def _remove(self) -> None:
        """Remove the Job, be it of an earlier run, and wait for its pods to be gone. Raises ApiServerError."""
        deadline = time.monotonic() + _GONE_SECONDS
        while True:
            try:
                job, pods = self.state()
                if job is None and not pods:
                    return
                if job is not None and not metadata_of(job).get("deletionTimestamp"):
                    self._delete()
            except ApiServerError:
                if time.monotonic() > deadline:
                    raise
            if time.monotonic() > deadline:
                raise ApiServerError(
                    f"the pods of Job {self._place.namespace}/{self._name} are not gone after {_GONE_SECONDS} s; see "
                    f"kubectl --namespace {self._place.namespace} get pods --selector {rows.INSTANCE}={self._name}"
                )
            time.sleep(_POLL_SECONDS)

    def _delete(self) -> None:
        with explained(), contextlib.suppress(NotFoundError):
            resource = self._client.resource(jobs.KIND, jobs.API_VERSION)
            how = {"namespace": self._place.namespace, "body": {"propagationPolicy": "Background"}}
            self._client.delete(resource, name=self._name, **how)

    def _stop_if_asked(self) -> None:
        if self.asked or ancestors(_ANSIBLE) != self._above:
            raise Interrupted(self.asked or "Ansible is gone")


def _phase(pod: Mapping[str, Any]) -> object:
    return (pod.get("status") or {}).get("phase")


@contextlib.contextmanager
def _signals(run: Run) -> Iterator[None]:
    """Has a signal that asks to end heard between two looks at the pods, so that nothing keeps them from going."""

    def ask(number: int, frame: object) -> None:
        del frame
        run.asked = f"interrupted by {signal.Signals(number).name}"

    before = {each: signal.signal(each, ask) for each in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)}
    try:
        yield
    finally:
        for each, handler in before.items():
            signal.signal(each, handler)


def _tell(module: AnsibleK8SModule, found: report.Report, stopped: str) -> None:
    """Write the files that were asked for, and return the report, also where something stopped it."""
    told, csv, table = report.document(found), report.comma_separated(found), report.table(found)
    texts = {"text_file": table, "csv_file": csv, "json_file": printable.json_text(told, indent=2)}
    diffs = []
    for option, text in texts.items():
        if module.params[option] and (found.rows or not stopped):
            try:
                diffs += written(module.params[option], text, module.check_mode)
            except OSError as error:
                stopped = stopped or f"{option}: {module.params[option]}: {error}"
    shown = {"report": printable.document(told), "table": table.splitlines(), "csv": csv}
    if stopped:
        module.fail_json(msg=f"{printable.line(stopped)}. What was measured until then is in the report", **shown)
    module.exit_json(changed=bool(diffs), diff=diffs, complete=not found.problems, **shown)


if __name__ == "__main__":
    main()
