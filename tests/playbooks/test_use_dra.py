# SPDX-License-Identifier: Apache-2.0
"""What report.yml, inspect.yml, and diagnose.yml say of pods that have GPUs by claims."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest

from kube_accel.kube.dra import SERVICES
from kube_accel.kube.proto import dra_pb2 as pb
from kube_accel.rpc.channel import Channel
from sim.cluster import NodeSpec, Spec
from sim.cluster.client import Api, pod, until
from sim.inventory import write_inventory

from .conftest import Playbooks, Start

pytestmark = pytest.mark.full
CLAIMS = "/apis/resource.k8s.io/v1/namespaces/default/resourceclaims"
PODS = "/api/v1/namespaces/default/pods"
SYSTEM = "/api/v1/namespaces/kube-system/pods"
DRIVER, FIXED = "gpu.kube-accel.io", "fixed-share.kube-accel.io"
NODE = "gpu-a"


@pytest.fixture(scope="module")
def books(start: Start) -> Playbooks:
    """A node whose eight GPUs are cut into two shares each."""
    books = start(Spec("control", (NodeSpec(NODE, "8xh100"),)))
    given = {"scheduler_layout": "none", "gpu_plugins_metrics_interval": 1, "gpu_plugins_dra_fixed_shares": 2}
    write_inventory(books.cluster.root, {NODE: "dra"}, **given)
    done = books.run("accel.kubernetes.site")
    assert done.code == 0, done.output
    return books


def claim(api: Api, name: str, kind: str = FIXED, device: str = "") -> dict[str, Any]:
    """Create a claim that has this device, if any, and the pod that waits for it or has it."""
    spec = {"devices": {"requests": [{"name": "gpu", "exactly": {"deviceClassName": kind}}]}}
    head = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name}}
    api.create(CLAIMS, {**head, "spec": spec})
    if device:
        result = {"driver": DRIVER, "pool": f"{NODE}/kube-accel", "device": device, "request": "gpu"}
        used = [{"resource": "pods", "name": name, "uid": "u"}]
        status = {"allocation": {"devices": {"results": [result]}}, "reservedFor": used}
        assert api.call("PUT", f"{CLAIMS}/{name}/status", api.get(f"{CLAIMS}/{name}") | {"status": status})[0] == 200
    where = NODE if device else "nowhere"
    body = pod(name, "sleep", "1000", nodeSelector={"kubernetes.io/hostname": where})["spec"]
    body["resourceClaims"] = [{"name": "gpu", "resourceClaimName": name}]
    body["containers"][0]["resources"] = {"claims": [{"name": "gpu"}]}
    api.create(PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name}, "spec": body})
    return api.get(f"{CLAIMS}/{name}")


def prepare(books: Playbooks, made: dict[str, Any]) -> None:
    """As kubelet prepares a claim and lists its container from then on, of which the simulated one does neither."""
    kubelet = books.cluster.root / NODE / "var/lib/kubelet"
    name, uid = made["metadata"]["name"], made["metadata"]["uid"]
    request = pb.NodePrepareResourcesRequest(claims=[pb.Claim(namespace="default", uid=uid, name=name)])
    with Channel(socket_of(kubelet)) as channel:
        method = f"/k8s.io.kubelet.pkg.apis.dra.{SERVICES[0]}/NodePrepareResources"
        answer = channel.call(method, request, pb.NodePrepareResourcesResponse, 30)
    assert not answer.claims[uid].error, answer
    books.cluster.nodes[NODE].kubelet.claims.append(("default", name, name, "main", DRIVER))


def socket_of(kubelet: Path) -> Path:
    (found,) = (kubelet / "plugins" / DRIVER).glob("*.sock")
    return found


def figures(api: Api, name: str, label: str) -> dict[str, float]:
    """A family of the driver's page, by one of its labels."""
    (driver,) = (item["metadata"]["name"] for item in api.get(SYSTEM)["items"] if "kube-accel-dra" in str(item))
    page = str(api.call("GET", f"{SYSTEM}/{driver}:9445/proxy/metrics")[1])
    rows = re.findall(rf"^{name}{{(.*)}} (\S+)$", page, re.MULTILINE)
    return {re.search(rf'\b{label}="(.*?)"', labels)[1]: float(value) for labels, value in rows}  # type: ignore[index]


def test_claims_are_charged_and_shown_by_their_pods(books: Playbooks, api: Api, tmp_path: Path) -> None:
    for name, device in (("first", "gpu-00-1of2"), ("second", "gpu-00-2of2"), ("third", "gpu-03-1of2")):
        prepare(books, claim(api, name, device=device))
    until(lambda: len(figures(api, "accel_container_gpu_allocated_gpus", "pod")) == 3, "the pods to be metered")
    until(lambda: figures(api, "accel_namespace_gpu_seconds_total", "mode").get("dra", 0) > 3, "time to pass")
    done = books.run("accel.kubernetes.report", report_json=str(tmp_path / "report.json"))
    assert done.code == 0, done.output
    report = json.loads((tmp_path / "report.json").read_text())
    (row,) = report["rows"]
    assert (row["namespace"], row["mode"], "H100" in row["model"]) == ("default", "dra", True)
    # Three halves of eight GPUs.
    assert row["allocated_gpu_hours"] > 0
    (free,) = report["free"]
    assert 0 < row["allocated_gpu_hours"] < free["gpu_hours"]

    shown = books.run("accel.kubernetes.inspect", inspect_details=True)
    assert shown.code == 0, shown.output
    for name in ("first", "second", "third"):
        assert re.search(rf'"{name} +default .*39[.]82 \(50%\)', shown.output), shown.output


def test_claim_that_pends_is_counted_and_explained(books: Playbooks, api: Api) -> None:
    claim(api, "late", kind="share.kube-accel.io")
    until(lambda: figures(api, "accel_pending_gpu_pods", "mode") == {"dra": 1}, "the count")
    done = books.run("accel.kubernetes.diagnose", diagnose_pod="default/late")
    assert "device class share.kube-accel.io, which does not exist" in done.output, done.output
