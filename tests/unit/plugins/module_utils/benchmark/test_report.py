# SPDX-License-Identifier: Apache-2.0
"""What a report of a benchmark says: losses against the whole GPU, rows of earlier runs, and its three forms."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils.benchmark.report import (
    COLUMNS,
    EarlierError,
    Outcome,
    Report,
    Workload,
    comma_separated,
    document,
    planned,
    read_earlier,
    report,
    table,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.benchmark.rows import Environment, Row
from hypothesis import given
from hypothesis import strategies as st

from odd_values import Path, cases, fields_read, with_value

HERE = Environment("a", "Card", 1, 24576, "580.1", "pgpu")
WORK = Workload("kube-accel:1", ("kube-accel", "benchmark"), "(x)")
WHOLE = Row("whole", 1, 1, Fraction(1), {"nvidia.com/gpu": 1})


def sliced(sharers: int) -> Row:
    return Row("time-slices", sharers, sharers, Fraction(1, sharers), {"nvidia.com/gpu": 1})


def ran(row: Row, *seconds: float, overlap: float | None = 1.0) -> Outcome:
    """As many runs as there are seconds, in which all pods took as long."""
    return Outcome(row, tuple((each,) * row.pods for each in seconds), (overlap,) * len(seconds), date="2026-11-28")


def of(*outcomes: Outcome, earlier: Any = None, where: Environment = HERE, work: Workload = WORK) -> Report:
    return report(outcomes, where, work, read_earlier(earlier) if earlier else ())


def losses(found: Report) -> dict[str, float | None]:
    return {str(row["layout"]): row["loss_percent"] for row in found.rows}


def test_loss_is_told_against_the_whole_gpu() -> None:
    found = of(ran(WHOLE, 10), ran(sliced(1), 10.1), ran(sliced(2), 27), ran(sliced(4), 54))
    assert losses(found) == {"whole": 0, "time-slices x1": 1, "time-slices x2": 35, "time-slices x4": 35}
    assert [row["ideal_seconds"] for row in found.rows] == [10, 10, 20, 40]


def test_without_a_whole_gpu_one_alone_is_the_measure() -> None:
    found = of(ran(sliced(1), 10), ran(sliced(2), 22))
    assert losses(found) == {"time-slices x1": 0, "time-slices x2": 10}
    assert {row["against"] for row in found.rows} == {"time-slices x1"}


def test_without_either_no_loss_is_known() -> None:
    found = of(ran(Row("MIG", 1, 7, Fraction(1, 7), {}, "1g.5gb"), 70))
    assert losses(found) == {"MIG 1g.5gb": None}
    assert "MIG 1g.5gb" in table(found)


def test_mig_devices_lose_against_their_slices() -> None:
    found = of(ran(WHOLE, 10), ran(Row("MIG", 1, 1, Fraction(1), {}, "7g.40gb"), 10.9))
    assert losses(found)["MIG 7g.40gb"] == 9


@given(st.floats(0.5, 1e5), st.integers(1, 100), st.floats(0.5, 4))
def test_what_takes_as_long_as_its_share_says_loses_nothing(whole: float, sharers: int, factor: float) -> None:
    found = of(ran(WHOLE, whole), ran(sliced(sharers), whole * sharers * factor))
    assert found.rows[1]["loss_percent"] == pytest.approx(100 * (factor - 1), abs=0.5)


def test_seconds_are_the_median_of_runs_and_the_slowest_is_told() -> None:
    row = of(ran(WHOLE, 10, 30, 11)).rows[0]
    assert (row["runs"], row["seconds"], row["slowest_seconds"]) == (3, 11, 30)


def test_pods_that_ran_apart_are_noted() -> None:
    found = of(ran(sliced(2), 10, overlap=0.5))
    assert "ran at the same time for 50 % of their time" in found.rows[0]["note"]
    assert "NOTE: time-slices x2: its pods ran at the same time" in table(found)
    assert of(ran(sliced(2), 10, overlap=None)).rows[0]["overlap_percent"] is None


def test_what_was_not_measured_is_a_problem_and_keeps_its_row() -> None:
    found = of(ran(WHOLE, 10), Outcome(sliced(2), problem="a pod failed"))
    assert found.problems == ["time-slices x2: a pod failed"]
    assert "NOT MEASURED: time-slices x2: a pod failed" in table(found)
    assert losses(found)["time-slices x2"] is None


def test_earlier_rows_stay_and_those_measured_again_are_replaced() -> None:
    first = document(of(ran(WHOLE, 10), ran(sliced(2), 99)))
    found = of(ran(sliced(2), 27), earlier=json.dumps(first))
    assert losses(found) == {"whole": 0, "time-slices x2": 35}
    assert losses(of(earlier=first)) == losses(of(ran(WHOLE, 10), ran(sliced(2), 99)))


@pytest.mark.parametrize(
    "other",
    [
        {"where": Environment("a", "Card", 1, 24576, "590.1", "pgpu")},
        {"where": Environment("a", "Other", 1, 24576, "580.1", "pgpu")},
        {"work": Workload("kube-accel:2", WORK.command, WORK.figure)},
        {"work": Workload(WORK.image, ("other",), WORK.figure)},
    ],
)
def test_what_is_not_alike_is_not_compared(other: dict[str, Any]) -> None:
    found = of(ran(sliced(2), 27), earlier=document(of(ran(WHOLE, 10))), **other)
    assert [row["layout"] for row in found.rows] == ["whole", "time-slices x2"]
    assert found.rows[1]["loss_percent"] is None
    assert table(found).count("LAYOUT") == 2


@pytest.mark.parametrize(
    "earlier",
    ["", "{", "[]", "{}", '{"version": 2, "rows": []}', '{"version": 1}', {"version": 1, "rows": [7]}, 7],
)
def test_what_is_no_earlier_report_is_refused(earlier: Any) -> None:
    with pytest.raises(EarlierError):
        read_earlier(earlier)


def shown(value: Any) -> Report:
    found = of(ran(sliced(2), 27), earlier=value)
    json.dumps(document(found))
    table(found)
    comma_separated(found)
    return found


EARLIER = document(of(ran(WHOLE, 10)))


@pytest.mark.parametrize(("path", "values"), cases(fields_read(EARLIER, shown)))
def test_an_odd_earlier_report_is_read_or_refused(path: Path, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        try:
            found = shown(with_value(EARLIER, path, value))
        except EarlierError:
            continue
        assert found.rows[-1]["layout"] == "time-slices x2", name


def test_csv_has_a_row_each_with_its_environment() -> None:
    found = of(ran(WHOLE, 10), Outcome(sliced(2), problem="=cmd()"))
    rows = list(csv.DictReader(io.StringIO(comma_separated(found))))
    assert list(rows[0])[: len(COLUMNS)] == list(COLUMNS)
    assert [(row["layout"], row["seconds"], row["driver"], row["image"]) for row in rows] == [
        ("whole", "10.0", "580.1", "kube-accel:1"),
        ("time-slices x2", "", "580.1", "kube-accel:1"),
    ]
    assert rows[1]["problem"] == "'=cmd()"


def test_table_says_what_ran_where_and_what_it_cost() -> None:
    lines = table(of(ran(WHOLE, 10), ran(sliced(2), 27))).splitlines()
    assert lines[0] == "Card, driver 580.1: kube-accel:1 kube-accel benchmark"
    assert lines[4].split() == [
        "time-slices",
        "x2",
        "2",
        "50.0",
        "27.000",
        "27.000",
        "20.000",
        "35.0",
        "100",
        "pgpu",
        "2026-11-28",
    ]
    assert "Loss is against whole of the same GPU, driver and workload." in lines


def test_a_plan_says_what_would_run_and_what_is_left_out() -> None:
    assert planned([sliced(2)], HERE, WORK, ["x8: too many"]) == [
        "a, 1 x Card, driver 580.1",
        "Would run kube-accel:1 kube-accel benchmark",
        "Would run time-slices x2: 2 pod(s) with 1 nvidia.com/gpu",
        "Would leave out x8: too many",
    ]
