# SPDX-License-Identifier: Apache-2.0
"""diagnose.yml: what it says of pods and nodes that something happened to, and that it changes nothing."""

from __future__ import annotations

import tarfile
from pathlib import Path
from typing import Any

import pytest

from sim.cluster import NodeSpec, Spec
from sim.cluster.client import Api, pod, until
from sim.inventory import write_inventory
from sim.nvml.topology import edit

from .conftest import INVENTORY, REPOSITORY, Playbooks, Run, Start, state

PODS = "/api/v1/namespaces/default/pods"
DAEMONSET = "/apis/apps/v1/namespaces/kube-system/daemonsets/gpu-manager-daemonset"
# One GPU needs no extender.
VARIABLES = {"scheduler_layout": "none"}
SHARE = {"tencent.com/vcuda-core": "20", "tencent.com/vcuda-memory": "8"}
PROGRAM = f"PYTHONPATH={REPOSITORY}/tests python3 {REPOSITORY}/tests/demo/program.py"


@pytest.fixture(scope="module")
def bare(start: Start) -> Playbooks:
    """A node that is to share its GPU."""
    bare = start(Spec("control", (NodeSpec("gpu-a", "t4"),)))
    write_inventory(bare.cluster.root, {"gpu-a": "vgpu"})
    return bare


@pytest.fixture(scope="module")
def books(bare: Playbooks) -> Playbooks:
    """It does."""
    done = bare.run("accel.kubernetes.site", **VARIABLES)
    assert done.code == 0, done.output
    return bare


def diagnosed(books: Playbooks, **asked: Any) -> Run:
    done = books.run("accel.kubernetes.diagnose", **asked)
    assert done.changed == 0, done.output
    return done


def wish(name: str, script: str, limits: dict[str, str]) -> dict[str, Any]:
    container = {"command": ["sh", "-c", script], "resources": {"limits": limits}}
    return pod(name, container=container, runtimeClassName="nvidia", restartPolicy="Never")


def told(api: Api, name: str, reason: str) -> list[str]:
    found = api.get(f"/api/v1/namespaces/default/events?fieldSelector=involvedObject.name%3D{name}")["items"]
    return [item["message"] for item in found if item["reason"] == reason]


@pytest.mark.parametrize(
    ("asked", "problem"),
    [
        ({"diagnose_pod": "default/none"}, "pod default/none does not exist"),
        pytest.param({"diagnose_node": "none"}, "node none does not exist", marks=pytest.mark.full),
    ],
)
def test_what_is_not_there_is_said_after_the_rest_and_fails(
    bare: Playbooks, asked: dict[str, str], problem: str
) -> None:
    done = diagnosed(bare, **asked)
    assert done.code != 0
    assert f"NOT KNOWN: {problem}" in done.output
    assert "LOOKED AT: " in done.output
    assert problem in done.messages


@pytest.mark.full
def test_a_program_that_wanted_more_than_its_share(books: Playbooks, api: Api) -> None:
    api.create(PODS, wish("greedy", f"{PROGRAM} 1 6", SHARE))
    until(lambda: told(api, "greedy", "GpuMemoryRefused"), "the plugin to tell of it")
    done = diagnosed(books, diagnose_pod="default/greedy")
    assert done.code == 0, done.output
    line = "1. pod default/greedy container main: it needed more GPU memory than its share has (quota_oom, certain)"
    assert line in done.output
    assert "event GpuMemoryRefused: container main: an allocation on GPU 0 was refused: over the" in done.output
    assert "log: 6 GiB: refused, CUDA error 2" in done.output
    assert "REMEDY: Ask for more tencent.com/vcuda-memory" in done.output
    api.call("DELETE", f"{PODS}/greedy?gracePeriodSeconds=0")


@pytest.mark.full
def test_what_support_asks_for_is_one_file_without_secrets(books: Playbooks, api: Api, tmp_path: Path) -> None:
    script = "echo connecting with password=hunter2-logged; sleep 1000"
    item = wish("secretive", script, SHARE)
    item["spec"]["containers"][0]["env"] = [{"name": "DB_PASSWORD", "value": "hunter2-set"}]
    api.create(PODS, item)
    until(lambda: "hunter2" in str(api.call("GET", f"{PODS}/secretive/log")[1]), "its log")
    path = tmp_path / "support.tar.gz"
    done = books.run("accel.kubernetes.diagnose", diagnose_pod="default/secretive", diagnose_bundle=str(path))
    assert done.code == 0, done.output
    assert f"{path}: " in done.output
    with tarfile.open(path) as archive:
        files = {entry.name.partition("/")[2]: archive.extractfile(entry).read() for entry in archive}  # type: ignore[union-attr]
    assert "hunter2" not in str(files)
    assert b"connecting with password=[redacted]" in files["logs/default_secretive_main.log"]
    assert b"accel_gpu_info" in files["metrics/gpu-a.prom"]
    plugin = next(name for name in files if name.startswith("logs/kube-system_gpu-manager-daemonset-"))
    assert b'"message"' in files[plugin]
    assert {"nodes/gpu-a.json", "objects/DaemonSet_kube-system_gpu-manager-daemonset.json"} <= files.keys()
    api.call("DELETE", f"{PODS}/secretive?gracePeriodSeconds=0")


