# SPDX-License-Identifier: Apache-2.0
"""Binds that wait: what others know of them meanwhile."""

from __future__ import annotations

import json

import pytest

from kube_accel.extender.leader_lease import NotOursError
from kube_accel.extender.pods import Pod
from kube_accel.web.site import Request
from unit.kube_accel.extender.world import Api, Extender, node_object, pod_object, share


def waiting(api: Api) -> tuple[Extender, Pod, Request, list[str]]:
    """An extender, a pod, its bind, and where its GPUs are kept each time that the bind says it will wait."""
    extender, kept = Extender(api), list[str]()
    extender.cluster.keep_node(node_object("node-a"))
    item = api.create(pod_object("pod", share(30, 20)))
    extender.listen()
    pod = extender.cluster.pods["uid-pod"]
    body = {"PodName": "pod", "PodNamespace": "team", "PodUID": pod.uid, "Node": "node-a"}
    extender.filter(item, "node-a")
    path, text = "/scheduler/bind", json.dumps(body).encode()
    return (
        extender,
        pod,
        Request("POST", path, text, True, lambda: kept.append(extender.cluster.kept_on(pod.uid))),
        kept,
    )


@pytest.mark.parametrize("proven", [True, False])
def test_gpus_are_reserved_before_a_bind_waits(proven: bool) -> None:
    """Who is asked for points while binds wait has to see where they go, or all of them go there."""
    extender, pod, request, kept = waiting(Api())
    for _ in range(3 * proven):
        extender.lease.step()
    assert (extender.lease.proven(pod) != "") is proven
    assert json.loads(extender.service.handle(request).body) == {"Error": ""}
    # For the API server, and without proof for the Lease before.
    assert kept == ["node-a"] * (1 if proven else 2)


def test_bind_that_may_not_be_leaves_nothing_reserved(monkeypatch: pytest.MonkeyPatch) -> None:
    extender, pod, request, kept = waiting(Api())

    def refused(pod: Pod) -> str:
        raise NotOursError("another holds the Lease")

    monkeypatch.setattr(extender.lease, "wait", refused)
    assert "another holds the Lease" in json.loads(extender.service.handle(request).body)["Error"]
    assert kept == ["node-a"]
    assert extender.cluster.kept_on(pod.uid) == ""
