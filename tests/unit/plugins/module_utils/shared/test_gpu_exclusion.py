# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.gpu_exclusion import excluded_by, parse
from hypothesis import given
from hypothesis import strategies as st

UUID = "GPU-8f2a1c5e-0b7d-4b53-9a3c-1d2e3f405162"
OTHER = "GPU-00000000-0b7d-4b53-9a3c-1d2e3f405162"
GPU = (3, UUID, "0000:3b:00.0", "NVIDIA A100-SXM4-40GB")


@pytest.mark.parametrize(
    "entry",
    [
        3,
        "3",
        " 3 ",
        UUID,
        "0000:3b:00.0",
        "00000000:3B:00.0",
        "3b:00.0",
        "0:3b:0",
        "NVIDIA A100-SXM4-40GB",
        "NVIDIA-A100-SXM4-40GB",
        "nvidia a100*",
        "*A100*",
    ],
)
def test_every_spelling_names_the_gpu(entry: object) -> None:
    assert excluded_by(parse([entry]), *GPU) == str(entry).strip()


@pytest.mark.parametrize(
    "entry", [2, "33", OTHER, "0000:3b:01.0", "0001:3b:00.0", "3c:00.0", "A100", "NVIDIA A100-SXM4-80GB", "*H100*"]
)
def test_others_are_used(entry: object) -> None:
    assert excluded_by(parse([entry]), *GPU) == ""


@pytest.mark.parametrize("entry", ["", None, True, 2.5, -1, "-1", [3], {}, "GPU-8f2a", "MIG-1", "*", "1,2", "3b:00.1"])
def test_what_names_no_gpu_is_refused(entry: object) -> None:
    with pytest.raises(ValueError, match="names no GPU") as caught:
        parse([1, entry])
    assert repr(entry) in str(caught.value)


@pytest.mark.parametrize("entries", [None, "GPU-1", 3, {"a": 1}])
def test_what_is_no_list_is_refused(entries: object) -> None:
    with pytest.raises(ValueError, match="is no list of GPUs"):
        parse(entries)


def test_a_display_card_is_left_out_by_itself() -> None:
    assert excluded_by((), 4, UUID, "0000:c1:00.0", "NVIDIA DGX Display") == "display card"
    assert excluded_by((), 4, UUID, "0000:c1:00.0", "DGX Display") == "display card"
    assert excluded_by((), 4, UUID, "0000:c1:00.0", "NVIDIA A100-SXM4-40GB") == ""


def test_unreadable_gpu_is_excluded_by_what_is_known_of_it() -> None:
    assert excluded_by(parse(["1", "*A100*"]), 1) == "1"
    assert excluded_by(parse([UUID, "3b:00.0", "*A100*"]), 1) == ""


@given(st.lists(st.integers() | st.text() | st.none() | st.floats()), st.integers(0, 20), st.text(), st.text())
def test_whatever_comes_is_read_or_refused(entries: list[object], index: int, address: str, model: str) -> None:
    try:
        exclusions = parse(entries)
    except ValueError:
        return
    assert excluded_by(exclusions, index, UUID, address, model) in {"", "display card", *(e.text for e in exclusions)}
