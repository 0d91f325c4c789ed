# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Pages of counters from the samples of plugins' metrics, and as text that is kept for a later report. Pure."""

from __future__ import annotations

import collections
import json
import re
from dataclasses import dataclass, field, replace
from fractions import Fraction
from typing import Any, Dict, Iterable, Iterator, List, Mapping, NamedTuple, Optional, Set, Tuple

from ..shared.api_json import is_text, read_object
from ..shared.plugin_metrics import read_series
from .counters import Account, Charge, Gpus, Page
from .places import unique

CAPACITY = "accel_node_gpu_seconds_total"
CHARGED = "accel_namespace_gpu_seconds_total"
BUSY = "accel_namespace_gpu_busy_seconds_total"
MEMORY = "accel_namespace_gpu_memory_byte_seconds_total"
INFO = "accel_gpu_info"
SIZE = "accel_gpu_memory_capacity_bytes"
LEDGER = "accel_ledger_info"
PAGE_FAMILIES = (CAPACITY, CHARGED, BUSY, MEMORY, INFO, SIZE, LEDGER)

ALLOCATED_GPUS = "accel_container_gpu_allocated_gpus"
UTILIZATION = "accel_container_gpu_utilization_ratio"
REQUEST = "accel_container_gpu_memory_request_bytes"
PEAK = "accel_container_gpu_memory_peak_bytes"

_VERSION = 1
_MOST = 1e30
"""Byte-seconds of memory of a million large GPUs in a century are less."""
_MOST_DIGITS = 400
"""The most digits of a number; a float that is written out has fewer."""
_FRACTION = re.compile(r"[0-9]{1,999}(?:/[0-9]{1,999})?", re.ASCII)
_OWN = ("namespace", "pod", "container")
_SERIES = (
    "__name__",
    "node",
    "mode",
    "model",
    "uuid",
    "index",
    "pci_bus_id",
    "driver_version",
    "cuda_version",
    "ledger",
    *_OWN,
)


class Sample(NamedTuple):
    """One value of one series."""

    name: str
    labels: Mapping[str, str]
    value: str
    at: float = 0.0


class Place(NamedTuple):
    """A container's part of a GPU."""

    node: str
    uuid: str
    namespace: str
    pod: str
    container: str
    mode: str


class StateError(ValueError):
    """A kept text is not one that ``encode`` made. Says what is wrong with it."""


@dataclass
class _Draft:
    """A page while its samples come in."""

    capacity: Dict[str, Fraction] = field(default_factory=dict)
    charges: Dict[Account, Dict[str, Fraction]] = field(default_factory=dict)
    """By account and family."""
    models: Dict[str, str] = field(default_factory=dict)
    sizes: Dict[str, int] = field(default_factory=dict)
    ledgers: List[str] = field(default_factory=list)

    def page(self, at: float, source: str) -> Page:
        """Return the page that it became."""
        gpus: Dict[str, Gpus] = {}
        for uuid, model in self.models.items():
            known = gpus.get(model, Gpus(0, 0))
            gpus[model] = Gpus(known.number + 1, max(known.memory_bytes, self.sizes.get(uuid, 0)))
        charges = {
            account: Charge(*(amounts.get(name, Fraction(0)) for name in _COUNTED))
            for account, amounts in self.charges.items()
            if CHARGED in amounts
        }
        told = {account: frozenset(amounts) for account, amounts in self.charges.items()}
        uuids = {uuid: model for uuid, model in self.models.items() if unique(uuid)}
        return Page(at, source, self.capacity, charges, gpus, ", ".join(sorted(set(self.ledgers))), uuids, told)


def pages(samples: Iterable[Sample]) -> Dict[str, List[Page]]:
    """Return, by node, the pages that counted anything. Other numbers are left out, like series without a source."""
    drafts: Dict[Tuple[str, str, float], _Draft] = collections.defaultdict(_Draft)
    for sample in samples:
        labels = sample.labels
        value = number(sample.value)
        node = own(labels, "node")
        if value is None or not node:
            continue
        draft = drafts[node, _source(labels), sample.at]
        if sample.name == CAPACITY:
            draft.capacity[labels.get("model", "")] = value
        elif sample.name in _COUNTED and own(labels, "namespace"):
            account = Account(own(labels, "namespace"), labels.get("mode", ""), labels.get("model", ""))
            draft.charges.setdefault(account, {})[sample.name] = value
        elif sample.name == INFO:
            draft.models[labels.get("uuid", "")] = labels.get("model", "")
        elif sample.name == LEDGER:
            draft.ledgers.append(labels.get("ledger", ""))
        elif sample.name == SIZE:
            draft.sizes[labels.get("uuid", "")] = int(value)
    found: Dict[str, List[Page]] = {}
    for (node, source, at), draft in sorted(drafts.items(), key=lambda item: (item[0][2], item[0][1])):
        if draft.capacity or draft.charges:
            found.setdefault(node, []).append(draft.page(at, source))
    return whole(found)


