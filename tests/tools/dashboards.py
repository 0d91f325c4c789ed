# SPDX-License-Identifier: Apache-2.0
"""Writes the Grafana dashboards of role monitoring: ``python tests/tools/dashboards.py``."""

from __future__ import annotations

import json
from pathlib import Path

from tools.panels import (
    AT_GPU,
    AT_POD,
    BARS,
    HORIZONTAL,
    RATIO,
    STACKED,
    WIDTH,
    Json,
    Needs,
    Panel,
    Target,
    choice,
    columns,
    dashboard,
    table,
    textbox,
    units,
    variable,
)

DIRECTORY = Path(__file__).parents[2] / "roles/monitoring/files/dashboards"
OWNER = "node, uuid, namespace, pod, container, mode"
PIPES = ("tensor", "fp64", "fp32", "fp16")
KNOWN = 'max by (node, uuid, index) (accel_gpu_info{node=~"$node", index=~"$gpu"})'
"""The GPUs that are shown."""
AT_PART = "{{node}} GPU {{index}} {{profile}} #{{slot}}"
AT_INSTANCE = "{{node}} GPU {{index}} {{GPU_I_PROFILE}} instance {{GPU_I_ID}}"


def gpu(metric: str, also: str = "") -> str:
    """A family of GPUs by node and index; one series while a plugin hands over to its successor."""
    labels = f"node, uuid, {also}" if also else "node, uuid"
    return f'max by ({labels}) ({metric}{{node=~"$node"}}) * on (node, uuid) group_left (index) {KNOWN}'


def rate(metric: str, also: str = "") -> str:
    """How fast a counter of GPUs grows."""
    labels = f"node, uuid, {also}" if also else "node, uuid"
    counter = f'sum by ({labels}) (rate({metric}{{node=~"$node"}}[$__rate_interval]))'
    return f"{counter} * on (node, uuid) group_left (index) {KNOWN}"


def part(metric: str, also: str = "") -> str:
    """A family of MIG devices, by their GPU, profile and number there."""
    labels = f"node, uuid, device, {also}" if also else "node, uuid, device"
    family = f'max by ({labels}) ({metric}{{node=~"$node"}})'
    return f"{family} * on (node, uuid, device) group_left (index, slot, profile) {parts()}"


def parts(by: str = "node, uuid, device, index, slot, profile") -> str:
    """The MIG devices that are shown."""
    return f'max by ({by}) (accel_mig_info{{node=~"$node", index=~"$gpu", profile=~"$profile"}})'


def exported(field: str, mig: bool = False) -> str:
    """A field of dcgm-exporter, ours or another one, of GPUs or of the instances of MIG that are shown."""
    labels = "uuid, GPU_I_ID, GPU_I_PROFILE" if mig else "uuid"
    selector = 'GPU_I_PROFILE!="", GPU_I_PROFILE=~"$profile"' if mig else 'GPU_I_ID=""'
    known = f'label_replace({field}{{{selector}}}, "uuid", "$1", "UUID", "(.+)")'
    return f"max by ({labels}) ({known}) * on (uuid) group_left (node, index) {KNOWN}"


def nodes(metric: str, selector: str = 'node=~"$node"') -> str:
    """The sum of a family over GPUs."""
    return f"sum(max by (node, uuid) ({metric}{{{selector}}}))"


def held(metric: str, selector: str, by: str = "namespace, pod") -> str:
    """The sum of a family of containers."""
    return f"sum by ({by}) (max by ({OWNER}) ({metric}{{{selector}}}))"


def alone(selector: str) -> str:
    """Containers with a GPU for themselves, 1 each."""
    return f"(max by ({OWNER}) (accel_container_gpu_allocated_gpus{{{selector}}}) > 0.99)"


def wasted(selector: str) -> str:
    """Parts of such GPUs in which nothing ran in the time that is shown. Unknown is not wasted."""
    ran = f"max by ({OWNER}) (avg_over_time(accel_container_gpu_utilization_ratio{{{selector}}}[$__range]))"
    return f"sum by (namespace, pod) ({alone(selector)} * (1 - {ran}))"


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


def alive(label: str, selector: str) -> tuple[str, str]:
    """Query and regex for those that were there in the time that is shown, and not for all that ever were."""
    there = f"last_over_time(accel_container_gpu_allocated_gpus{{{selector}}}[$__range])"
    return f"query_result(group by ({label}) ({there}))", f'/{label}="([^"]+)"/'


