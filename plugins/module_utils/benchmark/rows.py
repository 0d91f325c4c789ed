# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which rows a benchmark has of the node as it is: what a pod asks for, how many run, and what is due to each. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any, Dict, Iterator, List, Mapping, Optional, Sequence, Tuple

from ..shared import inventory_annotation, label_names
from ..shared.gpu_view import NodeView, view
from ..shared.holders import holders
from ..shared.inventory_annotation import INVENTORY
from ..shared.modes import BY_MODE, CORES, WHOLE_MODE, mode_of
from ..shared.quantity import whole_units
from ..shared.registers import annotations_of, labels_of, mapping, mappings, metadata_of
from .wish import SHARERS, Wish

WHOLE, TIME_SLICES, MPS_REPLICAS, MIG = "whole", "time-slices", "MPS replicas", "MIG"
INSTANCE = "app.kubernetes.io/instance"
"""Label of a benchmark's pods, which names their Job."""
SHARES: Mapping[str, str] = {"vgpu": "vGPU", "mps": "MPS", "cgpu": "cGPU"}
"""Layouts by what people call them; shares by mode."""
_MIG_RESOURCE = re.compile(r"nvidia\.com/mig-(.+)\Z")
_MIG_PRODUCT = re.compile(r"-MIG-(.+?)(?:-SHARED)?\Z")
_PROFILE = re.compile(r"(?:([1-9])c\.)?([1-9])g\.[0-9]+gb")
_FOUR_SLICES = re.compile(r"\bA30\b|RTX PRO 6000")
_SHARED_IN_TIME = (
    "its MIG devices are time-sliced, which this module does not measure; use a configuration without replicas"
)


@dataclass(frozen=True)
class Row:
    """Pods that keep the GPUs of the node busy together."""

    layout: str
    sharers: int
    """Pods on each GPU; of MIG devices one on each."""
    pods: int
    share: Fraction
    """What of a GPU's time is due to each pod."""
    asks: Mapping[str, int]
    """Limits of a pod."""
    profile: str = ""
    """Of MIG devices."""
    gpu: str = ""
    """The UUID of the one GPU that all pods are to be on; empty where they are on all of them."""

    @property
    def name(self) -> str:
        """Return the name as tables have it."""
        if self.layout == WHOLE:
            return WHOLE
        return f"{self.layout} {self.profile}" if self.profile else f"{self.layout} x{self.sharers}"


@dataclass(frozen=True)
class Environment:
    """What a figure depends on."""

    node: str = ""
    gpu: str = ""
    gpus: int = 0
    memory_mib: int = 0
    driver: str = ""
    mode: str = ""
    config: str = ""
    """The configuration of the node that shares GPUs, and after a space that of MIG; empty for none."""
    kubernetes: str = ""
    runtime: str = ""
    os: str = ""
    kernel: str = ""


@dataclass(frozen=True)
class OwnJob:
    """The Job of a benchmark: anybody may give pods of another namespace its label."""

    namespace: str
    name: str

    def has(self, pod: Mapping[str, Any]) -> bool:
        """Return whether a pod is one of this Job."""
        return metadata_of(pod).get("namespace") == self.namespace and labels_of(pod).get(INSTANCE) == self.name


@dataclass(frozen=True)
class Seen:
    """The node and what is on it."""

    node: Mapping[str, Any]
    pods: Sequence[Mapping[str, Any]] = ()
    """All pods of the node."""
    mine: Optional[OwnJob] = None
    """The Job of an earlier run, which goes before the first row does."""


@dataclass(frozen=True)
class Plan:
    """What is to run, or why nothing is."""

    rows: Tuple[Row, ...] = ()
    left_out: Tuple[str, ...] = ()
    """What the node has no row of, a sentence each."""
    refusals: Tuple[str, ...] = ()
    environment: Environment = field(default_factory=Environment)


def plan(wish: Wish, seen: Seen) -> Plan:
    """Return the rows of the node as it is. What asks for more than it has is refused."""
    found = next(iter(view([seen.node], None).nodes), None)
    if found is None:
        return Plan(
            refusals=(
                f"node {wish.node} has no GPUs that a device plugin of this collection serves; run site.yml first",
            )
        )
    if found.problem and not found.gpus:
        return Plan(refusals=(f"node {wish.node}: {found.problem}",))
    refused = [*_unfit(wish, seen, found), *_busy(wish, seen)]
    if refused:
        return Plan(refusals=tuple(refused))
    rows, left_out = _rows(wish, seen.node, found)
    if wish.sharers is not None and left_out and not wish.leave_out:
        return Plan(refusals=tuple(f"node {wish.node}: {text}" for text in left_out))
    if not rows:
        said = "; ".join(left_out) or f"it offers nothing in mode {found.mode}"
        return Plan(refusals=(f"node {wish.node} has nothing to measure: {said}",))
    return Plan(tuple(rows), tuple(left_out), (), _environment(seen.node, found))