def whole(found: Mapping[str, Iterable[Page]]) -> Dict[str, List[Page]]:
    """Return the pages, without the accounts of which one lacks a family that another page of the node has."""
    kept = {}
    for node, told in found.items():
        families: Dict[Account, Set[str]] = collections.defaultdict(set)
        of_node = list(told)
        for page in of_node:
            for account, names in page.told.items():
                families[account] |= names
        kept[node] = [_without_parts(page, families) for page in of_node]
    return kept


def _without_parts(page: Page, families: Mapping[Account, Set[str]]) -> Page:
    """Return the page, without the accounts of which it lacks one of their families."""
    lacking = {account for account, names in page.told.items() if families[account] - names}
    if lacking.isdisjoint(page.charges):
        return page
    return replace(
        page, charges={account: charge for account, charge in page.charges.items() if account not in lacking}
    )


_COUNTED = (CHARGED, BUSY, MEMORY)
"""As in Charge."""


def samples_of(text: str, at: float) -> Iterator[Sample]:
    """Yields the samples of a page in Prometheus' text format that a plugin served at a time."""
    for name, labels, value in read_series(text):
        yield Sample(name, labels, value, at)


def place(labels: Mapping[str, str]) -> Place:
    """Return the place of the container that a series is of."""
    return Place(*(own(labels, name) for name in Place._fields))


def own(labels: Mapping[str, str], name: str) -> str:
    """Return a label as the plugin gave it: Prometheus renames it where the scrape has no ``honor_labels``."""
    return labels.get(f"exported_{name}", labels.get(name, ""))


def number(text: str) -> Optional[Fraction]:
    """Exactly what is written; None for what is no number, and for one below 0 or beyond what clusters count to."""
    try:
        value = float(text)
    except ValueError:
        return None
    if not 0 <= value < _MOST or len(text) > _MOST_DIGITS:
        return None
    # An exponent without bounds would make a fraction without bounds.
    return Fraction(text.replace("_", "")) if value else Fraction(0)


def encode(taken: Mapping[str, Page]) -> str:
    """Pages by node, as text."""
    nodes = {
        name: {
            "at": page.at,
            "capacity": {model: str(seconds) for model, seconds in sorted(page.capacity.items())},
            "charges": [[*account, *map(str, charge)] for account, charge in sorted(page.charges.items())],
            "gpus": {model: list(gpus) for model, gpus in sorted(page.gpus.items())},
            "ledger": page.ledger,
            "uuids": dict(sorted(page.uuids.items())),
        }
        for name, page in sorted(taken.items())
    }
    return json.dumps({"version": _VERSION, "nodes": nodes}, indent=1) + "\n"


def decode(text: str) -> Dict[str, Page]:
    """Return what ``encode`` was given. Raises StateError."""
    try:
        document = read_object(text)
        if document["version"] != _VERSION:
            raise StateError(f"it is of version {document['version']!r}, and this reads {_VERSION}")
        return {str(name): _page(entry) for name, entry in document["nodes"].items()}
    except (KeyError, TypeError, ValueError, AttributeError, ZeroDivisionError) as error:
        if isinstance(error, StateError):
            raise
        raise StateError(f"it is not what an earlier report kept: {error!r}") from error


def _page(entry: Mapping[str, Any]) -> Page:
    charges = {Account(*map(_text, row[:3])): Charge(*map(_fraction, row[3:])) for row in entry["charges"]}
    capacity = {model: _fraction(seconds) for model, seconds in entry["capacity"].items()}
    gpus = {model: Gpus(int(amount), int(memory)) for model, (amount, memory) in entry["gpus"].items()}
    uuids = {uuid: _text(model) for uuid, model in entry.get("uuids", {}).items() if unique(uuid)}
    return Page(float(entry["at"]), "kept", capacity, charges, gpus, _text(entry.get("ledger", "")), uuids)


def _text(value: object) -> str:
    if not is_text(value):
        raise ValueError("a name that is no text")
    return str(value)


def _fraction(value: object) -> Fraction:
    if not isinstance(value, str) or _FRACTION.fullmatch(value) is None:
        raise ValueError("an amount that is no fraction")
    return Fraction(value)


def _source(labels: Mapping[str, str]) -> str:
    """Return what a scrape adds to tell plugins of one node apart, in a form to show."""
    kept = {name: value for name, value in labels.items() if name not in _SERIES and not name.startswith("exported_")}
    return ", ".join(f"{name}={value}" for name, value in sorted(kept.items()))
