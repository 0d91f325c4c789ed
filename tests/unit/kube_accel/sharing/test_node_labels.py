# SPDX-License-Identifier: Apache-2.0
"""What a node is labelled with, and whose labels are changed."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube_accel.model import Gpu, Inventory, MigDevice, Mode
from kube_accel.shared.offers import Replication
from kube_accel.sharing import whole
from kube_accel.sharing.mig import Strategy, layout
from kube_accel.sharing.node_labels import NFD_OWNED, OWNED, TIMESTAMP, Machine, Patch, clean, labels, plan
from kube_accel.sharing.replication import replicated
from unit.kube_accel.api_server import merge
from unit.kube_accel.plugin.fakes import inventory

WANTED = {"cuda-major-version": "13", "nvidia.com/gpu.product": "NVIDIA-H100", "nvidia.com/gpu.count": "2"}
MACHINE = Machine("DGX H100", (0x030200, 0x030200))


def of(
    node: Inventory, mode: Mode = Mode.PGPU, machine: Machine = MACHINE, name: str = whole.RESOURCE, times: int = 1
) -> dict[str, str]:
    """The labels where each GPU is offered so many times."""
    parts = [replace(part, id=f"{part.id}::{n}") for part in whole.layout(node)[whole.RESOURCE] for n in range(times)]
    return labels(node, mode, {name: parts}, machine)


def gpus(*changes: dict[str, object]) -> Inventory:
    node = inventory(len(changes))
    return replace(node, gpus=tuple(replace(gpu, **change) for gpu, change in zip(node.gpus, changes, strict=True)))


def test_a_node_without_gpus_has_none() -> None:
    assert labels(inventory(0), Mode.PGPU, {}, MACHINE) == {}


@pytest.mark.parametrize(
    ("capability", "family"),
    [((6, 1), "pascal"), ((7, 0), "volta"), ((7, 5), "turing"), ((8, 6), "ampere"), ((8, 9), "ada-lovelace"),
     ((9, 0), "hopper"), ((10, 3), "blackwell"), ((10, 7), "rubin"),
     ((11, 0), "blackwell"), ((12, 0), "blackwell"), ((13, 0), "rubin"), ((99, 0), "undefined")],
)  # fmt: skip
def test_the_family_is_that_of_the_compute_capability(capability: tuple[int, int], family: str) -> None:
    assert of(gpus({"compute_capability": capability}))["nvidia.com/gpu.family"] == family


def test_of_several_models_the_one_there_is_most_of_is_told() -> None:
    found = of(gpus({"model": "Tesla T4", "memory_bytes": 15 << 30}, {}, {}))
    assert found["nvidia.com/gpu.product"] == "NVIDIA-H100"
    assert (found["nvidia.com/gpu.count"], found["nvidia.com/gpu.memory"]) == ("2", str(80 << 10))
    assert of(gpus({"model": "Tesla T4"}, {}))["nvidia.com/gpu.product"] == "Tesla-T4"


def test_gpus_shared_in_time_are_told_as_the_peer_does() -> None:
    shared = of(inventory(2), times=4)
    assert shared["nvidia.com/gpu.product"] == "NVIDIA-H100-SHARED"
    assert shared["nvidia.com/gpu.replicas"] == "4"
    assert shared["nvidia.com/gpu.sharing-strategy"] == "time-slicing"
    assert shared["nvidia.com/gpu.count"] == "2"
    assert of(inventory(2), times=4, name="nvidia.com/gpu.shared")["nvidia.com/gpu.product"] == "NVIDIA-H100"
    assert of(gpus({"model": "X" * 80}), times=2)["nvidia.com/gpu.product"] == f"{'X' * 56}-SHARED"


def test_what_mig_and_the_modes_make_of_it() -> None:
    assert of(inventory(1))["nvidia.com/mig.capable"] == "false"
    cut = of(gpus({"mig_capable": True, "mig_enabled": True}, {"mig_capable": True, "mig_enabled": True}))
    assert (cut["nvidia.com/mig.capable"], cut["nvidia.com/gpu.replicas"]) == ("true", "0")
    assert of(gpus({"mig_enabled": True}, {}))["nvidia.com/gpu.replicas"] == "1"
    for mode, strategy, mps in (("pgpu", "none", "false"), ("vgpu", "vgpu", "false"), ("mps", "mps", "true")):
        found = labels(inventory(1), Mode(mode), {}, MACHINE)
        assert (found["nvidia.com/gpu.sharing-strategy"], found["nvidia.com/mps.capable"]) == (strategy, mps)


SMALL = MigDevice("MIG-0", 0, "1g.10gb", 9728 << 20, attributes=(("multiprocessors", 16), ("slices.gi", 1)))
MEDIA = replace(SMALL, uuid="MIG-1", slot=1, profile="1g.10gb+me")


def cut(strategy: Strategy, *devices: tuple[MigDevice, ...], model: str = "NVIDIA H100") -> dict[str, str]:
    """The labels of GPUs with these devices; a GPU without any is whole."""
    node = gpus(*({"model": model, "mig_enabled": bool(cut), "mig_devices": cut} for cut in devices))
    return labels(node, Mode.PGPU, layout(strategy)(node), MACHINE, strategy)


def test_mig_devices_are_told_by_profile() -> None:
    found = cut(Strategy.MIXED, (SMALL, MEDIA), (replace(SMALL, uuid="MIG-2"),), ())
    assert found["nvidia.com/mig.strategy"] == "mixed"
    assert {name: value for name, value in found.items() if name.startswith("nvidia.com/mig-1g.10gb.")} == {
        "nvidia.com/mig-1g.10gb.product": "NVIDIA-H100-MIG-1g.10gb",
        "nvidia.com/mig-1g.10gb.count": "2",
        "nvidia.com/mig-1g.10gb.replicas": "1",
        "nvidia.com/mig-1g.10gb.sharing-strategy": "none",
        "nvidia.com/mig-1g.10gb.memory": "9728",
        "nvidia.com/mig-1g.10gb.multiprocessors": "16",
        "nvidia.com/mig-1g.10gb.slices.gi": "1",
        "nvidia.com/mig-1g.10gb.me.product": "NVIDIA-H100-MIG-1g.10gb.me",
        "nvidia.com/mig-1g.10gb.me.count": "1",
        "nvidia.com/mig-1g.10gb.me.replicas": "1",
        "nvidia.com/mig-1g.10gb.me.sharing-strategy": "none",
        "nvidia.com/mig-1g.10gb.me.memory": "9728",
        "nvidia.com/mig-1g.10gb.me.multiprocessors": "16",
        "nvidia.com/mig-1g.10gb.me.slices.gi": "1",
    }
    assert found["nvidia.com/gpu.product"] == "NVIDIA-H100"


def test_equal_mig_devices_are_told_as_gpus() -> None:
    found = cut(Strategy.SINGLE, (SMALL, replace(SMALL, uuid="MIG-1")))
    assert found["nvidia.com/gpu.product"] == "NVIDIA-H100-MIG-1g.10gb"
    assert (found["nvidia.com/gpu.count"], found["nvidia.com/gpu.memory"]) == ("2", "9728")
    assert (found["nvidia.com/gpu.replicas"], found["nvidia.com/gpu.slices.gi"]) == ("1", "1")
    broken = cut(Strategy.SINGLE, (SMALL, MEDIA))
    assert (broken["nvidia.com/gpu.product"], broken["nvidia.com/gpu.count"]) == ("NVIDIA-H100-MIG-INVALID", "0")


def test_gpus_shared_by_mps_are_told_as_the_peer_does() -> None:
    parts = replicated(whole.layout(inventory(2)), [Replication(whole.RESOURCE, whole.RESOURCE, 4, by_mps=True)])
    found = labels(inventory(2), Mode.PGPU, parts, MACHINE)
    assert found["nvidia.com/gpu.product"] == "NVIDIA-H100-SHARED"
    assert (found["nvidia.com/gpu.replicas"], found["nvidia.com/gpu.sharing-strategy"]) == ("4", "mps")
    assert (found["nvidia.com/mps.capable"], of(inventory(2))["nvidia.com/mps.capable"]) == ("true", "false")


def test_mig_devices_shared_in_time_are_told_so() -> None:
    node = gpus({"mig_enabled": True, "mig_devices": (SMALL,)})
    (parts,) = layout(Strategy.MIXED)(node).values()
    found = labels(node, Mode.PGPU, {"nvidia.com/mig-1g.10gb": parts * 4}, MACHINE, Strategy.MIXED)
    assert found["nvidia.com/mig-1g.10gb.product"] == "NVIDIA-H100-MIG-1g.10gb-SHARED"
    assert found["nvidia.com/mig-1g.10gb.replicas"] == "4"
    assert found["nvidia.com/mig-1g.10gb.sharing-strategy"] == "time-slicing"


def test_without_a_strategy_mig_devices_are_not_told() -> None:
    assert not [name for name in cut(Strategy.NONE, (SMALL,)) if "mig-" in name or "strategy" in name.split(".")[-1:]]


def test_what_the_kernel_does_not_tell_is_unknown() -> None:
    assert of(inventory(2), machine=Machine())["nvidia.com/gpu.machine"] == "unknown"
    assert of(inventory(2), machine=Machine("", (0x030000,)))["nvidia.com/gpu.mode"] == "graphics"
    assert of(inventory(2), machine=Machine("", (0x030000, 0x030200)))["nvidia.com/gpu.mode"] == "unknown"
    assert of(replace(inventory(1), driver_version="610.43"))["nvidia.com/cuda.driver-version.revision"] == ""


def assert_taken(found: dict[str, str]) -> None:
    for name, value in found.items():
        assert re.fullmatch(r"(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?", value), (name, value)
        assert len(value) <= 63


@given(st.text(max_size=100), st.text(max_size=100), st.integers(1, 3))
def test_any_name_makes_values_that_kubernetes_takes(model: str, product: str, times: int) -> None:
    assert_taken(of(gpus({"model": model}), machine=Machine(product), times=times))
    assert clean(clean(model)) == clean(model)


@given(st.text("a- ", max_size=70), st.sampled_from(Strategy), st.sampled_from([(SMALL,), (SMALL, MEDIA)]))
def test_any_name_of_a_gpu_that_is_cut_does_too(model: str, strategy: Strategy, devices: tuple[MigDevice, ...]) -> None:
    assert_taken(cut(strategy, devices, model=model))


@pytest.mark.parametrize("words", [48, 49, 50, 51])
def test_a_name_too_long_for_its_ending_keeps_its_first_letters(words: int) -> None:
    model = f"{'A' * words} {'B' * 20}"
    for devices in ((SMALL,), (SMALL, MEDIA)):
        product = cut(Strategy.SINGLE, devices, model=model)["nvidia.com/gpu.product"]
        assert product.startswith("A" * 48)
        assert product.endswith("-MIG-1g.10gb" if len(devices) == 1 else "-MIG-INVALID")
        assert "--" not in product


def applied(patch: Patch, node: dict[str, dict[str, str]]) -> dict[str, dict[str, str]]:
    copy: dict[str, dict[str, str]] = {key: dict(value) for key, value in node.items()}
    merge(copy, {"labels": patch.labels, "annotations": patch.annotations})
    return copy


def planned(node: dict[str, dict[str, str]], wanted: dict[str, str], seconds: int = 7) -> Patch:
    return plan(node["labels"], node["annotations"], wanted, seconds)


def bare(**own: str) -> dict[str, dict[str, str]]:
    return {"labels": {"zone": "a"}, "annotations": {"theirs": "x", **own}}


def test_only_what_changed_is_written_and_the_time_with_it() -> None:
    first = planned(bare(), WANTED)
    assert first.labels == {**WANTED, TIMESTAMP: "7"}
    node = applied(first, bare())
    assert not planned(node, WANTED, 8)
    assert planned(node, {**WANTED, "nvidia.com/gpu.count": "1"}, 9) == Patch(
        {"nvidia.com/gpu.count": "1", TIMESTAMP: "9"}
    )
    less = {name: value for name, value in WANTED.items() if "count" not in name}
    assert planned(node, less, 9).labels == {"nvidia.com/gpu.count": None}
    assert applied(planned(node, {}), node) == bare()


def test_what_somebody_took_away_or_changed_of_ours_comes_back() -> None:
    node = applied(planned(bare(), WANTED), bare())
    node["labels"] |= {"nvidia.com/gpu.count": "99"}
    del node["labels"]["cuda-major-version"]
    assert planned(node, WANTED, 9).labels == {"nvidia.com/gpu.count": "2", "cuda-major-version": "13", TIMESTAMP: "9"}


def test_a_label_that_somebody_else_set_stays_and_is_told() -> None:
    node = {"labels": {"cuda-major-version": "12", "nvidia.com/gpu.count": "2"}, "annotations": {}}
    patch = planned(node, WANTED)
    assert patch.labels.keys() == {"nvidia.com/gpu.product", TIMESTAMP}
    assert patch.foreign == ("cuda-major-version",)
    after = applied(patch, node)
    assert applied(planned(after, {}), after) == node


@pytest.mark.parametrize("key", [NFD_OWNED, f"gpu.{NFD_OWNED}"])
def test_where_feature_discovery_runs_nvidias_labels_are_its_own(key: str) -> None:
    """One that ran first, and one that took over what was ours."""
    listed = "cpu-model.vendor_id,nvidia.com/gpu.product,nvidia.com/gfd.timestamp"
    for before in (bare(), applied(planned(bare(), WANTED), bare())):
        before["annotations"][key] = listed
        before["labels"] |= {"nvidia.com/gpu.product": "Theirs", TIMESTAMP: "1"}
        after = applied(planned(before, WANTED), before)
        assert after["annotations"][OWNED] == "cuda-major-version"
        assert after["labels"] == {
            "zone": "a",
            "cuda-major-version": "13",
            "nvidia.com/gpu.product": "Theirs",
            TIMESTAMP: "1",
        }
        assert not planned(after, WANTED)
        # It was removed, and nfd-master took its labels along.
        del after["annotations"][key], after["labels"]["nvidia.com/gpu.product"], after["labels"][TIMESTAMP]
        assert applied(planned(after, WANTED), after)["labels"] == {"zone": "a", **WANTED, TIMESTAMP: "7"}


def test_nfd_without_nvidias_labels_is_no_reason_to_hold_back() -> None:
    node = bare(**{NFD_OWNED: "cpu-model.vendor_id,pci-10de.present"})
    assert planned(node, WANTED).labels.keys() == {*WANTED, TIMESTAMP}


NAMES = st.sampled_from([*WANTED, "nvidia.com/mig.capable", TIMESTAMP, "zone"])
TEXTS = st.sampled_from(["", "1", "13"])


@given(
    st.dictionaries(NAMES, TEXTS),
    st.sets(NAMES),
    st.sets(NAMES),
    st.dictionaries(NAMES.filter(lambda name: name not in ("zone", TIMESTAMP)), TEXTS),
)
def test_one_patch_settles_it_and_never_touches_what_is_not_ours(
    there: dict[str, str], owned: set[str], nfd: set[str], wanted: dict[str, str]
) -> None:
    annotations = {OWNED: ",".join(sorted(owned)), NFD_OWNED: ",".join(sorted(nfd))}
    node = {"labels": there, "annotations": {key: text for key, text in annotations.items() if text}}
    after = applied(planned(node, wanted), node)
    assert not planned(after, wanted, 99)
    for name in there.keys() - owned | there.keys() & nfd:
        assert after["labels"][name] == there[name]
    assert after["annotations"].get(NFD_OWNED) == node["annotations"].get(NFD_OWNED)


def test_a_gpu_knows_whether_it_can_be_cut() -> None:
    assert not Gpu("GPU-0", 0, 0, "m", 1, (9, 0), "0000:00:00.0", None, False).mig_capable
