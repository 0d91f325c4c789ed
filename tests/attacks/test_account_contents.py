# SPDX-License-Identifier: Apache-2.0
"""A tenant writes whatever it likes into its account, while the plugin reads it and a neighbor works."""

from __future__ import annotations

import re
import subprocess

import pytest

from attacks.conftest import STATE, Attacked, needs_root
from waiting import wait

pytestmark = [pytest.mark.attack, needs_root]

BATCHES, WRITES = 40, 100
SEED = 1
SCRIBBLE = """
import random
path, seed, writes = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
chance, size = random.Random(seed), os.stat(path).st_size
file = os.open(path, os.O_RDWR)
account = mmap.mmap(file, size)
numbers = 0, 1, 2, 255, (1 << 31) - 1, (1 << 32) - 1, 1 << 53, (1 << 63) - 1, 1 << 63, (1 << 64) - 1
for line in sys.stdin:
    if line == "fill\\n":
        account[:] = b"\\xff" * size
        writes = 0
    for _ in range(writes):
        width = chance.choice((1, 4, 8))
        at = chance.randrange(min(size, chance.choice((64, 256, 4096, size))) // width) * width
        number = chance.choice((chance.getrandbits(64), chance.choice(numbers), os.getpid()))
        data = (number & ((1 << 8 * width) - 1)).to_bytes(width, "little")
        if chance.random() < 0.5:
            os.pwrite(file, data, at)
        else:
            account[at : at + width] = data
    print("written", flush=True)
"""
WORKS = """
from gpu.driver import Driver
driver = Driver()
driver.open()
for _ in sys.stdin:
    driver.free(driver.alloc(3 << 30))
    try:
        driver.alloc(5 << 30)
    except Exception as error:
        print(driver.mem_info(), error.code, flush=True)
"""
GOES_ON = f"({4 << 30}, {4 << 30}) 2\n"


def _answer(process: subprocess.Popen[str], line: str = "") -> str:
    """What a program says to one more line."""
    assert process.stdin is not None
    assert process.stdout is not None
    process.stdin.write(f"{line}\n")
    process.stdin.flush()
    return process.stdout.readline()


def _numbers(node: Attacked) -> dict[str, float]:
    """Values of the page of metrics by what they are of. Raises ValueError for what is none."""
    lines = [line for line in node.get("/metrics")[1].splitlines() if line and not line.startswith("#")]
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines)}


def _refused(node: Attacked, pod: str) -> dict[str, float]:
    """What the metrics say that a pod was refused, by reason."""
    kept = re.compile(rf'accel_container_gpu_alloc_failures_total{{.*pod="{pod}".*reason="(\w+)"}}')
    return {match[1]: value for name, value in _numbers(node).items() if (match := kept.fullmatch(name))}


def test_any_account_contents_leave_plugin_and_neighbors_going(node: Attacked) -> None:
    tenant, neighbor = (node.start(name, gib=4) for name in ("tenant", "neighbor"))
    works, scribbles = neighbor.begin(WORKS), tenant.begin(SCRIBBLE, STATE, SEED, WRITES)
    for _ in range(BATCHES):
        assert _answer(scribbles) == "written\n"
        assert _answer(works) == GOES_ON
        assert [name for name, value in _numbers(node).items() if not 0 <= value <= 2**63] == []
    assert _answer(scribbles, "fill") == "written\n"
    wait(lambda: _refused(node, "tenant").get("policy", 0) > 2**50, "the plugin to read the account", 20)
    assert max(_refused(node, "tenant").values()) <= 2**53
    wait(lambda: _refused(node, "neighbor").get("quota") == BATCHES, "the plugin to count what was refused", 20)
    assert _refused(node, "neighbor") == {"quota": BATCHES, "device": 0, "policy": 0}
    assert not node.removed(tenant)
    node.end(node.start("next", gpu=1))
    node.end(tenant)
    node.unharmed()
