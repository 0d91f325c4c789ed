# SPDX-License-Identifier: Apache-2.0
"""validate.yml: what it reports before the first site.yml and of nodes that serve, and that it changes nothing."""

from __future__ import annotations

import re
import sys
import venv
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from sim.cluster import NodeSpec, Spec
from sim.cluster.client import MERGE, Api, pod, until
from sim.nvml.topology import edit

from .conftest import INVENTORY, Playbooks, Run, Start, play, state

BOOK = "accel.kubernetes.validate"
# One GPU needs no extender.
VARIABLES = {"scheduler_layout": "none"}
PODS = "/api/v1/namespaces/default/pods"
QUOTAS = "/api/v1/namespaces/default/resourcequotas"


def validated(books: Playbooks, *options: str, **variables: object) -> Run:
    """Runs it; whatever it finds, everything stays as it is."""
    before = state(books.cluster)
    done = books.run(BOOK, *options, **VARIABLES | variables)
    assert done.changed == 0, done.output
    assert state(books.cluster) == before
    return done


@pytest.fixture(scope="module")
def bare(start: Start) -> Playbooks:
    """A host that was never prepared."""
    return start(Spec("control", (NodeSpec("gpu-a", "t4"),)))


@pytest.fixture(scope="module")
def serving(bare: Playbooks) -> Playbooks:
    """The same one, which serves."""
    done = bare.run("accel.kubernetes.site", **VARIABLES)
    assert done.code == 0, done.output
    return bare


@pytest.mark.parametrize("options", [(), pytest.param(("--check",), marks=pytest.mark.full)], ids=["run", "check"])
def test_everything_missing_on_a_bare_host_is_named_at_once(bare: Playbooks, options: tuple[str, ...]) -> None:
    done = validated(bare, *options)
    assert done.code != 0, done.output
    for part in (
        "gpu-a: driver none, CUDA none, 0 GPUs; offers nvidia.com/gpu 0",
        "gpu-a: blocked: driver: libnvidia-ml.so.1 cannot be loaded",
        "gpu-a: blocked: container runtime: 'containerd --config",
        "gpu-a: blocked: mode: The node serves no mode, but should serve pgpu. Run site.yml",
    ):
        assert part in done.output, done.output
    table = done.output[done.output.index('"WHERE ') :]
    for what, remedy in (
        ("container runtime", "run the role again"),
        ("driver", "Run site.yml"),
        ("mode", "Run site.yml"),
    ):
        assert re.search(rf'"gpu-a +{what} .*\n +" +> {remedy}', table), done.output
    assert "Blocked: container runtime, driver, mode. The table shows how to fix it" in done.messages


@pytest.mark.parametrize("options", [(), ("--check",)], ids=["run", "check"])
def test_what_the_first_site_lacks_is_one_table(collections: Path, tmp_path: Path, options: tuple[str, ...]) -> None:
    venv.create(tmp_path / "bare", with_pip=False)
    bare = str(tmp_path / "bare/bin/python3")
    inventory = {
        "all": {
            "hosts": {"localhost": {"ansible_connection": "local", "ansible_python_interpreter": bare}},
            "children": {
                "kube_control_plane": {"hosts": {"control": {"ansible_host": "127.0.0.1", "ansible_port": 1}}},
                "gpu_nodes": {
                    "hosts": {"gpu-a": {"ansible_connection": "local", "ansible_python_interpreter": "/no/python3"}}
                },
            },
        }
    }
    (tmp_path / "inventory.yml").write_text(yaml.safe_dump(inventory))
    done = play(collections, BOOK, "-i", str(tmp_path / "inventory.yml"), *options)
    assert done.code != 0, done.output
    for row in (
        r"controller  Python packages  .*kubernetes is not installed.*bare.*> \S+ -m pip install .*'kubernetes>=",
        r"controller  image +No variable names an image.*> make image",
        r"control +host +It cannot be reached: .*> ssh 127.0.0.1",
        r"gpu-a +host +Python does not run on it: .*/no/python3.*> ansible gpu-a .*raw",
    ):
        assert re.search(row, done.output, re.DOTALL), done.output
    assert "kube_control_plane" not in done.messages
    assert {host: counted["failed"] for host, counted in done.recap.items()} == dict.fromkeys(
        ("localhost", "control", "gpu-a"), 1
    )


def test_api_server_that_is_silent_is_the_clusters_fault(collections: Path, tmp_path: Path) -> None:
    local = {"ansible_connection": "local", "ansible_become": False, "ansible_python_interpreter": sys.executable}
    settings = {"gpu_plugins_kubeconfig": str(tmp_path / "absent.conf"), "driver_method": "none"}
    inventory = {"all": {"vars": local | settings, "children": {"gpu_nodes": {"hosts": {"gpu-a": {}}}}}}
    (tmp_path / "inventory.yml").write_text(yaml.safe_dump(inventory))
    done = play(collections, BOOK, "-i", str(tmp_path / "inventory.yml"), gpu_plugins_image="example.com/kube-accel:1")
    assert done.code != 0
    assert re.search(
        r"cluster +API server +It did not answer: .*> kubectl --kubeconfig \S+absent.conf", done.output, re.DOTALL
    )
    assert "API server (cluster)" in done.messages
    assert "device plugin" not in done.output[done.output.index('"WHERE ') :]


