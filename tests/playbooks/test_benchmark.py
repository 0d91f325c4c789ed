# SPDX-License-Identifier: Apache-2.0
"""benchmark.yml on a simulated node: what sharing costs there, what is refused, and that no pod is left."""

from __future__ import annotations

import csv
import hashlib
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sim import forks
from sim.cluster import NodeSpec, Spec
from sim.cluster.client import MERGE, Api, pod, until

from .conftest import Playbooks, Run, Start, state

pytestmark = pytest.mark.full
PODS = "/api/v1/namespaces/default/pods"
NODE = "/api/v1/nodes/gpu-a"
OWN = "/api/v1/namespaces/kube-system/pods?labelSelector=app.kubernetes.io/name%3Dkube-accel-benchmark"
NOTE = "kube-accel.io/benchmark"
JOBS = "/apis/batch/v1/namespaces/kube-system/jobs"
SLICED, EIGHT = (
    {"version": "v1", "sharing": {"timeSlicing": {"resources": [{"name": "nvidia.com/gpu", "replicas": replicas}]}}}
    for replicas in (4, 8)
)
VARIABLES = {
    "scheduler_layout": "none",
    "gpu_plugins_configs": {"sliced": SLICED, "eight": EIGHT, "whole": {"version": "v1"}},
}


@pytest.fixture(scope="module")
def books(start: Start) -> Playbooks:
    """A node that serves whole GPUs. One GPU needs no extender."""
    books = start(Spec("control", (NodeSpec("gpu-a", "t4"),)))
    done = books.run("accel.kubernetes.site", gpu_plugins_config="whole", **VARIABLES)
    assert done.code == 0, done.output
    return books


def benchmark(books: Playbooks, *options: str, **variables: Any) -> Run:
    wanted = {"benchmark_node": "gpu-a", "benchmark_launches": 500} | variables
    return books.run("accel.kubernetes.benchmark", *options, **{key: value for key, value in wanted.items() if value})


def left(api: Api) -> list[str]:
    return [item["metadata"]["name"] for path in (OWN, JOBS) for item in api.get(path)["items"]]


def note(api: Api) -> str:
    """What a run has written down on the node."""
    text: str = api.get(NODE)["metadata"].get("annotations", {}).get(NOTE, "")
    return text


def marks(api: Api) -> tuple[dict[str, str], bool, dict[str, str]]:
    """Labels that say what the node serves, whether it is cordoned, and what it offers."""
    node = api.get(NODE)
    names = ("nvidia-device-enable", "cgpu", "nvidia.com/device-plugin.config")
    labels = {name: node["metadata"]["labels"][name] for name in names if name in node["metadata"]["labels"]}
    offered = {name: amount for name, amount in node["status"]["allocatable"].items() if "/" in name and amount != "0"}
    return labels, node["spec"].get("unschedulable", False), offered


def configure(api: Api, name: str, offers: str) -> None:
    """Have the node serve another configuration, as kubectl does it."""
    api.call("PATCH", NODE, {"metadata": {"labels": {"nvidia.com/device-plugin.config": name}}}, MERGE)
    until(lambda: api.get(NODE)["status"]["allocatable"]["nvidia.com/gpu"] == offers, f"{offers} are offered", 900)


def layouts(path: Path) -> dict[str, dict[str, Any]]:
    return {row["layout"]: row for row in json.loads(path.read_text())["rows"]}


def test_a_dry_run_says_what_would_run_and_starts_nothing(books: Playbooks, api: Api, tmp_path: Path) -> None:
    before = state(books.cluster)
    done = benchmark(books, "--check", benchmark_json=str(tmp_path / "a.json"))
    assert done.code == 0, done.output
    assert "Would run whole: 1 pod(s) with 1 nvidia.com/gpu" in done.output
    assert (done.changed, [*tmp_path.iterdir()], left(api)) == (0, [], [])
    assert state(books.cluster) == before


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({"benchmark_node": ""}, "node is empty; name the node"),
        ({"benchmark_node": "gpu-x"}, "node gpu-x does not exist"),
        ({"benchmark_image": "a b", "benchmark_launches": None}, "image is 'a b', which has a space in it"),
        ({"benchmark_csv": "/nowhere/a.csv"}, "csv_file: /nowhere/a.csv: /nowhere has to be a directory"),
    ],
)
def test_what_is_refused_starts_nothing(books: Playbooks, api: Api, variables: dict[str, Any], told: str) -> None:
    refused = benchmark(books, **variables)
    assert refused.code != 0
    assert told in refused.messages, refused.output
    assert "Nothing was started" in refused.messages
    assert left(api) == []


