# SPDX-License-Identifier: Apache-2.0
"""Writes the Grafana dashboards of role monitoring: ``python tests/tools/dashboards.py``."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

DIRECTORY = Path(__file__).parents[2] / "roles/monitoring/files/dashboards"
WIDTH = 24
SOURCE = {"type": "prometheus", "uid": "${datasource}"}
PRESETS = {"30m": "30 minutes", "1h": "hour", "6h": "6 hours", "12h": "12 hours", "24h": "24 hours"}
PRESETS |= {"2d": "2 days", "7d": "7 days"}
OWNER = "node, uuid, namespace, pod, container, mode"

Json = dict[str, Any]


@dataclass(frozen=True)
class Target:
    """One query of a panel."""

    expr: str
    legend: str = ""
    instant: bool = False


@dataclass(frozen=True)
class Panel:
    """One panel, laid out from left to right in the order given."""

    title: str
    kind: str
    targets: Sequence[Target]
    says: str
    unit: str = "short"
    width: int = 12
    height: int = 8
    defaults: Json = field(default_factory=dict)
    options: Json = field(default_factory=dict)
    transformations: Sequence[Json] = ()


def gpu(metric: str, also: str = "") -> str:
    """A family of GPUs by node and index; one series while a plugin hands over to its successor."""
    labels = f"node, uuid, {also}" if also else "node, uuid"
    known = 'max by (node, uuid, index) (accel_gpu_info{node=~"$node", index=~"$gpu"})'
    return f'max by ({labels}) ({metric}{{node=~"$node"}}) * on (node, uuid) group_left (index) {known}'


def rate(metric: str, also: str = "") -> str:
    """How fast a counter of GPUs grows."""
    labels = f"node, uuid, {also}" if also else "node, uuid"
    known = 'max by (node, uuid, index) (accel_gpu_info{node=~"$node", index=~"$gpu"})'
    counter = f'sum by ({labels}) (rate({metric}{{node=~"$node"}}[$__rate_interval]))'
    return f"{counter} * on (node, uuid) group_left (index) {known}"


def nodes(metric: str, selector: str = 'node=~"$node"') -> str:
    """The sum of a family over GPUs."""
    return f"sum(max by (node, uuid) ({metric}{{{selector}}}))"


def held(metric: str, selector: str, by: str = "namespace, pod") -> str:
    """The sum of a family of containers."""
    return f"sum by ({by}) (max by ({OWNER}) ({metric}{{{selector}}}))"


def known_request(selector: str, by: str = "namespace, pod") -> str:
    """The memory of containers whose use is known, since unknown is not zero."""
    request, used = (
        f"max by ({OWNER}) (accel_container_gpu_memory_{what}_bytes{{{selector}}})" for what in ("request", "used")
    )
    return f"sum by ({by}) ({request} and {used})"


def grew(metric: str, by: str, selector: str = "") -> str:
    """Hours by which a counter of seconds grew in the time that is shown."""
    return f"sum by ({by}) (increase({metric}{{{selector}}}[$__range])) / 3600" if by else (
        f"sum(increase({metric}{{{selector}}}[$__range])) / 3600"
    )  # fmt: skip


def grew_where_known(metric: str, by: str, selector: str = "") -> str:
    """The same of those nodes and modes where the use of some container is known, since unknown is not idle."""
    use = f"last_over_time(accel_container_gpu_utilization_ratio{{{selector}}}[$__range])"
    counter = f"increase({metric}{{{selector}}}[$__range])"
    return f"sum by ({by}) ({counter} and on (node, namespace, mode) group by (node, namespace, mode) ({use})) / 3600"


def table(*targets: Target) -> tuple[Target, ...]:
    return tuple(Target(target.expr, target.legend, True) for target in targets)


def columns(names: Sequence[str], **labels: str) -> Sequence[Json]:
    """A table of instant queries, one column each beside the labels, which may be renamed."""
    # Grafana tells the figures of several queries apart, and that of one not.
    values = {f"Value #{chr(65 + index)}" if names[1:] else "Value": name for index, name in enumerate(names)}
    hidden = {"Time": True, **{name: True for name, shown in labels.items() if not shown}}
    shown = {name: title for name, title in labels.items() if title}
    return (
        {"id": "merge", "options": {}},
        {"id": "organize", "options": {"excludeByName": hidden, "renameByName": {**shown, **values}}},
    )


def units(**by_name: str) -> Json:
    """Units of columns; an underscore stands for a space."""
    matchers = [({"id": "byName", "options": name.replace("_", " ")}, unit) for name, unit in by_name.items()]
    return {"overrides": [{"matcher": m, "properties": [{"id": "unit", "value": unit}]} for m, unit in matchers]}


RATIO: Json = {"min": 0, "max": 1}
STACKED: Json = {"custom": {"fillOpacity": 30, "stacking": {"mode": "normal", "group": "A"}}}
BARS: Json = {"custom": {"drawStyle": "bars", "fillOpacity": 80, "stacking": {"mode": "normal", "group": "A"}}}
AT_GPU = "{{node}} GPU {{index}}"
AT_POD = "{{namespace}}/{{pod}}"


def variable(name: str, label: str, query: str, regex: str = "") -> Json:
    """Filled by a query; all at first."""
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": SOURCE,
        "definition": query,
        "query": {"query": query, "refId": f"variable-{name}"},
        "regex": regex,
        "refresh": 2,
        "sort": 3,
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }


def choice(name: str, label: str, choices: dict[str, str]) -> Json:
    """Fixed words, by what is shown."""
    return {
        "name": name,
        "label": label,
        "type": "custom",
        "query": ",".join(f"{shown} : {value}" for shown, value in choices.items()),
        "options": [{"selected": False, "text": shown, "value": value} for shown, value in choices.items()],
        "multi": True,
        "includeAll": True,
        "allValue": ".*",
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
    }


def textbox(name: str, label: str, value: str) -> Json:
    options = [{"selected": True, "text": value, "value": value}]
    return {"name": name, "label": label, "type": "textbox", "query": value, "current": options[0], "options": options}


def alive(label: str, selector: str) -> tuple[str, str]:
    """Query and regex for those that were there in the time that is shown, and not for all that ever were."""
    there = f"last_over_time(accel_container_gpu_allocated_gpus{{{selector}}}[$__range])"
    return f"query_result(group by ({label}) ({there}))", f'/{label}="([^"]+)"/'


NODE = variable("node", "Node", "label_values(accel_gpu_info, node)")
GPU = variable("gpu", "GPU", 'label_values(accel_gpu_info{node=~"$node"}, index)')
TYPE = choice("type", "GPU type", {"pGPU": "pgpu", "GPU-Manager(vGPU)": "vgpu", "MPS": "mps", "cGPU": "cgpu"})
NAMESPACE = variable("namespace", "Namespace", *alive("namespace", 'mode=~"$type"'))
POD = variable("pod", "Pod", *alive("pod", 'mode=~"$type", namespace=~"$namespace"'))

POD_SELECTOR = 'mode=~"$type", namespace=~"$namespace", pod=~"$pod"'


def node_monitoring() -> Json:
    allocated = f"{nodes('accel_gpu_memory_allocated_bytes')} / {nodes('accel_gpu_memory_capacity_bytes')}"
    panels = [
        Panel("GPUs", "stat", [
            Target('sum(max by (node) (accel_node_gpus{node=~"$node", state="healthy"}))', "healthy"),
            Target('sum(max by (node) (accel_node_gpus{node=~"$node", state="expected"}))', "expected"),
        ], "How many may be handed out, of how many there were.", width=4, height=4),
        Panel("Utilization", "stat", [Target(f"avg({gpu('accel_gpu_utilization_ratio')})")],
              "Part of the time in which kernels ran, all GPUs shown.", "percentunit", 4, 4, RATIO),
        Panel("Memory", "stat", [
            Target(nodes("accel_gpu_memory_used_bytes"), "used"),
            Target(nodes("accel_gpu_memory_capacity_bytes"), "there is"),
        ], "Memory in use, and all there is.", "bytes", 6, 4),
        Panel("Allocated", "stat", [Target(allocated)], "Part of the memory that containers have.", "percentunit", 3, 4,
              RATIO),
        Panel("Power", "stat", [Target(nodes("accel_gpu_power_watts"))], "Drawn by all GPUs shown.", "watt", 3, 4),
        Panel("Last XID", "stat", [
            Target('time() - max(accel_gpu_xid_last_timestamp_seconds{node=~"$node"})'),
        ], "How long ago the driver reported an error. Nothing: never.", "s", 4, 4),
        Panel("Utilization of each GPU", "timeseries", [Target(gpu("accel_gpu_utilization_ratio"), AT_GPU)],
              "Part of the time in which kernels ran.", "percentunit", defaults=RATIO),
        Panel("Memory used of each GPU", "timeseries", [Target(gpu("accel_gpu_memory_used_bytes"), AT_GPU)],
              "Without what the driver reserves.", "bytes", defaults={"min": 0}),
        Panel("Memory: used, allocated, available", "timeseries", [
            Target(nodes("accel_gpu_memory_used_bytes"), "used"),
            Target(nodes("accel_gpu_memory_allocated_bytes"), "allocated"),
            Target(nodes("accel_gpu_memory_capacity_bytes"), "available"),
        ], "Of all GPUs shown. Allocated and not used is what others cannot have.", "bytes", defaults={"min": 0}),
        Panel("Free memory of each GPU", "bargauge", [
            Target(gpu("accel_gpu_memory_unallocated_bytes"), AT_GPU, True),
        ], "What no container has.", "bytes", defaults={"min": 0},
              options={"orientation": "horizontal", "displayMode": "basic"}),
        Panel("Who has which GPU", "table", table(
            Target(f'max by ({OWNER}) (accel_container_gpu_allocated_gpus{{node=~"$node"}})'
                   " * on (node, uuid) group_left (index) "
                   'max by (node, uuid, index) (accel_gpu_info{node=~"$node", index=~"$gpu"})'),
        ), "Containers now, with the part of the GPU that they are charged for.", "percentunit", WIDTH,
              transformations=columns(["Part"], uuid="", node="Node", index="GPU", namespace="Namespace", pod="Pod",
                                      container="Container", mode="Mode")),
        Panel("Temperature", "timeseries", [
            Target(gpu("accel_gpu_temperature_celsius", "sensor"), f"{AT_GPU} {{{{sensor}}}}"),
        ], "By sensor.", "celsius", 8),
        Panel("Power of each GPU", "timeseries", [
            Target(gpu("accel_gpu_power_watts"), AT_GPU),
            Target(gpu("accel_gpu_power_limit_watts"), f"{AT_GPU} limit"),
        ], "Drawn, and the limit in force.", "watt", 8, defaults={"min": 0}),
        Panel("Clocks", "timeseries", [Target(gpu("accel_gpu_clock_hertz", "domain"), f"{AT_GPU} {{{{domain}}}}")],
              "By domain.", "hertz", 8),
        Panel("Health", "state-timeline", [Target(gpu("accel_gpu_healthy"), AT_GPU)],
              "Whether the GPU may be handed out.",
              defaults={"mappings": [{"type": "value", "options": {
                  "0": {"text": "unhealthy", "color": "red"}, "1": {"text": "healthy", "color": "green"}}}]}),
        Panel("Throttled", "timeseries", [
            Target(rate("accel_gpu_throttle_seconds_total", "reason"), f"{AT_GPU} {{{{reason}}}}"),
        ], "Part of the time with clocks held down.", "percentunit", defaults={"min": 0}),
        Panel("XIDs", "table", table(
            Target('max by (node, uuid, xid) (accel_gpu_xid_errors_total{node=~"$node"})'),
            Target('time() - max by (node, uuid, xid) (accel_gpu_xid_last_timestamp_seconds{node=~"$node"})'),
        ), "Errors that the driver reported.",
              defaults=units(Ago="s"),
              transformations=columns(["Count", "Ago"], node="Node", uuid="GPU", xid="XID")),
        Panel("Memory errors", "timeseries", [
            Target(gpu("accel_gpu_ecc_errors_total", "type"), f"{AT_GPU} {{{{type}}}}"),
        ], "ECC errors since the driver was loaded."),
        Panel("Memory that is no one pod's", "timeseries", [
            Target(gpu("accel_gpu_memory_unattributed_bytes", "reason"), f"{AT_GPU} {{{{reason}}}}"),
        ], "By whose it is: the driver's, of a process of the host, of an MPS server, of pods that cannot be told "
           "apart, unknown.", "bytes", defaults=STACKED),
        Panel("Collectors", "state-timeline", [
            Target('min by (node, collector) (accel_collector_success{node=~"$node"})', "{{node}} {{collector}}"),
        ], "What is not known is absent; this says why.",
              defaults={"mappings": [{"type": "value", "options": {
                  "0": {"text": "fails", "color": "red"}, "1": {"text": "works", "color": "green"}}}]}),
    ]  # fmt: skip
    return dashboard("node", "Node Monitoring", "GPUs of nodes.", [NODE, GPU], panels)


def pod_monitoring() -> Json:
    used = held("accel_container_gpu_memory_used_bytes", POD_SELECTOR)
    request = held("accel_container_gpu_memory_request_bytes", POD_SELECTOR)
    panels = [
        Panel("Utilization", "timeseries", [
            Target(held("accel_container_gpu_utilization_ratio", POD_SELECTOR), AT_POD),
            Target(held("accel_container_gpu_core_request_ratio", POD_SELECTOR), f"{AT_POD} asked for"),
        ], "Part of the time in which the GPU ran the pod's kernels, and the part of its cores that it asked for. "
           "Several GPUs add up.", "percentunit", defaults={"min": 0}),
        Panel("Memory", "timeseries", [
            Target(used, AT_POD),
            Target(held("accel_container_gpu_memory_peak_bytes", POD_SELECTOR), f"{AT_POD} peak"),
            Target(request, f"{AT_POD} has"),
        ], "Used, the most it ever used, and what it has.", "bytes", defaults={"min": 0}),
        Panel("Used of what it has", "gauge", [Target(f"{used} / ({known_request(POD_SELECTOR)} > 0)", AT_POD, True)],
              "Memory. Under 30 % for hours is waste, above 95 % an allocation may be refused.", "percentunit", 8,
              defaults=RATIO),
        Panel("Idle for", "bargauge", [
            Target(f"time() - max by (namespace, pod) "
                   f"(accel_container_gpu_last_active_timestamp_seconds{{{POD_SELECTOR}}})", AT_POD, True),
        ], "Since a kernel of the pod was seen to run.", "s", 8,
              options={"orientation": "horizontal", "displayMode": "basic"}),
        Panel("Refused allocations", "timeseries", [
            Target(f"sum by (namespace, pod, reason) (increase("
                   f"accel_container_gpu_alloc_failures_total{{{POD_SELECTOR}}}[$__rate_interval]))",
                   f"{AT_POD} {{{{reason}}}}"),
        ], "quota: its own limit; device: the GPU is full; policy: its limits cannot be read.", width=8,
              defaults={"min": 0}),
        Panel("Processes", "timeseries", [Target(held("accel_container_gpu_processes", POD_SELECTOR), AT_POD)],
              "That have memory of a GPU.", defaults={"min": 0}),
        Panel("Unused memory", "bargauge", [Target(f"topk(10, {known_request(POD_SELECTOR)} - {used})", AT_POD, True)],
              "The ten pods that use least of what they have, in bytes.", "bytes",
              options={"orientation": "horizontal", "displayMode": "basic"}),
        Panel("Where", "table", table(
            Target(f"max by ({OWNER}) (accel_container_gpu_allocated_gpus{{{POD_SELECTOR}}}) * on (node, uuid) "
                   "group_left (index, model) max by (node, uuid, index, model) (accel_gpu_info)"),
        ), "Which GPU of which node, and the part of it.", "percentunit", WIDTH,
              transformations=columns(["Part"], node="Node", index="GPU", model="Model", namespace="Namespace",
                                      pod="Pod", container="Container", mode="Mode", uuid="")),
    ]  # fmt: skip
    return dashboard("pod", "Pod Monitoring", "What pods do with their GPUs.", [TYPE, NAMESPACE, POD], panels)


def capacity() -> Json:
    charged, busy = "accel_namespace_gpu_seconds_total", "accel_namespace_gpu_busy_seconds_total"
    seconds = "accel_node_gpu_seconds_total"
    of = 'namespace=~"$namespace"'
    hours, there = grew(charged, "namespace", of), grew(seconds, "")
    known_hours, busy_hours = (grew_where_known(metric, "namespace", of) for metric in (charged, busy))
    allocated = f"sum(max by ({OWNER}) (accel_container_gpu_allocated_gpus))"
    peak, asked = (
        f"max by ({OWNER}) (max_over_time(accel_container_gpu_memory_{what}_bytes{{{of}}}[$__range]))"
        for what in ("peak", "request")
    )
    request = held("accel_container_gpu_memory_request_bytes", of)
    panels = [
        Panel("GPU-hours there were", "stat", [Target(there, instant=True)], "In the time that is shown.", "h", 6, 4),
        Panel("Charged", "stat", [Target(f"{grew(charged, '')} / ({there})", instant=True)],
              "Part of them that pods had.", "percentunit", 6, 4, RATIO),
        Panel("Busy", "stat", [Target(f"{grew_where_known(busy, '')} / ({there})", instant=True)],
              "Part of them in which kernels of pods ran, as far as it is known.", "percentunit", 6, 4, RATIO),
        Panel("Free", "stat", [Target(f"({there}) - {grew(charged, '')}", instant=True)],
              "GPU-hours that nobody had.", "h", 6, 4),
        Panel("GPU-hours a day", "timeseries", [
            Target(f"sum by (namespace) (increase({charged}{{{of}}}[1d])) / 3600", "{{namespace}}"),
            Target(f"(sum(increase({seconds}[1d])) - sum(increase({charged}[1d]))) / 3600", "free"),
        ], "The day up to each moment, by namespace; with what was free it is what there was.", "h", WIDTH,
              defaults=BARS),
        Panel("Chargeback", "table", table(
            Target(hours),
            Target(busy_hours),
            Target(f"{known_hours} - {busy_hours}"),
            Target(f"{busy_hours} / ({known_hours} > 0)"),
            Target(f"({hours}) / on () group_left () ({there})"),
            Target(f"({hours}) * $rate"),
        ), "By namespace, for the time that is shown. Idle is charged and not busy, as far as it is known.", "h", WIDTH,
              defaults=units(Efficiency="percentunit", Share="percentunit", Cost="short"),
              transformations=columns(["Charged", "Busy", "Idle", "Efficiency", "Share", "Cost"],
                                      namespace="Namespace")),
        Panel("GPUs: there are, allocated, busy", "timeseries", [
            Target("count(max by (node, uuid) (accel_gpu_info))", "there are"),
            Target(allocated, "allocated"),
            Target("sum(max by (node, uuid) (accel_gpu_utilization_ratio))", "busy"),
        ], "Parts of GPUs add up. The highest of the day is the demand to plan for.", defaults={"min": 0},
              options={"legend": {"displayMode": "table", "placement": "bottom", "calcs": ["max", "mean"]}}),
        Panel("Allocated a week from now", "timeseries", [
            Target(f"predict_linear({allocated}[7d:1h], 7 * 86400)", "as the last week goes"),
            Target("count(max by (node, uuid) (accel_gpu_info))", "there are"),
        ], "GPUs, if the growth of the week before goes on.", defaults={"min": 0}),
        Panel("Quotas", "bargauge", [
            Target(f"max by (namespace, resource) (accel_namespace_gpu_quota_used{{{of}}}) / "
                   f"(max by (namespace, resource) (accel_namespace_gpu_quota{{{of}}}) > 0)",
                   "{{namespace}} {{resource}}", True),
        ], "Part in use, where the extender knows a quota.", "percentunit", defaults=RATIO,
              options={"orientation": "horizontal", "displayMode": "basic"}),
        Panel("Pods that wait", "timeseries", [
            Target("sum by (namespace, mode) (max by (namespace, mode) (accel_pending_gpu_pods))",
                   "{{namespace}} {{mode}}"),
        ], "Pods that ask for shares and have no node yet, as the extender knows them.",
              defaults={"min": 0}),
        Panel("Fragmentation", "timeseries", [
            Target("1 - max by (node) (accel_gpu_memory_unallocated_bytes) / "
                   "(sum by (node) (max by (node, uuid) (accel_gpu_memory_unallocated_bytes)) > 0)", "{{node}}"),
        ], "How far the free memory of a node is from lying on one GPU.", "percentunit", defaults=RATIO),
        Panel("Could do with less", "table", table(
            Target(f"sum by (namespace, pod) ({peak}) / (sum by (namespace, pod) ({asked} and {peak}) > 0) < 0.3"),
            Target(request),
        ), "Pods that never used 30 % of their memory.", "bytes",
              defaults=units(Used_at_most="percentunit"),
              transformations=columns(["Used at most", "Has"], namespace="Namespace", pod="Pod")),
    ]  # fmt: skip
    variables = [
        variable("namespace", "Namespace", "label_values(accel_namespace_gpu_seconds_total, namespace)"),
        textbox("rate", "Price of a GPU-hour", "1"),
    ]
    return dashboard("capacity", "Capacity and Chargeback", "Who pays, and what is left.", variables, panels, "7d")


def cgpu_app() -> Json:
    of = 'mode="cgpu", namespace=~"$namespace", pod=~"$pod"'
    used, request = (held(f"accel_container_gpu_memory_{what}_bytes", of) for what in ("used", "request"))
    panels = [
        Panel("Memory", "timeseries", [Target(used, AT_POD)], "That each app uses.", "bytes", defaults={"min": 0}),
        Panel("Memory, of what it has", "timeseries", [Target(f"{used} / ({known_request(of)} > 0)", AT_POD)],
              "Part of its own.", "percentunit", defaults=RATIO),
        Panel("Utilization", "timeseries", [Target(held("accel_container_gpu_utilization_ratio", of), AT_POD)],
              "Part of the time in which the GPU ran its kernels.", "percentunit", defaults={"min": 0}),
        Panel("Refused allocations", "timeseries", [
            Target(f"sum by (namespace, pod, reason) (increase(accel_container_gpu_alloc_failures_total{{{of}}}"
                   "[$__rate_interval]))", f"{AT_POD} {{{{reason}}}}"),
        ], "An app that wants more than it has.", defaults={"min": 0}),
        Panel("Apps", "table", table(Target(request), Target(used), Target(f"{used} / ({known_request(of)} > 0)")),
              "What each has and uses now.", "bytes", WIDTH, defaults=units(Part="percentunit"),
              transformations=columns(["Has", "Uses", "Part"], namespace="Namespace", pod="App")),
    ]  # fmt: skip
    variables = [
        variable("namespace", "Namespace", *alive("namespace", 'mode="cgpu"')),
        variable("pod", "App", *alive("pod", 'mode="cgpu", namespace=~"$namespace"')),
    ]
    return dashboard("cgpu-app", "GPU APP", "Memory of cGPU apps, in bytes and percent.", variables, panels)


def cgpu_node() -> Json:
    def of(what: str) -> str:
        """By GPU, of nodes that serve cGPU."""
        served = 'max by (node, uuid, index) (accel_gpu_info{node=~"$node", mode="cgpu"})'
        family = f'max by (node, uuid) (accel_gpu_memory_{what}_bytes{{node=~"$node"}})'
        return f"{family} * on (node, uuid) group_left (index) {served}"

    used, capacity_, allocated = (of(what) for what in ("used", "capacity", "allocated"))
    panels = [
        Panel("Memory there is", "stat", [Target(f"sum({capacity_})")], "Of the nodes shown.", "bytes", 6, 4),
        Panel("Allocated", "stat", [Target(f"sum({allocated}) / sum({capacity_})")], "Part that apps have.",
              "percentunit", 6, 4, RATIO),
        Panel("Used", "stat", [Target(f"sum({used}) / sum({capacity_})")], "Part that is in use.", "percentunit", 6, 4,
              RATIO),
        Panel("Used of allocated", "stat", [Target(f"sum({used}) / sum({allocated})")],
              "Part in use of what apps have.", "percentunit", 6, 4, {"min": 0}),
        Panel("Memory used", "timeseries", [Target(used, AT_GPU)], "Of each GPU.", "bytes", defaults={"min": 0}),
        Panel("Memory used, percent", "timeseries", [
            Target(f"({used}) / on (node, uuid, index) ({capacity_})", AT_GPU),
        ], "Of each GPU.", "percentunit", defaults=RATIO),
        Panel("Memory allocated", "timeseries", [Target(allocated, AT_GPU)], "Of each GPU.", "bytes",
              defaults={"min": 0}),
        Panel("GPUs", "table", table(Target(capacity_), Target(allocated), Target(used)), "Now.", "bytes",
              transformations=columns(["There is", "Allocated", "Used"], node="Node", index="GPU", uuid="")),
    ]  # fmt: skip
    variables = [variable("node", "Node", 'label_values(accel_gpu_info{mode="cgpu"}, node)')]
    return dashboard("cgpu-node", "GPU Node", "Memory of nodes that serve cGPU.", variables, panels)


def dashboard(
    name: str, title: str, says: str, variables: Iterable[Json], panels: Iterable[Panel], since: str = "6h"
) -> Json:
    source = {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus", "current": {}}
    presets = [{"display": f"Last {text}", "from": f"now-{span}", "to": "now"} for span, text in PRESETS.items()]
    return {
        "uid": f"kube-accel-{name}",
        "title": title,
        "description": says,
        "tags": ["gpu", "kube-accel"],
        "schemaVersion": 39,
        "editable": True,
        "graphTooltip": 1,
        "refresh": "30s",
        "time": {"from": f"now-{since}", "to": "now"},
        "timepicker": {"quick_ranges": presets},
        "timezone": "browser",
        "links": [{"type": "dashboards", "title": "GPU", "tags": ["kube-accel"], "asDropdown": True,
                   "includeVars": False, "keepTime": True, "icon": "external link"}],
        "annotations": {"list": [{
            "name": "XIDs", "datasource": SOURCE, "enable": True, "iconColor": "red",
            # Each is a point at its own time; longer than the step of any range, and little of what was before.
            "expr": "(max by (node, uuid, xid) (accel_gpu_xid_last_timestamp_seconds) > time() - 3600) * 1000",
            "useValueForTime": True,
            "titleFormat": "XID {{xid}} on {{node}}"}]},
        "templating": {"list": [source, *variables]},
        "panels": placed(panels),
    }  # fmt: skip


def placed(panels: Iterable[Panel]) -> list[Json]:
    """Left to right, in rows as high as their highest."""
    made: list[Json] = []
    x = y = height = 0
    for panel in panels:
        if x + panel.width > WIDTH:
            x, y, height = 0, y + height, 0
        made.append(drawn(panel, len(made) + 1, {"x": x, "y": y, "w": panel.width, "h": panel.height}))
        x, height = x + panel.width, max(height, panel.height)
    return made


def drawn(panel: Panel, number: int, place: Json) -> Json:
    settings = dict(panel.defaults)
    overrides = settings.pop("overrides", [])
    return {
        "id": number,
        "title": panel.title,
        "description": panel.says,
        "type": panel.kind,
        "datasource": SOURCE,
        "gridPos": place,
        "targets": [
            {
                "refId": chr(65 + index),
                "datasource": SOURCE,
                "expr": target.expr,
                "legendFormat": target.legend or "__auto",
                "instant": target.instant,
                "range": not target.instant,
                "format": "table" if panel.kind == "table" else "time_series",
            }
            for index, target in enumerate(panel.targets)
        ],
        "fieldConfig": {"defaults": {"unit": panel.unit, **settings}, "overrides": overrides},
        "options": dict(panel.options),
        "transformations": list(panel.transformations),
    }


def made() -> dict[str, str]:
    """The text of every dashboard, by file name."""
    every = {
        "node-monitoring": node_monitoring(),
        "pod-monitoring": pod_monitoring(),
        "capacity-chargeback": capacity(),
        "cgpu-app": cgpu_app(),
        "cgpu-node": cgpu_node(),
    }
    return {f"{name}.json": json.dumps(each, indent=1) + "\n" for name, each in every.items()}


def main() -> None:
    DIRECTORY.mkdir(exist_ok=True)
    for name, text in made().items():
        (DIRECTORY / name).write_text(text)


if __name__ == "__main__":
    main()
