# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube_accel.model import Ancestor, Gpu, GpuHealth, GpuLink, Health, Inventory, Mode, UnreadableGpu
from kube_accel.sharing.inventory_annotation import Holding, NodeInventory, decode, encode
from unit.kube_accel.plugin.fakes import HEALTHY, LOST, inventory, uuid

GIB = 1 << 30
NODE = NodeInventory(
    Mode.VGPU,
    inventory(2),
    {uuid(0): HEALTHY, uuid(1): LOST},
    {uuid(0): (Holding("team", "train", "main", 30, 8 * GIB), Holding("team", "whole", "main", 100, 80 * GIB))},
    256 << 20,
)
GPU: dict[str, Any] = {
    "model": "NVIDIA H100",
    "memoryBytes": 80 * GIB,
    "computeCapability": [9, 0],
    "mig": False,
}
DOCUMENT: dict[str, Any] = {
    "version": 1,
    "mode": "vgpu",
    "driver": "580.159.04",
    "cuda": [13, 0],
    "gpus": [
        {
            "uuid": uuid(0),
            "index": 0,
            "minor": 1,
            "pciAddress": "0000:10:00.0",
            **GPU,
            "numaNode": 0,
            "health": "healthy",
            "reason": "",
            "held": [
                {"namespace": "team", "pod": "train", "container": "main", "cores": 30, "memoryBytes": 8 * GIB},
                {"namespace": "team", "pod": "whole", "container": "main"},
            ],
        },
        {
            "uuid": uuid(1),
            "index": 1,
            "minor": 0,
            "pciAddress": "0000:11:00.0",
            **GPU,
            "numaNode": 1,
            "health": "unhealthy",
            "reason": "the GPU is lost",
            "held": [],
        },
    ],
    "links": [[0, 1, "system", 18]],
    "memoryUnit": 256 << 20,
}


def test_what_cannot_be_read_of_gpus_is_told_where_there_is_such() -> None:
    dark = (UnreadableGpu(2, None, "nvmlX: odd"), UnreadableGpu(3, "GPU-3", "nvmlY: odd\n"))
    health = {uuid(0): replace(HEALTHY, faults=("nvmlZ: odd",) * 9), uuid(1): LOST}
    node = replace(NODE, inventory=replace(NODE.inventory, unreadable=dark), health=health)
    told = json.loads(encode(node))
    assert told["unreadable"] == [
        {"index": 2, "uuid": None, "reason": "nvmlX: odd"},
        {"index": 3, "uuid": "GPU-3", "reason": "nvmlY: odd "},
    ]
    assert ["faults" in gpu for gpu in told["gpus"]] == [True, False]
    found = decode(encode(node))
    assert found.health[uuid(0)].faults == ("nvmlZ: odd",) * 8
    assert [(gpu.index, gpu.uuid) for gpu in found.inventory.unreadable] == [(2, None), (3, "GPU-3")]


@pytest.mark.parametrize("odd", [{"unreadable": [{}]}, {"unreadable": 1}, {"unreadable": [{"index": "0"}]}])
def test_what_was_not_written_by_a_plugin_is_refused_there_too(odd: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match=r"unreadable|index"):
        decode(json.dumps(DOCUMENT | odd))


def test_the_text() -> None:
    assert json.loads(encode(NODE)) == DOCUMENT
    assert NODE.held is not None
    assert decode(encode(NODE)) == replace(NODE, held={uuid(1): (), **NODE.held})


def test_holdings_nobody_told_are_unknown_not_none() -> None:
    unknown = replace(NODE, held=None)
    assert "held" not in json.loads(encode(unknown))["gpus"][0]
    assert decode(encode(unknown)) == unknown


def test_a_node_of_whole_gpus_has_no_memory_unit() -> None:
    whole = replace(NODE, mode=Mode.PGPU, memory_unit=None)
    assert "memoryUnit" not in json.loads(encode(whole))
    assert decode(encode(whole)).memory_unit is None


def test_only_a_gpu_that_is_not_handed_out_as_a_whole_says_so() -> None:
    cut = replace(NODE, mode=Mode.PGPU, divided=frozenset([uuid(1)]))
    gpus = json.loads(encode(cut))["gpus"]
    assert [gpu.get("whole") for gpu in gpus] == [None, False]
    assert decode(encode(cut)).divided == {uuid(1)}


def test_health_nobody_told_is_unknown() -> None:
    assert decode(encode(replace(NODE, health={}))).health[uuid(0)].health is Health.UNKNOWN


def test_what_a_driver_says_over_several_lines_is_read_as_one() -> None:
    babble = replace(NODE, health={uuid(0): GpuHealth(Health.UNHEALTHY, "XID 79\n\x00fell off" + "!" * 600)})
    reason = decode(encode(babble)).health[uuid(0)].reason
    assert reason.startswith("XID 79 fell off!!!")
    assert len(reason) == 512


def test_later_versions_may_add_keys() -> None:
    later = DOCUMENT | {"extra": 1, "gpus": [gpu | {"extra": {}} for gpu in DOCUMENT["gpus"]]}
    assert decode(json.dumps(later)) == decode(json.dumps(DOCUMENT))


