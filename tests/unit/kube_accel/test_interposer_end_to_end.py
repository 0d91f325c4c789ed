# SPDX-License-Identifier: Apache-2.0
"""Programs in containers that the shipped plugin set up, with the interposer as it is and a simulated driver."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kube_accel.model import Mode
from sim import driver, native
from sim.cluster import namespace
from sim.cluster.containers import device_environment, enclosed
from sim.kubelet import ContainerAllocation
from unit.kube_accel.fraction_node import FractionNode
from waiting import wait

GIB = 1 << 30
TESTS = Path(__file__).parents[2]
PROLOGUE = """
import sys
from gpu.driver import CudaError, Driver
driver = Driver({library!r})
driver.open()
GIB = 1 << 30

def attempt(gib):
    try:
        driver.alloc(gib * GIB)
        return 0
    except CudaError as error:
        return error.code
"""

needs_namespaces = pytest.mark.skipif(bool(namespace.forbidden()), reason=f"no namespaces: {namespace.forbidden()}")


class Node(FractionNode):
    """A node whose driver can run programs."""

    def interpose(self) -> None:
        super().interpose()
        driver.install(self.root / "usr/lib", self.topology.system.driver)
        self.enforcement[self.enforcement.index("--shim-dir") + 1] = str(native.build())

    def container(self, name: str, cores: int, gib: int, gpu: int) -> ContainerAllocation:
        pod = self.pod(name, {"main": (cores, gib * 4)}, assigned={"main": (gpu,)})
        got = self.kubelet.admit(pod)["main"]
        self.kubelet.run(pod)
        (self.root / name).mkdir()
        return got

    def start_program(
        self, name: str, got: ContainerAllocation, program: str, library: str = "libcuda.so.1", **variables: str
    ) -> subprocess.Popen[str]:
        argv = [sys.executable, "-c", PROLOGUE.format(library=library) + program]
        found = [(self._place(mount.host_path), mount) for mount in got.mounts]
        argv, more, _ = enclosed(argv, found, self.root / name)
        env = {"PATH": os.environ["PATH"], "PYTHONPATH": str(TESTS)} | device_environment(got.devices, self.root) | more
        return subprocess.Popen(
            argv, env=env | variables, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )

    def run_program(self, name: str, got: ContainerAllocation, program: str, **options: str) -> list[str]:
        process = self.start_program(name, got, program, **options)
        output, errors = process.communicate(timeout=60)
        assert process.returncode == 0, errors
        return output.split()

    def _place(self, path: str) -> Path:
        return Path(path) if path.startswith(str(self.root)) else self.root / path.lstrip("/")


@pytest.fixture
def make() -> Iterator[Callable[..., Node]]:
    with ExitStack() as stack:

        def make(mode: Mode = Mode.VGPU) -> Node:
            root = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/tmp")))
            node = Node(root, stack, mode, gpus="4xa100-mig")
            node.interpose()
            node.start_api()
            node.start()
            node.seen()
            return node

        yield make


def test_share_holds_unnoticed_by_its_neighbour_and_is_counted(make: Callable[..., Node]) -> None:
    node = make()
    greedy, calm = node.container("greedy", 30, 4, 1), node.container("calm", 30, 4, 1)
    neighbour = node.start_program(
        "calm", calm, "print(attempt(2), driver.mem_info(), flush=True); sys.stdin.read(); print(attempt(1))"
    )
    assert neighbour.stdout is not None
    assert neighbour.stdin is not None
    assert neighbour.stdout.readline() == f"0 ({2 * GIB}, {4 * GIB})\n"
    program = "print(attempt(3), attempt(6), attempt(1), attempt(1), *driver.mem_info())"
    assert node.run_program("greedy", greedy, program) == ["0", "2", "0", "2", "0", str(4 * GIB)]
    wait(lambda: node.refusals() == [("greedy", "limit", 2)], "the ledger")
    # What a program had is there again once it has ended.
    assert node.run_program("greedy", greedy, "print(attempt(4))") == ["0"]
    output, errors = neighbour.communicate("go", timeout=60)
    assert (output, neighbour.returncode) == ("0\n", 0), errors
    assert node.refusals() == [("greedy", "limit", 2)]


def test_share_holds_without_namespaces_if_environment_is_kept(
    make: Callable[..., Node], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(namespace, "forbidden", lambda: "it is said so")
    node = make()
    got = node.container("greedy", 30, 4, 1)
    found = [(node.root, mount) for mount in got.mounts]
    _, _, note = enclosed(["true"], found, node.root / "greedy")
    assert "no namespaces here (it is said so)" in note
    assert node.run_program("greedy", got, "print(attempt(3), attempt(6), driver.mem_info()[1])") == [
        *("0", "2", str(4 * GIB)),
    ]


@pytest.mark.attack
@needs_namespaces
@pytest.mark.parametrize(
    ("library", "variables"),
    [
        ("libcuda.so", {}),
        ("/usr/lib/x86_64-linux-gnu/libcuda.so.1", {}),
        ("/usr/lib64/libcuda.so", {}),
        ("libcuda.so.1", {"KUBE_ACCEL_POLICY": "/dev/null", "KUBE_ACCEL_STATE": "/dev/null", "LD_PRELOAD": ""}),
        ("libcuda.so.1", {"NVIDIA_VISIBLE_DEVICES": "all", "CUDA_VISIBLE_DEVICES": "0"}),
    ],
)
def test_neither_names_nor_variables_get_around_it(
    make: Callable[..., Node], library: str, variables: dict[str, str]
) -> None:
    node = make()
    got = node.container("greedy", 30, 4, 1)
    assert node.run_program("greedy", got, "print(attempt(6))", library=library, **variables) == ["2"]


@pytest.mark.attack
@needs_namespaces
def test_limits_cannot_be_written_from_inside(make: Callable[..., Node]) -> None:
    node = make()
    got = node.container("greedy", 30, 4, 1)
    program = """
