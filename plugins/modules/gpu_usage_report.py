#!/usr/bin/python
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_usage_report
short_description: Report the GPU-hours that namespaces allocated, used, and owe
version_added: 0.1.0
description:
  - Reports GPU-hours by namespace, mode and model, with what was used of them, what was idle, and what they cost.
  - Reads the counters that plugins keep, from Prometheus or, without O(prometheus_url), from the plugins themselves.
  - Amounts are differences between the last counters before the start and before the end of the period. The module does
    not extrapolate. So consecutive periods count everything once.
  - For each model, allocated and free GPU-hours add up to the capacity.
  - Changes only its output files.
options:
  prometheus_url:
    description: URL of Prometheus, or of a server with its HTTP API, with the path before C(/api).
    type: str
  prometheus_token_file:
    description: Path of the file with the bearer token to send.
    type: path
  prometheus_ca_file:
    description: Path of the file with certificate authorities to trust, instead of the system's.
    type: path
  prometheus_validate_certs:
    description: Whether to verify the server's certificate.
    type: bool
    default: true
  prometheus_selector:
    description:
      - Label matchers that series must have, such as C(job="kube-accel").
      - If tenants can have metrics of their own scraped, name the job of the plugins. Otherwise, a tenant can report
        use for others. If Prometheus has several clusters, name the cluster.
    type: str
    default: ""
  prometheus_timeout:
    description: Timeout of a query in seconds.
    type: int
    default: 60
  start:
    description:
      - Start of the period, such as C(2026-11-01) or C(2026-11-01T06:00:00+01:00). UTC if it has no offset.
      - With O(prometheus_url) alone, as O(end) and O(period).
    type: str
  end:
    description: End of the period. The default is now.
    type: str
  period:
    description: Length of the period instead of O(start), such as C(24h), C(7d), or C(4w). The default is 7 days.
    type: str
  since:
    description:
      - Path of a file that O(keep) wrote. The period begins at the time of this file.
      - Without this file and without Prometheus, amounts count from the start of the plugins' ledgers.
    type: path
  keep:
    description: Path of the file that keeps the counters of the plugins for O(since) of a later report. Only without
      Prometheus.
    type: path
  plugins_namespace:
    description: Namespace of the device plugins.
    type: str
    default: kube-system
  nodes_come_and_go:
    description:
      - Whether a node that is silent at an end of the period did not exist then. Set it if nodes are added and removed
        by load. Otherwise, RV(report) lists such a node among its problems.
    type: bool
    default: false
  policy:
    description: Basis of the charge. With each policy, charged and free GPU-hours add up to the capacity.
    type: str
    choices:
      allocated: Charge what a namespace allocated, the larger of its parts of cores and memory.
      used: Charge the time that kernels ran. If this time is unknown, charge what was allocated.
      memory: Charge the allocated part of the GPU's memory.
      spread: Charge what was allocated, and a part of what was free on the same day. A period of up to two days counts
          by hours.
    default: allocated
  prices:
    description: Price of a GPU-hour by model. A model without a price has no cost.
    type: dict
    default: {}
  currency:
    description: Currency of the prices, as the report shows it.
    type: str
    default: ""
  unit_label:
    description:
      - A label of namespaces, such as C(example.com/cost-center). The report sums hours and costs by its values.
      - The module reads the labels from the API server when it runs. Namespaces without the label, and deleted ones,
        are a unit without a name.
    type: str
    default: ""
  right_size_below:
    description: Percentage of the requested memory. The report lists pods whose peak stayed below it.
    type: int
    default: 30
  right_size_after:
    description: Age of the youngest pods to judge. Without Prometheus, the age is unknown, and the report judges all
      pods.
    type: str
    default: 1h
  html_file:
    description: Path of the HTML document with charts to write. The directory must exist.
    type: path
  csv_file:
    description:
      - Path of the CSV file to write, with one row for each day (or hour), namespace, mode, and model. With
        O(unit_label), the last column is C(unit).
    type: path
  json_file:
    description: Path of the JSON file to write RV(report) to.
    type: path
