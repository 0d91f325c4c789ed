# SPDX-License-Identifier: Apache-2.0
"""What is written so that stored slices become the wanted ones."""

from __future__ import annotations

from typing import Any

import pytest

from kube_accel.dra.changes import Changes, changes, dropped, same

TAINT = {"key": "sick", "effect": "NoSchedule"}


def stored(place: int, *names: str, generation: int = 3, count: int = 1, **device: Any) -> dict[str, Any]:
    pool = {"name": "node-1/kube-accel", "generation": generation, "resourceSliceCount": count}
    devices = [{"name": name, **device} for name in names]
    metadata = {"name": f"{place:02x}-gpu.kube-accel.io-node-1-abcde", "uid": "u", "resourceVersion": "7"}
    return {"metadata": metadata, "spec": {"driver": "gpu.kube-accel.io", "pool": pool, "devices": devices}}


def found(slices: list[dict[str, Any]], *wanted: tuple[str, ...]) -> Changes:
    devices = [tuple({"name": name} for name in each) for each in wanted]
    return changes(slices, devices, devices, "node-1")


def generations(needed: Changes) -> dict[int, tuple[str, int]]:
    """How each place is written, and with which generation."""
    return {
        place: ("put" if "name" in body["metadata"] else "post", body["spec"]["pool"]["generation"])
        for place, body in needed.writes.items()
    }


def test_nothing_stored_is_created_with_the_first_generation() -> None:
    needed = found([], ("a",), ("b",))
    assert generations(needed) == {0: ("post", 1), 1: ("post", 1)}
    assert needed.writes[1]["metadata"] == {"generateName": "01-gpu.kube-accel.io-node-1-"}
    assert needed.writes[1]["spec"]["nodeName"] == "node-1"
    assert needed.writes[1]["spec"]["pool"]["resourceSliceCount"] == 2


def test_what_is_stored_already_is_not_written() -> None:
    assert found([stored(0, "a")], ("a",)) == Changes((), {})


def test_one_changed_slice_keeps_the_generation() -> None:
    slices = [stored(0, "a", count=2), stored(1, "b", count=2)]
    assert generations(found(slices, ("a",), ("c",))) == {1: ("put", 3)}


def test_every_written_object_says_its_type() -> None:
    """An item of a list has none."""
    needed = found([stored(0, "a", count=2)], ("x",), ("b",))
    types = {(body["apiVersion"], body["kind"]) for body in needed.writes.values()}
    assert (len(needed.writes), types) == (2, {("resource.k8s.io/v1", "ResourceSlice")})


def test_two_changed_slices_give_all_the_next_generation() -> None:
    slices = [stored(place, name, count=3) for place, name in enumerate("abc")]
    assert generations(found(slices, ("x",), ("y",), ("c",))) == dict.fromkeys(range(3), ("put", 4))


def test_missing_slice_gives_all_the_next_generation() -> None:
    assert generations(found([stored(0, "a", count=2)], ("a",), ("b",))) == {0: ("put", 4), 1: ("post", 4)}


@pytest.mark.parametrize(
    "other", [stored(0, "old", generation=2), stored(7, "x"), {**stored(1, "x"), "metadata": {"name": "by-hand"}}]
)
def test_slice_of_no_use_is_deleted(other: dict[str, Any]) -> None:
    needed = found([stored(0, "a"), other], ("a",))
    assert needed == Changes((other,), {})


def test_other_order_of_devices_is_a_change() -> None:
    assert generations(found([stored(0, "a", "b")], ("b", "a"))) == {0: ("put", 3)}


def test_taint_keeps_its_time() -> None:
    old = stored(0, "a", taints=[{**TAINT, "timeAdded": "then"}])
    wanted = [({"name": "a", "taints": [TAINT]},)]
    assert changes([old], wanted, wanted, "node-1") == Changes((), {})
    more = [({"name": "a", "taints": [TAINT]}, {"name": "b", "taints": [TAINT]})]
    devices = changes([old], more, more, "node-1").writes[0]["spec"]["devices"]
    assert [taint.get("timeAdded") for device in devices for taint in device["taints"]] == ["then", None]


def test_what_the_server_made_of_it_is_no_change() -> None:
    wanted = [({"name": "a", "taints": [TAINT]},)]
    assert changes([stored(0, "a")], wanted, [({"name": "a"},)], "node-1") == Changes((), {})


def test_dropped_fields_are_named() -> None:
    sent = {"name": "a", "taints": [TAINT], "allowMultipleAllocations": True}
    assert dropped([sent], [{"name": "a", "taints": [{**TAINT, "timeAdded": "now"}]}]) == {"allowMultipleAllocations"}
    assert dropped([sent], [{"name": "a"}]) == {"taints", "allowMultipleAllocations"}
    assert dropped([sent], []) == {"devices"}
    assert same([sent], [{**sent, "taints": [{**TAINT, "timeAdded": "now"}]}])
