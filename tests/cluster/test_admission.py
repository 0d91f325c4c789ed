# SPDX-License-Identifier: Apache-2.0
"""The roles' admission policies in a real API server: what the daemons do is let through, stolen tokens are not.

Nodes and pods are objects alone. The daemons have tokens of the roles' service accounts, bound to their pods.
"""

from __future__ import annotations

import json
import re
import ssl
import subprocess
import sys
import tempfile
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from cluster.control_plane import (
    BINARIES,
    RESOURCES,
    TOKEN,
    ControlPlane,
    Program,
    answers,
    control_plane,
    entry,
    free_port,
    lacking,
    wait_for,
)
from cluster.rights import deeds
from cluster.test_extender import bound, make_node, pods, submit, why
from kube_accel.extender.daemon import QUOTA_CHANGED, ROOM_FOUND
from kube_accel.extender.pods import TAKEN
from kube_accel.kube import events
from kube_accel.kube.api import ApiRefusedError
from kube_accel.kube.client import Credentials, KubeClient
from kube_accel.model import Assignment, Mode, Share
from kube_accel.plugin.mig import affected
from kube_accel.plugin.node.pod_warnings import PodWarnings
from kube_accel.shared.wishes import WISHES, no_effect
from kube_accel.sharing.assignment import ANNOTATION, pod_annotations
from kube_accel.sharing.inventory_annotation import ANNOTATION as INVENTORY
from unit.kube_accel.extender.world import share
from unit.kube_accel.fraction_node import NODE, FractionNode
from unit.kube_accel.test_mig_label_end_to_end import EXPORTER, LabelledHost
from unit.plugins.scheduler_asked import answered
from unit.roles.conftest import rendered
from unit.roles.test_security import SECONDARY

SYSTEM, TEAM = "kube-system", "team"
OTHER = "other-node"
FIRST_VERSION = (1, 30)
STRATEGIC = "application/strategic-merge-patch+json"
PROGRAMS = ("etcd", "kube-apiserver")
MANAGER = "kube-controller-manager"


def version() -> tuple[int, int]:
    """Return major and minor version of the API server."""
    command = [BINARIES / "kube-apiserver", "--version"]
    said = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = re.search(r"v(\d+)\.(\d+)", said)
    assert found, said
    return int(found[1]), int(found[2])


def reason_to_skip() -> str:
    if lacks := lacking(PROGRAMS):
        return lacks
    found = version()
    return (
        "" if found >= FIRST_VERSION else f"Kubernetes {found[0]}.{found[1]} has no such policies, which came with 1.30"
    )


pytestmark = pytest.mark.skipif(bool(reason_to_skip()), reason=reason_to_skip() or "all there")


