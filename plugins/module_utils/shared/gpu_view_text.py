# Apache License 2.0 (see https://www.apache.org/licenses/LICENSE-2.0)
# SPDX-License-Identifier: Apache-2.0
"""A view of a cluster's GPUs as text: the tables of ``kubectl inspect cgpu``, CSV, and JSON. Pure."""

from __future__ import annotations

import itertools
from typing import List, Sequence

from . import printable
from .columns import columns
from .gpu_view import ClusterView, NodeView, document, totals
from .inventory_annotation import WHOLE, GpuView
from .waiting_pods import Waiting

CSV_COLUMNS = (
    "node",
    "address",
    "mode",
    "gpu",
    "uuid",
    "model",
    "health",
    "gpu_memory_bytes",
    "namespace",
    "pod",
    "container",
    "cores",
    "memory_bytes",
    "used_bytes",
)
"""One row a container and GPU; of a GPU that is free, one with the last six empty."""
_LONGEST_MODEL = 96
"""Characters of a GPU's name: NVML has no longer ones."""


def summary(found: ClusterView, wide: bool = False) -> str:
    """One line a node: what is allocated of each GPU, in GiB; ``wide`` says what kind they are and what is used."""
    count = max((len(node.gpus) for node in found.nodes), default=0)
    head = ["NAME", "IPADDRESS", *(f"GPU{i}(Allocated/Total)" for i in range(count)), "GPU Memory(GiB)"]
    rows = [[*head, "MODE", "CORES(%)", "USED(GiB)", "MODELS", "HEALTHY"] if wide else head]
    for node in found.nodes:
        cells = [_pair(gpu.allocated_bytes, gpu.memory_bytes) for gpu in node.gpus]
        sums = totals([node])
        memory = _pair(sums["allocated_bytes"], sums["memory_bytes"]) if node.gpus else "unknown"
        row = [node.name, node.address or "-", *cells, *["-"] * (count - len(cells)), memory]
        rows.append([*row, *_wide(node)] if wide else row)
    notes = [f"{node.name}: {note}" for node in found.nodes for note in _notes(node)]
    table = "\n".join([*columns(rows), *printable.lines(notes)])
    return _page([table, _cluster(found)], found)


def details(found: ClusterView) -> str:
    """Node by node, one line a pod: what it has of each GPU, in GiB."""
    parts = [_node(node) for node in found.nodes]
    return _page([*parts, _cluster(found)], found)


def comma_separated(found: ClusterView) -> str:
    """``CSV_COLUMNS``; sizes in bytes, what is not known is empty."""
    rows: List[Sequence[object]] = [CSV_COLUMNS]
    for node in found.nodes:
        for gpu in node.gpus:
            of_gpu = (node.name, node.address, node.mode, gpu.index, gpu.uuid, gpu.model, gpu.health, gpu.memory_bytes)
            for tenant in gpu.tenants:
                who = (tenant.namespace, tenant.pod, tenant.container)
                rows.append((*of_gpu, *who, tenant.cores, tenant.memory_bytes, tenant.used_bytes))
            if not gpu.tenants:
                rows.append((*of_gpu, "", "", "", "", "", ""))
    return printable.comma_separated(rows)


def json_text(found: ClusterView) -> str:
    """``gpu_view.document`` as text; what a terminal would obey is escaped."""
    return printable.json_text(document(found), indent=2)


def gib(amount: int) -> str:
    """GiB without needless digits: ``80``, ``0.5``, ``79.65``."""
    return f"{amount / (1 << 30):.2f}".rstrip("0").rstrip(".")


def _wide(node: NodeView) -> List[str]:
    sums = totals([node])
    used = [gpu.used_bytes for gpu in node.gpus if gpu.tenants]
    known = [amount for amount in used if amount is not None]
    names = itertools.groupby(printable.line(gpu.model, _LONGEST_MODEL) for gpu in node.gpus)
    models = [f"{len(list(same))}x {model}" for model, same in names]
    return [
        node.mode,
        "-" if node.mode == "cgpu" else f"{sums['allocated_cores']}/{sums['cores']}",
        gib(sum(known)) if len(known) == len(used) else "unknown",
        ", ".join(models) or "-",
        f"{sums['healthy']}/{sums['gpus']}",
    ]


