# SPDX-License-Identifier: Apache-2.0
"""Reports as table, data, CSV and HTML, and what they say to pods that asked for too much."""

from __future__ import annotations

import csv
import io
import re
from dataclasses import replace
from fractions import Fraction
from html.parser import HTMLParser
from typing import Any

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils.usage.accounting import usage
from ansible_collections.accel.kubernetes.plugins.module_utils.usage.charging import MEMORY, USED
from ansible_collections.accel.kubernetes.plugins.module_utils.usage.counters import Account, Page, window
from ansible_collections.accel.kubernetes.plugins.module_utils.usage.html import page
from ansible_collections.accel.kubernetes.plugins.module_utils.usage.pages import (
    Place,
    StateError,
    decode,
    encode,
    number,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.usage.plugins import period, to_keep, together
from ansible_collections.accel.kubernetes.plugins.module_utils.usage.sizing import Holding, oversized
from ansible_collections.accel.kubernetes.plugins.module_utils.usage.text import (
    CSV_COLUMNS,
    Report,
    comma_separated,
    document,
    figures,
    table,
    totals,
)

from tools.prose import complaints_of_message
from unit.plugins.usage_data import GIB, H100, T4, Node, Scrapes, share

HOUR = 3600
START = 1_763_769_600
EVIL = "<img src=x onerror=alert(1)>\"&'\x1b[31m"


@pytest.fixture
def report() -> Report:
    """Three days of two nodes; thirds, that do not come out even."""
    big, small = Node("big", {"g": H100, "h": H100}), Node("small", {"t": T4}, mode="cgpu")
    scrapes = Scrapes()
    big.at(START, share("g", "team-a", "train", 1 / 3, 20 * GIB), share("h", "team-b", "all", 1.0))
    small.at(START, share("t", "team-a", "tiny", 1 / 3, 5 * GIB))
    for hour in range(0, 73):
        if hour:
            big.busy("team-a", 600)
        scrapes.take(START + hour * HOUR, [big, small])
    found = usage(scrapes.pages(), window(START, START + 3 * 86400))
    sized, _ = oversized([holding("train", 20 * GIB, GIB)], 0.3, HOUR)
    return Report(
        found,
        "Prometheus",
        prices={H100.name: Fraction("2.5")},
        currency="EUR",
        used_known={Account("team-b", "vgpu", H100.name): 0.0, Account("team-a", "cgpu", T4.name): 0.5},
        oversized=tuple(sized),
    )


def holding(pod: str, asked: float, peak: float | None, seconds: float | None = 2 * HOUR, **more: Any) -> Holding:
    mode = str(more.get("mode", "vgpu"))
    place = Place("n", str(more.get("uuid", "g")), "team", pod, "main", mode)
    return Holding(place, asked, peak, seconds, bool(more.get("whole", False)), float(more.get("until", 0)))


def test_the_table_comes_to_its_total(report: Report) -> None:
    assert table(report).splitlines() == [
        "GPU-hours from 2025-11-22T00:00:00Z to 2025-11-25T00:00:00Z, by Prometheus",
        "Charged is what was allocated: the larger of the parts of cores and memory",
        "",
        "NAMESPACE  MODE  MODEL                  GPU-HOURS      USED      IDLE  MEMORY(GiB-h)  COST(EUR)",
        "team-a     vgpu  NVIDIA H100 80GB HBM3     24.000    12.000    12.000       1440.000      60.00",
        "team-b     vgpu  NVIDIA H100 80GB HBM3     72.000   unknown   unknown       5760.000     180.00",
        "(free)     -     NVIDIA H100 80GB HBM3     48.000         -         -              -     120.00",
        "team-a     cgpu  Tesla T4                  24.000   ≥ 0.000  ≤ 24.000        360.000          -",
        "(free)     -     Tesla T4                  48.000         -         -              -          -",
        "TOTAL                                     216.000  ≥ 12.000    36.000       7560.000          -",
        "",
        "RIGHT-SIZING: pods that never used 30 % of the memory they asked for",
        "NAMESPACE  POD    MODE  ASKED(GiB)  PEAK(GiB)  SEEN(h)  ADVICE",
        "team       train  vgpu       20.00       1.00      2.0  Ask for tencent.com/vcuda-memory: 5 (1.25 GiB).",
    ]


def test_data_and_csv_say_the_same(report: Report) -> None:
    told = document(report)
    lines = list(csv.DictReader(io.StringIO(comma_separated(report))))
    assert tuple(lines[0]) == CSV_COLUMNS
    assert len(lines) == 3 * 5
    assert len(told["parts"]) == 3
    for name, column in (("allocated_gpu_hours", "gpu_hours"), ("charged_gpu_hours", "charged_gpu_hours")):
        of_rows = sum(row[name] for row in told["rows"])
        assert of_rows == pytest.approx(sum(float(line[column]) for line in lines if line["kind"] == "allocated"))
    assert told["totals"]["capacity_gpu_hours"] == 216
    assert told["totals"]["capacity_gpu_hours"] == sum(part["capacity_gpu_hours"] for part in told["parts"])
    assert told["totals"]["free_gpu_hours"] == sum(free["gpu_hours"] for free in told["free"])
    assert told["totals"]["cost"] is None
    assert [row["used_gpu_hours"] for row in told["rows"]] == [12.0, None, 0.0]


def test_units_sum_up_what_their_namespaces_had(report: Report) -> None:
    shown = document(report)["rows"]
    assert document(report)["units"] == []
    by_label = replace(report, unit_label="example.com/unit", units={"team-b": "research", "other": "idle"})
    found = document(by_label)
    assert [unit["unit"] for unit in found["units"]] == ["research", ""]
    for unit, namespace in zip(found["units"], ("team-b", "team-a"), strict=True):
        rows = [row for row in shown if row["namespace"] == namespace]
        for amount in ("allocated_gpu_hours", "charged_gpu_hours", "memory_gib_hours"):
            assert unit[amount] == pytest.approx(sum(row[amount] for row in rows))
    assert found["rows"] == shown
    lines = table(by_label).splitlines()
    start = lines.index("BY example.com/unit")
    assert lines[start + 1].split()[:2] == ["UNIT", "GPU-HOURS"]
    assert [line.split()[0] for line in lines[start + 2 : start + 4]] == ["research", "(none)"]
    units = {(row["namespace"], row["unit"]) for row in csv.DictReader(io.StringIO(comma_separated(by_label)))}
    assert units == {("team-b", "research"), ("team-a", ""), ("", "")}
    assert "<h2>By example.com/unit</h2>" in page(by_label)


def test_names_of_units_are_harmless(report: Report) -> None:
    odd = replace(report, unit_label=EVIL, units={"team-a": EVIL, "team-b": "=1+1"})
    assert "\x1b" not in table(odd) + comma_separated(odd) + page(odd)
    assert "<img" not in page(odd)
    assert ",=1+1" not in comma_separated(odd)


def test_csv_has_a_row_for_each_cause_of_unknown_hours(report: Report) -> None:
    causes = {(T4.name, "silent"): Fraction(HOUR), (T4.name, "ledger_replaced"): Fraction(HOUR, 2)}
    found = replace(report.usage, unknown={T4.name: Fraction(3 * HOUR, 2)}, causes=causes)
    lines = list(csv.DictReader(io.StringIO(comma_separated(replace(report, usage=found)))))
    unknown = [(line["model"], line["cause"], line["gpu_hours"]) for line in lines if line["kind"] == "unknown"]
    assert unknown == [(T4.name, "ledger_replaced", "0.500000"), (T4.name, "silent", "1.000000")]
    assert {line["cause"] for line in lines if line["kind"] != "unknown"} == {""}


def test_costs_of_small_shares_in_csv_come_to_those_of_the_table() -> None:
    node, scrapes = Node("n", {"t": T4}), Scrapes()
    node.at(START, share("t", "team", "tiny", 0.01, GIB))
    for hour in range(49):
        scrapes.take(START + hour * HOUR, [node])
    found = usage(scrapes.pages(), window(START, START + 48 * HOUR))
    made = Report(found, "Prometheus", prices={T4.name: Fraction("0.35")})
    paid = [
        float(line["cost"])
        for line in csv.DictReader(io.StringIO(comma_separated(made)))
        if line["kind"] == "allocated"
    ]
    assert len(paid) == 48
    assert round(sum(paid), 2) == document(made)["totals"]["cost"] == 0.17


def test_a_model_without_a_price_costs_nothing_known(report: Report) -> None:
    assert [line.cost for line in figures(report)] == [60, 180, 120, None, None]
    priced = replace(report, prices={H100.name: Fraction("2.5"), T4.name: Fraction(1, 3)})
    assert totals(figures(priced)).cost == 60 + 180 + 8
    without = replace(report, prices={})
    assert "COST" not in table(without)
    assert document(without)["totals"]["cost"] is None


def test_another_policy_is_named_and_has_a_column(report: Report) -> None:
    lines = table(replace(report, policy=USED)).splitlines()
    assert lines[1] == "Charged is what was used; where that is not known, what was allocated"
    assert lines[3].split()[-2:] == ["CHARGED", "COST(EUR)"]
    assert lines[4].split()[-2:] == ["12.000", "30.00"]
    assert document(replace(report, policy=MEMORY))["free"][0]["not_charged_gpu_hours"] == 144 - 18 - 72


def test_unknown_time_is_below_the_table_and_on_top_of_page(report: Report) -> None:
    found = replace(report.usage, unknown={T4.name: Fraction(5 * HOUR)})
    partial = replace(report, usage=found, problems=("node c: \x1b[31mred",), notes=("prices: none",))
    assert not partial.complete
    assert table(partial).splitlines()[-2:] == ["NOTE: prices: none", "NOT KNOWN: node c: \ufffd[31mred"]
    assert "(unknown)  -     Tesla T4               about 5.000" in table(partial)
    assert comma_separated(partial).splitlines()[-1].split(",")[2:7] == ["unknown", "", "", "Tesla T4", "5.000000"]
    assert "Not complete</h2><ul>\n<li>node c: \ufffd[31mred</li>" in page(partial)
    assert "Not complete" not in page(report)


class Reader(HTMLParser):
    """Refuses tags that are closed out of order, and notes what is there."""

    def __init__(self) -> None:
        super().__init__()
        self.open: list[str] = []
        self.seen: set[str] = set()
        self.links: list[tuple[str, str | None]] = []
        self.text = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.add(tag)
        self.links += [pair for pair in attrs if pair[0] in ("src", "href", "xlink:href") or pair[0].startswith("on")]
        if tag not in ("meta",):
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        self.text += data


@pytest.mark.attack
def test_page_is_complete_and_escapes_foreign_text() -> None:
    node, scrapes = Node(EVIL, {"g": H100._replace(name=EVIL)}, mode="vgpu"), Scrapes()
    node.at(START, share("g", EVIL, EVIL, 0.5, GIB), *(share("g", f"n{number}", "p", 0.01) for number in range(50)))
    for hour in (0, 1):
        scrapes.take(START + hour * HOUR, [node])
    sized, _ = oversized([Holding(Place("n", "g", EVIL, EVIL, "m", EVIL), GIB, 1.0, None, False)], 0.3, HOUR)
    found = usage(scrapes.pages(), window(START, START + 2 * HOUR))
    made = Report(
        found, "Prometheus", oversized=tuple(sized), problems=found.problems, currency=EVIL, prices={EVIL: Fraction(1)}
    )
    reader = Reader()
    reader.feed(page(made))
    assert reader.open == []
    assert not reader.links
    assert not {"img", "script", "a", "link", "iframe", "object"} & reader.seen
    assert "<img src=x onerror=alert(1)>" in reader.text
    assert "\x1b" not in page(made) + table(made)
    assert "url(" not in page(made)
    assert "default-src 'none'" in page(made)
    assert "@media print" in page(made)
    assert "prefers-color-scheme:dark" in page(made)
    assert "and 11 more" in reader.text


def test_bars_are_as_high_as_what_they_show(report: Report) -> None:
    layers = re.findall(r'height:([\d.]+)%" title="2025-11-22T00:00:00Z: ([^"]+)"', page(report))
    heights = [float(height) for height, _ in layers]
    assert [title for _, title in layers][::2] == ["team-b 24.000 GPU-hours", "free 32.000 GPU-hours"]
    # team-b, team-a and free: 24, 16 and 32 of 72.
    assert [height / sum(heights) for height in heights] == pytest.approx([24 / 72, 16 / 72, 32 / 72], abs=0.01)


def test_bars_of_namespaces_are_filled_as_far_as_they_were_used(report: Report) -> None:
    bars = re.findall(r'width:([\d.]+)%"><i class="(\w+)" style="width:([\d.]+)%', page(report))
    # team-b had 72 hours, whose use is not known, and team-a 48, of which it used 12.
    assert bars == [("100.00", "s0", "0.00"), ("66.67", "s1", "25.00")]


def test_a_long_period_has_few_times_below_its_chart() -> None:
    node, scrapes = Node("n", {"t": T4}), Scrapes()
    node.at(START, share("t", "team", "tiny", 0.5, GIB))
    for hour in range(0, 60 * 24 + 1):
        scrapes.take(START + hour * HOUR, [node])
    made = page(Report(usage(scrapes.pages(), window(START, START + 60 * 24 * HOUR)), "Prometheus"))
    shown = [made.count(f'<span class="{kind}">') for kind in ("time", "sparse")]
    # A time is 46 pixels wide, the chart 860 on a screen, and 300 on a phone, which shows no sparse ones.
    assert 4 <= shown[0] <= 300 // 46
    assert 12 <= sum(shown) <= 860 // 46


def test_a_report_of_nothing_can_be_shown() -> None:
    nothing = Report(usage({}, window(START, START + HOUR)), "Prometheus", problems=("nothing",))
    assert "TOTAL" in table(nothing)
    assert document(nothing)["totals"]["capacity_gpu_hours"] == 0
    Reader().feed(page(nothing))


@pytest.mark.parametrize("text", ["=1+1", "+x", "-x", "@x"])
def test_no_cell_is_a_formula(report: Report, text: str) -> None:
    assert f",'{text}\n" in comma_separated(replace(report, currency=text))


GIVEN = [
    holding("used", 8 * GIB, 4 * GIB),
    holding("half-known", 8 * GIB, GIB, uuid="a"),
    holding("half-known", 8 * GIB, None, uuid="b"),
    holding("young", 8 * GIB, 0, 60),
    holding("idle", 8 * GIB, 0, None),
    holding("mps", 8 * GIB, 1.5 * GIB, mode="mps"),
    holding("whole", 80 * GIB, 0, whole=True, mode="pgpu", uuid="a"),
    holding("whole", 80 * GIB, 10 * GIB, whole=True, mode="pgpu", uuid="b"),
]


def test_pods_that_asked_for_too_much_are_told_what_is_enough() -> None:
    found, unknown = oversized(GIVEN, 0.3, HOUR)
    assert unknown == 1
    assert [(pod.pod, pod.advice) for pod in found] == [
        (
            "whole",
            "1 of 2 GPUs were not used. Ask for a share of 12 GiB of one GPU, or a MIG device of that size.",
        ),
        ("idle", "No memory was used. Delete the pod, or start it only when it is needed."),
        ("mps", "Ask for nvidia.com/mps-memory: 2 (2 GiB)."),
    ]
    assert [text for pod in found for text in complaints_of_message(pod.advice)] == []
    assert [pod.pod for pod in oversized(GIVEN, 0.6, 0)[0]] == ["whole", "idle", "young", "mps", "used"]


@pytest.mark.parametrize(
    ("held", "listed", "unknown"),
    [
        ([(0, "a", 0.5), (1, "b", 0.5), (2, "c", 0.5), (26, "d", 10)], [], 0),
        ([(24, "a", 10), (26, "b", 0.5)], [], 0),
        ([(1, "a", 0.5), (26, "b", 2)], [(16, 2)], 0),
        ([(1, "a", None), (26, "b", 2)], [(16, 2)], 0),
        ([(24, "a", 2), (26, "b", None)], [], 1),
        ([(24, "a", 3), (24, "b", 1), (26, "b", 1), (26, "c", 1)], [(32, 4)], 0),
    ],
    ids=["restarts", "idle-now", "wasteful", "told-of-last", "untold-of-last", "two-at-once"],
)
def test_pod_with_successive_gpus_asked_for_those_of_one_time(
    held: list[tuple[int, str, float | None]], listed: list[tuple[int, int]], unknown: int
) -> None:
    held_since = [
        holding("train-0", 16 * GIB, None if peak is None else peak * GIB, 2 * HOUR, uuid=uuid, until=until * HOUR)
        for until, uuid, peak in held
    ]
    found, not_known = oversized(held_since, 0.3, HOUR)
    assert [(pod.asked_bytes / GIB, pod.peak_bytes / GIB) for pod in found] == listed
    assert not_known == unknown


@pytest.mark.parametrize("text", ["NaN", "+Inf", "-1", "x", "1e999999999"])
def test_what_is_no_amount_is_none(text: str) -> None:
    assert number(text) is None


def test_amounts_are_exactly_what_is_written() -> None:
    assert number("0.1") == Fraction(1, 10)
    assert number("1e-999999999") == 0
    assert number("1.5e+09") == 1_500_000_000


def test_pages_are_kept_as_they_were() -> None:
    node, scrapes = Node("n", {"g": H100, "h": T4}), Scrapes()
    node.at(START, share("g", "team", "p", 1 / 3, GIB))
    scrapes.take(START + 7, [node])
    (told,) = scrapes.pages()["n"]
    assert decode(encode({"n": told})) == {"n": replace(told, source="kept")}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('{"version": 2}', "it is of version 2, and this reads 1"),
        ("[]", "it is not what an earlier report kept"),
        ("{", "it is not what an earlier report kept"),
        ('{"version": 1, "nodes": {"a": {"at": 1, "capacity": {"m": "1/0"}, "charges": [], "gpus": {}}}}', "not what"),
    ],
)
def test_what_nobody_kept_is_refused(text: str, message: str) -> None:
    with pytest.raises(StateError, match=message):
        decode(text)


def test_silent_nodes_usage_is_in_the_next_report_with_it() -> None:
    def told(at: int, **seconds: int) -> dict[str, Page]:
        return {name: Page(START + at, "", {"T4": Fraction(amount)}) for name, amount in seconds.items()}

    first, second, third = told(0, a=100, b=50), told(100, a=200), told(200, a=300, b=250)
    kept = to_keep(second, first)
    silent = usage(together(second, first), period(second, first, START + 101))
    again = usage(together(third, kept), period(third, kept, START + 201))
    assert (sum(silent.capacity.values()), sum(again.capacity.values())) == (100, 100 + 200)
    assert sum(usage(together(first, None), period(first, None, START)).capacity.values()) == 150