@pytest.mark.full
def test_nothing_is_wrong_with_a_node_that_serves(serving: Playbooks) -> None:
    for options in ((), ("--check",)):
        done = validated(serving, *options)
        assert done.code == 0, done.output
        assert "nothing is wrong" in done.output
        for part in (
            "driver: 580.159.04, CUDA 13.0",
            "health: All 1 GPUs",
            "node: ",
            "mode: pgpu",
            "offer: 1 nvidia.com/gpu",
            "rollout: None",
            "quota: None",
        ):
            assert f"gpu-a: ok: {part}" in done.output
        assert "gpu-a: ok: container runtime: " in done.output
        assert "control: ok: scheduler: " in done.output
        assert "gpu-a: driver 580.159.04, CUDA 13.0, 1 GPUs; offers nvidia.com/gpu 1" in done.output


@pytest.mark.full
def test_programs_that_cannot_run_are_refused_by_site_too(serving: Playbooks) -> None:
    programs = [
        {"name": "old", "cuda_version": "12.4", "ptx": False},
        {"name": "serving", "model": "meta-llama/Llama-3.1-8B"},
    ]
    done = validated(serving, gpu_plugins_cuda_programs=programs)
    assert done.code != 0
    said = "Program serving is blocked on gpu-a (dtype): Tesla T4 is of compute capability 7.5"
    assert f"gpu-a: blocked: cuda: {said}" in done.output
    assert "--dtype=half" in done.output
    assert "Program old" not in done.output
    refused = serving.run("accel.kubernetes.site", **VARIABLES, gpu_plugins_cuda_programs=programs)
    assert refused.code != 0
    assert refused.changed == 0
    assert said in refused.messages


@pytest.mark.full
def test_what_is_wrong_with_the_cluster_is_said_once(serving: Playbooks) -> None:
    done = validated(serving, gpu_plugins_cf_crl_enabled=True)
    assert done.code != 0
    assert (
        "gpu-a: blocked: cf-crl: Definitions differ from gpu_plugins_cf_crl_definitions: cf-crl-nvidia-gpu"
        in done.output
    )


def tried(books: Playbooks) -> Run:
    """Runs it with a pod on the node, of which nothing is left."""
    before = state(books.cluster)
    done = books.run(BOOK, **VARIABLES, validate_pod=True)
    assert state(books.cluster) == before, done.output
    return done


@pytest.mark.full
def test_a_pod_sees_its_gpu_and_is_gone_whatever_it_found(serving: Playbooks) -> None:
    done = tried(serving)
    assert done.code == 0, done.output
    assert "gpu-a: ok: pod: answers, 1 GPUs; NVML shows GPU-" in done.output
    assert "; CUDA 13.0 allocates on Tesla T4" in done.output

    library = serving.cluster.root / "gpu-a/usr/lib/libcuda.so.1"
    library.rename(library.with_suffix(".away"))
    try:
        done = tried(serving)
    finally:
        library.with_suffix(".away").rename(library)
    assert done.code != 0
    said = "gpu-a: blocked: pod: A pod with 1 nvidia.com/gpu is Failed: cuda: libcuda.so.1 cannot be loaded"
    assert said in done.output
    assert "see the runtime class" in done.output

    checked = validated(serving, "--check", validate_pod=True)
    assert checked.code == 0, checked.output
    assert "gpu-a: unknown: pod: Check mode starts no pod." in checked.output


@pytest.mark.full
def test_a_full_node_is_no_failure(serving: Playbooks) -> None:
    api = Api(serving.cluster.kubeconfig)
    limits = {"limits": {"nvidia.com/gpu": "1"}}
    api.create(PODS, pod("train", "sleep", "1000", container={"resources": limits}))
    until(lambda: api.get(f"{PODS}/train")["status"]["phase"] == "Running", "the pod runs")
    until(lambda: "train" in api.get("/api/v1/nodes/gpu-a")["metadata"]["annotations"][INVENTORY], "it is told")
    try:
        done = validated(serving, validate_pod=True)
    finally:
        api.call("DELETE", f"{PODS}/train")
        until(lambda: api.call("GET", f"{PODS}/train")[0] == 404, "it has gone")
    assert done.code == 0, done.output
    assert (
        "gpu-a: unknown: pod: The node is full: too little nvidia.com/gpu is left, so no pod was started."
        in done.output
    )


@pytest.fixture
def spent(serving: Playbooks) -> Iterator[None]:
    """A namespace that has used all it may."""
    api = Api(serving.cluster.kubeconfig)
    hard = {"requests.nvidia.com/gpu": "1", "pods": "9"}
    head = {"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": "gpus"}, "spec": {"hard": hard}}
    api.create(QUOTAS, head)
    status = {"status": {"hard": hard, "used": {"requests.nvidia.com/gpu": "1", "pods": "9"}}}
    api.call("PATCH", f"{QUOTAS}/gpus/status", status, MERGE)
    yield
    api.call("DELETE", f"{QUOTAS}/gpus")


@pytest.mark.full
def test_what_may_go_on_is_no_failure(serving: Playbooks, spent: None) -> None:
    api = Api(serving.cluster.kubeconfig)
    with edit(serving.cluster.root / "gpu-a/gpusim.conf") as topology:
        topology.set_health(0, "lost")
    until(lambda: '"unhealthy"' in api.get("/api/v1/nodes/gpu-a")["metadata"]["annotations"][INVENTORY], "it is told")
    done = validated(serving)
    assert "gpu-a: unstable: health: Unhealthy GPUs: GPU 0: " in done.output
    assert "gpu-a: unstable: quota: Used up: default: requests.nvidia.com/gpu." in done.output
    assert "quota of default: 1 of 1 requests.nvidia.com/gpu" in done.output
    with edit(serving.cluster.root / "gpu-a/gpusim.conf") as topology:
        topology.set_health(0, "ok")
