# SPDX-License-Identifier: Apache-2.0
"""What was run on the real cluster, as the tests say while they pass: the table that ends their output."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable, Iterable, Iterator

from cluster.control_plane import BINARIES

PROPERTY = "ran"
Ran = Callable[..., None]
"""Takes mode, layout of the extender and, unless it is plain use, what was done."""


def note(mode: str, layout: str, what: str = "pods placed, admitted, limited") -> str:
    """One row, as it goes into a report."""
    return json.dumps([mode, layout, what])


def lines(rows: Iterable[str], versions: Iterable[str]) -> Iterator[str]:
    """A table in Markdown."""
    yield "; ".join(versions)
    yield "| mode | layout | run |"
    yield "|---|---|---|"
    for mode, layout, what in sorted(map(json.loads, set(rows))):
        yield f"| {mode} | {layout} | {what} |"


def versions() -> Iterator[str]:
    """Return the versions of what ran."""
    commands = (str(BINARIES / "kubelet"), "--version"), ("containerd", "--version"), ("runc", "--version")
    for command in commands:
        yield subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()[0]
