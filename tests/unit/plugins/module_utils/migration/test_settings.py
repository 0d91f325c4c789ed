# SPDX-License-Identifier: Apache-2.0
"""What NVIDIA's plugin was told is found wherever a manifest can say it, for the DaemonSet that serves the node."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import yaml
from ansible_collections.accel.kubernetes.plugins.module_utils.migration import carry as migration_carry
from ansible_collections.accel.kubernetes.plugins.module_utils.migration.settings import flags, posix_flags
from hypothesis import given
from hypothesis import strategies as st

from unit.plugins.module_utils.migration import peer_objects as objects
from unit.plugins.module_utils.migration.peer_objects import Object, pod
from unit.plugins.module_utils.migration.test_plan import planned

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
    assert all("that was not read" in row["has"] for row in found["pods"])
    assert all("nothing says" in row["note"] for row in entry([plugin(**more)], mode="vgpu")["pods"])
    assert entry([plugin(**more)], variables={"gpu_plugins_configs": {"mine": SHARED}})["problems"] == []


def test_replicas_known_by_labels_must_be_in_the_inventory() -> None:
    node = objects.node("gpu-1", {"nvidia.com/gpu": "4"})
    node["metadata"]["labels"] |= {"nvidia.com/gpu.sharing-strategy": "mps", "nvidia.com/gpu.replicas": "4"}
    found = entry([plugin()], node)
    assert "each GPU has 4 replicas by mps" in found["problems"][0]
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


MORE = "-v -mig-strategy mixed"
RUN = "#!/bin/sh\nuntil [ -f /ready ]; do echo MIG_STRATEGY=single; sleep 5; done\nexec nvidia-device-plugin {}\n"


@pytest.mark.parametrize(
    ("more", "script"),
    [
        ({"command": ["/bin/sh", "-c"], "args": ["/s/run.sh"]}, RUN.format("--mig-strategy=mixed")),
        ({"command": ["/s/run.sh", "--mig-strategy", "mixed"]}, RUN.format('"$@"')),
        ({"command": ["bash", "/s//run.sh"]}, "export MIG_STRATEGY=mixed\n" + RUN.format("")),
        (
            {"command": ["sh", "-c", "nvidia-device-plugin $MORE"], "env": [{"name": "MORE", "value": MORE}]},
            "",
        ),
        ({"command": ["sh", "-c", "env MIG_STRATEGY=mixed nvidia-device-plugin"]}, ""),
    ],
)
def test_scripts_of_configmaps_say_what_the_plugin_is_told(more: Object, script: str) -> None:
    volume, mount = {"name": "s", "configMap": {"name": "s"}}, {"name": "s", "mountPath": "/s"}
    item = plugin(volumes=[volume], volumeMounts=[mount], **more)
    assert entry([item], maps={"s": {"run.sh": script}})["variables"] == {"gpu_plugins_mig_strategy": "mixed"}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--a=1", "word", "--b", "2", "-c"], {"a": "1", "b": "2", "c": "true"}),
        (["-v5", "--a", "1"], {"v": "5", "a": "1"}),
        (["-v=5", "-w", "6", "--", "--a=1"], {"v": "5", "w": "6"}),
        (["--c", "true", "--a=1"], {"c": "true", "a": "1"}),
    ],
)
def test_flags_are_read_as_pflag_reads_them(words: list[str], expected: dict[str, str]) -> None:
    assert posix_flags(words, {"c"}) == expected


def test_names_and_devices_the_plugin_ignores_are_dropped() -> None:
    """NVIDIA's plugin shares every device by its usual name, whatever the file says, and ours goes by the file."""
    shared = {"name": "nvidia.com/gpu", "replicas": 4}
    file = {
        "version": "v1",
        "sharing": {"timeSlicing": {"resources": [{**shared, "rename": "acme.io/g", "devices": [0]}]}},
    }
    item = plugin(volumes=[VOLUME], volumeMounts=AT, args=["--config-file=/x/config.yaml"])
    found = entry([item], maps={"cm": {"config.yaml": yaml.safe_dump(file)}})
    assert found["variables"]["gpu_plugins_configs"] == {"config.yaml": SHARED}


@pytest.mark.parametrize("maps", [{}, MAPS], ids=["without a file", "over the file"])
@pytest.mark.parametrize("more", [{"env": [{"name": "GDS_ENABLED", "value": "True"}]}, {"args": ["-gds-enabled"]}])
def test_command_line_switch_becomes_part_of_configuration(more: Any, maps: Any) -> None:
    more = copy.deepcopy(more)
    if maps:
        more.setdefault("env", []).append({"name": "CONFIG_FILE", "value": "/x/config.yaml"})
    found = entry([plugin(volumes=[VOLUME] if maps else [], volumeMounts=AT if maps else [], **more)], maps=maps)
    (configuration,) = found["variables"]["gpu_plugins_configs"].values()
    assert configuration == {**(SHARED if maps else {"version": "v1"}), "flags": {"gdsEnabled": True}}
    assert "gpu_plugins_config" in found["variables"] or "gpu_plugins_default_config" in found["variables"]


