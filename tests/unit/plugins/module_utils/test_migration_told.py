# SPDX-License-Identifier: Apache-2.0
"""What NVIDIA's plugin was told is found wherever a manifest can say it, for the DaemonSet that serves the node."""

from __future__ import annotations

from typing import Any

import pytest
import yaml
from ansible_collections.accel.kubernetes.plugins.module_utils.migration_told import flags
from hypothesis import given
from hypothesis import strategies as st

from unit.plugins.module_utils import peer_objects as objects
from unit.plugins.module_utils.peer_objects import Object, pod
from unit.plugins.module_utils.test_migration import planned

SHARED = {"version": "v1", "sharing": {"timeSlicing": {"resources": [{"name": "nvidia.com/gpu", "replicas": 4}]}}}
IMAGE = "nvcr.io/nvidia/k8s-device-plugin:v0.17.0"
WHOLE = {"flags": {"migStrategy": "mixed"}}


def plugin(name: str = "nvidia-device-plugin-daemonset", volumes: list[Object] | None = None, **more: Any) -> Object:
    selector = more.pop("nodeSelector", {})
    container = {"name": "nvidia-device-plugin-ctr", "image": IMAGE, **more}
    plugins = {"name": "device-plugin", "hostPath": {"path": "/var/lib/kubelet/device-plugins"}}
    found = objects.daemonset(name, "gpu", [container], nodeSelector=selector)
    found["spec"]["template"]["spec"]["volumes"] = [plugins, *(volumes or [])]
    return found


def entry(daemonsets: list[Object], node: Object | None = None, maps: Any = None, **more: Any) -> dict[str, Any]:
    files = {f"gpu/{name}": data for name, data in (maps or {}).items()}
    node = node or objects.node("gpu-1", {"nvidia.com/gpu": "4"})
    pods = [pod(f"p{number}", {"nvidia.com/gpu": "1"}) for number in range(2)]
    found: dict[str, Any] = planned(daemonsets, [node], *pods, files=files, **more)["nodes"]["gpu-1"]
    return found


MAPS = {
    "cm": {"config.yaml": yaml.safe_dump(SHARED), "other": "version: v1\n"},
    "env": {"CONFIG_FILE": "/x/config.yaml"},
    "bare": {"FILE": "/x/config.yaml"},
}
VOLUME = {"name": "c", "configMap": {"name": "cm"}}
AT = [{"name": "c", "mountPath": "/x"}]


@pytest.mark.parametrize(
    "more",
    [
        {"args": ["--config-file=/x/config.yaml"]},
        {"args": ["-config-file", "/x/config.yaml"]},
        {"args": ["--pass-device-specs", "--config-file", "/x//config.yaml"]},
        {"args": ["--config-file=/none", "--config-file=/x/config.yaml"]},
        {"args": ["--config-file=$(HERE)/config.yaml"], "env": [{"name": "HERE", "value": "/x"}]},
        {"command": ["/usr/bin/nvidia-device-plugin", "--config-file=/x/config.yaml"]},
        {"command": ["sh", "-c"], "args": ["sleep 1 && exec nvidia-device-plugin \\\n --config-file=/x/config.yaml"]},
        {"command": ["bash", "-ec", "export CONFIG_FILE=/x/config.yaml\nnvidia-device-plugin # --config-file=/no"]},
        {"command": ["bash", "-c", "D=/x; nvidia-device-plugin --config-file=${D}/config.yaml"]},
        {
            "command": ["tini", "--", "nvidia-device-plugin"],
            "env": [{"name": "CONFIG_FILE", "value": "/x/config.yaml"}],
        },
        {"env": [{"name": "CONFIG_FILE", "value": "/x/config.yaml"}]},
        {"args": ["--config-file=/x/config.yaml"], "env": [{"name": "CONFIG_FILE", "value": "/none"}]},
        {"envFrom": [{"configMapRef": {"name": "env"}}]},
        {"envFrom": [{"configMapRef": {"name": "bare"}, "prefix": "CONFIG_"}]},
        {"env": [{"name": "CONFIG_FILE", "valueFrom": {"configMapKeyRef": {"name": "env", "key": "CONFIG_FILE"}}}]},
    ],
)
def test_a_configuration_file_is_found_wherever_its_path_is_said(more: Object) -> None:
    found = entry([plugin(volumes=[VOLUME], volumeMounts=AT, **more)], maps=MAPS)
    assert found["variables"] == {
        "gpu_plugins_configs": {"config.yaml": SHARED},
        "gpu_plugins_default_config": "config.yaml",
    }
    assert {row["has"] for row in found["pods"]} == {"a time-slice of a GPU that has 4"}


