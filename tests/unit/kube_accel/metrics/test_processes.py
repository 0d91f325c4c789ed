# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest

from kube_accel.kube.cgroups import Place
from kube_accel.metrics.attribute import Outcome, Owner
from kube_accel.metrics.processes import Processes
from kube_accel.metrics.tenancy import Container
from unit.kube_accel.metrics.proc import CGROUPS, ID, UID, cgroup, run

A = Container("team", "a", "main")


@pytest.fixture
def processes(tmp_path: Path) -> Processes:
    return Processes(tmp_path, {Place(UID, ID): A}.get)


@pytest.mark.parametrize("form", CGROUPS)
def test_a_process_is_in_the_container_that_its_cgroups_name(processes: Processes, tmp_path: Path, form: str) -> None:
    run(tmp_path, 7, cgroup(UID, ID, form))
    assert processes.owners([7]) == {7: Owner(Outcome.CONTAINER, A)}


def test_processes_of_the_host_and_of_mps_are_recognized(processes: Processes, tmp_path: Path) -> None:
    run(tmp_path, 1, "0::/init.scope\n", "systemd")
    run(tmp_path, 2, "0::/system.slice/kube-accel-mps@x.service\n", "nvidia-cuda-mps")
    run(tmp_path, 3, cgroup("00000000-0000-0000-0000-000000000000", ID))
    assert processes.owners([1, 2, 3, 4]) == {
        1: Owner(Outcome.HOST),
        2: Owner(Outcome.MPS_SERVER),
        3: Owner(Outcome.NO_POD),
        4: Owner(Outcome.GONE),
    }


@pytest.mark.attack
def test_a_tenants_process_does_not_pass_for_the_server(processes: Processes, tmp_path: Path) -> None:
    run(tmp_path, 5, cgroup(UID, ID), "nvidia-cuda-mps")
    assert processes.owners([5]) == {5: Owner(Outcome.CONTAINER, A)}


def test_a_name_with_brackets_is_a_name(processes: Processes, tmp_path: Path) -> None:
    run(tmp_path, 5, cgroup(UID, ID), "a) R 1 (b")
    assert processes.owners([5]) == {5: Owner(Outcome.CONTAINER, A)}
    run(tmp_path, 5, "0::/\n", "a) R 1 (b", started=2)
    assert processes.owners([5]) == {5: Owner(Outcome.HOST)}


def test_cgroups_are_read_once_in_a_life(processes: Processes, tmp_path: Path) -> None:
    run(tmp_path, 7, cgroup(UID, ID))
    assert processes.owners([7])[7].container == A
    (tmp_path / "7/cgroup").unlink()
    assert processes.owners([7])[7].container == A
    run(tmp_path, 7, "0::/\n", started=99)
    assert processes.owners([7]) == {7: Owner(Outcome.HOST)}


def test_a_process_that_has_ended_since_is_whose_it_was(processes: Processes, tmp_path: Path) -> None:
    """NVML still has its samples."""
    run(tmp_path, 7, cgroup(UID, ID))
    processes.owners([7])
    shutil.rmtree(tmp_path / "7")
    assert processes.owners([7])[7].container == A
    processes.owners([])
    assert processes.owners([7]) == {7: Owner(Outcome.GONE)}


def test_a_pod_that_is_told_of_later_is_known_then(tmp_path: Path) -> None:
    pods: dict[Place, Container] = {}
    processes = Processes(tmp_path, pods.get)
    run(tmp_path, 7, cgroup(UID, ID))
    assert processes.owners([7]) == {7: Owner(Outcome.NO_POD)}
    pods[Place(UID, ID)] = A
    assert processes.owners([7]) == {7: Owner(Outcome.CONTAINER, A)}


def test_a_proc_of_another_pid_namespace_is_noticed(tmp_path: Path) -> None:
    processes = Processes(tmp_path, lambda place: None)
    assert processes.visible()
    (tmp_path / "self").symlink_to(str(os.getpid()))
    assert processes.visible()
    (tmp_path / "self").unlink()
    (tmp_path / "self").symlink_to("1234567")
    assert not processes.visible()
    assert Processes(Path("/proc"), lambda place: None).visible()