def test_time_slices_are_compared_with_the_whole_gpu(books: Playbooks, api: Api, tmp_path: Path) -> None:
    whole, both = tmp_path / "whole.json", tmp_path / "both.json"
    done = benchmark(books, benchmark_json=str(whole))
    assert done.code == 0, done.output
    assert layouts(whole)["whole"]["seconds"] > 2
    assert left(api) == []

    configure(api, "sliced", offers="4")
    done = benchmark(
        books, benchmark_earlier=str(whole), benchmark_json=str(both), benchmark_csv=f"{tmp_path}/both.csv"
    )
    assert done.code == 0, done.output
    found = layouts(both)
    assert list(found) == ["whole", "time-slices x1", "time-slices x2", "time-slices x4"]
    assert found["whole"] | {"note": ""} == layouts(whole)["whole"] | {"note": ""}
    assert found["time-slices x4"]["seconds"] > 2 * found["time-slices x1"]["seconds"]
    assert found["time-slices x4"]["against"] == "whole"
    with (tmp_path / "both.csv").open() as file:
        assert [row["layout"] for row in csv.DictReader(file)] == list(found)
    assert "NOTE: x8: nvidia.com/gpu has 4 replicas of a GPU" in done.output
    assert left(api) == []

    configure(api, "eight", offers="8")
    eight = tmp_path / "eight.json"
    done = benchmark(books, benchmark_earlier=str(both), benchmark_json=str(eight), benchmark_sharers="8")
    assert done.code == 0, done.output
    assert list(layouts(eight)) == [*found, "time-slices x8"]
    assert layouts(eight)["time-slices x8"]["seconds"] > 4 * found["time-slices x1"]["seconds"]
    assert left(api) == []
    configure(api, "whole", offers="1")


def test_a_pod_that_holds_the_gpu_is_named(books: Playbooks, api: Api) -> None:
    container = {"command": ["sleep", "1000"], "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    api.create(PODS, pod("train", container=container))
    until(lambda: api.get(f"{PODS}/train")["status"]["phase"] == "Running", "the pod runs")
    refused = benchmark(books)
    api.call("DELETE", f"{PODS}/train")
    until(lambda: api.get(PODS)["items"] == [], "the pod is gone")
    assert refused.code != 0
    assert "default/train use its GPUs" in refused.messages
    assert left(api) == []


def test_a_workload_of_ones_own_that_fails_leaves_no_pod(books: Playbooks, api: Api) -> None:
    own = {"benchmark_image": "example.org/own:1", "benchmark_launches": None, "benchmark_sharers": "2"}
    failed = benchmark(books, benchmark_command="sh -c 'echo no luck; exit 3'", **own)
    assert failed.code != 0
    assert "a pod failed with exit code 3: no luck" in failed.messages, failed.output
    assert left(api) == []
    done = benchmark(books, benchmark_command=["sh", "-c", "echo took 4.5 s"], benchmark_figure="took (.*) s", **own)
    assert done.code == 0, done.output
    assert "4.500" in done.output


def test_modes_are_measured_in_turn_and_the_node_is_brought_back(books: Playbooks, api: Api, tmp_path: Path) -> None:
    before, report = marks(api), tmp_path / "all.json"
    done = benchmark(
        books,
        benchmark_layouts="pgpu,pgpu/sliced,vgpu,mps,cgpu",
        benchmark_json=str(report),
        benchmark_sharers="1,2",
        **VARIABLES,
    )
    assert done.code == 0, done.output
    shares = [f"{layout} x{number}" for layout in ("vGPU", "MPS", "cGPU") for number in (1, 2)]
    found = layouts(report)
    assert list(found) == ["whole", "time-slices x1", "time-slices x2", *shares]
    assert found["vGPU x2"]["environment"]["mode"] == "vgpu"
    assert all(row["loss_percent"] is not None and row["against"] == "whole" for row in found.values())
    assert found["vGPU x2"]["seconds"] > 1.5 * found["whole"]["seconds"]
    assert (marks(api), note(api), left(api)) == (before, "", [])


def test_a_failure_in_another_mode_brings_the_node_back(books: Playbooks, api: Api) -> None:
    before = marks(api)
    own = {"benchmark_image": "example.org/own:1", "benchmark_launches": None, "benchmark_command": "false"}
    failed = benchmark(books, benchmark_layouts=["cgpu"], **own, **VARIABLES)
    assert failed.code != 0
    assert "cGPU x1: a pod failed with exit code 1" in failed.messages, failed.output
    assert (marks(api), note(api), left(api)) == (before, "", [])


@pytest.fixture
def unforked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Modules are processes below Ansible, which learn from that when it is gone. Forks are below their server."""
    monkeypatch.delenv(forks.VARIABLE)


def workers(pid: int) -> list[Path]:
    """Processes of Ansible's that run tasks: each has a session of its own, and outlives Ansible until it is done."""
    children = [(task / "children").read_text() for task in Path(f"/proc/{pid}/task").iterdir()]
    return [Path("/proc", child) for child in " ".join(children).split()]


def killed(books: Playbooks, api: Api, mode: str, ready: Callable[[], bool]) -> None:
    """Kill a run once it brings this mode about. When this returns, what outlived it has ended as well."""
    wanted = {"benchmark_node": "gpu-a", "benchmark_launches": 100_000, "benchmark_layouts": f"{mode},pgpu/sliced"}
    process = books.start("accel.kubernetes.benchmark", **wanted, **VARIABLES)
    outlive: list[Path] = []
    try:
        until(ready, f"the run brings mode {mode} about", 600)
        outlive = workers(process.pid)
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    until(lambda: not any(map(Path.exists, outlive)), "what outlives it ends")
    assert left(api) == []


def leave_job(api: Api) -> None:
    """A Job as a run has it that measures mode vgpu."""
    name = f"kube-accel-benchmark-{hashlib.sha256(b'gpu-a').hexdigest()[:12]}"
    labels = {"app.kubernetes.io/name": "kube-accel-benchmark", "app.kubernetes.io/instance": name}
    asked = {"limits": {"tencent.com/vcuda-core": "50", "tencent.com/vcuda-memory": "20"}}
    spec = pod("none", container={"command": ["sleep", "1000"], "resources": asked})["spec"] | {
        "restartPolicy": "Never"
    }
    head = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name, "labels": labels}}
    api.create(JOBS, head | {"spec": {"template": {"metadata": {"labels": labels}, "spec": spec}}})
    running = f"{OWN}&fieldSelector=status.phase%3DRunning"
    until(lambda: api.get(running)["items"], "its pod runs")


