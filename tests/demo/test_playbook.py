# SPDX-License-Identifier: Apache-2.0
"""The demo names the tasks of the site by role, and leaves out those that say nothing about the cluster."""

from __future__ import annotations

import io
import re

import pytest

from demo.playbook import narrate
from demo.story import Story

OUTPUT = """\
PLAY [Check the GPU nodes] ****
TASK [accel.kubernetes.driver : Validating arguments against arg spec 'preflight' - Checks the host.] ****
ok: [gpu-1]
TASK [accel.kubernetes.driver : Install driver 580] ****
changed: [gpu-1]
TASK [accel.kubernetes.driver : Remove the driver] ****
skipping: [gpu-1]
PLAY RECAP ****
gpu-1 : ok=2 changed=1 failed=0
"""


def test_narration_names_role_and_task_without_argument_checks(capsys: pytest.CaptureFixture[str]) -> None:
    recap = narrate(OUTPUT.splitlines(keepends=True), io.StringIO(), Story())
    said = [re.sub(r"^\[.*? s\] ", "", line) for line in capsys.readouterr().out.splitlines()]
    assert said == ["Check the GPU nodes", "    driver: Install driver 580", "        changed: gpu-1"]
    assert recap == {"gpu-1": {"ok": 2, "changed": 1, "failed": 0}}
