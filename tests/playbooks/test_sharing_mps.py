# SPDX-License-Identifier: Apache-2.0
"""A node with a configuration of NVIDIA's plugin that shares GPUs by MPS: what it gets, and how that is taken back."""

from __future__ import annotations

import pytest

from sim.cluster import NodeSpec, Spec
from sim.cluster.client import Api
from sim.cluster.kinds import Object

from .conftest import Playbooks, Run, Start

pytestmark = pytest.mark.full
NODE = "/api/v1/nodes/gpu-a"
CLIENTS = {"sharing": {"mps": {"resources": [{"name": "nvidia.com/gpu", "replicas": 4}]}}}
CONFIGS = {"clients": CLIENTS, "whole": {"version": "v1"}}


@pytest.fixture(scope="module")
def books(start: Start) -> Playbooks:
    return start(Spec("control", (NodeSpec("gpu-a", "t4"),)))


def site(books: Playbooks, configuration: str) -> Run:
    chosen = {"gpu_plugins_configs": CONFIGS, "gpu_plugins_config": configuration}
    return books.run("accel.kubernetes.site", scheduler_layout="none", **chosen)


def offered(api: Api) -> str:
    node: Object = api.get(NODE)
    return str(node["status"]["allocatable"]["nvidia.com/gpu"])


def units(books: Playbooks) -> list[str]:
    wants = books.cluster.root / "gpu-a/etc/systemd/system/multi-user.target.wants"
    return [path.name for path in wants.glob("kube-accel-mps@*")]


def test_replicas_are_offered_and_a_second_run_changes_nothing(books: Playbooks, api: Api) -> None:
    done = site(books, "clients")
    assert done.code == 0, done.output
    assert offered(api) == "4"
    assert len(units(books)) == 1
    again = site(books, "clients")
    assert (again.code, again.changed) == (0, 0), again.output


def test_a_daemon_that_a_killed_run_did_not_reload_is_reloaded(books: Playbooks) -> None:
    """It wrote the command that a control daemon of before is to show containers its socket by."""
    host = books.cluster.root / "gpu-a"
    (record,) = (host / "var/lib/kube-accel-mps").glob("*.command")
    record.write_text("of the command of before\n")
    (socket,) = (host / "run/nvidia/mps").glob("*/client/control")
    socket.unlink()
    done = site(books, "clients")
    assert done.code == 0, done.output
    assert socket.is_socket()
    again = site(books, "clients")
    assert (again.code, again.changed) == (0, 0), again.output


def test_without_it_the_control_daemons_go_and_the_gpu_is_whole(books: Playbooks, api: Api) -> None:
    done = site(books, "whole")
    assert done.code == 0, done.output
    assert offered(api) == "1"
    assert units(books) == []
