# SPDX-License-Identifier: Apache-2.0
"""Drivers of simulated nodes, and what the tests of their upgrades look at."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from .conftest import Playbooks

OLD, NEW = "570.195.03", "580.95.05"


def runfile(books: Playbooks, version: str) -> str:
    """Where the driver's installer is."""
    (found,) = books.cluster.root.glob(f"NVIDIA-Linux-*-{version}.run")
    return str(found)


def loaded(books: Playbooks, node: str) -> str:
    """The version of the driver that is loaded."""
    return (books.cluster.root / node / "sys/module/nvidia/version").read_text().strip()


@contextmanager
def user(books: Playbooks, node: str) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has the GPU's device file open, and is no pod's."""
    with (books.cluster.root / node / "dev/nvidia0").open("rb") as file:
        process = subprocess.Popen(["sleep", "1000"], pass_fds=[file.fileno()])
    try:
        yield process
    finally:
        process.kill()
        process.wait()