@pytest.mark.usefixtures("unforked")
def test_a_killed_run_is_brought_back_by_the_next(books: Playbooks, api: Api) -> None:
    before = marks(api)
    killed(books, api, "vgpu", lambda: marks(api)[0]["nvidia-device-enable"] == "vgpu" and len(left(api)) == 2)
    leave_job(api)
    written = json.loads(note(api))
    assert (written["before"]["config"], [layout["mode"] for layout in written["layouts"]]) == (
        "whole",
        ["vgpu", "pgpu"],
    )
    found = (marks(api), note(api), left(api))

    dry = benchmark(books, "--check", benchmark_layouts="cgpu", **VARIABLES)
    assert dry.code == 0, dry.output
    assert "the node would be restored to pgpu/whole" in dry.output
    assert "Would switch the node and measure cgpu" in dry.output
    assert (marks(api), note(api), left(api)) == found

    done = benchmark(books, benchmark_layouts="pgpu", **VARIABLES)
    assert done.code == 0, done.output
    assert "First its Job is removed, and the node is restored to pgpu/whole" in done.output
    assert "whole" in done.output
    assert (marks(api), note(api), left(api)) == (before, "", [])


@pytest.mark.usefixtures("unforked")
def test_a_run_killed_while_it_switches_is_taken_up(books: Playbooks, api: Api) -> None:
    before = marks(api)
    killed(books, api, "cgpu", lambda: marks(api)[1])
    done = benchmark(books, benchmark_layouts="pgpu", **VARIABLES)
    assert done.code == 0, done.output
    assert (marks(api), note(api), left(api)) == (before, "", [])


def test_an_odd_annotation_is_refused_before_anything_changes(books: Playbooks, api: Api, tmp_path: Path) -> None:
    before, odd = marks(api), f"{{{{ lookup('pipe', 'touch {tmp_path}/ran') }}}}"
    api.call("PATCH", NODE, {"metadata": {"annotations": {NOTE: odd}}}, MERGE)
    refused = benchmark(books, benchmark_layouts="vgpu", **VARIABLES)
    assert (refused.code != 0, refused.changed) == (True, 0), refused.output
    assert "annotation kube-accel.io/benchmark cannot be read: " in refused.messages, refused.output
    assert "kubectl annotate node gpu-a kube-accel.io/benchmark-" in refused.messages
    assert (marks(api), note(api), left(api), [*tmp_path.iterdir()]) == (before, odd, [], [])
    api.call("PATCH", NODE, {"metadata": {"annotations": {NOTE: None}}}, MERGE)


@pytest.mark.parametrize(
    ("wanted", "told"),
    [
        ("pgpu,whole", "benchmark_layouts has 'whole' with mode 'whole'"),
        ("pgpu/none", "benchmark_layouts has pgpu/none, and gpu_plugins_configs has sliced, whole"),
        (
            [{"mode": "pgpu", "mig_config": "all-1g.5gb"}],
            "splits GPUs of 'gpu-a' by MIG, but the inventory does not say",
        ),
    ],
)
def test_layouts_that_cannot_be_are_refused_before_any(books: Playbooks, api: Api, wanted: Any, told: str) -> None:
    before = marks(api)
    refused = benchmark(books, benchmark_layouts=wanted, **VARIABLES)
    assert refused.code != 0
    assert told in refused.messages, refused.output
    assert (marks(api), left(api), refused.changed) == (before, [], 0)


@pytest.mark.usefixtures("unforked")
def test_an_interrupted_run_leaves_no_pod(books: Playbooks, api: Api) -> None:
    wanted = {"benchmark_node": "gpu-a", "benchmark_launches": 100_000}
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGKILL):
        process = books.start("accel.kubernetes.benchmark", **wanted)
        until(lambda: len(left(api)) == 2, "a pod of it is there")
        os.kill(process.pid, number)
        process.communicate()
        until(lambda: left(api) == [], "its pods go")