def others(pods: Sequence[Mapping[str, Any]], mine: Optional[OwnJob]) -> List[str]:
    """Return the pods that hold GPUs and are not of this Job."""
    return [str(pod) for pod in holders([pod for pod in pods if mine is None or not mine.has(pod)])]


def _unfit(wish: Wish, seen: Seen, found: NodeView) -> Iterator[str]:
    if found.problem:
        yield f"node {wish.node}: {found.problem}"
    if mapping(seen.node.get("spec")).get("unschedulable"):
        yield f"node {wish.node} is cordoned, so no pod would start; run kubectl uncordon {wish.node}"
    ill = [f"GPU {gpu.index} is {gpu.health}" for gpu in found.gpus if gpu.health != "healthy"]
    if ill or found.unreadable:
        ill += [f"GPU {gpu.index} cannot be read" for gpu in found.unreadable]
        yield f"node {wish.node}: {', '.join(ill)}, so only the others could be measured; repair it, or exclude it"
    models = sorted({gpu.model for gpu in found.gpus})
    if len(models) > 1:
        yield (
            f"node {wish.node} has GPUs of several models ({', '.join(models)}), which cannot be measured together;"
            " exclude all but one model by gpu_plugins_excluded_gpus"
        )


def _busy(wish: Wish, seen: Seen) -> Iterator[str]:
    busy = others(seen.pods, seen.mine)
    if busy:
        more = f" and {len(busy) - 3} more" if len(busy) > 3 else ""
        yield (
            f"node {wish.node}: {', '.join(busy[:3])}{more} use its GPUs and would falsify the results; wait for"
            " these pods, or move them elsewhere"
        )


def _rows(wish: Wish, node: Mapping[str, Any], found: NodeView) -> Tuple[List[Row], List[str]]:
    left_out: List[str] = []
    offered = {
        str(name): amount
        for name, value in mapping(mapping(node.get("status")).get("allocatable")).items()
        if mode_of(str(name)) == found.mode and (amount := whole_units(value) or 0) > 0
    }
    if found.mode == WHOLE_MODE:
        rows = [row for name in sorted(offered) for row in _of_resource(wish, node, found, name, offered, left_out)]
        return rows, left_out
    return _shares(wish, found, offered, left_out), left_out


def _of_resource(
    wish: Wish,
    node: Mapping[str, Any],
    found: NodeView,
    resource: str,
    offered: Mapping[str, int],
    left_out: List[str],
) -> Iterator[Row]:
    """Yield the rows of a resource of mode pgpu."""
    labels, amount, gpus = labels_of(node), offered[resource], len(found.gpus)
    as_mig = _MIG_RESOURCE.match(resource) or (
        _MIG_PRODUCT.search(str(labels.get(f"{resource}.product", "")))
        if labels.get("nvidia.com/mig.strategy") == "single"
        else None
    )
    if as_mig is not None:
        share = slices(as_mig.group(1), found.gpus[0].model)
        if str(labels.get(f"{resource}.replicas", "1")) not in ("0", "1"):
            left_out.append(f"{resource}: {_SHARED_IN_TIME}")
        elif share is None:
            left_out.append(f"{resource}: its name does not contain a number of slices")
        else:
            yield Row(MIG, 1, amount, share, {resource: 1}, as_mig.group(1).replace(".me", "+me"))
        return
    replicas, rest = divmod(amount, gpus)
    if rest:
        left_out.append(
            f"{resource}: {amount} for {gpus} GPUs are not the same number for each; offer all GPUs in the same way"
        )
    elif replicas == 1:
        yield Row(WHOLE, 1, gpus, Fraction(1), {resource: 1})
    else:
        by_mps = labels.get("nvidia.com/gpu.sharing-strategy") == "mps"
        for sharers in _sharers(wish, replicas, f"{resource} has {replicas} replicas of a GPU", left_out):
            layout = MPS_REPLICAS if by_mps else TIME_SLICES
            yield Row(layout, sharers, sharers * gpus, Fraction(1, sharers), {resource: 1})


