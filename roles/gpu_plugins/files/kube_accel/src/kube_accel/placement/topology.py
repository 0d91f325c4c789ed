# SPDX-License-Identifier: Apache-2.0
"""Which GPUs of a node belong together: NVLink first, then the PCIe tree, then the NUMA node. Pure."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from math import comb
from operator import add
from typing import TypeVar

from kube_accel.model import Ancestor, Inventory

T = TypeVar("T")

# The weight of a pair is one number: NVLinks, nearness, same NUMA node. No sum over the pairs of 64 GPUs (2016) reaches
# from one field into the next.
_NUMA_BITS = 12
_NEARNESS_BITS = 24
_NEARNESS = {ancestor: rank for rank, ancestor in enumerate(sorted(Ancestor, reverse=True), start=1)}

_Matrix = tuple[tuple[T, ...], ...]

_EXHAUSTIVE_STEPS = 800
"""Partial sets an exhaustive search may look at: about a millisecond."""


@dataclass(frozen=True, slots=True)
class Connectivity:
    """How well each pair of a node's GPUs is connected, for repeated questions about one inventory."""

    position: dict[str, int]
    """Row of each UUID, in the order of the inventory."""
    weights: tuple[tuple[int, ...], ...]
    """Symmetric, zero on the diagonal and for pairs nothing is known of; a larger number is a better connection."""
    unity: tuple[tuple[int, ...], ...]
    """Likewise, but one near pair is worth more than many less near ones: how much is lost when a pair is parted."""
    nearness: tuple[tuple[float, ...], ...]
    """Likewise, 0 to 1, comparable between nodes: any NVLink is above everything PCIe has."""

    @classmethod
    def of(cls, inventory: Inventory) -> Connectivity:
        """Return the matrix of an inventory."""
        position = {gpu.uuid: row for row, gpu in enumerate(inventory.gpus)}
        links = tuple(
            (position[left], position[right], link.ancestor, link.nvlinks)
            for (left, right), link in inventory.links.items()
            if left in position and right in position
        )
        return cls(position, *_matrices(tuple(gpu.numa_node for gpu in inventory.gpus), links))

    def weight(self, uuids: Collection[str]) -> int:
        """Return how well these GPUs are connected among each other; the more, the better."""
        rows = [self.position[uuid] for uuid in uuids if uuid in self.position]
        return sum(self.weights[left][right] for left in rows for right in rows) // 2

    def closeness(self, uuids: Collection[str]) -> float:
        """Return the mean ``nearness`` of these GPUs' pairs; a pair that nothing is known of counts 0."""
        rows = [self.position[uuid] for uuid in uuids if uuid in self.position]
        pairs = len(uuids) * (len(uuids) - 1)
        return sum(self.nearness[left][right] for left in rows for right in rows) / pairs if pairs else 0.0


@lru_cache(64)
def _matrices(
    numa_nodes: tuple[int | None, ...], links: tuple[tuple[int, int, Ancestor, int], ...]
) -> tuple[_Matrix[int], _Matrix[int], _Matrix[float]]:
    """Return weights, unity and nearness. Most nodes of a cluster are built alike, and have theirs in common."""
    size = len(numa_nodes)
    weights, unity = ([[0] * size for _ in range(size)] for _ in range(2))
    nearness = [[0.0] * size for _ in range(size)]
    for row, column, ancestor, nvlinks in links:
        same_numa = numa_nodes[row] is not None and numa_nodes[row] == numa_nodes[column]
        rank = _NEARNESS[ancestor]
        weights[row][column] = weights[column][row] = _weight(nvlinks, rank, same_numa)
        unity[row][column] = unity[column][row] = _weight(nvlinks, 4**rank, same_numa)
        # From 0.0625 to 0.375 without NVLink, from 0.875 with one.
        nearness[row][column] = nearness[column][row] = (
            1 - 0.25 / (1 + nvlinks) if nvlinks else 0.375 * rank / len(Ancestor)
        )
    return tuple(map(tuple, weights)), tuple(map(tuple, unity)), tuple(map(tuple, nearness))


