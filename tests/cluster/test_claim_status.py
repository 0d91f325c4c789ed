# SPDX-License-Identifier: Apache-2.0
"""What the DRA driver may write of claims and slices, in a real API server, by the rights that the role gives it."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import pytest

from cluster.control_plane import control_plane, wait_for
from cluster.test_admission import SYSTEM, TEAM, Cluster, reason_to_skip, there, version
from cluster.test_extender import make_node
from kube_accel.dra.checkpoint import PreparedClaim, PreparedDevice
from kube_accel.dra.portions import Portion
from kube_accel.dra.slices import DRIVER
from kube_accel.dra.status import StatusWriter, devices, says_so
from kube_accel.kube.api import ApiRefusedError
from kube_accel.kube.client import Credentials, KubeClient
from kube_accel.shared.gpu_givers import SLICES_PATH
from unit.kube_accel.plugin.fakes import inventory, uuid
from unit.roles.conftest import rendered, variables_of

NODE, OTHER = "node-1", "node-2"
SERVED = {
    "metadata": {"name": NODE, "labels": {"nvidia-device-enable": "dra"}},
    "status": {"nodeInfo": {"kubeletVersion": "v1.36.2"}},
}
CLAIMS = f"/apis/resource.k8s.io/v1/namespaces/{TEAM}/resourceclaims"
FIRST_VERSION = (1, 36)
SHARE_ID = "0b9ab9e0-4a1b-4c1d-8a44-000000000001"
KINDS = ("ServiceAccount", "ClusterRole", "ClusterRoleBinding")


def _reason() -> str:
    return reason_to_skip() or ("" if version() >= FIRST_VERSION else "no shares before Kubernetes 1.36")


pytestmark = pytest.mark.skipif(bool(_reason()), reason=_reason() or "all there")


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with control_plane() as plane:
        made = Cluster(plane)
        for namespace in (SYSTEM, TEAM):
            wait_for(lambda name=namespace: there(plane.admin, name), f"namespace {namespace}")
        for node in (NODE, OTHER):
            make_node(plane.admin, node)
        words: dict[str, Any] = {
            "gpu_mode": "dra",
            "__gpu_plugins_nodes": {"resources": [SERVED]},
            # This cluster keeps the sizes of shares.
            "__gpu_plugins_kept_slice": {"result": variables_of("gpu_plugins")["__gpu_plugins_tried_slice"]},
        }
        made.apply([item for item in rendered("gpu_plugins", "dra.yml.j2", **words) if item["kind"] in KINDS])
        made.apply(rendered("gpu_plugins", "admission.yml.j2", **words))
        yield made


def claim(cluster: Cluster, name: str, node: str) -> str:
    """A claim that kube-scheduler gave a share on a node; its UID."""
    exactly = {"deviceClassName": "share.kube-accel.io", "capacity": {"requests": {"cores": "30", "memory": "8Gi"}}}
    spec = {"devices": {"requests": [{"name": "r", "exactly": exactly}]}}
    body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name}, "spec": spec}
    made = cluster.admin.post(CLAIMS, body)
    term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    result = {
        **{"request": "r", "driver": DRIVER, "pool": f"{node}/kube-accel", "device": "gpu-00"},
        **{"shareID": SHARE_ID, "consumedCapacity": {"cores": "30", "memory": "8Gi"}},
    }
    allocation = {"devices": {"results": [result]}, "nodeSelector": {"nodeSelectorTerms": [term]}}
    cluster.admin.put(f"{CLAIMS}/{name}/status", {**made, "status": {"allocation": allocation}})
    return str(made["metadata"]["uid"])


def prepared(name: str) -> PreparedClaim:
    device = PreparedDevice("r", "gpu-00", uuid(0), False, SHARE_ID, Portion(30, 8 << 30))
    return PreparedClaim(TEAM, name, (device,))


def driver(cluster: Cluster, node: str = NODE) -> KubeClient:
    return cluster.client("kube-accel-dra", node)


def write(cluster: Cluster, uid: str, name: str, node: str = NODE) -> None:
    writer = StatusWriter(driver(cluster, node), f"{node}/kube-accel", lambda: inventory(2).gpus)
    writer.see(uid, prepared(name), {})
    assert writer.write()


def test_status_of_a_claim_says_what_it_got(cluster: Cluster) -> None:
    uid = claim(cluster, "own", NODE)
    write(cluster, uid, "own")
    found = cluster.admin.get(f"{CLAIMS}/own")
    (device,) = found["status"]["devices"]
    assert device["data"] == {"uuid": uuid(0), "cores": 30, "memory": "8Gi"}
    assert [(each["type"], each["status"]) for each in device["conditions"]] == [("Ready", "True")]
    assert says_so(found, devices(prepared("own"), f"{NODE}/kube-accel", inventory(2).gpus, "later"))


def test_token_bound_to_the_node_itself_will_do(cluster: Cluster) -> None:
    uid = claim(cluster, "bound", NODE)
    about = {"apiVersion": "v1", "kind": "Node", "name": NODE, "uid": cluster.node(NODE)["metadata"]["uid"]}
    asked = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {"boundObjectRef": about}}
    made = cluster.admin.post(f"/api/v1/namespaces/{SYSTEM}/serviceaccounts/kube-accel-dra/token", asked)
    client = KubeClient(cluster.admin.url, Credentials(cluster.plane.ca, token=str(made["status"]["token"])))
    writer = StatusWriter(client, f"{NODE}/kube-accel", lambda: inventory(2).gpus)
    writer.see(uid, prepared("bound"), {})
    assert writer.write()
    assert cluster.admin.get(f"{CLAIMS}/bound")["status"]["devices"]


def test_claim_that_was_made_again_is_left(cluster: Cluster) -> None:
    claim(cluster, "again", NODE)
    write(cluster, "0b9ab9e0-4a1b-4c1d-8a44-00000000000f", "again")
    assert "devices" not in cluster.admin.get(f"{CLAIMS}/again")["status"]


def test_status_of_a_claim_elsewhere_is_not_written(cluster: Cluster) -> None:
    uid = claim(cluster, "elsewhere", OTHER)
    write(cluster, uid, "elsewhere", NODE)
    assert "devices" not in cluster.admin.get(f"{CLAIMS}/elsewhere")["status"]


STOLEN: dict[str, dict[str, Any]] = {
    "user": {"reservedFor": [{"resource": "pods", "name": "a", "uid": "u"}]},
    "allocation": {"allocation": None, "reservedFor": None},
}


def stolen(cluster: Cluster, name: str, status: dict[str, Any]) -> str:
    """Why a stolen token of the driver does not write this; empty where it does."""
    try:
        driver(cluster).patch(f"{CLAIMS}/{name}/status", {"status": status})
    except ApiRefusedError as error:
        return str(error) if error.status in (403, 422) else ""
    return ""


@pytest.mark.parametrize("what", STOLEN)
def test_stolen_driver_token_gives_nobody_devices(cluster: Cluster, what: str) -> None:
    claim(cluster, f"stolen-{what}", NODE)
    assert stolen(cluster, f"stolen-{what}", STOLEN[what])


@pytest.fixture
def almighty(cluster: Cluster) -> Iterator[None]:
    """RBAC lets the driver do all, as it nearly does before Kubernetes 1.36: what refuses is the policy."""
    subject = {"kind": "ServiceAccount", "name": "kube-accel-dra", "namespace": SYSTEM}
    role = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": "cluster-admin"}
    kind = {"apiVersion": "rbac.authorization.k8s.io/v1", "kind": "ClusterRoleBinding"}
    cluster.apply([{**kind, "metadata": {"name": "almighty"}, "roleRef": role, "subjects": [subject]}])
    yield
    cluster.admin.send("DELETE", "/apis/rbac.authorization.k8s.io/v1/clusterrolebindings/almighty")


@pytest.mark.usefixtures("almighty")
def test_policy_holds_a_driver_that_rbac_lets_do_all(cluster: Cluster) -> None:
    uid = claim(cluster, "held", NODE)
    pool = {"driver": DRIVER, "pool": f"{NODE}/kube-accel", "device": "gpu-00", "shareID": SHARE_ID}
    policy = "kube-accel-plugin-claim-status"
    numbers = itertools.count()

    def in_force() -> bool:
        """It comes into force a moment after it was made; until then the claim gets another user each time."""
        user = {"resource": "pods", "name": "a", "uid": f"u{next(numbers)}"}
        return policy in stolen(cluster, "held", {"reservedFor": [user]})

    wait_for(in_force, "the policy", 60)
    assert policy in stolen(cluster, "held", STOLEN["allocation"])
    write(cluster, uid, "held")
    assert cluster.admin.get(f"{CLAIMS}/held")["status"]["devices"][0]["data"]["uuid"] == uuid(0)
    assert stolen(cluster, "held", {"devices": [{**pool, "driver": "other.example.com"}]})
    there_uid = claim(cluster, "held-there", OTHER)
    write(cluster, there_uid, "held-there")
    assert "devices" not in cluster.admin.get(f"{CLAIMS}/held-there")["status"]


def test_stolen_driver_token_writes_no_slice_of_another_pool(cluster: Cluster) -> None:
    """Who reads a pool believes its highest generation, so one slice would take away all GPUs of another node."""
    client = driver(cluster)

    def refusal(pool: str, node: str = NODE) -> str:
        about = {"name": pool, "generation": 9, "resourceSliceCount": 1}
        spec = {"driver": DRIVER, "nodeName": node, "pool": about, "devices": []}
        body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": "stolen"}}
        try:
            client.post(f"{SLICES_PATH}?dryRun=All", body | {"spec": spec})
        except ApiRefusedError as error:
            return str(error)
        return ""

    policy = "kube-accel-plugin-slices"
    wait_for(lambda: policy in refusal(f"{OTHER}/kube-accel"), "the policy", 60)
    assert policy in refusal(f"{NODE}/kube-accel", OTHER)
    assert policy in refusal(NODE)
    assert refusal(f"{NODE}/kube-accel") == ""
