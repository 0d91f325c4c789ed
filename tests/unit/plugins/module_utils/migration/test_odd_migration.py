# SPDX-License-Identifier: Apache-2.0
"""One object that a migration is planned from is odd in any field: it costs itself alone, and a note names it."""

from __future__ import annotations

import copy
import json
from collections.abc import Mapping
from typing import Any

import pytest
import yaml
from ansible_collections.accel.kubernetes.plugins.module_utils.migration.plan import Terms, Wanted, plan
from ansible_collections.accel.kubernetes.plugins.module_utils.migration.shapes import SHAPES
from ansible_collections.accel.kubernetes.plugins.module_utils.migration.shown import shown, table
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.api_json import ANY
from ansible_collections.accel.kubernetes.plugins.modules.gpu_migration_info import cluster, parsed

from odd_values import ODD, Path, cases, fields_read, with_value
from unit.plugins.module_utils.migration import peer_objects as objects
from unit.plugins.module_utils.migration.peer_objects import Object, chosen, pod
from unit.plugins.odd_api import Client, is_named_oddly, is_wrong

TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}
GOOD = ("gpu-1", "gpu-2")


def odd_node() -> Object:
    item = chosen("nvidia", "odd", **{"nvidia.com__gpu": "8"})
    item["metadata"]["labels"] |= {"nvidia.com/gpu.memory": "81559", "nvidia.com/device-plugin.config": "plain"}
    item["metadata"]["annotations"] = {
        "kube-accel.io/migration": json.dumps({"from": "nvidia", "labels": {}, "daemonsets": ["a/b"]})
    }
    item["spec"]["taints"] = [TAINT]
    return item