def _node(node: NodeView) -> str:
    names = [f"NAME:       {node.name}", f"IPADDRESS:  {node.address or '-'}", f"MODE:       {node.mode}", ""]
    lines = printable.lines(names)
    head = ["NAME", "NAMESPACE", *(f"GPU{gpu.index}(Allocated)" for gpu in node.gpus), "USED(GiB)"]
    rows = [head]
    for namespace, pod in sorted({(t.namespace, t.pod) for gpu in node.gpus for t in gpu.tenants}):
        rows.append([pod, namespace, *(_share(gpu, namespace, pod) for gpu in node.gpus), _used(node, namespace, pod)])
    sums = totals([node])
    lines += columns(rows)
    allocated, total = sums["allocated_bytes"], sums["memory_bytes"]
    lines += [f"Allocated : {gib(allocated)} ({_percent(allocated, total)})", f"Total :     {gib(total)}"]
    lines += printable.lines(
        f"GPU {gpu.index} is {gpu.health}: {gpu.reason}" for gpu in node.gpus if gpu.health != "healthy"
    )
    lines += printable.lines(_notes(node))
    lines += printable.lines(
        f"Why GPU {gpu.index} for {tenant.namespace}/{tenant.pod} {tenant.container}: {tenant.why}"
        for gpu in node.gpus
        for tenant in gpu.tenants
        if tenant.why
    )
    return "\n".join(lines)


def _notes(node: NodeView) -> List[str]:
    """Return what the driver does not report about a node's GPUs."""
    unread = [f"GPU {gpu.index} cannot be read and is not offered: {gpu.reason}" for gpu in node.unreadable]
    return [*unread, *(f"GPU {gpu.index}: {fault}" for gpu in node.gpus for fault in gpu.faults)]


def _share(gpu: GpuView, namespace: str, pod: str) -> str:
    """``8 (20%)``: GiB, and cores where they are divided."""
    of_pod = [tenant for tenant in gpu.tenants if (tenant.namespace, tenant.pod) == (namespace, pod)]
    memory, cores = sum(tenant.memory_bytes for tenant in of_pod), sum(tenant.cores for tenant in of_pod)
    return gib(memory) + (f" ({cores}%)" if 0 < cores < WHOLE else "")


def _used(node: NodeView, namespace: str, pod: str) -> str:
    used = [t.used_bytes for gpu in node.gpus for t in gpu.tenants if (t.namespace, t.pod) == (namespace, pod)]
    known = [amount for amount in used if amount is not None]
    return gib(sum(known)) if len(known) == len(used) else "unknown"


def _cluster(found: ClusterView) -> str:
    sums = totals(found.nodes)
    allocated, total = sums["allocated_bytes"], sums["memory_bytes"]
    return "\n".join(
        ("Allocated/Total GPU Memory In Cluster:", f"{_pair(allocated, total)} GiB ({_percent(allocated, total)})")
    )


def _page(parts: Sequence[str], found: ClusterView) -> str:
    """Parts under each other, then who waits, then what is not known."""
    rule = "-" * max(len(line) for part in parts for line in part.splitlines())
    text = f"\n{rule}\n".join(parts)
    if found.waiting:
        head = ["NAMESPACE", "NAME", "NODE", "WANTS", "REASON"]
        text = "\n".join([text, "", "PENDING", *columns([head, *map(_waiting, found.waiting)])])
    for problem in found.problems:
        text += f"\nNOT KNOWN: {printable.line(problem)}"
    return text + "\n"


def _waiting(pod: Waiting) -> List[str]:
    wants = ", ".join(f"{name}={amount}" for name, amount in pod.wants.items())
    return [pod.namespace, pod.pod, pod.node or "-", wants, pod.reason]


def _pair(part: int, whole: int) -> str:
    return f"{gib(part)}/{gib(whole)}"


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.0f}%" if whole else "0%"
