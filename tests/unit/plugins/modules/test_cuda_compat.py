# SPDX-License-Identifier: Apache-2.0
"""Module cuda_compat against facts, a registry and an API server."""

from __future__ import annotations

import hashlib
import io
import json
import os
import tarfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from sim.cluster.apiserver import ApiServer, Authority
from sim.cluster.store import Store
from unit.plugins.modules.registry import Registry

Ask = Callable[..., dict[str, Any]]
FACTS = {
    "available": True,
    "driver_version": "535.161.08",
    "cuda_version": "12.2",
    "gpus": [{"model": "Tesla T4", "compute_capability": "7.5"}],
}
LABELS = {
    "nvidia.com/cuda.driver-version.full": "580.159.04",
    "nvidia.com/cuda.runtime-version.full": "13.0",
    "nvidia.com/gpu.product": "NVIDIA-H100-80GB-HBM3",
    "nvidia.com/gpu.compute.major": "9",
    "nvidia.com/gpu.compute.minor": "0",
    "kubernetes.io/arch": "arm64",
}


@pytest.fixture
def ask(run_module: Callable[..., dict[str, Any]]) -> Ask:
    """Runs the module and returns what it says."""

    def run(*, check: bool = False, **options: Any) -> dict[str, Any]:
        result = run_module("cuda_compat", options, check=check)
        assert not result.get("changed")
        return result

    return run


@pytest.fixture
def registry() -> Iterator[Registry]:
    with Registry(auth="bearer") as registry:
        yield registry


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[tuple[Store, str]]:
    """A cluster with one GPU node, and its kubeconfig."""
    store = Store()
    for name in ("default", "team"):
        store.create("namespaces", "", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "gpu-1", "labels": LABELS}}
    store.create("nodes", "", node)
    server = ApiServer(store, Authority(), lambda pod, container: tmp_path / "none")
    server.start()
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(server.kubeconfig("admin", server.admin_token))
    yield store, str(kubeconfig)
    server.stop()


def layer(*names: str) -> bytes:
    """A layer of an image with empty files."""
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w:gz") as archive:
        for name in names:
            archive.addfile(tarfile.TarInfo(name))
    return packed.getvalue()


def put(
    registry: Registry,
    name: str,
    environment: list[str],
    architectures: tuple[str, ...] = (),
    layers: tuple[bytes, ...] = (),
    history: tuple[str, ...] = (),
) -> str:
    """Stores an image, or an index of it for some architectures; returns its reference."""

    def keep(document: dict[str, Any], into: dict[str, bytes]) -> str:
        data = json.dumps(document).encode()
        digest = f"sha256:{hashlib.sha256(data).hexdigest()}"
        into[digest] = data
        return digest

    commands = [{"created_by": command} for command in history]
    config = keep({"config": {"Env": environment, "Labels": None}, "history": commands}, registry.blobs)
    stored = [{"digest": f"sha256:{hashlib.sha256(data).hexdigest()}", "size": len(data)} for data in layers]
    registry.blobs.update((each["digest"], data) for each, data in zip(stored, layers, strict=True))
    kind = "application/vnd.docker.distribution.manifest.v2+json"
    manifest = {"mediaType": kind, "config": {"digest": config}, "layers": stored}
    digest = keep(manifest, registry.manifests)
    top = registry.manifests[digest]
    if architectures:
        entries = [{"digest": digest, "platform": {"architecture": one}} for one in architectures]
        top = json.dumps({"manifests": entries}).encode()
    registry.manifests[name] = top
    return f"{registry.name}/gpu/kube-accel:{name}"


def access(registry: Registry) -> dict[str, Any]:
    return {"insecure": True, "username": "robot", "password": "pass word"}


