# SPDX-License-Identifier: Apache-2.0
"""Damaged policies and accounts, senseless questions: for minutes in ``make soak``, for seconds in ``make test``."""

from __future__ import annotations

import os
import random
import subprocess
import time
from pathlib import Path

import pytest

import sim.clock
import sim.cuda
from native.conftest import Container, Libraries

SECONDS = int(os.environ.get("KUBE_ACCEL_FUZZ_SECONDS", "3"))
SEED = int(os.environ.get("KUBE_ACCEL_FUZZ_SEED", "1"))
INTERESTING = (0, 1, 2, 15, 16, 17, 99, 100, 255, 1 << 31, (1 << 32) - 1, (1 << 63) - 1, 1 << 63, (1 << 64) - 1)


@pytest.fixture(scope="session")
def fuzz(tmp_path_factory: pytest.TempPathFactory) -> Path:
    program = tmp_path_factory.mktemp("fuzz") / "fuzz"
    source = Path(__file__).with_name("fuzz.c")
    command = ["gcc", "-std=gnu11", "-O2", "-Wall", "-Wextra", "-pthread"]
    subprocess.run([*command, "-o", program, source, "-ldl"], check=True)
    return program


def damaged(chance: random.Random, good: bytes) -> bytes:
    """Words changed, mostly in the first kilobytes; now and then cut short or grown."""
    data = bytearray(good)
    for _ in range(chance.choice((0, 1, 1, 2, 4, 16))):
        width = chance.choice((1, 4, 8))
        at = chance.randrange(min(len(data), chance.choice((64, 256, 4096, 1 << 20))) - width)
        value = chance.choice((chance.getrandbits(64), *INTERESTING))
        data[at : at + width] = (value & ((1 << 8 * width) - 1)).to_bytes(width, "little")
    if chance.random() < 0.1:
        del data[chance.randrange(len(data)) :]
    return bytes(data)


@pytest.mark.attack
def test_damaged_files_break_no_program(container: Container, fuzz: Path, tmp_path: Path) -> None:
    """Time is virtual: a budget that says so makes a program wait for hours."""
    policy, state = container.policy.read_bytes(), container.state.read_bytes()
    clock = {"LD_PRELOAD": str(sim.clock.build(tmp_path)), "SIMCLOCK_FILE": str(tmp_path / "clock")}
    end, runs = time.monotonic() + SECONDS, 0
    while time.monotonic() < end:
        chance = random.Random(f"{SEED}.{runs}")
        container.policy.write_bytes(damaged(chance, policy) if chance.random() < 0.7 else policy)
        container.state.write_bytes(damaged(chance, state) if chance.random() < 0.7 else state)
        (tmp_path / "clock").unlink(missing_ok=True)
        Path(f"{container.gpus}.cuda").unlink(missing_ok=True)
        command = [fuzz, "files", str(chance.getrandbits(40))]
        environment = {**container.environment, **clock}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=60)
        told = [line for line in done.stderr.splitlines() if not line.startswith("kube-accel: ")]
        assert (done.returncode, told) == (0, []), f"run {runs} of seed {SEED}"
        runs += 1
    assert runs > 0


@pytest.mark.attack
def test_senseless_questions_get_the_drivers_answers(container: Container, fuzz: Path, libraries: Libraries) -> None:
    command = [fuzz, "names", libraries.driver / sim.cuda.LIBRARY, str(SECONDS), str(SEED)]
    done = subprocess.run(command, env=container.environment, capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    assert int(done.stdout) > 1000