@dataclass(frozen=True, slots=True)
class Cluster:
    """A control plane with the roles' permissions and policies."""

    plane: ControlPlane

    @property
    def admin(self) -> KubeClient:
        return self.plane.admin

    def apply(self, objects: list[dict[str, Any]]) -> None:
        """Create objects, or replace those that are there."""
        for item in objects:
            api, plural = item["apiVersion"], item["kind"].lower().removesuffix("y")
            plural += "ies" if item["kind"].endswith("y") else "s"
            namespace = item["metadata"].get("namespace")
            where = (
                f"/{'apis' if '/' in api else 'api'}/{api}{f'/namespaces/{namespace}' if namespace else ''}/{plural}"
            )
            path = f"{where}/{item['metadata']['name']}?fieldManager=test&force=true"
            self.admin.send("PATCH", path, item, "application/apply-patch+yaml")

    def token(self, account: str, node: str = "") -> str:
        """A token of a service account, bound to a pod on a node where one is named."""
        request: dict[str, Any] = {"spec": {}}
        if node:
            pod = self.pod(f"{account}-{node}", SYSTEM, nodeName=node, serviceAccountName=account)
            about = {"apiVersion": "v1", "kind": "Pod", "name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
            request["spec"]["boundObjectRef"] = about
        path = f"/api/v1/namespaces/{SYSTEM}/serviceaccounts/{account}/token"
        made = self.admin.post(path, {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", **request})
        return str(made["status"]["token"])

    def client(self, account: str, node: str = "") -> KubeClient:
        """What who has stolen a token asks the API server with."""
        return KubeClient(self.admin.url, Credentials(self.plane.ca, token=self.token(account, node)))

    def pod(self, name: str, namespace: str = TEAM, **spec: Any) -> dict[str, Any]:
        """A pod that the administrator makes, or that is there."""
        try:
            return self.admin.post(f"/api/v1/namespaces/{namespace}/pods", body_of(name, **spec))
        except ApiRefusedError as error:
            if error.status != 409:
                raise
        return self.admin.get(f"/api/v1/namespaces/{namespace}/pods/{name}")

    def daemon(self, root: Path, environment: dict[str, str], account: str, node: str) -> dict[str, str]:
        """The environment by which a daemon finds this API server, its credentials put in place."""
        directory = root / "account"
        (directory / "ca.crt").write_bytes(self.plane.ca.read_bytes())
        (directory / "token").write_text(self.token(account, node))
        host, _, port = self.admin.url.removeprefix("https://").partition(":")
        return environment | {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}

    def node(self, name: str = NODE) -> dict[str, Any]:
        return self.admin.get(f"/api/v1/nodes/{name}")

    def condition(self, kind: str) -> dict[str, Any]:
        """A condition of the plugin's node; empty where it has none."""
        found = self.node()["status"].get("conditions", ())
        return next((condition for condition in found if condition["type"] == kind), {})

    def refusals(self, account: str) -> set[tuple[str, str]]:
        """What the API server refused this account, by its audit log."""
        return set(deeds(self.plane.audit.read_text().splitlines(), account).refused)


def body_of(name: str, limits: Mapping[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    container = {"name": "main", "image": "none"} | ({"resources": {"limits": dict(limits)}} if limits else {})
    metadata = {"name": name, **spec.pop("metadata", {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"containers": [container], **spec}}


def policies(**variables: Any) -> list[dict[str, Any]]:
    """What both roles ship where GPUs are shared."""
    served = answered("admission", api_found=True)
    asked = {"scheduler_layout": "local", "scheduler_image": "i", "__scheduler_cluster": served}
    options = {**asked, **SECONDARY, **variables}
    plugin = {"gpu_plugins_mig_label": True, "gpu_plugins_drain": True}
    return [
        *rendered("gpu_plugins", "rbac.yml.j2", **plugin),
        *rendered("scheduler", "rbac.yml.j2", **options),
        *rendered("gpu_plugins", "admission.yml.j2", **plugin),
        *rendered("scheduler", "admission.yml.j2", **options),
    ]


def refused(ask: Callable[[], object]) -> str:
    """The API server's reason for not doing this."""
    with pytest.raises(ApiRefusedError) as caught:
        ask()
    assert caught.value.status in (403, 422)
    return str(caught.value)


def warnings(cluster: Cluster, path: str, item: Mapping[str, Any], about: str = "runtime class") -> list[str]:
    """What the API server warns of who would make that, in words with these."""
    plane, admin = cluster.plane, cluster.admin
    context = ssl.create_default_context(cafile=plane.ca)
    headers = {"Content-Type": "application/json", "Authorization": f"Bearer {TOKEN}"}
    body = json.dumps(item).encode()
    request = urllib.request.Request(f"{admin.url}{path}?dryRun=All", body, headers)
    with urllib.request.urlopen(request, context=context, timeout=30) as answer:
        return [text for text in answer.headers.get_all("Warning") or () if about in text]


def asks_with_node(cluster: Cluster) -> bool:
    """Whether a pod that asks for a share and names its node is refused."""
    pod = body_of("early", share(10, 1), nodeName=OTHER)
    try:
        cluster.admin.send("POST", f"/api/v1/namespaces/{TEAM}/pods?dryRun=All", pod)
    except ApiRefusedError:
        return True
    return False


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with control_plane() as plane:
        found = Cluster(plane)
        for namespace in (SYSTEM, TEAM, "trusted", "default"):
            wait_for(lambda name=namespace: there(plane.admin, name), f"namespace {namespace}")
        for name in (NODE, OTHER):
            make_node(plane.admin, name)
        found.apply(policies(scheduler_admission_exempt_namespaces=["trusted"]))
        # They come into force together, a moment after they were made.
        wait_for(lambda: asks_with_node(found), "the policies")
        yield found


def there(admin: KubeClient, namespace: str) -> bool:
    try:
        admin.post("/api/v1/namespaces", {"metadata": {"name": namespace}})
    except ApiRefusedError as error:
        return error.status == 409
    return True


@pytest.fixture(autouse=True)
def no_pods(cluster: Cluster) -> Iterator[None]:
    yield
    cluster.admin.send("DELETE", f"/api/v1/namespaces/{TEAM}/pods", {"gracePeriodSeconds": 0})
    wait_for(lambda: not pods(cluster.plane), "pods gone")


# --- what the daemons do all day --------------------------------------------------------------------------------------


def test_plugin_that_shares_labels_tells_and_removes(cluster: Cluster) -> None:
    """Inventory, labels, condition, events, and a pod that failed admission, by the shipped command."""
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/tmp")))
        host = FractionNode(root, stack, Mode.VGPU)
        host.environment = cluster.daemon(root, host.environment, "kube-accel-share", NODE)
        host.start()
        wait_for(lambda: cluster.condition("GpusHealthy").get("status") == "True", "the condition")
        wait_for(lambda: "nvidia.com/gpu.product" in cluster.node()["metadata"]["labels"], "the labels")
        assert INVENTORY in cluster.node()["metadata"]["annotations"]
        host.edit(lambda topology: topology.set_health(1, "lost"))
        wait_for(lambda: cluster.condition("GpusHealthy").get("status") == "False", "the condition of a lost GPU")
        wait_for(lambda: told_of(cluster, "default", NODE), "an event about the node")
        owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "r", "uid": "u", "controller": True}
        cluster.pod("failed", limits=share(10, 1), metadata={"ownerReferences": [owner]})
        target = {"apiVersion": "v1", "kind": "Node", "name": NODE}
        binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "failed"}, "target": target}
        cluster.admin.post(f"/api/v1/namespaces/{TEAM}/pods/failed/binding", binding)
        message = f"Pod was rejected: no {RESOURCES[0]} is free"
        status = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": message}
        cluster.admin.send("PATCH", f"/api/v1/namespaces/{TEAM}/pods/failed/status", {"status": status}, STRATEGIC)
        wait_for(lambda: gone(cluster, "failed"), "the end of the pod that failed")
        wait_for(lambda: told_of(cluster, TEAM, "failed"), "an event about the pod")
        assert host.terminate() == 0
        assert not cluster.condition("GpusHealthy")
    assert cluster.refusals("kube-accel-share") == set()


def test_plugin_tells_owners_of_pods_what_these_lack(cluster: Cluster) -> None:
    cluster.pod("bf16", limits=WHOLE, nodeName=NODE, metadata={"annotations": {MIN: "8.0"}})
    client = cluster.client("kube-accel", NODE)
    for _start in range(2):
        PodWarnings(NODE, "nvidia").look(client)
    found = cluster.admin.get(f"/api/v1/namespaces/{TEAM}/events")["items"]
    told = sorted(event["reason"] for event in found if event["involvedObject"]["name"] == "bf16")
    assert told == ["GpuAnnotationsUnheeded", "GpuRuntimeClassMissing"]


def test_plugin_that_cuts_gpus_cordons_and_evicts(cluster: Cluster) -> None:
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/tmp")))
        host = LabelledHost(root, stack)
        host.environment = cluster.daemon(root, host.environment, "kube-accel", NODE)
        path = f"/api/v1/nodes/{NODE}"
        cluster.admin.patch(path, {"metadata": {"labels": {EXPORTER: "true"}}})
        host.cutting("--mig-drain", "--mig-drain-force", "--mig-drain-timeout", "60")
        host.wait_offered(gpu=2, **{"mig-1g_5gb": 8, "mig-2g_10gb": 1, "mig-3g_20gb": 1})
        limits = {"nvidia.com/mig-2g.10gb": "1"}
        train = cluster.pod("train", limits=limits, nodeName=NODE)
        held = host.run_pod("train", "mig-2g.10gb")
        cluster.admin.patch(path, {"metadata": {"labels": {affected.LABEL: "smaller"}}})
        wait_for(lambda: gone(cluster, "train"), "the eviction")
        assert cluster.node()["spec"]["unschedulable"]
        host.kubelet.remove(held)
        cluster.admin.send("DELETE", f"/api/v1/namespaces/{TEAM}/pods/train", {"gracePeriodSeconds": 0})
        assert train["metadata"]["name"] == "train"
        wait_for(lambda: cluster.node()["metadata"]["labels"].get(affected.STATE_LABEL) == "success", "the new cut")
        wait_for(lambda: not cluster.node()["spec"].get("unschedulable"), "the end of the cordon")
        cluster.admin.patch(path, {"metadata": {"labels": {affected.LABEL: None, EXPORTER: None}}})
        wait_for(lambda: affected.STATE_LABEL not in cluster.node()["metadata"]["labels"], "the state's end")
    assert cluster.refusals("kube-accel") == set()


def test_largest_node_stays_within_the_cost_of_policies(cluster: Cluster) -> None:
    """Kubernetes bounds what an expression may cost, and annotations of an object to 256 KiB."""
    crowded = "crowded-node"
    make_node(cluster.admin, crowded)
    path = f"/api/v1/nodes/{crowded}"
    annotations = {f"example.com/{number}": "x" * 20_000 for number in range(10)}
    labels = {f"example.com/label-{number}": "y" * 60 for number in range(1_000)}
    cluster.admin.patch(path, {"metadata": {"annotations": annotations, "labels": labels}})
    images = [{"names": [f"registry.example/{number}-{part}:1" for part in range(5)]} for number in range(500)]
    cluster.admin.patch(f"{path}/status", {"status": {"images": images}})
    plugin = cluster.client("kube-accel-share", crowded)
    plugin.patch(
        path, {"metadata": {"labels": {"nvidia.com/gpu.count": "1"}, "annotations": {INVENTORY: "z" * 40_000}}}
    )
    condition = {"type": "GpusHealthy", "status": "True", "reason": "AllHealthy", "message": "all"}
    plugin.send("PATCH", f"{path}/status", {"status": {"conditions": [condition]}}, STRATEGIC)
    said = refused(lambda: plugin.patch(path, {"metadata": {"labels": {"example.com/label-7": "z"}}}))
    assert "a GPU plugin may not change these labels of its node: example.com/label-7" in said


def told_of(cluster: Cluster, namespace: str, name: str) -> bool:
    found = cluster.admin.get(f"/api/v1/namespaces/{namespace}/events")["items"]
    return any(event["involvedObject"]["name"] == name for event in found)


def gone(cluster: Cluster, name: str) -> bool:
    found = pods(cluster.plane).get(name)
    return found is None or "deletionTimestamp" in found["metadata"]


@pytest.mark.skipif(bool(lacking(["kube-scheduler"])), reason=lacking(["kube-scheduler"]) or "all there")
def test_extender_binds_wakes_and_takes_over(cluster: Cluster) -> None:
    """With kube-scheduler, by the account's own token: binds, a quota that changes, the Lease."""
    admin, port = cluster.admin, free_port()
    quota = f"/api/v1/namespaces/{SYSTEM}/configmaps"

    def said(cores: int) -> dict[str, Any]:
        text = f"version: 1\nnamespaces:\n  {TEAM}:\n    limits: [{{cores: {cores}}}]\n"
        return {"metadata": {"name": "kube-accel-quota"}, "data": {"quota.yaml": text}}

    admin.post(quota, said(30))
    directory = cluster.plane.root / "extender"
    (directory / "account").mkdir(parents=True)
    environment = cluster.daemon(directory, {}, "kube-accel-extender", OTHER)
    certificate = cluster.plane.certificate("extender", "kube-accel-extender")
    command = [str(Path(sys.executable).with_name("kube-accel")), "extender", f"--listen=127.0.0.1:{port}"]
    command += [f"--tls-cert={certificate}", f"--tls-key={certificate}", f"--client-ca={cluster.plane.ca}"]
    command += [f"--quota-configmap={SYSTEM}/kube-accel-quota", f"--service-account-dir={directory}/account"]
    with ExitStack() as stack:
        stack.enter_context(Program(cluster.plane.root, "extender", command, environment))
        wait_for(lambda: answers(f"https://127.0.0.1:{port}/readyz", cluster.plane.ca), "extender")
        stack.enter_context(cluster.plane.scheduler([entry(cluster.plane, port)]))
        for name in ("first", "second"):
            submit(cluster.plane, name, share(30, 8))
        wait_for(lambda: bound(cluster.plane), "a pod bound")
        (first,) = bound(cluster.plane)
        assert ANNOTATION in pods(cluster.plane)[first]["metadata"]["annotations"]
        (second,) = pods(cluster.plane).keys() - {first}
        wait_for(lambda: "quota" in why(cluster.plane, second), "the quota's refusal")
        admin.patch(f"{quota}/kube-accel-quota", said(60))
        wait_for(lambda: len(bound(cluster.plane)) == 2, "the second pod bound")
        assert any(TAKEN in pod["metadata"].get("labels", {}) for pod in pods(cluster.plane).values())
    admin.send("DELETE", f"{quota}/kube-accel-quota")
    assert cluster.refusals("kube-accel-extender") == set()


def test_extender_writes_all_of_its_annotations(cluster: Cluster) -> None:
    """In layout proxied the assignment comes once a pod is seen bound, and has kube-scheduler try pods again."""
    pod = cluster.pod("plain", nodeName=NODE)
    assignment = Assignment(NODE, {"main": (Share("GPU-1", 30, 1 << 30),)})
    annotations = pod_annotations(assignment, Mode.VGPU, ("main",), {"GPU-1": 0}, 1, {"main": "it is the emptiest"})
    annotations |= {QUOTA_CHANGED: "1", ROOM_FOUND: "1"}
    change = {"metadata": {"uid": pod["metadata"]["uid"], "annotations": annotations}}
    cluster.client("kube-accel-extender", OTHER).patch(f"/api/v1/namespaces/{TEAM}/pods/plain", change)
    assert annotations.items() <= pods(cluster.plane)["plain"]["metadata"]["annotations"].items()


def test_pods_without_shares_and_exempt_ones_are_let_in(cluster: Cluster) -> None:
    cluster.pod("no-share", nodeName=OTHER)
    cluster.pod("other-scheduler", schedulerName="volcano")
    cluster.pod("whole", limits={"nvidia.com/gpu": "1"}, nodeName=OTHER)
    cluster.pod("nothing", limits={RESOURCES[0]: "0"}, nodeName=OTHER)
    cluster.pod("plain-share", limits=share(10, 1))
    trusted = body_of("monitor", share(10, 1), nodeName=OTHER)
    cluster.admin.post("/api/v1/namespaces/trusted/pods", trusted)


def test_mirror_pod_of_kubelet_is_let_in(cluster: Cluster) -> None:
    """A static pod, which runs already, gets its mirror pod."""
    plane = cluster.plane
    pem = plane.certificate("node-client", f"system:node:{OTHER}", "system:nodes")
    kubelet = KubeClient(plane.admin.url, Credentials(plane.ca, cert_file=pem, key_file=pem))
    owner = {"apiVersion": "v1", "kind": "Node", "name": OTHER, "uid": cluster.node(OTHER)["metadata"]["uid"]}
    owner |= {"controller": True}
    annotations = {"kubernetes.io/config.mirror": "1"}
    metadata = {"annotations": annotations, "ownerReferences": [owner]}
    body = body_of("static", share(10, 1), nodeName=OTHER, metadata=metadata)
    kubelet.post(f"/api/v1/namespaces/{TEAM}/pods", body)


# --- what a stolen token, or a tenant, tries --------------------------------------------------------------------------

NODE_CHANGES: dict[str, tuple[str, dict[str, Any]]] = {
    "labels that choose nodes": ("", {"metadata": {"labels": {"node-role.kubernetes.io/control-plane": ""}}}),
    "the label of the mode": ("", {"metadata": {"labels": {"nvidia-device-enable": "cgpu"}}}),
    "what administrators ask by label": ("", {"metadata": {"labels": {affected.LABEL: "all-disabled"}}}),
    "the hostname's end": ("", {"metadata": {"labels": {"kubernetes.io/hostname": None}}}),
    "what a migration puts back": ("", {"metadata": {"annotations": {"kube-accel.io/migration": "{}"}}}),
    "annotations of others": ("", {"metadata": {"annotations": {"csi.volume.kubernetes.io/nodeid": "{}"}}}),
    "finalizers": ("", {"metadata": {"finalizers": ["example.com/stay"]}}),
    "owners": ("", {"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": "y"}]}}),
    "taints": ("", {"spec": {"taints": [{"key": "nvidia.com/gpu", "effect": "NoExecute"}]}}),
    "the network of pods": ("", {"spec": {"podCIDR": "10.9.0.0/24", "podCIDRs": ["10.9.0.0/24"]}}),
    "another condition": ("/status", {"status": {"conditions": [{"type": "Ready", "status": "False"}]}}),
    "a condition of its own making": ("/status", {"status": {"conditions": [{"type": "Mine", "status": "True"}]}}),
    "the end of a condition": ("/status", {"status": {"conditions": [{"type": "Ready", "$patch": "delete"}]}}),
    "what the node offers": ("/status", {"status": {"capacity": {"cpu": "1"}, "allocatable": {"cpu": "1"}}}),
    "addresses": ("/status", {"status": {"addresses": [{"type": "InternalIP", "address": "10.0.0.66"}]}}),
    "where kubelet listens": ("/status", {"status": {"daemonEndpoints": {"kubeletEndpoint": {"Port": 1}}}}),
    "labels by the status": ("/status", {"metadata": {"labels": {"zone": "a"}}}),
    "annotations by the status": ("/status", {"metadata": {"annotations": {"example.com/a": "b"}}}),
}
"""By what is tried on a node: part of it, and patch."""


