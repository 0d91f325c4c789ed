# SPDX-License-Identifier: Apache-2.0
"""Which tests `make test` runs, and which wait for `make test-ci`.

Where a test lives, or what it starts, decides it. A test is one of `make test-ci`, by the mark ``ci``, when it

- lives in a room of ``CI_ROOMS`` or in a file that ``CI_FILES`` names: nobody has to mark it;
- starts Ansible or a daemon of ours elsewhere: ``@pytest.mark.ci`` says so, and a test that does so without is stopped.

All others call functions or run small programs, and are of `make test`. What takes minutes has the mark ``full``, and
is of neither. So are the tests of ``CLUSTER``, which `make test-cluster` runs.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parent
CI_ROOMS = ("attacks", "bench", "native", "parity", "playbooks", "sim")
CI_FILES = ("*_end_to_end.py", "*_kills.py")
CLUSTER = TESTS / "cluster"
SLOWER = ("ci", "full", "soak")
QUICK = "not ci and not full"
"""The marks that `make test` asks for."""
ANSIBLE = ("ansible", "ansible-builder", "ansible-galaxy", "ansible-playbook", "ansible-runner")
DAEMONS = frozenset({"dra", "extender", "plugin"})
PROGRAMS = ("demo", "unit.kube_accel.plugin.quick_daemon")
"""Of `python -m`."""


def sort(items: Iterable[pytest.Item]) -> None:
    """Mark what belongs to `make test-ci` by where it lives."""
    for item in items:
        if not _marked(item) and is_slower(item.path):
            item.add_marker("ci")


def is_left(file: Path, marks: str) -> bool:
    """Whether a run of the tests with these marks need not read this file. Reading takes a tenth of `make test`."""
    return marks == QUICK and file.is_file() and is_slower(file)


def is_slower(file: Path) -> bool:
    """Whether the tests of a file are of `make test-ci` by where it lies."""
    inside = file.is_relative_to(TESTS) and file.relative_to(TESTS).parts[0] in CI_ROOMS
    return inside or any(file.match(pattern) for pattern in CI_FILES)


def is_quick(item: pytest.Item) -> bool:
    """Whether a test that was sorted is of `make test`."""
    return not _marked(item) and not item.path.is_relative_to(CLUSTER)


def _marked(item: pytest.Item) -> bool:
    return any(item.get_closest_marker(name) for name in SLOWER)


def is_slow(command: object) -> bool:
    """Whether it starts Ansible or a daemon of ours. A line for a shell is not looked into."""
    if isinstance(command, (str, bytes)) or not isinstance(command, Sequence) or not command:
        return False
    words = [os.fsdecode(word) for word in command]
    name = Path(words[0]).name
    module = words[2] if words[1:2] == ["-m"] and len(words) > 2 else ""
    ours = name == "kube-accel" or module == "kube_accel.cli.main"
    daemon = ours and "--help" not in words and bool(DAEMONS.intersection(words))
    return name in ANSIBLE or module in PROGRAMS or daemon


class Guard:
    """Stops a test of `make test` that starts what takes seconds, so that the tier stays as quick as it is.

    Seconds are the machine's doing; what is started is not.
    """

    def __init__(self) -> None:
        self._watched = ""
        sys.addaudithook(self._hear)

    def watch(self, item: pytest.Item | None) -> None:
        """Watch this test from now on; None is nobody."""
        self._watched = item.nodeid if item is not None and is_quick(item) else ""

    def _hear(self, event: str, arguments: tuple[object, ...]) -> None:
        if event == "subprocess.Popen" and self._watched and is_slow(arguments[1]):
            words = " ".join(map(str, arguments[1]))  # type: ignore[call-overload]
            raise AssertionError(
                f"{self._watched} is a test of `make test` and starts {words:.200}, which takes seconds. "
                "Call a function instead, or mark it @pytest.mark.ci, for `make test-ci`: see tests/tiers.py"
            )
