# SPDX-License-Identifier: Apache-2.0
"""Runs the site playbook and tells each task as it starts."""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import TextIO

from demo.story import DemoError, Story


def run_site(inventory: Path, log: Path, story: Story) -> dict[str, dict[str, int]]:
    """Runs the site playbook, naming each task as it starts.

    Returns the recap: host to counter (``ok``, ``changed``, ``failed``, ...) to number of tasks.
    Raises DemoError when the playbook fails.
    """
    command = ["ansible-playbook", "-i", str(inventory), "accel.kubernetes.site"]
    # TMPDIR: what modules keep for a next run goes with the cluster.
    environment = os.environ | {
        "ANSIBLE_FORCE_COLOR": "0",
        "ANSIBLE_LOCALHOST_WARNING": "0",
        "TMPDIR": str(inventory.parent),
    }
    with (
        log.open("w") as copy,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment
        ) as process,
    ):
        assert process.stdout is not None
        try:
            recap = narrate(process.stdout, copy, story)
        except KeyboardInterrupt:
            process.wait()
            raise
    if process.returncode:
        tail = "".join(log.read_text().splitlines(keepends=True)[-30:])
        raise DemoError(f"site.yml failed; the end of {log}:\n{tail}")
    for host, counters in recap.items():
        story.say(f"{host}: " + ", ".join(f"{key} {counters[key]}" for key in ("ok", "changed", "failed")))
    return recap


def narrate(lines: Iterable[str], copy: TextIO, story: Story) -> dict[str, dict[str, int]]:
    """Tells what ansible-playbook prints: tasks that are not skipped, and what they change. Returns its recap."""
    recap: dict[str, dict[str, int]] = {}
    title, told = "", True
    for line in lines:
        copy.write(line)
        if match := re.match(r"(PLAY|TASK|RUNNING HANDLER) \[(.*)\] \*", line):
            title = match[2].removeprefix("accel.kubernetes.").replace(" : ", ": ", 1)
            # Ansible begins each role with a task of its own, which says nothing about the cluster.
            told = match[1] == "PLAY" or "Validating arguments against" in title
            if match[1] == "PLAY":
                story.say(title)
        elif match := re.match(r"(ok|changed|fatal|FAILED - RETRYING): \[([^\]]+)\]", line):
            if not told:
                story.say(f"    {title}")
                told = True
            if match[1] != "ok":
                what = "not yet" if match[1].startswith("FAILED") else match[1]
                story.say(f"        {what}: {match[2]}")
        elif match := re.match(r"(\S+)\s+: (ok=.*)", line):
            recap[match[1]] = {key: int(value) for key, value in re.findall(r"(\w+)=(\d+)", match[2])}
    return recap
