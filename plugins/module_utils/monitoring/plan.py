# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decides how Prometheus gets to know of the GPUs. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from ..shared.inventory import GPU_NODES, Inventory
from ..shared.label_names import EXPORTER_NAME
from ..shared.options import OptionReader
from ..shared.refusal import Refusal
from ..shared.registers import annotations_of, mapping, mappings, metadata_of, resources, results
from .rules import alert_names, planned_rules

_CRDS = "monitoring.coreos.com/v1"
METHODS = ("auto", "operator", "annotations", "file", "none")
OURS = {"app.kubernetes.io/managed-by": "accel.kubernetes", "app.kubernetes.io/component": "monitoring"}
_SELECTORS = [f"{name}={value}" for name, value in OURS.items()]
_KINDS: Sequence[Mapping[str, Any]] = [
    {"kind": "Prometheus", "api_version": _CRDS, "labels": [], "foreign": True},
    {"kind": "Service", "api_version": "v1", "labels": ["app.kubernetes.io/name=prometheus"], "foreign": True},
    {"kind": "PodMonitor", "api_version": _CRDS, "labels": _SELECTORS},
    {"kind": "PrometheusRule", "api_version": _CRDS, "labels": _SELECTORS},
    {"kind": "Service", "api_version": "v1", "labels": _SELECTORS},
    {"kind": "ConfigMap", "api_version": "v1", "labels": _SELECTORS},
]
"""What is looked for: a Prometheus, and what we made."""
BEFORE, SET = "kube-accel.io/retention-before", "kube-accel.io/retention-set"
"""Annotations of a Prometheus whose retention we set: the one before, and ours."""
_DURATION = re.compile("(?:[0-9]+(?:ms|[smhdwy]))+")
_PARTS = re.compile("([0-9]+)(ms|[smhdwy])")
_SECONDS = {"ms": 0.001, "s": 1, "m": 60, "h": 3600, "d": 86400, "w": 604800, "y": 31536000}
_DEFAULT_RETENTION = "24h"
"""The retention of a Prometheus with neither a time nor a size set."""
_MANAGED_BY = "app.kubernetes.io/managed-by"
_PLUGIN_DOWN = "GpuPluginDown"


@dataclass(frozen=True)
class Options:
    """The variables of the role."""

    method: str
    namespace: str
    labels: Mapping[str, Any]
    scrape_interval: str
    retention: str
    alerts_disabled: Sequence[str]
    alert_labels: Mapping[str, Any]
    runbook_url: str
    dashboard_labels: Mapping[str, Any]
    host: str
    directory: str
    reload_url: str
    plugins_namespace: str
    plugins_metrics: bool
    """Whether the plugins serve metrics; those that do not answer with an error."""
    removing: bool
    """Whether all that is ours is to go, whatever the variables ask for."""


@dataclass(frozen=True)
class Noted:
    """A Prometheus of the operator whose retention we set."""

    name: str
    namespace: str
    ours: bool
    """Whether its retention is still the one that we set; what others set since is theirs."""
    before: str
    """The retention to give back when we no longer set one; empty for none."""


@dataclass(frozen=True)
class Plan:
    """What becomes of the cluster's monitoring."""

    kubeconfig: str
    context: str
    """How the first GPU node's variables say that the API server is reached; "" where they do not."""
    kinds: Sequence[Mapping[str, Any]]
    """What to look for in the cluster: a kind with labels, and whether it is somebody else's."""
    method: str
    prometheus: Dict[str, str]
    """Name and namespace of the operator's Prometheus that is to find what is made; empty where there is none."""
    others: List[str]
    """Further Prometheuses of the operator that may be meant."""
    namespace: str
    labels: Dict[str, Any]
    """Labels of what Prometheus is to find."""
    dashboard_labels: Dict[str, Any]
    """Labels of what Grafana is to find."""
    jobs: List[Dict[str, str]]
    """What can be scraped: the container whose port ``metrics`` it is, in pods with a label."""
    services: List[Dict[str, str]]
    """Those of the jobs that get a Service: one for all pods with the same label."""
    kept: str
    """How long the operator's Prometheus keeps samples; empty for as long as there is room."""
    kept_for_less: bool
    retention_before: str
    """The retention of the operator's Prometheus before the first run that set it."""
    given_back: List[Dict[str, Any]]
    """What was ``Noted`` of each Prometheus whose retention we no longer set."""
    directory: str
    """Where the method ``file`` puts its files."""
    local: bool
    """Whether these files are the controller's."""
    reachable: bool
    """Whether the inventory has the host of these files."""
    rules: Dict[str, Any]
    unwanted: List[Mapping[str, Any]]
    """Objects of the run before that are not wanted any more."""
    refusals: List[Dict[str, str]]