def alike(first: dict[str, Any], second: dict[str, Any]) -> bool:
    """Whether two states of a node differ in nothing that was asked for."""
    kept = ("labels", "annotations", "finalizers", "ownerReferences")
    return (first["spec"], first["status"], *(first["metadata"].get(key) for key in kept)) == (
        second["spec"],
        second["status"],
        *(second["metadata"].get(key) for key in kept),
    )


@pytest.mark.attack
@pytest.mark.parametrize("account", ["kube-accel", "kube-accel-share"])
@pytest.mark.parametrize("what", NODE_CHANGES)
def test_stolen_plugin_token_changes_nothing_else_of_its_node(cluster: Cluster, account: str, what: str) -> None:
    part, patch = NODE_CHANGES[what]
    client, before = cluster.client(account, NODE), cluster.node()
    said = refused(lambda: client.send("PATCH", f"/api/v1/nodes/{NODE}{part}", patch, STRATEGIC))
    assert "'kube-accel-plugin-nodes'" in said
    assert "a GPU plugin may " in said
    assert alike(cluster.node(), before)


@pytest.mark.attack
@pytest.mark.parametrize("account", ["kube-accel", "kube-accel-share"])
@pytest.mark.parametrize(
    ("part", "patch"),
    [
        ("", {"metadata": {"labels": {"nvidia.com/gpu.product": "fake"}}}),
        ("", {"metadata": {"annotations": {INVENTORY: "{}"}}}),
        ("", {"spec": {"unschedulable": True}}),
        ("/status", {"status": {"conditions": [{"type": "GpusHealthy", "status": "True"}]}}),
    ],
)
def test_stolen_plugin_token_changes_no_other_node(
    cluster: Cluster, account: str, part: str, patch: dict[str, Any]
) -> None:
    client, before = cluster.client(account, NODE), cluster.node(OTHER)
    said = refused(lambda: client.send("PATCH", f"/api/v1/nodes/{OTHER}{part}", patch, STRATEGIC))
    assert f"this token is of the plugin on node {NODE}" in said
    assert alike(cluster.node(OTHER), before)


