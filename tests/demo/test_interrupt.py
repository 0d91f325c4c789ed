# SPDX-License-Identifier: Apache-2.0
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest


def processes_about(root: str) -> list[str]:
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            text = path.read_bytes().replace(b"\0", b" ").decode(errors="replace")
        except OSError:
            continue
        if root in text:
            found.append(text)
    return found


@pytest.mark.ci
def test_ctrl_c_leaves_no_process_and_no_file() -> None:
    demo = subprocess.Popen(
        [sys.executable, "-m", "demo"],
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1]), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert demo.stdout
        # The playbook is about to run, or runs.
        line = next(line for line in demo.stdout if "simulated cluster is up" in line)
        root = re.search(r"files in (\S+)", line)[1]
        assert Path(root).exists()
        os.killpg(demo.pid, signal.SIGINT)
        _, errors = demo.communicate(timeout=60)
    finally:
        if demo.poll() is None:
            os.killpg(demo.pid, signal.SIGKILL)
    assert demo.returncode == 130, errors
    assert "nothing is left behind" in errors
    assert not Path(root).exists()
    assert not processes_about(root)
