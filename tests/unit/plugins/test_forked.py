# SPDX-License-Identifier: Apache-2.0
"""A module that is run in a fork is run as a process of its own would run it."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from unit.plugins.conftest import wire
from unit.plugins.forked import Forks


def test_a_fork_says_what_a_process_says(forks: Forks, start_module: Callable[..., Any], tmp_path: Path) -> None:
    arguments = {"library": "libno-such-thing.so.1"}
    forked = forks.run("nvml_facts", wire(arguments, True, tmp_path), os.environ)
    out, _ = start_module("nvml_facts", arguments, check=True).communicate(timeout=60)
    assert json.loads(forked.out) == json.loads(out)
    assert forked.err == ""


def test_what_a_process_heeds_at_its_start_is_not_forked(forks: Forks) -> None:
    assert forks.can(os.environ | {"PATH": "/nowhere", "HOME": "/nowhere"})
    assert not forks.can(os.environ | {"LD_LIBRARY_PATH": "/nowhere"})
    assert not forks.can(os.environ | {"PYTHONPATH": "/nowhere"})


def test_a_module_that_is_not_there_says_so(forks: Forks, tmp_path: Path) -> None:
    ended = forks.run("no_such_module", wire({}, False, tmp_path), os.environ)
    assert ended.out == ""
    assert "No module named" in ended.err


def test_a_module_that_does_not_end_is_killed(forks: Forks, tmp_path: Path) -> None:
    with pytest.raises(TimeoutError, match="still runs"):
        forks.run("nvml_facts", wire({}, False, tmp_path), os.environ, seconds=0)
    assert forks.run("nvml_facts", wire({}, False, tmp_path), os.environ).out