@pytest.mark.parametrize(
    ("volume", "mount"),
    [
        ({"configMap": {"name": "cm", "items": [{"key": "config.yaml", "path": "a/b"}]}}, {"mountPath": "/etc/y/"}),
        (
            {"projected": {"sources": [{"configMap": {"name": "cm"}}]}},
            {"mountPath": "/etc/y/a/b", "subPath": "config.yaml"},
        ),
        ({"configMap": {"name": "cm"}}, {"mountPath": "/etc/y/a/b", "subPath": "config.yaml"}),
    ],
)
def test_a_configuration_file_is_found_however_it_is_mounted(volume: Object, mount: Object) -> None:
    item = plugin(
        volumes=[{"name": "c", **volume}], volumeMounts=[{"name": "c", **mount}], args=["--config-file=/etc/y/a/b"]
    )
    assert entry([item], maps=MAPS)["variables"]["gpu_plugins_configs"] == {"config.yaml": SHARED}


@pytest.mark.parametrize(
    "more",
    [
        {"args": ["--config-file=/host/config.yaml"]},
        {"env": [{"name": "CONFIG_FILE", "valueFrom": {"secretKeyRef": {"name": "s", "key": "k"}}}]},
        {"envFrom": [{"secretRef": {"name": "s"}}]},
        {"env": [{"name": "MIG_STRATEGY", "valueFrom": {"configMapKeyRef": {"name": "gone", "key": "k"}}}]},
    ],
)
def test_what_cannot_be_read_is_said_and_nothing_begins(more: Object) -> None:
    found = entry([plugin(**more)], maps=MAPS)
    (problem,) = found["problems"]
    assert "set gpu_plugins_configs" in problem
    assert all("nobody has read" in row["has"] for row in found["pods"])
    assert all("nobody knows" in row["note"] for row in entry([plugin(**more)], mode="vgpu")["pods"])
    assert entry([plugin(**more)], variables={"gpu_plugins_configs": {"mine": SHARED}})["problems"] == []


def test_replicas_that_only_labels_tell_of_have_to_be_in_the_inventory() -> None:
    node = objects.node("gpu-1", {"nvidia.com/gpu": "4"})
    node["metadata"]["labels"] |= {"nvidia.com/gpu.sharing-strategy": "mps", "nvidia.com/gpu.replicas": "4"}
    found = entry([plugin()], node)
    assert "4 replicas each by mps" in found["problems"][0]
    assert found["pods"][0]["has"] == "a part by MPS of a GPU that has 4"


def test_a_file_for_each_node_by_its_name_is_the_nodes() -> None:
    env = [{"name": "NODE", "valueFrom": {"fieldRef": {"fieldPath": "spec.nodeName"}}}]
    item = plugin(volumes=[VOLUME], volumeMounts=AT, env=env, args=["--config-file=/x/$(NODE).yaml"])
    files = {"cm": {"gpu-1.yaml": yaml.safe_dump(SHARED), "gpu-2.yaml": "version: v1\n"}}
    assert entry([item], maps=files)["variables"] == {
        "gpu_plugins_configs": {"gpu-1.yaml": SHARED},
        "gpu_plugins_config": "gpu-1.yaml",
    }


def test_memory_in_mib_is_told_to_become_gib() -> None:
    node = objects.chosen("gpushare", **{"aliyun.com__gpu-mem": "24268"})
    for unit, becomes in (("MiB", "the same, in GiB"), ("GiB", "the same")):
        found = planned([objects.gpushare(unit)], [node], mode="cgpu")["nodes"]["gpu-1"]
        assert found["resources"][0]["becomes"] == becomes


