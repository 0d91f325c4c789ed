# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Rules about a pod that waits for GPUs which it asks for by ResourceClaims. Pure."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Dict, Iterator, List, Mapping, Optional

from ansible_collections.accel.kubernetes.plugins.module_utils.diagnosis.evidence import Evidence, Node
from ansible_collections.accel.kubernetes.plugins.module_utils.diagnosis.finding import Finding, Said
from ansible_collections.accel.kubernetes.plugins.module_utils.diagnosis.symptoms import CERTAIN, LIKELY
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.claim_view import Request
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.fixed_shares import fixed_shares
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.inventory_annotation import GpuView
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.label_names import FIXED_SHARES
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.modes import (
    CORES,
    DRA_DRIVER,
    DRA_FIXED_CLASS,
    DRA_MIG_CLASS,
    DRA_MODE,
    DRA_SHARE_CLASS,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.quantity import human_bytes

_MOST = 8
"""Nodes that are named of one finding."""
_MISSING = {
    DRA_SHARE_CLASS: "The class exists where the cluster has the feature gate DRAConsumableCapacity, which is on from"
    " Kubernetes 1.36, and gpu_plugins_dra_shares. Otherwise ask for a whole GPU or a fixed share.",
    DRA_FIXED_CLASS: "The class exists while GPUs are cut. Set gpu_plugins_dra_fixed_shares for a node of mode dra, and"
    " run site.yml. Otherwise ask for a share by size or a whole GPU.",
}
"""What to do about a device class that does not exist."""
_UNOFFERED = {
    DRA_DRIVER: (
        "a whole GPU, and every GPU is cut",
        "Ask for what there is. To have whole GPUs, set gpu_plugins_dra_fixed_shares=0 or another"
        " gpu_plugins_mig_config for a node, and run site.yml.",
    ),
    DRA_SHARE_CLASS: (
        "a share by size, and no GPU can be shared so",
        f"Ask for class {DRA_FIXED_CLASS} or a whole GPU. Shares by size need gpu_plugins_dra_fixed_shares=0 for the"
        " node, and the feature gate DRAConsumableCapacity, which is on from Kubernetes 1.36.",
    ),
    DRA_FIXED_CLASS: (
        "a fixed share, and no GPU is cut into fixed shares",
        "Set gpu_plugins_dra_fixed_shares for a node, and run site.yml. Otherwise ask for a share by size or a whole"
        " GPU.",
    ),
    DRA_MIG_CLASS: (
        "a MIG device, and no GPU is given as MIG devices",
        "Cut GPUs with gpu_plugins_mig_config, or offer MIG devices with gpu_plugins_dra_mig_offers. Otherwise ask for"
        " a share or a whole GPU.",
    ),
}
"""What a claim asks for that no GPU is given as, and what to do."""

_Gpus = Mapping[str, List[GpuView]]
"""By node."""


def waiting(evidence: Evidence) -> Iterator[Finding]:
    """Yield why no node has the GPUs that a pod's claims ask for."""
    pod = evidence.pod
    if pod is None or pod.unscheduled is None or pod.phase not in ("", "Pending"):
        return
    serving = {node.name: node for node in evidence.nodes if node.view is not None and node.view.mode == DRA_MODE}
    for request in evidence.requests:
        subject = f"pod {pod.full_name}"
        causes = [_unserved(subject, each, serving, evidence) for each in (request, *request.others)]
        found = [cause for cause in causes if cause is not None]
        # Of alternatives, one that may be had is enough.
        if len(found) == len(causes):
            yield replace(found[0], evidence=tuple(dict.fromkeys(said for each in found for said in each.evidence)))


def _unserved(subject: str, request: Request, serving: Dict[str, Node], evidence: Evidence) -> Optional[Finding]:
    asks = Said(f"ResourceClaim {request.claim}", f"request {request.name} asks for {_told(request)}")
    if evidence.classes is not None and request.kind not in evidence.classes:
        what = f"its claim names device class {request.kind}, which does not exist"
        remedy = _MISSING.get(request.kind, "Run site.yml with a node of gpu_mode: dra.")
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
    given = {name: [gpu for gpu in of_node if request.kind in gpu.classes] for name, of_node in gpus.items()}
    if not any(given.values()):
        return _unoffered(subject, request, asks, every, serving)
    return _full(subject, request, asks, given)


def _unoffered(subject: str, request: Request, asks: Said, every: List[GpuView], serving: Dict[str, Node]) -> Finding:
    """Return what there is in place of what a claim asks for."""
    asked, remedy = _UNOFFERED[request.kind]
    classes = Counter(name for gpu in every for name in gpu.classes)
    kinds = ", ".join(f"{classes[name]} of class {name}" for name in sorted(classes))
    what = f"its claim asks for {asked}"
    told = [Said("ResourceSlices", f"{len(every)} GPUs: {kinds}")]
    if request.kind == DRA_FIXED_CLASS:
        labeled = [said for name in sorted(serving) for said in _uncut(serving[name])]
        told += labeled[:_MOST]
        if labeled:
            what = "its claim asks for a fixed share, and no GPU is cut as the labels of nodes say"
            remedy = "Correct the label, or end the pods that hold these GPUs. The playbook inspect shows who has what."
    return Finding("not_offered", subject, what, (asks, *told), remedy, CERTAIN)


def _uncut(node: Node) -> Iterator[Said]:
    """Yield why a node's GPUs are not cut into fixed shares although its label says so."""
    gpus = node.view.gpus if node.view is not None else ()
    try:
        number = fixed_shares(node.labels)
    except ValueError as error:
        yield Said(f"node {node.name}", str(error))
        return
    left = [gpu for gpu in gpus if gpu.cut_into != number and not gpu.mig]
    if number and left:
        held = sum(bool(gpu.tenants) for gpu in left)
        text = f"label {FIXED_SHARES}={number}, and {len(left)} of its {len(gpus)} GPUs are not cut so"
        yield Said(f"node {node.name}", f"{text}; claims hold {held} of these, which keeps them as they were")


def _full(subject: str, request: Request, asks: Said, given: _Gpus) -> Optional[Finding]:
    """Return why none of the GPUs will do that are given as a claim asks; None where some may."""
    every = [gpu for of_node in given.values() for gpu in of_node]
    largest = max(gpu.memory_bytes for gpu in every)
    if (request.cores or 0) > CORES or (request.memory_bytes or 0) > largest:
        what = "its claim asks for a share that is larger than any GPU"
        told = Said("ResourceSlices", f"the largest GPU has {CORES} cores and {human_bytes(largest)}")
        return Finding("request", subject, what, (asks, told), "Ask for less, or for a whole GPU.", CERTAIN)
    healthy = {name: [gpu for gpu in of_node if gpu.health == "healthy"] for name, of_node in given.items()}
    if not any(healthy.values()):
        what = "every GPU that is given by such claims is unhealthy, and has a taint"
        told = Said("ResourceSlices", f"{len(every)} GPUs with a taint")
        remedy = "See the condition GpusHealthy of these nodes for the reasons."
        return Finding("gpu_unhealthy", subject, what, (asks, told), remedy, LIKELY)
    if any(sum(_left(gpu, request) for gpu in of_node) >= request.number for of_node in healthy.values()):
        return None
    what = "no node has GPUs with room for what its claim asks for"
    facts = tuple(Said(f"node {name}", _room(healthy[name], request)) for name in sorted(healthy) if given[name])
    remedy = "Wait, ask for less, or end other pods. The playbook inspect shows who has what."
    return Finding("no_room", subject, what, (asks, *facts[:_MOST]), remedy, LIKELY)


def _told(request: Request) -> str:
    number = f"{request.number} of class {request.kind}"
    parts = [] if request.cores is None else [f"{request.cores} cores"]
    parts += [] if request.memory_bytes is None else [human_bytes(request.memory_bytes)]
    return f"{number}, {' and '.join(parts)} each" if parts else number


def _left(gpu: GpuView, request: Request) -> int:
    """Return how many devices a GPU has for a request. Which of them it selects, its expressions say."""
    if request.kind == DRA_FIXED_CLASS:
        return _free_shares(gpu)
    if request.kind == DRA_MIG_CLASS:
        return request.number if gpu.allocated_cores < CORES else 0
    if request.cores is None and request.memory_bytes is None:
        return int(not gpu.tenants)
    cores = CORES if request.cores is None else request.cores
    memory = gpu.memory_bytes if request.memory_bytes is None else request.memory_bytes
    fits = cores <= CORES - gpu.allocated_cores and memory <= gpu.memory_bytes - gpu.allocated_bytes
    return 1 if fits else 0


def _free_shares(gpu: GpuView) -> int:
    return int(max(0, gpu.cut_into - len(gpu.tenants)))


def _room(gpus: List[GpuView], request: Request) -> str:
    """Return what healthy GPUs of a node have left."""
    if not gpus:
        return "no healthy GPU"
    if request.kind == DRA_FIXED_CLASS:
        return f"{sum(map(_free_shares, gpus))} of {sum(gpu.cut_into for gpu in gpus)} fixed shares free"
    if request.kind == DRA_MIG_CLASS:
        return f"no MIG device free on {len(gpus)} GPUs"
    free = sum(not gpu.tenants for gpu in gpus)
    best = max(gpus, key=lambda gpu: (CORES - gpu.allocated_cores, gpu.memory_bytes - gpu.allocated_bytes))
    left = human_bytes(best.memory_bytes - best.allocated_bytes)
    return f"{free} of {len(gpus)} GPUs free; GPU {best.index} has {CORES - best.allocated_cores} cores and {left} left"
