# SPDX-License-Identifier: Apache-2.0
"""Nodes that DRA drivers of others serve: what their pods have, what they must ask for, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils.migration import claims, resources
from ansible_collections.accel.kubernetes.plugins.module_utils.migration.plan import Cluster, Terms, Wanted, plan
from ansible_collections.accel.kubernetes.plugins.module_utils.playbooks.migration import gives_devices
from ansible_collections.accel.kubernetes.plugins.modules.gpu_migration_info import parsed
from hypothesis import given
from hypothesis import strategies as st

from unit.plugins.module_utils.migration import peer_objects as objects
from unit.plugins.module_utils.migration.peer_objects import DAEMONSETS, Object, chosen, pod

NVIDIA, HAMI = "gpu.nvidia.com", "hami-core-gpu.project-hami.io"
OURS, SHARES, MIG = "gpu.kube-accel.io", "share.kube-accel.io", "mig.kube-accel.io"


def claim(name: str, *wishes: tuple[str, int] | Object) -> Object:
    """A claim whose requests, r0 and so on, have a class and a count, or are given."""
    requests = []
    for number, wish in enumerate(wishes):
        one = {"exactly": {"deviceClassName": wish[0], "count": wish[1]}} if isinstance(wish, tuple) else wish
        requests.append({"name": f"r{number}", **one})
    return {"metadata": {"namespace": "team", "name": name}, "spec": {"devices": {"requests": requests}}}


def claiming(name: str, *uses: Object, by_template: bool = False, **limits: str) -> Object:
    """A pod with the claim of its name, of a template or not, whose container uses it so."""
    item = pod(name, limits)
    given_name = {"resourceClaimName": f"{name}-x1"} if by_template else {"resourceClaimName": name}
    item["spec"]["resourceClaims"] = [{"name": "gpu", **({} if by_template else given_name)}]
    item["status"]["resourceClaimStatuses"] = [{"name": "gpu", **given_name}] if by_template else []
    item["spec"]["containers"][0]["resources"]["claims"] = list(uses) or [{"name": "gpu"}]
    return item


def share(of: str, **capacity: str) -> Object:
    return {"exactly": {"deviceClassName": of, "capacity": {"requests": capacity}}}


def in_slice(driver: str, node: str = "gpu-1", devices: int = 1) -> Object:
    spec = {"driver": driver, "nodeName": node, "devices": [{"name": f"gpu-{each}"} for each in range(devices)]}
    return {"metadata": {"name": driver}, "spec": spec}


def of(kind: str, *pods: Object, mode: str = "dra", strand: bool = False, **more: Any) -> dict[str, Any]:
    found = Cluster([chosen(kind)], [DAEMONSETS[kind]()], pods, **more)
    document = plan(found, [Wanted("gpu-1", mode, {}, 80 << 30)], Terms("kube-accel", strand), parsed)
    entry: dict[str, Any] = document["nodes"]["gpu-1"]
    return entry


@pytest.mark.parametrize("by_template", [False, True])
@pytest.mark.parametrize(
    ("kind", "wish", "mode", "becomes"),
    [
        ("nvidia-dra", (NVIDIA, 2), "dra", {OURS: 2}),
        ("nvidia-dra", (NVIDIA, 2), "pgpu", {"nvidia.com/gpu": 2}),
        ("nvidia-dra", (NVIDIA, 2), "vgpu", {"tencent.com/vcuda-core": 200}),
        ("nvidia-dra", {"firstAvailable": [{"deviceClassName": NVIDIA}]}, "dra", {OURS: 1}),
        # As resource.k8s.io/v1beta1 has it.
        ("nvidia-dra", {"deviceClassName": NVIDIA, "count": 2}, "dra", {OURS: 2}),
        ("nvidia-dra", share(NVIDIA, memory="8Gi"), "dra", {SHARES: 1}),
        ("nvidia-dra", ("mig.nvidia.com", 2), "dra", {MIG: 2}),
        ("nvidia-dra", ("mig.nvidia.com", 1), "vgpu", {}),
        ("nvidia-dra", ("vfio.gpu.nvidia.com", 1), "dra", {}),
        ("hami-dra", (HAMI, 1), "dra", {OURS: 1}),
        ("hami-dra", share(HAMI, cores="30", memory="8Gi"), "dra", {SHARES: 1}),
        ("hami-dra", share(HAMI, cores="30", memory="8Gi"), "vgpu", {}),
    ],
)
def test_claims_of_pods_are_translated(
    kind: str, wish: tuple[str, int] | Object, mode: str, becomes: Object, by_template: bool
) -> None:
    wanted = claim("train-x1" if by_template else "train", wish)
    entry = of(kind, claiming("train", by_template=by_template), mode=mode, claims=[wanted])
    (row,) = entry["pods"]
    assert (row["pod"], row["container"], row["becomes"]) == ("team/train", "main", becomes)
    assert entry["stranded"] == ["team/train"]
    assert "so they would stay pending after an eviction: team/train" in str(entry["problems"])
    assert (
        of(kind, claiming("train", by_template=by_template), mode=mode, claims=[wanted], strand=True)["problems"] == []
    )


@pytest.mark.parametrize("kind", ["nvidia-dra", "hami-dra"])
@pytest.mark.parametrize("mode", ["dra", "pgpu"])
def test_pod_whose_claim_the_scheduler_makes_stays_as_it_is(kind: str, mode: str) -> None:
    entry = of(kind, pod("train", {"nvidia.com/gpu": "2"}), mode=mode)
    assert [(row["becomes"], row["changes"]) for row in entry["pods"]] == [({"nvidia.com/gpu": 2}, False)]
    assert (entry["state"], entry["problems"]) == ("due", [])


def test_container_that_names_a_request_has_that_alone() -> None:
    both = claim("train", (NVIDIA, 1), (NVIDIA, 3))
    (row,) = of("nvidia-dra", claiming("train", {"name": "gpu", "request": "r1"}), claims=[both])["pods"]
    assert row["asks"] == {NVIDIA: 3}
    # Of another driver, and of none that is there.
    nic = claim("train", ("nic.example.com", 1))
    assert of("nvidia-dra", claiming("train"), claims=[nic])["pods"] == []
    assert of("nvidia-dra", claiming("train"))["pods"] == []


@pytest.mark.parametrize(
    ("kind", "asks", "becomes"),
    [
        ("nvidia-dra", {OURS: 2}, {NVIDIA: 2}),
        ("hami-dra", {OURS: 1}, {HAMI: 1}),
        ("nvidia", {OURS: 1}, {"nvidia.com/gpu": 1}),
        ("nvidia-dra", {"nvidia.com/gpu": 1}, {"nvidia.com/gpu": 1}),
        ("nvidia-dra", {MIG: 3}, {"mig.nvidia.com": 3}),
    ],
)
def test_claims_of_ours_are_translated_back(kind: str, asks: dict[str, int], becomes: dict[str, int]) -> None:
    assert resources.returned(kind, "dra", asks, resources.Card()).limits == becomes
    with pytest.raises(resources.Unmatched, match="has a claim for share"):
        resources.returned(kind, "dra", {SHARES: 1}, resources.Card())


def test_plugin_is_replaced_by_claims() -> None:
    entry = of("nvidia", pod("train", {"nvidia.com/gpu": "2"}))
    (row,) = entry["pods"]
    assert (row["becomes"], row["has"]) == ({OURS: 2}, "2 whole GPUs")
    (row,) = of("gpu-manager", pod("p", {"tencent.com/vcuda-core": "30", "tencent.com/vcuda-memory": "32"}))["pods"]
    assert (row["becomes"], row["note"]) == (
        {SHARES: 1},
        "by a ResourceClaim, with 30 cores and 8 GiB of memory of each GPU",
    )


@pytest.mark.parametrize("driver", [NVIDIA, HAMI])
def test_node_of_a_driver_without_its_daemonset_is_refused(driver: str) -> None:
    kind = "nvidia-dra" if driver == NVIDIA else "hami-dra"
    assert of(kind, slices=[in_slice(driver)])["state"] == "due"
    entry = of("nvidia", slices=[in_slice(driver)], mode="pgpu")
    assert entry["state"] == "refused"
    assert f"DRA driver {driver} has ResourceSlices with its GPUs" in entry["problems"][0]
    for other in (in_slice(driver, "gpu-2"), in_slice(driver, devices=0), in_slice("compute-domain.nvidia.com")):
        assert of("nvidia", slices=[other], mode="pgpu")["state"] == "due"


def test_driver_of_compute_domains_alone_is_left_alone() -> None:
    alone = objects.dra_driver("nv", "compute-domain-kubelet-plugin -v 4")
    found = Cluster([chosen("nvidia-dra")], [alone], slices=[in_slice("compute-domain.nvidia.com")])
    document = plan(found, [Wanted("gpu-1", "dra")], Terms("kube-accel"), parsed)
    assert (document["peers"], document["nodes"]["gpu-1"]["state"]) == ([], "none")


def test_slices_of_the_driver_alone_are_waited_for() -> None:
    found = {"resources": [in_slice(HAMI), in_slice(NVIDIA, devices=0)]}
    assert [gives_devices(found, driver) for driver in (HAMI, NVIDIA)] == [True, False]


@given(st.integers(1, 8), st.integers(1, 8), st.booleans())
def test_counts_of_several_claims_add_up(first: int, second: int, named: bool) -> None:
    item = claiming("train", {"name": "gpu"}, {"name": "more"})
    item["spec"]["resourceClaims"].append({"name": "more", "resourceClaimName": "more"})
    asked = claims.asked_by([claim("train", (NVIDIA, first)), claim("more", (NVIDIA, second))] if named else [])
    (found,) = claims.limits(item, asked)
    assert found == ("main", {NVIDIA: first + second} if named else {})
