# SPDX-License-Identifier: Apache-2.0
"""Module gpu_migration_info against an API server."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.accel.kubernetes.plugins.modules.gpu_migration_info import cluster
from kubernetes.dynamic.exceptions import ResourceNotFoundError
from kubernetes.dynamic.resource import ResourceInstance

from sim.cluster.apiserver import ApiServer, Authority
from sim.cluster.store import Store
from unit.plugins.module_utils.migration import peer_objects as objects
from unit.plugins.module_utils.migration.peer_objects import Object, chosen, pod

Plan = Callable[..., dict[str, Any]]
CONFIGURATION = {"version": "v1", "flags": {"migStrategy": "none"}}
WEBHOOK = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "MutatingWebhookConfiguration"}


@pytest.fixture
def store() -> Store:
    store = Store()
    for name in ("team", "nvidia-device-plugin"):
        store.create("namespaces", "", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    store.create("nodes", "", {"apiVersion": "v1", "kind": "Node", **chosen("nvidia", **{"nvidia.com__gpu": "8"})})
    item = objects.nvidia(configured=True, DEFAULT_CONFIG="plain")
    store.create("daemonsets", "nvidia-device-plugin", item)
    whole = pod("whole", {"nvidia.com/gpu": "1"})
    whole["spec"]["containers"][0]["image"] = "none"
    store.create("pods", "team", {"apiVersion": "v1", "kind": "Pod", **whole})
    configs = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "nvdp-configs"}}
    data = {"plain": yaml.safe_dump(CONFIGURATION)}
    store.create("configmaps", "nvidia-device-plugin", {**configs, "data": data})
    webhook = {"metadata": {"name": "hami-webhook"}, "webhooks": [{"name": "vgpu.hami.io"}]}
    store.create("mutatingwebhookconfigurations", "", WEBHOOK | webhook)
    return store


@pytest.fixture
def plan(store: Store, tmp_path: Path, run_module: Callable[..., dict[str, Any]]) -> Iterator[Plan]:
    server = ApiServer(store, Authority(), lambda pod, container: tmp_path / "none")
    server.start()
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(server.kubeconfig("admin", server.admin_token))
    host: Object = {"node": "gpu-1", "mode": "pgpu"}

    def run(path: Path = kubeconfig, **options: Any) -> dict[str, Any]:
        return run_module("gpu_migration_info", {"kubeconfig": str(path), "hosts": [host | options]}, check=True)

    yield run
    server.stop()


def test_a_plan_is_made_of_what_the_cluster_has(plan: Plan) -> None:
    done = plan()
    assert not done["changed"], done
    entry = done["migration"]["nodes"]["gpu-1"]
    assert (entry["state"], entry["from"]) == ("due", "nvidia")
    assert entry["variables"] == {
        "gpu_plugins_configs": {"plain": CONFIGURATION},
        "gpu_plugins_default_config": "plain",
    }
    assert [row["pod"] for row in entry["pods"]] == ["team/whole"]
    assert done["migration"]["notes"][0].startswith("HAMi's webhook hami-webhook")
    assert done["table"][1].split() == ["gpu-1", "NVIDIA's", "device", "plugin", "pgpu", "due", "1"]
    set_so = entry["variables"] | {"gpu_plugins_tolerations": objects.TOLERATIONS}
    assert plan(variables=set_so)["migration"]["nodes"]["gpu-1"]["problems"] == []


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "it is not YAML"),
        ("these are our configs", "it is no mapping"),
        ("[1]", "it is no mapping"),
        ("sharing: [1]", "its sharing is no mapping"),
    ],
)
def test_invalid_configuration_keeps_its_nodes_back(plan: Plan, store: Store, text: str, why: str) -> None:
    good = yaml.safe_dump(CONFIGURATION)

    def become(**data: str) -> None:
        store.edit("configmaps", "nvidia-device-plugin", "nvdp-configs", lambda item: item.update(data=data))

    become(plain=text)
    (problem, *_rest) = plan()["migration"]["nodes"]["gpu-1"]["problems"]
    assert problem.startswith(
        f"its configuration plain in ConfigMap nvidia-device-plugin/nvdp-configs cannot be used: {why}"
    )
    become(plain=good, README=text)
    migration = plan()["migration"]
    assert migration["nodes"]["gpu-1"]["variables"]["gpu_plugins_configs"] == {"plain": CONFIGURATION}
    assert "README" not in " ".join(migration["nodes"]["gpu-1"]["problems"])
    note = "ConfigMap nvidia-device-plugin/nvdp-configs has README, which is no configuration and is left out: "
    assert migration["notes"][-1].startswith(f"{note}{why}")


def test_invalid_inventory_yaml_is_not_blamed_on_the_peer(plan: Plan) -> None:
    done = plan(variables={"gpu_plugins_configs": {"plain": "{"}})
    problem = done["migration"]["nodes"]["gpu-1"]["problems"][0]
    assert problem.startswith("gpu_plugins_configs of the inventory has plain, which cannot be used: it is not YAML")


def test_a_server_that_is_not_reached_is_said(plan: Plan, tmp_path: Path) -> None:
    done = plan(tmp_path / "gone")
    assert done["failed"]
    assert "kube-config" in done["msg"]


class FakeClient:
    """The client of an API server that has claims and slices in these versions."""

    def __init__(self, *versions: str) -> None:
        self.versions = versions

    def resource(self, kind: str, api_version: str) -> str:
        if "resource.k8s.io" in api_version and api_version not in self.versions:
            raise ResourceNotFoundError(f"no {kind} of {api_version}")
        return f"{api_version} {kind}"

    def get(self, resource: str, **_selected: object) -> ResourceInstance:
        spec = {"driver": "gpu.nvidia.com", "nodeName": "gpu-1", "devices": [{"name": "gpu-0", "basic": {}}]}
        slices = [{"metadata": {"name": resource}, "spec": spec}] if "ResourceSlice" in resource else []
        return ResourceInstance(None, {"kind": "List", "apiVersion": "v1", "items": slices, "metadata": {}})


@pytest.mark.parametrize(
    ("served", "read"),
    [(("v1beta1",), "v1beta1"), (("v1beta1", "v1beta2"), "v1beta2"), (("v1beta1", "v1beta2", "v1"), "v1"), ((), "")],
)
def test_slices_are_read_in_the_newest_version_that_is_there(served: tuple[str, ...], read: str) -> None:
    """Drivers of others run on Kubernetes before 1.34, which has no v1."""
    found = cluster(FakeClient(*(f"resource.k8s.io/{version}" for version in served))).slices
    names = [item["metadata"]["name"] for item in found]
    assert names == ([f"resource.k8s.io/{read} ResourceSlice"] if read else [])
