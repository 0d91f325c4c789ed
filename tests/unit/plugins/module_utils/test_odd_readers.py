# SPDX-License-Identifier: Apache-2.0
"""What modules that look at single objects read is odd in any field: it costs that one thing, and is named."""

from __future__ import annotations

import http.client
import json
from collections.abc import Mapping
from dataclasses import asdict
from types import SimpleNamespace
from typing import Any

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils.cluster import resource_definitions
from ansible_collections.accel.kubernetes.plugins.module_utils.cluster.api_server import ApiServerError, explained
from ansible_collections.accel.kubernetes.plugins.module_utils.cluster.resource_definitions import Definition, configmap
from ansible_collections.accel.kubernetes.plugins.module_utils.cuda.compat import OK, UNSTABLE
from ansible_collections.accel.kubernetes.plugins.module_utils.gpu_plugins.taint import taint_plan
from ansible_collections.accel.kubernetes.plugins.module_utils.scheduler import lease as scheduler_lease
from ansible_collections.accel.kubernetes.plugins.module_utils.scheduler.lease import Lease, LeaseError
from ansible_collections.accel.kubernetes.plugins.modules import cf_crl, cuda_compat, node_condition, node_taint

from odd_values import Path, cases, fields_read, with_value
from unit.plugins.modules.test_cuda_compat import LABELS
from unit.plugins.odd_api import Answer, Client, Object, is_wrong

CORE = Definition("tencent.com/vcuda-core", "gpu-manager", "gpu-manager")
ODD = Definition("tencent.com/vcuda-memory", "odd", "gpu-manager")


class Cluster(Client):
    """Answers for the only object of a kind, too."""

    def get(self, kind: str, name: str = "", **selected: Any) -> Answer:
        return Answer(self.items[kind][0]) if name else super().get(kind, **selected)


# --- Definitions of resources ---


def listed(item: Any) -> tuple[list[Definition], dict[str, list[str]]]:
    definitions, problems = resource_definitions.definitions_of([configmap(CORE), item, configmap(CORE)])
    json.dumps([[asdict(each) for each in definitions], problems])
    assert definitions.count(CORE) == 2
    return definitions, problems


