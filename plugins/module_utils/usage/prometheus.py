# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What to ask a Prometheus for a report. The function that asks is passed in.

Raw samples at the edges of the period's parts are enough for counters; all samples of a node are fetched where its
counters began again, stood still or grew beyond what its GPUs can have given, where it was silent at an edge, has
several ledgers or GPUs that another node has too, and where a namespace is not reported all the time.
"""

from __future__ import annotations

import collections
import json
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Sequence, Set, Tuple

from ..shared.api_json import ApiJsonError, fit, is_text
from ..shared.printable import line
from .counters import GAP_SECONDS, Account, Page, Window
from .ledgers import began_in, follows, stalled
from .pages import (
    ALLOCATED_GPUS,
    CAPACITY,
    CHARGED,
    INFO,
    LEDGER,
    PAGE_FAMILIES,
    PEAK,
    REQUEST,
    SIZE,
    UTILIZATION,
    Place,
    Sample,
    number,
    own,
    pages,
    place,
    whole,
)
from .sizing import Holding

Ask = Callable[[str, float], Sequence[Mapping[str, Any]]]
"""The series that an expression has at a time: of the HTTP API's ``result`` those that are ``readable``."""

_PLACE = (
    "node, exported_node, uuid, namespace, exported_namespace, pod, exported_pod, container, exported_container, mode"
)
_BEFORE = "30d"
"""Before a period, in looking for who reported a node then."""
_STEPS = 2000
"""Into how many steps a period is cut to find how long a container was there."""


def readable(answer: object, problems: List[str]) -> List[Mapping[str, Any]]:
    """Return the series of an answer that are what Prometheus sends, without values that are no amounts.

    Of each of the others, and of each of those with such values, there is a problem.

    Raises ValueError for an answer that is no list.
    """
    if not isinstance(answer, list):
        raise ValueError("its result is no list of series")
    found = []
    for series in answer:
        name = f"series {_named(series)} of Prometheus"
        try:
            fit(series, _SHAPE, name)
            if not isinstance(series.get("values", series.get("value")), list):
                raise ApiJsonError(f"{name}: it has no value")
        except ApiJsonError as error:
            problems.append(f"{error}; {_SEE}")
        else:
            kept, odd = _amounts(series)
            problems += [f"{name}: {line(text, 40)} is no amount; {_SEE}" for text in odd[:1]]
            found += [kept] if _points(kept) else []
    return found


def _amounts(series: Mapping[str, Any]) -> Tuple[Mapping[str, Any], List[str]]:
    """Return the series without the points that are no amounts, and these: NaN is one."""
    points = _points(series)
    odd = [text for unused, text in points if number(text) is None]
    return ({**series, "values": [point for point in points if number(point[1]) is not None]} if odd else series), odd


def _named(series: object) -> str:
    labels = series.get("metric") if isinstance(series, dict) else None
    if not isinstance(labels, dict):
        return "without labels"
    known = {name: labels[name] for name in _NAMING if labels.get(name)}
    return line(json.dumps(known, ensure_ascii=False), _LONGEST_NAME)


def _labels(value: object) -> None:
    if not isinstance(value, dict) or not all(is_text(text) for text in value.values()):
        raise ValueError("labels are texts")


def _point(value: object) -> None:
    if not isinstance(value, list) or len(value) != 2:
        raise ValueError("a value is a list of time and text")
    at, text = value
    if isinstance(at, bool) or not isinstance(at, (int, float)) or not 0 <= at < _MOST_SECONDS:
        raise ValueError("its time is no second since 1970")
    if not isinstance(text, str):
        raise ValueError(f"{line(text, 40)} is no amount")


_SHAPE = {"metric!": _labels, "value": _point, "values": [_point]}
_NAMING = ("__name__", "node", "exported_node", "uuid", "namespace", "exported_namespace", "pod", "exported_pod", "job")
_LONGEST_NAME = 512
_SEE = "see the target that it comes from, by its labels job and instance"
_MOST_SECONDS = 253402300800
"""The first second of the year 10000."""


def gather(ask: Ask, window: Window, selector: str) -> Dict[str, List[Page]]:
    """Pages by node that ``usage`` needs. ``selector``: further label matchers, as of one cluster or job."""
    families = f'__name__=~"{"|".join(PAGE_FAMILIES)}"'
    found: Dict[str, List[Page]] = {}
    for edge in window.edges:
        answer = ask(f"{{{_matchers(families, selector)}}}[{GAP_SECONDS}s]", edge)
        for node, told in pages(_samples(answer, edge - GAP_SECONDS, last=True)).items():
            found.setdefault(node, []).extend(_last(told))
    found = whole(found)
    edges = [_at_edge(found, edge) for edge in window.edges]
    for part in range(len(edges) - 1):
        of_part = _Part(ask, window.edges[part], window.edges[part + 1], selector)
        nodes = of_part.doubtful(*edges[part : part + 2])
        at_ends = [{node: list(told) for node, told in edge.items()} for edge in edges[part : part + 2]]
        fetched: Dict[str, List[Page]] = {}
        while nodes:
            for node in sorted(nodes):
                fetched[node] = of_part.pages(node, families)
            nodes = _sharing([*at_ends, fetched]) - fetched.keys()
        for node, of_node in fetched.items():
            found.setdefault(node, []).extend(of_node)
    return whole(found)


