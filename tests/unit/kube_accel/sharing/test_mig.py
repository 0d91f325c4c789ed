# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

from dataclasses import replace

import pytest

from kube_accel.model import Inventory, MigDevice
from kube_accel.shared.offers import left_out, mig_problem
from kube_accel.sharing.mig import Strategy, layout
from kube_accel.sharing.whole import Part, grant
from unit.kube_accel.plugin.fakes import inventory, uuid

GIB = 1 << 30


def device(gpu: int, slot: int, profile: str) -> MigDevice:
    first = 3 + gpu * 135 + slot * 9
    return MigDevice(f"MIG-{gpu}-{slot}", slot, profile, 10 * GIB, (first, first + 1))


def cut(*profiles: list[str] | None) -> Inventory:
    """GPUs with these MIG devices; None for one that is not in MIG mode."""
    known = inventory(len(profiles))
    gpus = tuple(
        gpu
        if wanted is None
        else replace(
            gpu,
            mig_enabled=True,
            mig_devices=tuple(device(gpu.index, slot, profile) for slot, profile in enumerate(wanted)),
        )
        for gpu, wanted in zip(known.gpus, profiles, strict=True)
    )
    return replace(known, gpus=gpus)


def ids(strategy: Strategy, known: Inventory) -> dict[str, list[str]]:
    return {name: [part.id for part in parts] for name, parts in layout(strategy)(known).items()}


def test_none_offers_every_gpu_as_it_is() -> None:
    assert ids(Strategy.NONE, cut(["1g.10gb"], None, [])) == {"nvidia.com/gpu": [uuid(0), uuid(1), uuid(2)]}


def test_mixed_names_the_profile() -> None:
    assert ids(Strategy.MIXED, cut(["3g.40gb", "1g.10gb+me", "1g.10gb", "1c.2g.20gb"], None, ["1g.10gb"], [])) == {
        "nvidia.com/mig-3g.40gb": ["MIG-0-0"],
        "nvidia.com/mig-1g.10gb.me": ["MIG-0-1"],
        "nvidia.com/mig-1g.10gb": ["MIG-0-2", "MIG-2-0"],
        "nvidia.com/mig-1c.2g.20gb": ["MIG-0-3"],
        "nvidia.com/gpu": [uuid(1)],
    }


def test_single_offers_equal_devices_as_gpus() -> None:
    known = cut(["1g.10gb", "1g.10gb"], ["1g.10gb"])
    assert ids(Strategy.SINGLE, known) == {"nvidia.com/gpu": ["MIG-0-0", "MIG-0-1", "MIG-1-0"]}
    assert mig_problem(Strategy.SINGLE, known.gpus) == ""


def test_single_without_mig_mode_offers_gpus() -> None:
    assert ids(Strategy.SINGLE, cut(None, None)) == {"nvidia.com/gpu": [uuid(0), uuid(1)]}


@pytest.mark.parametrize(
    ("known", "words"),
    [
        (cut([], []), ["no GPU has MIG devices"]),
        (cut([], None), ["no GPU has MIG devices"]),
        (cut(["1g.10gb"], ["2g.20gb"]), ["1g.10gb, 2g.20gb"]),
    ],
)
def test_single_offers_nothing_of_a_node_cut_in_several_ways(known: Inventory, words: list[str]) -> None:
    assert ids(Strategy.SINGLE, known) == {}
    assert all(word in mig_problem(Strategy.SINGLE, known.gpus) for word in [*words, "mixed"])
    assert mig_problem(Strategy.NONE, known.gpus) == ""


def test_mixed_explains_a_node_with_only_mig_gpus_and_no_devices() -> None:
    known = cut([], [])
    assert ids(Strategy.MIXED, known) == {}
    assert all(
        word in mig_problem(Strategy.MIXED, known.gpus) for word in ("every GPU", "none has MIG devices", "create")
    )
    assert left_out(Strategy.MIXED, known.gpus) == {}


def test_mixed_says_which_gpu_has_no_devices() -> None:
    known = cut(["1g.10gb"], [], None)
    assert mig_problem(Strategy.MIXED, known.gpus) == ""
    ((gpu, reason),) = left_out(Strategy.MIXED, known.gpus).items()
    assert gpu == uuid(1)
    assert all(word in reason for word in ("GPU 1", uuid(1), "has no MIG devices", "create", "out of MIG mode"))


@pytest.mark.parametrize(("odd", "words"), [(None, "not in MIG mode"), ([], "no MIG devices")])
def test_single_leaves_out_a_gpu_that_a_reset_emptied(odd: list[str] | None, words: str) -> None:
    known = cut(["1g.10gb", "1g.10gb"], odd, ["1g.10gb"])
    assert ids(Strategy.SINGLE, known) == {"nvidia.com/gpu": ["MIG-0-0", "MIG-0-1", "MIG-2-0"]}
    assert mig_problem(Strategy.SINGLE, known.gpus) == ""
    ((gpu, reason),) = left_out(Strategy.SINGLE, known.gpus).items()
    assert gpu == uuid(1)
    assert all(word in reason for word in ("GPU 1", words, "mixed"))
    assert left_out(Strategy.NONE, known.gpus) == {}


def test_a_container_gets_its_devices_and_no_more() -> None:
    known = cut(["1g.10gb", "1g.10gb"])
    first: Part = layout(Strategy.MIXED)(known)["nvidia.com/mig-1g.10gb"][1]
    assert (first.index, first.memory_bytes) == ("0:1", 10 * GIB)
    granted = grant([first], lambda name: True)
    assert granted.environment == {"NVIDIA_VISIBLE_DEVICES": "MIG-0-1"}
    assert [name for name in granted.device_nodes if name.startswith("nvidia-caps")] == [
        "nvidia-caps/nvidia-cap12",
        "nvidia-caps/nvidia-cap13",
    ]
    assert f"nvidia{known.gpus[0].minor}" in granted.device_nodes