def read_options(values: Mapping[str, Any], inventory: Inventory) -> Tuple[Options, List[Refusal]]:
    """Return the options that variables give, by their names, and a refusal for each value of another type.

    Where nothing else says where the plugins are, the variables of the first GPU node do.
    """
    gpu_node = first_gpu_node(inventory)
    names = ("gpu_plugins_namespace", "gpu_plugins_metrics_enabled")
    plugins = {name: values[name] if values.get(name, "") != "" else gpu_node.get(name, "") for name in names}
    read = OptionReader({**values, **plugins})
    options = Options(
        method=read.text("monitoring_method"),
        namespace=read.text("monitoring_namespace"),
        labels=read.mapping("monitoring_labels"),
        scrape_interval=read.text("monitoring_scrape_interval"),
        retention=read.text("monitoring_retention"),
        alerts_disabled=read.words("monitoring_alerts_disabled"),
        alert_labels=read.mapping("monitoring_alert_labels"),
        runbook_url=read.text("monitoring_runbook_url"),
        dashboard_labels=read.mapping("monitoring_dashboard_labels"),
        host=read.text("monitoring_host"),
        directory=read.text("monitoring_directory"),
        reload_url=read.text("monitoring_reload_url"),
        plugins_namespace=read.text("gpu_plugins_namespace") or "kube-system",
        plugins_metrics=plugins["gpu_plugins_metrics_enabled"] == "" or read.boolean("gpu_plugins_metrics_enabled"),
        removing=read.boolean("monitoring_removing"),
    )
    return options, read.refusals


def first_gpu_node(inventory: Inventory) -> Mapping[str, Any]:
    """Return the variables of the first GPU node, and those of localhost where there is none."""
    return inventory.variables(next(iter(inventory.members(GPU_NODES)), "localhost"))


def plan(options: Options, inventory: Inventory, seen: Mapping[str, Any], groups: Sequence[Mapping[str, Any]]) -> Plan:
    """Decide by what the API server answered. ``groups`` are the groups of all rules, where they are asked for."""
    looked = results(seen.get("looked"))
    known = [_kind(answer) for answer in looked if answer.get("api_found")]
    operated = {"PodMonitor", "PrometheusRule"} <= set(known)
    theirs = [answer for answer in looked if "foreign" in mapping(answer.get("item"))]
    prometheuses = [item for answer in theirs if _kind(answer) == "Prometheus" for item in resources(answer)]
    method = "none" if options.removing else options.method
    if method == "auto":
        served = any(resources(answer) for answer in theirs if _kind(answer) == "Service")
        method = "operator" if operated else "annotations" if served else "none"
    meant = [item for item in prometheuses if metadata_of(item).get("namespace") == options.namespace] or prometheuses
    prometheus = meant[0] if meant else {}
    selectors = {name: _spec(prometheus).get(name) for name in ("podMonitorSelector", "ruleSelector")}
    noted = [each for each in (_noted(item, options.retention) for item in prometheuses) if each]
    kept = _kept(prometheus)
    made = [] if options.removing else mappings(seen.get("objects"))
    jobs = _jobs(options)
    refused = _Refusals(options, method, operated, prometheus, selectors)
    gpu_node = first_gpu_node(inventory)
    return Plan(
        kubeconfig=str(gpu_node.get("gpu_plugins_kubeconfig") or ""),
        context=str(gpu_node.get("gpu_plugins_context") or ""),
        kinds=[*_KINDS],
        method=method,
        prometheus={key: str(metadata_of(prometheus)[key]) for key in ("name", "namespace")} if prometheus else {},
        others=[_path(item) for item in meant[1:]],
        namespace=options.namespace or _namespace_of(prometheus, method) or options.plugins_namespace,
        labels={**OURS, **(options.labels or (_labels(selectors) if method == "operator" else {}))},
        dashboard_labels={**OURS, **options.dashboard_labels},
        jobs=jobs,
        services=_first_of_each_label(jobs),
        kept=kept,
        kept_for_less=kept != "" and seconds(kept) < seconds(options.retention),
        retention_before=_before(noted, prometheus),
        given_back=[dict(vars(each)) for each in noted if not each.ours or method != "operator"],
        directory=f"{re.sub('/$', '', options.directory)}/kube-accel",
        local=options.host == "localhost",
        reachable=options.host == "localhost" or options.host in inventory.hostvars,
        rules=planned_rules(
            groups,
            [*options.alerts_disabled, *([] if options.plugins_metrics else [_PLUGIN_DOWN])],
            options.alert_labels,
            options.runbook_url,
        ),
        unwanted=_unwanted(looked, made),
        refusals=[dict(vars(each)) for each in refused.all(inventory, alert_names(groups), bool(prometheuses))],
    )


