# SPDX-License-Identifier: Apache-2.0
"""Parts of a GPU, and whether one has room for them. Pure."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TypeVar

from kube_accel.shared.modes import CORES, MIB

Owner = TypeVar("Owner")


@dataclass(frozen=True, slots=True)
class Portion:
    """A share of one GPU."""

    cores: int
    """Percent, 1 to 100."""
    memory_bytes: int


def equal(memory_bytes: int, number: int) -> Portion:
    """Return one of so many equal shares of a GPU with so much memory; what cannot be divided is nobody's."""
    return Portion(CORES // number, memory_bytes // MIB // number * MIB)


def in_the_way(wanted: Portion | None, taken: Iterable[tuple[Owner, Portion | None]], memory_bytes: int) -> list[Owner]:
    """Return who keeps a GPU with so much memory from having room for one more portion; None is all of it."""
    held = list(taken)
    if wanted is None:
        return [owner for owner, _ in held]
    whole = [owner for owner, portion in held if portion is None]
    shares = [portion for _, portion in held if portion is not None]
    fits = (
        wanted.cores + sum(share.cores for share in shares) <= CORES
        and wanted.memory_bytes + sum(share.memory_bytes for share in shares) <= memory_bytes
    )
    return whole or ([] if fits else [owner for owner, _ in held])
