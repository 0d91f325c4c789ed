# SPDX-License-Identifier: Apache-2.0
"""Which layouts a node has in turn while it is measured, and what is refused before the first."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils.benchmark.layouts import Layout, Turns, turns
from hypothesis import given
from hypothesis import strategies as st

HOSTVARS: dict[str, dict[str, Any]] = {
    "gpu-1": {"gpu_plugins_configs": {"shared": {}}, "gpu_plugins_mig_config": "all-disabled"},
    "host-2": {"gpu_plugins_node_name": "gpu-2"},
}
GROUPS = {"gpu_nodes": ["gpu-1", "host-2"]}


def planned(wanted: object, node: str = "gpu-1") -> Turns:
    return turns(wanted, node, HOSTVARS, GROUPS)


@pytest.mark.parametrize("wanted", ["", [], None, " , "])
def test_without_layouts_the_node_stays_as_it_is(wanted: object) -> None:
    assert planned(wanted) == Turns()


@pytest.mark.parametrize("wanted", ["pgpu, pgpu/shared,vgpu", ["pgpu", "pgpu/shared", {"mode": "vgpu"}]])
def test_layouts_are_a_text_or_a_list(wanted: object) -> None:
    found = planned(wanted)
    assert found == Turns((Layout("pgpu"), Layout("pgpu", "shared"), Layout("vgpu")), "gpu-1")
    assert [layout["name"] for layout in found.document()["layouts"]] == ["pgpu", "pgpu/shared", "vgpu"]


def test_host_is_that_of_the_node() -> None:
    assert planned("mps", "gpu-2").host == "host-2"


def test_mig_is_a_layout_where_what_comes_after_is_said() -> None:
    cut = [{"mode": "pgpu", "mig_config": "all-1g.5gb"}]
    assert planned(cut).layouts == (Layout("pgpu", "", "all-1g.5gb"),)
    assert "set gpu_plugins_mig_config of the host" in planned(cut, "gpu-2").refusals[0]


@pytest.mark.parametrize(
    ("wanted", "node", "told"),
    [
        (7, "gpu-1", "benchmark_layouts is 7; write a list"),
        ("whole", "gpu-1", "benchmark_layouts has 'whole' with mode 'whole'; a layout is one of pgpu, vgpu, mps, cgpu"),
        ([{"mode": "pgpu", "x": 1}], "gpu-1", "with key x"),
        ([None], "gpu-1", "benchmark_layouts has None with mode ''"),
        ("vgpu/shared", "gpu-1", "mode vgpu has no configurations, only pgpu has"),
        (
            "pgpu/other",
            "gpu-1",
            "benchmark_layouts has pgpu/other, and gpu_plugins_configs has shared; name one of them",
        ),
        ("pgpu/other", "gpu-2", "gpu_plugins_configs has none"),
        ("pgpu", "gpu-9", "no host of the group gpu_nodes is that node"),
    ],
)
def test_what_cannot_be_is_refused_in_one_sentence(wanted: object, node: str, told: str) -> None:
    (sentence,) = planned(wanted, node).refusals
    assert told in sentence


@given(st.lists(st.one_of(st.text(), st.none(), st.integers(), st.dictionaries(st.text(), st.text()))))
def test_whatever_is_wanted_is_planned_or_refused(wanted: list[Any]) -> None:
    found = planned(wanted)
    assert len(found.layouts) == len(wanted) or found.refusals


def test_more_layouts_than_a_run_may_have_are_refused() -> None:
    (sentence,) = planned(["pgpu"] * 65).refusals
    assert sentence == "benchmark_layouts has 65 layouts; name at most 64 in one run"