@pytest.mark.attack
def test_token_that_names_no_node_changes_none(cluster: Cluster) -> None:
    client = cluster.client("kube-accel")
    said = refused(lambda: client.patch(f"/api/v1/nodes/{NODE}", {"metadata": {"labels": {"nvidia.com/x": "y"}}}))
    assert "this token names no node" in said


@pytest.mark.attack
def test_stolen_plugin_token_deletes_and_evicts_no_pod_elsewhere(cluster: Cluster) -> None:
    sharing, cutting = cluster.client("kube-accel-share", NODE), cluster.client("kube-accel", NODE)
    cluster.pod("far", nodeName=OTHER)
    cluster.pod("waiting")
    cluster.pod("near", nodeName=NODE)
    for name in ("far", "waiting"):
        path = f"/api/v1/namespaces/{TEAM}/pods/{name}"
        assert "'kube-accel-plugin-pods'" in refused(lambda path=path: sharing.send("DELETE", path))
        assert "'kube-accel-plugin-evictions'" in refused(lambda path=path, name=name: evict(cutting, path, name))
    assert not any(gone(cluster, name) for name in ("far", "waiting", "near"))
    evict(cutting, f"/api/v1/namespaces/{TEAM}/pods/near", "near")
    assert gone(cluster, "near")


