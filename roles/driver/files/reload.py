# SPDX-License-Identifier: Apache-2.0
"""Replaces the loaded NVIDIA driver by the installed one: reload.py SYSFS DEV PROC SOCKET SERVICE...

The device plugin behind SOCKET lets go of NVML and the services, names or patterns, are stopped. Whoever else uses a
GPU is named, and then the driver stays as it is. Ends with 1 and the reason on stderr when it could not be replaced;
plugin and services run again in any case.
"""

from __future__ import annotations

import contextlib
import json
import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

# Users before what they use.
MODULES = ("nvidia_fs", "gdrdrv", "nvidia_peermem", "nvidia_drm", "nvidia_modeset", "nvidia_uvm", "nvidia")
PAUSE_SECONDS = 300


class ReloadError(Exception):
    """The driver was not replaced. Says why and what to do."""


def run(*argv: str) -> tuple[int, str]:
    """Return a command's status and what it said."""
    done = subprocess.run(argv, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
    return done.returncode, done.stdout.strip()


def active(pattern: str) -> list[str]:
    """Services that run, by name or by a pattern of names."""
    status, said = run("systemctl", "list-units", "--type=service", "--state=active", "--plain", "--no-legend", pattern)
    return [line.split()[0] for line in said.splitlines()] if status == 0 else []


def tell(path: Path, command: str) -> None:
    """Say quiesce or resume to the device plugin. Raises ReloadError when one is there and does not do it."""
    if not path.is_socket():
        return
    try:
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(60)
            client.connect(str(path))
            client.sendall(json.dumps({"command": command, "seconds": PAUSE_SECONDS}).encode() + b"\n")
            answer = json.loads(client.makefile("rb").readline() or b"{}")
    except ConnectionRefusedError:
        return  # what a plugin that ended left behind
    except (OSError, ValueError) as error:
        raise ReloadError(f"the device plugin on {path} does not {command}: {error}") from error
    if "error" in answer:
        raise ReloadError(f"the device plugin on {path} does not {command}: {answer['error']}")


def users(dev: Path, proc: Path) -> list[str]:
    """Processes that have a GPU's device file open, as "PID NAME"."""
    found = set()
    for link in proc.glob("[0-9]*/fd/*"):
        try:
            if os.readlink(link).startswith(f"{dev}/nvidia"):  # noqa: PTH115 -- Path.readlink is 3.9's
                process = link.parents[1]
                found.add(f"{process.name} {(process / 'comm').read_text().strip()}")
        except OSError:
            continue  # it has ended, or closed the file
    return sorted(found)


def replace(sysfs: Path, dev: Path, proc: Path) -> None:
    """Unload the driver's modules and load them again. Raises ReloadError; then those that were unloaded are back."""
    holding = users(dev, proc)
    if holding:
        raise ReloadError(f"{', '.join(holding)} use a GPU; end them, or reboot the host")
    loaded = [name for name in MODULES if (sysfs / "module" / name).exists()]
    failed = ""
    unloaded = []
    for name in loaded:
        status, said = run("modprobe", "-r", name)
        if status != 0:
            failed = f"module {name} cannot be unloaded ({said}); reboot the host"
            break
        unloaded.append(name)
    for name in reversed(unloaded):
        status, said = run("modprobe", name)
        if status != 0 and not failed:
            failed = f"module {name} cannot be loaded ({said}); see the kernel log, and reboot the host"
    if failed:
        raise ReloadError(failed)


def reload(sysfs: Path, dev: Path, proc: Path, plugin: Path, services: Sequence[str]) -> None:
    """Reload the driver with all that goes with it. Raises ReloadError."""
    running = [unit for name in services for unit in active(name)]
    try:
        tell(plugin, "quiesce")
        for name in running:
            run("systemctl", "stop", name)
        replace(sysfs, dev, proc)
    finally:
        for name in reversed(running):
            run("systemctl", "start", name)
        # A plugin that cannot be reached takes NVML up again when its pause is over.
        with contextlib.suppress(ReloadError):
            tell(plugin, "resume")


if __name__ == "__main__":
    try:
        reload(*map(Path, sys.argv[1:5]), sys.argv[5:])
    except ReloadError as error:
        sys.exit(str(error))
