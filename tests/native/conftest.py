# SPDX-License-Identifier: Apache-2.0
"""A container with shares of simulated GPUs: the interposer by the public names, the simulated driver elsewhere."""

from __future__ import annotations

import os
import re
import signal
import struct
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple

import pytest

import sim.cuda
import sim.nvml
from kube_accel.enforce import policy as files
from sim.nvml import profiles
from sim.nvml.topology import Topology

ROOT = Path(__file__).parents[2]
NATIVE = ROOT / "roles/gpu_plugins/files/kube_accel/native"
MIB, GIB = 1 << 20, 1 << 30
PROLOGUE = """
import os, struct, sys
from ctypes import *
from gpu.driver import *
d = Driver()
MIB, GIB = 1 << 20, 1 << 30
def used_bytes(device=0):
    with open(os.environ["KUBE_ACCEL_STATE"], "rb") as state:
        return struct.unpack_from("<Q", state.read(3136), 64 + 192 * device)[0]
def used(device=0):
    return used_bytes(device) // MIB
def n(mebibytes):
    return c_size_t(mebibytes * MIB)
def get(kind, name, *arguments):
    return d.value(kind, name, *arguments)
def take(size):
    return d("cuMemAlloc_v2", byref(c_uint64()), c_size_t(size))
def create(mebibytes, device=0):
    return get(c_uint64, "cuMemCreate", n(mebibytes), (c_int * 8)(1, 0, 1, device), c_uint64(0))
def refused(code):
    try:
        exec(code, globals())
    except CudaError as error:
        return error.code
"""


def build_shim(out: Path, **environment: str) -> Path:
    """The directory with both libraries."""
    subprocess.run([NATIVE / "build.sh", out], check=True, env={**os.environ, **environment})
    return out


class Work(NamedTuple):
    """What a container's processes did on one GPU."""

    busy_ns: int
    launches: int
    throttled_ns: int


@dataclass(frozen=True)
class Libraries:
    shim: Path
    driver: Path


class Container:
    """Files of one container; ``run`` executes Python lines in it, against the driver as programs find it."""

    def __init__(self, root: Path, libraries: Libraries, topology: Topology, limits: Sequence[files.Limit]) -> None:
        self.root, self.libraries, self.topology = root, libraries, topology
        self.public, self.gpus = root / "lib", root / "gpusim.conf"
        self.policy, self.state = root / "policy", root / "state"
        self.generation = 0
        self.public.mkdir(parents=True)
        for library in ("libcuda.so", "libcuda.so.1"):
            os.link(libraries.shim / "libcuda.so.1", self.public / library)
        os.link(libraries.shim / "libnvidia-ml.so.1", self.public / "libnvidia-ml.so.1")
        topology.save(self.gpus)
        self.tell(*limits)
        self.state.write_bytes(files.fresh_state(len(limits)).ljust(files.state_size(files.NEWEST), b"\0"))

    def tell(self, *limits: files.Limit, feedback: Sequence[files.Feedback] = (), at_ns: int = 0) -> None:
        """Writes the policy as the daemon does: in place, under an odd generation."""
        self.generation += 2
        wanted = files.Policy(tuple(limits), tuple(feedback), at_ns)
        with self.policy.open("r+b" if self.policy.exists() else "wb") as file:
            file.write(files.pack_policy(wanted, self.generation - 1))
            file.flush()
            file.seek(files.GENERATION_OFFSET)
            file.write(struct.pack("<I", self.generation))

    @property
    def environment(self) -> dict[str, str]:
        return {
            **os.environ,
            "LD_LIBRARY_PATH": str(self.public),
            "KUBE_ACCEL_DRIVER": str(self.libraries.driver),
            "KUBE_ACCEL_POLICY": str(self.policy),
            "KUBE_ACCEL_STATE": str(self.state),
            "GPUSIM_FILE": str(self.gpus),
            "PYTHONPATH": str(ROOT / "tests"),
        }

    def start(self, code: str, prologue: str = PROLOGUE, **environment: str) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [sys.executable, "-S", "-c", prologue + code],
            env={**self.environment, **environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )

    def words(self, code: str, prologue: str = PROLOGUE, **environment: str) -> list[str]:
        """What the lines print; stderr has to stay empty."""
        out, err = self.both(code, prologue, **environment)
        assert err == ""
        return out.split()

    def both(self, code: str, prologue: str = PROLOGUE, **environment: str) -> tuple[str, str]:
        process = self.start(code, prologue, **environment)
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        return out, err

    def stop(self, process: subprocess.Popen[str]) -> None:
        """Stops a process outside the simulated driver's lock of GPU 0, as the real driver's are the kernel's.

        No process stops inside the kernel; one that stops with the simulator's lock would keep all others waiting.
        """
        while True:
            process.send_signal(signal.SIGSTOP)
            os.waitid(os.P_PID, process.pid, os.WSTOPPED)
            with self.gpus.with_name(f"{self.gpus.name}.cuda").open("rb") as cards:
                _, _, owner = struct.unpack("<3I", cards.read(12))  # a robust mutex begins with its thread's id
            if not Path(f"/proc/{process.pid}/task/{owner & 0x3FFFFFFF}").exists():
                return
            process.send_signal(signal.SIGCONT)

    def account(self, device: int = 0) -> files.DeviceAccount:
        return self.whole_account().devices[device]

    def work(self, device: int = 0) -> Work:
        """The work of one GPU, as the processes count it."""
        names = [name for name, _ in files.STATE_DEVICE]
        before = files.record(files.STATE_DEVICE[: names.index("busy_ns")]).size
        place = files.record(files.STATE_HEADER).size + device * files.record(files.STATE_DEVICE).size + before
        return Work(*struct.unpack_from("<3Q", self.state.read_bytes(), place))

    def whole_account(self) -> files.Account:
        return files.read_state(self.state.read_bytes(), files.MAX_DEVICES, files.NEWEST)


@pytest.fixture(scope="session")
def libraries(tmp_path_factory: pytest.TempPathFactory) -> Libraries:
    driver = tmp_path_factory.mktemp("driver")
    sim.cuda.build(driver)
    sim.nvml.build(driver)
    flags = os.environ.get("NATIVE_CFLAGS", "")
    return Libraries(build_shim(tmp_path_factory.mktemp("shim"), NATIVE_CFLAGS=flags), driver)


@pytest.fixture(scope="session")
def hooks() -> set[str]:
    sources = (path.read_text() for path in NATIVE.glob("*.c") if path.name != "nvml.c")
    return {name for source in sources for name in re.findall(r"^HOOK\((\w+)\)", source, re.MULTILINE)}


def marked() -> set[str]:
    """The functions by which a program may learn that its work is done, as names/cuda.txt marks them."""
    rows = (line.split() for line in (NATIVE / "names/cuda.txt").read_text().splitlines())
    return {row[0] for row in rows if row[1:2] == ["tells"]}


@pytest.fixture
def topology() -> Topology:
    return profiles.h100("sim")


@pytest.fixture
def container(tmp_path: Path, libraries: Libraries, topology: Topology) -> Container:
    """One with 4 GiB of GPU 0."""
    return Container(tmp_path / "container", libraries, topology, [files.Limit(topology.gpus[0].uuid, 4 * GIB, 30)])
