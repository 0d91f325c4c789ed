# SPDX-License-Identifier: Apache-2.0
"""``make bench``: every benchmark that this machine can run, one after the other, and one table of all figures.

A benchmark that cannot run, or fails, is named with the reason; the others run all the same.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
import tempfile
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench import controller, dra, extender, interposer, metrics, packing, plugin, scheduler
from bench.measure import Result, report
from cluster.control_plane import missing
from kube_accel.model import Mode

HOSTS, FORKS = (20, 50), 10
"""Hosts of the two sites that the controller runs on, one after the other."""
NODES, PODS = 100, 1000
"""Of the cluster in which kube-scheduler places pods."""


@dataclass(frozen=True, slots=True)
class Bench:
    """A benchmark: its name, what this machine lacks for it, if anything, and what runs it."""

    name: str
    lacks: Callable[[], str]
    run: Callable[[], Sequence[Result]]


@dataclass(slots=True)
class Outcome:
    """The figures of all benchmarks, and a line for each that could not run or that failed."""

    results: list[Result] = field(default_factory=list)
    skipped: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)


def gcc() -> str:
    return "" if shutil.which("gcc") else "no gcc"


def _interposer() -> list[Result]:
    with tempfile.TemporaryDirectory() as root:
        return interposer.measure(Path(root), interposer.Effort())


def _packing() -> list[Result]:
    found = packing.packed()
    for miss in (miss for each in found for miss in each.misses):
        plugin.say(f"packing: {miss}")
    return packing.results(found)


def _controller() -> list[Result]:
    logs = controller.REPOSITORY / ".build" / "bench"
    logs.mkdir(parents=True, exist_ok=True)
    return [result for hosts in HOSTS for result in controller.measure(hosts, FORKS, logs)[0]]


def _plugin(mode: Mode) -> Bench:
    return Bench(f"plugin {mode.value}", gcc, lambda: plugin.measured([mode], [("", plugin.ours)]))


def benches(peer: Path) -> list[Bench]:
    """All benchmarks, in the order in which they run; ``peer`` is the binary of NVIDIA's device plugin."""
    return [
        _plugin(Mode.PGPU),
        Bench(
            plugin.PEER,
            lambda: plugin.no_peer(peer) or gcc(),
            lambda: plugin.measured([Mode.PGPU], [(plugin.PEER, plugin.peer(peer))]),
        ),
        *(_plugin(mode) for mode in Mode if mode is not Mode.PGPU),
        Bench(
            "metrics",
            gcc,
            lambda: [found for mode in metrics.MODES for found in metrics.measure(mode, metrics.Effort())],
        ),
        Bench("dra", gcc, lambda: dra.measure(dra.Effort())),
        Bench(
            "extender",
            str,
            lambda: [found for size in extender.SIZES for found in extender.measure(size, extender.Effort())],
        ),
        Bench("scheduler", missing, lambda: scheduler.pods_per_second(NODES, PODS, scheduler.ROUNDS)),
        Bench("packing", missing, _packing),
        Bench("interposer", gcc, _interposer),
        Bench("controller", gcc, _controller),
    ]


def run(wanted: Sequence[Bench]) -> Outcome:
    """Run all that can run; a benchmark that raises is told of, and the next one runs."""
    outcome = Outcome()
    for bench in wanted:
        if reason := bench.lacks():
            outcome.skipped.append(f"{bench.name}: {reason}")
            continue
        plugin.say(f"{bench.name}: load average {os.getloadavg()[0]:.1f}")
        try:
            outcome.results += bench.run()
        except Exception as error:
            traceback.print_exc()
            outcome.failed.append(f"{bench.name}: {type(error).__name__}: {error}")
    return outcome


def main(arguments: Sequence[str] | None = None, make: Callable[[Path], Sequence[Bench]] = benches) -> int:
    """Print load, table, JSON lines, and what did not run; return 1 when a benchmark failed."""
    parser = argparse.ArgumentParser(prog="bench", description="Run every benchmark that this machine can run.")
    parser.add_argument("--peer", type=Path, default=plugin.PEER_PATH, help="NVIDIA's binary (default: %(default)s)")
    names = [bench.name for bench in make(plugin.PEER_PATH)]
    parser.add_argument("--only", action="append", choices=names, help="only this benchmark; may be repeated")
    options = parser.parse_args(arguments)
    load = f"{os.cpu_count()} cores, load average {os.getloadavg()[0]:.1f} before"
    outcome = run([bench for bench in make(options.peer) if bench.name in (options.only or names)])
    print(f"{load} and {os.getloadavg()[0]:.1f} after")
    report(outcome.results)
    for word, lines in (("not run", outcome.skipped), ("failed", outcome.failed)):
        for line in lines:
            print(f"{word}: {line}", file=sys.stderr)
    return 1 if outcome.failed else 0


if __name__ == "__main__":
    sys.exit(main())
