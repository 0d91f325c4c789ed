# SPDX-License-Identifier: Apache-2.0
"""What a run that switches its node begins with: how the node was, and what a killed run wrote down there."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils.benchmark.jobs import job_name
from ansible_collections.accel.kubernetes.plugins.module_utils.benchmark.layouts import MOST, Layout
from ansible_collections.accel.kubernetes.plugins.module_utils.benchmark.start import (
    Note,
    Seen,
    Start,
    read,
    start,
    write,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.gpu_plugins import node
from hypothesis import given
from hypothesis import strategies as st

ANNOTATION, CONFIG = "kube-accel.io/benchmark", "nvidia.com/device-plugin.config"
WHOLE, SHARED, SLICES = Layout("pgpu"), Layout("vgpu"), Layout("pgpu", "sliced")
SMALL, LARGE = Layout("pgpu", "", "small"), Layout("pgpu", "", "large")
NOTE = Note(WHOLE, (SHARED, SLICES))


def a_node(mode: str, config: str = "", note: object = None, **metadata: Any) -> dict[str, Any]:
    """How a node is that serves this mode, as the role has it."""
    labels = {"nvidia-device-enable": mode, "cgpu": str(mode == "cgpu").lower()} | ({CONFIG: config} if config else {})
    annotations = metadata.pop("annotations", {}) | ({} if note is None else {ANNOTATION: note})
    item = {"metadata": {"name": "gpu-1", "labels": labels, "annotations": annotations}, **metadata}
    options = {"gpu_plugins_mode": "pgpu", "gpu_plugins_config": "", "gpu_plugins_mig_label": False}
    return vars(node.node_state(node.Seen({"resources": [item]}, options)))


def begun(found: dict[str, Any], *layouts: Layout, mig_config: str = "", check: bool = False) -> Start:
    wanted = [{**vars(layout), "name": layout.name} for layout in layouts or (SHARED,)]
    return start(Seen("host-1", "gpu-1", found, "pgpu", mig_config, wanted, check))


def written(found: Start) -> Note:
    return read(found.remember["metadata"]["annotations"][ANNOTATION])


def test_a_run_writes_down_how_the_node_is_and_all_its_layouts() -> None:
    found = begun(a_node("pgpu", "plain"), SHARED, SLICES)
    assert (found.refusals, found.killed, found.says) == ([], False, "")
    assert found.before == {"mode": "pgpu", "config": "plain", "mig_config": "", "name": "pgpu/plain"}
    assert written(found) == Note(Layout("pgpu", "plain"), (SHARED, SLICES))
    assert found.forget == {"metadata": {"annotations": {ANNOTATION: None}}}
    kept = [(step["mode"], step["config"], step["name"], step["measured"]) for step in found.steps]
    assert kept == [("vgpu", "plain", "vgpu", True), ("pgpu", "sliced", "pgpu/sliced", True)]


def test_gpus_are_cut_as_before_on_the_way_to_a_mode_without_mig() -> None:
    found = begun(a_node("pgpu"), SMALL, LARGE, SHARED, SHARED, SMALL, WHOLE, SHARED, mig_config="whole")
    steps = [(step["mode"], step["mig_config"], step["measured"]) for step in found.steps]
    assert steps == [
        ("pgpu", "small", True),
        ("pgpu", "large", True),
        ("pgpu", "whole", False),
        ("vgpu", "", True),
        ("vgpu", "", True),
        ("pgpu", "small", True),
        ("pgpu", "whole", True),
        ("vgpu", "", True),
    ]


@pytest.mark.parametrize(
    ("mode", "config"),
    [("vgpu", ""), ("pgpu", "sliced"), ("pgpu", ""), ("vgpu", "sliced")],
)
def test_a_killed_run_is_taken_up_in_whichever_layout(mode: str, config: str) -> None:
    found = begun(a_node(mode, config, write(NOTE)), Layout("cgpu"))
    assert (found.refusals, found.killed, found.job) == ([], True, job_name("gpu-1"))
    assert found.before["name"] == "pgpu"
    assert "a benchmark was killed there. First its Job is removed, and the node is restored to pgpu" in found.says
    assert written(found) == Note(WHOLE, (Layout("cgpu"),))


def test_a_killed_run_that_had_cordoned_the_node_is_taken_up() -> None:
    left = a_node("pgpu", "", write(NOTE), annotations={"kube-accel.io/cordoned": "vgpu"}, spec={"unschedulable": True})
    assert begun(left).refusals == []


def test_a_dry_run_says_what_would_become_of_the_node() -> None:
    said = begun(a_node("vgpu", "", write(NOTE)), check=True).says
    assert "First its Job would be removed, and the node would be restored to pgpu" in said


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (a_node("vgpu"), "Node 'gpu-1' serves vgpu, and the inventory says pgpu"),
        (a_node(""), "serves no mode, and the inventory says pgpu"),
        (a_node("pgpu", annotations={"kube-accel.io/cordoned": "vgpu"}), "is cordoned by us, and the inventory"),
    ],
)
def test_a_node_that_is_not_as_the_inventory_says_is_refused(found: dict[str, Any], told: str) -> None:
    refused = begun(found)
    assert told in refused.refusals[0]
    assert "run switch_mode.yml with --limit host-1 first" in refused.refusals[0]
    assert (refused.steps, refused.remember) == ((), {})


@pytest.mark.parametrize(
    ("found", "told"),
    [
        (a_node("cgpu", "", write(NOTE)), "serves cgpu with no configuration, which is no layout of the benchmark"),
        (a_node("pgpu", "other", write(NOTE)), "serves pgpu with other configuration, which is no layout"),
        (a_node("pgpu", "", write(Note(SHARED, (WHOLE,)))), "was vgpu before a benchmark that was killed"),
        (a_node("pgpu", "", write(Note(SMALL, (WHOLE,)))), "was pgpu with another MIG configuration before"),
    ],
)
def test_a_note_that_node_or_inventory_gainsay_is_refused(found: dict[str, Any], told: str) -> None:
    (sentence,) = begun(found).refusals
    assert told in sentence
    assert "run switch_mode.yml with --limit host-1" in sentence
    assert f"kubectl annotate node gpu-1 {ANNOTATION}-" in sentence


def changed(**changes: object) -> str:
    return json.dumps({**json.loads(write(NOTE)), **changes})


def of(key: str, value: object) -> dict[str, Any]:
    return {**vars(WHOLE), key: value}


@pytest.mark.parametrize(
    "text",
    [
        "",
        "null",
        "[]",
        "{" * 9999,
        "{{ lookup('pipe', 'id') }}",
        '{"version": 1, "version": 1}',
        changed(version=2),
        changed(version=float("nan")),
        changed(before=None),
        changed(before=[]),
        changed(before={}),
        changed(before=of("mode", "whole")),
        changed(before=of("mode", ["pgpu"])),
        changed(before=of("mode", "pgpu\n")),
        changed(before=of("config", "{{ x }}")),
        changed(before=of("config", "-a")),
        changed(before=of("config", "a" * 64)),
        changed(before=of("config", None)),
        changed(before=of("mig_config", "a\x1b[2J")),
        changed(before=of("mig_config", "a" * 254)),
        changed(before={**vars(SHARED), "mig_config": "small"}),
        changed(layouts=None),
        changed(layouts=[]),
        changed(layouts="vgpu"),
        changed(layouts=["vgpu"]),
        changed(layouts=[vars(SHARED)] * (MOST + 1)),
        changed(layouts=[of("mode", "x")]),
        changed(more="x" * (64 << 10)),
    ],
)
def test_an_odd_note_is_refused_with_a_remedy(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        read(text)
    refused = begun(a_node("vgpu", "", text))
    (sentence,) = refused.refusals
    assert f"Node 'gpu-1': annotation {ANNOTATION} cannot be read: " in sentence
    assert "Run switch_mode.yml with --limit host-1" in sentence
    assert f"kubectl annotate node gpu-1 {ANNOTATION}-" in sentence
    assert sentence.isprintable()
    assert "{{" not in sentence
    assert (refused.before, refused.steps, refused.forget) == ({}, (), {})


@given(st.text() | st.integers() | st.none() | st.binary())
def test_whatever_is_written_there_is_read_or_refused(text: object) -> None:
    found = begun(a_node("vgpu", "", text))
    assert found.refusals


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=10,
)


@given(st.sampled_from(["version", "before", "layouts"]), JSON)
def test_whatever_a_key_holds_is_read_or_refused(key: str, value: object) -> None:
    found = begun(a_node("vgpu", "", changed(**{key: value})))
    assert found.refusals or found.before == {**vars(WHOLE), "name": "pgpu"}


NAMES = st.from_regex(r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?", fullmatch=True)
LAYOUTS = st.one_of(
    st.builds(Layout, st.sampled_from(["vgpu", "mps", "cgpu"]), NAMES),
    st.builds(Layout, st.just("pgpu"), NAMES, st.from_regex(r"[ -~]{0,40}", fullmatch=True)),
)


@given(st.builds(Note, LAYOUTS, st.lists(LAYOUTS, min_size=1, max_size=MOST).map(tuple)))
def test_a_note_is_read_as_it_was_written(note: Note) -> None:
    assert read(write(note)) == note


def test_what_could_not_be_read_again_is_not_written() -> None:
    refused = begun(a_node("pgpu"), Layout("pgpu", "", "gro\N{LATIN SMALL LETTER SHARP S}"), mig_config="whole")
    assert "how it is cannot be written down there: mig_config: absent or malformed" in refused.refusals[0]
