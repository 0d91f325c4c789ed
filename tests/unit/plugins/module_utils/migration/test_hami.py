# SPDX-License-Identifier: Apache-2.0
"""HAMi's resources are those of its configuration, and what a container does not say is what that has."""

from __future__ import annotations

import copy
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sim.cluster.patch import merge
from unit.plugins.module_utils.migration import peer_objects as objects
from unit.plugins.module_utils.migration.peer_objects import Object, chosen, hami_files, pod
from unit.plugins.module_utils.migration.test_plan import planned

RENAMED = {
    "resourceCountName": "acme.io/vgpu",
    "resourceMemoryName": "acme.io/memory",
    "resourceMemoryPercentageName": "acme.io/percentage",
    "resourceCoreName": "acme.io/cores",
}


def entry(limits: Object, files: Any, node: Object | None = None, **more: Any) -> dict[str, Any]:
    found = node or chosen("hami", **{"nvidia.com__gpu": "10"})
    more.setdefault("mode", "vgpu")
    item = more.pop("daemonset", objects.hami())
    document = planned([item], [found], pod("p", limits), files=files, **more)["nodes"]["gpu-1"]
    return dict(document)


@pytest.mark.parametrize(
    ("told", "limits", "becomes"),
    [
        ({}, {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1024", "nvidia.com/gpucores": "30"}, (30, 4)),
        (
            {"memoryFactor": 256},
            {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "4", "nvidia.com/gpucores": "30"},
            (30, 4),
        ),
        ({"defaultMemory": 1024}, {"nvidia.com/gpu": "1", "nvidia.com/gpucores": "30"}, (30, 4)),
        ({"defaultMemory": 1024, "defaultCores": 20}, {"nvidia.com/gpu": "1"}, (20, 4)),
        ({"defaultMemory": 1024}, {"nvidia.com/gpumem-percentage": "5", "nvidia.com/gpucores": "9"}, (9, 16)),
        ({"defaultCores": 20}, {"nvidia.com/gpumem": "1000"}, (20, 4)),
        (RENAMED, {"acme.io/vgpu": "1", "acme.io/memory": "1024", "acme.io/cores": "30"}, (30, 4)),
        (RENAMED, {"acme.io/percentage": "5", "acme.io/cores": "30"}, (30, 16)),
    ],
)
def test_a_share_is_as_the_configuration_has_it(told: Object, limits: Object, becomes: tuple[int, int]) -> None:
    (row,) = entry(limits, hami_files(**told))["pods"]
    assert row["becomes"] == dict(zip(("tencent.com/vcuda-core", "tencent.com/vcuda-memory"), becomes, strict=True))


def test_resources_of_any_name_are_counted_both_ways() -> None:
    files = hami_files(**RENAMED)
    found = chosen("hami", **{"acme.io__vgpu": "10"})
    there = entry({"acme.io/vgpu": "2"}, files, found, mode="pgpu")
    assert [(row["resource"], row["offered"]) for row in there["resources"]] == [("acme.io/vgpu", 10)]
    assert there["pods"][0]["becomes"] == {"nvidia.com/gpu": 2}
    assert re.match(there["offers"], "acme.io/vgpu"), "the way back waits for it"
    done = merge(found, there["off"])
    done = merge(done, {"metadata": {"labels": {"nvidia-device-enable": "vgpu"}}})
    share = {"tencent.com/vcuda-core": "30", "tencent.com/vcuda-memory": "12"}
    daemonset = objects.hami()
    for each in planned([daemonset], [found], mode="vgpu", files=files)["peers"][0]["avoid"]:
        daemonset = merge(daemonset, each["patch"])
    (row,) = entry(share, files, done, daemonset=daemonset)["returns"]
    assert row["becomes"] == {"acme.io/vgpu": 1, "acme.io/memory": 3072, "acme.io/cores": 30}


@given(factor=st.integers(1, 2048), units=st.integers(1, 4096))
def test_there_and_back_a_share_never_shrinks(factor: int, units: int) -> None:
    files = hami_files(memoryFactor=factor)
    (row,) = entry({"nvidia.com/gpu": "1", "nvidia.com/gpumem": str(units), "nvidia.com/gpucores": "5"}, files)["pods"]
    assert row["becomes"]["tencent.com/vcuda-memory"] * 256 >= min(factor * units, 80 << 10)


def scheduler(*words: str) -> Object:
    container = {
        "name": "vgpu-scheduler-extender",
        "image": "projecthami/hami:v2.3.13",
        "command": ["scheduler", *words],
    }
    beside = {"name": "kube-scheduler", "image": "kube-scheduler:v1.28", "command": ["kube-scheduler", "-v=4"]}
    return {
        "metadata": {"name": "hami-scheduler", "namespace": "kube-system"},
        "spec": {"template": {"spec": {"containers": [beside, container]}}},
    }


@pytest.mark.parametrize(
    "words",
    [
        ("--resource-mem=acme.io/memory", "--default-cores=20"),
        ("-v5", "--resource-mem", "acme.io/memory", "--debug", "--default-cores", "20"),
        ("--debug", "true", "--resource-mem=acme.io/memory", "-v", "4", "--default-cores=20"),
    ],
)
def test_older_releases_are_told_by_flags(words: tuple[str, ...]) -> None:
    item = objects.hami()
    item["spec"]["template"]["spec"]["containers"][0]["command"] = [
        "nvidia-device-plugin",
        "--resource-name=acme.io/vgpu",
    ]
    found = chosen("hami", **{"acme.io__vgpu": "10"})
    limits = {"acme.io/vgpu": "1", "acme.io/memory": "1024"}
    (row,) = entry(limits, {}, found, daemonset=item, deployments=[scheduler(*words)])["pods"]
    assert row["becomes"] == {"tencent.com/vcuda-core": 20, "tencent.com/vcuda-memory": 4}


UUID = "GPU-8f2a1c5e-0b7d-4b53-9a3c-1d2e3f405162"


@pytest.mark.parametrize("key", ["filterdevices", "filterDevices"])
def test_gpus_that_it_leaves_alone_have_to_be_left_alone(key: str) -> None:
    nodes = [{"name": "gpu-1", key: {"uuid": [UUID], "index": [1]}}, {"name": "gpu-2", key: {"uuid": [], "index": [0]}}]
    files = hami_files({"nodeconfig": nodes})
    found = entry({}, files)
    assert found["variables"] == {"gpu_plugins_excluded_gpus": [UUID, "1"]}
    assert "set gpu_plugins_excluded_gpus" in found["problems"][0]
    said = {"gpu_plugins_excluded_gpus": [1, "*T4*", UUID.lower()]}
    assert entry({}, files, variables=said)["problems"] == []


@pytest.mark.parametrize(
    ("files", "why"),
    [
        ({}, "its configuration /device-config.yaml is in no ConfigMap that can be read"),
        ({"kube-system/hami-scheduler-device": {"device-config.yaml": "a: ["}}, "is not YAML"),
        ({"kube-system/hami-scheduler-device": {"device-config.yaml": "amd: {}"}}, "has no nvidia"),
    ],
)
def test_a_configuration_that_cannot_be_read_is_noted(files: Any, why: str) -> None:
    item = copy.deepcopy(objects.hami())
    document = planned([item], [chosen("hami", **{"nvidia.com__gpu": "10"})], mode="vgpu", files=files)
    (note,) = document["notes"]
    assert note.startswith("of HAMi's DaemonSet kube-system/hami-device-plugin, ")
    assert why in note
    assert "those of its chart" in note
    assert document["nodes"]["gpu-1"]["state"] == "due"


def plan_of(files: Any, **more: Any) -> dict[str, Any]:
    found = chosen("hami", **{"nvidia.com__gpu": "10"})
    return planned([more.pop("daemonset", objects.hami())], [found], mode="vgpu", files=files, **more)


@pytest.mark.parametrize(
    ("key", "mode", "reason"),
    [
        ("operatingmode", "mig", "splits its GPUs into MIG devices on demand"),
        ("operatingMode", "mig", "splits its GPUs into MIG devices on demand"),
        ("operatingmode", "mps", "the unknown operatingmode mps"),
        ("operatingmode", "hami-core", ""),
        ("operatingmode", "", ""),
    ],
)
def test_a_node_that_hami_cuts_by_mig_is_refused_by_name(key: str, mode: str, reason: str) -> None:
    nodes = [{"name": "gpu-2", key: "mig"}, {"name": "gpu-1", key: mode}]
    problems = entry({}, hami_files({"nodeconfig": nodes}))["problems"]
    assert [reason in problem for problem in problems] == ([True] if reason else [])


@pytest.mark.parametrize(
    ("said", "nodes", "remarks"),
    [
        ({}, {}, []),
        ({"gpuCorePolicy": "force"}, {}, []),
        ({"gpuCorePolicy": "disable"}, {}, ["does not hold programs to their cores"]),
        ({"disableCoreLimit": True}, {}, ["does not hold programs to their cores"]),
        ({"gpuCorePolicy": "burst"}, {}, ["has the gpuCorePolicy burst, which is not known here"]),
        ({"deviceMemoryScaling": 1.5}, {}, ["allocates 1.5 times the memory that GPUs have"]),
        (
            {"deviceMemoryScaling": 1},
            {"deviceMemoryScaling": 2, "devicecorescaling": 3},
            ["2 times the memory", "3 times"],
        ),
        ({"deviceMemoryScaling": "much", "gpuCorePolicy": None}, {"devicecorescaling": []}, []),
    ],
)
def test_what_no_mode_here_does_is_noted(said: Object, nodes: Object, remarks: list[str]) -> None:
    notes = plan_of(hami_files({"nodeconfig": [{"name": "gpu-1", **nodes}]}, **said))["notes"]
    assert len(notes) == len(remarks)
    assert all(remark in note for remark, note in zip(remarks, notes, strict=True))
    assert all(note.startswith("HAMi's DaemonSet kube-system/hami-device-plugin ") for note in notes)


def test_flags_of_older_releases_are_noted_as_well() -> None:
    item = objects.hami()
    flags = ["--disable-core-limit=true", "--device-memory-scaling=2"]
    item["spec"]["template"]["spec"]["containers"][0]["command"] = ["nvidia-device-plugin", *flags]
    notes = plan_of({}, daemonset=item)["notes"]
    assert ["cores (gpuCorePolicy)" in note for note in notes] == [True, False]
    assert "2 times the memory" in notes[1]