tokens = st.from_regex(r"[A-Za-z0-9_.:-]{1,20}", fullmatch=True)
names = st.from_regex(r"[a-z0-9]([a-z0-9.-]{0,20}[a-z0-9])?", fullmatch=True)
lines = st.text(st.characters(min_codepoint=32, exclude_categories=["Cs"], exclude_characters="\x7f"), max_size=30)
numbers = st.integers(0, 2**16)
versions = st.tuples(numbers, numbers)
gpu_lists = st.lists(
    st.builds(
        Gpu,
        tokens,
        numbers,
        numbers,
        lines,
        st.integers(1, 2**40),
        versions,
        tokens,
        st.none() | numbers,
        st.booleans(),
    ),
    max_size=6,
    unique_by=lambda gpu: gpu.uuid,
)


@st.composite
def nodes(draw: st.DrawFn) -> NodeInventory:
    gpus = draw(gpu_lists)
    pairs = [frozenset((a.uuid, b.uuid)) for a in gpus for b in gpus if a is not b]
    links = st.builds(GpuLink, st.sampled_from(Ancestor), st.integers(0, 20))
    holding = st.builds(Holding, names, names, names, st.integers(0, 99), st.integers(0, 2**40))
    held = {gpu.uuid: tuple(sorted(draw(st.lists(holding, max_size=3)))) for gpu in gpus}
    return NodeInventory(
        draw(st.sampled_from(Mode)),
        Inventory(
            draw(tokens),
            draw(versions),
            tuple(gpus),
            draw(st.dictionaries(st.sampled_from(pairs), links)) if pairs else {},
        ),
        {gpu.uuid: GpuHealth(draw(st.sampled_from(Health)), draw(lines)) for gpu in gpus},
        draw(st.sampled_from([held, None])) if gpus else None,
        draw(st.none() | st.integers(1, 2**40)),
    )


@given(nodes())
def test_what_was_written_is_read(node: NodeInventory) -> None:
    assert decode(encode(node)) == node


def without(key: str) -> dict[str, Any]:
    return {**DOCUMENT, "gpus": [{k: v for k, v in DOCUMENT["gpus"][0].items() if k != key}], "links": []}


def with_gpu(**changed: object) -> dict[str, Any]:
    return DOCUMENT | {"gpus": [DOCUMENT["gpus"][0] | changed], "links": []}


@pytest.mark.attack
@pytest.mark.parametrize(
    "document",
    [
        *(
            pytest.param(without(key), id=f"without {key}")
            for key in sorted({*DOCUMENT["gpus"][0]} - {"held", "numaNode"})
        ),
        *(
            pytest.param({k: v for k, v in DOCUMENT.items() if k != key}, id=f"without {key}")
            for key in sorted({*DOCUMENT} - {"memoryUnit"})
        ),
        pytest.param(DOCUMENT | {"version": 2}, id="another version"),
        pytest.param(DOCUMENT | {"mode": "dgpu"}, id="another mode"),
        pytest.param(DOCUMENT | {"memoryUnit": 0}, id="no unit"),
        pytest.param(DOCUMENT | {"gpus": [1]}, id="gpu is a number"),
        pytest.param(DOCUMENT | {"gpus": DOCUMENT["gpus"][:1] * 2}, id="the same GPU twice"),
        pytest.param(DOCUMENT | {"gpus": [{}] * 65}, id="65 GPUs"),
        pytest.param(DOCUMENT | {"links": [[0, 0, "system", 1]]}, id="link to itself"),
        pytest.param(DOCUMENT | {"links": [[0, 2, "system", 1]]}, id="link to nowhere"),
        pytest.param(DOCUMENT | {"links": [[0, True, "system", 18]]}, id="link like one that was read"),
        pytest.param(DOCUMENT | {"links": [[0, 1, "friend", 1]]}, id="unknown ancestor"),
        pytest.param(DOCUMENT | {"links": [[0, 1]]}, id="half a link"),
        pytest.param(with_gpu(health="fine"), id="unknown health"),
        pytest.param(with_gpu(memoryBytes=0), id="no memory"),
        pytest.param(with_gpu(computeCapability=[9]), id="half a version"),
        pytest.param(with_gpu(mig=0), id="mig as a number"),
        pytest.param(with_gpu(held=[{"namespace": "a", "pod": "b", "container": "c", "cores": 3}]), id="cores alone"),
        pytest.param(with_gpu(held={}), id="held is an object"),
    ],
)
def test_a_forged_or_broken_annotation_is_a_value_error(document: dict[str, Any]) -> None:
    # What was read before is no excuse.
    decode(json.dumps(DOCUMENT))
    with pytest.raises(ValueError):  # noqa: PT011 - any text will do, any other exception will not
        decode(json.dumps(document))


json_values: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@given(
    st.dictionaries(st.sampled_from([*DOCUMENT, "gpu"]), json_values, max_size=2),
    st.dictionaries(st.sampled_from([*DOCUMENT["gpus"][0]]), json_values, max_size=2),
    st.text(max_size=20),
)
def test_no_text_does_worse(document: dict[str, Any], gpu: dict[str, Any], text: str) -> None:
    for candidate in (json.dumps(DOCUMENT | document), json.dumps(with_gpu(**gpu)), text):
        try:
            found = decode(candidate)
        except ValueError:
            continue
        assert decode(encode(found)) == found
