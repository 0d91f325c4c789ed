# SPDX-License-Identifier: Apache-2.0
"""Samples, the cost of a process tree, and how results are shown."""

from __future__ import annotations

import json
import math
import os
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

PROC = Path("/proc")


@dataclass(frozen=True, slots=True)
class Series:
    """Sorted samples in seconds, taken after ``warm_up`` calls that do not count."""

    samples: tuple[float, ...]
    warm_up: int

    def quantile(self, share: float) -> float:
        """The smallest sample that ``share`` of all samples do not exceed."""
        return self.samples[max(0, math.ceil(share * len(self.samples)) - 1)]

    @property
    def counts(self) -> str:
        return f"{len(self.samples)} samples after {self.warm_up}"


def series(call: Callable[[], float], samples: int, warm_up: int, seconds: float = math.inf) -> Series:
    """Run ``call``, which answers what it took, so often; a quarter of ``seconds`` ends the warm-up, all of it both."""
    begin = time.monotonic()
    warmed = 0
    while warmed < warm_up and time.monotonic() < begin + seconds / 4:
        call()
        warmed += 1
    taken = [call()]
    while len(taken) < samples and time.monotonic() < begin + seconds:
        taken.append(call())
    return Series(tuple(sorted(taken)), warmed)


def process_tree(root: int) -> list[int]:
    """``root`` and its living descendants."""
    children: defaultdict[int, list[int]] = defaultdict(list)
    for entry in PROC.iterdir():
        if entry.name.isdecimal():
            try:
                children[int(_stat(int(entry.name))[1])].append(int(entry.name))
            except OSError:
                continue
    tree = [root]
    for pid in tree:
        tree += children[pid]
    return tree


def cpu_seconds(root: int) -> float:
    """Processor time of the tree so far, children that have ended included."""
    ticks = sum(int(field) for pid in process_tree(root) for field in _stat(pid)[11:15])
    return ticks / os.sysconf("SC_CLK_TCK")


def _stat(pid: int) -> list[str]:
    """The fields after the command's name, which may hold blanks: state, parent, ... (proc(5) number minus 3)."""
    return (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()


def pss_bytes(root: int) -> int:
    """PSS of the tree, counted as if no other process used its files.

    The kernel's own sum would leave part of Python and gRPC to whoever else on this machine runs them, the bench
    among them. A page of a file that several processes of the tree use counts once.
    """
    anonymous = 0
    files: dict[tuple[str, ...], int] = {}
    for pid in process_tree(root):
        for mapping, sizes in _mappings((PROC / str(pid) / "smaps").read_text()):
            if mapping[-1] == "0":
                anonymous += sizes["Pss"]
                continue
            anonymous += sizes["Anonymous"]
            files[mapping] = max(files.get(mapping, 0), sizes["Rss"] - sizes["Anonymous"])
    return (anonymous + sum(files.values())) * 1024


def _mappings(smaps: str) -> list[tuple[tuple[str, ...], dict[str, int]]]:
    """Each mapping's offset, device and inode, and its sizes in KiB."""
    mappings: list[tuple[tuple[str, ...], dict[str, int]]] = []
    for line in smaps.splitlines():
        words = line.split()
        if not words[0].endswith(":"):
            mappings.append((tuple(words[2:5]), {}))
        elif words[-1] == "kB":
            mappings[-1][1][words[0][:-1]] = int(words[1])
    return mappings


@dataclass(frozen=True, slots=True)
class Result:
    """One measured value; ``note`` is for people."""

    bench: str
    metric: str
    value: float
    params: Mapping[str, int | str]
    note: str = ""
    peer: str = ""

    def json(self) -> str:
        document: dict[str, object] = {
            "bench": self.bench,
            "metric": self.metric,
            "value": self.value,
            "params": dict(self.params),
        }
        return json.dumps(document | ({"peer": self.peer} if self.peer else {}))


def readable(metric: str, value: float) -> str:
    if metric.endswith("_bytes"):
        return f"{value / 2**20:.1f} MiB"
    if metric.endswith("_ratio"):
        return f"{value:.2%}"
    if metric.endswith("_per_second"):
        return f"{value:.1f}"
    if metric.endswith(("_tasks", "_count")):
        return f"{value:.0f}"
    return f"{value * 1000:.2f} ms" if abs(value) >= 1e-5 else f"{value * 1e9:.0f} ns"


def report(results: Sequence[Result]) -> None:
    """Print them, for people and then a line of JSON each."""
    print(table(results))
    for result in results:
        print(result.json())


def table(results: Sequence[Result]) -> str:
    """Rows for people; figures of several benchmarks get a column with the benchmark."""
    several = len({result.bench for result in results}) > 1
    head = ("bench",) * several + ("who", "params", "metric", "value", "")
    rows = [
        (
            *((result.bench,) * several),
            result.peer or "kube-accel",
            " ".join(f"{name}={value}" for name, value in result.params.items()),
            result.metric,
            readable(result.metric, result.value),
            result.note,
        )
        for result in results
    ]
    widths = [max(len(row[column]) for row in [head, *rows]) for column in range(len(head))]
    return "\n".join(
        "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip() for row in [head, *rows]
    )
