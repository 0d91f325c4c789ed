# SPDX-License-Identifier: Apache-2.0
"""What is printed of clusters and tenants: every entry point, with hostile text in every string that it is given."""

from __future__ import annotations

import copy
import csv
import io
import json
import logging
import tarfile
from collections.abc import Callable, Iterator
from html.parser import HTMLParser
from typing import Any

import pytest
from ansible_collections.accel.kubernetes.plugins.filter.printable import printable as filtered
from ansible_collections.accel.kubernetes.plugins.module_utils.diagnosis import (
    evidence as gpu_evidence,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.diagnosis import (
    verdict as gpu_diagnosis,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.diagnosis.support_bundle import Bundle
from ansible_collections.accel.kubernetes.plugins.module_utils.shared import printable
from ansible_collections.accel.kubernetes.plugins.module_utils.usage.accounting import usage
from ansible_collections.accel.kubernetes.plugins.module_utils.usage.counters import Account, window
from ansible_collections.accel.kubernetes.plugins.module_utils.usage.html import page
from ansible_collections.accel.kubernetes.plugins.module_utils.usage.pages import Place
from ansible_collections.accel.kubernetes.plugins.module_utils.usage.sizing import Holding, oversized
from ansible_collections.accel.kubernetes.plugins.module_utils.usage.text import Report, table
from ansible_collections.accel.kubernetes.plugins.module_utils.usage.text import comma_separated as usage_csv
from hypothesis import given, settings
from hypothesis import strategies as st

from kube_accel.cli.validate import Check, Status
from kube_accel.extender.wire import write_filter_error
from kube_accel.kube import events
from kube_accel.logs import JsonFormatter
from kube_accel.metrics.exposition import labels_text
from kube_accel.shared.gpu_view import view
from kube_accel.shared.gpu_view_text import comma_separated, details, json_text, summary
from unit.plugins.module_utils.shared.test_gpu_view import SHARE, TRAIN, node, plugin, pod
from unit.plugins.usage_data import GIB, H100, Node, Scrapes, share

pytestmark = pytest.mark.attack

ESCAPES = ("\x1b[2J\x1b[1A", "\x1b]0;title\x07", "\x9b31m", "\x00\x7f\r\b", "\x85PLAY RECAP", "\u2028fatal: [host]")
HIDDEN = ("\u202egnp.exe", "\u2066x\u2069", "a\u200bb\u200d\ufeff", "\u115f\u3164\u034f", "\ud800", "\U000e0041")
FORMULAS = ('=HYPERLINK("http://x")', "+1+1", "-2+3", "@SUM(A1)", "\t=1", "\r=1", "  =1", "\uff1d1", "a;=1", '"=1')
MARKUP = ("<script>alert(1)</script>", '"onmouseover="x', "'><img src=x>", "&lt;", "]]>", "</title><script>")
TEMPLATES = ("{{ 7 * 191 }}", "{% for x in range(9) %}x{% endfor %}")
EVIL = (*ESCAPES, *HIDDEN, *FORMULAS, *MARKUP, *TEMPLATES, "a\nb", "x" * 300_000)
LEGITIMATE = ("Größe", "東京-gpu", "Ελλάδα", "عربى", "हिन्दी", "GPU 3 (GPU-0b1c2d3e)", "a=b -c")

Printer = Callable[[list[dict[str, Any]], list[dict[str, Any]]], str]


def world() -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """Nodes and pods of which everything is told that there is to tell."""
    conditions = [
        {"type": "Ready", "status": "True", "reason": "KubeletReady", "message": "ready"},
        {"type": "GpusHealthy", "status": "False", "reason": "GpuUnhealthy", "message": "GPU 0: XID 79"},
    ]
    nodes = [
        node("a", {0: (TRAIN,)}, bad="XID 79", conditions=conditions),
        node("b", {}, conditions=[{"type": "Ready", "status": "Unknown", "message": "stopped posting"}]),
    ]
    train = pod("train", SHARE, "a", phase="Running")
    said = {"version": 1, "node": "a", "containers": {"main": [{"uuid": "GPU-a-0"}]}, "why": {"main": "the fullest"}}
    train["metadata"] |= {"uid": "1", "annotations": {"kube-accel.io/assignment": json.dumps(said)}}
    waiting = {"reason": "ImageInspectError", "message": "Failed to inspect image"}
    ended = {"exitCode": 1, "reason": "Error", "message": "bye"}
    statuses = [{"name": "main", "state": {"waiting": waiting}, "lastState": {"terminated": ended}}]
    refused = [{"type": "PodScheduled", "status": "False", "message": "0/2 nodes: no room"}]
    pods = [train, pod("stuck", SHARE, "a", containerStatuses=statuses), pod("late", SHARE, conditions=refused)]
    return nodes, [*pods, plugin("a"), plugin("b", ready="False")]


def poisoned(value: Any, evil: str, at: int = -1) -> Any:
    """With the evil text after every string, or after that one alone; JSON in strings is looked into."""
    count = iter(range(1 << 20))

    def walk(part: Any, name: str = "") -> Any:
        if isinstance(part, dict):
            return {key: walk(entry, key) for key, entry in part.items()}
        if isinstance(part, list):
            return [walk(entry, name) for entry in part]
        if isinstance(part, str):
            if part.startswith("{"):
                return json.dumps(walk(json.loads(part)))
            place = next(count)
            # What says which objects are ours, and which Kubernetes takes from nobody but itself.
            fixed = name in ("command", "type", "nodeName", "node", "uuid", "mode")
            return part if fixed and at < 0 else f"{evil}{part}{evil}" if at in (-1, place) else part
        return part

    return walk(copy.deepcopy(value))


def shown(nodes: list[dict[str, Any]], pods: list[dict[str, Any]]) -> Any:
    return view(nodes, pods, {}, [f"node a: {nodes[0]['metadata']['name']}"])


def diagnosed(nodes: list[dict[str, Any]], pods: list[dict[str, Any]]) -> str:
    logs = {("main", False): f"{pods[0]['metadata']['name']} CUDA out of memory {pods[1]['metadata']['name']}"}
    told = [{"reason": "FailedScheduling", "message": pods[0]["metadata"]["name"]}]
    evidence = gpu_evidence.Evidence(
        pod=gpu_evidence.pod_of(pods[1], told, logs),
        nodes=tuple(gpu_evidence.node_of(item, told) for item in nodes),
        daemons=gpu_evidence.daemons_of(pods),
    )
    found, problems = gpu_diagnosis.diagnose(evidence), [pods[0]["metadata"]["name"]]
    return "\n".join(gpu_diagnosis.lines(gpu_diagnosis.document(found, gpu_diagnosis.looked_at(evidence), problems)))


def bundled(nodes: list[dict[str, Any]], pods: list[dict[str, Any]]) -> str:
    bundle = Bundle(problems=[nodes[0]["metadata"]["name"]])
    bundle.add_json("nodes.json", nodes)
    bundle.add_text("pods.log", json.dumps(pods, ensure_ascii=False) + pods[0]["metadata"]["name"])
    with tarfile.open(fileobj=io.BytesIO(bundle.archive())) as archive:
        return "".join(archive.extractfile(entry).read().decode() for entry in archive)  # type: ignore[union-attr]


TERMINAL: dict[str, Printer] = {
    "inspect": lambda nodes, pods: summary(shown(nodes, pods)),
    "inspect -o wide": lambda nodes, pods: summary(shown(nodes, pods), wide=True),
    "inspect -d": lambda nodes, pods: details(shown(nodes, pods)),
    "inspect -o json": lambda nodes, pods: json_text(shown(nodes, pods)),
    "inspect -o csv": lambda nodes, pods: comma_separated(shown(nodes, pods)),
    "diagnose": diagnosed,
    "support bundle": bundled,
}


def hostile_letters(text: str) -> list[str]:
    return sorted({letter for letter in text if letter != "\n" and not letter.isprintable()})


def formulas(text: str) -> Iterator[str]:
    for row in csv.reader(io.StringIO(text)):
        for cell in row:
            for part in cell.split(";"):
                if part.strip().strip("'\"").strip()[:1] in tuple("=+-@\uff1d") and not part.startswith("'"):
                    yield cell


@pytest.mark.parametrize("evil", EVIL, ids=ascii)
@pytest.mark.parametrize("name", TERMINAL)
def test_nothing_that_prints_passes_on_what_a_terminal_obeys(name: str, evil: str) -> None:
    text = TERMINAL[name](poisoned(world()[0], evil), poisoned(world()[1], evil))
    assert hostile_letters(text) == []
    if name == "inspect -o csv":
        assert list(formulas(text)) == []


@settings(deadline=None, max_examples=60)
@given(st.sampled_from(list(TERMINAL)), st.integers(0, 80), st.sampled_from(EVIL) | st.text(max_size=40))
def test_one_hostile_text_among_good_ones_is_harmless(name: str, place: int, evil: str) -> None:
    """The annotation can be read then: what stands in it comes through."""
    text = TERMINAL[name](poisoned(world()[0], evil, place), poisoned(world()[1], evil, place - 40))
    assert hostile_letters(text) == []
    if name == "inspect -o csv":
        assert list(formulas(text)) == []
        assert {len(row) for row in csv.reader(io.StringIO(text))} == {14}


@pytest.mark.parametrize("evil", [*ESCAPES, "a\nb", "x" * 300_000], ids=ascii)
def test_a_pod_takes_one_row_of_the_table_whatever_it_says(evil: str) -> None:
    nodes, pods = world()
    pods[1]["status"]["containerStatuses"][0]["state"]["waiting"]["message"] = evil
    good = summary(shown(*world())).splitlines()
    rows = summary(shown(nodes, pods)).splitlines()
    assert len(rows) == len(good)
    assert max(map(len, rows)) < 1400


class Reader(HTMLParser):
    """What a browser makes of a document."""

    def __init__(self) -> None:
        super().__init__()
        self.seen: set[str] = set()
        self.attributes: set[str] = set()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.attributes |= {name for name, _ in attrs}


def usage_report(evil: str) -> Report:
    machine, scrapes = Node(evil, {"g": H100._replace(name=evil)}, mode="vgpu"), Scrapes()
    machine.at(1_763_769_600, share("g", evil, evil, 0.5, GIB))
    for hour in (0, 1):
        scrapes.take(1_763_769_600 + hour * 3600, [machine])
    sized, _ = oversized([Holding(Place("n", "g", evil, evil, "m", evil), GIB, 1.0, None, False)], 0.3, 3600)
    found = usage(scrapes.pages(), window(1_763_769_600, 1_763_769_600 + 7200))
    known = {Account(evil, evil, evil): 0.5}
    return Report(found, evil, "allocated", {}, evil, known, tuple(sized), 1, 0.3, (evil,), (evil,))


@pytest.mark.parametrize("evil", [text for text in EVIL if "\ud800" not in text], ids=ascii)
def test_a_report_is_harmless_as_table_csv_and_html(evil: str) -> None:
    made = usage_report(evil)
    reader, good = Reader(), Reader()
    reader.feed(page(made))
    good.feed(page(usage_report("team")))
    assert reader.seen == good.seen
    assert reader.attributes == good.attributes
    for text in (page(made), table(made), usage_csv(made)):
        assert hostile_letters(text) == []
    assert list(formulas(usage_csv(made))) == []


@pytest.mark.parametrize("evil", EVIL, ids=ascii)
def test_what_daemons_tell_is_one_harmless_line(evil: str) -> None:
    event = events.body({"name": "p", "namespace": "n"}, "Warning", "GpuShareRefused", f"a {evil}", "node")
    record = logging.LogRecord("x", logging.INFO, "f", 1, f"a {evil}", None, None)
    record.reason = evil
    for text in (
        event["message"],
        str(Check(Status.FAIL, "cuda", evil, evil)),
        json.loads(write_filter_error(evil))["Error"],
        JsonFormatter().format(record),
        filtered(evil),
    ):
        assert text.isprintable()
    assert len(event["message"]) <= 1024
    assert "\n" not in labels_text([("model", evil)])


@pytest.mark.parametrize("text", LEGITIMATE)
def test_letters_of_every_script_stay(text: str) -> None:
    assert printable.line(text) == filtered(text) == text
    assert json.loads(printable.json_text({text: text})) == {text: text}
    assert text in printable.json_text([text])
    assert printable.comma_separated([[text]]).strip().strip('"') == text
    nodes, pods = world()
    pods[1]["status"]["containerStatuses"][0]["state"]["waiting"]["message"] = text
    assert text in summary(shown(nodes, pods))


def test_long_text_is_cut_with_a_mark() -> None:
    assert printable.line("ab" * 10, 10) == "abababa..."
    assert printable.line("ab" * 5, 10) == "ab" * 5
    assert len(printable.line("\x1b" * 10_000_000)) == printable.LONGEST


def test_numbers_of_csv_stay_numbers() -> None:
    assert printable.comma_separated([["a", 1, -2, None, 0.5]]) == "a,1,-2,,0.5\n"


@given(
    st.recursive(
        st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_json_loses_nothing_and_documents_are_harmless(value: Any) -> None:
    text = printable.json_text(value)
    assert hostile_letters(text) == []
    assert json.loads(text) == value
    assert hostile_letters(json.dumps(printable.document(value), ensure_ascii=False)) == []


@given(st.text())
def test_lines_stay_lines(text: str) -> None:
    assert printable.line(text).isprintable()
    assert printable.block(text).count("\n") == text.count("\n")
    assert printable.line(printable.line(text)) == printable.line(text)


@pytest.mark.attack
def test_a_letter_has_four_marks_at_most() -> None:
    assert printable.line("e" + "\u0301" * 4 + "x") == "e" + "\u0301" * 4 + "x"
    assert printable.line("e" + "\u0301" * 500, 1024) == "e" + "\u0301" * 4 + "\ufffd" * 496
    assert json.loads(printable.json_text(["e" + "\u0301" * 9])) == ["e" + "\u0301" * 9]
    assert "\u0301" * 5 not in printable.json_text(["e" + "\u0301" * 9])


@pytest.mark.attack
def test_what_is_blank_is_no_text() -> None:
    assert printable.line("a\u2800b") == "a\ufffdb"


@pytest.mark.attack
def test_names_that_become_equal_lose_nothing() -> None:
    assert printable.document({"a\x1b": 1, "a\x9b": 2, "a\x9d": 3}) == {"a\ufffd": 1, "a\ufffd*": 2, "a\ufffd**": 3}
