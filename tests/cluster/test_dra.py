# SPDX-License-Identifier: Apache-2.0
"""The DRA driver on a real kubelet: claims, extended resources, and whatever may end meanwhile."""

from __future__ import annotations

import json
import re
import shutil
import sys
import urllib.error
import urllib.request
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from cluster.control_plane import API_SERVICE, Program, answers
from cluster.node import STATE, TOPOLOGY, UNPRIVILEGED, GpuNode, pod
from cluster.rig import KUBELET_ROOT, NODE, PODS, Rig, kubernetes
from cluster.runtime import needs_cdi
from sim.cluster.client import until

DRIVER = "gpu.kube-accel.io"
GROUP = "/apis/resource.k8s.io/v1"
CLAIMS = f"{GROUP}/namespaces/default/resourceclaims"
SLICES = f"{GROUP}/resourceslices"
CDI = Path("/var/run/cdi")
RIGHTS = """
apiVersion: v1
kind: ServiceAccount
metadata: {name: kube-accel-dra, namespace: kube-system}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRole
metadata: {name: kube-accel-dra}
rules:
  - {apiGroups: [""], resources: [nodes], verbs: [get]}
  - {apiGroups: [""], resources: [nodes/status], verbs: [patch]}
  - {apiGroups: [""], resources: [events], verbs: [create]}
  - {apiGroups: [resource.k8s.io], resources: [resourceslices], verbs: [list, watch, create, update, delete]}
  - {apiGroups: [resource.k8s.io], resources: [resourceclaims], verbs: [get]}
---
apiVersion: rbac.authorization.k8s.io/v1
kind: ClusterRoleBinding
metadata: {name: kube-accel-dra}
roleRef: {apiGroup: rbac.authorization.k8s.io, kind: ClusterRole, name: kube-accel-dra}
subjects: [{kind: ServiceAccount, name: kube-accel-dra, namespace: kube-system}]
"""


class DraNode:
    """The node with eight H100, and a driver when a test starts one."""

    def __init__(self, rig: Rig, node: GpuNode, account: Path) -> None:
        self.rig, self.node, self._account = rig, node, account

    @contextmanager
    def driver(self, port: int = 9445, instance: str = "", wait: bool = True, state: Path = STATE) -> Iterator[Program]:
        """The daemon beside kubelet, with ``wait`` ready: registered, its slices stored."""
        command = [
            *UNPRIVILEGED,
            str(Path(sys.executable).with_name("kube-accel")),
            "dra",
            f"--node-name={NODE}",
            f"--instance={instance}",
            f"--listen=127.0.0.1:{port}",
            f"--kubelet-plugins-dir={KUBELET_ROOT}/plugins",
            f"--kubelet-registry-dir={KUBELET_ROOT}/plugins_registry",
            f"--state-dir={state}",
            f"--service-account-dir={self._account}",
            f"--cdi-dir={CDI}",
        ]
        environment = {"GPUSIM_FILE": str(TOPOLOGY), "KUBERNETES_SERVICE_HOST": API_SERVICE}
        environment["KUBERNETES_SERVICE_PORT"] = "443"
        with Program(self.rig.plane.root, f"kube-accel-dra-{port}", command, environment) as program:
            if wait:
                self.wait_ready(port)
            yield program

    def wait_ready(self, port: int = 9445) -> None:
        until(lambda: answers(f"http://127.0.0.1:{port}/readyz"), "the driver to be ready")

    def obstacle(self, port: int = 9445) -> str:
        """Why the driver is not ready; empty while it is, or does not answer."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{port}/readyz", timeout=2):
                return ""
        except urllib.error.HTTPError as error:
            return error.read().decode()
        except OSError:
            return ""

    def devices(self) -> dict[str, dict[str, Any]]:
        """What our slices offer, by name."""
        slices = [each["spec"] for each in self.rig.api.get(SLICES)["items"]]
        found = [device for each in slices if each["driver"] == DRIVER for device in each.get("devices", ())]
        return {device["name"]: device for device in found}

    def claim(self, name: str, count: int = 1) -> None:
        """Create a claim of so many GPUs."""
        exactly = {"deviceClassName": DRIVER, "count": count}
        spec = {"devices": {"requests": [{"name": "gpus", "exactly": exactly}]}}
        body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name}, "spec": spec}
        self.rig.api.create(CLAIMS, body)

    def submit(self, name: str, claim: str) -> None:
        """Create a pod that stays, and uses a claim."""
        self.rig.api.create(PODS, claiming_pod(name, claim))

    def seen(self, name: str) -> list[str]:
        """The GPUs' device nodes that a pod has."""
        listed = self.rig.kubectl("exec", name, "--", "ls", "/dev").split()
        return sorted(each for each in listed if re.fullmatch(r"nvidia\d+", each))

    def health(self, name: str) -> dict[str, int]:
        """How many GPUs of a pod are of which health, as its status tells."""
        (status,) = self.rig.api.get(f"{PODS}/{name}")["status"]["containerStatuses"]
        listed = [each for told in status.get("allocatedResourcesStatus", ()) for each in told["resources"]]
        return dict(Counter(each["health"] for each in listed))

    def prepared(self) -> dict[str, list[str]]:
        """The devices of each prepared claim, by its name."""
        file = STATE / "claims.json"
        claims = json.loads(file.read_text())["claims"].values() if file.exists() else ()
        return {claim["name"]: [device["device"] for device in claim["devices"]] for claim in claims}


