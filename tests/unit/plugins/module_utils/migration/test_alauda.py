# SPDX-License-Identifier: Apache-2.0
"""Nodes of Alauda's hardware accelerator suite: whose plugins choose them by the label that ours go by too."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.accel.kubernetes.plugins.module_utils.migration import peers
from ansible_collections.accel.kubernetes.plugins.module_utils.migration.plan import Cluster, Terms, Wanted, plan
from ansible_collections.accel.kubernetes.plugins.module_utils.migration.shown import table
from ansible_collections.accel.kubernetes.plugins.module_utils.playbooks import migration
from ansible_collections.accel.kubernetes.plugins.modules.gpu_migration_info import parsed

from sim.cluster.kinds import matches_node
from sim.cluster.patch import merge
from unit.plugins.module_utils.migration import peer_objects as objects
from unit.plugins.module_utils.migration.peer_objects import Object, chosen, pod

MIB = 1 << 20
KINDS = {"pgpu": "nvidia", "vgpu": "gpu-manager", "mps": "mps"}
ROOT = Path(__file__).parents[5]
MODES = yaml.safe_load((ROOT / "roles/gpu_plugins/vars/main/modes.yml").read_text())["__gpu_plugins_modes"]
CARD_OF_15 = 16130 * MIB
"""A GPU of 16 GB, of which 15 units of a GiB are offered."""


def labelled(mode: str, name: str = "gpu-1", **allocatable: str) -> Object:
    keys = {key.replace("__", "/"): value for key, value in allocatable.items()}
    return objects.node(name, keys, **{"nvidia_device_enable": mode})


def planned(daemonsets: list[Object], nodes: list[Object], *pods: Object, mode: str, memory: int = CARD_OF_15) -> Any:
    wanted = [Wanted(item["metadata"]["name"], mode, {}, memory, ()) for item in nodes]
    return plan(Cluster(nodes, daemonsets, pods), wanted, Terms("kube-accel"), parsed)


def ours_selects(mode: str, node: Object) -> bool:
    required = {"nodeSelectorTerms": [{"matchExpressions": MODES[mode]["nodes"]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    return bool(matches_node({"affinity": affinity}, node))


@pytest.mark.parametrize("mode", sorted(KINDS))
def test_each_is_known_as_its_documents_install_it(mode: str) -> None:
    document = planned([objects.of_alauda(mode)], [labelled(mode)], mode=mode)

    (found,) = document["peers"]
    assert (found["kind"], found["nodes"], found["shares_label"]) == (KINDS[mode], ["gpu-1"], True)
    entry = document["nodes"]["gpu-1"]
    assert (entry["state"], entry["from"], entry["mode"]) == ("due", KINDS[mode], peers.KINDS[KINDS[mode]].mode)
    assert entry["problems"] == []


@pytest.mark.parametrize("mode", sorted(KINDS))
@pytest.mark.parametrize("to", ["pgpu", "vgpu", "mps", "cgpu"])
def test_nodes_change_hands_and_back_though_both_go_by_one_label(mode: str, to: str) -> None:
    """Never do both select a node, and in the end all objects are as they were."""
    theirs, ours = objects.of_alauda(mode), objects.ours(to)
    nodes = {name: labelled(mode, name) for name in ("gpu-1", "gpu-2")}
    before = [theirs, *nodes.values()]

    def now(*more: Object) -> Any:
        return planned([theirs, *more], list(nodes.values()), mode=to)

    def who(name: str) -> tuple[bool, bool]:
        return matches_node(theirs["spec"]["template"]["spec"], nodes[name]), ours_selects(to, nodes[name])

    def patched(patches: Any) -> None:
        for each in patches:
            nodes[each["name"]] = merge(nodes[each["name"]], each["patch"])

    document = now()
    patched(document["peers"][0]["hold"])
    assert (who("gpu-1"), who("gpu-2")) == ((True, False), (True, False))
    for each in document["peers"][0]["avoid"]:
        theirs = merge(theirs, each["patch"])
    serves = {"nvidia-device-enable": to, **({"cgpu": "true"} if to == "cgpu" else {})}
    # The plan is made once, before the first node.
    for name in nodes:
        patched([{"name": name, "patch": document["nodes"][name]["off"]}])
        assert who(name) == (False, False)
        patched([{"name": name, "patch": {"metadata": {"labels": serves}}}])
        assert (who("gpu-1"), who("gpu-2")) == ((False, True), (False, True) if name == "gpu-2" else (True, False))
    assert {node["state"] for node in now(ours)["nodes"].values()} == {"done"}

    document = now(ours)
    for name in nodes:
        patched([{"name": name, "patch": {"metadata": {"labels": dict.fromkeys(serves)}}}])
        step = migration.step(document, name, migration.Terms(back=True, strand=False))
        patched([{"name": name, "patch": step.back}])
        assert (who("gpu-1"), who("gpu-2")) == ((True, False), (True, False) if name == "gpu-2" else (False, True))
    assert migration.outcome(now(ours), back=True, check=False).release == []
    outcome = migration.outcome(now(), back=True, check=False)
    patched(outcome.release)
    for each in outcome.restore:
        theirs = merge(theirs, each["patch"])
    for item in (theirs, *nodes.values()):
        if item["metadata"].get("annotations") == {}:
            del item["metadata"]["annotations"]
    assert [theirs, *nodes.values()] == before


def row(kind: str, limits: Object, mode: str, memory: int = CARD_OF_15, **allocatable: str) -> Any:
    daemonset = objects.of_alauda("mps") if kind == "mps" else objects.gpushare()
    document = planned([daemonset], [chosen(kind, **allocatable)], pod("p", limits), mode=mode, memory=memory)
    (found,) = document["nodes"]["gpu-1"]["pods"]
    return found, "\n".join(table(document))


def test_four_units_of_a_gpu_of_fifteen_are_less_here() -> None:
    found, shown = row("gpushare", {"aliyun.com/gpu-mem": "4"}, "cgpu", **{"aliyun.com__gpu-mem": "15"})

    assert (found["becomes"], found["changes"]) == ({"aliyun.com/gpu-mem": 4}, False)
    assert found["note"] == "4,301 MiB there and 4,096 MiB here: 205 MiB less"
    assert "stay as it is: it has 4 GiB of a GPU's memory (4,301 MiB there and 4,096 MiB here: 205 MiB less)" in shown
    assert "15 aliyun.com/gpu-mem becomes the same, of 1,024 MiB each where they were of 1,075 MiB" in shown


@pytest.mark.parametrize(
    ("kind", "mode", "limits", "memory", "units", "becomes", "note"),
    [
        ("gpushare", "cgpu", {"aliyun.com/gpu-mem": "4"}, 15 << 10, "15", {"aliyun.com/gpu-mem": 4}, ""),
        ("gpushare", "cgpu", {"aliyun.com/gpu-mem": "4"}, 0, "15", {"aliyun.com/gpu-mem": 4}, ""),
        # Nobody gets less where another resource is asked for: 4,301 MiB are 17 units.
        ("gpushare", "vgpu", {"aliyun.com/gpu-mem": "4"}, 16130, "15", {"tencent.com/vcuda-memory": 17}, "it named no"),
        ("gpushare", "mps", {"aliyun.com/gpu-mem": "4"}, 16130, "15", {"nvidia.com/mps-memory": 5}, "it named no"),
        (
            *("mps", "mps", {"nvidia.com/mps-core": "30", "nvidia.com/mps-memory": "4"}, 16130, "15"),
            {"nvidia.com/mps-core": 30, "nvidia.com/mps-memory": 4},
            "4,301 MiB there and 4,096 MiB here: 205 MiB less",
        ),
        (
            *("mps", "mps", {"nvidia.com/mps-core": "30", "nvidia.com/mps-memory": "16"}, 16384, "64"),
            {"nvidia.com/mps-core": 30, "nvidia.com/mps-memory": 4},
            "",
        ),
        (
            *("mps", "vgpu", {"nvidia.com/mps-core": "30", "nvidia.com/mps-memory": "4"}, 16384, "16"),
            {"tencent.com/vcuda-core": 30, "tencent.com/vcuda-memory": 16},
            "",
        ),
        ("mps", "mps", {"nvidia.com/mps-core": "100"}, 16384, "16", {"nvidia.com/mps-core": 100}, ""),
        ("mps", "pgpu", {"nvidia.com/mps-core": "100"}, 16384, "16", {"nvidia.com/gpu": 1}, ""),
        ("mps", "mps", {"nvidia.com/mps-core": "30"}, 16384, "16", {}, "say how much memory it needs"),
    ],
)
def test_plan_says_what_a_pod_gets_more_or_less(
    kind: str, mode: str, limits: Object, memory: int, units: str, becomes: Object, note: str
) -> None:
    name = "nvidia.com__mps-memory" if kind == "mps" else "aliyun.com__gpu-mem"
    found, _shown = row(kind, limits, mode, memory * MIB, **{name: units})

    assert {key: value for key, value in found["becomes"].items() if key in becomes} == becomes
    assert found["note"].startswith(note) if note else not found["note"]


@pytest.mark.parametrize(
    ("mode", "limits", "becomes"),
    [
        ("mps", {"nvidia.com/mps-core": "30", "nvidia.com/mps-memory": "4"}, {"nvidia.com/mps-core": 30}),
        ("vgpu", {"tencent.com/vcuda-core": "30", "tencent.com/vcuda-memory": "17"}, {"nvidia.com/mps-memory": 5}),
        ("pgpu", {"nvidia.com/gpu": "1"}, {"nvidia.com/mps-core": 100}),
    ],
)
def test_way_back_to_mps_says_what_to_ask_for(mode: str, limits: Object, becomes: Object) -> None:
    node = merge(
        chosen("mps"), planned([objects.of_alauda("mps")], [chosen("mps")], mode=mode)["nodes"]["gpu-1"]["off"]
    )
    node = merge(node, {"metadata": {"labels": {"nvidia-device-enable": mode}}})
    theirs = peers.avoiding(objects.of_alauda("mps"))

    (found,) = planned([theirs], [node], pod("p", limits), mode=mode)["nodes"]["gpu-1"]["returns"]

    assert becomes.items() <= found["becomes"].items()