NODE = variable("node", "Node", "label_values(accel_gpu_info, node)")
GPU = variable("gpu", "GPU", 'label_values(accel_gpu_info{node=~"$node"}, index)')
TYPE = choice(
    "type", "GPU type", {"pGPU": "pgpu", "GPU-Manager(vGPU)": "vgpu", "MPS": "mps", "cGPU": "cgpu", "DRA": "dra"}
)
NAMESPACE = variable("namespace", "Namespace", *alive("namespace", 'mode=~"$type"'))
POD = variable("pod", "Pod", *alive("pod", 'mode=~"$type", namespace=~"$namespace"'))

POD_SELECTOR = 'mode=~"$type", namespace=~"$namespace", pod=~"$pod"'


def node_monitoring() -> Json:
    allocated = f"{nodes('accel_gpu_memory_allocated_bytes')} / {nodes('accel_gpu_memory_capacity_bytes')}"
    panels = [
        Panel("GPUs", "stat", [
            Target('sum(max by (node) (accel_node_gpus{node=~"$node", state="healthy"}))', "healthy"),
            Target('sum(max by (node) (accel_node_gpus{node=~"$node", state="expected"}))', "expected"),
        ], "GPUs that can be allocated, and all GPUs that the nodes had.", width=4, height=4),
        Panel("Utilization", "stat", [Target(f"avg({gpu('accel_gpu_utilization_ratio')})")],
              "Percentage of time in which kernels ran, as the mean of all GPUs shown.", "percentunit", 4, 4, RATIO),
        Panel("Memory", "stat", [
            Target(nodes("accel_gpu_memory_used_bytes"), "used"),
            Target(nodes("accel_gpu_memory_capacity_bytes"), "there is"),
        ], "GPU memory in use, and all GPU memory.", "bytes", 6, 4),
        Panel("Allocated", "stat", [Target(allocated)], "Percentage of GPU memory that containers hold.",
              "percentunit", 3, 4,
              RATIO),
        Panel("Power", "stat", [Target(nodes("accel_gpu_power_watts"))], "Power that all GPUs shown draw.", "watt", 3,
              4),
        Panel("Last XID", "stat", [
            Target('time() - max(accel_gpu_xid_last_timestamp_seconds{node=~"$node"})'),
        ], "Time since the driver last reported an error.", "s", 4, 4, needs=Needs.ERRORS),
        Panel("Utilization of each GPU", "timeseries", [Target(gpu("accel_gpu_utilization_ratio"), AT_GPU)],
              "Percentage of time in which kernels ran.", "percentunit", defaults=RATIO),
        Panel("Memory used of each GPU", "timeseries", [Target(gpu("accel_gpu_memory_used_bytes"), AT_GPU)],
              "Memory in use on each GPU, without the part that the driver reserves.", "bytes", defaults={"min": 0}),
        Panel("Memory: used, allocated, available", "timeseries", [
            Target(nodes("accel_gpu_memory_used_bytes"), "used"),
            Target(nodes("accel_gpu_memory_allocated_bytes"), "allocated"),
            Target(nodes("accel_gpu_memory_capacity_bytes"), "available"),
        ], "Memory of all GPUs shown. Others cannot get memory that is allocated and not used.", "bytes",
              defaults={"min": 0}),
        Panel("Free memory of each GPU", "bargauge", [
            Target(gpu("accel_gpu_memory_unallocated_bytes"), AT_GPU, True),
        ], "Memory that no container holds.", "bytes", defaults={"min": 0},
              options=HORIZONTAL),
        Panel("Who has which GPU", "table", table(
            Target(f'max by ({OWNER}) (accel_container_gpu_allocated_gpus{{node=~"$node"}})'
                   " * on (node, uuid) group_left (index) "
                   'max by (node, uuid, index) (accel_gpu_info{node=~"$node", index=~"$gpu"})'),
        ), "Containers now, and the part of the GPU that each is charged for.", "percentunit", WIDTH,
              transformations=columns(["Part"], uuid="", node="Node", index="GPU", namespace="Namespace", pod="Pod",
                                      container="Container", mode="Mode")),
        Panel("Temperature", "timeseries", [
            Target(gpu("accel_gpu_temperature_celsius", "sensor"), f"{AT_GPU} {{{{sensor}}}}"),
        ], "Temperature of each GPU, by sensor.", "celsius", 8),
        Panel("Power of each GPU", "timeseries", [
            Target(gpu("accel_gpu_power_watts"), AT_GPU),
            Target(gpu("accel_gpu_power_limit_watts"), f"{AT_GPU} limit"),
        ], "Power that each GPU draws, and its limit.", "watt", 8, defaults={"min": 0}),
        Panel("Clocks", "timeseries", [Target(gpu("accel_gpu_clock_hertz", "domain"), f"{AT_GPU} {{{{domain}}}}")],
              "Clock rates of each GPU, by domain.", "hertz", 8),
        Panel("Pipes", "timeseries", [
            Target(gpu("accel_gpu_pipe_active_ratio", "pipe"), f"{AT_GPU} {{{{pipe}}}}"),
            *(Target(exported(f"DCGM_FI_PROF_PIPE_{pipe.upper()}_ACTIVE"), f"{AT_GPU} {pipe}") for pipe in PIPES),
        ], "Percentage of time in which each pipe worked: tensor cores, FP64, FP32, FP16. If the GPU is busy and no "
           "pipe works, the GPU waits for memory or for the host.", "percentunit", defaults=RATIO,
              needs=Needs.COUNTERS),
        Panel("Multiprocessors", "timeseries", [
            Target(gpu("accel_gpu_sm_active_ratio"), f"{AT_GPU} had work"),
            Target(gpu("accel_gpu_sm_occupancy_ratio"), f"{AT_GPU} warps"),
            Target(exported("DCGM_FI_PROF_SM_ACTIVE"), f"{AT_GPU} had work"),
            Target(exported("DCGM_FI_PROF_SM_OCCUPANCY"), f"{AT_GPU} warps"),
        ], "Percentage of time in which multiprocessors had work, and their warps as a percentage of the maximum. If "
           "utilization is high and these are low, a share of the GPU is enough.", "percentunit", 6, defaults=RATIO,
              needs=Needs.COUNTERS),
        Panel("Bandwidth of memory", "timeseries", [
            Target(gpu("accel_gpu_dram_bandwidth_ratio"), AT_GPU),
            Target(exported("DCGM_FI_PROF_DRAM_ACTIVE"), AT_GPU),
        ], "Memory bandwidth in use, as a percentage of the maximum.", "percentunit", 6, defaults=RATIO,
              needs=Needs.COUNTERS),
        Panel("Health", "state-timeline", [Target(gpu("accel_gpu_healthy"), AT_GPU)],
              "Whether the GPU can be allocated.",
              defaults={"mappings": [{"type": "value", "options": {
                  "0": {"text": "unhealthy", "color": "red"}, "1": {"text": "healthy", "color": "green"}}}]}),
        Panel("Throttled", "timeseries", [
            Target(rate("accel_gpu_throttle_seconds_total", "reason"), f"{AT_GPU} {{{{reason}}}}"),
        ], "Percentage of time in which clocks were reduced, by reason.", "percentunit", defaults={"min": 0}),
        Panel("XIDs", "table", table(
            Target('max by (node, uuid, xid) (accel_gpu_xid_errors_total{node=~"$node"})'),
            Target('time() - max by (node, uuid, xid) (accel_gpu_xid_last_timestamp_seconds{node=~"$node"})'),
        ), "Errors that the driver reported, by GPU and number.",
              defaults=units(Ago="s"),
              transformations=columns(["Count", "Ago"], node="Node", uuid="GPU", xid="XID"), needs=Needs.ERRORS),
        Panel("Memory errors", "timeseries", [
            Target(gpu("accel_gpu_ecc_errors_total", "type"), f"{AT_GPU} {{{{type}}}}"),
        ], "ECC errors since the driver was loaded, by type."),
        Panel("Memory that is no one pod's", "timeseries", [
            Target(gpu("accel_gpu_memory_unattributed_bytes", "reason"), f"{AT_GPU} {{{{reason}}}}"),
        ], "Memory that belongs to no single pod, by reason: driver, process of the host, MPS server, pods that share "
           "it, or unknown.", "bytes", defaults=STACKED),
        Panel("Collectors", "state-timeline", [
            Target('min by (node, collector) (accel_collector_success{node=~"$node"})', "{{node}} {{collector}}"),
        ], "Whether each collector works. If a collector fails, its panels have no data.",
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
        ], "Percentage of time in which the GPU ran the pod's kernels, and the percentage of cores that the pod asked "
           "for. Several GPUs add up.", "percentunit", defaults={"min": 0}, needs=Needs.PODS),
        Panel("Memory", "timeseries", [
            Target(used, AT_POD),
            Target(held("accel_container_gpu_memory_peak_bytes", POD_SELECTOR), f"{AT_POD} peak"),
            Target(request, f"{AT_POD} has"),
        ], "Memory that the pod uses, its peak, and the memory that it holds.", "bytes", defaults={"min": 0},
              needs=Needs.PODS),
        Panel("Used of what it has", "gauge", [Target(f"{used} / ({known_request(POD_SELECTOR)} > 0)", AT_POD, True)],
              "Percentage of its memory that the pod uses. Below 30 % for hours, memory is wasted. Above 95 %, the "
              "next allocation can fail.", "percentunit", 8,
              defaults=RATIO, needs=Needs.PODS),
        Panel("Idle for", "bargauge", [
            Target(f"time() - max by (namespace, pod) "
                   f"(accel_container_gpu_last_active_timestamp_seconds{{{POD_SELECTOR}}})", AT_POD, True),
        ], "Time since a kernel of the pod last ran.", "s", 8,
              options=HORIZONTAL, needs=Needs.PODS),
        Panel("Refused allocations", "timeseries", [
            Target(f"sum by (namespace, pod, reason) (increase("
                   f"accel_container_gpu_alloc_failures_total{{{POD_SELECTOR}}}[$__rate_interval]))",
                   f"{AT_POD} {{{{reason}}}}"),
        ], "Refused allocations by reason. quota: the container's limit. device: the GPU is full. policy: the limits "
           "are unreadable.", width=8,
              defaults={"min": 0}, needs=Needs.LIMITS),
        Panel("Processes", "timeseries", [Target(held("accel_container_gpu_processes", POD_SELECTOR), AT_POD)],
              "Processes of the pod that hold GPU memory.", defaults={"min": 0}, needs=Needs.PODS),
        Panel("Unused memory", "bargauge", [Target(f"topk(10, {known_request(POD_SELECTOR)} - {used})", AT_POD, True)],
              "The ten pods with the most unused memory.", "bytes",
              options=HORIZONTAL, needs=Needs.PODS),
        Panel("Where", "table", table(
            Target(f"max by ({OWNER}) (accel_container_gpu_allocated_gpus{{{POD_SELECTOR}}}) * on (node, uuid) "
                   "group_left (index, model) max by (node, uuid, index, model) (accel_gpu_info)"),
        ), "Node and GPU of each container, and the part of the GPU that it holds.", "percentunit", WIDTH,
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
    quota = of + r', resource=~"requests[.](nvidia|tencent|aliyun)[.]com/.+"'
    panels = [
        Panel("GPU-hours there were", "stat", [Target(there, instant=True)],
              "GPU-hours of all GPUs in the time shown.", "h", 6, 4),
        Panel("Charged", "stat", [Target(f"{grew(charged, '')} / ({there})", instant=True)],
              "Percentage of GPU-hours that pods held.", "percentunit", 6, 4, RATIO),
        Panel("Busy", "stat", [Target(f"{grew_where_known(busy, '')} / ({there})", instant=True)],
              "Percentage of GPU-hours in which kernels of pods ran, as far as known.", "percentunit", 6, 4, RATIO),
        Panel("Free", "stat", [Target(f"({there}) - {grew(charged, '')}", instant=True)],
              "GPU-hours that no pod held.", "h", 6, 4),
        Panel("GPU-hours a day", "timeseries", [
            Target(f"sum by (namespace) (increase({charged}{{{of}}}[1d])) / 3600", "{{namespace}}"),
            Target(f"(sum(increase({seconds}[1d])) - sum(increase({charged}[1d]))) / 3600", "free"),
        ], "GPU-hours of the last 24 hours, by namespace. The sum with free hours is the capacity.", "h", WIDTH,
              defaults=BARS),
        Panel("Chargeback", "table", table(
            Target(hours),
            Target(busy_hours),
            Target(f"{known_hours} - {busy_hours}"),
            Target(f"{busy_hours} / ({known_hours} > 0)"),
            Target(f"({hours}) / on () group_left () ({there})"),
            Target(f"({hours}) * $rate"),
        ), "GPU-hours of each namespace in the time shown. Idle hours are charged and not busy, as far as known.",
              "h", WIDTH,
              defaults=units(Efficiency="percentunit", Share="percentunit", Cost="short"),
              transformations=columns(["Charged", "Busy", "Idle", "Efficiency", "Share", "Cost"],
                                      namespace="Namespace")),
        Panel("GPUs: there are, allocated, busy", "timeseries", [
            Target("count(max by (node, uuid) (accel_gpu_info))", "there are"),
            Target(allocated, "allocated"),
            Target("sum(max by (node, uuid) (accel_gpu_utilization_ratio))", "busy"),
        ], "Number of GPUs. Parts of GPUs add up. Plan for the highest demand of the day.", defaults={"min": 0},
              options={"legend": {"displayMode": "table", "placement": "bottom", "calcs": ["max", "mean"]}}),
        Panel("Allocated a week from now", "timeseries", [
            Target(f"predict_linear({allocated}[7d:1h], 7 * 86400)", "as the last week goes"),
            Target("count(max by (node, uuid) (accel_gpu_info))", "there are"),
        ], "Number of allocated GPUs in a week, if the growth of the last week continues.", defaults={"min": 0}),
        Panel("Quotas", "bargauge", [
            Target(f"max by (namespace, resource) (accel_namespace_gpu_quota_used{{{of}}}) / "
                   f"(max by (namespace, resource) (accel_namespace_gpu_quota{{{of}}}) > 0)",
                   "{{namespace}} {{resource}}", True),
            Target(f"max by (namespace, resource) (kube_resourcequota{{{quota}, type=\"used\"}}) / "
                   f"(max by (namespace, resource) (kube_resourcequota{{{quota}, type=\"hard\"}}) > 0)",
                   "{{namespace}} {{resource}}", True),
        ], "Percentage in use of scheduler_quota (cores, memory, cards) and of ResourceQuotas (requests.nvidia.com/gpu "
           "and others).", "percentunit", defaults=RATIO, options=HORIZONTAL, needs=Needs.QUOTAS),
        Panel("Quotas over time", "timeseries", [
            Target(f"max by (namespace, resource) (accel_namespace_gpu_quota_used{{{of}}} / "
                   f"(accel_namespace_gpu_quota{{{of}}} > 0))", "{{namespace}} {{resource}}"),
            Target(f"max by (namespace, resource) (kube_resourcequota{{{quota}, type=\"used\"}} / ignoring (type) "
                   f"(kube_resourcequota{{{quota}, type=\"hard\"}} > 0))", "{{namespace}} {{resource}}"),
        ], "Percentage in use of each quota. A quota that stays at 100 % keeps pods pending.", "percentunit",
              defaults=RATIO,
              needs=Needs.QUOTAS),
        Panel("Pods that wait", "timeseries", [
            Target("sum by (namespace, mode) (max by (namespace, mode) (accel_pending_gpu_pods))",
                   "{{namespace}} {{mode}}"),
            Target("sum(max by (namespace, mode) (accel_pending_gpu_pods)) or 0 * max(accel_extender_nodes) "
                   "or 0 * max(accel_collector_success{collector=\"pending\"} == 1)", "all"),
        ], "Pods that ask for GPUs, or for shares, and have no node yet. The extender counts them, or each plugin.",
              defaults={"min": 0}, needs=Needs.PENDING),
        Panel("Whole GPUs that nobody uses", "bargauge", [
            Target(f"topk(10, {wasted(of)} > 0)", AT_POD, True),
        ], "The ten pods that wasted the most of their whole GPUs: the number of GPUs, times the part of the "
           "time shown in which none of their kernels ran.", defaults={"min": 0}, options=HORIZONTAL,
              needs=Needs.ALONE),
        Panel("Fragmentation", "timeseries", [
            Target("1 - max by (node) (accel_gpu_memory_unallocated_bytes) / "
                   "(sum by (node) (max by (node, uuid) (accel_gpu_memory_unallocated_bytes)) > 0)", "{{node}}"),
        ], "Part of a node's free memory that is not on its emptiest GPU.", "percentunit", defaults=RATIO),
        Panel("Could do with less", "table", table(
            Target(f"sum by (namespace, pod) ({peak}) / (sum by (namespace, pod) ({asked} and {peak}) > 0) < 0.3"),
            Target(request),
        ), "Pods whose memory use stayed below 30 % of their memory.", "bytes",
              defaults=units(Used_at_most="percentunit"),
              transformations=columns(["Used at most", "Has"], namespace="Namespace", pod="Pod"), needs=Needs.PODS),
    ]  # fmt: skip
    variables = [
        variable("namespace", "Namespace", "label_values(accel_namespace_gpu_seconds_total, namespace)"),
        textbox("rate", "Price of a GPU-hour", "1"),
    ]
    return dashboard("capacity", "Capacity and Chargeback", "Who pays, and what is left.", variables, panels, "7d")


def app() -> Json:
    of = POD_SELECTOR
    used, request = (held(f"accel_container_gpu_memory_{what}_bytes", of) for what in ("used", "request"))
    apps = f"sum by (namespace, pod) ({alone(of)})"
    ran = f"max by ({OWNER}) (avg_over_time(accel_container_gpu_utilization_ratio{{{of}}}[$__range]))"
    most = f"max by ({OWNER}) (max_over_time(accel_container_gpu_memory_peak_bytes{{{of}}}[$__range]))"
    asked = f"max by ({OWNER}) (accel_container_gpu_memory_request_bytes{{{of}}})"
    idle = f"time() - max by (namespace, pod) (accel_container_gpu_last_active_timestamp_seconds{{{of}}})"
    panels = [
        Panel("GPUs that apps have for themselves", "stat", [Target(f"sum({alone(of)})", instant=True)],
              "Whole GPUs, and shares that are a whole GPU.", width=6, height=5, needs=Needs.ALONE),
        Panel("Wasted", "stat", [
            Target(f"sum({wasted(of)}) / sum({alone(of)} and {ran})", instant=True),
        ], "Percentage of the time shown in which nothing ran on these GPUs.", "percentunit", 6, 5, RATIO,
              needs=Needs.ALONE),
        Panel("Wasted by app", "bargauge", [Target(f"topk(10, {wasted(of)})", AT_POD, True)],
              "Number of GPUs, times the part of the time shown in which nothing of the app ran.", height=5,
              defaults={"min": 0}, options=HORIZONTAL, needs=Needs.ALONE),
        Panel("Apps with a GPU for themselves", "table", table(
            Target(apps),
            Target(f"avg by (namespace, pod) ({ran} and {alone(of)})"),
            Target(f"sum by (namespace, pod) ({most} and {alone(of)}) / "
                   f"sum by (namespace, pod) ({asked} and {most} and {alone(of)})"),
            Target(f"({idle}) and {apps}"),
        ), "If an app is rarely busy and uses little memory, a share is enough (docs/reference/modes.md).", "short",
              WIDTH,
              defaults=units(Busy="percentunit", Memory_at_most="percentunit", Idle_for="s"),
              transformations=columns(["GPUs", "Busy", "Memory at most", "Idle for"], namespace="Namespace",
                                      pod="App"), needs=Needs.ALONE),
        Panel("Memory", "timeseries", [Target(used, AT_POD)], "GPU memory that each app uses.", "bytes",
              defaults={"min": 0},
              needs=Needs.PODS),
        Panel("Memory, of what it has", "timeseries", [Target(f"{used} / ({known_request(of)} > 0)", AT_POD)],
              "Percentage of its share, or of its whole GPU, that each app uses.", "percentunit", defaults=RATIO,
              needs=Needs.PODS),
        Panel("Utilization", "timeseries", [Target(held("accel_container_gpu_utilization_ratio", of), AT_POD)],
              "Percentage of time in which the GPU ran the kernels of each app.", "percentunit", defaults={"min": 0},
              needs=Needs.PODS),
        Panel("Refused allocations", "timeseries", [
            Target(f"sum by (namespace, pod, reason) (increase(accel_container_gpu_alloc_failures_total{{{of}}}"
                   "[$__rate_interval]))", f"{AT_POD} {{{{reason}}}}"),
        ], "Allocations that failed because the app wanted more memory than it holds.", defaults={"min": 0},
              needs=Needs.LIMITS),
        Panel("Apps", "table", table(Target(request), Target(used), Target(f"{used} / ({known_request(of)} > 0)")),
              "Memory that each app holds and uses now.", "bytes", WIDTH, defaults=units(Part="percentunit"),
              transformations=columns(["Has", "Uses", "Part"], namespace="Namespace", pod="App"), needs=Needs.PODS),
    ]  # fmt: skip
    says = "What apps do with their share, or with a GPU of their own."
    return dashboard("cgpu-app", "GPU APP", says, [TYPE, NAMESPACE, POD], panels)


def mig_devices() -> Json:
    has = "max by (node, uuid, device) (accel_container_mig_info)"
    whose = f'max by ({OWNER}, device) (accel_container_mig_info{{node=~"$node"}})'
    names = {"node": "Node", "index": "GPU", "profile": "Profile", "slot": "Number", "uuid": "", "device": "Device"}
    pods = {"namespace": "Namespace", "pod": "Pod", "container": "Container", "mode": ""}
    mig, counters = Needs.MIG, Needs.MIG_COUNTERS
    panels = [
        Panel("MIG devices", "stat", [Target(f"count({parts()})", instant=True)], "Number of MIG devices.", width=6,
              height=5,
              needs=mig),
        Panel("Held", "stat", [
            Target(f"(count({parts()} and on (node, uuid, device) {has}) or vector(0)) / count({parts()})",
                   instant=True),
        ], "Percentage of MIG devices that containers hold.", "percentunit", 6, 5, RATIO, needs=mig),
        Panel("By profile", "bargauge", [
            Target(f"count by (profile) ({parts()})", "{{profile}}", True),
            Target(f"count by (profile) ({parts()} unless on (node, uuid, device) {has})", "{{profile}} free", True),
        ], "Number of MIG devices of each profile, and number of free ones.", height=5, defaults={"min": 0},
              options=HORIZONTAL, needs=mig),
        Panel("Who has which MIG device", "table", table(
            Target(f"{whose} * on (node, uuid, device) group_left (index, slot, profile) {parts()}"),
        ), "Containers that hold MIG devices now.", "short", WIDTH, transformations=columns([], **names, **pods),
              needs=mig),
        Panel("Free MIG devices", "table", table(Target(f"{parts()} unless on (node, uuid, device) {has}")),
              "MIG devices that no container holds.", transformations=columns([], **names), needs=mig),
        Panel("Memory used", "timeseries", [
            Target(part("accel_mig_memory_used_bytes"), AT_PART),
        ], "Memory in use on each MIG device.", "bytes", defaults={"min": 0}, needs=mig),
        Panel("Memory used, percent", "timeseries", [
            Target(f"({part('accel_mig_memory_used_bytes')}) / on (node, uuid, device) group_left () "
                   "max by (node, uuid, device) (accel_mig_memory_capacity_bytes)", AT_PART),
        ], "Percentage of memory in use on each MIG device. If it stays low, a smaller profile is enough.",
              "percentunit", defaults=RATIO,
              needs=mig),
        Panel("Kernels ran", "timeseries", [
            Target(part("accel_mig_engine_active_ratio"), AT_PART),
            Target(exported("DCGM_FI_PROF_GR_ENGINE_ACTIVE", True), AT_INSTANCE),
        ], "Percentage of time in which a kernel ran.", "percentunit", defaults=RATIO, needs=counters),
        Panel("Pipes", "timeseries", [
            Target(part("accel_mig_pipe_active_ratio", "pipe"), f"{AT_PART} {{{{pipe}}}}"),
            *(Target(exported(f"DCGM_FI_PROF_PIPE_{pipe.upper()}_ACTIVE", True), f"{AT_INSTANCE} {pipe}")
              for pipe in PIPES),
        ], "Percentage of time in which each pipe worked: tensor cores, FP64, FP32, FP16.", "percentunit", WIDTH,
              defaults=RATIO, needs=counters),
        Panel("Multiprocessors", "timeseries", [
            Target(part("accel_mig_sm_active_ratio"), f"{AT_PART} had work"),
            Target(part("accel_mig_sm_occupancy_ratio"), f"{AT_PART} warps"),
            Target(exported("DCGM_FI_PROF_SM_ACTIVE", True), f"{AT_INSTANCE} had work"),
            Target(exported("DCGM_FI_PROF_SM_OCCUPANCY", True), f"{AT_INSTANCE} warps"),
        ], "Percentage of time with work, and warps as a percentage of the maximum.", "percentunit", defaults=RATIO,
              needs=counters),
        Panel("Bandwidth of memory", "timeseries", [
            Target(part("accel_mig_dram_bandwidth_ratio"), AT_PART),
            Target(exported("DCGM_FI_PROF_DRAM_ACTIVE", True), AT_INSTANCE),
        ], "Memory bandwidth in use, as a percentage of the maximum.", "percentunit", defaults=RATIO, needs=counters),
    ]  # fmt: skip
    variables = [
        variable("node", "Node", "label_values(accel_mig_info, node)"),
        variable("gpu", "GPU", 'label_values(accel_mig_info{node=~"$node"}, index)'),
        variable("profile", "Profile", 'label_values(accel_mig_info{node=~"$node", index=~"$gpu"}, profile)'),
    ]
    return dashboard("mig", "MIG Devices", "Parts of GPUs that MIG keeps apart.", variables, panels)


def cgpu_node() -> Json:
    def of(what: str) -> str:
        """By GPU, of nodes that serve cGPU."""
        served = 'max by (node, uuid, index) (accel_gpu_info{node=~"$node", mode="cgpu"})'
        family = f'max by (node, uuid) (accel_gpu_memory_{what}_bytes{{node=~"$node"}})'
        return f"{family} * on (node, uuid) group_left (index) {served}"

    used, capacity_, allocated = (of(what) for what in ("used", "capacity", "allocated"))
    panels = [
        Panel("Memory there is", "stat", [Target(f"sum({capacity_})")], "GPU memory of all nodes shown.", "bytes", 6, 4,
              needs=Needs.CGPU),
        Panel("Allocated", "stat", [Target(f"sum({allocated}) / sum({capacity_})")],
              "Percentage of GPU memory that apps hold.",
              "percentunit", 6, 4, RATIO, needs=Needs.CGPU),
        Panel("Used", "stat", [Target(f"sum({used}) / sum({capacity_})")], "Percentage of GPU memory in use.",
              "percentunit", 6, 4,
              RATIO, needs=Needs.CGPU),
        Panel("Used of allocated", "stat", [Target(f"sum({used}) / sum({allocated})")],
              "Percentage of allocated memory that apps use.", "percentunit", 6, 4, {"min": 0}, needs=Needs.CGPU),
        Panel("Memory used", "timeseries", [Target(used, AT_GPU)], "Memory in use on each GPU.", "bytes",
              defaults={"min": 0},
              needs=Needs.CGPU),
        Panel("Memory used, percent", "timeseries", [
            Target(f"({used}) / on (node, uuid, index) ({capacity_})", AT_GPU),
        ], "Percentage of memory in use on each GPU.", "percentunit", defaults=RATIO, needs=Needs.CGPU),
        Panel("Memory allocated", "timeseries", [Target(allocated, AT_GPU)], "Memory of each GPU that apps hold.",
              "bytes",
              defaults={"min": 0}, needs=Needs.CGPU),
        Panel("GPUs", "table", table(Target(capacity_), Target(allocated), Target(used)), "Memory of each GPU now.",
              "bytes",
              transformations=columns(["There is", "Allocated", "Used"], node="Node", index="GPU", uuid=""),
              needs=Needs.CGPU),
    ]  # fmt: skip
    variables = [variable("node", "Node", 'label_values(accel_gpu_info{mode="cgpu"}, node)')]
    return dashboard("cgpu-node", "GPU Node", "Memory of nodes that serve cGPU.", variables, panels)


def dashboards() -> dict[str, Json]:
    """Every dashboard, by the name of its file."""
    return {
        "node-monitoring": node_monitoring(),
        "pod-monitoring": pod_monitoring(),
        "capacity-chargeback": capacity(),
        "mig-devices": mig_devices(),
        "cgpu-app": app(),
        "cgpu-node": cgpu_node(),
    }


def made() -> dict[str, str]:
    """The text of every dashboard, by file name."""
    return {f"{name}.json": json.dumps(each, indent=1) + "\n" for name, each in dashboards().items()}


def main() -> None:
    DIRECTORY.mkdir(exist_ok=True)
    for name, text in made().items():
        (DIRECTORY / name).write_text(text)


if __name__ == "__main__":
    main()
