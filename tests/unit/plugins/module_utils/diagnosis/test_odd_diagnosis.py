# SPDX-License-Identifier: Apache-2.0
"""One object that a diagnosis reads is odd in any field: it costs itself alone, and what else happened is told."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any
from unittest.mock import patch

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils.diagnosis import (
    collect as gpu_collect,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.diagnosis import (
    support_collect,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.diagnosis import (
    verdict as gpu_diagnosis,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.diagnosis.support_bundle import Bundle

from odd_values import Path, cases, fields_read, with_value
from unit.plugins.module_utils.diagnosis.test_verdict import FAILED, LABELS, OFFERS, OVER, READY, TORCH, daemon
from unit.plugins.module_utils.shared.test_gpu_view import SHARE, TRAIN, node, plugin, pod
from unit.plugins.odd_api import Answer, Client, Object, is_wrong

NAMESPACE = "kube-system"
ODD = ("team", "odd")


class Cluster(Client):
    """Answers for one object too, and for the logs and pages of pods."""

    def get(self, kind: str, name: str = "", namespace: str | None = None, **selected: Any) -> Answer:
        found = [
            item
            for item in self.items.get(kind, [])
            if not isinstance(item, dict)
            or not isinstance(item.get("metadata"), dict)
            or namespace in (None, item["metadata"].get("namespace"))
            or kind == "Node"
        ]
        if not name:
            return Answer({"metadata": {}, "items": found})
        named = [item for item in found if self.name_of(item) == name]
        return Answer((named or found)[0])

    @staticmethod
    def name_of(item: Any) -> Any:
        metadata = item.get("metadata") if isinstance(item, dict) else None
        return metadata.get("name") if isinstance(metadata, dict) else None


def good() -> dict[str, list[Object]]:
    """A node whose plugin is down, a pod that wanted too much, and what is told of them."""
    train = pod("train", SHARE, "a", containerStatuses=[{"name": "main", "state": {"terminated": FAILED}}])
    train["metadata"] |= {"uid": "uid-train", "annotations": {"kube-accel.io/assignment": "{}"}}
    refused = {"reason": "GpuMemoryRefused", "message": OVER, "lastTimestamp": "2026-01-01T00:00:00Z"}
    told = {
        "metadata": {"name": "e", "namespace": "team"},
        "involvedObject": {"kind": "Pod", "name": "train"},
        **refused,
    }
    down = daemon(plugin("a"), False, containerStatuses=[{"name": "main", "state": {"waiting": {"reason": "Crash"}}}])
    quota = {"hard": {"requests.tencent.com/vcuda-core": "30"}, "used": {"requests.tencent.com/vcuda-core": "30"}}
    status = {**READY, **OFFERS}
    host = node("a", {0: (TRAIN,)}, **status)
    host["metadata"]["labels"] = {**host["metadata"].get("labels", {}), **LABELS}
    container = {"name": "main", "image": "i", "env": [{"name": "A", "value": "b"}]}
    ours = {
        "metadata": {"name": "ours", "namespace": NAMESPACE},
        "spec": {"template": {"spec": {"containers": [container]}}},
    }
    return {
        "Node": [host],
        "Pod": [train, down],
        "Event": [told],
        "DaemonSet": [ours],
        "ConfigMap": [{"metadata": {"name": "ours", "namespace": NAMESPACE}, "data": {"a": "b"}}],
        "ResourceQuota": [{"metadata": {"name": "q", "namespace": "team"}, "status": quota}],
    }


def odd(kind: str) -> Object:
    """The object of a kind that is made odd, beside the good ones."""
    item = json.loads(json.dumps(good()[kind][0]))
    item["metadata"]["name"] = "odd"
    return dict(item)


def told(kind: str, item: Any, about: tuple[str, str] | None = ("team", "train"), node: str = "") -> Mapping[str, Any]:
    """The diagnosis of a cluster that has an object more."""
    items = good()
    items[kind] = [items[kind][0], item, *items[kind][1:]]
    collector = gpu_collect.Collector(Cluster(items), NAMESPACE)
    with patch.object(gpu_collect, "text_at", lambda client, path, most: f"{TORCH}\n"):
        evidence = collector.evidence(about, node)
    found = gpu_diagnosis.diagnose(evidence)
    document = gpu_diagnosis.document(found, gpu_diagnosis.looked_at(evidence), collector.problems)
    "\n".join(gpu_diagnosis.lines(document)).encode()
    json.dumps(document)
    return document


def rules(document: Mapping[str, Any]) -> list[str]:
    return [finding["rule"] for finding in document["findings"]]


def bundled(kind: str, item: Any, about: tuple[str, str] | None = ("team", "train")) -> Bundle:
    """The support bundle of the same."""
    items = good()
    items[kind] = [items[kind][0], item, *items[kind][1:]]
    with (
        patch.object(gpu_collect, "text_at", lambda client, path, most: f"{TORCH}\n"),
        patch.object(gpu_collect.Collector, "version", lambda collector: "v1.36.2"),
    ):
        return support_collect.collect(gpu_collect.Collector(Cluster(items), NAMESPACE), about, "", "2.19")


def fields(kinds: tuple[str, ...], run: Callable[[str, Any], object]) -> list[Any]:
    """Parameters ``kind``, ``path`` and ``values``, of what is read of an odd object of each kind."""
    return [
        pytest.param(kind, *case.values, id=f"{kind}-{case.id}", marks=case.marks)
        for kind in kinds
        for case in cases(fields_read(odd(kind), partial(run, kind)))
    ]


@pytest.mark.parametrize(("kind", "path", "values"), fields(("Node", "Pod", "Event", "ResourceQuota"), told))
def test_odd_object_beside_a_pod_hides_nothing_of_it(kind: str, path: Path, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        found = told(kind, with_value(odd(kind), path, value))
        assert {"quota_oom", "plugin_down"} <= set(rules(found)), name
        # Of nodes it asks for the pod's alone.
        if kind != "Node" and is_wrong(odd(kind), path, value) and path == ("metadata",):
            assert any(kind.lower() in problem.lower() for problem in found["problems"]), name


@pytest.mark.full
@pytest.mark.parametrize(("kind", "path", "values"), fields((*good(),), bundled))
def test_an_odd_object_beside_it_keeps_nothing_from_the_bundle(
    kind: str, path: Path, values: Mapping[str, Any]
) -> None:
    expected = {"pods/team_train.json", "nodes/a.json", "events.json", "objects/DaemonSet_kube-system_ours.json"}
    for name, value in values.items():
        found = bundled(kind, with_value(odd(kind), path, value))
        assert expected <= found.files.keys(), name


@pytest.mark.parametrize(("path", "values"), cases(fields_read(odd("Pod"), lambda item: told("Pod", item, ODD))))
def test_a_pod_that_is_odd_itself_is_diagnosed_by_the_rest(path: Path, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        item = with_value(odd("Pod"), path, value)
        found = told("Pod", item, ODD)
        assert found["findings"] or found["problems"], name


@pytest.mark.full
@pytest.mark.parametrize(("path", "values"), cases(fields_read(odd("Pod"), lambda item: bundled("Pod", item, ODD))))
def test_a_pod_that_is_odd_itself_is_bundled(path: Path, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        assert "diagnosis.json" in bundled("Pod", with_value(odd("Pod"), path, value), ODD).files, name


@pytest.mark.parametrize(
    ("path", "values"), cases(fields_read(odd("Node"), lambda item: told("Node", item, None, "odd")))
)
def test_a_node_that_is_odd_itself_is_diagnosed_by_the_rest(path: Path, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        item = with_value(odd("Node"), path, value)
        told("Node", item, None, "odd")
        assert "plugin_down" in rules(told("Node", item, None)), name