def test_options_say_what_the_program_needs(ask: Ask) -> None:
    assert ask(facts=FACTS, cuda_version="12.1")["verdict"] == "ok"
    answer = ask(facts=FACTS, cuda_version="13.0")
    assert (answer["verdict"], answer["rule"]) == ("blocked", "driver_is_older")
    assert ask(check=True, facts=FACTS, cuda_version="13.0") == answer
    assert answer["remedy"].startswith("Upgrade the driver to branch 580")
    assert answer["checks"][0]["subject"] == "program"
    assert ask(facts=FACTS, cuda_version="12.4", ptx=False)["verdict"] == "ok"
    assert ask(facts=FACTS, model="meta-llama/Llama-3.1-8B")["remedy"].endswith("(vLLM: --dtype=half).")
    assert ask(facts=FACTS, model="meta-llama/Llama-3.1-8B", dtype="half")["verdict"] == "ok"
    virtualized = {"facts": FACTS, "cuda_version": "12.2", "virtualization_version": "11.8", "mode": "vgpu"}
    assert ask(**virtualized, cores=30)["verdict"] == "blocked"
    assert ask(**virtualized, cores=100)["verdict"] == "ok"


def test_an_image_says_it_too_and_options_win(ask: Ask, registry: Registry) -> None:
    environment = ["CUDA_VERSION=12.4.1", "NVIDIA_REQUIRE_CUDA=cuda>=12.4 brand=tesla,driver>=535,driver<536", "PATH=/"]
    image = put(registry, "cuda", environment)
    options = {"facts": FACTS, "image": image, "registry": access(registry)}
    answer = ask(**options)
    assert (answer["verdict"], answer["rule"]) == ("ok", "forward_compatibility"), answer
    assert answer["checks"][0]["subject"] == image
    assert ask(**options, cuda_version="13.0", compat_version="12.4")["verdict"] == "blocked"
    older = {**FACTS, "driver_version": "545.23.08", "cuda_version": "12.3"}
    refused = ask(**{**options, "facts": older})
    assert {finding["rule"] for finding in refused["checks"][0]["findings"]} == {
        "forward_compatibility",
        "image_requirement",
    }
    pinned = f"{image}@{next(digest for digest in registry.manifests if digest.startswith('sha256:'))}"
    assert ask(**{**options, "image": pinned})["rule"] == "forward_compatibility"


def test_an_image_whose_runtime_nothing_names_is_unknown(ask: Ask, registry: Registry) -> None:
    options = {"facts": FACTS, "registry": access(registry)}
    answer = ask(**options, image=put(registry, "plain", ["PATH=/"]))
    assert (answer["verdict"], answer["rule"]) == ("unknown", "runtime")
    assert "files" in answer["remedy"]
    assert ask(facts=FACTS, environment={"PATH": "/"})["verdict"] == "unknown"
    made = ask(**options, image=put(registry, "made", [], history=("RUN pip install torch==2.6.0+cu118",)))
    assert (made["verdict"], made["rule"]) == ("ok", "driver_is_newer")
    assert "11.8 (+cu118)" in made["reason"]
    assert ask(**options, image=put(registry, "2.3-cuda13.0", []))["rule"] == "driver_is_older"
    assert ask(facts=FACTS, files=["nvidia-cuda-runtime==13.0.88"])["rule"] == "driver_is_older"


def test_a_runtime_is_looked_for_in_layers(ask: Ask, registry: Registry) -> None:
    below, above = layer("opt/libcudart.so.11.8.89"), layer("opt/libcudart.so.13.0.96", "bin/sh")
    image = put(registry, "layers", ["PATH=/"], layers=(below, above, layer("etc/passwd")))
    options = {"facts": FACTS, "registry": access(registry), "image": image}
    assert ask(**options)["verdict"] == "unknown"
    answer = ask(**options, layers_mib=1)
    assert (answer["rule"], "13.0.96" in answer["reason"]) == ("driver_is_older", True), answer
    digest = f"sha256:{hashlib.sha256(above).hexdigest()}"
    registry.blobs[digest] = below
    assert "sent other bytes" in ask(**options, layers_mib=1)["msg"]
    large = put(registry, "large", [], layers=(below, os.urandom(2 << 20)))
    assert "11.8 (libcudart.so.11.8.89)" in ask(**{**options, "image": large}, layers_mib=1)["reason"]
    damaged = put(registry, "damaged", [], layers=(below[:40],))
    assert "cannot be read" in ask(**{**options, "image": damaged}, layers_mib=1)["msg"]