try:
    open("/etc/kube-accel/policy", "r+b")
except OSError as error:
    print(error.errno)
open("/run/kube-accel/state", "r+b")
"""
    assert node.run_program("greedy", got, program) == ["30"]


def test_whole_gpus_are_not_limited(make: Callable[..., Node]) -> None:
    node = make()
    pod = node.pod("whole", {"main": (100, 0)}, assigned={"main": (2,)})
    got = node.kubelet.admit(pod)["main"]
    node.kubelet.run(pod)
    (node.root / "whole").mkdir()
    size = node.topology.gpus[2].mem
    total = node.run_program("whole", got, "print(attempt(30), driver.mem_info()[1])")
    assert total == ["0", str(size)]


def test_lowered_limit_holds_from_the_next_allocation_on(make: Callable[..., Node]) -> None:
    node = make()
    got = node.container("p", 30, 4, 1)
    process = node.start_program("p", got, "print(attempt(1), flush=True); sys.stdin.read(); print(attempt(2))")
    assert process.stdout is not None
    assert process.stdout.readline() == "0\n"
    data = {"team.p.main": '{"memory": "2Gi"}'}
    body = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "overrides"}, "data": data}
    node.store.create("configmaps", "team", body)
    wait(lambda: any(line["message"] == "limits of a container changed" for line in node.logged()), "the new limits")
    assert process.communicate("go", timeout=60)[0] == "2\n"


def test_the_processes_of_a_container_share_its_limit(make: Callable[..., Node]) -> None:
    node = make(Mode.CGPU)
    pod = node.pod("p", {"main": (0, 4)}, assigned={"main": (1,)})
    got = node.kubelet.admit(pod)["main"]
    node.kubelet.run(pod)
    (node.root / "p").mkdir()
    first = node.start_program("p", got, "print(attempt(3), flush=True); sys.stdin.read()")
    assert first.stdout is not None
    assert first.stdout.readline() == "0\n"
    assert node.run_program("p", got, "print(attempt(2), attempt(1))") == ["2", "0"]
    first.communicate("end", timeout=60)
