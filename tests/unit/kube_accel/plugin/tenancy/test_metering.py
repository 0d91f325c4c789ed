# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kube_accel.kube.cgroups import Place
from kube_accel.kube.podresources import PodDevices
from kube_accel.metrics.charge import Charge, Model, Payer, State
from kube_accel.metrics.containers import Kept
from kube_accel.metrics.tenancy import Account, Charged, Container, Holding, Refused
from kube_accel.model import Enforcement, MigDevice, Mode, Share
from kube_accel.plugin.configuration.options import PluginOptions
from kube_accel.plugin.kubelet.holdings import Holder
from kube_accel.plugin.share_runtime import ShareRuntime
from kube_accel.plugin.tenancy.metering import LedgerBooks, ShareTenancy, whole_holdings, whole_shares, whole_tenancy
from kube_accel.plugin.whole_runtime import WholeGpus
from kube_accel.shared.offers import Replication
from kube_accel.sharing import mig, whole
from kube_accel.sharing.replication import replicated
from unit.kube_accel.enforce.test_containers import lock_of
from unit.kube_accel.plugin.fakes import STARTING, FakeMonitor, Listed, inventory, ready, uuid
from unit.kube_accel.plugin.tenancy.test_tenants import BUSY, ID, PROFILE, USED, World

GIB = 1 << 30
CARD = uuid(0)
A, B = Holder("team", "a", "main"), Holder("team", "b", "main")


def named(holder: Holder) -> Container:
    return Container(holder.namespace, holder.pod, holder.container)


def test_a_whole_gpu_is_all_of_it() -> None:
    parts = whole.layout(inventory(2))[whole.RESOURCE]
    assert whole_holdings({uuid(1): (A,), "GPU-of-before": (B,)}, parts) == {
        uuid(1): (Holding(named(A), uuid(1), 1.0, 1.0, 80 * GIB),)
    }


def test_replicas_are_parts_without_limits() -> None:
    parts = replicated(whole.layout(inventory(1)), [Replication(whole.RESOURCE, whole.RESOURCE, 4)])[whole.RESOURCE]
    found = whole_holdings({f"{CARD}::0": (A,), f"{CARD}::2": (B,)}, parts)
    assert found == {CARD: (Holding(named(A), CARD, 0.25), Holding(named(B), CARD, 0.25))}


@pytest.mark.parametrize(("model", "slices", "share"), [("NVIDIA H100", 1, 1 / 7), ("NVIDIA A30", 1, 1 / 4)])
def test_a_mig_device_is_its_slices(model: str, slices: int, share: float) -> None:
    device = MigDevice("MIG-1", 0, "1g.10gb", 10 * GIB, (), (("slices.gi", slices),))
    (gpu,) = inventory(1).gpus
    cut = replace(inventory(1), gpus=(replace(gpu, model=model, mig_enabled=True, mig_devices=(device,)),))
    parts = [part for listed in mig.layout(mig.Strategy.MIXED)(cut).values() for part in listed]
    (holding,) = whole_holdings({"MIG-1": (A,)}, parts)[CARD]
    assert holding == Holding(named(A), CARD, share, None, 10 * GIB, "MIG-1")


def test_nothing_is_said_before_kubelet_has_told() -> None:
    assert whole_tenancy(lambda: None, lambda: ()).holdings() is None
    assert whole_tenancy(lambda: {}, lambda: ()).holdings() == {}


def test_whole_gpus_are_not_reported_before_they_are_known() -> None:
    gpus = WholeGpus()
    holdings = whole_tenancy(lambda: {CARD: (A,)}, lambda: gpus.known_parts).holdings
    assert holdings() is None
    gpus.see(ready(1))
    assert (holdings() or {}).keys() == {CARD}
    gpus.see(STARTING)
    assert holdings() is None


