# SPDX-License-Identifier: Apache-2.0
from kube_accel.model import Mode
from kube_accel.plugin.kubelet.holdings import Holder
from kube_accel.plugin.node.annotation import render, whole_holdings
from kube_accel.shared.inventory_annotation import read_inventory
from kube_accel.shared.offers import Replication
from kube_accel.sharing.inventory_annotation import Holding, decode
from kube_accel.sharing.replication import replicated
from kube_accel.sharing.whole import RESOURCE, Part, layout
from unit.kube_accel.plugin.fakes import LOST, STARTING, inventory, ready, uuid


def test_it_tells_what_the_node_has_and_holds() -> None:
    snapshot = ready(2, {1: LOST})
    parts = layout(inventory(2))[RESOURCE]
    held = whole_holdings({uuid(0): (Holder("team", "train", "main"),)}, inventory(2), parts)
    text = render(snapshot, held, Mode.PGPU)
    assert text is not None
    node = decode(text)
    assert node.mode is Mode.PGPU
    assert node.inventory == snapshot.inventory
    assert node.health == snapshot.health
    assert node.held == {uuid(0): (Holding("team", "train", "main", 100, 80 << 30),), uuid(1): ()}


def test_a_part_counts_for_the_memory_it_has() -> None:
    known = inventory(1)
    parts = [Part(f"MIG-{i}", known.gpus[0], f"MIG-{i}", (), f"0:{i}", 10 << 30) for i in range(3)]
    train, serve = Holder("team", "train", "main"), Holder("team", "serve", "main")
    held = whole_holdings({"MIG-0": (train,), "MIG-1": (train,), "MIG-2": (serve,)}, known, parts)
    assert held == {
        uuid(0): (Holding("team", "serve", "main", 12, 10 << 30), Holding("team", "train", "main", 25, 20 << 30))
    }
    text = render(ready(1), held, Mode.PGPU)
    assert text is not None
    assert decode(text).held == held


def test_replicas_count_for_their_part_of_what_they_share() -> None:
    known = inventory(2)
    parts = replicated(layout(known), [Replication(RESOURCE, RESOURCE, 4)])[RESOURCE]
    pods = [Holder("team", f"p{number}", "main") for number in range(3)]
    ids = [f"{uuid(0)}::{number}" for number in range(4)]
    held = whole_holdings({ids[0]: (pods[0],), ids[3]: (pods[1],)}, known, parts)
    text = render(ready(2), held, Mode.PGPU)
    assert text is not None
    [first, second] = read_inventory(text).gpus
    assert (first.allocated_bytes, first.allocated_cores, second.allocated_bytes) == (40 << 30, 50, 0)
    three = whole_holdings(dict(zip(ids, ((pods[2],), (pods[2],), (pods[2],), (pods[0],)), strict=True)), known, parts)
    assert [(one.pod, one.cores, one.memory_bytes >> 30) for one in three[uuid(0)]] == [("p0", 25, 20), ("p2", 75, 60)]
    all_of_it = whole_holdings(dict.fromkeys(ids, (pods[0],)), known, parts)
    assert all_of_it[uuid(0)] == (Holding("team", "p0", "main", 100, 80 << 30),)


def test_replicas_of_a_mig_device_share_its_memory() -> None:
    known = inventory(1)
    parts = [Part(f"MIG-0::{i}", known.gpus[0], "MIG-0", (), "0:0", 10 << 30) for i in range(2)]
    held = whole_holdings({"MIG-0::1": (Holder("team", "p", "main"),)}, known, parts)
    assert held == {uuid(0): (Holding("team", "p", "main", 6, 5 << 30),)}


def test_unknown_holdings_are_not_empty_ones() -> None:
    text = render(ready(1), None, Mode.PGPU)
    assert text is not None
    assert decode(text).held is None


def test_nothing_is_said_before_gpus_were_read() -> None:
    assert render(STARTING, {}, Mode.PGPU) is None


def test_the_same_state_gives_the_same_text() -> None:
    one, other = {uuid(0): (), uuid(3): ()}, {uuid(3): (), uuid(0): ()}
    assert render(ready(8), one, Mode.PGPU) == render(ready(8), other, Mode.PGPU)
