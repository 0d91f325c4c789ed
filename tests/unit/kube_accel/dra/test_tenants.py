# SPDX-License-Identifier: Apache-2.0
"""Who a claim is told of by, and what it has."""

from __future__ import annotations

from dataclasses import replace

import pytest

from kube_accel.dra.checkpoint import PreparedClaim, PreparedDevice
from kube_accel.dra.portions import Portion
from kube_accel.dra.tenants import holdings, shares, tenants
from kube_accel.kube.podresources import PodClaim
from kube_accel.metrics.charge import Meter, Model, Payer, State, charged
from kube_accel.metrics.tenancy import Container, Holding
from kube_accel.model import MigDevice, Share
from kube_accel.plugin.kubelet.holdings import Holder
from unit.kube_accel.plugin.fakes import inventory, uuid

GIB = 1 << 30
GPUS = inventory(2).gpus
THIRD = Portion(30, 8 * GIB)


def device(index: int = 0, portion: Portion | None = THIRD, admin: bool = False, request: str = "r") -> PreparedDevice:
    return PreparedDevice(request, f"gpu-{index:02}", uuid(index), admin, "", portion)


def claim(*devices: PreparedDevice, name: str = "training") -> PreparedClaim:
    return PreparedClaim("team", name, devices or (device(),))


def listed(*containers: str, name: str = "training") -> list[PodClaim]:
    """Of pods and containers, as ``pod/container``."""
    return [PodClaim("team", name, *container.split("/")) for container in containers]


def found(claims: dict[str, PreparedClaim], said: list[PodClaim]) -> dict[str, tuple[Holding, ...]]:
    return holdings(claims, tenants(claims, said), GPUS, {})


@pytest.mark.parametrize(
    ("having", "name"),
    [
        (["a/main"], Container("team", "a", "main")),
        (["a/main", "a/side"], Container("team", "a", "")),
        (["a/main", "b/main"], Container("team", "resourceclaim/training", "")),
        ([], Container("team", "resourceclaim/training", "")),
    ],
)
def test_claim_is_told_of_by_the_least_that_has_it(having: list[str], name: Container) -> None:
    (tenant,) = tenants({"uid": claim()}, listed(*having)).values()
    assert tenant.name == name
    assert [f"{one.pod}/{one.name}" for one in tenant.among] == having


def test_mig_device_is_a_part_of_its_gpu() -> None:
    told = (("slices.gi", 3),)
    mig = MigDevice("MIG-0", 0, "3g.40gb", 40 * GIB, (), told)
    gpus = (replace(GPUS[0], mig_enabled=True, mig_devices=(mig,)), GPUS[1])
    claims = {"uid": claim(PreparedDevice("r", "gpu-00-mig-3g40gb-0", "MIG-0", parent=uuid(0)))}
    had = holdings(claims, tenants(claims, listed("a/main")), gpus, {})
    (holding,) = had[uuid(0)]
    assert (holding.device, holding.share, holding.memory_bytes, holding.limited) == ("MIG-0", 0.5, 40 * GIB, False)
    assert shares(had, gpus) == {Holder("team", "a", "main"): (Share(uuid(0), 50, 40 * GIB),)}


def test_claim_of_the_same_name_elsewhere_is_another() -> None:
    said = [PodClaim("other", "training", "a", "main"), *listed("a/main", name="other")]
    (tenant,) = tenants({"uid": claim()}, said).values()
    assert tenant.name.pod == "resourceclaim/training"


def test_shares_and_whole_gpus_are_held_as_they_were_given() -> None:
    claims = {"one": claim(), "two": claim(device(1, None), name="whole")}
    held = found(claims, listed("a/main") + listed("b/main", name="whole"))
    (share,), (whole,) = held[uuid(0)], held[uuid(1)]
    assert (share.share, share.cores, share.memory_bytes, share.limited) == (0.3, 0.3, 8 * GIB, True)
    assert (whole.share, whole.cores, whole.memory_bytes, whole.limited) == (1.0, 1.0, 80 * GIB, False)
    assert shares(held, GPUS) == {
        Holder("team", "a", "main"): (Share(uuid(0), 30, 8 * GIB),),
        Holder("team", "b", "main"): (Share(uuid(1), 100, 80 * GIB),),
    }


def test_memory_counts_where_it_is_the_larger_part() -> None:
    assert found({"uid": claim(device(portion=Portion(10, 40 * GIB)))}, [])[uuid(0)][0].share == 0.5


def test_two_requests_of_one_tenant_on_a_gpu_are_one_share() -> None:
    held = found({"uid": claim(device(request="x"), device(request="y"))}, listed("a/main", "a/side"))
    assert sum(charged(held[uuid(0)]).values()) == pytest.approx(0.6)
    assert shares(held, GPUS) == {Holder("team", "a", ""): (Share(uuid(0), 60, 16 * GIB),)}


def test_watchers_and_unknown_gpus_hold_nothing() -> None:
    assert found({"uid": claim(device(admin=True), device(7))}, listed("a/main")) == {}


def test_claim_of_two_pods_is_charged_once() -> None:
    model = Model("NVIDIA H100", 80 * GIB)
    meter = Meter("dra", None, {})
    held = found({"uid": claim()}, listed("a/main", "b/main"))
    for at in (0.0, 100.0):
        meter.see(State("boot", at, {uuid(0): model}, held))
    charge = meter.charges[Payer("team", "dra", model.name)]
    assert charge.gpu_seconds == pytest.approx(30)
    assert charge.memory_byte_seconds == 800 * GIB