@pytest.mark.parametrize(
    "more",
    [
        {"args": ["--nvidia-driver-root=/opt/nvidia"]},
        {"args": ["--driver-root", "/opt/nvidia"]},
        {"env": [{"name": "NVIDIA_DRIVER_ROOT", "value": "/opt/nvidia"}]},
    ],
)
def test_where_the_driver_is_has_to_be_said(more: Object) -> None:
    assert entry([plugin(**more)])["variables"] == {"gpu_plugins_driver_root": "/opt/nvidia"}


GPUS = [{"index": number, "uuid": f"GPU-{number}", "mig": {"enabled": False, "devices": []}} for number in range(3)]


@pytest.mark.parametrize(
    ("seen", "left"),
    [("0,2", ["GPU-1"]), ("GPU-1", ["GPU-0", "GPU-2"]), ("all", None), ("0,1,2", None), ("void", None)],
)
@pytest.mark.parametrize("mode", ["pgpu", "vgpu"])
def test_gpus_that_the_plugin_does_not_see_have_to_be_left_alone(mode: str, seen: str, left: list[str] | None) -> None:
    item = plugin(env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": seen}])
    found = entry([item], mode=mode, gpus=GPUS)["variables"]
    assert found.get("gpu_plugins_excluded_gpus") == left
    item["spec"]["template"]["spec"]["containers"][0]["securityContext"] = {"privileged": True}
    assert "gpu_plugins_excluded_gpus" not in entry([item], mode=mode, gpus=GPUS)["variables"], "it sees all"


def test_gpus_that_nobody_knows_have_to_be_excluded_by_a_person() -> None:
    item = plugin(env=[{"name": "NVIDIA_VISIBLE_DEVICES", "value": "1"}])
    assert "exclude all other GPUs by gpu_plugins_excluded_gpus" in entry([item])["problems"][0]
    assert entry([item], variables={"gpu_plugins_excluded_gpus": ["0"]})["problems"] == []


PROFILE = {"nvidia.com/gpu.product": "NVIDIA-A100-SXM4-40GB-MIG-1g.5gb"}
CUT = [{"index": 0, "uuid": "GPU-0", "mig": {"enabled": True, "devices": [{"uuid": "MIG-0", "profile": "1g.5gb"}]}}]


@pytest.mark.parametrize(
    ("labels", "gpus", "has"),
    [
        (PROFILE, [], "1 MIG device 1g.5gb"),
        ({}, CUT, "1 MIG device 1g.5gb"),
        ({}, GPUS, "1 whole GPU"),
        ({"nvidia.com/gpu.product": "NVIDIA-A10"}, [], "1 whole GPU"),
        ({}, [], "1 nvidia.com/gpu, each a MIG device where MIG cuts its GPUs"),
    ],
)
def test_with_strategy_single_a_gpu_may_be_a_mig_device(labels: Object, gpus: Any, has: str) -> None:
    node = objects.node("gpu-1", {"nvidia.com/gpu": "7"})
    node["metadata"]["labels"] |= labels
    item = plugin(env=[{"name": "MIG_STRATEGY", "value": "single"}])
    assert {row["has"] for row in entry([item], node, gpus=gpus)["pods"]} == {has}
    rows = entry([item], node, mode="vgpu", gpus=gpus)["pods"]
    assert all(bool(row["becomes"]) == (has == "1 whole GPU") for row in rows)
    assert all("MIG" in row["note"] for row in rows if not row["becomes"])


def test_a_shared_mig_device_is_a_time_slice_of_one() -> None:
    sharing = {"timeSlicing": {"resources": [{"name": "nvidia.com/mig-1g.5gb", "replicas": 2}]}}
    file = {"cm": {"config.yaml": yaml.safe_dump({"version": "v1", **WHOLE, "sharing": sharing})}}
    item = plugin(volumes=[VOLUME], volumeMounts=AT, args=["--config-file=/x/config.yaml"])
    node = objects.node("gpu-1", {"nvidia.com/mig-1g.5gb": "14"})
    files = {f"gpu/{name}": data for name, data in file.items()}
    asks = [pod("a", {"nvidia.com/mig-1g.5gb": "1"}), pod("b", {"nvidia.com/mig-2g.10gb": "1"})]
    rows = planned([item], [node], *asks, files=files)["nodes"]["gpu-1"]["pods"]
    assert [row["has"] for row in rows] == ["a time-slice of a MIG device 1g.5gb that has 2", "1 MIG device 2g.10gb"]


def test_daemonsets_are_read_once_for_all_nodes(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = []
    real = migration_carry.settings
    monkeypatch.setattr(migration_carry, "settings", lambda *given: calls.append(1) or real(*given))
    nodes = [objects.node(f"gpu-{number}", {"nvidia.com/gpu": "4"}) for number in range(50)]
    planned([plugin("a", nodeSelector={"x": "y"}), plugin("b")], nodes)
    assert len(calls) == 2
