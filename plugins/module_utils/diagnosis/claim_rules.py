# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules about a pod that waits for GPUs which it asks for by ResourceClaims. Pure."""

from __future__ import annotations

from typing import Dict, Iterator, List, Optional

from ansible_collections.accel.kubernetes.plugins.module_utils.diagnosis.evidence import Evidence, Node
from ansible_collections.accel.kubernetes.plugins.module_utils.diagnosis.finding import Finding, Said
from ansible_collections.accel.kubernetes.plugins.module_utils.diagnosis.symptoms import CERTAIN, LIKELY
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.claim_view import Request
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.inventory_annotation import GpuView
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.modes import (
    CORES,
    DRA_MIG_CLASS,
    DRA_MODE,
    DRA_SHARE_CLASS,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.quantity import human_bytes

_MOST = 8
"""Nodes that are named of one finding."""


def waiting(evidence: Evidence) -> Iterator[Finding]:
    """Yield why no node has the GPUs that a pod's claims ask for."""
    pod = evidence.pod
    if pod is None or pod.unscheduled is None or pod.phase not in ("", "Pending"):
        return
    serving = {node.name: node for node in evidence.nodes if node.view is not None and node.view.mode == DRA_MODE}
    for request in evidence.requests:
        finding = _unserved(f"pod {pod.full_name}", request, serving, evidence)
        if finding is not None:
            yield finding


def _unserved(subject: str, request: Request, serving: Dict[str, Node], evidence: Evidence) -> Optional[Finding]:
    asks = Said(f"ResourceClaim {request.claim}", f"request {request.name} asks for {_told(request)}")
    if evidence.classes is not None and request.kind not in evidence.classes:
        what = f"its claim names device class {request.kind}, which does not exist"
        remedy = "Run site.yml with a node of gpu_mode: dra."
        if request.kind == DRA_SHARE_CLASS:
            remedy = (
                "The class exists where the cluster has the feature gate DRAConsumableCapacity, which is on from"
                " Kubernetes 1.36, and gpu_plugins_dra_shares. Otherwise ask for a whole GPU or a fixed share."
            )
        return Finding("missing_object", subject, what, (asks,), remedy, CERTAIN)
    if not evidence.everywhere:
        return None
    gpus = {name: list(node.view.gpus) for name, node in serving.items() if node.view is not None}
    every = [gpu for of_node in gpus.values() for gpu in of_node]
    if not every:
        what = "no node offers GPUs by claims: no driver has published any"
        told = Said("ResourceSlices", f"none of nodes of mode dra ({', '.join(sorted(serving)[:_MOST]) or 'none'})")
        remedy = "Look at the pods of DaemonSet kube-accel-dra. Run site.yml with a node of gpu_mode: dra."
        return Finding("not_offered", subject, what, (asks, told), remedy, LIKELY)
    if request.kind == DRA_MIG_CLASS:
        return _no_mig(subject, asks, every)
    largest = max(gpu.memory_bytes for gpu in every)
    if (request.cores or 0) > CORES or (request.memory_bytes or 0) > largest:
        what = "its claim asks for a share that is larger than any GPU"
        told = Said("ResourceSlices", f"the largest GPU has {CORES} cores and {human_bytes(largest)}")
        return Finding("request", subject, what, (asks, told), "Ask for less, or for a whole GPU.", CERTAIN)
    healthy = {name: [gpu for gpu in of_node if gpu.health == "healthy"] for name, of_node in gpus.items()}
    if not any(healthy.values()):
        what = "every GPU that is given by claims is unhealthy, and has a taint"
        told = Said("ResourceSlices", f"{len(every)} devices with a taint")
        remedy = "See the condition GpusHealthy of these nodes for the reasons."
        return Finding("gpu_unhealthy", subject, what, (asks, told), remedy, LIKELY)
    fitting = {name: [gpu for gpu in of_node if _fits(gpu, request)] for name, of_node in healthy.items()}
    if any(len(found) >= request.number for found in fitting.values()):
        return None
    what = "no node has GPUs with room for what its claim asks for"
    told = tuple(Said(f"node {name}", _room(healthy[name])) for name in sorted(healthy)[:_MOST])
    remedy = "Wait, ask for less, or end other pods. The playbook inspect shows who has what."
    return Finding("no_room", subject, what, (asks, *told), remedy, LIKELY)


def _no_mig(subject: str, asks: Said, every: List[GpuView]) -> Optional[Finding]:
    """Return a finding where no GPU is given as MIG devices. Which of them a claim selects, its expressions say."""
    if any(gpu.mig for gpu in every):
        return None
    what = "its claim asks for a MIG device, and no GPU is given as MIG devices"
    told = Said("ResourceSlices", f"{len(every)} GPUs, all of them whole")
    remedy = "Cut GPUs with gpu_plugins_mig_config, or ask for a share or a whole GPU."
    return Finding("not_offered", subject, what, (asks, told), remedy, CERTAIN)


def _told(request: Request) -> str:
    number = f"{request.number} of class {request.kind}"
    parts = [] if request.cores is None else [f"{request.cores} cores"]
    parts += [] if request.memory_bytes is None else [human_bytes(request.memory_bytes)]
    return f"{number}, {' and '.join(parts)} each" if parts else number


def _fits(gpu: GpuView, request: Request) -> bool:
    if request.cores is None and request.memory_bytes is None:
        return not gpu.tenants
    cores = CORES if request.cores is None else request.cores
    memory = gpu.memory_bytes if request.memory_bytes is None else request.memory_bytes
    return bool(cores <= CORES - gpu.allocated_cores and memory <= gpu.memory_bytes - gpu.allocated_bytes)


def _room(gpus: List[GpuView]) -> str:
    """Return what healthy GPUs of a node have left."""
    if not gpus:
        return "no healthy GPU"
    free = sum(not gpu.tenants for gpu in gpus)
    best = max(gpus, key=lambda gpu: (CORES - gpu.allocated_cores, gpu.memory_bytes - gpu.allocated_bytes))
    left = human_bytes(best.memory_bytes - best.allocated_bytes)
    return f"{free} of {len(gpus)} GPUs free; GPU {best.index} has {CORES - best.allocated_cores} cores and {left} left"