@pytest.mark.parametrize(("path", "values"), cases(fields_read(configmap(ODD), listed)))
def test_an_odd_definition_is_listed_or_named_beside_the_others(path: Path, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        definitions, problems = listed(with_value(configmap(ODD), path, value))
        assert ODD in definitions or problems or len(definitions) == 3, name
        if is_wrong(configmap(ODD), path, value) and path[0] in ("metadata", "data"):
            words = [each for wrong in problems.values() for each in wrong]
            assert any("cannot be read" in each and "kubectl" in each for each in words), name


def beside(item: Any) -> list[str]:
    """What is reported about a list of definitions that has this one, among others for the same resource."""
    other = {**configmap(CORE), "metadata": {**configmap(CORE)["metadata"], "name": "another"}}
    odd: list[str] = []
    found = cf_crl.others(Cluster({"ConfigMap": [item, other]}), [CORE], odd)
    assert "another" in found
    return odd


@pytest.mark.parametrize(("path", "values"), cases(fields_read(configmap(ODD), beside)))
def test_an_odd_definition_keeps_none_from_being_written(path: Path, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        odd = beside(with_value(configmap(ODD), path, value))
        if is_wrong(configmap(ODD), path, value) and path[0] in ("metadata", "data"):
            assert any("kubectl" in each for each in odd), name


def written_over(item: Any) -> str:
    """Why a definition is not written over this one; empty where it is."""
    try:
        with explained():
            found = cf_crl.get(Cluster({"ConfigMap": [item]}), ODD.name)
    except ApiServerError as error:
        return str(error)
    json.dumps(cf_crl.plan([ODD], {ODD.name: found}, "present"))
    json.dumps(cf_crl.shown(found))
    resource_definitions.ours(found)
    return ""


@pytest.mark.parametrize(("path", "values"), cases(fields_read(configmap(ODD), written_over)))
def test_odd_wanted_definition_is_named_with_a_remedy(path: Path, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        said = written_over(with_value(configmap(ODD), path, value))
        if is_wrong(configmap(ODD), path, value) and path[0] in ("metadata", "data"):
            assert said.startswith(f"configmap kube-public/{ODD.name} cannot be read: "), name
            assert f"see kubectl --namespace kube-public get configmap {ODD.name} --output=yaml" in said, name


# --- A node's condition ---

OURS = {"type": "GpusHealthy", "status": "False", "reason": "GpuUnhealthy", "message": "GPU 1"}


def host(*conditions: Any) -> Object:
    return {"metadata": {"name": "odd"}, "status": {"conditions": [*conditions, OURS]}}


def condition(item: Any) -> Object | str:
    try:
        with explained():
            found: Object = node_condition.found(Cluster({"Node": [item]}), "odd", "GpusHealthy")
    except ApiServerError as error:
        return str(error)
    return found


@pytest.mark.parametrize(("path", "values"), cases(fields_read(host({"type": "Ready"}), condition)))
def test_a_condition_is_found_beside_an_odd_one(path: Path, values: Mapping[str, Any]) -> None:
    item = host({"type": "Ready"})
    for name, value in values.items():
        found = condition(with_value(item, path, value))
        if path[:3] == ("status", "conditions", 0):
            assert found in (OURS, {"type": "GpusHealthy"}), name
        elif is_wrong(item, path, value) and path in (("metadata",), ("status",), ("status", "conditions")):
            assert isinstance(found, str), name
            assert found.startswith("node odd cannot be read: "), name
            assert found.endswith("; see kubectl get node odd --output=yaml, and correct it"), name


# --- A node's taints ---

THEIRS = {"key": "example.com/theirs", "value": "x", "effect": "NoSchedule"}
TAINTED = {"metadata": {"name": "odd", "annotations": {"kube-accel.io/taint": "{}"}}, "spec": {"taints": [THEIRS]}}
TAINT = {"key": "nvidia.com/gpu", "value": "true", "effect": "NoSchedule"}


def tainted(item: Any) -> list[Any] | str:
    try:
        plan = taint_plan(node_taint.found(Cluster({"Node": [item]}), "odd"), TAINT)
    except ApiServerError as error:
        return str(error)
    json.dumps(plan.patch)
    return plan.taints


@pytest.mark.parametrize(("path", "values"), cases(fields_read(TAINTED, tainted)))
def test_a_taint_is_put_beside_an_odd_one(path: Path, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        found = tainted(with_value(TAINTED, path, value))
        if is_wrong(TAINTED, path, value) and path in (("metadata",), ("spec",), ("spec", "taints")):
            assert isinstance(found, str), name
            assert found.startswith("node odd cannot be read: "), name
            assert found.endswith("; see kubectl get node odd --output=yaml, and correct it"), name
        elif not isinstance(found, str):
            assert found[-1] == TAINT, name


# --- What a pod's containers need ---

ENV = {"name": "NVIDIA_REQUIRE_CUDA", "value": "cuda>=99.0"}
LIMITS = {"tencent.com/vcuda-core": "20", "tencent.com/vcuda-memory": "4Gi"}


def pod() -> Object:
    def container(name: str) -> Object:
        resources = {"limits": dict(LIMITS), "requests": dict(LIMITS)}
        return {"name": name, "image": f"r.example/{name}:1", "env": [dict(ENV)], "resources": resources}

    spec = {"nodeName": "n", "containers": [container("odd"), container("good")], "initContainers": [container("i")]}
    return {"metadata": {"name": "p", "namespace": "team"}, "spec": spec}


def needs(item: Any, labels: Any = None) -> dict[str, str] | str:
    """Verdict, rule, reason and remedy of each container; or why there are none."""
    params: dict[str, Any] = dict.fromkeys(("cuda_version", "compat_version", "dtype", "model", "mode"), "")
    params |= {"virtualization_version": "", "ptx": None, "cores": 0, "environment": {}, "labels": {}, "facts": None}
    params |= {"node": "", "image": "", "architecture": "amd64", "files": [], "layers_mib": 0}
    params["pod"] = {"name": "p", "namespace": "team", "read_image": False}

    def fail(msg: str) -> None:
        raise ApiServerError(msg)

    asked = cuda_compat.Asked(SimpleNamespace(params=params, fail_json=fail))  # type: ignore[arg-type]
    node = {"metadata": {"name": "n", "labels": LABELS}} if labels is None else labels
    asked._client = Cluster({"Pod": [item], "Node": [node]})
    try:
        return {
            subject: f"{found.verdict}: {found.rule}: {found.reason} {found.remedy}"
            for subject, found in asked.decisions()
        }
    except ApiServerError as error:
        return str(error)


@pytest.mark.parametrize(("path", "values"), cases(fields_read(pod(), needs)))
def test_an_odd_container_is_named_and_the_others_are_judged(path: Path, values: Mapping[str, Any]) -> None:
    for name, value in values.items():
        found = needs(with_value(pod(), path, value))
        if path[:3] == ("spec", "containers", 0):
            assert not isinstance(found, str), (name, found)
            assert not found["team/p good"].startswith(UNSTABLE), name
            if is_wrong(pod(), path, value) and path[-1] not in LIMITS:
                assert "spec.containers[0]" in str(found), name
                assert "kubectl --namespace team get pod p" in str(found), name
        elif isinstance(found, str):
            assert "on no node yet" in found or ("team/p" in found and "kubectl" in found), name


def test_a_container_that_can_be_read_is_judged() -> None:
    found = needs(pod())
    assert isinstance(found, dict)
    assert set(found) == {"team/p odd", "team/p good", "team/p i"}
    assert not any(word.startswith((OK, UNSTABLE)) for word in found.values())


@pytest.mark.parametrize(
    ("path", "values"),
    cases(fields_read({"metadata": {"name": "n", "labels": dict(LABELS)}}, lambda item: needs(pod(), item))),
)
def test_an_odd_node_of_a_pod_is_named(path: Path, values: Mapping[str, Any]) -> None:
    node = {"metadata": {"name": "n", "labels": dict(LABELS)}}
    for name, value in values.items():
        found = needs(pod(), with_value(node, path, value))
        if is_wrong(node, path, value):
            assert isinstance(found, str), name
            assert found.startswith("node n cannot be read: "), name
            assert "see kubectl get node n" in found, name


# --- The Lease of kube-scheduler ---

GOOD_LEASE = {"metadata": {"name": "kube-scheduler"}, "spec": {"holderIdentity": "a", "renewTime": "2026-01-01"}}


def unread(item: Any, monkeypatch: pytest.MonkeyPatch) -> str:
    """Why the Lease cannot be read; empty where it can."""

    class Connection:
        def __init__(self, *_: object, **__: object) -> None:
            pass

        def request(self, *_: object, **__: object) -> None:
            pass

        def getresponse(self) -> SimpleNamespace:
            return SimpleNamespace(status=200, read=lambda: json.dumps(item).encode())

        def close(self) -> None:
            pass

    monkeypatch.setattr(http.client, "HTTPSConnection", Connection)
    monkeypatch.setattr(scheduler_lease, "_entries", lambda host, lease: ({"server": "https://192.0.2.1"}, {}))
    monkeypatch.setattr(scheduler_lease, "_context", lambda *_: None)
    try:
        scheduler_lease.renewed(None, Lease("/k", "kube-system", "kube-scheduler"))
    except LeaseError as error:
        return str(error)
    return ""


@pytest.mark.parametrize(
    ("path", "values"), cases([("spec",), ("spec", "holderIdentity"), ("spec", "renewTime"), ("metadata",)])
)
def test_an_odd_lease_is_named(path: Path, values: Mapping[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in values.items():
        said = unread(with_value(GOOD_LEASE, path, value), monkeypatch)
        if path != ("metadata",) and is_wrong(GOOD_LEASE, path, value):
            assert said.startswith("the Lease kube-system/kube-scheduler cannot be read"), name
            assert "kubectl --namespace kube-system get lease kube-scheduler" in said, name


@pytest.mark.parametrize("answer", [[], None, 7, "x"])
def test_a_lease_that_is_no_object_is_named(answer: object, monkeypatch: pytest.MonkeyPatch) -> None:
    assert unread(answer, monkeypatch).startswith("the Lease kube-system/kube-scheduler cannot be read")
