# SPDX-License-Identifier: Apache-2.0
"""Settings of all tests."""

from __future__ import annotations

import signal

import pytest
from hypothesis import HealthCheck, settings

# A shell that starts the tests in the background has it ignored, and so would be what they start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)

# How long an example takes is the machine's doing, and machines are shared.
settings.register_profile("shared machine", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("shared machine")


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
