# SPDX-License-Identifier: Apache-2.0
"""What is followed of claims: their holders, the ledger, and the processes of their pods."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

import pytest

from kube_accel.dra.metering import ClaimMetering
from kube_accel.dra.pods import ClaimPods
from kube_accel.dra.refusals import Refusals
from kube_accel.enforce.containers import Containers, key_of
from kube_accel.enforce.policy import STATE_DEVICE, STATE_HEADER, record
from kube_accel.kube.api import ApiRefusedError, ApiUnreachableError
from kube_accel.kube.cgroups import Place
from kube_accel.kube.client import KubeClient
from kube_accel.kube.podresources import PodClaim, PodResourcesError
from kube_accel.metrics.tenancy import Account, Container, Refused
from kube_accel.model import Share
from kube_accel.plugin.allocation.ledger import Ledger
from kube_accel.plugin.kubelet.holdings import Holder
from kube_accel.plugin.node.pod_reporter import Named
from unit.kube_accel.dra.node import ClaimNode
from unit.kube_accel.dra.test_shares import share
from unit.kube_accel.plugin.fakes import inventory, uuid

GIB = 1 << 30
MAIN = Container("team", "a", "main")
ID, OTHER_ID = "0" * 64, "1" * 64


class Kubelet:
    """Lists what it is told to."""

    def __init__(self) -> None:
        self.found: set[PodClaim] = set()
        self.away = False

    def claims(self, driver: str, timeout: float) -> frozenset[PodClaim]:
        if self.away:
            raise PodResourcesError("kubelet is away")
        return frozenset(self.found)

    def lists(self, claim: str, *containers: str) -> None:
        self.found |= {PodClaim("team", claim, *container.split("/")) for container in containers}


class Pods:
    """An API server with pods."""

    def __init__(self) -> None:
        self.pods: dict[str, dict[str, Any]] = {}
        self.asked: list[str] = []
        self.away = False

    def get(self, path: str) -> dict[str, Any]:
        name = path.removeprefix("/api/v1/namespaces/team/pods/")
        self.asked.append(name)
        if self.away:
            raise ApiUnreachableError("API server not reached")
        if name not in self.pods:
            raise ApiRefusedError(404, f"{name} not found")
        return self.pods[name]

    def runs(self, name: str, uid: str, **containers: str) -> None:
        """Ids by container."""
        statuses = [{"name": each, "containerID": f"containerd://{found}"} for each, found in containers.items()]
        spec = {"containers": [{"name": each, "image": "paddle"} for each in containers]}
        self.pods[name] = {"metadata": {"uid": uid}, "spec": spec, "status": {"containerStatuses": statuses}}


class Metered:
    """A node with claims, of which metrics tell."""

    def __init__(self, root: Path) -> None:
        self.node, self.kubelet, self.pods = ClaimNode(root), Kubelet(), Pods()
        self.shares = self.node.shares()
        self.preparer = self.node.preparer(self.shares)
        self.ledger = Ledger(self.node.state, "dra")
        self.claim_pods = ClaimPods(cast(KubeClient, self.pods))
        self.events: list[tuple[str, str]] = []
        self.metering = ClaimMetering(
            self.preparer.claims,
            self.kubelet,
            lambda: inventory(4).gpus,
            self.shares,
            self.claim_pods,
            self.ledger,
            Refusals(self, self.claim_pods, lambda: inventory(4).gpus),
        )

    def event(self, pod: Named, reason: str, message: str) -> None:
        """Of a driver's events, the pod's UID and the message."""
        assert reason == "GpuMemoryRefused"
        self.events.append((pod.uid, message))

    def prepare(self, name: str, *results: tuple[str, str, int, int]) -> None:
        share(self.node, name, list(results) or [("gpu", "gpu-00", 30, 8)])
        self.preparer.prepare(f"uid-{name}", "team", name)

    def holders(self) -> dict[str, list[Container]]:
        held = self.metering.holdings()
        assert held is not None
        return {uuid: [holding.container for holding in each] for uuid, each in held.items()}

    def rows(self, running: bool = True) -> list[tuple[Holder, Share, str]]:
        return [(row.holder, row.share, row.uid) for row in self.ledger.allocations(running)]

    def report(self, name: str, used: int, busy_ns: int, denied: int) -> None:
        """As the interposer writes into the account of a claim of one GPU."""
        path = Containers(self.node.state, self.node.root / "sys").state_path(key_of((f"uid-{name}", "gpu")))
        header, device = record(STATE_HEADER), record(STATE_DEVICE)
        data = bytearray(path.read_bytes())
        fields = [field for field, _ in STATE_DEVICE]
        told = list(device.unpack_from(data, header.size))
        for field, value in {"used_bytes": used, "busy_ns": busy_ns, "denied_limit": denied}.items():
            told[fields.index(field)] = value
        device.pack_into(data, header.size, *told)
        with path.open("r+b") as file:
            file.write(data)


@pytest.fixture
def metered(tmp_path: Path) -> Metered:
    return Metered(tmp_path)


def test_claim_is_its_containers_once_kubelet_lists_it(metered: Metered) -> None:
    metered.prepare("training")
    assert metered.metering.holdings() is None, "kubelet was not asked yet"
    metered.metering.look()
    assert metered.holders() == {uuid(0): [Container("team", "resourceclaim/training", "")]}
    metered.kubelet.lists("training", "a/main")
    metered.pods.runs("a", "uid-a")
    metered.metering.look()
    assert metered.holders() == {uuid(0): [MAIN]}
    assert metered.rows() == [(Holder(*MAIN), Share(uuid(0), 30, 8 * GIB), "uid-a")]


def test_released_claim_is_closed_in_the_ledger(metered: Metered) -> None:
    metered.prepare("training")
    metered.kubelet.lists("training", "a/main")
    metered.metering.look()
    metered.preparer.release("uid-training")
    metered.metering.look(ask=False)
    assert (metered.rows(), metered.holders()) == ([], {})
    assert len(metered.rows(running=False)) == 1


def test_silent_kubelet_has_taken_nothing_back(metered: Metered) -> None:
    metered.prepare("training")
    metered.kubelet.lists("training", "a/main")
    metered.metering.look()
    metered.kubelet.away = True
    metered.metering.look()
    assert metered.holders() == {uuid(0): [MAIN]}


def test_claims_are_counted_where_kubelet_never_answered(metered: Metered) -> None:
    metered.prepare("training")
    metered.kubelet.away = True
    metered.metering.look()
    assert metered.holders() == {uuid(0): [Container("team", "resourceclaim/training", "")]}


def test_change_is_told_once(metered: Metered) -> None:
    told: list[int] = []
    metered.metering.on_change = lambda: told.append(1)
    metered.prepare("training")
    for _ in range(3):
        metered.metering.look()
    assert len(told) == 1


def test_account_is_the_tenants_whose_claim_it_is(metered: Metered) -> None:
    metered.prepare("training")
    metered.kubelet.lists("training", "a/main")
    metered.report("training", 3 * GIB, 5_000, denied=2)
    metered.metering.look()
    tenancy = metered.metering.tenancy()
    (found,) = tenancy.accounts().items()
    # No process of the account lives: its memory is free again.
    assert found == (Account(MAIN, uuid(0)), (0, 8 * GIB, 5_000))
    assert tenancy.refusals() == {Refused(MAIN, uuid(0), "quota"): 2}
    metered.metering.look()
    assert tenancy.refusals() == {Refused(MAIN, uuid(0), "quota"): 2}, "counted once"


def test_refusals_are_told_to_the_pod_once_for_each_reason(metered: Metered) -> None:
    metered.prepare("training")
    metered.kubelet.lists("training", "a/main")
    metered.pods.runs("a", "uid-a")
    for denied in (1, 1, 5):
        metered.report("training", 3 * GIB, 0, denied)
        metered.metering.look()
    told = "container main: an allocation on GPU 0 was refused: over the container's limit of 8 GiB"
    assert set(metered.events) == {("uid-a", told)}


def test_refusals_of_a_claim_of_several_name_them_all(metered: Metered) -> None:
    metered.prepare("training")
    metered.kubelet.lists("training", "a/main", "a/side", "b/main")
    metered.pods.runs("a", "uid-a")
    metered.pods.runs("b", "uid-b")
    metered.report("training", 3 * GIB, 0, denied=1)
    metered.metering.look()
    told = "containers a/main, a/side, b/main: an allocation on GPU 0 was refused: over the containers' limit of 8 GiB"
    assert metered.events == [("uid-a", told), ("uid-b", told)]


def test_two_claims_of_one_pod_have_their_refusals_added(metered: Metered) -> None:
    metered.pods.runs("a", "uid-a")
    for name in ("first", "second"):
        metered.prepare(name, ("gpu", "gpu-00", 30, 8))
        metered.kubelet.lists(name, "a/main", "a/side")
    for first, second in ((3, 1), (4, 1), (4, 2)):
        metered.report("first", GIB, 0, first)
        metered.report("second", GIB, 0, second)
        metered.metering.look()
    assert metered.metering.tenancy().refusals() == {Refused(Container("team", "a", ""), uuid(0), "quota"): 6}


def test_refusals_are_counted_where_no_pod_is_known(metered: Metered) -> None:
    metered.prepare("training")
    metered.report("training", GIB, 0, denied=1)
    metered.metering.look()
    assert metered.metering.tenancy().refusals()
    assert metered.events == []


def test_claim_released_while_it_is_looked_at_is_no_fault(metered: Metered, monkeypatch: pytest.MonkeyPatch) -> None:
    metered.prepare("training")
    metered.report("training", GIB, 0, denied=1)
    monkeypatch.setattr(metered.shares, "uses", lambda claims: {})
    metered.metering.look()
    assert metered.metering.tenancy().refusals()
    assert metered.events == []


def owner(metered: Metered, uid: str, container: str = ID) -> Container | None:
    found = metered.metering.tenancy().owner
    assert found is not None
    return found(Place(uid, container))


def test_processes_are_found_by_pod_and_container(metered: Metered) -> None:
    metered.kubelet.lists("training", "a/main")
    metered.pods.runs("a", "uid-a", main=ID)
    metered.metering.look()
    assert owner(metered, "uid-a") == MAIN
    assert owner(metered, "uid-a", OTHER_ID) == Container("team", "a", "")
    assert owner(metered, "uid-b") is None
    metered.pods.runs("a", "uid-a", main=OTHER_ID)
    metered.metering.look()
    assert owner(metered, "uid-a", OTHER_ID) == MAIN


def test_pod_is_asked_for_when_it_is_new_or_too_little_is_known(metered: Metered) -> None:
    metered.kubelet.lists("training", "a/main", "b/main")
    metered.pods.runs("a", "uid-a", main=ID)
    for _ in range(3):
        metered.metering.look()
    assert metered.pods.asked == ["a", "b"], "one that is gone too"
    owner(metered, "uid-a", OTHER_ID)
    metered.metering.look()
    assert metered.pods.asked == ["a", "b", "a"]


def test_pod_that_came_again_by_its_name_is_found(metered: Metered) -> None:
    metered.kubelet.lists("training", "a/main")
    metered.pods.runs("a", "uid-a", main=ID)
    metered.metering.look()
    metered.pods.runs("a", "uid-again", main=OTHER_ID)
    assert owner(metered, "uid-again", OTHER_ID) is None
    metered.metering.look()
    assert owner(metered, "uid-again", OTHER_ID) == MAIN
    asked = len(metered.pods.asked)
    for _ in range(3):
        owner(metered, "stranger")
        metered.metering.look()
    assert len(metered.pods.asked) == asked + 1, "a stranger is looked for once"


def test_pod_is_asked_for_again_after_the_api_server_was_away(metered: Metered) -> None:
    metered.kubelet.lists("training", "a/main")
    metered.pods.runs("a", "uid-a", main=ID)
    metered.pods.away = True
    metered.metering.look()
    assert owner(metered, "uid-a") is None
    metered.pods.away = False
    metered.metering.look()
    assert owner(metered, "uid-a") == MAIN


def test_api_server_that_is_away_is_asked_once_a_look(metered: Metered) -> None:
    metered.kubelet.lists("training", *(f"{name}/main" for name in "abcdefgh"))
    metered.pods.away = True
    metered.metering.look()
    assert metered.pods.asked == ["a"]


def test_paddle_is_told_of_by_its_pod(metered: Metered) -> None:
    metered.prepare("training")
    metered.kubelet.lists("training", "a/main")
    metered.pods.runs("a", "uid-a", main=ID)
    metered.metering.look()
    held = metered.metering.holdings()
    assert held is not None
    assert held[uuid(0)][0].paddle
