# SPDX-License-Identifier: Apache-2.0
"""``make bench BENCH=interposer``: what the interposer adds to the simulated driver's calls, and how it keeps a share.

Calls through the interposer and past it take turns in one process, so that what the machine does meanwhile hits both.
A share is measured in virtual time, where it is the algorithm's own error, and in real time, where it is also the
machine's. The simulated driver's calls are much cheaper than a real one's; what is added does not depend on that, but
for the events of a batch of launches.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import sim.clock
import sim.cuda
import sim.nvml
from bench.measure import Result, report
from gpu.driver import PTX
from kube_accel.enforce.policy import Limit
from native.conftest import GIB, NATIVE, Container, Libraries, build_shim
from sim.nvml import profiles

TESTS = Path(__file__).parents[1]
QUOTAS = (10, 30, 50, 90)


@dataclass(frozen=True, slots=True)
class Effort:
    """Rounds of 32 calls each way; seconds of load for each share, virtual and real."""

    rounds: int = 4000
    virtual_seconds: int = 20
    real_seconds: int = 8


class Rig:
    """Libraries, programs and containers under one directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        driver = sim.cuda.build(root / "driver").parent
        sim.nvml.build(driver)
        self.libraries = Libraries(build_shim(root / "shim"), driver)
        self.clock = sim.clock.build(root)
        (root / "spin.ptx").write_bytes(PTX)
        command = ["gcc", "-std=gnu11", "-O2", f"-I{sim.cuda.HERE}", f"-I{NATIVE}", "-pthread"]
        for name in ("cost", "load"):
            subprocess.run([*command, "-o", root / name, TESTS / "native" / f"{name}.c", "-ldl"], check=True)

    def container(self, percent: int) -> Container:
        topology = profiles.h100("bench")
        limits = [Limit(topology.gpus[0].uuid, 8 * GIB, percent)]
        return Container(Path(tempfile.mkdtemp(dir=self.root)) / "container", self.libraries, topology, limits)

    def run(self, container: Container, name: str, *words: str, **environment: str) -> dict[str, Any]:
        command = [self.root / name, *words]
        ran = subprocess.run(
            command, env={**container.environment, **environment}, check=True, stdout=subprocess.PIPE, text=True
        )
        answer: dict[str, Any] = json.loads(ran.stdout)
        return answer

    def cost(self, container: Container, call: str, rounds: int) -> dict[str, Any]:
        driver = self.libraries.driver / sim.cuda.LIBRARY
        return self.run(container, "cost", str(driver), call, str(rounds), str(self.root / "spin.ptx"))

    def share(self, percent: int, seconds: int, virtual: bool) -> float:
        container = self.container(percent)
        clock = {"LD_PRELOAD": str(self.clock), "SIMCLOCK_FILE": str(container.root / "clock")} if virtual else {}
        return float(self.run(container, "load", str(seconds), "2000", **clock)["share"])


def measure(root: Path, effort: Effort) -> list[Result]:
    """All rows; leaves files in ``root``."""
    rig, results = Rig(root), []
    for metric, call, percent, gate in (
        ("call_added_seconds", "query", 0, "off"),
        ("told_added_seconds", "told", 0, "off"),
        ("launch_added_seconds", "launch", 0, "off"),
        ("launch_added_seconds", "launch", 99, "on"),
        ("alloc_added_seconds", "alloc", 0, "off"),
    ):
        container = rig.container(percent)
        cost = rig.cost(container, call, effort.rounds)
        throttled = container.work().throttled_ns
        note = (
            f"mean without the outer tenths; median {cost['added_ns']:.0f} ns, quartiles {cost['low_ns']:.0f} to "
            f"{cost['high_ns']:.0f} ns, {effort.rounds} rounds of 32; a direct call {cost['direct_ns']:.0f} ns"
        )
        note += f"; throttled {throttled / 1e6:.1f} ms" if throttled else ""
        results.append(Result("interposer", metric, cost["mean_ns"] / 1e9, {"gate": gate}, note))
    for virtual, seconds in ((True, effort.virtual_seconds), (False, effort.real_seconds)):
        for percent in QUOTAS:
            share = rig.share(percent, seconds, virtual)
            clock = "virtual" if virtual else "real"
            note = f"got {share:.2%} of the GPU in the second half of {seconds} s, kernels of 2 ms"
            params = {"quota": percent, "clock": clock}
            results.append(Result("interposer", "quota_error_ratio", abs(share - percent / 100), params, note))
    return results


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.interposer", description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a fraction of the rounds and seconds")
    effort = Effort(200, 4, 1) if parser.parse_args().quick else Effort()
    with tempfile.TemporaryDirectory() as root:
        results = measure(Path(root), effort)
    report(results)


if __name__ == "__main__":
    main()
