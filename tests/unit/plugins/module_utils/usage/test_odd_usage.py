# SPDX-License-Identifier: Apache-2.0
"""What Prometheus or a plugin answers about one node is odd in any field: the others are counted as before."""

from __future__ import annotations

import copy
import functools
import json
import re
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils.usage import (
    accounting as gpu_usage,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.usage import (
    html as gpu_usage_html,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.usage import (
    pages as gpu_usage_pages,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.usage import (
    plugins as gpu_usage_plugins,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.usage import (
    prometheus as gpu_usage_prometheus,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.usage import (
    sizing as gpu_usage_sizing,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.usage import (
    text as gpu_usage_text,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.usage.counters import window

from odd_values import ODD, Path, cases, fields_read, with_value
from unit.plugins.odd_api import is_wrong
from unit.plugins.usage_data import GIB, H100, Model, Node, Scrapes, share

START, END = 1_763_769_600, 1_763_769_600 + 3600
ODD_MODEL = Model("Odd GPU", 16 * GIB)
Series = dict[str, Any]


def _scraped() -> Scrapes:
    nodes = [Node("good", {"g": H100}), Node("odd", {"o": ODD_MODEL})]
    nodes[0].at(START - 600, share("g", "team", "p", 0.5, 8 * GIB))
    nodes[1].at(START - 600, share("o", "odd-team", "odd-pod", 0.5, 8 * GIB))
    scrapes = Scrapes()
    for moment in range(START - 60, END + 1, 60):
        scrapes.take(moment, nodes)
    return scrapes


SAMPLES = _scraped().samples()


@functools.cache
def answer(expression: str, at: float) -> list[Series]:
    """About what Prometheus has for an expression of ours: all values of a range, or the last ones of a name."""
    wanted = set(re.findall(r"accel_[a-z_]+", expression))
    ranged = expression.startswith("{")
    back = int(re.findall(r"\[(\d+)", expression)[-1])
    found: dict[tuple[tuple[str, str], ...], list[list[Any]]] = {}
    for sample in SAMPLES:
        if sample.name in wanted and at - back < sample.at <= at:
            labels = tuple({"__name__": sample.name, **sample.labels}.items())
            text = str(sample.at) if "timestamp(" in expression else sample.value
            found.setdefault(labels, []).append([sample.at, text])
    return [
        {"metric": dict(labels), "values": values} if ranged else {"metric": dict(labels), "value": values[-1]}
        for labels, values in found.items()
    ]


class Prometheus:
    """Answers in turn; the answer to one question is changed."""

    def __init__(self, number: int = -1, change: Callable[[list[Series]], Any] = lambda found: found) -> None:
        self.asked: list[list[Series]] = []
        self.problems: list[str] = []
        self._number, self._change = number, change

    def __call__(self, expression: str, at: float) -> list[Mapping[str, Any]]:
        found = answer(expression, at)
        self.asked.append(found)
        given = self._change(copy.deepcopy(found)) if len(self.asked) - 1 == self._number else found
        return gpu_usage_prometheus.readable(given, self.problems)


def reported(ask: Prometheus) -> tuple[dict[str, Any], list[str]]:
    """The report in every form as data, and its problems."""
    period = window(START, END)
    pages = gpu_usage_prometheus.gather(ask, period, "")
    usage = gpu_usage.usage(pages, period, False, gpu_usage_prometheus.older(ask, pages, period, ""))
    known = gpu_usage_prometheus.used_known(ask, period, "")
    return _shown("Prometheus", usage, known, gpu_usage_prometheus.holdings(ask, period, ""), ask.problems)


def _shown(source: str, usage: Any, known: Any, holdings: Any, problems: list[str]) -> tuple[dict[str, Any], list[str]]:
    oversized, unknown = gpu_usage_sizing.oversized(holdings, 0.3, 60)
    told = (*problems, *usage.problems)
    report = gpu_usage_text.Report(usage, source, "used", {}, "EUR", known, tuple(oversized), unknown, 0.3, told, ())
    made = [gpu_usage_text.table(report), gpu_usage_text.comma_separated(report)]
    if len(problems) > 1:  # what is the same for each takes its time
        made.append(gpu_usage_html.page(report))
    for text in made:
        text.encode()
    document = gpu_usage_text.document(report)
    json.dumps(document, allow_nan=False)
    return document, list(told)


def of_good(document: Mapping[str, Any]) -> list[Any]:
    """What is said of the other node's account, and of its model."""
    rows = [row for row in document["rows"] if row["model"] == H100.name]
    sizes = [pod for pod in document["right_sizing"] if pod["namespace"] == "team"]
    return [rows, sizes]


GOOD, _ = reported(_prometheus := Prometheus())
QUESTIONS = list(_prometheus.asked)


def _of_odd(number: int, place: int) -> Series:
    return [series for series in QUESTIONS[number] if series["metric"]["node"] == "odd"][place]


def _in_place(number: int, place: int, series: Any) -> Prometheus:
    def change(found: list[Series]) -> list[Series]:
        mine = [at for at, each in enumerate(found) if each["metric"]["node"] == "odd"][place]
        found[mine] = series
        return found

    return Prometheus(number, change)


def _fields() -> list[Any]:
    found = []
    seen = set()
    for number, asked in enumerate(QUESTIONS):
        mine = [series for series in asked if series["metric"]["node"] == "odd"]
        for place, series in enumerate(mine):
            # The same is asked for each edge of a period.
            kind = (series["metric"]["__name__"], "values" in series, number if "value" in series else 0)
            if kind in seen:
                continue
            seen.add(kind)
            short = {**series, "values": series["values"][-1:]} if "values" in series else series
            paths = fields_read(short, lambda each, n=number, p=place: reported(_in_place(n, p, each)))  # type: ignore[misc]
            name = series["metric"]["__name__"].removeprefix("accel_")
            for case in cases(paths):
                found.append(
                    pytest.param(number, place, *case.values, id=f"{number}-{name}-{case.id}", marks=case.marks)
                )
    return found


@pytest.mark.parametrize(("number", "place", "path", "values"), _fields())
def test_odd_prometheus_series_is_dropped_alone_and_reported(
    number: int, place: int, path: Path, values: Mapping[str, Any]
) -> None:
    series = _of_odd(number, place)
    for name, value in values.items():
        document, problems = reported(_in_place(number, place, with_value(series, path, value)))
        assert of_good(document) == of_good(GOOD), name
        is_time = path[0] in ("value", "values") and path[-1] == 0
        if is_wrong(series, path, value) and not (is_time and isinstance(value, (int, float))):
            assert any("odd" in each or path[0] == "metric" for each in problems), name


@pytest.mark.parametrize("number", range(len(QUESTIONS)))
def test_odd_entries_of_an_answer_cost_themselves_alone(number: int) -> None:
    entries = [*ODD.values(), {"metric": {}}]
    document, problems = reported(Prometheus(number, lambda found: [*entries, *found]))
    assert of_good(document) == of_good(GOOD)
    assert len(problems) >= len(entries)


def pages_told(text: str) -> tuple[dict[str, Any], list[str]]:
    """A report of plugins' pages: a good one, and this."""
    good = list(gpu_usage_pages.samples_of(_page("good"), END))
    odd = list(gpu_usage_pages.samples_of(text, END))
    told = {name: found[-1] for each in (good, odd) for name, found in gpu_usage_pages.pages(each).items()}
    kept = gpu_usage_pages.decode(gpu_usage_pages.encode(told))
    usage = gpu_usage.usage(gpu_usage_plugins.together(told, None), gpu_usage_plugins.period(told, None, END))
    assert kept["good"].capacity == told["good"].capacity
    samples = [*good, *odd]
    known, holdings = gpu_usage_plugins.used_known(samples), gpu_usage_plugins.holdings(samples)
    return _shown("plugins", usage, known, holdings, [])


def _page(node: str) -> str:
    lines = []
    for sample in SAMPLES:
        if sample.at == END and sample.labels["node"] == node:
            kept = [(name, value) for name, value in sample.labels.items() if name not in ("job", "instance")]
            labels = ",".join(f'{name}="{value}"' for name, value in kept)
            lines.append(f"{sample.name}{{{labels}}} {sample.value}")
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize(
    "value",
    [
        *("", " ", "x", "-1", "NaN", "+Inf", "1e400", "1e-400", "1e999999999", "1e308", "1_0", "0x1p3", "9" * 5000),
        *("\uff19", "\ud800"),
    ],
    ids=lambda value: ascii(value[:20]),
)
def test_an_odd_value_of_a_plugin_costs_itself_alone(value: str) -> None:
    before, _ = pages_told("")
    lines = _page("odd").splitlines()
    for at, each in enumerate(lines):
        changed = [*lines[:at], f"{each.rpartition(' ')[0]} {value}", *lines[at + 1 :]]
        document, _ = pages_told("\n".join(changed))
        assert of_good(document) == of_good(before), each


KEPT = json.loads(gpu_usage_pages.encode({"odd": gpu_usage_pages.pages(SAMPLES)["odd"][-1]}))


@pytest.mark.parametrize(
    ("path", "values"), cases(fields_read(KEPT, lambda item: gpu_usage_pages.decode(json.dumps(item))) or [("nodes",)])
)
def test_what_was_kept_is_read_or_refused(path: Path, values: Mapping[str, Any]) -> None:
    for value in values.values():
        _read_kept(with_value(KEPT, path, value))


@pytest.mark.parametrize("part", ["at", "capacity", "charges", "gpus"])
def test_what_was_kept_of_a_node_is_read_or_refused(part: str) -> None:
    more = ("1e999999999", "1/0", {"x": "1e999999999"}, [["a", 7, "b", "1", "1", "1"]], {"x": [1]})
    for value in [*ODD.values(), *more]:
        _read_kept(with_value(KEPT, ("nodes", "odd", part), value))


def _read_kept(document: Any) -> None:
    try:
        kept = gpu_usage_pages.decode(json.dumps(document))
    except gpu_usage_pages.StateError:
        return
    gpu_usage_pages.encode(kept)
    gpu_usage.usage(gpu_usage_plugins.together({}, kept), window(START, END))