def seconds(duration: str) -> float:
    """Return how long a duration is that is written as Prometheus does."""
    return sum(int(amount) * _SECONDS[unit] for amount, unit in _PARTS.findall(duration))


@dataclass(frozen=True)
class _Refusals:
    """What is against the plan."""

    options: Options
    method: str
    operated: bool
    prometheus: Mapping[str, Any]
    selectors: Mapping[str, Any]

    def all(self, inventory: Inventory, alerts: Sequence[str], found: bool) -> Iterator[Refusal]:
        """Yield each reason."""
        yield from self._of_words()
        yield from self._of_alerts(alerts)
        if self.method == "file":
            yield from self._of_files(inventory)
        if self.method == "operator":
            yield from self._of_operator(found)

    def _of_words(self) -> Iterator[Refusal]:
        options = self.options
        if options.method not in METHODS:
            yield Refusal(
                "method_unknown", f"monitoring_method is '{options.method}'; set it to one of {', '.join(METHODS)}."
            )
        for name, value, example in (
            ("scrape_interval", options.scrape_interval, "30s or 1m"),
            ("retention", options.retention, "7d or 36h"),
        ):
            if not _DURATION.fullmatch(value):
                yield Refusal(
                    f"{name}_unreadable",
                    f"monitoring_{name} is '{value}'; write it as Prometheus does, for example {example}.",
                )

    def _of_alerts(self, alerts: Sequence[str]) -> Iterator[Refusal]:
        unknown = [name for name in self.options.alerts_disabled if name not in alerts]
        if alerts and unknown:
            yield Refusal(
                "alerts_unknown",
                f"monitoring_alerts_disabled has {', '.join(unknown)}; the alerts are {', '.join(alerts)}.",
            )
        if "severity" in self.options.alert_labels:
            yield Refusal(
                "severity_taken",
                "monitoring_alert_labels has severity, which each alert has its own of; choose another name.",
            )

    def _of_files(self, inventory: Inventory) -> Iterator[Refusal]:
        options = self.options
        if not options.directory.startswith("/"):
            yield Refusal(
                "directory_relative",
                f"monitoring_directory is '{options.directory}'; name a directory by its whole path, on host "
                f"{options.host}.",
            )
        if options.host != "localhost" and options.host not in inventory.hostvars:
            yield Refusal(
                "host_unknown",
                f"monitoring_host is '{options.host}', which the inventory does not have; name a host of it, or "
                "localhost.",
            )

    def _of_operator(self, found: bool) -> Iterator[Refusal]:
        if not self.operated:
            yield Refusal(
                "operator_missing",
                "monitoring_method is operator, and the cluster does not know the kinds PodMonitor and PrometheusRule "
                "of monitoring.coreos.com; install the Prometheus operator first, or choose another method.",
            )
        if self.options.labels or not found:
            return
        unset = [name for name, selector in self.selectors.items() if selector is None]
        if unset:
            yield Refusal(
                "selectors_unset",
                f"Prometheus {_path(self.prometheus)} has no {' and no '.join(unset)} and so looks for nothing of this "
                "kind; give it one ({} takes all), or set monitoring_labels if another one is meant.",
            )
        if any("matchExpressions" in mapping(selector) for selector in self.selectors.values()):
            yield Refusal(
                "selectors_unreadable",
                f"The selectors of Prometheus {metadata_of(self.prometheus).get('name')} have matchExpressions; set "
                "monitoring_labels to labels that they take.",
            )