def evict(client: KubeClient, path: str, name: str) -> None:
    metadata = {"name": name, "namespace": TEAM}
    client.post(f"{path}/eviction", {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata})


@pytest.mark.attack
@pytest.mark.parametrize(
    ("about", "host"),
    [
        ({"kind": "Node", "name": OTHER, "uid": OTHER}, NODE),
        ({"kind": "Node", "name": OTHER, "uid": OTHER}, OTHER),
        ({"kind": "Pod", "namespace": TEAM, "name": "far", "uid": "u"}, OTHER),
        ({"kind": "Pod", "namespace": TEAM, "name": "far", "uid": "u"}, ""),
        ({"kind": "Secret", "namespace": TEAM, "name": "token", "uid": "u"}, NODE),
    ],
)
def test_stolen_plugin_token_sends_no_event_for_another_node(
    cluster: Cluster, about: dict[str, str], host: str
) -> None:
    client = cluster.client("kube-accel", NODE)
    event = events.body(about, "Warning", "Lie", "it is not so", host)
    said = refused(lambda: events.send(client, event))
    assert "'kube-accel-plugin-events'" in said


POD_CHANGES: dict[str, tuple[dict[str, Any], str]] = {
    "an image": ({"spec": {"containers": [{"name": "main", "image": "evil"}]}}, "spec.containers"),
    "a deadline": ({"spec": {"activeDeadlineSeconds": 1}}, "spec.activeDeadlineSeconds"),
    "a label": ({"metadata": {"labels": {"app": "bank"}}}, "label app"),
    "an annotation": ({"metadata": {"annotations": {"example.com/role": "admin"}}}, "annotation example.com/role"),
    "a wish of its author": (
        {"metadata": {"annotations": {"kube-accel.io/placement": "x"}}},
        "annotation kube-accel.io/placement",
    ),
    "finalizers": ({"metadata": {"finalizers": ["example.com/stay"]}}, "metadata.finalizers"),
    "owners": (
        {"metadata": {"ownerReferences": [{"apiVersion": "v1", "kind": "Pod", "name": "x", "uid": "y"}]}},
        "metadata.ownerReferences",
    ),
}
"""By what is tried on a pod: patch, and what of it is named."""


