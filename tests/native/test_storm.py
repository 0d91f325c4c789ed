# SPDX-License-Identifier: Apache-2.0
"""Many processes and threads at a limit, some of them killed; and the interposer under sanitizers."""

from __future__ import annotations

import json
import os
import random
import subprocess
from pathlib import Path

import pytest

import sim.cuda
from kube_accel.enforce.policy import Limit
from native.conftest import GIB, MIB, NATIVE, Container, Libraries, build_shim
from sim.nvml.topology import Topology

HERE = Path(__file__).parent
CONTEXT = 256 * MIB
PROCESSES, THREADS = 8, 4


def compiled(out: Path, *flags: str) -> Path:
    """The directory of ``storm`` and ``load``."""
    command = ["gcc", "-std=gnu11", "-O1", "-g", "-Wall", f"-I{sim.cuda.HERE}", f"-I{NATIVE}", "-pthread", *flags]
    for name in ("storm", "load"):
        subprocess.run([*command, "-o", out / name, HERE / f"{name}.c", "-ldl"], check=True)
    return out


@pytest.fixture(scope="session")
def storm(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("storm")) / "storm"


@pytest.fixture
def limited(tmp_path: Path, libraries: Libraries, topology: Topology) -> Container:
    """6 GiB, a third of them for eight contexts."""
    limit = Limit(topology.gpus[0].uuid, 6 * GIB, 0, context_overhead_bytes=CONTEXT)
    return Container(tmp_path / "limited", libraries, topology, [limit])


def start(container: Container, *command: str | Path) -> subprocess.Popen[str]:
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    return subprocess.Popen(command, env=container.environment, text=True, **pipes)  # type: ignore[call-overload]


def card(container: Container, storm: Path) -> dict[str, int]:
    out, _ = start(container, storm).communicate()
    return json.loads(out)


@pytest.mark.parametrize("killed", [0, 4])
def test_allocation_storm_stays_below_the_limit_and_cleans_up(limited: Container, storm: Path, killed: int) -> None:
    rounds = 400
    processes = [start(limited, storm, str(THREADS), str(rounds), str(seed)) for seed in range(PROCESSES)]
    chance = random.Random(killed)
    for process in processes[:killed]:
        try:
            process.wait(chance.random() * 0.5)
        except subprocess.TimeoutExpired:
            process.kill()
    refused = 0
    for number, process in enumerate(processes):
        out, err = process.communicate(timeout=120)
        if number >= killed:
            assert (process.returncode, err) == (0, "")
            refused += json.loads(out)["refused"]
    assert refused > 0
    seen = card(limited, storm)
    assert 3 * GIB < seen["peak"] <= 6 * GIB
    assert seen["used"] == 0
    assert limited.words("d.open()\nfree, total = d.mem_info()\nprint((total - free) >> 20)") == ["256"]
    assert limited.account().used_bytes == CONTEXT


ASYNC = 3


def test_threads_on_one_pool_stay_below_the_limit(limited: Container, storm: Path) -> None:
    """Each would fit into it, and not both."""
    for seed in range(2):
        out, err = start(limited, storm, "16", "1500", str(seed), str(ASYNC)).communicate(timeout=120)
        assert err == ""
        assert json.loads(out)["refused"] > 0
        assert card(limited, storm)["peak"] <= 6 * GIB


@pytest.mark.full
@pytest.mark.parametrize("sanitizer", ["address", "undefined", "thread"])
def test_sanitizers_have_nothing_to_say(limited: Container, tmp_path: Path, topology: Topology, sanitizer: str) -> None:
    """In real time: a sanitizer and the virtual clock both want to be the one that makes threads."""
    flags = f"-fsanitize={sanitizer} -fno-sanitize-recover=all -g -O1"
    driver = sim.cuda.build(tmp_path / "driver").parent
    shim = build_shim(tmp_path / "shim", NATIVE_CFLAGS=flags)
    limit = Limit(topology.gpus[0].uuid, 6 * GIB, 30, context_overhead_bytes=CONTEXT)
    container = Container(tmp_path / "container", Libraries(shim, driver), topology, [limit])
    programs = compiled(tmp_path, *flags.split())
    work = [
        [programs / "storm", str(THREADS), "300", "1"],
        [programs / "load", "1", "500", "threads=4", "streams=2"],
        [programs / "load", "1", "500", "threads=2", "by=graph", "streams=1", "sync=3"],
        [programs / "load", "1", "200", "by=ptsz", "threads=3"],
        [programs / "load", "1", "500", "capture=1", "threads=2"],
    ]
    for command in work:
        process = start(container, *command)
        out, err = process.communicate(timeout=300)
        assert (process.returncode, err) == (0, ""), (command, out)


@pytest.fixture(autouse=True)
def _options(monkeypatch: pytest.MonkeyPatch) -> None:
    """A program that ends while the driver holds memory leaks nothing."""
    monkeypatch.setenv("ASAN_OPTIONS", "detect_leaks=0")
    os.environ.pop("LD_PRELOAD", None)
