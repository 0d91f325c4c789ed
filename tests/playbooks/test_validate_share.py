# SPDX-License-Identifier: Apache-2.0
"""validate_share.yml on a simulated node of mode vgpu: what a share is, what is refused, and that no pod is left."""

from __future__ import annotations

import json
import os
import signal
from pathlib import Path
from typing import Any

import pytest

from sim.cluster import NodeSpec, Spec
from sim.cluster.client import Api, pod, until
from sim.inventory import write_inventory

from .conftest import Playbooks, Run, Start, state
from .test_benchmark import PODS, left

pytestmark = pytest.mark.full
GIB = 1 << 30


@pytest.fixture(scope="module")
def books(start: Start) -> Playbooks:
    """A node that shares its GPU. One GPU needs no extender."""
    books = start(Spec("control", (NodeSpec("gpu-a", "t4"),)))
    write_inventory(books.cluster.root, {"gpu-a": "vgpu"}, scheduler_layout="none")
    done = books.run("accel.kubernetes.site")
    assert done.code == 0, done.output
    return books


def prove(books: Playbooks, *options: str, **variables: Any) -> Run:
    wanted = {"validate_share_node": "gpu-a", "validate_share_sharers": 2, "validate_share_seconds": 5} | variables
    return books.run("accel.kubernetes.validate_share", *options, **wanted)


def test_check_mode_says_what_would_run_and_starts_nothing(books: Playbooks, api: Api, tmp_path: Path) -> None:
    before = state(books.cluster)
    done = prove(books, "--check", validate_share_json=str(tmp_path / "a.json"))
    assert done.code == 0, done.output
    assert "Would run alone: 1 pod(s) with 50 tencent.com/vcuda-core" in done.output
    assert (done.changed, [*tmp_path.iterdir()], left(api)) == (0, [], [])
    assert state(books.cluster) == before


def test_half_a_gpu_is_proved_alone_and_beside_a_neighbor(books: Playbooks, api: Api, tmp_path: Path) -> None:
    file = tmp_path / "a.json"
    done = prove(books, validate_share_json=str(file))
    assert done.code == 0, done.output
    told = json.loads(file.read_text())
    assert (told["problems"], left(api)) == ([], [])
    assert told["share"] == {"cores": 50, "memory_bytes": 30 * GIB // 4}
    assert [row["setting"] for row in told["rows"]] == ["alone", "beside a neighbor", "beside a neighbor"]
    for row in told["rows"]:
        assert row["figures"]["got_bytes"] == row["figures"]["cuda_bytes"] == told["share"]["memory_bytes"]
        assert row["figures"]["beyond_code"] == 2
        assert 0.3 < row["figures"]["gpu_time_ratio"] < 0.55
    assert "CUDA_ERROR_OUT_OF_MEMORY (2)" in done.output


def test_a_pod_that_holds_the_gpu_is_named_and_nothing_started(books: Playbooks, api: Api) -> None:
    limits = {"tencent.com/vcuda-core": "10", "tencent.com/vcuda-memory": "4"}
    api.create(PODS, pod("holds", container={"command": ["sleep", "1000"], "resources": {"limits": limits}}))
    until(lambda: api.get(f"{PODS}/holds")["status"].get("phase") == "Running", "it runs")
    refused = prove(books)
    assert refused.code != 0
    assert "default/holds use its GPUs" in refused.messages
    assert "Nothing was started" in refused.messages
    api.call("DELETE", f"{PODS}/holds?gracePeriodSeconds=0")
    until(lambda: not api.get(PODS)["items"], "it is gone")


def test_pods_go_whichever_way_the_playbook_ends(books: Playbooks, api: Api) -> None:
    wanted = {"validate_share_node": "gpu-a", "validate_share_seconds": 600}
    for number in (signal.SIGINT, signal.SIGKILL):
        process = books.start("accel.kubernetes.validate_share", **wanted)
        until(lambda: len(left(api)) == 2, "a pod of it is there")
        os.kill(process.pid, number)
        process.communicate()
        until(lambda: left(api) == [], "its pods go")
