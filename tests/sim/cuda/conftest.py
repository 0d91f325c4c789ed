# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

import sim.cuda
from sim.nvml import profiles
from sim.nvml.topology import Topology

PROLOGUE = "from ctypes import *\nfrom gpu.driver import *\nd = Driver()\nGIB = 1 << 30\n"


class Node:
    """A simulated node; ``run`` executes Python lines against its driver in a process of their own."""

    def __init__(self, library: Path, path: Path, topology: Topology) -> None:
        self.library, self.path, self.topology = library, path, topology
        self.save()

    def save(self) -> None:
        self.topology.save(self.path)

    def start(self, code: str, **environment: str) -> subprocess.Popen[str]:
        tests = Path(__file__).parents[2]
        own = {"LD_LIBRARY_PATH": str(self.library.parent), "GPUSIM_FILE": str(self.path), "PYTHONPATH": str(tests)}
        return subprocess.Popen(
            [sys.executable, "-c", PROLOGUE + code],
            env={**os.environ, **own, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def run(self, code: str, **environment: str) -> list[str]:
        """The words the lines print."""
        process = self.start(code, **environment)
        out, _ = process.communicate(timeout=60)
        assert process.returncode == 0
        return out.split()


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sim.cuda.build(tmp_path_factory.mktemp("lib"), os.environ.get("SIMCUDA_CFLAGS", "").split())


@pytest.fixture
def node(library: Path, tmp_path: Path) -> Node:
    return Node(library, tmp_path / "gpusim.conf", profiles.h100("sim"))
