# SPDX-License-Identifier: Apache-2.0
"""The environment variables of NVIDIA's plugin mean here what they mean there."""

from __future__ import annotations

import pytest

from kube_accel.nvml.switches import DISABLE, ENABLE, Switches, read
from kube_accel.shared.gpu_xids import HARMLESS

APPLICATIONS = HARMLESS
"""Those that NVIDIA's plugin ignores are among them."""
SAMPLE = {*range(1, 200), 999}


def ignored(switches: Switches) -> set[int]:
    return {xid for xid in SAMPLE if not switches.counts(xid)}


@pytest.mark.parametrize(
    ("disable", "enable", "expected"),
    [
        ("", "", APPLICATIONS),
        ("48", "", APPLICATIONS | {48}),
        (" 48, 63 ,,", "", APPLICATIONS | {48, 63}),
        ("all", "", SAMPLE),
        ("xids", "", SAMPLE),
        ("XIDS,48", "", SAMPLE),
        ("xids", "48,79", SAMPLE - {48, 79}),
        ("48,63", "63", APPLICATIONS | {48}),
        ("", "31", APPLICATIONS - {31}),
        ("", "all", set()),
        ("all", "xids", set()),
        ("48", "all", set()),
    ],
)
def test_which_xids_are_ignored(disable: str, enable: str, expected: set[int]) -> None:
    switches, wrong = read({DISABLE: disable, ENABLE: enable})
    assert ignored(switches) == expected
    assert not wrong


def test_only_all_silences_the_driver_too() -> None:
    assert not read({DISABLE: "all"})[0].driver_word
    assert read({DISABLE: "xids"})[0].driver_word
    assert read({}) == (Switches(), ())


def test_words_without_a_meaning_are_named_and_have_no_effect() -> None:
    switches, wrong = read({DISABLE: "48,0x1f,everything", ENABLE: "-1"})
    assert ignored(switches) == APPLICATIONS | {48}
    assert [sentence.split(" is no XID")[0] for sentence in wrong] == [
        "DP_DISABLE_HEALTHCHECKS: '0x1f'",
        "DP_DISABLE_HEALTHCHECKS: 'everything'",
        "DP_ENABLE_HEALTHCHECKS: '-1'",
    ]
