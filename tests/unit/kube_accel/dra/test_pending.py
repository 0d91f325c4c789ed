# SPDX-License-Identifier: Apache-2.0
"""How many pods wait for GPUs by claims, as the driver counts them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any, cast

import pytest

from kube_accel.dra import pending
from kube_accel.dra.pending import PendingClaims
from kube_accel.kube.api import ApiRefusedError
from kube_accel.kube.client import KubeClient

SHARE, FIXED = "share.kube-accel.io", "fixed-share.kube-accel.io"
GROUP = "/apis/resource.k8s.io/v1/namespaces"


class Cluster:
    """An API server with pods without a node, claims, and templates."""

    def __init__(self) -> None:
        self.pods: list[dict[str, Any]] = []
        self.objects: dict[str, Any] = {}
        self.asked: list[str] = []
        self.status = 404

    def send(self, method: str, path: str, query: Mapping[str, str]) -> bytes:
        assert (method, path, query["fieldSelector"]) == ("GET", "/api/v1/pods", "spec.nodeName=,status.phase=Pending")
        return json.dumps({"metadata": {"resourceVersion": "7"}, "items": self.pods}).encode()

    def get(self, path: str) -> dict[str, Any]:
        self.asked.append(path)
        if path not in self.objects:
            raise ApiRefusedError(self.status, "no")
        found: dict[str, Any] = self.objects[path]
        return found

    def pod(self, name: str, *claims: str, namespace: str = "team", limits: Mapping[str, str] | None = None) -> None:
        """Each claim is ``template/NAME`` or a name."""
        entries: list[dict[str, str]] = []
        for number, claim in enumerate(claims):
            kind, _, template = claim.partition("/")
            source = {"resourceClaimTemplateName": template} if template else {"resourceClaimName": kind}
            entries.append({"name": f"c{number}", **source})
        containers = [{"name": "main", "resources": {"limits": dict(limits or {})}}]
        metadata = {"name": name, "namespace": namespace, "uid": name}
        self.pods.append({"metadata": metadata, "spec": {"containers": containers, "resourceClaims": entries}})

    def claim(self, name: str, *kinds: str, namespace: str = "team") -> None:
        """With a request for the first of these classes that is free."""
        wants: dict[str, Any] = {"exactly": {"deviceClassName": kinds[0]}}
        if len(kinds) > 1:
            wants = {"firstAvailable": [{"name": each[:3], "deviceClassName": each} for each in kinds]}
        spec: dict[str, Any] = {"devices": {"requests": [{"name": "gpu", **wants}]}}
        kind, _, template = name.partition("/")
        where = f"resourceclaimtemplates/{template}" if template else f"resourceclaims/{kind}"
        body = {"metadata": {"name": template or kind, "namespace": namespace}}
        self.objects[f"{GROUP}/{namespace}/{where}"] = {**body, "spec": {"spec": spec} if template else spec}


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def counter(cluster: Cluster, everything: bool = False) -> PendingClaims:
    return PendingClaims(cast(KubeClient, cluster), everything)


@pytest.mark.parametrize("kind", ["gpu.kube-accel.io", SHARE, FIXED, "mig.kube-accel.io"])
@pytest.mark.parametrize("source", ["training", "template/training"])
def test_pod_with_a_claim_for_gpus_is_counted(cluster: Cluster, kind: str, source: str) -> None:
    cluster.claim(source, kind)
    cluster.pod("a", source)
    assert counter(cluster)() == {("team", "dra"): 1}


def test_any_alternative_of_any_claim_counts_a_pod_once(cluster: Cluster) -> None:
    cluster.claim("network", "net.example.com")
    cluster.claim("either", "gpu.nvidia.com", SHARE)
    cluster.claim("more", SHARE)
    cluster.pod("a", "network", "either", "more")
    cluster.pod("b", "network")
    assert counter(cluster)() == {("team", "dra"): 1}


def test_claims_of_other_drivers_are_not_counted(cluster: Cluster) -> None:
    cluster.claim("theirs", "gpu.nvidia.com")
    cluster.pod("a", "theirs")
    cluster.pod("b")
    assert counter(cluster)() == {}


def test_extended_resources_count_where_no_extender_does(cluster: Cluster) -> None:
    cluster.claim("mine", SHARE)
    cluster.pod("a", "mine")
    cluster.pod("b", limits={"nvidia.com/gpu": "1"})
    cluster.pod("c", "mine", limits={"nvidia.com/gpu": "1"})
    assert counter(cluster)() == {("team", "dra"): 1}
    assert counter(cluster, everything=True)() == {("team", "dra"): 1, ("team", "pgpu"): 2}


def test_claim_is_asked_for_once_while_a_pod_waits(cluster: Cluster) -> None:
    cluster.claim("template/worker", SHARE)
    for name in ("a", "b", "c"):
        cluster.pod(name, "template/worker")
    counting = counter(cluster)
    assert [counting(), counting()] == [{("team", "dra"): 3}] * 2
    assert cluster.asked == [f"{GROUP}/team/resourceclaimtemplates/worker"]
    waiting, cluster.pods = cluster.pods, []
    assert counting() == {}
    cluster.pods = waiting
    assert counting() == {("team", "dra"): 3}
    assert len(cluster.asked) == 2, "what no pod names is forgotten"


def test_claim_that_is_not_there_yet_is_asked_for_again(cluster: Cluster) -> None:
    cluster.pod("a", "later")
    counting = counter(cluster)
    assert counting() == {}
    cluster.claim("later", SHARE)
    assert counting() == {("team", "dra"): 1}


def test_refused_claims_are_no_count_of_zero(cluster: Cluster) -> None:
    cluster.status = 403
    cluster.pod("a", "secret")
    with pytest.raises(ApiRefusedError):
        counter(cluster)()


def test_many_claims_are_asked_for_in_turn(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pending, "_MOST_ASKED", 3)
    for number in range(5):
        cluster.claim(f"c{number}", SHARE, namespace=f"n{number}")
        cluster.pod(f"p{number}", f"c{number}", namespace=f"n{number}")
    counting = counter(cluster)
    counts = [counting(), counting()]
    assert [list(each.values()) for each in counts] == [[1] * 3, [1] * 5]


@pytest.mark.attack
def test_claims_that_are_not_there_hide_no_other_namespace(cluster: Cluster) -> None:
    for number in range(500):
        cluster.pod(f"p{number}", f"none-{number}", namespace="hostile")
    cluster.claim("mine", SHARE)
    cluster.pod("a", "mine")
    counting = counter(cluster)
    asked = []
    for _ in range(200):
        before = len(cluster.asked)
        assert counting() == {("team", "dra"): 1}
        asked.append(len(cluster.asked) - before)
    assert max(asked) <= 51
    assert sum(asked[-32:]) <= 32 * 51 // 2, "less and less often"


@pytest.mark.attack
@pytest.mark.parametrize(
    "odd", [7, {"devices": 7}, {"devices": {"requests": [{"name": "a", "exactly": 7}]}}, {"spec": 7}]
)
def test_odd_claim_costs_its_pod_alone(cluster: Cluster, odd: object) -> None:
    cluster.claim("mine", SHARE)
    cluster.objects[f"{GROUP}/team/resourceclaims/odd"] = {"metadata": {"name": "odd"}, "spec": odd}
    cluster.pod("a", "odd")
    cluster.pod("b", "mine")
    assert counter(cluster)() == {("team", "dra"): 1}
