# SPDX-License-Identifier: Apache-2.0
"""Modules cf_crl and cf_crl_info against an API server."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.accel.kubernetes.plugins.module_utils.cluster.resource_definitions import Definition, configmap

from sim.cluster.apiserver import ApiServer, Authority
from sim.cluster.store import Store

CORE = {"key": "tencent.com/vcuda-core", "custom_name": "gpu-manager", "group": "gpu-manager", "default_value": "20"}
MEMORY = {**CORE, "key": "tencent.com/vcuda-memory", "requests": "fromLimits"}
THEIR_LABELS = {"type": "CustomResourceLimitation", "group": "gpu-manager", "enabled": "true"}
ROOT = Path(__file__).parents[4]
NAMES = ["cf-crl-gpu-manager-vcuda-core", "cf-crl-gpu-manager-vcuda-memory"]


@dataclass
class Platform:
    store: Store
    kubeconfig: Path
    run_module: Callable[..., dict[str, Any]]

    def crl(self, *definitions: dict[str, Any], check: bool = False, **options: Any) -> dict[str, Any]:
        arguments = {"kubeconfig": str(self.kubeconfig), "definitions": list(definitions), **options}
        return self.run_module("cf_crl", arguments, check=check)

    def info(self, **options: Any) -> dict[str, Any]:
        return self.run_module("cf_crl_info", {"kubeconfig": str(self.kubeconfig), **options})

    def names(self) -> list[str]:
        return [item["metadata"]["name"] for item in self.store.all("configmaps", "kube-public")]

    def create(self, name: str, labels: dict[str, str], data: dict[str, str]) -> None:
        metadata = {"name": name, "labels": labels}
        self.store.create(
            "configmaps", "kube-public", {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
        )


@pytest.fixture
def platform(tmp_path: Path, run_module: Callable[..., dict[str, Any]]) -> Iterator[Platform]:
    store = Store()
    store.create("namespaces", "", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "kube-public"}})
    server = ApiServer(store, Authority(), lambda pod, container: tmp_path / "none")
    server.start()
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(server.kubeconfig("admin", server.admin_token))
    yield Platform(store, kubeconfig, run_module)
    server.stop()


def test_many_definitions_are_planned_applied_once_and_removed(platform: Platform) -> None:
    foretold = platform.crl(CORE, MEMORY, check=True)
    assert foretold["changed"], foretold
    assert platform.names() == []

    done = platform.crl(CORE, MEMORY)
    assert done["written"] == done["configmaps"] == NAMES == platform.names()
    assert done["diff"] == foretold["diff"]
    item = platform.store.get("configmaps", "kube-public", NAMES[1])
    assert item["data"]["key"] == "tencent.com/vcuda-memory"
    assert item["data"]["requests"] == "fromLimits"
    assert item["metadata"]["labels"]["features.alauda.io/group"] == "gpu-manager"

    assert not platform.crl(CORE, MEMORY)["changed"]
    changed = platform.crl({**CORE, "enabled": False}, MEMORY)
    assert changed["written"] == NAMES[:1]
    labels = platform.store.get("configmaps", "kube-public", NAMES[0])["metadata"]["labels"]
    assert labels["features.alauda.io/enabled"] == "false"

    names = [{key: item[key] for key in ("key", "custom_name")} for item in (CORE, MEMORY)]
    assert platform.crl(*names, state="absent", check=True)["written"] == NAMES
    assert platform.names() == NAMES
    assert platform.crl(*names, state="absent")["changed"]
    assert platform.names() == []
    assert not platform.crl(*names, state="absent")["changed"]


def test_one_mistake_and_nothing_is_written(platform: Platform) -> None:
    result = platform.crl(CORE, {**MEMORY, "default_value": "many"})
    assert result["failed"]
    assert "tencent.com/vcuda-memory: default_value 'many' is not a whole number" in result["msg"]
    assert "nothing was changed" in result["msg"]
    assert platform.names() == []


def test_a_configmap_of_others_is_left_alone(platform: Platform) -> None:
    platform.create(NAMES[1], {}, {"theirs": "x"})
    for state in ("present", "absent"):
        result = platform.crl(CORE, MEMORY, state=state)
        assert result["failed"]
        assert f"kube-public/{NAMES[1]} is no definition" in result["msg"]
    assert platform.names() == NAMES[1:]


def test_same_resource_under_another_name_is_reported(platform: Platform) -> None:
    platform.crl(CORE)
    renamed = {**CORE, "custom_name": "shares"}
    for check in (True, False, False):
        done = platform.crl(renamed, check=check)
        assert done["duplicates"] == NAMES[:1]
        assert f"ConfigMap kube-public/{NAMES[0]} defines tencent.com/vcuda-core too" in str(done["warnings"])
    assert not done["changed"]
    assert platform.crl({**renamed, "enabled": False})["duplicates"] == []
    platform.crl(CORE, state="absent")
    done = platform.crl(renamed)
    assert (done["duplicates"], done.get("warnings", [])) == ([], [])


def test_what_others_added_to_a_definition_stays(platform: Platform) -> None:
    platform.crl(CORE)
    platform.store.edit("configmaps", "kube-public", NAMES[0], lambda item: item["data"].update(theirs="x"))
    assert not platform.crl(CORE)["changed"]
    platform.crl({**CORE, "limits": "required"})
    data = platform.store.get("configmaps", "kube-public", NAMES[0])["data"]
    assert (data["theirs"], data["limits"]) == ("x", "required")


def test_info_reads_what_was_written_and_names_what_is_wrong(platform: Platform) -> None:
    platform.crl(CORE, MEMORY)
    labels = {"features.alauda.io/type": "CustomResourceLimitation", "features.alauda.io/group": "ascend"}
    platform.create("cf-crl-ascend-ascend910", labels, {"key": "huawei.com/Ascend910", "limits": "maybe"})

    found = platform.info(group="gpu-manager")
    assert [definition["key"] for definition in found["definitions"]] == [CORE["key"], MEMORY["key"]]
    assert found["problems"] == {}
    assert not platform.crl(*found["definitions"])["changed"]

    everything = platform.info()
    assert len(everything["definitions"]) == 3
    assert "limits must be one of" in str(everything["problems"]["cf-crl-ascend-ascend910"])


def test_an_api_server_that_is_not_there_is_named(platform: Platform) -> None:
    config = json.loads(platform.kubeconfig.read_text())
    config["clusters"][0]["cluster"]["server"] = "https://127.0.0.1:1"
    platform.kubeconfig.write_text(json.dumps(config))
    for result in (platform.crl(CORE), platform.info()):
        assert result["failed"]
        assert "127.0.0.1" in result["msg"]


def test_definition_of_somebody_else_stays_unless_told(platform: Platform) -> None:
    labels = {f"features.alauda.io/{name}": value for name, value in THEIR_LABELS.items()}
    data = {
        "key": CORE["key"],
        "group": "gpu-manager",
        "limits": "optional",
        "requests": "disabled",
        "dataType": "integer",
    }
    platform.create(NAMES[0], labels, {**data, "defaultValue": "50", "descriptionEn": "vCores"})
    before = platform.store.get("configmaps", "kube-public", NAMES[0])

    for state in ("present", "absent"):
        done = platform.crl(CORE, MEMORY, state=state)
        assert (done["written"], done["kept"]) == ([NAMES[1]], [NAMES[0]])
        assert f"kube-public/{NAMES[0]} was not made by this module" in str(done["warnings"])
        assert platform.store.get("configmaps", "kube-public", NAMES[0]) == before

    alike = {**CORE, "default_value": "50", "description_en": "vCores"}
    assert platform.crl(alike)["kept"] == []
    done = platform.crl(CORE, overwrite=True)
    assert (done["written"], done["kept"]) == ([NAMES[0]], [])
    assert platform.store.get("configmaps", "kube-public", NAMES[0])["data"]["defaultValue"] == "20"
    assert platform.crl(CORE, state="absent")["written"] == [NAMES[0]]


def test_same_definition_of_somebody_else_stays_theirs(platform: Platform) -> None:
    theirs = configmap(Definition(**CORE))
    platform.create(NAMES[0], theirs["metadata"]["labels"], theirs["data"])

    done = platform.crl(CORE)
    assert (done["changed"], done["kept"]) == (False, [])
    assert platform.crl(CORE, state="absent")["kept"] == [NAMES[0]]
    assert platform.names() == NAMES[:1]


def test_defaults_for_gpu_manager_are_those_of_its_documents() -> None:
    defaults = yaml.safe_load((ROOT / "roles/gpu_plugins/defaults/main.yml").read_text())
    found = {item["key"]: configmap(Definition(**item)) for item in defaults["gpu_plugins_cf_crl_definitions"]}
    for key, name in zip(("tencent.com/vcuda-core", "tencent.com/vcuda-memory"), NAMES, strict=True):
        item = found[key]
        assert item["metadata"]["name"] == name
        assert item["metadata"]["labels"] == {
            f"features.alauda.io/{word}": value for word, value in THEIR_LABELS.items()
        }
        data = item["data"]
        assert (data["group"], data["dataType"], data["limits"]) == ("gpu-manager", "integer", "optional")
        assert data["requests"] == "disabled"
    assert found["tencent.com/vcuda-core"]["data"]["defaultValue"] == "20"