extends_documentation_fragment:
  - kubernetes.core.k8s_auth_options
  - accel.kubernetes.attributes
  - accel.kubernetes.attributes.changing_module
requirements:
  - kubernetes, without O(prometheus_url) or with O(unit_label)
attributes:
  check_mode:
    details: Returns the report, and writes no file.
  idempotent:
    support: partial
    details: A period that ends now, and O(keep), are others each time.
author:
  - Accel Kubernetes contributors (@accel-kubernetes)
"""

EXAMPLES = r"""
- name: Report October
  accel.kubernetes.gpu_usage_report:
    prometheus_url: https://prometheus.example.com
    prometheus_token_file: /etc/report/token
    prometheus_selector: job="kube-accel"
    start: 2026-10-01
    end: 2026-11-01
    prices:
      NVIDIA H100 80GB HBM3: 2.50
      Tesla T4: 0.35
    currency: EUR
    html_file: /srv/reports/2026-10.html
    csv_file: /srv/reports/2026-10.csv
  register: october

- name: Show the usage report
  ansible.builtin.debug:
    msg: "{{ october.table }}"

- name: Report what was since the last report, without a Prometheus
  accel.kubernetes.gpu_usage_report:
    since: /srv/reports/2026-10.state
    keep: /srv/reports/2026-11.state
"""

RETURN = r"""
report:
  description: The report. Hours have six decimals, what is not known is null.
  returned: success
  type: dict
  contains:
    version:
      description: Version of this structure. The number grows when a key is removed or changes its meaning.
      type: int
      sample: 1
    start:
      description: Begin of the period, and C(end) its end.
      type: str
      sample: "2026-10-01T00:00:00Z"
    rows:
      description: By model, namespace and mode.
      type: list
      elements: dict
      sample:
        - namespace: team-a
          mode: vgpu
          model: NVIDIA H100 80GB HBM3
          allocated_gpu_hours: 744.0
          used_gpu_hours: 512.25
          used_complete: true
          idle_gpu_hours: 231.75
          memory_gib_hours: 47616.0
          charged_gpu_hours: 744.0
          price: 2.5
          cost: 1860.0
    free:
      description: Unallocated amounts by model. Together with the rows, they add up to the capacity.
      type: list
      elements: dict
    unknown:
      description:
        - By model, about how much there would have been in the time that nothing is known of, and how much of it for
          each of C(causes).
        - C(silent) means that the node reported nothing. C(counters_began_anew) means that its ledger was lost or
          restored. C(ledger_replaced) means that another ledger reports it. C(counters_beyond_gpus) means that its
          counters grew by more than its GPUs can provide. C(plugins_disagree) means that two plugins report different
          amounts for it at the same time. C(gpus_of_two_nodes) means that another node reports the same GPUs.
          C(gpus_not_told) and C(capacity_not_told) mean that Prometheus does not scrape these series.
      type: list
      elements: dict
    totals:
      description: Sums over all rows.
      type: dict
    unit_label:
      description: The label by which namespaces are summed up; empty for no such sums.
      type: str
      sample: example.com/cost-center
    units:
      description: Sums by the values of that label. The last row, with an empty C(unit), is for namespaces without
        the label.
      type: list
      elements: dict
      sample:
        - unit: research
          allocated_gpu_hours: 744.0
          used_gpu_hours: 512.25
          used_complete: true
          idle_gpu_hours: 231.75
          memory_gib_hours: 47616.0
          charged_gpu_hours: 744.0
          cost: 1860.0
    parts:
      description: The same day by day, or hour by hour, by namespace.
      type: list
      elements: dict
    nodes:
      description: From when to when each node is known.
      type: list
      elements: dict
    right_sizing:
      description: Pods that never used what they requested, and an amount that is enough.
      type: list
      elements: dict
    problems:
      description: Values that are unknown, each with its cause.
      type: list
      elements: str
    notes:
      description: Notes on the figures.
      type: list
      elements: str