@pytest.mark.attack
@pytest.mark.parametrize("what", POD_CHANGES)
def test_stolen_extender_token_changes_nothing_else_of_a_pod(cluster: Cluster, what: str) -> None:
    patch, named = POD_CHANGES[what]
    cluster.pod("victim")
    client = cluster.client("kube-accel-extender", OTHER)
    said = refused(lambda: client.send("PATCH", f"/api/v1/namespaces/{TEAM}/pods/victim", patch, STRATEGIC))
    assert "'kube-accel-extender-pods'" in said
    assert named in said


@pytest.mark.attack
@pytest.mark.parametrize(
    ("metadata", "named"),
    [
        ({"annotations": {"example.com/role": "admin"}}, "annotation example.com/role"),
        ({"annotations": {ANNOTATION: "{}", "kube-accel.io/other": "x"}}, "annotation kube-accel.io/other"),
        ({"labels": {"app": "bank"}}, "label app"),
    ],
)
def test_stolen_extender_token_binds_with_nothing_of_others(
    cluster: Cluster, metadata: dict[str, Any], named: str
) -> None:
    cluster.pod("victim")
    client = cluster.client("kube-accel-extender", OTHER)
    binding = {"apiVersion": "v1", "kind": "Binding", "metadata": {"name": "victim", **metadata}}
    binding["target"] = {"apiVersion": "v1", "kind": "Node", "name": OTHER}
    said = refused(lambda: client.post(f"/api/v1/namespaces/{TEAM}/pods/victim/binding", binding))
    assert "'kube-accel-extender-bindings'" in said
    assert named in said
    assert not bound(cluster.plane)


