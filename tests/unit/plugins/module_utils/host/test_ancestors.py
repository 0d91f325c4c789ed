# SPDX-License-Identifier: Apache-2.0
"""The processes above a module, by which it learns that Ansible is gone."""

from __future__ import annotations

import os
import subprocess
import sys

from ansible_collections.accel.kubernetes.plugins.module_utils.host.ancestors import ancestors

from collection import COLLECTIONS

WATCH = f"""
import sys, time
sys.path.insert(0, {str(COLLECTIONS)!r})
from ansible_collections.accel.kubernetes.plugins.module_utils.host.ancestors import ancestors
before = ancestors(3)
print("ready", flush=True)
while ancestors(3) == before:
    time.sleep(0.05)
print("alone", flush=True)
"""


def test_ancestors_are_parent_and_grandparent() -> None:
    assert ancestors(1) == (os.getppid(),)
    found = ancestors(3)
    assert found[0] == os.getppid()
    assert len(found) == 3 or found[-1] <= 1


def test_a_grandparent_that_is_killed_is_noticed() -> None:
    shell = '"$0" -c "$1" && :'
    above = [sys.executable, "-c", "import subprocess, sys; subprocess.run(sys.argv[1:])"]
    command = [*above, "sh", "-c", shell, sys.executable, WATCH]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
        process.kill()
        assert process.stdout.readline() == "alone\n"