def _at_edge(found: Mapping[str, Sequence[Page]], edge: float) -> Dict[str, List[Page]]:
    """Return the last pages of the minutes up to an edge."""
    of_edge = {
        node: _last(page for page in told if edge - GAP_SECONDS < page.at <= edge) for node, told in found.items()
    }
    return {node: told for node, told in of_edge.items() if told}


class _Part:
    """What is asked of a part of the period."""

    def __init__(self, ask: Ask, start: float, end: float, selector: str) -> None:
        self._ask, self._end, self._selector = ask, end, selector
        self._span = int(end - start)
        self._renamed: Set[str] = set()
        """Nodes whose labels Prometheus renamed."""

    def pages(self, node: str, families: str) -> List[Page]:
        """Return all pages of a node."""
        label = "exported_node" if node in self._renamed else "node"
        of_node = _matchers(f"{families}, {label}={json.dumps(node, ensure_ascii=False)}", self._selector)
        answer = self._ask(f"{{{of_node}}}[{self._span}s]", self._end)
        return pages(_samples(answer, self._end - self._span)).get(node, [])

    def doubtful(self, before: Mapping[str, List[Page]], after: Mapping[str, List[Page]]) -> Set[str]:
        """Return the nodes of which the last pages before its ends do not report all."""
        nodes = _sharing([before, after])
        for series in self._lowest(CAPACITY, "model"):
            node = self._node(series)
            first, last = before.get(node, []), after.get(node, [])
            if not first or not last or _fell(series, first) or _doubtful(first[-1], last[-1]):
                nodes.add(node)
        if any(page.ledger for told in (*before.values(), *after.values()) for page in told):
            counted = collections.Counter(self._node(series) for series in self._lowest(LEDGER, "ledger"))
            nodes |= {node for node, number in counted.items() if number > 1}
        return nodes | self._met(before, after)

    def _met(self, before: Mapping[str, List[Page]], after: Mapping[str, List[Page]]) -> Set[str]:
        """Return the nodes with an account that only the later page has, and that did not begin in between."""
        new = {
            (node, account): told[-1].lag
            for node, told in after.items()
            if before.get(node)
            for account in told[-1].charges.keys() - before[node][-1].charges.keys()
        }
        if not new:
            return set()
        nodes = set()
        for series in self._lowest(CHARGED, "namespace, exported_namespace, mode, model"):
            node, labels = self._node(series), series["metric"]
            account = Account(own(labels, "namespace"), labels.get("mode", ""), labels.get("model", ""))
            if _value(series) > new.get((node, account), float("inf")):
                nodes.add(node)
        return nodes

    def _lowest(self, name: str, by: str) -> Sequence[Mapping[str, Any]]:
        of_time = f"min_over_time({_series(name, self._selector)}[{self._span}s])"
        return self._ask(f"min by (node, exported_node, {by}) ({of_time})", self._end)

    def _node(self, series: Mapping[str, Any]) -> str:
        node = own(series["metric"], "node")
        if "exported_node" in series["metric"]:
            self._renamed.add(node)
        return node


def _doubtful(before: Page, after: Page) -> bool:
    """Return whether the node's ledger, or the server that scrapes it, may have changed in between."""
    return not follows(before, after) or stalled(before, after) or bool(before.charges.keys() - after.charges.keys())


def _sharing(edges: Iterable[Mapping[str, Iterable[Page]]]) -> Set[str]:
    """Return the nodes that report GPUs that others report too, but as the same ledger."""
    tellers: Dict[str, Dict[str, str]] = collections.defaultdict(dict)
    for edge in edges:
        for node, told in edge.items():
            for page in told:
                for uuid in page.uuids:
                    tellers[uuid][node] = page.ledger or node
    return {node for of_gpu in tellers.values() if len(set(of_gpu.values())) > 1 for node in of_gpu}