complete:
  description: Whether nothing is unknown.
  returned: success
  type: bool
table:
  description: The report as a table, line by line.
  returned: success
  type: list
  elements: str
csv:
  description: The report as CSV.
  returned: success
  type: str
"""

import copy
import re
import time
from datetime import datetime, timezone
from fractions import Fraction
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple
from urllib.error import HTTPError, URLError
from urllib.parse import urlencode

from ansible.module_utils.urls import ConnectionError as UrlConnectionError
from ansible.module_utils.urls import SSLValidationError, open_url
from ansible_collections.accel.kubernetes.plugins.module_utils.cluster.api_server import (
    ApiServerError,
    explained,
    objects,
    text_at,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.host.replaced_file import misplaced, written
from ansible_collections.accel.kubernetes.plugins.module_utils.shared import (
    gpu_view,
    plugin_metrics,
    plugin_pods,
    printable,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.api_json import read_object
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.registers import labels_of, metadata_of
from ansible_collections.accel.kubernetes.plugins.module_utils.usage import (
    accounting as gpu_usage,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.usage import charging, counters
from ansible_collections.accel.kubernetes.plugins.module_utils.usage import (
    html as gpu_usage_html,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.usage import (
    pages as gpu_usage_pages,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.usage import (
    plugins as gpu_usage_plugins,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.usage import (
    prometheus as gpu_usage_prometheus,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.usage import (
    sizing as gpu_usage_sizing,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.usage import (
    text as gpu_usage_text,
)
from ansible_collections.kubernetes.core.plugins.module_utils.args_common import AUTH_ARG_SPEC
from ansible_collections.kubernetes.core.plugins.module_utils.k8s.client import K8SClient, get_api_client
from ansible_collections.kubernetes.core.plugins.module_utils.k8s.core import AnsibleK8SModule

_UNITS = {"h": 3600, "d": 86400, "w": 7 * 86400}
_LONGEST = 400 * 86400
_FILES = ("html_file", "csv_file", "json_file", "keep")


class ReportError(Exception):
    """A report cannot be made. Says why."""


_ARGUMENTS: Dict[str, Any] = {
    "prometheus_url": {"type": "str"},
    "prometheus_token_file": {"type": "path", "no_log": False},
    "prometheus_ca_file": {"type": "path"},
    "prometheus_validate_certs": {"type": "bool", "default": True},
    "prometheus_selector": {"type": "str", "default": ""},
    "prometheus_timeout": {"type": "int", "default": 60},
    "start": {"type": "str"},
    "end": {"type": "str"},
    "period": {"type": "str"},
    "since": {"type": "path"},
    "keep": {"type": "path"},
    "plugins_namespace": {"type": "str", "default": plugin_pods.NAMESPACE},
    "nodes_come_and_go": {"type": "bool", "default": False},
    "policy": {"type": "str", "choices": list(charging.POLICIES), "default": charging.ALLOCATED},
    "prices": {"type": "dict", "default": {}},
    "currency": {"type": "str", "default": ""},
    "unit_label": {"type": "str", "default": ""},
    "right_size_below": {"type": "int", "default": 30},
    "right_size_after": {"type": "str", "default": "1h"},
    "html_file": {"type": "path"},
    "csv_file": {"type": "path"},
    "json_file": {"type": "path"},
}


def main() -> None:
    """Run the module."""
    sides = [("prometheus_url", name) for name in ("since", "keep")]
    module = AnsibleK8SModule(
        argument_spec={**copy.deepcopy(AUTH_ARG_SPEC), **_ARGUMENTS},
        mutually_exclusive=[("start", "period"), *sides],
        required_by=dict.fromkeys(("start", "end", "period"), ("prometheus_url",)),
        supports_check_mode=True,
        check_k8s=False,
        check_pyyaml=False,
    )
    for option in _FILES:
        if problem := misplaced(option, module.params[option]):
            module.fail_json(msg=problem)
    try:
        prices = _prices(module.params["prices"])
        after = _seconds("right_size_after", module.params["right_size_after"])
        kept: Optional[str] = None
        if module.params["prometheus_url"]:
            found = _from_prometheus(module, _window(module.params, int(time.time())))
        else:
            module.requires("kubernetes")
            with explained():
                found, kept = _from_plugins(module)
        unread: List[str] = []
        units = _asked_units(module, unread) if module.params["unit_label"] else {}
    except (ReportError, ApiServerError) as error:
        module.fail_json(msg=printable.line(error))
    ratio = module.params["right_size_below"] / 100
    oversized, unknown_pods = gpu_usage_sizing.oversized(found.holdings, ratio, after)
    report = gpu_usage_text.Report(
        found.usage,
        found.source,
        module.params["policy"],
        prices,
        module.params["currency"],
        found.used_known,
        tuple(oversized),
        unknown_pods,
        ratio,
        (*found.problems, *found.usage.problems, *unread),
        tuple(_notes(found, prices)),
        module.params["unit_label"],
        units,
    )
    _tell(module, report, kept)


def _tell(module: AnsibleK8SModule, report: gpu_usage_text.Report, kept: Optional[str]) -> None:
    """Write the files that were asked for, and return the report. ``kept`` is the state for a later report."""
    told = gpu_usage_text.document(report)
    table, csv = gpu_usage_text.table(report), gpu_usage_text.comma_separated(report)
    files = {
        "html_file": lambda: gpu_usage_html.page(report),
        "csv_file": lambda: csv,
        "json_file": lambda: printable.json_text(told, indent=2),
        "keep": lambda: kept or "",
    }
    diffs = []
    for option, make in files.items():
        if module.params[option]:
            try:
                diffs += written(module.params[option], make(), module.check_mode)
            except OSError as error:
                module.fail_json(msg=f"{option}: {module.params[option]}: {error}")
    module.exit_json(
        changed=bool(diffs),
        diff=diffs,
        report=printable.document(told),
        complete=report.complete,
        table=table.splitlines(),
        csv=csv,
    )


class _Found:
    """What a report is made of."""

    def __init__(
        self,
        source: str,
        usage: gpu_usage.Usage,
        used_known: Mapping[counters.Account, float],
        holdings: Sequence[gpu_usage_sizing.Holding],
        problems: Sequence[str],
        notes: Sequence[str] = (),
    ) -> None:
        self.source, self.usage, self.used_known = source, usage, used_known
        self.holdings, self.problems, self.notes = holdings, problems, notes


def _from_prometheus(module: AnsibleK8SModule, window: counters.Window) -> _Found:
    ask, warnings = _Prometheus(module.params), []
    selector = module.params["prometheus_selector"].strip()
    pages = gpu_usage_prometheus.gather(ask, window, selector)
    older = gpu_usage_prometheus.older(ask, pages, window, selector)
    usage = gpu_usage.usage(pages, window, module.params["nodes_come_and_go"], older)
    known = gpu_usage_prometheus.used_known(ask, window, selector)
    holdings = gpu_usage_prometheus.holdings(ask, window, selector)
    warnings = [f"Prometheus warns: {warning}" for warning in dict.fromkeys(ask.warnings)]
    warnings += list(dict.fromkeys(ask.problems))
    if not usage.nodes:
        which = f" with {selector}" if selector else ""
        warnings.append(
            f"Prometheus has no {gpu_usage_pages.CAPACITY}{which} of this period; does it scrape the plugins?"
        )
    return _Found("Prometheus", usage, known, holdings, warnings)


def _asked_units(module: AnsibleK8SModule, problems: List[str]) -> Dict[str, str]:
    """Return the value of the label by which namespaces are summed up, by namespace. Raise ApiServerError."""
    module.requires("kubernetes")
    with explained():
        return _units(get_api_client(module=module), module.params["unit_label"], problems)


def _units(client: K8SClient, label: str, problems: List[str]) -> Dict[str, str]:
    """Return the value of a label by namespace; a namespace that cannot be read is among the problems."""
    found = {
        str(metadata_of(namespace).get("name", "")): str(labels_of(namespace).get(label) or "")
        for namespace in objects(client, "Namespace", problems=problems)
    }
    return {name: value for name, value in found.items() if value}


def _from_plugins(module: AnsibleK8SModule) -> Tuple[_Found, str]:
    """And what to keep of it."""
    earlier = _kept(module.params["since"]) if module.params["since"] else None
    client = get_api_client(module=module)
    problems: List[str] = []
    nodes, pods = (list(objects(client, kind, problems=problems)) for kind in ("Node", "Pod"))
    namespace = module.params["plugins_namespace"]
    paths = plugin_pods.metrics_paths(pods, namespace)
    seen = gpu_view.view(nodes, pods)
    problems += [problem for problem in seen.problems if " cannot be read" in problem]
    problems += [
        f"node {node.name}: no plugin of it runs in {namespace}" for node in seen.nodes if node.name not in paths
    ]
    away = gpu_view.not_ready(nodes)
    problems += [f"node {name}: {away[name]}; its plugin was not asked" for name in sorted(paths) if name in away]
    told: Dict[str, counters.Page] = {}
    samples: List[gpu_usage_pages.Sample] = []
    answers = plugin_metrics.at_once(
        lambda path: (text_at(client, path, plugin_metrics.PAGE_BYTES), time.time()),
        {name: path for name, path in sorted(paths.items()) if name not in away},
    )
    for name, answer in answers.items():
        try:
            text, at = answer()
        except ApiServerError as error:
            problems.append(f"node {name}: {error}")
            continue
        mine = list(gpu_usage_pages.samples_of(text, at))
        page = gpu_usage_pages.pages(mine).get(name)
        if page:
            told[name] = page[-1]
            samples += mine
        else:
            problems.append(
                f"node {name}: its plugin does not report {gpu_usage_pages.CAPACITY}; is gpu_plugins_metrics_enabled?"
            )
    window = gpu_usage_plugins.period(told, earlier, time.time())
    pages = gpu_usage_plugins.together(told, earlier)
    usage = gpu_usage.usage(pages, window, module.params["nodes_come_and_go"])
    began = "since an earlier report" if earlier is not None else "since their ledgers began"
    notes = ["Right-sizing looks at the containers that run now, and their peaks since they got their GPUs."]
    known = gpu_usage_plugins.used_known(samples)
    holdings = gpu_usage_plugins.holdings(samples)
    found = _Found(f"the plugins' counters {began}", usage, known, holdings, problems, notes)
    return found, gpu_usage_pages.encode(gpu_usage_plugins.to_keep(told, earlier))


class _Prometheus:
    """Asks one. Raises ReportError."""

    def __init__(self, params: Mapping[str, Any]) -> None:
        self.warnings: List[str] = []
        self.problems: List[str] = []
        self._url = params["prometheus_url"].rstrip("/")
        self._shown = re.sub(r"//[^/@]*@", "//", self._url)
        self._headers = {"Accept": "application/json"}
        if params["prometheus_token_file"]:
            self._headers["Authorization"] = f"Bearer {_text(params['prometheus_token_file'], 'token').strip()}"
        self._options = {
            "validate_certs": params["prometheus_validate_certs"],
            "ca_path": params["prometheus_ca_file"],
            "timeout": params["prometheus_timeout"],
            # A redirect would take the token elsewhere.
            "follow_redirects": "none",
        }

    def __call__(self, expression: str, at: float) -> List[Dict[str, Any]]:
        """Return the series that it has at a time."""
        url = f"{self._url}/api/v1/query?{urlencode({'query': expression, 'time': at})}"
        try:
            with open_url(url, headers=self._headers, **self._options) as answer:
                document = read_object(answer.read())
        except HTTPError as error:
            raise ReportError(f"{self._shown} refused a query with status {error.code}: {_why(error)}") from error
        except (URLError, OSError, UrlConnectionError, SSLValidationError, ValueError) as error:
            raise ReportError(f"{self._shown} did not answer as Prometheus does: {error}") from error
        try:
            warnings = document.get("warnings") or []
            self.warnings += map(str, warnings) if isinstance(warnings, list) else [str(warnings)]
            return gpu_usage_prometheus.readable(document["data"]["result"], self.problems)
        except (KeyError, TypeError, AttributeError, ValueError) as error:
            raise ReportError(f"{self._shown} did not answer as Prometheus does: {str(document)[:200]}") from error


def _why(error: HTTPError) -> str:
    body = error.read().decode(errors="replace")
    try:
        return str(read_object(body)["error"])
    except (ValueError, KeyError):
        return " ".join(body.split())[:200] or str(error.reason)


def _window(params: Mapping[str, Any], now: int) -> counters.Window:
    end = _time("end", params["end"]) if params["end"] else now
    start = _time("start", params["start"]) if params["start"] else end - _seconds("period", params["period"] or "7d")
    if end > now:
        raise ReportError(f"end: {counters.moment(end)} has not come yet")
    if not 60 <= end - start <= _LONGEST:
        raise ReportError(
            f"a period is of a minute to {_LONGEST // 86400} days, and {counters.moment(start)} to "
            f"{counters.moment(end)} is not"
        )
    return counters.window(start, end)


def _time(option: str, text: str) -> int:
    try:
        found = datetime.fromisoformat(re.sub(r"[Zz]\Z", "+00:00", text.strip()))
    except ValueError as error:
        raise ReportError(f"{option}: {text} is no time; write 2026-11-01 or 2026-11-01T06:00:00+01:00") from error
    return int((found if found.tzinfo else found.replace(tzinfo=timezone.utc)).timestamp())


def _seconds(option: str, text: str) -> int:
    match = re.match(r"\s*([0-9]{1,6})\s*([hdw])\s*\Z", text)
    if match is None:
        raise ReportError(f"{option}: {text} is no length of time; write 24h, 7d or 4w")
    return int(match.group(1)) * _UNITS[match.group(2)]


def _prices(told: Mapping[str, Any]) -> Dict[str, Fraction]:
    found = {}
    for model, price in told.items():
        amount = None if isinstance(price, bool) else gpu_usage_pages.number(str(price))
        if amount is None:
            raise ReportError(f"prices: {model}: {price} is no price; write the amount of one GPU-hour, as 2.50")
        found[str(model)] = amount
    return found


def _notes(found: _Found, prices: Mapping[str, Fraction]) -> List[str]:
    notes = list(found.notes)
    models = sorted({model for part, model in found.usage.capacity})
    for model in sorted(set(prices) - set(models)):
        notes.append(f"prices: no GPU is a {model}; there are: {', '.join(models) or 'none'}")
    if prices:
        notes += [f"{model} has no price" for model in models if model not in prices]
    return notes


def _kept(path: str) -> Dict[str, counters.Page]:
    try:
        return gpu_usage_pages.decode(_text(path, "since"))
    except gpu_usage_pages.StateError as error:
        raise ReportError(f"since: {path}: {error}") from error


def _text(path: str, what: str) -> str:
    try:
        with open(path, encoding="utf-8") as file:
            return file.read()
    except (OSError, ValueError) as error:
        raise ReportError(f"{what}: {path}: {error}") from error


if __name__ == "__main__":
    main()
