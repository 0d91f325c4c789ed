# SPDX-License-Identifier: Apache-2.0
"""Of which GPUs MIG devices are made for claims, and what is wrong with offers."""

from __future__ import annotations

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.mig_offers import (
    offered_profiles,
    parse_offers,
    plain,
)

GPU = (1, "GPU-00000000-0000-0000-0000-000000000001", "0000:3b:00.0", "NVIDIA H200")


@pytest.mark.parametrize("name", ["1", "0000:3b:00.0", "NVIDIA H200*", GPU[1], "nvidia-h200"])
def test_gpu_is_named_as_an_excluded_one_is(name: str) -> None:
    offers = parse_offers([{"gpus": [name], "profiles": ["1g.18gb"]}, {"gpus": [2], "profiles": ["7g.141gb"]}])
    assert offered_profiles(offers, *GPU) == ("1g.18gb",)
    assert parse_offers(plain(offers)) == offers


def test_offers_of_one_gpu_add_up() -> None:
    offers = parse_offers([{"profiles": ["1g.18gb", "2g.35gb"]}, {"gpus": [1], "profiles": ["2g.35gb", "1g.18gb+me"]}])
    assert offered_profiles(offers, *GPU) == ("1g.18gb", "2g.35gb", "1g.18gb+me")
    assert offered_profiles(offers, 0, *GPU[1:]) == ("1g.18gb", "2g.35gb")


@pytest.mark.parametrize(
    ("document", "why"),
    [
        ("1g.18gb", "is no list of offers"),
        (["1g.18gb"], "offer 1 is '1g.18gb', and has to be a mapping"),
        ([{}], "offer 1: profiles is required"),
        ([{"profiles": "1g.18gb"}], "offer 1: profiles is required"),
        ([{"profiles": ["1c.2g.35gb"]}], "1c.2g.35gb is a part of a GPU instance"),
        ([{"profiles": [7]}], "offer 1: 7 is not the name of a MIG profile"),
        ([{"profiles": ["1g.18gb"]}, {"profiles": ["1g.18gb"], "gpu": 1}], "offer 2 has the unknown key 'gpu'"),
        ([{"profiles": ["1g.18gb"], "gpus": ["MIG-1"]}], "offer 1: 'MIG-1' names no GPU"),
        ([{"profiles": ["1g.18gb"], "gpus": []}], "offer 1: gpus names none"),
    ],
)
def test_what_is_wrong_with_offers_is_said(document: object, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        parse_offers(document)