def _jobs(options: Options) -> List[Dict[str, str]]:
    where = options.plugins_namespace
    ours = {"label": _MANAGED_BY, "is": "accel.kubernetes"}
    dcgm = {"label": "app", "is": EXPORTER_NAME}
    plugins = [{"job": "kube-accel", "container": "kube-accel", "namespace": where, **ours}]
    return [
        *(plugins if options.plugins_metrics else []),
        {"job": "kube-accel-extender", "container": "extender", "namespace": "kube-system", **ours},
        {"job": EXPORTER_NAME, "container": "exporter", "namespace": where, **dcgm},
    ]


def _first_of_each_label(jobs: Sequence[Dict[str, str]]) -> List[Dict[str, str]]:
    first: Dict[Tuple[str, str], Dict[str, str]] = {}
    for job in jobs:
        first.setdefault((job["namespace"], job["is"]), job)
    return list(first.values())


def _labels(selectors: Mapping[str, Any]) -> Dict[str, Any]:
    found: Dict[str, Any] = {}
    for selector in selectors.values():
        found.update(mapping(mapping(selector).get("matchLabels")))
    return found


def _kept(prometheus: Mapping[str, Any]) -> str:
    spec = _spec(prometheus)
    return str(spec.get("retention") or ("" if spec.get("retentionSize") else _DEFAULT_RETENTION))


def _noted(prometheus: Mapping[str, Any], retention: str) -> Optional[Noted]:
    notes = annotations_of(prometheus)
    if BEFORE not in notes:
        return None
    now = str(_spec(prometheus).get("retention", ""))
    ours = now == notes.get(SET, retention)
    name, namespace = (str(metadata_of(prometheus).get(key)) for key in ("name", "namespace"))
    return Noted(name, namespace, ours, str(notes[BEFORE]) if ours else now)


def _before(noted: Sequence[Noted], prometheus: Mapping[str, Any]) -> str:
    """Return what there was before the first run, through all runs."""
    found = [each.before for each in noted if f"{each.namespace}/{each.name}" == _path(prometheus)]
    return found[0] if found else str(_spec(prometheus).get("retention", ""))


def _unwanted(looked: Sequence[Mapping[str, Any]], made: Sequence[Mapping[str, Any]]) -> List[Mapping[str, Any]]:
    wanted = {(item.get("kind"), _path(item)) for item in made}
    ours = [item for answer in looked if "foreign" not in mapping(answer.get("item")) for item in resources(answer)]
    return [item for item in ours if (item.get("kind"), _path(item)) not in wanted]


def _namespace_of(prometheus: Mapping[str, Any], method: str) -> str:
    return str(metadata_of(prometheus).get("namespace") or "") if method == "operator" else ""


def _kind(answer: Mapping[str, Any]) -> object:
    return mapping(answer.get("item")).get("kind")


def _spec(item: Mapping[str, Any]) -> Mapping[str, Any]:
    return mapping(item.get("spec"))


def _path(item: Mapping[str, Any]) -> str:
    return f"{metadata_of(item).get('namespace')}/{metadata_of(item).get('name')}"
