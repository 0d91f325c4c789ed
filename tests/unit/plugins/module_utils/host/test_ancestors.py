# SPDX-License-Identifier: Apache-2.0
"""The processes above a module, by which it learns that Ansible is gone."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils.host.ancestors import ancestors

from collection import COLLECTIONS

WATCH = f"""
import sys, time
sys.path.insert(0, {str(COLLECTIONS)!r})
from ansible_collections.accel.kubernetes.plugins.module_utils.host.ancestors import ancestors
before = ancestors(2)
print("ready", flush=True)
while ancestors(2) == before:
    time.sleep(0.05)
print("alone", flush=True)
"""


PYTHON = [sys.executable, "-c", "import subprocess, sys; subprocess.run(sys.argv[1:])"]
SHELL = '"$@" && :'


def test_ancestors_begin_with_the_parent_and_end_with_init() -> None:
    assert ancestors(1)[0] == os.getppid()
    found = ancestors(1000)
    assert found[0] == os.getppid()
    assert found[-1] <= 1


# Where Ansible has no connection to keep, a shell starts another one, and not every one of them becomes what it starts.
@pytest.mark.parametrize("shells", [0, 1, 2, 3])
def test_a_command_that_is_killed_is_noticed(shells: int) -> None:
    between = ["sh", "-c", SHELL, "sh"] * shells
    command = [*PYTHON, *PYTHON, *between, sys.executable, "-c", WATCH]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.kill()
        assert process.stdout.readline() == "alone\n"
