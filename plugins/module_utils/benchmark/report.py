# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The report of a benchmark: rows of this run and of earlier ones as table, CSV, and JSON. Pure.

What is lost is told against an ideal: a pod that is due half of a GPU should take twice as long as one that has it all.
"""

from __future__ import annotations

import math
import statistics
from dataclasses import asdict, dataclass, field
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from ..shared import printable
from ..shared.columns import columns
from ..shared.reading import read_object
from .rows import WHOLE, Environment, Row

VERSION = 1
_MOST_TEXT = 16 << 20
_MOST_ROWS = 10_000
_DECIMALS = 3
_APART = 0.9
"""Pods that ran side by side for less of their time had more of the GPU than their share."""
_TEXTS = ("layout", "against", "date", "note", "problem")
_NUMBERS = ("share", "seconds", "slowest_seconds", "ideal_seconds", "loss_percent", "overlap_percent")
_WHOLES = ("sharers", "pods", "runs")
_ALIKE = ("gpu", "driver", "image", "command", "figure")
"""Figures are compared where these are equal."""
COLUMNS = ("layout", *_WHOLES, *_NUMBERS, "against", "date", "note", "problem")


class EarlierError(ValueError):
    """What is to be an earlier report is none. Says why."""


@dataclass(frozen=True)
class Workload:
    """What the pods of all rows ran."""

    image: str
    command: Tuple[str, ...] = ()
    figure: str = ""

    def document(self) -> Dict[str, Any]:
        """Return it as rows have it among their environment."""
        return {"image": self.image, "command": " ".join(self.command), "figure": self.figure}


@dataclass(frozen=True)
class Outcome:
    """What a row came to."""

    row: Row
    runs: Tuple[Tuple[float, ...], ...] = ()
    """Seconds of the pods of each run."""
    overlaps: Tuple[Optional[float], ...] = ()
    problem: str = ""
    date: str = ""


@dataclass(frozen=True)
class Report:
    """All that is reported."""

    rows: Tuple[Mapping[str, Any], ...]
    notes: Tuple[str, ...] = field(default=())

    @property
    def problems(self) -> List[str]:
        """Return what could not be measured."""
        return [f"{row['layout']}: {row['problem']}" for row in self.rows if row["problem"]]


def report(
    outcomes: Sequence[Outcome],
    environment: Environment,
    workload: Workload,
    earlier: Sequence[Mapping[str, Any]] = (),
    notes: Sequence[str] = (),
) -> Report:
    """Return the rows of this run after those of earlier ones, each with what it lost against the whole GPU."""
    around = {**asdict(environment), **workload.document()}
    new = [_row(outcome, around) for outcome in outcomes]
    taken = {_identity(row) for row in new}
    kept = [dict(row) for row in earlier if _identity(row) not in taken]
    rows = [*kept, *new]
    return Report(tuple(_compared(row, rows) for row in rows), tuple(notes))


def read_earlier(value: object) -> List[Dict[str, Any]]:
    """Return the rows of an earlier report, by its text or as data. Raises EarlierError."""
    try:
        said = read_object(value, _MOST_TEXT) if isinstance(value, str) else value
    except ValueError as error:
        raise EarlierError(str(error)) from error
    if not isinstance(said, Mapping) or said.get("version") != VERSION or not isinstance(said.get("rows"), list):
        raise EarlierError(f"it is not a report of version {VERSION} of this playbook")
    if len(said["rows"]) > _MOST_ROWS:
        raise EarlierError(f"it has more than {_MOST_ROWS} rows")
    return [_readable(row, number) for number, row in enumerate(said["rows"], 1)]


def document(found: Report) -> Dict[str, Any]:
    """Return the report as JSON has it."""
    return {
        "version": VERSION,
        "rows": [dict(row) for row in found.rows],
        "notes": list(found.notes),
        "problems": found.problems,
    }


def comma_separated(found: Report) -> str:
    """Return the report as CSV: a row each, with its environment in the last columns."""
    around = list(dict.fromkeys(name for row in found.rows for name in row["environment"]))
    body = [
        [
            *("" if row[name] is None else row[name] for name in COLUMNS),
            *(row["environment"].get(n, "") for n in around),
        ]
        for row in found.rows
    ]
    return printable.comma_separated([[*COLUMNS, *around], *body])


def table(found: Report) -> str:
    """Return a terminal's table: the rows of one environment after those of another."""
    lines: List[str] = []
    groups: Dict[Tuple[Any, ...], List[Mapping[str, Any]]] = {}
    for row in found.rows:
        groups.setdefault(tuple(row["environment"].get(name) for name in _ALIKE), []).append(row)
    for rows in groups.values():
        around = rows[0]["environment"]
        command = f" {around.get('command')}" if around.get("command") else ""
        lines += [f"{around.get('gpu')}, driver {around.get('driver')}: {around.get('image')}{command}", ""]
        lines += [*columns([_HEAD, *map(_cells, rows)], right=_FIGURES), ""]
        against = {row["against"] for row in rows if row["against"]}
        lines += [f"Loss is against {', '.join(sorted(against))} of the same GPU, driver and workload."] * bool(against)
        for row in rows:
            lines += [f"NOTE: {row['layout']}: {row['note']}"] * bool(row["note"])
            lines += [f"NOT MEASURED: {row['layout']}: {row['problem']}"] * bool(row["problem"])
    lines += [f"NOTE: {note}" for note in found.notes]
    return "\n".join(printable.lines(lines)) + "\n"


