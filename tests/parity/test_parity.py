# SPDX-License-Identifier: Apache-2.0
"""We offer and hand out what NVIDIA's plugin does, but for what ``docs/reference/parity.md`` justifies."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from parity.compare import (
    CASES,
    LABELLER,
    Answer,
    Case,
    Device,
    Difference,
    Offer,
    binary,
    compare,
    compare_labels,
    differences,
    label_differences,
)

DOCUMENT = Path(__file__).parents[2] / "docs/reference/parity.md"
TABLE = "Differences that the comparison finds"


def justified() -> dict[str, set[str]]:
    """By case, the kinds of differences that the document's table has a reason for."""
    section = DOCUMENT.read_text().partition(f"\n## {TABLE}\n")[2].partition("\n#")[0]
    rows = re.findall(r"^\| `([^`]+)` \| ([^|]+) \| .+ \|$", section, re.MULTILINE)
    names = {case.name for case in CASES}
    found: dict[str, set[str]] = {name: set() for name in names}
    for kind, where in rows:
        listed = names if where.strip() == "all" else {name.strip() for name in where.split(",")}
        assert listed <= names, f"{kind}: no such case: {listed - names}"
        for name in listed:
            found[name].add(kind)
    return found


def test_each_row_of_the_page_names_cases() -> None:
    assert {"mounts", "PreStartContainer"} <= justified()["whole GPUs"]
    assert "refusal" in justified()["one each"]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_difference_is_justified_and_none_is_made_up(case: Case) -> None:
    if not binary().is_file():
        pytest.skip(f"NVIDIA's plugin is not here: no {binary()}; KUBEBUILDER_ASSETS names another directory")
    found = compare(case, binary())
    expected = {kind for kind in justified()[case.name] if not kind.startswith("label ")}
    assert {each.kind for each in found} == expected, found


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_every_label_that_differs_is_justified(case: Case) -> None:
    if not binary(LABELLER).is_file():
        pytest.skip(f"NVIDIA's feature discovery is not here: no {binary(LABELLER)}")
    found = compare_labels(case, binary(LABELLER))
    assert {each.kind for each in found} == {kind for kind in justified()[case.name] if kind.startswith("label ")}, (
        found
    )


def test_a_label_that_differs_is_seen() -> None:
    our, their = {"a": "1", "b": "1", "nvidia.com/gfd.timestamp": "5"}, {"b": "2", "nvidia.com/gfd.timestamp": "6"}
    found = [(each.kind, each.ours, each.theirs) for each in label_differences("case", our, their)]
    assert found == [("label a", "1", "none"), ("label b", "1", "2")]


WHOLE = Answer(
    envs={"NVIDIA_VISIBLE_DEVICES": "a"},
    mounts=frozenset({("/m/a", "/dev/null", False)}),
    devices={"/dev/nvidia0": "rw"},
)


def offer(answer: Answer = WHOLE, **devices: Device) -> Offer:
    devices = devices or {"a": Device(True, (0,))}
    return Offer({"nvidia.com/gpu": devices}, {"nvidia.com/gpu": (False, True)}, {"nvidia.com/gpu": {1: answer}})


@pytest.mark.parametrize(
    ("other", "kind", "theirs"),
    [
        (offer(b=Device(True, (0,))), "device ids", "['b']"),
        (offer(a=Device(False, (0,))), "device health", "['a: bad']"),
        (offer(a=Device(True, ())), "NUMA nodes", "['a: ()']"),
        (offer(Answer(refused="UNKNOWN")), "refusal", "UNKNOWN"),
        (offer(Answer(mounts=WHOLE.mounts, devices=WHOLE.devices)), "environment NVIDIA_VISIBLE_DEVICES", "none"),
        (offer(Answer(envs=WHOLE.envs, devices=WHOLE.devices)), "mounts", "none"),
        (offer(Answer(envs=WHOLE.envs, mounts=WHOLE.mounts)), "device nodes", "none"),
        (
            offer(Answer(envs=WHOLE.envs, mounts=WHOLE.mounts, devices={"/dev/nvidia0": "rwm"})),
            "device permissions",
            "rwm",
        ),
        (Offer({}, {}, {}), "resource names", "none"),
    ],
)
def test_a_difference_is_seen(other: Offer, kind: str, theirs: str) -> None:
    (found,) = differences("case", offer(), other)
    assert (found.kind, found.theirs) == (kind, theirs)


def test_what_is_alike_is_no_difference() -> None:
    assert list(differences("case", offer(), offer())) == []
    assert Difference("a", "b", "c", "d", "e") < Difference("b", "b", "c", "d", "e")
