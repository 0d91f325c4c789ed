#!/usr/bin/python3
# SPDX-License-Identifier: Apache-2.0
"""On a host with systemd: kills a run of nvidia_runtime before each thing it does to the host, one run a step.

killed.py KIND UNIT FILE ANSWERS: after each kill, and after what ended it, the runtime has to answer and its file to be
one of the two that it has been started with. Ends with 1 and the steps that failed.
"""

import importlib
import json
import os
import runpy
import signal
import subprocess
import sys
import time
import traceback
from pathlib import Path

sys.path.insert(0, "/var/lib/killed")
basic = importlib.import_module("ansible.module_utils.basic")
Host = importlib.import_module("ansible_collections.accel.kubernetes.plugins.module_utils.host.machine").Host

KIND, UNIT, FILE, ANSWERS = sys.argv[1], sys.argv[2], Path(sys.argv[3]), sys.argv[4].split()
STATE = Path("/var/lib/killed.state")
MODULE = "ansible_collections.accel.kubernetes.plugins.modules.nvidia_runtime"
STEPS = ("write", "remove", "make_directory", "run")


def module(state="present", die_at=0, timeout=30):
    """Run the module in a process of its own; returns its status and result."""
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.dup2(write, 1)
            arm(Host, die_at)
            options = {
                "runtime": KIND,
                "state": state,
                "default_runtime": True,
                "timeout": timeout,
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
    """Make the process end itself, as SIGKILL would, before its die_at-th act, or before a command with that word."""
    acts = 0

    def deadly(name):
        real = getattr(host, name)

        def act(self, *words, **named):
            nonlocal acts
            acts += 1
            if die_at == acts or (name == "run" and die_at in words[0]):
                os.kill(os.getpid(), signal.SIGKILL)
            return real(self, *words, **named)

        setattr(host, name, act)

    for name in STEPS:
        deadly(name)


def until(probe, seconds):
    """Whether that becomes true in time."""
    deadline = time.monotonic() + seconds
    while not probe():
        if time.monotonic() > deadline:
            return False
        time.sleep(0.2)
    return True


def answers():
    """Whether the runtime answers, soon."""
    return until(lambda: subprocess.run(ANSWERS, capture_output=True, check=False).returncode == 0, 60)


def content():
    return FILE.read_bytes() if FILE.exists() else None


def fire_timer(_step):
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
    expect(until(lambda: not list(STATE.glob("*/armed")), 60), "what the timer started does not end")
    return True


def expect(holds, words):
    if not holds:
        raise AssertionError(words)


def good(files, when):
    """The runtime answers, with a file that it has been started with before."""
    expect(answers(), f"the runtime does not answer after {when}")
    expect(content() in files, f"after {when} the file is {content()!r}")


def succeed(state, files):
    """Run the module to its end; returns what it says it found of an earlier run."""
    status, result = module(state)
    expect(status == 0 and not result.get("failed"), f"a run to {state} failed: {result}")
    good(files, f"a run to {state}")
    return result["recovered"]


def nothing(_step):
    return False


def kill_another(step):
    """A second run dies as well, somewhere else."""
    status, _ = module(die_at=1 + step * 7 % 20)
    return os.WIFSIGNALED(status)


def rounds(before, after):
    """Kill runs at step 1, 2, ... until one lives, do something, and let another run end it; yields what failed."""
    for state, between in (
        ("present", nothing),
        ("present", fire_timer),
        ("present", kill_another),
        ("absent", fire_timer),
    ):
        other = "absent" if state == "present" else "present"
        module(other)
        kills, betweens, outcomes = 0, 0, set()
        for step in range(1, 100):
            try:
                status, result = module(state, die_at=step)
                if not os.WIFSIGNALED(status):
                    expect(result.get("changed"), f"a run that lived failed: {result}")
                    break
                kills += 1
                good((before, after), "the kill")
                if between(step):
                    betweens += 1
                    good((before, after), between.__name__)
                outcomes.add(succeed(state, [after if state == "present" else before]))
                succeed(other, [before if state == "present" else after])
            except AssertionError as error:
                yield f"{state}, step {step}, {between.__name__}: {error}"
                module(other)
        print(f"{state}: {kills} kills, {betweens} {between.__name__}, then {sorted(outcomes)}", flush=True)
        if kills < 15 or (between is not nothing and betweens < 5):
            yield f"only {kills} kills and {betweens} {between.__name__}"


def left_alone(before):
    """A run dies before it restarts the runtime, and nobody comes back: the timer elapses by itself."""
    module("absent")
    began = time.monotonic()
    status, result = module(die_at="restart", timeout=1)
    expect(os.WIFSIGNALED(status), f"it lived: {result}")
    expect(content() != before, "it died before it wrote the file")
    expect(until(lambda: list(STATE.glob("*/restored")), 180), "the timer did not elapse")
    good([before], "the timer")
    # Flushed, or the next child has it too.
    print(f"left alone: restored after {time.monotonic() - began:.0f} s", flush=True)
    expect(succeed("absent", [before]) == "restored_by_timer", "the next run does not know")


def main():
    expect(answers(), "the runtime does not answer before anything is done")
    module("absent")
    before = content()
    module("present")
    after = content()
    module("absent")
    expect(content() == before != after, "present and absent do not do what they say")
    failures = list(rounds(before, after))
    try:
        left_alone(before)
    except AssertionError as error:
        failures.append(f"left alone: {error}")
    # Not an empty string, which would count as a failure.
    sys.exit("\n".join(failures) or None)


if __name__ == "__main__":
    main()