def choose_connected(
    topology: Inventory | Connectivity, available: Collection[str], required: Collection[str], size: int
) -> tuple[str, ...]:
    """Return the best connected ``size`` GPUs of ``available`` that include ``required``, in inventory order.

    Among equally well connected sets, the one that leaves the best connected GPUs behind: islands stay whole. The
    order of the arguments does not matter. Fewer GPUs than ``size``: all of them. More required than ``size``: these.
    UUIDs that the topology does not know are taken last.

    The search is exhaustive where that takes about a millisecond (any size for 12 GPUs; up to 4 and from 12 on for
    16), else greedy from every GPU with an exchange of single GPUs until none improves the set.
    """
    connectivity = topology if isinstance(topology, Connectivity) else Connectivity.of(topology)
    position = connectivity.position
    order = sorted({*available, *required}, key=lambda uuid: (position.get(uuid, len(position)), uuid))
    fixed = [index for index, uuid in enumerate(order) if uuid in set(required)]
    if len(order) <= size:
        return tuple(order)
    if len(fixed) >= size:
        return tuple(order[index] for index in fixed)
    rows = [position.get(uuid) for uuid in order]
    weights, unity = (
        [[0 if left is None or right is None else matrix[left][right] for right in rows] for left in rows]
        for matrix in (connectivity.weights, connectivity.unity)
    )
    chosen = {*fixed, *_choose(weights, unity, fixed, size - len(fixed))}
    return tuple(order[index] for index in sorted(chosen))


def _weight(nvlinks: int, nearness: int, same_numa: bool) -> int:
    return ((nvlinks << _NEARNESS_BITS) + nearness << _NUMA_BITS) + same_numa


def _choose(
    weights: Sequence[Sequence[int]], unity: Sequence[Sequence[int]], fixed: Sequence[int], count: int
) -> Iterable[int]:
    """Choose ``count`` indexes that, with the fixed ones, weigh most and leave the greatest unity behind.

    The unity left behind is that of all, less that of each pair with a taken index, plus that of the pairs taken, which
    went twice. So both goals together are one sum over the pairs taken plus one term for each taken index.
    """
    free = [index for index in range(len(weights)) if index not in fixed]
    parted = [sum(row) for row in unity]
    scale = sum(parted) + 1  # one unit of weight outweighs all unity
    both = [[own * scale + kept for own, kept in zip(*rows, strict=True)] for rows in zip(weights, unity, strict=True)]
    pairs = [[both[left][right] for right in free] for left in free]
    single = [sum(both[index][other] for other in fixed) - parted[index] for index in free]
    leave = len(free) - count
    if comb(len(free), count - 1) <= _EXHAUSTIVE_STEPS:
        return [free[index] for index in _exhaustive(pairs, single, count)]
    if comb(len(free), leave - 1) <= _EXHAUSTIVE_STEPS:
        # The same question from the other side: without an index go its single term and all its pairs.
        loss = [-own - sum(row) for own, row in zip(single, pairs, strict=True)]
        left = {free[index] for index in _exhaustive(pairs, loss, leave)}
        return [index for index in free if index not in left]
    return [free[index] for index in _greedy(pairs, single, count)]


def _exhaustive(pairs: Sequence[Sequence[int]], single: Sequence[int], count: int) -> tuple[int, ...]:
    """Return the best set; of equals the first in lexicographic order."""
    after = [row[index + 1 :] for index, row in enumerate(pairs)]
    best: tuple[int, tuple[int, ...]] | None = None

    def search(first: int, gains: Sequence[int], score: int, chosen: tuple[int, ...]) -> None:
        """Extend the choice; ``gains[i]`` is what index ``first + i`` adds to the chosen ones."""
        nonlocal best
        missing = count - len(chosen)
        if missing == 1:
            gain = max(gains)
            if best is None or score + gain > best[0]:
                best = score + gain, (*chosen, first + gains.index(gain))
            return
        for offset in range(len(gains) - missing + 1):
            index = first + offset
            rest = list(map(add, gains[offset + 1 :], after[index]))
            search(index + 1, rest, score + gains[offset], (*chosen, index))

    search(0, single, 0, ())
    assert best is not None
    return best[1]


def _greedy(pairs: Sequence[Sequence[int]], single: Sequence[int], count: int) -> tuple[int, ...]:
    """Return the best of the sets grown from each index; of equals the first."""
    candidates = [_grown(pairs, single, count, seed) for seed in range(len(single))]
    return max(candidates, key=lambda candidate: (candidate[0], [-index for index in candidate[1]]))[1]


def _grown(pairs: Sequence[Sequence[int]], single: Sequence[int], count: int, seed: int) -> tuple[int, tuple[int, ...]]:
    inside, outside = [seed], [index for index in range(len(single)) if index != seed]
    score, gains = single[seed], list(map(add, single, pairs[seed]))

    while len(inside) < count:
        taken = max(outside, key=gains.__getitem__)
        score += gains[taken]
        outside.remove(taken)
        inside.append(taken)
        gains = list(map(add, gains, pairs[taken]))
    while True:
        gain, out, taken = max(
            (gains[taken] - gains[out] - pairs[out][taken], -out, -taken) for out in inside for taken in outside
        )
        if gain <= 0:
            return score, tuple(sorted(inside))
        score += gain
        inside[inside.index(-out)], outside[outside.index(-taken)] = -taken, -out
        gains = [own - row_out + row_in for own, row_out, row_in in zip(gains, pairs[-out], pairs[-taken], strict=True)]