def older(ask: Ask, found: Mapping[str, Sequence[Page]], window: Window, selector: str) -> Set[str]:
    """Return the nodes that were silent at the begin of the period, whose counters are those from before it."""
    nodes = set()
    for node, told in found.items():
        first = min(told, key=lambda page: page.at, default=None)
        if first is None or first.at <= window.start or not began_in(first, window):
            continue
        names = (f"{label}={json.dumps(node, ensure_ascii=False)}" for label in ("node", "exported_node"))
        series = " or ".join(f"{CAPACITY}{{{_matchers(name, selector)}}}" for name in names)
        answer = ask(f"({series})[{_BEFORE}:{GAP_SECONDS}s]", window.start)
        before = pages(_samples(answer)).get(node)
        if before and first.counted >= before[-1].counted:
            nodes.add(node)
    return nodes


def used_known(ask: Ask, window: Window, selector: str) -> Dict[Account, float]:
    """Returns the ratio of the time of an account's containers for which their use is known."""
    by = "namespace, exported_namespace, mode, uuid"
    span = int(window.end - window.start)
    answer = ask(f"max by (uuid, model) (max_over_time({_series(INFO, selector)}[{span}s]))", window.end)
    models = {series["metric"].get("uuid", ""): series["metric"].get("model", "") for series in answer}
    counts = []
    for name in (UTILIZATION, ALLOCATED_GPUS):
        count: Dict[Account, float] = collections.defaultdict(float)
        for series in ask(f"sum by ({by}) (count_over_time({_series(name, selector)}[{span}s]))", window.end):
            labels = series["metric"]
            model = models.get(labels.get("uuid", ""), "")
            count[Account(own(labels, "namespace"), labels.get("mode", ""), model)] += _value(series)
        counts.append(count)
    known, all_of_it = counts
    return {account: min(1.0, known[account] / count) for account, count in all_of_it.items() if count > 0}


def holdings(ask: Ask, window: Window, selector: str) -> List[Holding]:
    """Return what containers asked for of GPUs' memory in the period, and the most that they used."""
    span = int(window.end - window.start)

    def over_time(function: str, name: str) -> Dict[Place, float]:
        expression = f"max by ({_PLACE}) ({function}({_series(name, selector)}[{span}s]))"
        return {place(series["metric"]): _value(series) for series in ask(expression, window.end)}

    asked, peak = over_time("max_over_time", REQUEST), over_time("max_over_time", PEAK)
    shares = over_time("max_over_time", ALLOCATED_GPUS)
    sizes_of = f"max by (uuid) (max_over_time({_series(SIZE, selector)}[{span}s]))"
    sizes = {series["metric"].get("uuid", ""): _value(series) for series in ask(sizes_of, window.end)}
    step = max(60, span // _STEPS)
    seen = {}
    for side in ("min", "max"):
        moments = f"{side}_over_time(timestamp({_series(ALLOCATED_GPUS, selector)})[{span}s:{step}s])"
        answer = ask(f"{side} by ({_PLACE}) ({moments})", window.end)
        seen[side] = {place(series["metric"]): _value(series) for series in answer}
    return [
        Holding(
            where,
            asked.get(where, shares[where] * sizes.get(where.uuid, 0.0)),
            peak.get(where),
            seen["max"].get(where, 0.0) - seen["min"].get(where, 0.0),
            whole=where not in asked,
            until=seen["max"].get(where, 0.0),
        )
        for where in sorted(shares)
    ]


def _series(name: str, selector: str) -> str:
    return f"{name}{{{selector}}}" if selector else name


def _matchers(first: str, selector: str) -> str:
    return f"{first}, {selector}" if selector else first


def _samples(answer: Iterable[Mapping[str, Any]], after: float = 0.0, last: bool = False) -> Iterator[Sample]:
    """Yield all samples, or each series' last. Whether a range has its first moment depends on the version."""
    for series in answer:
        labels = series["metric"]
        told = [point for point in _points(series) if point[0] != after]
        for at, value in told[-1:] if last else told:
            yield Sample(labels.get("__name__", ""), labels, value, float(at))


def _last(told: Iterable[Page]) -> List[Page]:
    """Return the last page of each plugin."""
    return list({page.source: page for page in told}.values())


def _fell(series: Mapping[str, Any], before: Sequence[Page]) -> bool:
    """Return whether it was once below what it had been at the edge before, by more than two plugins differ."""
    model = series["metric"].get("model", "")
    lowest = _value(series)
    return any(lowest < page.capacity.get(model, 0) - page.lag for page in before)


def _points(series: Mapping[str, Any]) -> Sequence[Tuple[float, str]]:
    points: Sequence[Tuple[float, str]] = series["values"] if "values" in series else [series["value"]]
    return points


def _value(series: Mapping[str, Any]) -> float:
    """Return the value of the last sample."""
    value = number(_points(series)[-1][1]) if _points(series) else None
    return 0.0 if value is None else float(value)
