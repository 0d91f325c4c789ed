# SPDX-License-Identifier: Apache-2.0
from kube_accel.model import Mode
from kube_accel.plugin.annotation import render, whole_holdings
from kube_accel.plugin.holdings import Holder
from kube_accel.sharing.inventory_annotation import Holding, decode
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


def test_unknown_holdings_are_not_empty_ones() -> None:
    text = render(ready(1), None, Mode.PGPU)
    assert text is not None
    assert decode(text).held is None


def test_nothing_is_said_before_gpus_were_read() -> None:
    assert render(STARTING, {}, Mode.PGPU) is None


def test_the_same_state_gives_the_same_text() -> None:
    one, other = {uuid(0): (), uuid(3): ()}, {uuid(3): (), uuid(0): ()}
    assert render(ready(8), one, Mode.PGPU) == render(ready(8), other, Mode.PGPU)
