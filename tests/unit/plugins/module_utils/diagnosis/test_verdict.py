# SPDX-License-Identifier: Apache-2.0
"""What happened, by what is known: failure by failure, and that nothing anybody writes makes it fail."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils.diagnosis.evidence import (
    Evidence,
    absent_pod,
    daemons_of,
    node_of,
    pod_of,
    quotas_of,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.diagnosis.finding import Finding, has_share
from ansible_collections.accel.kubernetes.plugins.module_utils.diagnosis.pod_symptoms import STATES
from ansible_collections.accel.kubernetes.plugins.module_utils.diagnosis.symptoms import CONFIDENCES
from ansible_collections.accel.kubernetes.plugins.module_utils.diagnosis.verdict import (
    ORDER,
    diagnose,
    document,
    lines,
    looked_at,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.gpu_xids import XIDS
from hypothesis import given, settings
from hypothesis import strategies as st

from kube_accel.extender.decide import describe
from kube_accel.model import Mode
from kube_accel.nvml.switches import Switches
from kube_accel.sharing.inventory_annotation import Holding
from unit.plugins.module_utils.shared.test_gpu_view import GIB, SHARE, TRAIN, node, plugin, pod

ROOT = Path(__file__).parents[5]
TORCH = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"
READY = {"conditions": [{"type": "Ready", "status": "True"}]}
OFFERS = {"allocatable": {"tencent.com/vcuda-core": "200", "tencent.com/vcuda-memory": "416"}}
FAILED: dict[str, Any] = {"reason": "Error", "exitCode": 1}
UNREADY = {"state": {"running": {}}, "ready": False}
KILLED = {**UNREADY, "restartCount": 2, "lastState": {"terminated": {"reason": "Error", "exitCode": 137}}}
GATED = [{"type": "Ready", "status": "False", "reason": "ReadinessGatesNotReady", "message": "x/y is not True"}]
DISRUPTED = [{"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByScheduler", "message": "m"}]
LABELS = {
    "nvidia.com/gpu.compute.major": "7",
    "nvidia.com/gpu.compute.minor": "5",
    "nvidia.com/gpu.product": "Tesla-T4",
    "nvidia.com/cuda.driver-version.full": "535.10.1",
    "nvidia.com/cuda.runtime-version.full": "12.2",
}


def event(reason: str, message: str) -> dict[str, Any]:
    return {"reason": reason, "message": message, "involvedObject": {"kind": "Pod"}}


def daemon(item: dict[str, Any], ready: bool = True, **status: Any) -> dict[str, Any]:
    conditions = [{"type": "Ready", "status": str(ready)}]
    return {**item, "status": {"phase": "Running", "conditions": conditions, **status}}


def extender(ready: bool = True, **status: Any) -> dict[str, Any]:
    containers = [{"name": "extender", "image": "i", "command": ["kube-accel", "extender"]}]
    metadata = {"name": "kube-accel-extender-1", "namespace": "kube-system"}
    return daemon({"metadata": metadata, "spec": {"nodeName": "control", "containers": containers}}, ready, **status)


DAEMONS = [daemon(plugin("a")), extender()]


def made(
    limits: dict[str, str] = SHARE,
    log: str = "",
    events: list[dict[str, Any]] | None = None,
    page: str | None = None,
    held: tuple[Holding, ...] = (TRAIN,),
    bad: str = "",
    mode: Mode = Mode.VGPU,
    daemons: list[dict[str, Any]] | None = DAEMONS,
    where: str = "a",
    image: str = "example.org/x",
    env: dict[str, str] | None = None,
    state: dict[str, Any] | None = None,
    node_events: list[dict[str, Any]] | None = None,
    quotas: list[dict[str, Any]] | None = None,
    offers: dict[str, Any] = OFFERS,
    node_conditions: list[dict[str, Any]] | None = None,
    **status: Any,
) -> Evidence:
    """Pod ``team/train`` on node ``a``, which is well but for what is given."""
    item = pod("train", limits, where, **status)
    item["spec"]["containers"][0].update(image=image, env=[{"name": k, "value": v} for k, v in (env or {}).items()])
    if log and state is None:
        state = {"state": {"terminated": FAILED}}
    if state is not None:
        item["status"]["containerStatuses"] = [{"name": "main", **state}]
    machine = node("a", {0: held}, mode=mode, bad=bad, **offers, conditions=node_conditions or READY["conditions"])
    machine["metadata"]["labels"] |= LABELS
    return Evidence(
        pod=pod_of(item, events or [], {("main", False): log}),
        nodes=(node_of(machine, node_events or [], page),),
        everywhere=not where,
        daemons=None if daemons is None else daemons_of(daemons),
        quotas=quotas_of(quotas or []),
    )


def of_node(**options: Any) -> Evidence:
    found = made(**options)
    return Evidence(nodes=found.nodes, daemons=found.daemons)


def metrics(name: str, value: float, **labels: str) -> str:
    told = {"uuid": "GPU-a-0", "namespace": "team", "pod": "train", "container": "main"} | labels
    text = ",".join(f'{key}="{label}"' for key, label in told.items() if label)
    return f"{name}{{{text}}} {value}\n"


def refused(reason: str, count: float = 1) -> str:
    return metrics("accel_container_gpu_alloc_failures_total", count, reason=reason)


def unscheduled(message: str) -> dict[str, Any]:
    return {"conditions": [{"type": "PodScheduled", "status": "False", "message": message}]}


def quota(hard: str, used: str) -> dict[str, Any]:
    status = {"hard": {"requests.tencent.com/vcuda-core": hard}, "used": {"requests.tencent.com/vcuda-core": used}}
    return {"metadata": {"name": "gpus"}, "status": status}


START_ERROR = {
    "lastState": {
        "terminated": {
            "reason": "StartError",
            "exitCode": 128,
            "message": "error running hook #0: nvidia-container-cli: device error: GPU-1c2d: unknown device: unknown",
        }
    }
}
CREATING = {"state": {"waiting": {"reason": "ContainerCreating"}}}
COMPLAINT = {"level": "error", "message": "no driver", "reason": "12"}
WHOLE = {"nvidia.com/gpu": "1"}
PGPU: dict[str, Any] = {"mode": Mode.PGPU, "limits": WHOLE, "offers": {"allocatable": {"nvidia.com/gpu": "2"}}}
OVER = "container main: an allocation on GPU 0 was refused: over the container's limit of 8 GiB"
BOTH = "containers other/main, train/main: an allocation on GPU 0 was refused: over the containers' limit of 8 GiB"
FULL = "container main: an allocation within the container's limit was refused: GPU 0 itself is full"
ALONE = (Holding("team", "train", "main", 100, 80 * GIB),)

# What is known, and of the finding that is to come first: rule, confidence, a part of a fact, a part of the remedy.
CASES: dict[str, tuple[Evidence, str, str, str, str]] = {
    "quota OOM, told by an event": (
        made(log=TORCH, events=[event("GpuMemoryRefused", OVER)]),
        *("quota_oom", "certain", "limit of 8 GiB", "tencent.com/vcuda-memory"),
    ),
    "quota OOM of containers with one claim": (
        made(log=TORCH, events=[event("GpuMemoryRefused", BOTH)]),
        *("quota_oom", "certain", "limit of 8 GiB", "Ask for more"),
    ),
    "quota OOM, counted": (
        made(log=TORCH, page=refused("quota", 3)),
        *("quota_oom", "certain", "3 allocations were refused", "tencent.com/vcuda-memory"),
    ),
    "quota OOM, by its own words": (made(log=TORCH), "quota_oom", "likely", "CUDA out of memory", "Ask for more"),
    "quota OOM in llama.cpp": (
        made(log="ggml_cuda_host_malloc: cudaMalloc failed: out of memory"),
        *("quota_oom", "likely", "cudaMalloc failed", "Ask for more"),
    ),
    "device OOM, told by an event": (
        made(log=TORCH, events=[event("GpuMemoryRefused", FULL)], held=(TRAIN, Holding("b", "x", "main", 10, GIB))),
        *("device_oom", "certain", "GPU 0 is shared with b/x", "larger GPU"),
    ),
    "device OOM on a whole GPU": (
        made(log="CUDA error 2", **PGPU, held=ALONE, page=""),
        *("device_oom", "likely", "CUDA error 2", "larger GPU"),
    ),
    "device OOM on ten whole GPUs": (
        made(limits={"tencent.com/vcuda-core": "1k"}, log="CUDA error 2", held=ALONE, page=""),
        *("device_oom", "likely", "CUDA error 2", "larger GPU"),
    ),
    "device OOM with a stranger": (
        made(
            log=TORCH,
            **PGPU,
            held=ALONE,
            page=metrics("accel_gpu_memory_unattributed_bytes", 4 * GIB, reason="host", pod="", container=""),
        ),
        *("device_oom", "likely", "4.0 GiB of GPU 0 belong to no pod", "end other programs"),
    ),
    "device OOM of one who shares the GPU by time": (
        made(
            log=TORCH,
            **PGPU,
            held=ALONE,
            page=metrics("accel_gpu_memory_unattributed_bytes", 4 * GIB, reason="shared", pod="", container=""),
        ),
        *("device_oom", "likely", "4.0 GiB of GPU 0 are in use by all containers that share it", "end other programs"),
    ),
    "a share out of memory that was refused nothing": (
        made(log=TORCH, page=refused("quota", 0)),
        *("device_oom", "possible", "no allocation of the container was refused", "larger GPU"),
    ),
    "PaddlePaddle's allocator": (
        made(log="ResourceExhaustedError: Out of memory error on GPU 0", image="paddlepaddle/paddle:3.0"),
        *("allocator_conflict", "likely", "FLAGS_allocator_strategy=(not set)", "naive_best_fit"),
    ),
    "TensorFlow's allocator": (
        made(log="OOM when allocating tensor", env={"TENSORFLOW_HOME": "/tf"}),
        *("allocator_conflict", "likely", "TENSORFLOW_HOME", "TF_FORCE_GPU_ALLOW_GROWTH=true"),
    ),
    "a server that wants a part of the card": (
        made(log="ValueError: Free memory on device (3/8 GiB) on startup is less than desired GPU memory utilization"),
        *("allocator_conflict", "certain", "Free memory on device", "--gpu-memory-utilization"),
    ),
    "bfloat16 on an old card": (
        made(log="ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0."),
        *("bfloat16", "certain", "Tesla-T4: compute capability 7.5", "--dtype=half"),
    ),
    "float16 on an old card": (
        made(log="ValueError: float16 is only supported on GPUs with compute capability at least 6.0"),
        *("float16", "certain", "Tesla-T4: compute capability 7.5", "--dtype=float32"),
    ),
    "fp8 on an old card": (
        made(log="ValueError: FP8 requires compute capability 8.9 or higher"),
        *("fp8", "certain", "Tesla-T4: compute capability 7.5", "AWQ"),
    ),
    "a driver that is too old": (
        made(log="RuntimeError: CUDA driver version is insufficient for CUDA runtime version"),
        *("cuda_mismatch", "likely", "driver 535.10.1, CUDA 12.2", "Upgrade the driver"),
    ),
    "a driver that is too old, by the image's tag": (
        made(state={"state": {"terminated": FAILED}}, image="example.org/train:2.9.0-cuda13.0-runtime"),
        *("cuda_mismatch", "likely", "built with 13.0 (tag 2.9.0-cuda13.0-runtime)", "branch 580"),
    ),
    "a driver that is too old, by the pod's variables": (
        made(state={"state": {"terminated": FAILED}}, env={"CUDA_VERSION": "13.0.1"}),
        *("cuda_mismatch", "likely", "built with 13.0", "branch 580"),
    ),
    "PTX for a newer driver": (
        made(log="CUDA_ERROR_UNSUPPORTED_PTX_VERSION"),
        *("cuda_mismatch", "likely", "CUDA_ERROR_UNSUPPORTED_PTX_VERSION", "sm_xx"),
    ),
    "an image that requires a newer driver": (
        made(
            state={
                "state": {"waiting": {"reason": "RunContainerError", "message": "unsatisfied condition: cuda>=13.0"}}
            }
        ),
        *("cuda_mismatch", "certain", "cuda>=13.0", "Upgrade the node's driver"),
    ),
    "an XID the GPU is out for": (
        made(bad="XID 79 (GPU has fallen off the bus)"),
        *("xid", "likely", "GPU 0 (Card 80) is unhealthy: XID 79", "power-cycle"),
    ),
    "an XID that is counted": (
        of_node(page=metrics("accel_gpu_xid_errors_total", 2, xid="74", namespace="", pod="", container="")),
        *("xid", "likely", "counted 2 times", "bridges"),
    ),
    "an XID that is over": (
        of_node(node_events=[event("GpuUnhealthy", "GPU 1 (GPU-a-1) is not allocated: XID 48 (double-bit ECC error)")]),
        *("xid", "likely", "XID 48", "reset"),
    ),
    "a GPU that is lost": (of_node(bad="GPU is lost"), "gpu_lost", "certain", "GPU is lost", "power-cycle"),
    "a GPU that does not even tell who it is": (
        of_node(node_conditions=[{"type": "GpusHealthy", "status": "False", "message": "GPU 2: GPU is lost"}]),
        *("gpu_lost", "certain", "GPU 2: GPU is lost", "power-cycle"),
    ),
    "fewer GPUs than there were": (
        of_node(
            page='accel_node_gpus{node="a",state="expected"} 3\naccel_node_gpus{node="a",state="visible"} 2\n',
        ),
        *("gpu_lost", "certain", "2 of 3 GPUs answer", "power-cycle"),
    ),
    "a GPU that is not well": (
        of_node(bad="the driver asks for a reset"),
        *("gpu_unhealthy", "certain", "asks for a reset", "Recovery Action"),
    ),
    "a driver that hangs": (
        of_node(
            node_conditions=[{"type": "GpusHealthy", "status": "Unknown", "message": "NVML has not answered for 30 s"}]
        ),
        *("driver_silent", "certain", "30 s", "nvidia-smi"),
    ),
    "a driver that does not answer, measured": (
        of_node(page='accel_collector_success{node="a",collector="nvml"} 0\n'),
        *("driver_silent", "certain", "NVML does not answer", "nvidia-smi"),
    ),
    "a mode that no node serves": (
        made(
            limits={"nvidia.com/mps-core": "30"}, where="", **unscheduled("0/1 nodes: Insufficient nvidia.com/mps-core")
        ),
        *("mode_mismatch", "certain", "vgpu: a", "gpu_mode: mps"),
    ),
    "two modes in one pod": (
        made(limits={"nvidia.com/gpu": "1", **SHARE}, where="", **unscheduled("no")),
        *("mode_mismatch", "certain", "nvidia.com/gpu", "one mode"),
    ),
    "a resource that is not configured": (
        made(**{**PGPU, "limits": {"nvidia.com/gpu.shared": "1"}}, where="", **unscheduled("0/1 nodes are available")),
        *("not_offered", "likely", "pgpu: a", "time-slicing"),
    ),
    "a renamed resource that is not configured": (
        made(**{**PGPU, "limits": {"nvidia.com/t4-shared": "1"}}, where="", **unscheduled("0/1 nodes are available")),
        *("not_offered", "likely", "pgpu: a", "time-slicing"),
    ),
    "no room": (
        made(where="", **unscheduled("0/1 nodes: a: needs 30 % and 8 GiB on one GPU; best has 20 % and 4 GiB free")),
        *("no_room", "likely", "best has 20 %", "playbook inspect"),
    ),
    "a quota of the extender": (
        made(where="", **unscheduled("0/1 nodes: quota of namespace team for GPUs: 50 of 50 % are used")),
        *("namespace_quota", "certain", "50 of 50", "scheduler_quota"),
    ),
    "a ResourceQuota of whole thousands that is used up": (
        made(
            where="",
            quotas=[quota("1k", "1k"), quota("2k", "1500")],
            **unscheduled("0/1 nodes: exceeded what there is"),
        ),
        *("namespace_quota", "possible", "tencent.com/vcuda-core: 1k of 1k", "ResourceQuota"),
    ),
    "a ResourceQuota that is used up": (
        Evidence(
            pod=absent_pod("team", "train", [event("FailedCreate", "pods is forbidden: exceeded quota: gpus")]),
            nodes=made().nodes,
            daemons=daemons_of(DAEMONS),
        ),
        *("namespace_quota", "certain", "exceeded quota", "ResourceQuota"),
    ),
    "an extender that is not reached": (
        made(
            where="",
            events=[event("FailedScheduling", 'Post "https://127.0.0.1:9446/scheduler/predicates": extender: timeout')],
            **unscheduled("waits"),
        ),
        *("extender_down", "certain", "9446", "kube-accel-extender"),
    ),
    "an extender that does not start": (
        made(
            where="",
            daemons=[daemon(plugin("a")), extender(False, phase="Pending", message="no image")],
            **unscheduled("waits"),
        ),
        *("extender_down", "certain", "no image", "site.yml --tags scheduler"),
    ),
    "no plugin": (of_node(daemons=[extender()]), "plugin_down", "certain", "serve mode vgpu", "gpu_plugins"),
    "a plugin that does not start": (
        Evidence(
            nodes=made().nodes,
            daemons=daemons_of(
                [daemon(plugin("a"), False)],
                {"kube-system/plugin-a": f"{json.dumps(COMPLAINT)}\n{json.dumps({'level': 'info'})}\n"},
            ),
        ),
        *("plugin_down", "certain", "no driver: 12", "the pod and its log"),
    ),
    "a plugin that kubelet does not know": (
        of_node(page='accel_device_plugin_registered{node="a",resource="tencent.com/vcuda-core"} 0\n', offers={}),
        *("not_registered", "certain", "tencent.com/vcuda-core", "Restart kubelet"),
    ),
    "refused at admission, no devices": (
        made(
            limits=WHOLE,
            phase="Failed",
            reason="UnexpectedAdmissionError",
            message="Allocate failed due to requested number of devices unavailable for nvidia.com/gpu. Requested: 1, "
            "Available: 0, which is unexpected",
        ),
        *("admission", "certain", "Available: 0", "Delete the pod"),
    ),
    "refused at admission, a GPU turned bad": (
        made(events=[event("UnexpectedAdmissionError", "vcuda-core: GPU GPU-1 has become unhealthy; retry the pod")]),
        *("admission", "certain", "has become unhealthy", "Look at the node's GPUs"),
    ),
    "refused at admission, fragmented": (
        made(events=[event("UnexpectedAdmissionError", "no GPU has 60 left, only 2 GPUs together; delete the pod")]),
        *("admission", "certain", "only 2 GPUs together", "scheduler_layout"),
    ),
    "a start that the plugin refused": (
        made(events=[event("GpuShareRefused", "container main of team/train cannot start: it has 50 %")]),
        *("start_refused", "certain", "cannot start", "Delete the pod"),
    ),
    "killed over the machine's memory": (
        made(state={"lastState": {"terminated": {"reason": "OOMKilled", "exitCode": 137}}}),
        *("host_oom", "certain", "OOMKilled", "limits.memory"),
    ),
    "an MPS server that ended": (
        made(events=[event("MpsInterrupted", "container main: GPU GPU-a-0: the server ended")]),
        *("mps", "certain", "the server ended", "whole GPU"),
    ),
    "an MPS server with too many clients": (
        made(log="CUDA error: the hardware resources required to create MPS client have been exhausted"),
        *("mps", "likely", "MPS client", "fewer processes"),
    ),
    "an illegal address": (
        made(log="CUDA error: an illegal memory access was encountered"),
        *("cuda_error", "likely", "illegal memory access", "compute-sanitizer"),
    ),
    "no runtime class": (
        made(
            phase="Pending",
            events=[
                event("FailedCreatePodSandBox", 'failed to get sandbox runtime: no runtime for "nvidia" is configured')
            ],
        ),
        *("runtime_missing", "certain", "no runtime for", "container_runtime"),
    ),
    "no driver in the container": (
        made(log="libcuda.so.1: cannot open shared object file"),
        *("driver_missing", "likely", "libcuda.so.1", "runtimeClassName"),
    ),
    "device files lost": (
        made(log="Failed to initialize NVML: Unknown Error"),
        *("device_files_lost", "likely", "NVML", "CDI"),
    ),
    "an image that cannot be had": (
        made(state={"state": {"waiting": {"reason": "ImagePullBackOff", "message": "denied"}}}),
        *("image", "certain", "denied", "imagePullSecrets"),
    ),
    "a taint": (
        made(where="", **unscheduled("0/2 nodes: 1 node(s) had untolerated taint {team: x}, 1 {node-role}")),
        *("taint", "possible", "team: x", "toleration"),
    ),
    "a selector that fits no node": (
        made(where="", **unscheduled("0/2 nodes: 2 node(s) didn't match Pod's node affinity/selector")),
        *("selector", "possible", "affinity/selector", "nodeSelector"),
    ),
    "what no table knows of a pod that waits": (
        made(where="", **unscheduled("0/2 nodes: persistentvolumeclaim not found")),
        *("pending", "possible", "persistentvolumeclaim", "playbook inspect"),
    ),
    "no scheduler": (made(where=""), "scheduler", "likely", "schedulerName is default-scheduler", "runs"),
    "a node that is away": (
        made(node_conditions=[{"type": "Ready", "status": "Unknown", "message": "Kubelet stopped posting"}]),
        *("node_not_ready", "certain", "stopped posting", "kubelet"),
    ),
    "a configuration that is not applied": (
        of_node(node_events=[event("MigConfigFailed", "MIG configuration x is not applied: no profile")]),
        *("configuration", "likely", "no profile", "Correct"),
    ),
    "a start that the toolkit refused": (
        made(state=START_ERROR | {"state": {"waiting": {"reason": "CrashLoopBackOff", "message": "back-off 40s"}}}),
        *("device_missing", "certain", "GPU-1c2d: unknown device", "nvidia-smi -L"),
    ),
    "a start that the runtime refused for a reason of its own": (
        made(
            state={"state": {"waiting": {"reason": "RunContainerError", "message": "shim: context deadline exceeded"}}}
        ),
        *("not_running", "likely", "shim: context deadline", "journalctl -u containerd"),
    ),
    "a Secret that is not there": (
        made(state={"state": {"waiting": {"reason": "CreateContainerConfigError", "message": 'secret "t" not found'}}}),
        *("missing_object", "certain", 'secret "t"', "Create what the message names"),
    ),
    "a volume that cannot be mounted": (
        made(phase="Pending", state=CREATING, events=[event("FailedMount", 'MountVolume.SetUp failed for volume "d"')]),
        *("volume", "likely", "MountVolume.SetUp failed", "kubectl describe pvc"),
    ),
    "a network that is not ready": (
        made(phase="Pending", state=CREATING, events=[event("NetworkNotReady", "cni plugin not initialized")]),
        *("network", "likely", "cni plugin not initialized", "/etc/cni/net.d"),
    ),
    "a pod that kubelet has no room for": (
        made(phase="Failed", reason="OutOfnvidia.com/gpu", message="Node didn't have enough resource: nvidia.com/gpu"),
        *("admission", "certain", "OutOfnvidia.com/gpu: Node didn't have", "Delete the pod"),
    ),
    "an eviction": (
        made(phase="Failed", reason="Evicted", message="The node was low on resource: ephemeral-storage."),
        *("evicted", "certain", "low on resource: ephemeral-storage", "requests and limits"),
    ),
    "a pod that failed for a reason of the future": (
        made(phase="Failed", reason="Newness", message="it was too new"),
        *("not_running", "possible", "Newness: it was too new", "kubectl describe pod -n team train"),
    ),
    "a container that waits for nothing that is told": (
        made(phase="Pending", state=CREATING),
        *("not_running", "likely", "ContainerCreating", "journalctl -u kubelet on a"),
    ),
    "refused at admission, a lost GPU": (
        made(phase="Failed", reason="UnexpectedAdmissionError", message="creating nvml.Device 5: nvml: GPU is lost"),
        *("gpu_lost", "certain", "nvml: GPU is lost", "Drain the node"),
    ),
    "refused at admission, a plugin that died": (
        made(phase="Failed", reason="UnexpectedAdmissionError", message="rpc error: error reading from server: EOF"),
        *("plugin_down", "certain", "EOF", "device plugin"),
    ),
    "a pod with scheduling gates": (
        made(where="", **unscheduled("Scheduling is blocked due to non-empty scheduling gates")),
        *("scheduler", "certain", "non-empty scheduling gates", "Kueue"),
    ),
    "a claim that no device is left for": (
        made(where="", **unscheduled("0/1 nodes are available: 1 cannot allocate all claims. still not schedulable.")),
        *("no_room", "likely", "cannot allocate all claims", "kubectl get resourceslices"),
    ),
    "nodes that are not ready": (
        made(where="", **unscheduled("1 node(s) had untolerated taint {node.kubernetes.io/not-ready: }.")),
        *("node_not_ready", "likely", "not-ready", "journalctl -u kubelet"),
    ),
    "too little CPU": (
        made(where="", **unscheduled("0/3 nodes are available: 3 Insufficient cpu.")),
        *("no_room", "likely", "Insufficient cpu", "Ask for less of what the message names"),
    ),
    "a volume that is not there yet": (
        made(where="", **unscheduled("0/3 nodes are available: pod has unbound immediate PersistentVolumeClaims.")),
        *("volume", "likely", "unbound immediate", "kubectl describe pvc"),
    ),
    "a readiness probe": (
        made(phase="Running", state=UNREADY, events=[event("Unhealthy", "Readiness probe failed: connection refused")]),
        *("not_ready", "likely", "Readiness probe failed", "port and path"),
    ),
    "a startup probe that ends the program": (
        made(phase="Running", state=KILLED, events=[event("Killing", "Container main failed startup probe, will be")]),
        *("not_ready", "likely", "Container main failed startup probe", "failureThreshold"),
    ),
    "a readiness gate": (
        made(phase="Running", state={"state": {"running": {}}, "ready": True}, conditions=GATED),
        *("not_ready", "possible", "ReadinessGatesNotReady: x/y", "kubectl describe pod"),
    ),
    "a preemption that only a condition tells": (
        made(phase="Failed", state=KILLED, conditions=DISRUPTED),
        *("evicted", "certain", "PreemptionByScheduler", "priorityClassName"),
    ),
    "a container that kubelet lost": (
        made(phase="Failed", state={"state": {"terminated": {"reason": "ContainerStatusUnknown", "exitCode": 137}}}),
        *("crashed", "possible", "ContainerStatusUnknown", "kubectl logs"),
    ),
    "a pod that a webhook denied": (
        Evidence(pod=absent_pod("team", "gone", [event("FailedCreate", 'webhook "a" denied the request: no latest')])),
        *("admission", "certain", "denied the request: no latest", "Do what the message says"),
    ),
    "a pod that is not there": (
        Evidence(pod=absent_pod("team", "gone")),
        *("not_running", "possible", "", "kubectl get events -n team"),
    ),
    "nothing known": (
        made(log="KeyError: 'x'", state={"state": {"terminated": FAILED}}),
        *("crashed", "possible", "KeyError: 'x'", "kubectl logs -n team train -c main --previous"),
    ),
}


def first(evidence: Evidence) -> Finding:
    return diagnose(evidence)[0]


@pytest.mark.parametrize(("evidence", "rule", "confidence", "fact", "remedy"), CASES.values(), ids=CASES.keys())
def test_what_happened_comes_first_with_a_fact_and_a_remedy(
    evidence: Evidence, rule: str, confidence: str, fact: str, remedy: str
) -> None:
    found = first(evidence)
    assert (found.rule, found.confidence) == (rule, confidence)
    assert fact in " ".join(said.text for said in found.evidence)
    assert remedy in found.remedy


def test_every_rule_is_shown_and_documented() -> None:
    assert len(set(ORDER)) == len(ORDER)
    page = (ROOT / "docs" / "reference" / "diagnosis-rules.md").read_text()
    assert [rule for rule in ORDER if f"| `{rule}` |" not in page] == []


def test_healthy_pod_has_no_findings_and_lists_the_evidence() -> None:
    evidence = made(page=refused("quota", 0), state={"state": {"running": {}}}, phase="Running")
    assert diagnose(evidence) == []
    told = lines(document([], looked_at(evidence), []))
    assert told[0] == "No known problem was found."
    assert "pod team/train: its state, 0 events" in told[1]
    assert "node a: its labels and conditions, 0 events, 2 GPUs, 1 figures of its plugin" in told[1]
    assert "1 pods of plugins, 1 of the extender" in told[1]


def test_request_for_zero_of_a_resource_is_no_request() -> None:
    pod = made(limits={"aliyun.com/gpu-mem": "0", "tencent.com/vcuda-core": "0m", "nvidia.com/gpu": "1"}).pod
    assert pod is not None
    assert (dict(pod.wants), has_share(pod.containers[0])) == ({"nvidia.com/gpu": "1"}, False)


def test_unexplained_crash_is_named_beside_a_nodes_problem() -> None:
    """A crash that nothing explains is told beside what is wrong elsewhere."""
    evidence = made(log="KeyError", node_events=[event("MigConfigFailed", "no")])
    assert {"crashed", "configuration"} <= {finding.rule for finding in diagnose(evidence)}


def test_an_allocator_set_as_it_should_be_is_no_conflict() -> None:
    env = {"FLAGS_allocator_strategy": "naive_best_fit"}
    assert first(made(log="Out of memory error on GPU 0", env=env)).rule == "quota_oom"


def test_metrics_page_from_before_registration_is_no_finding() -> None:
    page = 'accel_device_plugin_registered{node="a",resource="tencent.com/vcuda-core"} 0\n'
    assert diagnose(of_node(page=page)) == []
    assert diagnose(of_node(page=page, offers={"allocatable": {"tencent.com/vcuda-core": "1k"}})) == []


def test_consequences_of_an_unserved_mode_are_not_repeated() -> None:
    message = "1 Insufficient nvidia.com/mps-core, 1 had untolerated taint {node-role.kubernetes.io/control-plane: }."
    found = diagnose(made(limits={"nvidia.com/mps-core": "30"}, where="", **unscheduled(message)))
    assert [finding.rule for finding in found] == ["mode_mismatch"]


def test_a_gpu_of_others_says_nothing_of_the_pod() -> None:
    other = metrics("accel_gpu_xid_errors_total", 2, uuid="GPU-a-1", xid="79", namespace="", pod="", container="")
    assert diagnose(made(page=other, phase="Running")) == []


def test_causes_come_before_what_follows_from_them() -> None:
    found = diagnose(made(bad="XID 79 (GPU has fallen off the bus)", log="GPU is lost"))
    assert [finding.rule for finding in found][:2] == ["gpu_lost", "xid"]
    ranks = [CONFIDENCES.index(finding.confidence) for finding in found]
    assert ranks == sorted(ranks)


@pytest.mark.attack
def test_facts_are_one_harmless_line_without_secrets() -> None:
    log = f"\x1b[2J\x1b]0;title\x07{TORCH} token=abcdef123 \u202e" + "x" * 5000
    text = first(made(log=log)).evidence[0].text
    assert text.isprintable()
    assert "abcdef123" not in text
    assert len(text) <= 400


def test_container_that_never_started_is_not_sent_to_its_log() -> None:
    message = "runc create failed: something new"
    state = {"state": {"terminated": {"reason": "StartError", "exitCode": 128, "message": message}}}
    found = diagnose(made(state=state))
    assert [finding.rule for finding in found] == ["not_running"]
    assert message in found[0].evidence[0].text
    assert "kubectl logs" not in found[0].remedy


def test_crash_is_found_beside_a_container_with_a_longer_name() -> None:
    item = pod("train", SHARE, "a")
    item["spec"]["containers"] = [{"name": name, "resources": {"limits": SHARE}} for name in ("app", "app2")]
    item["status"]["containerStatuses"] = [{"name": n, "state": {"terminated": FAILED}} for n in ("app", "app2")]
    evidence = Evidence(pod=pod_of(item, [], {("app2", False): TORCH}))
    assert [(found.rule, found.subject[-4:]) for found in diagnose(evidence)] == [
        ("quota_oom", "app2"),
        ("crashed", " app"),
    ]


PHASES = st.sampled_from(["Pending", "Failed", "Unknown", "Running", ""])
REASONS = st.sampled_from([*STATES, "ErrImagePull", "Novelty", ""])
TEXTS = st.text(max_size=40)
TOLD = st.lists(st.builds(event, st.sampled_from(["Failed", "FailedMount", "BackOff", "New"]), TEXTS), max_size=3)


@settings(max_examples=200)
@given(PHASES, REASONS, TEXTS, TOLD, st.sampled_from(["waiting", "terminated", "nothing"]))
def test_pod_that_does_not_run_never_gets_nothing_was_found(
    phase: str, reason: str, message: str, events: list[dict[str, Any]], kind: str
) -> None:
    state = {} if kind == "nothing" else {"state": {kind: {"reason": reason, "message": message, "exitCode": 1}}}
    if kind == "nothing" and phase in ("Running", "Succeeded"):
        phase = "Pending"
    found = diagnose(made(state=state, phase=phase, events=events, held=ALONE))
    assert found
    assert all(finding.remedy and finding.evidence for finding in found)
    if kind == "waiting" and reason:
        assert any(reason in said.text for finding in found for said in finding.evidence)


def placed(item: dict[str, Any], *events: dict[str, Any], **logs: str) -> list[Finding]:
    evidence = pod_of(item, events, {(name, True): log for name, log in logs.items()})
    return diagnose(Evidence(pod=evidence, everywhere=False))


def with_init(status: dict[str, Any]) -> dict[str, Any]:
    item = pod("train", PGPU["limits"], "a", phase="Pending")
    item["spec"]["initContainers"] = [{"name": "fetch", "image": "i"}]
    item["status"] |= {
        "initContainerStatuses": [{"name": "fetch", **status}],
        "containerStatuses": [{"name": "main", "state": {"waiting": {"reason": "PodInitializing"}}}],
    }
    return item


@pytest.mark.parametrize(
    ("status", "rule"),
    [
        ({"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": {"terminated": FAILED}}, "crashed"),
        ({"state": {"waiting": {"reason": "ImagePullBackOff"}}}, "image"),
        ({"state": {"waiting": {"reason": "CreateContainerError"}}}, "not_running"),
    ],
)
def test_failed_init_container_is_named_and_not_its_waiters(status: dict[str, Any], rule: str) -> None:
    found = placed(with_init(status))
    assert [(finding.rule, finding.subject) for finding in found] == [(rule, "pod team/train container fetch")]


def test_container_that_waits_for_an_init_container_names_it() -> None:
    found = placed(with_init({"state": {"running": {}}}))
    assert [finding.rule for finding in found] == ["not_running"]
    assert "init container fetch" in found[0].what
    assert found[0].remedy.endswith("-c fetch")


@pytest.mark.parametrize(("finalizers", "words"), [([], "grace period"), (["a/b"], "controller of each finalizer")])
def test_deleted_pod_that_is_still_there_is_told_why(finalizers: list[str], words: str) -> None:
    item = pod("train", PGPU["limits"], "a", phase="Running", containerStatuses=[{"name": "main", **UNREADY}])
    item["metadata"] |= {"deletionTimestamp": "2026-01-01T00:00:00Z", "finalizers": finalizers}
    assert any(finding.rule == "not_running" and words in finding.remedy for finding in placed(item))


def test_names_of_scheduling_gates_are_told() -> None:
    item = pod("train", PGPU["limits"], "", phase="Pending")
    item["spec"]["schedulingGates"] = [{"name": "kueue.x-k8s.io/admission"}]
    found = placed(item)
    assert [finding.rule for finding in found] == ["scheduler"]
    assert "kueue.x-k8s.io/admission" in found[0].evidence[0].text


@pytest.mark.parametrize("probe", ["Readiness", "Liveness"])
def test_old_probe_is_not_the_cause_of_a_later_crash(probe: str) -> None:
    told = event("Unhealthy", f"{probe} probe failed: connection refused")
    state = {"state": {"waiting": {"reason": "CrashLoopBackOff"}}, "lastState": {"terminated": FAILED}}
    found = diagnose(made(phase="Running", state=state, events=[told], log="KeyError: 'x'"))
    assert [finding.rule for finding in found] == ["crashed"]


@pytest.mark.parametrize("taint", ["disk-pressure", "not-ready", "unschedulable"])
def test_taint_of_a_sick_node_suggests_no_toleration(taint: str) -> None:
    message = f"0/1 nodes are available: 1 node(s) had untolerated taint {{node.kubernetes.io/{taint}: }}."
    found = diagnose(made(where="", **unscheduled(message)))
    assert found
    assert all("toleration" not in finding.remedy for finding in found)


def test_events_of_a_namesake_do_not_count() -> None:
    item = pod("train", SHARE, "a")
    item["metadata"]["uid"] = "2"
    old = event("GpuMemoryRefused", OVER) | {"involvedObject": {"uid": "1"}}
    assert pod_of(item, [old]).events == ()


def test_what_could_not_be_read_is_said() -> None:
    assert (
        lines(document([], [], ["pods of namespace kube-system: no"]))[-1]
        == "NOT KNOWN: pods of namespace kube-system: no"
    )
    assert [finding.rule for finding in diagnose(made(daemons=None, phase="Running"))] == []


def test_table_has_every_xid_that_makes_a_gpu_unhealthy() -> None:
    critical = [number for number in XIDS if Switches().counts(number)]
    assert {48, 62, 64, 74, 79, 95, 119, 120} <= set(critical)
    assert all(xid.remedy.endswith(".") for xid in XIDS.values())


def test_the_extenders_words_for_no_room_are_known() -> None:
    from kube_accel.model import ContainerRequest, PodRequest

    request = PodRequest(Mode.VGPU, (ContainerRequest("main", 30, GIB),))
    assert first(made(where="", **unscheduled(f"0/9 nodes: 9 no room for {describe(request)}"))).rule == "no_room"


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda children: st.lists(children, max_size=3) | st.dictionaries(st.text(), children, max_size=3),
    max_leaves=8,
)
WORDS_OF_OBJECTS = """
metadata spec status name namespace uid annotations labels containers conditions containerStatuses
state waiting terminated reason message type limits resources env nodeName phase allocatable command
exitCode value hard used involvedObject uuid version gpus kube-accel.io/assignment kube-
accel.io/inventory tencent.com/vcuda-core nvidia.com/gpu
"""
KEYS = st.sampled_from(sorted(set(WORDS_OF_OBJECTS.split())))
objects = st.recursive(
    json_values,
    lambda children: st.dictionaries(KEYS, children, max_size=6) | st.lists(children, max_size=3),
    max_leaves=30,
)
WORDS = st.sampled_from(
    [TORCH, "CUDA error 99999", "XID 99999", OVER, FULL, "paddle", '"', "{", "Bearer x", "-----BEGIN A-----"]
)
logs = st.lists(st.one_of(st.text(), WORDS)).map("\n".join)


@settings(max_examples=100)
@given(objects, objects, objects, logs, st.one_of(logs, objects.map(lambda value: json.dumps(value))))
def test_whatever_anybody_writes_there_is_a_diagnosis(
    item: Any, events: Any, machine: Any, log: str, page: str
) -> None:
    whole = made(log=log, page=page)
    assert whole.pod is not None
    names = {container.name for container in pod_of(item).containers} | {"main"}
    evidences = [
        whole,
        Evidence(
            pod=pod_of(item, events, {(name, False): log for name in names}),
            nodes=(node_of(machine, events, page),),
            daemons=daemons_of([item, machine], {"/": page}),
            quotas=quotas_of([item]),
        ),
        made(env={"CUDA_VERSION": log, "NVIDIA_REQUIRE_CUDA": page}, state={"state": {"terminated": FAILED}}),
    ]
    for evidence in evidences:
        told = document(diagnose(evidence), looked_at(evidence), [])
        assert lines(json.loads(json.dumps(told)))