def test_shares_are_not_reported_before_gpus_and_list(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    options = PluginOptions(
        mode=Mode.VGPU,
        node_name="node",
        device_plugin_dir=tmp_path,
        pod_resources_socket=tmp_path / "kubelet.sock",
        listen=("127.0.0.1", 0),
        state_dir=tmp_path,
        dev_root=tmp_path,
        service_account_dir=tmp_path,
        takeover=False,
        enforcement=Enforcement.NONE,
    )
    ids = tuple(f"{CARD}::m{number}" for number in range(4))
    listed = (PodDevices("team", "a", "main", PROFILE.memory_resource, ids),)
    shares = ShareRuntime(options, PROFILE, Listed(), FakeMonitor(), lambda: None)
    holdings = shares.tenancy().holdings
    shares.listed(listed, 0.0)
    said = [holdings()]
    # Whoever collects may ask at any moment of it.
    monkeypatch.setattr(shares._allocator, "see", lambda snapshot: said.append(holdings()))
    shares.see(ready(1))
    assert said == [None, None]
    assert (holdings() or {}).keys() == {CARD}


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def tenancy(world: World, held: Mapping[Holder, tuple[Share, ...]] | None, refuses: bool = True) -> ShareTenancy:
    gpus = inventory(2).gpus
    return ShareTenancy(PROFILE, lambda: held, lambda: gpus, world.pods, world.ledger, world.tenants, lambda: refuses)


def pod(
    world: World,
    name: str,
    phase: str = "Running",
    annotations: Mapping[str, str] | None = None,
    container: Mapping[str, Any] | None = None,
) -> None:
    limits = {PROFILE.core_resource: "30", PROFILE.memory_resource: "16"}
    status = {"phase": phase, "containerStatuses": [{"name": "main", "containerID": f"containerd://{ID}"}]}
    body: dict[str, Any] = {
        "metadata": {"namespace": "team", "name": name, "uid": f"uid-{name}", "annotations": dict(annotations or {})},
        "spec": {
            "nodeName": "node",
            "containers": [{"name": "main", "resources": {"limits": limits}, **(container or {})}],
        },
        "status": status,
    }
    world.pods.keep(body)


def test_a_share_is_the_larger_of_cores_and_memory(world: World) -> None:
    held = {A: (Share(CARD, 30, 40 * GIB),), B: (Share(CARD, 50, 8 * GIB),)}
    found = tenancy(world, held).tenancy().holdings()
    assert found == {
        CARD: (
            Holding(named(A), CARD, 0.5, 0.3, 40 * GIB, limited=True),
            Holding(named(B), CARD, 0.5, 0.5, 8 * GIB, limited=True),
        )
    }
    assert tenancy(world, None).tenancy().holdings() is None


def test_an_account_comes_with_the_limit_that_holds_for_it(world: World) -> None:
    world.pod("a")
    world.write_state("a", BUSY, 7)
    world.write_state("a", USED, 5)
    with lock_of(world.containers.state_path(world.key("a"))):
        assert tenancy(world, {}).tenancy().accounts() == {Account(named(A), CARD): Charged(5, 4 * GIB, 7)}


def test_ended_pods_have_nothing_though_kubelet_lists_them(world: World) -> None:
    pod(world, "a", "Succeeded")
    pod(world, "b")
    held = {A: (Share(CARD, 30, GIB),), B: (Share(CARD, 30, GIB),)}
    found = tenancy(world, held).tenancy().holdings()
    assert found is not None
    assert [holding.container for holding in found[CARD]] == [named(B)]


@pytest.mark.parametrize(
    ("container", "expected"),
    [
        ({"image": "registry.example/PaddlePaddle/paddle:3.0"}, True),
        ({"image": "team/train", "command": ["python"], "args": ["-m", "paddle.distributed.launch"]}, True),
        ({"image": "team/train", "env": [{"name": "FLAGS_allocator_strategy", "value": "auto_growth"}]}, True),
        ({"image": "pytorch/pytorch", "env": [{"name": "FLAGS_v", "value": "1"}]}, False),
        ({}, False),
    ],
)
def test_paddle_is_known_by_what_its_pod_says(world: World, container: dict[str, Any], expected: bool) -> None:
    pod(world, "a", container=container)
    found = tenancy(world, {A: (Share(CARD, 30, GIB),)}).tenancy().holdings()
    assert found is not None
    assert [holding.paddle for holding in found[CARD]] == [expected]


def test_a_cgroup_is_of_the_pod_that_the_api_server_has(world: World) -> None:
    pod(world, "a")
    owner = tenancy(world, {}).tenancy().owner
    assert owner is not None
    assert owner(Place("uid-a", ID)) == named(A)
    assert owner(Place("uid-a", "0" * 64)) == Container("team", "a", "")
    assert owner(Place("uid-b", ID)) is None


def test_a_static_pods_cgroup_has_its_hash(world: World) -> None:
    pod(world, "a", annotations={"kubernetes.io/config.hash": "0123456789abcdef0123456789abcdef"})
    owner = tenancy(world, {}).tenancy().owner
    assert owner is not None
    place = Place("01234567-89ab-cdef-0123-456789abcdef", ID)
    assert owner(place) == named(A)
    world.pods.lose("uid-a")
    assert owner(place) is None


def test_refusals_come_from_the_ledger(world: World) -> None:
    world.ledger.record(A, "uid-a", [Share(CARD, 30, GIB)])
    world.ledger.refused(A, CARD, {"limit": 3, "device": 1})
    found = tenancy(world, {}).tenancy().refusals()
    assert found == {Refused(named(A), CARD, "quota"): 3, Refused(named(A), CARD, "device"): 1}


def test_memory_alone_divides_no_cores(world: World) -> None:
    from kube_accel.sharing.profile import PROFILES

    made = tenancy(world, {A: (Share(CARD, 0, 40 * GIB),)}, refuses=False)
    made._profile = PROFILES[Mode.CGPU]
    assert made.tenancy().holdings() == {CARD: (Holding(named(A), CARD, 0.5, None, 40 * GIB),)}


def test_the_ledger_has_whole_gpus_and_replicas_as_shares() -> None:
    parts = replicated(whole.layout(inventory(1)), [Replication(whole.RESOURCE, whole.RESOURCE, 4)])[whole.RESOURCE]
    found = whole_shares({f"{CARD}::0": (A,), f"{CARD}::1": (A,), f"{CARD}::2": (B,)}, parts)
    assert found == {A: (Share(CARD, 50, 40 * GIB),), B: (Share(CARD, 25, 20 * GIB),)}


def test_a_meter_is_kept_in_the_ledger(world: World) -> None:
    books = LedgerBooks(world.ledger)
    assert books.load() == (None, {})
    state = State("boot", 5.0, {CARD: Model("H100", 80 * GIB)}, {CARD: (Holding(named(A), CARD, 0.5),)})
    charges = {Payer("team", "vgpu", "H100"): Charge(1.0, 2.0, 3.0)}
    assert not books.save(state, charges)
    assert books.load() == (state, charges)


def test_peaks_are_kept_in_the_ledger(world: World) -> None:
    world.ledger.record(A, "uid-a", [Share(CARD, 30, GIB)])
    books = LedgerBooks(world.ledger)
    (row,) = (kept.allocation for kept in books.peaks().values())
    books.peaked({row: GIB})
    assert books.peaks() == {(CARD, named(A)): Kept(row, "uid-a", GIB)}
