# SPDX-License-Identifier: Apache-2.0
"""What docs/explanation/sharing.md says that sharing costs is what was measured."""

from __future__ import annotations

import re
from pathlib import Path

DOCS = Path(__file__).parents[3] / "docs"
PAGES = {name: (DOCS / f"measurements/{name}.md").read_text() for name in ("plugin", "extender", "cluster")}


def cost(of: str) -> str:
    """The figures of a row, as they are shown."""
    (row,) = re.findall(rf"^\| {of}.*? \| (.*?) \|", (DOCS / "explanation/sharing.md").read_text(), re.MULTILINE)
    return str(row)


def pods_per_second() -> list[tuple[float, float]]:
    """With the extender and without, of each run."""
    bench = [
        float(re.findall(rf"^{who} +nodes=100 .*pods_per_second +([\d.]+)", PAGES["extender"], re.MULTILINE)[0])
        for who in ("kube-accel", "kube-scheduler alone")
    ]
    rows = {
        who: [
            re.findall(r"\d+", cell)
            for cell in re.findall(rf"^\| {who} \| ([\d, ]+) \|", PAGES["cluster"], re.MULTILINE)
        ]
        for who in ("with the extender, local layout", "alone")
    }
    with_it, alone = ([float(each) for cell in cells for each in cell] for cells in rows.values())
    return [(bench[0], bench[1]), *zip(with_it, alone, strict=True)]


def test_pods_per_second_are_those_of_every_run() -> None:
    runs = pods_per_second()
    parts = [100 * with_it / alone for with_it, alone in runs]
    said = f"{min(parts):.0f} to {max(parts):.0f} %"
    assert len(runs) == 4
    assert cost("pods that kube-scheduler binds").startswith(f"{said} in [four runs]")
    assert f"{parts[0]:.0f} % of the pods" in PAGES["extender"]
    assert said in PAGES["extender"]


def test_allocations_take_as_long_as_was_measured() -> None:
    seen = dict(
        re.findall(
            r"^kube-accel +gpus=(\d+) mode=pgpu +allocate_p99_seconds +([\d.]+) ms", PAGES["plugin"], re.MULTILINE
        )
    )
    assert re.findall(r"([\d.]+) ms with (\d+)", cost("kubelet's `Allocate` of a whole GPU")) == [
        (seen[gpus], gpus) for gpus in ("8", "16")
    ]


def test_both_runs_of_two_busy_shares_are_told() -> None:
    measured = re.findall(r"([\d.]+ and [\d.]+) %: \*\*(\d+ % off)", (DOCS / "measurements/gpu.md").read_text())
    page = (DOCS / "explanation/sharing.md").read_text()
    assert len(measured) == 2
    assert [f"{shares} %: ratio {off} |" in page for shares, off in measured] == [True, True]
    low, high = sorted(shares.split(" and ")[0] for shares, _ in measured)
    assert f"{low} and {high} %" in page


def test_figures_of_an_earlier_release_say_so() -> None:
    assert ("and not since" in cost("kubelet's `Allocate` of a share")) == ("and not since" in PAGES["plugin"])
