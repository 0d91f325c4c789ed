# SPDX-License-Identifier: Apache-2.0
"""Runs modules of the checkout as a target does."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from collection import COLLECTIONS
from unit.plugins.forked import Forks

START = """
import runpy
from ansible.module_utils import basic
from ansible.utils.collection_loader._collection_finder import _AnsibleCollectionFinder

_AnsibleCollectionFinder(paths=[{collections!r}])._install()
basic._ANSIBLE_PROFILE = "legacy"
runpy.run_module("ansible_collections.accel.kubernetes.plugins.modules.{name}", run_name="__main__")
"""

RunModule = Callable[..., dict[str, Any]]
StartModule = Callable[..., subprocess.Popen[str]]


def wire(args: Mapping[str, Any], check: bool, temporary: Path) -> str:
    """What a module reads."""
    known = {"_ansible_check_mode": check, "_ansible_diff": True, "_ansible_remote_tmp": str(temporary)}
    return json.dumps({"ANSIBLE_MODULE_ARGS": {**args, **known}})


@pytest.fixture
def start_module(tmp_path: Path) -> Iterator[StartModule]:
    """Starts a module as the target's Python does, in a process group of its own, its arguments on standard input."""
    started: list[subprocess.Popen[str]] = []

    def start(
        name: str, args: Mapping[str, Any], *, check: bool = False, environment: Mapping[str, str] | None = None
    ) -> subprocess.Popen[str]:
        process = subprocess.Popen(
            [sys.executable, "-c", START.format(collections=str(COLLECTIONS), name=name)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env={**os.environ, **(environment or {})},
            text=True,
            start_new_session=True,
        )
        assert process.stdin is not None
        process.stdin.write(wire(args, check, tmp_path))
        process.stdin.close()
        process.stdin = None
        started.append(process)
        return process

    yield start
    for process in started:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.communicate()


@pytest.fixture(scope="session")
def forks() -> Iterator[Forks]:
    """Where modules run that nobody interrupts."""
    found = Forks(COLLECTIONS)
    yield found
    found.close()


@pytest.fixture
def run_module(forks: Forks, start_module: StartModule, tmp_path: Path) -> RunModule:
    """Runs a module to its end and returns its result."""

    def run(
        name: str, args: Mapping[str, Any], *, check: bool = False, environment: Mapping[str, str] | None = None
    ) -> dict[str, Any]:
        seen = {**os.environ, **(environment or {})}
        if forks.can(seen):
            ended = forks.run(name, wire(args, check, tmp_path), seen)
            out, err = ended.out, ended.err
        else:
            out, err = start_module(name, args, check=check, environment=environment).communicate(timeout=60)
        assert out.strip(), err
        result: dict[str, Any] = json.loads(out)
        return result

    return run