@pytest.mark.full
def test_a_pod_that_no_node_serves_waits_for_a_mode(books: Playbooks, api: Api) -> None:
    api.create(PODS, wish("elsewhere", "sleep 1000", {"nvidia.com/mps-core": "20", "nvidia.com/mps-memory": "2"}))
    path = f"{PODS}/elsewhere"
    until(lambda: api.get(path)["status"].get("conditions"), "the scheduler to refuse it")
    done = diagnosed(books, diagnose_pod="default/elsewhere")
    assert done.code == 0, done.output
    assert (
        "1. pod default/elsewhere: it requests resources of mode mps, which no node serves (mode_mismatch"
        in done.output
    )
    assert "modes of the nodes: vgpu: gpu-a" in done.output
    assert "2. " not in done.output
    api.call("DELETE", f"{path}?gracePeriodSeconds=0")


@pytest.mark.full
def test_a_program_too_new_for_its_gpu_and_what_it_logged_before(books: Playbooks, api: Api) -> None:
    """The line is in the log of the previous run; the run after it says nothing yet."""
    words = "ValueError: Bfloat16 is only supported on GPUs with compute capability of at least 8.0. token=abcdef99"
    script = f"test -e twice && sleep 1000; touch twice; echo '{words}'; exit 1"
    api.create(PODS, wish("serve", script, SHARE))
    item = wish("serve-2", script, SHARE)
    item["spec"]["restartPolicy"] = "Always"
    api.create(PODS, item)
    until(
        lambda: api.get(f"{PODS}/serve-2")["status"].get("containerStatuses", [{}])[0].get("restartCount"), "a restart"
    )
    for name, log in (("serve", "log"), ("serve-2", "log of the previous run")):
        done = diagnosed(books, diagnose_pod=f"default/{name}")
        assert "(bfloat16, certain)" in done.output
        assert f"{log}: ValueError: Bfloat16 is only supported" in done.output
        assert "Tesla-T4: compute capability 7.5" in done.output
        assert "abcdef99" not in done.output
        api.call("DELETE", f"{PODS}/{name}?gracePeriodSeconds=0")


@pytest.mark.full
def test_a_gpu_that_fell_off_the_bus(books: Playbooks, api: Api) -> None:
    path = books.cluster.root / "gpu-a/gpusim.conf"
    with edit(path) as topology:
        topology.set_health(0, "lost")
    path_of_node = "/api/v1/nodes/gpu-a"
    until(lambda: '"unhealthy"' in api.get(path_of_node)["metadata"]["annotations"][INVENTORY], "it is told")
    done = diagnosed(books, diagnose_node="gpu-a")
    assert done.code == 0, done.output
    assert "1. node gpu-a GPU 0: it is lost, and not allocated (gpu_lost, certain)" in done.output
    assert "power-cycle" in done.output
    with edit(path) as topology:
        topology.set_health(0, "ok")
    until(lambda: '"unhealthy"' not in api.get(path_of_node)["metadata"]["annotations"][INVENTORY], "it is well")


@pytest.mark.full
def test_a_plugin_that_is_gone_and_the_whole_cluster_looked_at(books: Playbooks, api: Api) -> None:
    code, _ = api.call("DELETE", DAEMONSET)
    assert code == 200
    until(
        lambda: (
            not [i for i in api.get("/api/v1/namespaces/kube-system/pods")["items"] if "gpu-" in i["metadata"]["name"]]
        ),
        "it",
    )
    before = state(books.cluster)
    for options in ((), ("--check",)):
        done = books.run("accel.kubernetes.diagnose", *options)
        assert done.code == 0, done.output
        assert "1. node gpu-a: no plugin runs on it (plugin_down, certain)" in done.output
        assert "site.yml --tags gpu_plugins" in done.output
        assert "LOOKED AT: node gpu-a: " in done.output
        assert done.changed == 0
    assert state(books.cluster) == before
