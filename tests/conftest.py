# SPDX-License-Identifier: Apache-2.0
"""Settings of all tests."""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

import tiers

ROOT = Path(__file__).resolve().parents[1]

# What make sets, for a pytest that is called by itself. `make setup` has made the link.
os.environ.setdefault("PYTHONPATH", str(ROOT / "tests"))
os.environ.setdefault("ANSIBLE_COLLECTIONS_PATH", str(ROOT / ".build/link"))
os.environ.setdefault("ANSIBLE_HOME", str(ROOT / ".cache/ansible"))
os.environ.setdefault("ANSIBLE_NOCOWS", "1")
os.environ.setdefault("ANSIBLE_PIPELINING", "1")
PROGRAMS = str(Path(sys.executable).parent)
if PROGRAMS not in os.environ["PATH"].split(os.pathsep):
    os.environ["PATH"] = f"{PROGRAMS}{os.pathsep}{os.environ['PATH']}"

# A shell that starts the tests in the background has it ignored, and so would be what they start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes is the machine's doing, and machines are shared.
settings.register_profile("shared machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared machine")

GUARD = tiers.Guard()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Read no file whose tests would all be deselected."""
    return True if tiers.is_left(collection_path, config.getoption("markexpr")) else None


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Before marks are selected by."""
    tiers.sort(items)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_protocol(item: pytest.Item) -> Iterator[None]:
    """What a test of `make test` may not start."""
    GUARD.watch(item)
    try:
        return (yield)  # type: ignore[return-value]
    finally:
        GUARD.watch(None)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """How many attacks were made and how they ended, where nothing else was asked for."""
    if config.getoption("markexpr") != "attack":
        return
    held, broke, skipped = (
        sum(len(terminalreporter.getreports(name)) for name in names)
        for names in (("passed",), ("failed", "error"), ("skipped",))
    )
    terminalreporter.section("attacks")
    terminalreporter.line(f"{held + broke} tried: {held} held, {broke} broke something; {skipped} not tried")