@pytest.mark.parametrize("first", ["a", "z"], ids=["first by name", "last by name"])
def test_each_node_goes_by_the_daemonset_that_serves_it(first: str) -> None:
    mixed = plugin("m-nvdp", args=["--mig-strategy", "mixed"], nodeSelector={"gpu": "a100"})
    sliced = plugin(
        f"{first}-nvdp", [VOLUME], volumeMounts=AT, args=["--config-file=/x/config.yaml"], nodeSelector={"gpu": "t4"}
    )
    for model, name, document in (
        ("a100", "m-nvdp", {"version": "v1", **WHOLE}),
        ("t4", f"{first}-nvdp.config.yaml", SHARED),
    ):
        node = objects.node("gpu-1", {"nvidia.com/gpu": "4"}, gpu=model)
        found = entry([mixed, sliced], node, MAPS)
        assert found["variables"] == {"gpu_plugins_configs": {name: document}, "gpu_plugins_config": name}
        wanted = found["variables"] | {"gpu_plugins_configs": {name: document, "more": {}}}
        assert entry([mixed, sliced], node, MAPS, variables=wanted)["problems"] == []


def test_two_daemonsets_that_serve_one_node_are_told() -> None:
    found = entry([plugin("a-nvdp"), plugin("b-nvdp", args=["--mig-strategy=single"])])
    assert "DaemonSets gpu/a-nvdp and gpu/b-nvdp both serve it" in found["problems"][0]


def test_what_a_flag_said_goes_before_the_file() -> None:
    file = {"cm": {"config.yaml": yaml.safe_dump({**SHARED, "flags": {"migStrategy": "single"}})}}
    item = plugin(volumes=[VOLUME], volumeMounts=AT, args=["--config-file=/x/config.yaml", "-mig-strategy=mixed"])
    found = entry([item], maps=file)["variables"]
    assert found["gpu_plugins_configs"] == {"config.yaml": {**SHARED, **WHOLE}}
    assert found["gpu_plugins_mig_strategy"] == "mixed"


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["-a", "1", "--b=2", "-c"], {"a": "1", "b": "2", "c": "true"}),
        (["--c=false", "--a", "-1"], {"c": "false", "a": "-1"}),
        (["-c", "true", "--a=1"], {"c": "true"}),
        (["--a=1", "--", "--a=2"], {"a": "1"}),
        (["--a=1", "-", "--a=2"], {"a": "1"}),
        (["--a=x=y", "-a="], {"a": ""}),
        (["---a=1"], {}),
        (["--=1"], {}),
        (["--a"], {"a": ""}),
    ],
)
def test_flags_are_read_as_go_reads_them(words: list[str], expected: dict[str, str]) -> None:
    assert flags(words, {"c"}) == expected


VALUE = st.text(st.characters(codec="ascii", exclude_characters="\0"), max_size=5)


@given(said=st.lists(st.tuples(st.sampled_from("ab"), VALUE, st.sampled_from(["-", "--"]), st.booleans()), max_size=6))
def test_of_flags_in_any_form_the_last_counts(said: list[tuple[str, str, str, bool]]) -> None:
    words: list[str] = []
    for name, value, dashes, apart in said:
        words += [f"{dashes}{name}", value] if apart else [f"{dashes}{name}={value}"]
    assert flags(words, ()) == {name: value for name, value, _dashes, _apart in said}


@pytest.mark.parametrize(
    ("words", "unit"),
    [
        (["--memory-unit=MiB"], "MiB"),
        (["-memory-unit", "MiB"], "MiB"),
        (["--memory-unit=MiB", "--memory-unit=GiB"], "GiB"),
        (["--logtostderr", "--v", "5", "--memory-unit", "MiB"], "MiB"),
        (["--", "--memory-unit=MiB"], "GiB"),
    ],
)
def test_the_unit_of_gpushare_is_read_as_its_flag_is(words: list[str], unit: str) -> None:
    item = objects.gpushare()
    item["spec"]["template"]["spec"]["containers"][0]["command"] = ["gpushare-device-plugin-v2", *words]
    asks = pod("p", {"aliyun.com/gpu-mem": "10"})
    (row,) = planned([item], [objects.chosen("gpushare")], asks, mode="cgpu")["nodes"]["gpu-1"]["pods"]
    assert row["becomes"] == {"aliyun.com/gpu-mem": 1 if unit == "MiB" else 10}