def claiming_pod(name: str, claim: str) -> dict[str, Any]:
    body = pod(name, {}, resourceClaims=[{"name": "gpus", "resourceClaimName": claim}])
    body["spec"]["containers"][0]["resources"] = {"claims": [{"name": "gpus"}]}
    return body


@pytest.fixture(scope="module")
def rig(bare_rig: Rig) -> Iterator[Rig]:
    if kubernetes() < (1, 34):
        pytest.skip("resource.k8s.io/v1 came with Kubernetes 1.34")
    needs_cdi()
    selector = f"device.driver == '{DRIVER}' && device.attributes['{DRIVER}'].type == 'gpu'"
    spec: dict[str, Any] = {"selectors": [{"cel": {"expression": selector}}]}
    if kubernetes() >= (1, 36):
        spec["extendedResourceName"] = "nvidia.com/gpu"
    body = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": DRIVER}, "spec": spec}
    bare_rig.api.create(f"{GROUP}/deviceclasses", body)
    with bare_rig.plane.scheduler():
        yield bare_rig


@pytest.fixture(scope="module")
def node(rig: Rig, h100: GpuNode) -> DraNode:
    objects = rig.plane.root / "dra.yml"
    objects.write_text(RIGHTS)
    rig.kubectl("apply", f"--filename={objects}")
    account = rig.plane.root / "kube-accel-dra"
    account.mkdir()
    (account / "token").write_text(
        rig.kubectl("create", "token", "kube-accel-dra", "--namespace=kube-system", "--duration=2h")
    )
    shutil.copy(rig.plane.ca, account / "ca.crt")
    STATE.mkdir(exist_ok=True)
    return DraNode(rig, h100, account)


@pytest.fixture(autouse=True)
def _nothing_left(rig: Rig, node: DraNode) -> Iterator[None]:
    yield
    # No pod with a claim ends without a driver.
    with node.driver():
        rig.kubectl("delete", "pods", "--all", "--now", "--wait=true")
        rig.kubectl("delete", "resourceclaims", "--all", "--wait=true")
        until(lambda: node.prepared() == {}, "all claims to be released")


def test_pod_with_a_claim_gets_its_gpus_and_no_other(rig: Rig, node: DraNode) -> None:
    with node.driver():
        assert sorted(node.devices()) == [f"gpu-{number:02}" for number in range(8)]
        node.claim("two", 2)
        node.submit("first", "two")
        rig.wait_running("first")
        seen = node.seen("first")
        assert len(seen) == 2
        assert "NVIDIA_VISIBLE_DEVICES=void" in rig.kubectl("exec", "first", "--", "env").split()
        assert len(node.prepared()["two"]) == 2
        node.claim("six", 6)
        node.submit("second", "six")
        rig.wait_running("second")
        assert not set(seen) & set(node.seen("second"))
        # Both are the claim's own.
        node.submit("third", "two")
        rig.wait_running("third")
        assert node.seen("third") == seen
        rig.kubectl("delete", "pods", "--all", "--now", "--wait=true")
        until(lambda: node.prepared() == {}, "all claims to be released")
        assert not list(CDI.glob("kube-accel.io-claim-*"))


def test_extended_resource_is_served_by_the_driver(rig: Rig, node: DraNode) -> None:
    if kubernetes() < (1, 36):
        pytest.skip("extended resources by DRA are on since Kubernetes 1.36")
    with node.driver():
        rig.api.create(PODS, pod("extended", {"nvidia.com/gpu": "2"}))
        rig.wait_running("extended")
        assert len(node.seen("extended")) == 2


def test_kubelet_restart_leaves_pods_and_gets_the_slices_back(rig: Rig, node: DraNode) -> None:
    with node.driver():
        node.claim("held", 3)
        node.submit("before", "held")
        rig.wait_running("before")
        started = rig.api.get(f"{PODS}/before")["status"]["containerStatuses"][0]["state"]["running"]["startedAt"]
        names = {each["metadata"]["name"] for each in rig.api.get(SLICES)["items"]}
        rig.restart("kubelet")

        def replaced() -> bool:
            now = {each["metadata"]["name"] for each in rig.api.get(SLICES)["items"]}
            return bool(now) and not now & names

        until(replaced, "kubelet to wipe the slices, and the driver to put them back")
        node.claim("next", 5)
        node.submit("after", "next")
        rig.wait_running("after")
        status = rig.api.get(f"{PODS}/before")["status"]["containerStatuses"][0]
        assert (status["state"]["running"]["startedAt"], status["restartCount"]) == (started, 0)
        assert not set(node.seen("before")) & set(node.seen("after"))


