# SPDX-License-Identifier: Apache-2.0
"""Nodes whose plugins meter for a while, with the daemon's own meter, and what a Prometheus has of them then."""

from __future__ import annotations

import copy
import math
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from ansible_collections.accel.kubernetes.plugins.module_utils.usage.counters import Page
from ansible_collections.accel.kubernetes.plugins.module_utils.usage.pages import Sample, pages

from kube_accel.metrics import families
from kube_accel.metrics.charge import Charge, Meter, Model, Payer, State, charge_families, charged, memory_of
from kube_accel.metrics.exposition import Family, Series, escaped, number
from kube_accel.metrics.tenancy import Container, Holding

GIB = 1 << 30
H100 = Model("NVIDIA H100 80GB HBM3", 80 * GIB)
T4 = Model("Tesla T4", 16 * GIB)


def share(uuid: str, namespace: str, pod: str, part: float, memory: int | None = None) -> Holding:
    """What a container has of a GPU; memory in bytes, None for a whole GPU."""
    return Holding(Container(namespace, pod, "main"), uuid, part, memory_bytes=memory)


@dataclass
class Node:
    """A node and its plugin."""

    name: str
    gpus: Mapping[str, Model]
    mode: str = "vgpu"
    instance: str = "192.0.2.1:9445"
    held: dict[str, tuple[Holding, ...]] = field(default_factory=dict)
    peaks: dict[Container, int] = field(default_factory=dict)
    uses_known: bool = True
    ledger: str = ""

    def __post_init__(self) -> None:
        self._meter = Meter(self.mode, None, {})

    def begins_anew(self) -> None:
        """Its ledger is lost."""
        self._meter = Meter(self.mode, None, {})

    def kept(self) -> dict[Payer, Charge]:
        """What its ledger has."""
        return copy.deepcopy(self._meter.charges)

    def put_back(self, kept: dict[Payer, Charge]) -> None:
        """Its ledger is one that was kept."""
        self._meter = Meter(self.mode, None, copy.deepcopy(kept))

    def forgets(self, *namespaces: str) -> None:
        """They had nothing for long enough."""
        self._meter.forget([payer for payer in self._meter.charges if payer.namespace in namespaces])

    def at(self, moment: float, *held: Holding) -> None:
        """From then on these have GPUs, and nobody else."""
        self._meter.see(self._state(moment))
        self.held = {}
        for holding in held:
            self.held[holding.uuid] = (*self.held.get(holding.uuid, ()), holding)
        self._meter.see(self._state(moment))

    def _state(self, moment: float) -> State:
        return State("boot", moment, dict(self.gpus), dict(self.held))

    def busy(self, namespace: str, seconds: float) -> None:
        """Containers of the namespace used their GPUs for so long, together."""
        uuid, holding = next(
            (u, h) for u, held in self.held.items() for h in held if h.container.namespace == namespace
        )
        self._meter.busy(uuid, holding.container, seconds)

    def told(self, moment: float) -> list[tuple[Family, Series]]:
        """Its page, as far as reports need it."""
        self._meter.see(self._state(moment))
        cards = {uuid: (self.name, uuid) for uuid in self.gpus}
        parts: dict[tuple[str, ...], float] = {}
        asked: dict[tuple[str, ...], float] = {}
        peaks: dict[tuple[str, ...], float] = {}
        for uuid, held in self.held.items():
            shares = charged(held)
            for holding in held:
                labels = (self.name, uuid, *holding.container, self.mode)
                parts[labels] = shares[holding.container]
                if holding.memory_bytes is not None:
                    asked[labels] = memory_of(holding, self.gpus[uuid].memory_bytes)
                if holding.container in self.peaks:
                    peaks[labels] = self.peaks[holding.container]
        used = dict.fromkeys(parts, 0.5) if self.uses_known else {}
        info = {
            (*cards[uuid], str(index), model.name, "0", self.mode, "580", "13"): 1.0
            for index, (uuid, model) in enumerate(self.gpus.items())
        }
        sizes = {cards[uuid]: float(model.memory_bytes) for uuid, model in self.gpus.items()}
        return [
            *charge_families(self.name, self._meter.charges),
            (families.LEDGER_INFO, {(self.name, self.ledger): 1.0} if self.ledger else {}),
            (families.GPU_INFO, info),
            (families.GPU_CAPACITY, sizes),
            (families.CONTAINER_ALLOCATED, parts),
            (families.CONTAINER_REQUEST, asked),
            (families.CONTAINER_PEAK, peaks),
            (families.CONTAINER_UTILIZATION, used),
        ]


class Scrapes:
    """What was scraped, to be asked for as samples, pages or OpenMetrics."""

    def __init__(self) -> None:
        self._found: dict[Family, dict[tuple[tuple[str, str], ...], list[tuple[float, float]]]] = {}

    def take(
        self, moment: float, nodes: Iterable[Node], ahead: float = 0.0, without: Collection[Family] = (), **target: str
    ) -> None:
        """Scrape these, with labels of the target beside theirs, but for some families.

        The clock of whoever scrapes may be ahead. A sample that is not later than the one before is dropped.
        """
        for node in nodes:
            for family, series in node.told(moment):
                for values, value in series.items() if family not in without else ():
                    labels = {"job": "kube-accel", "instance": node.instance, **target}
                    labels.update(zip(family.labels, values, strict=True))
                    found = self._found.setdefault(family, {}).setdefault(tuple(labels.items()), [])
                    if not found or found[-1][0] < moment + ahead:
                        found.append((moment + ahead, value))

    def spoil(self, family: Family, moments: Collection[float]) -> None:
        """Have no number in this family's series then."""
        for found in self._found[family].values():
            found[:] = [(moment, math.nan if moment in moments else value) for moment, value in found]

    def samples(self) -> list[Sample]:
        """As Prometheus gives them."""
        return [
            Sample(family.name, dict(labels), _text(value), moment)
            for family, series in self._found.items()
            for labels, values in series.items()
            for moment, value in values
        ]

    def pages(self) -> dict[str, list[Page]]:
        """By node."""
        return pages(self.samples())

    def open_metrics(self, path: Path, rename: Mapping[str, str] | None = None) -> Path:
        """Written for promtool, with labels renamed."""
        with path.open("w") as file:
            for family, series in self._found.items():
                file.write(f"# TYPE {family.name.removesuffix('_total')} {family.kind.value}\n")
                for labels, values in series.items():
                    text = ",".join(f'{(rename or {}).get(name, name)}="{escaped(value)}"' for name, value in labels)
                    for moment, value in values:
                        file.write(f"{family.name}{{{text}}} {_text(value)} {moment:.3f}\n")
            file.write("# EOF\n")
        return path


def _text(value: float) -> str:
    return "NaN" if math.isnan(value) else number(value)