KINDS = ("containers", "initContainers", "sidecar", "second container")


def asking(kind: str, resource: str, **spec: Any) -> dict[str, Any]:
    """A pod that asks in a container of this kind."""
    container: dict[str, Any] = {"name": "asks", "image": "none", "resources": {"limits": {resource: "5"}}}
    body = body_of("quota-less", **spec)
    if kind == "containers":
        body["spec"]["containers"] = [container]
    elif kind == "second container":
        body["spec"]["containers"].append(container)
    else:
        again = {"restartPolicy": "Always"} if kind == "sidecar" else {}
        body["spec"]["initContainers"] = [{"name": "before", "image": "none"}, container | again]
    return body


@pytest.mark.attack
@pytest.mark.parametrize("resource", RESOURCES)
@pytest.mark.parametrize("kind", KINDS)
def test_pod_with_a_share_that_passes_the_extender_by_is_refused(cluster: Cluster, kind: str, resource: str) -> None:
    path = f"/api/v1/namespaces/{TEAM}/pods"
    said = refused(lambda: cluster.admin.post(path, asking(kind, resource, nodeName=OTHER)))
    assert f"pod quota-less asks for {resource} and names its node, {OTHER}, so that no scheduler asks" in said
    assert "leave spec.nodeName out" in said
    said = refused(lambda: cluster.admin.post(path, asking(kind, resource, schedulerName="volcano")))
    assert f"asks for {resource} and for the scheduler volcano, which does not ask the GPU extender" in said
    assert "set spec.schedulerName to default-scheduler" in said
    assert not pods(cluster.plane)


@pytest.mark.attack
def test_tenant_passes_for_no_static_pod(cluster: Cluster) -> None:
    metadata = {"annotations": {"kubernetes.io/config.mirror": "1"}}
    body = body_of("static", share(10, 1), nodeName=OTHER, metadata=metadata)
    assert "names its node" in refused(lambda: cluster.admin.post(f"/api/v1/namespaces/{TEAM}/pods", body))


@pytest.mark.attack
def test_ephemeral_container_and_whole_pod_cannot_ask(cluster: Cluster) -> None:
    """Kubernetes refuses both itself."""
    path = f"/api/v1/namespaces/{TEAM}/pods"
    limits = {"resources": {"limits": {RESOURCES[0]: "5"}}}
    cluster.pod("debugged", nodeName=NODE)
    ephemeral = {"spec": {"ephemeralContainers": [{"name": "e", "image": "none", **limits}]}}
    refused(lambda: cluster.admin.send("PATCH", f"{path}/debugged/ephemeralcontainers", ephemeral, STRATEGIC))
    refused(lambda: cluster.admin.post(path, body_of("whole", nodeName=OTHER, **limits)))


@pytest.mark.skipif(bool(lacking([MANAGER])), reason=lacking([MANAGER]) or "all there")
def test_expressions_fit_the_types_of_this_version(cluster: Cluster) -> None:
    """As kube-controller-manager checks them."""
    kubeconfig = f"--kubeconfig={cluster.plane.root}/admin.conf"
    flags = [kubeconfig, "--controllers=validatingadmissionpolicy-status-controller", "--leader-elect=false"]
    path = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolicies"

    def unchecked() -> list[str]:
        found = cluster.admin.get(path)["items"]
        return [item["metadata"]["name"] for item in found if "typeChecking" not in item.get("status", {})]

    with cluster.plane.program(MANAGER, *flags, f"--secure-port={free_port()}", f"--cert-dir={cluster.plane.root}"):
        wait_for(lambda: not unchecked(), "the check of types")
    statuses = {item["metadata"]["name"]: item["status"]["typeChecking"] for item in cluster.admin.get(path)["items"]}
    assert statuses == {name: {} for name in statuses}


def test_every_policy_was_seen_to_refuse(cluster: Cluster) -> None:
    """The tests above name them all."""
    bindings = [item for item in policies() if item["kind"] == "ValidatingAdmissionPolicyBinding"]
    shipped = {item["metadata"]["name"] for item in bindings if item["spec"]["validationActions"] == ["Deny"]}
    text = Path(__file__).read_text()
    assert shipped == {*re.findall(r"'(kube-accel-[a-z-]+)'\" in", text), "kube-accel-shares"}


