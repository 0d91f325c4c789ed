# SPDX-License-Identifier: Apache-2.0
"""`python -m hosts.controller INVENTORY HOST PLAYBOOK ANSWERS...`: kills Ansible while the host waits for health.

The runtime has to answer ANSWERS then, and a second run has to end what the first began.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import yaml

from hosts.__main__ import inside


def modules(pid: int) -> list[int]:
    """Processes of our module on the host whose systemd is that process."""
    here = Path(f"/proc/{pid}/ns/pid").readlink()
    found = []
    for path in Path("/proc").glob("[0-9]*"):
        try:
            ours = b"AnsiballZ_nvidia_runtime" in (path / "cmdline").read_bytes()
            if ours and (path / "ns/pid").readlink() == here:
                found.append(int(path.name))
        except OSError:
            # It has ended.
            continue
    return found


def main() -> None:
    inventory, name, playbook, *answers = sys.argv[1:]
    pid = int(yaml.safe_load(Path(inventory).read_text())["gpu_nodes"]["hosts"][name]["host_pid"])
    run = ["ansible-playbook", "-i", inventory, "--limit", name, "--tags", "container_runtime_configure", playbook]
    inside(pid, ["rm", "-f", "/run/waiting"])
    ready = '{"container_runtime_ready_command": ["sh", "-c", "touch /run/waiting; exit 1"]}'
    first = subprocess.Popen([*run, "-e", ready, "-e", "container_runtime_timeout=120"], start_new_session=True)
    while inside(pid, ["test", "-e", "/run/waiting"]).returncode != 0:
        if first.poll() is not None:
            sys.exit("the first run ended before it waited for health")
        time.sleep(0.1)
    os.killpg(first.pid, signal.SIGKILL)
    first.wait()
    # What Ansible started on the host may live on, and undoes the change when it gives up; here it dies as well.
    for process in modules(pid):
        with contextlib.suppress(ProcessLookupError):
            os.kill(process, signal.SIGKILL)
    state = inside(pid, answers)
    if state.returncode != 0:
        sys.exit(f"the runtime does not answer after the controller was killed: {state.stderr}")
    second = subprocess.run(run, capture_output=True, text=True, check=False)
    if second.returncode != 0 or inside(pid, answers).returncode != 0:
        sys.exit(f"the second run did not end what the first began: {second.stdout[-3000:]}")


if __name__ == "__main__":
    main()