def test_an_image_that_cannot_be_read_is_an_error_that_names_it(ask: Ask, registry: Registry) -> None:
    options = {"facts": FACTS, "registry": access(registry)}
    missing = ask(**options, image=f"{registry.name}/gpu/kube-accel:none")
    assert "status 404" in missing["msg"]
    image = put(registry, "arm", [], ("arm64",))
    assert "is there for arm64 and not for amd64" in ask(**options, image=image)["msg"]
    assert "is not the name of an image" in ask(**options, image="UPPER")["msg"]


def test_a_pod_is_looked_at_container_by_container(ask: Ask, registry: Registry, cluster: tuple[Store, str]) -> None:
    store, kubeconfig = cluster
    image = put(registry, "both", ["CUDA_VERSION=11.8.0"], ("amd64", "arm64"))
    container = {"name": "train", "image": image, "resources": {"limits": {"nvidia.com/gpu": "1"}}}
    share = {"tencent.com/vcuda-core": "30", "tencent.com/vcuda-memory": "8"}
    newer = {**container, "name": "serve", "env": [{"name": "CUDA_VERSION", "value": "13.2"}]}
    newer["resources"] = {"limits": share}
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "work", "namespace": "team"},
        "spec": {"nodeName": "gpu-1", "containers": [container, {"name": "log", "image": "none"}, newer]},
    }
    store.create("pods", "team", pod)
    options = {"kubeconfig": kubeconfig, "registry": access(registry), "pod": {"name": "work", "namespace": "team"}}
    answer = ask(**options)
    assert [(check["subject"], check["rule"]) for check in answer["checks"]] == [
        ("team/work train", "major_distance"),
        ("team/work serve", "minor_version"),
    ]
    assert answer["verdict"] == "unstable"
    assert ask(**options, virtualization_version="12.4")["rule"] == "virtualization_baseline"

    blind = {**options, "pod": {**options["pod"], "read_image": False}}
    registry.requests.clear()
    assert [check["rule"] for check in ask(**blind)["checks"]] == ["runtime", "minor_version"]
    assert registry.requests == []


def test_a_node_is_known_by_its_labels(ask: Ask, cluster: tuple[Store, str]) -> None:
    assert ask(kubeconfig=cluster[1], node="gpu-1", cuda_version="13.0", dtype="bfloat16")["verdict"] == "ok"
    assert ask(kubeconfig=cluster[1], node="gpu-1", dtype="nvfp4")["rule"] == "dtype"
    assert "status 404" in ask(kubeconfig=cluster[1], node="none")["msg"]


def test_errors_are_explained_without_a_machine(ask: Ask) -> None:
    answer = ask(errors=["804", "CUDA_ERROR_ILLEGAL_ADDRESS", "4711", "whatever"])
    assert [(error["code"], error["name"]) for error in answer["errors"]] == [
        (804, "CUDA_ERROR_COMPAT_NOT_SUPPORTED_ON_DEVICE"),
        (700, "CUDA_ERROR_ILLEGAL_ADDRESS"),
        (4711, ""),
        (None, "whatever"),
    ]
    assert answer["checks"] == []


def test_what_cannot_be_meant_is_refused(ask: Ask) -> None:
    assert "one of the following is required: facts, node, pod, errors" in ask(cuda_version="12.0")["msg"]
    assert "cuda_version is 'latest'; write a version such as 12.4" in ask(facts=FACTS, cuda_version="latest")["msg"]