def made_by(kind: str, pod: Mapping[str, Any]) -> tuple[str, dict[str, Any]]:
    """Where what makes such pods is made, and that."""
    template = {"metadata": {"labels": {"app": "a"}}, "spec": dict(pod["spec"])}
    selector = {"matchLabels": {"app": "a"}}
    if kind in ("Job", "CronJob"):
        spec: dict[str, Any] = {"template": template | {"spec": {**template["spec"], "restartPolicy": "Never"}}}
        spec = spec if kind == "Job" else {"schedule": "0 0 * * *", "jobTemplate": {"spec": spec}}
        api = "batch/v1"
    else:
        api, spec = "apps/v1", {"template": template, "selector": selector}
        spec |= {"serviceName": "a"} if kind == "StatefulSet" else {}
    item = {"apiVersion": api, "kind": kind, "metadata": {"name": "a"}, "spec": spec}
    return f"/apis/{api}/namespaces/{TEAM}/{kind.lower()}s", item


WHOLE = {"nvidia.com/gpu": "1"}
OWNER = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "a", "uid": "00000000-0000-0000-0000-000000000001"}
OPERATOR = {**OWNER, "apiVersion": "kubeflow.org/v1", "kind": "Notebook"}
MIN = "kube-accel.io/min-compute-capability"


def test_who_forgets_the_runtime_class_is_warned_and_not_refused(cluster: Cluster) -> None:
    path = f"/api/v1/namespaces/{TEAM}/pods"
    runtime = {"metadata": {"name": "nvidia"}, "handler": "nvidia"}
    cluster.admin.post("/apis/node.k8s.io/v1/runtimeclasses", runtime)
    wait_for(lambda: warnings(cluster, path, body_of("a", WHOLE)), "the warning")
    (said,) = warnings(cluster, path, body_of("a", WHOLE))
    assert "set spec.runtimeClassName to nvidia" in said
    assert warnings(cluster, path, body_of("a", {"nvidia.com/mig-1g.10gb": "1"}))
    assert warnings(cluster, path, body_of("a", WHOLE, metadata={"ownerReferences": [OPERATOR]}))
    for quiet in (
        body_of("a", WHOLE, runtimeClassName="nvidia"),
        body_of("a", {"nvidia.com/mps-core": "10", "nvidia.com/mps-memory": "1"}),
        body_of("a", share(10, 1)),
        body_of("a", {"cpu": "1"}),
        body_of("a"),
        body_of("a", WHOLE, metadata={"ownerReferences": [OWNER]}),
    ):
        assert warnings(cluster, path, quiet) == []


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet", "DaemonSet", "Job", "CronJob"])
def test_warning_comes_where_pods_are_made_of_a_template(cluster: Cluster, kind: str) -> None:
    assert warnings(cluster, *made_by(kind, body_of("a", WHOLE)))
    assert warnings(cluster, *made_by(kind, body_of("a"))) == []
    made = made_by(kind, body_of("a", WHOLE))
    made[1]["metadata"]["ownerReferences"] = [OPERATOR]
    assert warnings(cluster, *made)


def test_wishes_that_nobody_heeds_are_warned_of_and_not_refused(cluster: Cluster) -> None:
    path = f"/api/v1/namespaces/{TEAM}/pods"
    wishes: dict[str, Any] = {"annotations": {MIN: "8.0", "kube-accel.io/placement": "spread", "a.example/b": "c"}}

    def said(item: Mapping[str, Any]) -> list[str]:
        return warnings(cluster, path, item, "has no effect")

    wait_for(lambda: said(body_of("a", WHOLE, metadata=wishes)), "the warning")
    (words,) = said(body_of("a", WHOLE, metadata=wishes, runtimeClassName="nvidia"))
    assert no_effect(f"{MIN}, kube-accel.io/placement", "nvidia.com/gpu") in words
    for resource in (RESOURCES[0], "aliyun.com/gpu-mem", "nvidia.com/mig-1g.10gb", "nvidia.com/gpu.shared"):
        assert resource in said(body_of("a", {resource: "1"}, metadata=wishes))[0]
    for wish in WISHES:
        assert wish in said(body_of("a", WHOLE, metadata={"annotations": {wish: "1"}}))[0]
    for quiet in (
        body_of("a", WHOLE),
        body_of("a", metadata=wishes),
        body_of("a", {"cpu": "1", "example.com/nvidia.com": "1"}, metadata=wishes),
        body_of("a", WHOLE, metadata={"annotations": {"kube-accel.io/other": "x"}}),
        body_of("a", WHOLE, metadata={**wishes, "ownerReferences": [OWNER]}),
    ):
        assert said(quiet) == []


@pytest.mark.parametrize("kind", ["Deployment", "StatefulSet", "DaemonSet", "Job", "CronJob"])
def test_wishes_in_a_template_of_pods_are_warned_of(cluster: Cluster, kind: str) -> None:
    path, item = made_by(kind, body_of("a", WHOLE))
    item["metadata"]["annotations"] = {MIN: "8.0"}
    assert warnings(cluster, path, item, "has no effect") == []
    spec = item["spec"] if kind != "CronJob" else item["spec"]["jobTemplate"]["spec"]
    spec["template"].setdefault("metadata", {})["annotations"] = {MIN: "8.0"}
    assert warnings(cluster, path, item, "has no effect")