def test_killed_driver_goes_on_where_it_was(rig: Rig, node: DraNode) -> None:
    with node.driver() as first:
        node.claim("held", 4)
        node.submit("before", "held")
        rig.wait_running("before")
        first.kill()
    with node.driver():
        assert node.prepared().keys() == {"held"}
        node.claim("next", 4)
        node.submit("after", "next")
        rig.wait_running("after")
        rig.kubectl("delete", "pod", "before", "--now", "--wait=true")
        until(lambda: node.prepared().keys() == {"next"}, "the first claim to be released")


def test_claim_deleted_while_the_driver_is_away_is_released(rig: Rig, node: DraNode) -> None:
    with node.driver():
        node.claim("held", 8)
        node.submit("before", "held")
        rig.wait_running("before")
    rig.kubectl("delete", "pod", "before", "--grace-period=0", "--force")
    rig.kubectl("delete", "resourceclaim", "held", "--wait=false")
    with node.driver():
        until(lambda: node.prepared() == {}, "the claim to be released")
        node.claim("next", 8)
        node.submit("after", "next")
        rig.wait_running("after")


def test_two_instances_roll_over(rig: Rig, node: DraNode) -> None:
    with node.driver(instance="11111111-aaaa") as old:
        node.claim("held", 2)
        node.submit("before", "held")
        rig.wait_running("before")
        with node.driver(9447, "22222222-bbbb"):
            node.claim("during", 2)
            node.submit("during", "during")
            old.process.terminate()
            assert old.process.wait(60) == 0
            node.claim("after", 4)
            node.submit("after", "after")
            rig.wait_running("during", "after")
            rig.kubectl("delete", "pod", "before", "--now", "--wait=true")
            until(lambda: node.prepared().keys() == {"during", "after"}, "the old claim to be released")
            sockets = sorted(path.name for path in (KUBELET_ROOT / "plugins_registry").glob("*.sock"))
            assert sockets == [f"{DRIVER}-22222222-reg.sock"]


def test_sick_gpu_is_tainted_and_well_again(rig: Rig, node: DraNode) -> None:
    with node.driver():
        node.claim("held", 4)
        node.submit("held", "held")
        rig.wait_running("held")
        with node.node.edit() as topology:
            topology.set_health(3, "lost")
        until(lambda: "taints" in node.devices()["gpu-03"], "the lost GPU to be tainted")
        until(lambda: node.health("held") == {"Healthy": 3, "Unhealthy": 1}, "the pod's status to tell of it")
        rig.kubectl("delete", "pod", "held", "--now", "--wait=true")
        rig.kubectl("delete", "resourceclaim", "held", "--wait=true")
        assert [name for name, device in node.devices().items() if "taints" in device] == ["gpu-03"]
        node.claim("all", 8)
        node.submit("all", "all")
        node.claim("seven", 7)
        node.submit("seven", "seven")
        rig.wait_running("seven")
        assert rig.phase("all") == "Pending"
        rig.kubectl("delete", "pod", "seven", "--now", "--wait=true")
        with node.node.edit() as topology:
            topology.set_health(3, "ok")
        until(lambda: "taints" not in node.devices()["gpu-03"], "the taint to go")
        rig.wait_running("all")


def test_pod_is_back_with_its_gpus_after_a_reboot(rig: Rig, node: DraNode) -> None:
    with node.driver() as before:
        node.claim("held", 3)
        node.submit("held", "held")
        rig.wait_running("held")
        before.kill()
    with node.driver(wait=False):
        rig.reboot()
        node.wait_ready()
        until(lambda: rig.api.get(f"{PODS}/held")["status"]["containerStatuses"][0]["restartCount"], "a new container")
        rig.wait_running("held")
        until(lambda: node.seen("held") == ["nvidia0", "nvidia1", "nvidia2"], "the GPUs in it")


def test_driver_waits_while_a_plugin_serves_the_node(rig: Rig, node: DraNode, tmp_path: Path) -> None:
    with node.node.plugin(port=9447):
        node.node.wait_allocatable(8)
        with node.driver(wait=False):
            until(
                lambda: "a plugin of mode pgpu runs on this node" in node.obstacle(), "the driver to wait for its turn"
            )
        with node.driver(wait=False, state=tmp_path):
            until(lambda: "a device plugin offers nvidia.com/gpu" in node.obstacle(), "the driver to see the plugin")
            # What a driver before left is offered to nobody.
            assert all("taints" in device for device in node.devices().values())
    with node.driver():
        assert len(node.devices()) == 8
