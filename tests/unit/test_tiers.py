# SPDX-License-Identifier: Apache-2.0
"""Which tests `make test` runs is decided by where they live and what they start."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

import tiers

TESTS = Path(__file__).parents[1]


@pytest.mark.parametrize(
    ("command", "slow"),
    [
        (["/opt/bin/ansible-playbook", "site.yml"], True),
        (["ansible", "localhost", "-m", "ping"], True),
        ([Path("/opt/bin/kube-accel"), "extender"], True),
        ([sys.executable, "-m", "kube_accel.cli.main", "--verbose", "plugin"], True),
        (["kube-accel", "dra", "--node-name", "a"], True),
        (["kube-accel", "dra", "--help"], False),
        ([sys.executable, "-m", "demo"], True),
        ([sys.executable, "-m", "unit.kube_accel.plugin.quick_daemon", "/a"], True),
        ([sys.executable, "-m", "kube_accel.cli.main", "inspect"], False),
        (["kubectl", "get", "pods", "plugin"], False),
        (["containerd", "config", "dump"], False),
        ("ansible-playbook site.yml", False),
        ([], False),
    ],
)
def test_ansible_and_daemons_of_ours_are_slow(command: object, slow: bool) -> None:
    assert tiers.is_slow(command) is slow


def test_a_quick_test_that_starts_ansible_is_stopped() -> None:
    with pytest.raises(AssertionError, match=r"test_a_quick_.* is a test of `make test` and starts ansible x"):
        subprocess.run(["ansible", "x"])


@pytest.mark.ci
def test_a_slower_test_may_start_ansible() -> None:
    with pytest.raises(FileNotFoundError):
        subprocess.run(["ansible", "x"], env={"PATH": "/nowhere"})


@pytest.mark.parametrize(
    ("file", "slower"),
    [
        ("unit/test_probe.py", False),
        ("unit/attacks/test_probe.py", False),
        ("unit/test_probe_end_to_end.py", True),
        ("unit/test_probe_kills.py", True),
        ("playbooks/test_probe.py", True),
        ("attacks/test_probe.py", True),
        ("bench/test_probe.py", True),
        ("native/test_probe.py", True),
        ("sim/cluster/test_probe.py", True),
    ],
)
def test_where_a_test_lives_decides_its_tier(file: str, slower: bool) -> None:
    assert tiers.is_slower(TESTS / file) is slower


@pytest.mark.parametrize(("file", "quick"), [("unit/test_probe.py", True), ("cluster/test_probe.py", False)])
def test_a_test_on_a_real_cluster_may_start_anything(file: str, quick: bool) -> None:
    item = SimpleNamespace(path=TESTS / file, get_closest_marker=lambda name: None)
    assert tiers.is_quick(item) is quick  # type: ignore[arg-type]


def test_make_test_reads_no_file_of_the_slower_tier() -> None:
    attacks, here = next(iter((TESTS / "attacks").glob("test_*.py"))), Path(__file__)
    marks = re.findall(r"-m '\$\(or \$\(MARKS\),(.+)\)'", (TESTS.parent / "Makefile").read_text())
    assert [tiers.is_left(attacks, mark) for mark in marks] == [True]
    assert not tiers.is_left(here, tiers.QUICK)
    assert not tiers.is_left(attacks, "ci and not full")
    assert not tiers.is_left(attacks, "")


def test_the_rooms_of_the_slower_tier_are_there() -> None:
    assert [room for room in tiers.CI_ROOMS if not any((TESTS / room).glob("test_*.py"))] == []
    assert [name for name in tiers.CI_FILES if not any(TESTS.rglob(f"test_{name}"))] == []
