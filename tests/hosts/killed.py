#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""On a host with systemd: kills a run of nvidia_runtime before each thing it does to the host, one run a step.

killed.py KIND UNIT FILE ANSWERS: the runtime has to answer after every kill, and after the next run or the host's timer
has ended what the killed one began. Ends with 1 and the steps that failed.
"""

import json
import os
import runpy
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

KIND, UNIT, FILE, ANSWERS = sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4].split()
STATE = Path("/var/lib/killed.state")
MODULE = "ansible_collections.accel.kubernetes.plugins.modules.nvidia_runtime"
STEPS = ("write", "remove", "make_directory", "run")


def module(state="present", die_at=0):
    """Run the module in a process of its own; returns its status and result."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.dup2(write, 1)
            sys.path.insert(0, "/var/lib/killed")
            from ansible.module_utils import basic

            host = __import__("ansible_collections.accel.kubernetes.plugins.module_utils.host", fromlist=["Host"]).Host
            arm(host, die_at)
            options = {
                "runtime": KIND,
                "state": state,
                "default_runtime": True,
                "timeout": 30,
                "backup_dir": str(STATE),
            }
            basic._ANSIBLE_PROFILE = "legacy"
            basic._ANSIBLE_ARGS = json.dumps({"ANSIBLE_MODULE_ARGS": options}).encode()
            sys.argv = ["nvidia_runtime"]
            runpy.run_module(MODULE, run_name="__main__")
        except Exception:
            traceback.print_exc()
            os._exit(3)
    os.close(write)
    with os.fdopen(read) as stream:
        said = stream.read()
    _, status = os.waitpid(child, 0)
    return status, json.loads(said) if said.strip() else {}


def arm(host, die_at):
    """Make the process end itself, as SIGKILL would, before its die_at-th act."""
    acts = 0

    def deadly(name):
        real = getattr(host, name)

        def act(self, *words, **named):
            nonlocal acts
            acts += 1
            if acts == die_at:
                print(name, words[0], file=sys.stderr)
                os.kill(os.getpid(), signal.SIGKILL)
            return real(self, *words, **named)

        setattr(host, name, act)

    for name in STEPS:
        deadly(name)


def answers():
    """Whether the runtime answers, soon."""
    deadline = time.monotonic() + 60
    while subprocess.run(ANSWERS, capture_output=True, check=False).returncode != 0:
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True


def content():
    return FILE.read_bytes() if FILE.exists() else None


def fire_timer():
    """Let the host's timer elapse now; returns whether there was one."""
    journals = [json.loads(path.read_text()) for path in STATE.glob("*/journal.json")]
    units = [journal["unit"] for journal in journals]
    if not units or not list(STATE.glob("*/armed")):
        return False
    listed = subprocess.run(
        ["systemctl", "list-timers", "--all", "--no-pager"], capture_output=True, text=True, check=True
    )
    # Killed before it was set, or after it was stopped.
    if f"{units[0]}.timer" not in listed.stdout:
        return False
    subprocess.run(["systemctl", "start", f"{units[0]}.service"], check=True)
    return True


def expect(holds, words):
    if not holds:
        raise AssertionError(words)


def main():
    """Kill at step 1, 2, ... until a run lives, once for the next run and once for the timer."""
    expect(answers(), "the runtime does not answer before anything is done")
    module("absent")
    before = content()
    failures, timers, outcomes, steps = [], 0, set(), 0
    for by_timer in (False, True):
        for step in range(1, 200):
            status, result = module(die_at=step)
            steps += 1
            died = os.WIFSIGNALED(status)
            try:
                expect(died or result.get("changed"), f"a run that lived failed: {result}")
                expect(answers(), "the runtime does not answer after the kill")
                if by_timer and died and fire_timer():
                    timers += 1
                    expect(answers(), "the runtime does not answer after the timer")
                status, result = module()
                outcomes.add(result.get("recovered"))
                expect(status == 0 and not result.get("failed"), f"the next run failed: {result}")
                expect(answers(), "the runtime does not answer after the next run")
                expect(b"nvidia" in (content() or b""), "the next run did not make the change")
                status, result = module("absent")
                expect(status == 0 and content() == before, f"the file did not come back: {result}")
            except AssertionError as error:
                failures.append(f"step {step}{' by timer' if by_timer else ''}: {error}")
                module("absent")
            if not died:
                break
    print(f"{steps} runs killed, {timers} ended by the timer, the others by the next run: {sorted(map(str, outcomes))}")
    if steps <= 20 or timers <= 5:
        failures.append(f"only {steps} steps and {timers} timers")
    sys.exit("\n".join(failures))


if __name__ == "__main__":
    main()