def _shares(wish: Wish, found: NodeView, offered: Mapping[str, int], left_out: List[str]) -> List[Row]:
    resources, gpus = BY_MODE[found.mode], len(found.gpus)
    memory = offered.get(resources.memory, 0) // gpus
    names = [name for name in (resources.cores, resources.memory) if name and not offered.get(name)]
    if names:
        left_out.append(f"it offers no {' and no '.join(names)}; see its plugin")
        return []
    rows = []
    most = min(memory, CORES)
    for sharers in _sharers(wish, most, f"{memory} {resources.memory} of a GPU are enough for {most}", left_out):
        share, asks = Fraction(1, sharers), {resources.memory: memory // sharers}
        if resources.cores is not None:
            cores = CORES // sharers
            # All of a GPU's cores are a whole GPU, memory included.
            asks = {resources.cores: cores} if cores == CORES else {resources.cores: cores, **asks}
            share = Fraction(cores, CORES)
        rows.append(Row(SHARES[found.mode], sharers, sharers * gpus, share, asks))
    return rows


def _sharers(wish: Wish, most: int, because: str, left_out: List[str]) -> List[int]:
    wanted = sorted(set(SHARERS if wish.sharers is None else wish.sharers))
    many = [number for number in wanted if number > most]
    if many:
        left_out.append(f"{', '.join(f'x{number}' for number in many)}: {because}, and no more can share it")
    return [number for number in wanted if number <= most]


def slices(profile: str, model: str) -> Optional[Fraction]:
    """Return what a MIG device of this profile has of the compute slices of a GPU of this model; None if not known."""
    match = _PROFILE.match(profile)
    if match is None:
        return None
    of = 4 if _FOUR_SLICES.search(model) else 7
    count = int(match.group(1) or match.group(2))
    return Fraction(count, of) if count <= of else None


def spread(node: Mapping[str, Any], row: Row, names: Sequence[str]) -> str:
    """Return why pods lie on the node's GPUs otherwise than the row says; empty where they do, or nothing is known."""
    if row.profile:
        return ""
    try:
        said = inventory_annotation.read_inventory(annotations_of(node).get(INVENTORY))
    except ValueError:
        return ""
    held = {gpu.index: len({tenant.pod for tenant in gpu.tenants} & set(names)) for gpu in said.gpus}
    if row.gpu:
        index = next((gpu.index for gpu in said.gpus if gpu.uuid == row.gpu), -1)
        if sum(held.values()) < row.pods or held.get(index) == row.pods:
            return ""
        return f"its pods are not all on GPU {index}, so they are no neighbors; name a node with one GPU"
    if sum(held.values()) < row.pods or set(held.values()) == {row.sharers}:
        return ""
    where = ", ".join(f"{count} on GPU {index}" for index, count in held.items())
    return f"its pods lie unevenly ({where}), so the figure is of no layout; measure a node with one GPU"


def _environment(node: Mapping[str, Any], found: NodeView) -> Environment:
    info, labels = mapping(mapping(node.get("status")).get("nodeInfo")), labels_of(node)
    configs = [str(labels[name]) for name in (label_names.CONFIG, label_names.MIG_CONFIG) if labels.get(name)]
    said = inventory_annotation.read_inventory(annotations_of(node).get(INVENTORY))
    return Environment(
        node=found.name,
        gpu=found.gpus[0].model,
        gpus=len(found.gpus),
        memory_mib=found.gpus[0].memory_bytes >> 20,
        driver=said.driver,
        mode=found.mode,
        config=" ".join(configs),
        kubernetes=str(info.get("kubeletVersion") or ""),
        runtime=str(info.get("containerRuntimeVersion") or ""),
        os=str(info.get("osImage") or ""),
        kernel=str(info.get("kernelVersion") or ""),
    )


def tolerations(node: Mapping[str, Any]) -> List[Dict[str, str]]:
    """Return what pods need to be let in by the taints that people gave a node; its troubles keep them away."""
    taints = mappings(mapping(node.get("spec")).get("taints"))
    return [
        {"key": str(taint["key"]), "operator": "Exists"}
        for taint in taints
        if taint.get("key") and not str(taint["key"]).startswith("node.kubernetes.io/")
    ]
