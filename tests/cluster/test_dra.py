# SPDX-License-Identifier: Apache-2.0
"""The DRA driver on a real kubelet: claims, extended resources, and whatever may end meanwhile."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from cluster import images
from cluster.control_plane import BINARIES, SCHEDULER
from cluster.dra import (
    CDI,
    CLAIMS,
    DRIVER,
    MEMORY,
    SHARES,
    SLICES,
    DraNode,
    cuda_pod,
    dra_node,
    give_classes,
)
from cluster.node import STATE, GpuNode, pod
from cluster.rig import KUBELET_ROOT, NODE, PODS, Rig, has_feature, has_shares, kubernetes
from cluster.runtime import needs_cdi
from sim.cluster.client import until


@pytest.fixture(scope="module")
def rig(bare_rig: Rig) -> Iterator[Rig]:
    if kubernetes() < (1, 34):
        pytest.skip("resource.k8s.io/v1 came with Kubernetes 1.34")
    needs_cdi()
    give_classes(bare_rig)
    images.load(images.cuda())
    with bare_rig.plane.scheduler() as scheduler:
        bare_rig.plane.programs[SCHEDULER] = scheduler
        yield bare_rig


@pytest.fixture(scope="module")
def node(rig: Rig, h100: GpuNode) -> DraNode:
    return dra_node(rig, h100)


@pytest.fixture(autouse=True)
def _nothing_left(rig: Rig, node: DraNode) -> Iterator[None]:
    yield
    node.empty()


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
    if not has_feature("DRAExtendedResource", (1, 36)):
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
    if not has_feature("DRADeviceTaints", (1, 36)):
        pytest.skip("taints of devices are on since Kubernetes 1.36")
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
            until(lambda: all("taints" in device for device in node.devices().values()), "no GPU to be offered")
    with node.driver():
        assert len(node.devices()) == 8


@pytest.fixture
def sharing(node: DraNode, files: None) -> Iterator[DraNode]:
    """The node while its driver runs, in a cluster that knows shares."""
    if not has_shares():
        pytest.skip("shares of devices are on since Kubernetes 1.36")
    with node.driver():
        yield node


def test_share_is_refused_the_next_mebibyte(rig: Rig, sharing: DraNode) -> None:
    sharing.share("third", 30, "8Gi")
    rig.api.create(PODS, cuda_pod("third", "third"))
    rig.wait_running("third")
    assert rig.kubectl("exec", "third", "--", "take", "8192", "8193", "8192") == "0 2 0 8192\n"
    assert sharing.seen("third") == ["nvidia0"]
    env = rig.kubectl("exec", "third", "--", "env").split()
    assert "NVIDIA_VISIBLE_DEVICES=void" in env
    told = "container c0: an allocation on GPU 0 was refused: over the container's limit of 8 GiB"
    until(lambda: told in rig.kubectl("describe", "pod", "third"), "the pod to be told")
    # The other seven are whole, and the first is not.
    sharing.claim("seven", 7)
    sharing.submit("seven", "seven")
    sharing.claim("more")
    sharing.submit("more", "more")
    rig.wait_running("seven")
    assert "nvidia0" not in sharing.seen("seven")
    assert rig.phase("more") == "Pending"
    waits = f'accel_pending_gpu_pods{{node="{NODE}",namespace="default",mode="dra"}} 1'
    until(lambda: waits in sharing.metrics(), "the pod that waits to be counted", 100)
    rig.kubectl("delete", "pod", "third", "--now", "--wait=true")
    rig.kubectl("delete", "resourceclaim", "third", "--wait=true")
    rig.wait_running("more")
    assert sharing.seen("more") == ["nvidia0"]
    assert len(list((STATE / "containers").glob("[0-9a-f]*"))) == 0


def test_claim_is_told_of_where_people_look(rig: Rig, sharing: DraNode) -> None:
    sharing.share("told", 30, "8Gi")
    rig.api.create(PODS, cuda_pod("told", "told"))
    rig.wait_running("told")
    rig.kubectl("label", "node", NODE, "nvidia-device-enable=dra", "--overwrite")

    def told_by_metrics() -> bool:
        lines = [line for line in sharing.metrics().splitlines() if 'pod="told"' in line and 'mode="dra"' in line]
        return any(line.startswith("accel_container_gpu_allocated_gpus") and line.endswith(" 0.3") for line in lines)

    until(told_by_metrics, "metrics to tell of the pod by its name")

    def status() -> list[dict[str, Any]]:
        return list(rig.api.get(f"{CLAIMS}/told")["status"].get("devices", ()))

    until(status, "the status of the claim to say what it got")
    data = status()[0]["data"]
    assert (data["cores"], data["memory"]) == (30, "8Gi")
    config = f"--kubeconfig={rig.plane.root}/admin.conf"
    command = [str(Path(sys.executable).with_name("kube-accel")), "inspect", "--output=json", config]
    seen = subprocess.run([*command, f"--kubectl={BINARIES}/kubectl"], capture_output=True, text=True, check=False)
    rig.kubectl("label", "node", NODE, "nvidia-device-enable-")
    tenants = [each for gpu in json.loads(seen.stdout)["nodes"][0]["gpus"] for each in gpu["containers"]]
    assert [(each["pod"], each["cores"], each["memory_bytes"]) for each in tenants] == [("told", 30, 8 << 30)]


def test_class_has_whole_gpus_or_shares(rig: Rig, sharing: DraNode, tmp_path: Path) -> None:
    def refused(of: str, requests: dict[str, str], alternative: bool, template: bool) -> str:
        asked = {"deviceClassName": of} | ({"capacity": {"requests": requests}} if requests else {})
        first = [{"name": "first", "deviceClassName": DRIVER}, {"name": "second", **asked}]
        request = {"name": "gpus"} | ({"firstAvailable": first} if alternative else {"exactly": asked})
        spec: dict[str, Any] = {"devices": {"requests": [request]}}
        body = {"apiVersion": "resource.k8s.io/v1", "metadata": {"name": "tried"}}
        body |= {"kind": "ResourceClaimTemplate" if template else "ResourceClaim"}
        file = tmp_path / "claim.json"
        file.write_text(json.dumps({**body, "spec": {"spec": spec} if template else spec}))
        try:
            rig.kubectl("create", "--dry-run=server", f"--filename={file}")
        except AssertionError as error:
            return str(error)
        return ""

    for how in itertools.product((False, True), repeat=2):
        for lacking in ({}, {"cores": "30"}, {"memory": "8Gi"}):
            assert "does not name cores and memory" in refused(SHARES, lacking, *how)
        assert "names a part of one" in refused(DRIVER, {"cores": "30", "memory": "8Gi"}, *how)
        assert refused(SHARES, {"cores": "30", "memory": "8Gi"}, *how) == ""
        assert refused(DRIVER, {}, *how) == ""


def test_namespace_is_limited_as_the_page_says(rig: Rig, sharing: DraNode, tmp_path: Path) -> None:
    page = (Path(__file__).parents[2] / "docs/how-to/use-dra.md").read_text()
    (limits,) = re.findall(r"^```yaml\n(apiVersion: v1\nkind: ResourceQuota\n.*?)^```", page, re.MULTILINE | re.DOTALL)
    objects = tmp_path / "limits.yml"
    objects.write_text(limits)
    rig.kubectl("create", "namespace", "team-a")
    rig.kubectl("apply", f"--filename={objects}")

    def refused(name: str, of: str, *, cores: str = "25", memory: str = "20Gi", dry: bool = False) -> str:
        asked = {"deviceClassName": of} | (
            {"capacity": {"requests": {"cores": cores, "memory": memory}}} if of == SHARES else {}
        )
        body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name}}
        file = tmp_path / "claim.json"
        file.write_text(json.dumps({**body, "spec": {"devices": {"requests": [{"name": "share", "exactly": asked}]}}}))
        try:
            rig.kubectl("create", "--namespace=team-a", f"--filename={file}", *(["--dry-run=server"] if dry else []))
        except AssertionError as error:
            return str(error)
        return ""

    too_much = "has at most 25 cores and 20Gi"
    until(lambda: too_much in refused("big", SHARES, cores="26", dry=True), "the policy to be heard")
    assert too_much in refused("big", SHARES, memory="20481Mi")
    assert "exceeded quota" in refused("whole", DRIVER)
    assert [refused(f"share-{number}", SHARES) for number in range(4)] == [""] * 4
    assert "exceeded quota" in refused("fifth", SHARES, cores="1", memory="1Mi")
    rig.kubectl("delete", f"--filename={objects}")
    rig.kubectl("delete", "namespace", "team-a", "--wait=false")


def test_claim_of_two_pods_is_one_share(rig: Rig, sharing: DraNode) -> None:
    sharing.share("both", 30, "8Gi")
    rig.api.create(PODS, cuda_pod("first", "both", "take", "6144+"))
    rig.wait_running("first")
    until(lambda: rig.kubectl("logs", "first") == "0 8192\n", "the first pod to hold 6 GiB")
    rig.api.create(PODS, cuda_pod("second", "both"))
    rig.wait_running("second")
    assert rig.kubectl("exec", "second", "--", "take", "3072", "2048") == "2 0 8192\n"
    rig.kubectl("delete", "pod", "first", "--now", "--wait=true")
    assert rig.kubectl("exec", "second", "--", "take", "8192") == "0 8192\n"


@pytest.mark.parametrize("request_name", ["", "one"])
def test_container_gets_one_share_of_a_claim(rig: Rig, sharing: DraNode, request_name: str) -> None:
    sharing.share("pair", 30, "8Gi", "one", "two")
    rig.api.create(PODS, cuda_pod("pair", "pair", request=request_name))
    if request_name:
        rig.wait_running("pair")
        assert rig.kubectl("exec", "pair", "--", "take", "8193") == "2 8192\n"
        return
    told = "the container has another share beside a share"
    until(lambda: told in rig.kubectl("describe", "pod", "pair"), "the container to be refused")


def test_container_gets_no_share_beside_a_whole_gpu(rig: Rig, sharing: DraNode) -> None:
    sharing.share("share", 30, "8Gi")
    sharing.claim("whole")
    body = cuda_pod("mixed", "share")
    body["spec"]["resourceClaims"].append({"name": "more", "resourceClaimName": "whole"})
    body["spec"]["containers"][0]["resources"]["claims"].append({"name": "more"})
    rig.api.create(PODS, body)
    until(lambda: "beside a share" in rig.kubectl("describe", "pod", "mixed"), "the container to be refused")


def test_claim_falls_back_from_a_whole_gpu_to_a_share(rig: Rig, sharing: DraNode) -> None:
    sharing.claim("six", 6)
    sharing.submit("six", "six")
    sharing.share("third", 30, "8Gi")
    sharing.submit("third", "third")
    rig.wait_running("six", "third")
    for name in ("whole", "part"):
        sharing.whole_or_share(name, 30, "8Gi")
        sharing.submit(name, name)
        rig.wait_running(name)
    taken, prepared = sharing.taken(), sharing.prepared()
    assert sorted(cores for cores, _ in taken.values()) == [60] + 7 * [100]
    assert prepared["part"] == prepared["third"] != prepared["whole"]


def test_fifty_claims_at_once_for_sixteen_slots(rig: Rig, sharing: DraNode) -> None:
    names = [f"crowd-{number}" for number in range(50)]

    def submit(name: str) -> None:
        sharing.share(name, 50, "39Gi")
        sharing.submit(name, name)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(submit, names))
    first = until(lambda: len(found := rig.running()) == 16 and found, "16 pods to run")
    assert set(sharing.taken().values()) == {(100, 78 << 30)}
    gone = sorted(first)[:5]
    rig.kubectl("delete", "pod", "--now", "--wait=true", *gone)
    rig.kubectl("delete", "resourceclaim", "--wait=true", *gone)
    until(lambda: len(rig.running()) == 16 and rig.running() - first, "five others to run")
    assert set(sharing.taken().values()) == {(100, 78 << 30)}


def test_share_of_a_pod_deleted_by_force_is_given_again(rig: Rig, sharing: DraNode) -> None:
    for number in range(8):
        sharing.share(f"old-{number}", 60, "50Gi")
        sharing.submit(f"old-{number}", f"old-{number}")
    old = [f"old-{number}" for number in range(8)]
    rig.wait_running(*old)
    rig.kubectl("delete", "pod", "--grace-period=0", "--force", *old)
    rig.kubectl("delete", "resourceclaim", "--wait=false", *old)
    sharing.share("new", 60, "50Gi")
    sharing.submit("new", "new")
    rig.wait_running("new")
    assert all(cores <= 100 and memory <= MEMORY for cores, memory in sharing.taken().values())
    until(lambda: sharing.prepared().keys() == {"new"}, "the old claims to be released")


def test_share_survives_restarts(rig: Rig, node: DraNode, files: None) -> None:
    if not has_shares():
        pytest.skip("shares of devices are on since Kubernetes 1.36")
    with node.driver() as first:
        node.share("held", 30, "8Gi")
        rig.api.create(PODS, cuda_pod("held", "held", "take", "6144+"))
        rig.wait_running("held")
        until(lambda: rig.kubectl("logs", "held") == "0 8192\n", "the pod to hold 6 GiB")
        first.kill()
    with node.driver():
        rig.restart("kubelet")
        # Kubelet has it prepared again for a new sandbox: neither policy nor account is another then.
        rig.api.create(PODS, cuda_pod("beside", "held"))
        rig.wait_running("beside")
        assert rig.kubectl("exec", "beside", "--", "take", "3072", "2048") == "2 0 8192\n"