def odd_pod() -> Object:
    item = pod("odd", {"nvidia.com/gpu": "1"})
    item["spec"]["initContainers"] = [{"name": "init", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]
    return item


def odd_daemonset() -> Object:
    item = objects.nvidia(configured=True, MIG_STRATEGY="none")
    owners = [{"kind": "ClusterPolicy", "name": "policy", "uid": "x", "controller": True}]
    item["metadata"] |= {"name": "odd", "namespace": "odd", "uid": "uid-odd", "ownerReferences": owners}
    spec = item["spec"]["template"]["spec"]
    spec["nodeSelector"] = {"odd": "true"}
    # Either of them keeps it off the other nodes.
    expressions = [{"key": "odd", "operator": "In", "values": ["true"]}]
    required = {"nodeSelectorTerms": [{"matchExpressions": expressions}]}
    spec["affinity"] = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    spec["containers"][0] |= {"command": ["nvidia-device-plugin"], "args": ["--pass-device-specs"]}
    return item


def config_map(name: str = "nvdp-configs", **data: Any) -> Object:
    return {"metadata": {"name": name, "namespace": "nvidia-device-plugin"}, "data": data}


PLAIN = yaml.safe_dump({"version": "v1", "flags": {"migStrategy": "none"}})
BESIDE: dict[str, list[Object]] = {
    "Node": [chosen("nvidia", **{"nvidia.com__gpu": "8"}), chosen("gpu-manager", "gpu-2")],
    "DaemonSet": [objects.nvidia(configured=True), objects.gpu_manager(), objects.ours()],
    "Pod": [pod("good", {"nvidia.com/gpu": "1"}), pod("other", {"tencent.com/vcuda-core": "20"}, "gpu-2")],
    "Deployment": [{"metadata": {"name": "gpu-admission-x", "namespace": "kube-system"}}],
    "MutatingWebhookConfiguration": [{"metadata": {"name": "hami"}, "webhooks": [{"name": "vgpu.hami.io"}]}],
    "ConfigMap": [config_map(plain=PLAIN)],
}
ODD_ITEMS: dict[str, Object] = {
    "Node": odd_node(),
    "DaemonSet": odd_daemonset(),
    "Pod": odd_pod(),
    "Deployment": {"metadata": {"name": "gpu-admission-odd", "namespace": "kube-system"}},
    "MutatingWebhookConfiguration": {"metadata": {"name": "odd"}, "webhooks": [{"name": "vgpu.hami.io"}]},
}


def planned(kind: str = "", item: Object | None = None) -> dict[str, Any]:
    """The plan of a cluster with this object besides, in every form."""
    items = {each: [*BESIDE[each]] for each in BESIDE}
    if item is not None:
        items[kind].insert(0, item)
    wanted = [Wanted(name, "pgpu" if name != "gpu-2" else "vgpu", {}, 80 << 30) for name in (*GOOD, "odd")]
    document = plan(cluster(Client(items)), wanted, Terms("kube-accel"), parsed)
    "\n".join(table(document)).encode(errors="backslashreplace")
    json.dumps(shown(document))
    return document


def of_good(document: Mapping[str, Any]) -> dict[str, Any]:
    """What is planned for the others."""
    nodes = {name: {**document["nodes"][name]} for name in GOOD}
    for entry in nodes.values():
        for key in ("daemonsets", "uids", "off"):  # name all DaemonSets of the plugin that serves it
            del entry[key]
        entry["pods"] = [row for row in entry["pods"] if row["pod"] in ("team/good", "team/other")]
        entry["stranded"] = [name for name in entry["stranded"] if name in ("team/good", "team/other")]
        entry["problems"] = [each for each in entry["problems"] if "they would stay pending" not in each]
    return nodes


def is_decided_by(shape: Any, path: Path) -> bool:
    """Whether the field is more than compared with what it was, for a patch."""
    for step in path:
        if isinstance(shape, dict):
            shape = shape.get(step, shape.get(f"{step}!", shape.get(ANY)))
        elif isinstance(shape, list):
            shape = shape[0]
    return shape is not None


FIELDS = [
    pytest.param(kind, *case.values, id=f"{kind}-{case.id}", marks=case.marks)
    for kind, item in ODD_ITEMS.items()
    for case in cases(fields_read(item, lambda each, kind=kind: planned(kind, each)))  # type: ignore[misc]
]


@pytest.mark.parametrize(("kind", "path", "values"), FIELDS)
def test_an_odd_object_leaves_the_plan_of_the_others_and_is_told(
    kind: str, path: Path, values: Mapping[str, Any]
) -> None:
    good = planned()
    for name, value in values.items():
        document = planned(kind, with_value(ODD_ITEMS[kind], path, value))
        assert of_good(document) == of_good(good), name
        assert set(good["notes"]) <= set(document["notes"]), name
        is_amount = path[-2:-1] in (("limits",), ("allocatable",)) and type(value) is int and value > 0
        if is_wrong(ODD_ITEMS[kind], path, value) and not is_amount and is_decided_by(SHAPES[kind], path):
            assert any("odd" in note or is_named_oddly(path) for note in set(document["notes"]) - set(good["notes"])), (
                name
            )


@pytest.mark.parametrize("name", [name for name in ODD if name not in ("absent", "null")])
def test_unreadable_configmap_keeps_its_nodes_unmigrated(name: str) -> None:
    items = {**BESIDE, "ConfigMap": [with_value(config_map(plain=PLAIN), ("data",), ODD[name])]}
    document = plan(cluster(Client(items)), [Wanted("gpu-1", "pgpu"), Wanted("gpu-2", "vgpu")], Terms("x"), parsed)
    if not isinstance(ODD[name], dict):
        (problem,) = document["nodes"]["gpu-1"]["problems"]
        assert problem.startswith("configmap nvidia-device-plugin/nvdp-configs cannot be read: ")
        assert "see kubectl get configmap" in problem
    assert document["nodes"]["gpu-2"] == planned()["nodes"]["gpu-2"]


@pytest.mark.parametrize("name", sorted(ODD))
def test_an_odd_file_of_a_map_costs_itself_alone(name: str) -> None:
    odd = with_value(config_map(plain=PLAIN, odd="x"), ("data", "odd"), ODD[name])
    document = plan(cluster(Client({**BESIDE, "ConfigMap": [odd]})), [Wanted("gpu-1", "pgpu")], Terms("x"), parsed)
    configs = document["nodes"]["gpu-1"]["variables"]["gpu_plugins_configs"]
    assert configs["plain"] == parsed(PLAIN)
    left_out = any("odd, which is no configuration" in note for note in document["notes"])
    assert "odd" in configs or left_out or name == "absent"
    json.dumps(shown(document))


def test_an_odd_node_is_refused_by_its_name() -> None:
    item = with_value(odd_node(), ("spec", "taints"), 7)
    document = planned("Node", copy.deepcopy(item))
    assert document["nodes"]["odd"]["problems"] == [
        "node odd cannot be read: odd: spec.taints is no list; see kubectl get node --output=yaml"
    ]