def planned(rows: Iterable[Row], environment: Environment, workload: Workload, left_out: Iterable[str]) -> List[str]:
    """Return what would run, for check mode."""
    command = f" {' '.join(workload.command)}" if workload.command else ""
    lines = [f"{environment.node}, {environment.gpus} x {environment.gpu}, driver {environment.driver}"]
    lines += [f"Would run {workload.image}{command}"]
    lines += [
        f"Would run {row.name}: {row.pods} pod(s) with {', '.join(f'{n} {name}' for name, n in row.asks.items())}"
        for row in rows
    ]
    return printable.lines([*lines, *(f"Would leave out {text}" for text in left_out)])


_HEAD = ("LAYOUT", "PODS", "SHARE(%)", "SECONDS", "SLOWEST", "IDEAL", "LOSS(%)", "TOGETHER(%)", "MODE", "DATE")
_FIGURES = range(1, 8)
"""Columns of the head that have figures."""


def _cells(row: Mapping[str, Any]) -> List[str]:
    return [
        str(row["layout"]),
        str(row["pods"]),
        _shown(100 * row["share"], 1),
        *(_shown(row[name], 3) for name in ("seconds", "slowest_seconds", "ideal_seconds")),
        _shown(row["loss_percent"], 1),
        _shown(row["overlap_percent"], 0),
        str(row["environment"].get("mode", "")),
        str(row["date"])[:10],
    ]


def _shown(value: Optional[float], decimals: int) -> str:
    return "-" if value is None else f"{value:.{decimals}f}"


def _row(outcome: Outcome, environment: Mapping[str, Any]) -> Dict[str, Any]:
    row, means = outcome.row, [statistics.fmean(run) for run in outcome.runs]
    overlap = (
        None if None in outcome.overlaps else min((each for each in outcome.overlaps if each is not None), default=None)
    )
    notes = []
    if overlap is not None and overlap < _APART:
        notes.append(
            f"its pods ran at the same time for {100 * overlap:.0f} % of their time, so the real loss is larger;"
            " give them more work"
        )
    seconds = statistics.median_high(means) if means else None
    return {
        "layout": row.name,
        "sharers": row.sharers,
        "pods": row.pods,
        "runs": len(means),
        "share": float(row.share),
        "seconds": _rounded(seconds),
        "slowest_seconds": _rounded(max((max(run) for run in outcome.runs), default=None)),
        "overlap_percent": None if overlap is None else round(100 * overlap, 1),
        "date": outcome.date,
        "note": "; ".join(notes),
        "problem": outcome.problem,
        "environment": dict(environment),
    }


def _compared(row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> Dict[str, Any]:
    """Return a row with its ideal by the whole GPU, or else by what one pod of the same mode took."""
    base = _base(row, rows)
    ideal = loss = None
    if base is not None and row["share"] > 0:
        ideal = base["seconds"] * base["share"] / row["share"]
        loss = None if row["seconds"] is None else 100 * (row["seconds"] / ideal - 1)
    return {
        **row,
        "ideal_seconds": _rounded(ideal),
        "loss_percent": None if loss is None else round(loss, 2),
        "against": "" if base is None else base["layout"],
    }


def _base(row: Mapping[str, Any], rows: Sequence[Mapping[str, Any]]) -> Optional[Mapping[str, Any]]:
    alike = [each for each in rows if _workload(each) == _workload(row) and each["seconds"]]
    whole = [each for each in alike if each["layout"] == WHOLE]
    # One pod that a mode gives all of a GPU; of time-slices and MPS one that nobody shares with.
    kind = str(row["layout"]).rpartition(" ")[0]
    alone = [each for each in alike if each["share"] == 1 and each["layout"] == f"{kind} x1"]
    found = [*whole, *alone]
    return found[0] if found else None


def _workload(row: Mapping[str, Any]) -> Tuple[Any, ...]:
    return tuple(row["environment"].get(name) for name in _ALIKE)


def _identity(row: Mapping[str, Any]) -> Tuple[Any, ...]:
    return (row["layout"], *_workload(row))


def _rounded(value: Optional[float]) -> Optional[float]:
    return None if value is None else round(value, _DECIMALS)


def _readable(row: object, number: int) -> Dict[str, Any]:
    """Return a row of an earlier report. Raises EarlierError."""
    if not isinstance(row, Mapping) or not isinstance(row.get("environment"), Mapping):
        raise EarlierError(f"its row {number} has no environment")
    for name in _TEXTS:
        if not isinstance(row.get(name), str):
            raise EarlierError(f"its row {number}: {name} is not text")
    for name in (*_NUMBERS, *_WHOLES):
        value = row.get(name)
        needed = name in ("share", *_WHOLES)
        if value is None and not needed:
            continue
        if isinstance(value, bool) or not isinstance(value, (int, float)) or not math.isfinite(value):
            raise EarlierError(f"its row {number}: {name} is not a number")
    if not 0 < row["share"] <= 1 or (row.get("seconds") is not None and row["seconds"] <= 0):
        raise EarlierError(f"its row {number}: share and seconds are above 0, and no share above 1")
    environment = {str(name): value for name, value in row["environment"].items() if isinstance(value, (str, int))}
    kept = {name: row.get(name) for name in COLUMNS}
    return {**kept, "environment": environment}
