# SPDX-License-Identifier: Apache-2.0
"""The parent's end of the process that cuts GPUs."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any


class CutError(Exception):
    """What became of the GPUs is not known. Says why."""


@dataclass(frozen=True, slots=True)
class Cut:
    """What ``mig_nvml.Outcome`` says, and why nothing was done if that is so."""

    refused: str = ""
    """The configuration is not to be had, or was put back."""
    unavailable: str = ""
    """NVML cannot be used."""
    changed: bool = False
    switched: bool = False
    """Whether a GPU changes its MIG mode."""
    before: tuple[dict[str, Any], ...] = ()
    reset: tuple[str, ...] = ()
    reboot: tuple[str, ...] = ()
    in_use: tuple[str, ...] = ()
    going: frozenset[str] = frozenset()


def cut(text: str, config: str, check: bool, timeout: float, excluded: Path | None = None) -> Cut:
    """Cut the GPUs as a configuration of the mig-configs ``text`` says, or with ``check`` say what would be done.

    ``excluded``: the file that lists GPUs to leave alone.

    Raises CutError when that takes more than ``timeout`` seconds or fails in an unforeseen way.
    """
    found = run_task({"text": text, "config": config, "check": check, "excluded": str(excluded or "")}, timeout)
    return Cut(
        refused=found.get("refused", ""),
        unavailable=found.get("unavailable", ""),
        changed=found.get("changed", False),
        switched=_modes(found, "before") != _modes(found, "after"),
        before=tuple(found.get("before", ())),
        reset=tuple(found.get("reset", ())),
        reboot=tuple(found.get("reboot", ())),
        in_use=tuple(found.get("in_use", ())),
        going=frozenset(found.get("going", ())),
    )


def run_task(task: Mapping[str, Any], timeout: float) -> dict[str, Any]:
    """Have a process of its own do a task of ``mig.worker``, and return what it says.

    Raises CutError when that takes more than ``timeout`` seconds or fails in an unforeseen way.
    """
    command = (sys.executable, "-m", "kube_accel.mig.worker", str(os.getpid()))
    process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, process_group=0)
    try:
        output, _ = process.communicate(json.dumps(task).encode(), timeout)
    except subprocess.TimeoutExpired:
        process.kill()  # and not waited for: one that hangs in the kernel does not die
        raise CutError(f"NVML did not answer within {timeout:g} s: the driver hangs; see `dmesg`") from None
    try:
        found: dict[str, Any] = json.loads(output)
    except ValueError:
        raise CutError(f"the process that cuts GPUs ended with status {process.returncode}; see this log") from None
    return found


def _modes(found: dict[str, Any], when: str) -> list[bool]:
    return [gpu["mig_enabled"] for gpu in found.get(when, ())]
