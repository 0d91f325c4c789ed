# SPDX-License-Identifier: Apache-2.0
"""The table of XIDs against NVIDIA's catalog, and what a user reads of each wherever it is met."""

from __future__ import annotations

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils.diagnosis.verdict import diagnose
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.gpu_xids import (
    DEVICE,
    HARMLESS,
    OF_PROGRAMS,
    PROGRAM,
    XIDS,
    alerting,
    described,
)

from unit.plugins.module_utils.diagnosis.test_verdict import PGPU, made

COPY_ENGINES = {39, 40, 41, 70, 71, 72, 75, 76, 77, 85, *range(126, 136)}
VIDEO_ENGINES = {60, 68, 82, 83, 84, 86, 88, 89, *range(96, 106), 139, 142}
IGNORED = {14, 37, 44, 66, 67, 93, 106, 107, 141}
"""Whose immediate action is to ignore them, of those that no alert has."""
RESET = {46, 62, 64, 79, 95, 110, 119, 120, 136, 140, 143, 155, 158}
"""Whose immediate action is a reset of the GPU or its machine."""
UNUSED = {9, 10, 15, 17, *range(49, 54), 55, 91}


def test_table_has_every_xid_from_8_to_176() -> None:
    assert set(XIDS) == set(range(8, 177)) - UNUSED
    assert list(XIDS) == sorted(XIDS)


def test_copy_and_video_engines_have_their_program_started_again() -> None:
    for number in COPY_ENGINES | VIDEO_ENGINES:
        assert XIDS[number].fault == PROGRAM
        assert "engine" in XIDS[number].meaning
        assert XIDS[number].remedy.startswith("Start the program again.")


def test_ignored_xid_keeps_the_gpu_and_blames_no_part() -> None:
    assert IGNORED <= HARMLESS - OF_PROGRAMS
    assert not any("caused by" in XIDS[number].verdict for number in IGNORED)


def test_what_the_catalog_has_reset_is_the_gpus_and_critical() -> None:
    assert set(alerting("GpuXidCritical")) >= RESET
    assert {XIDS[number].fault for number in RESET} == {DEVICE}


@pytest.mark.parametrize("number", [*XIDS, 177, 999])
def test_a_log_that_quotes_the_kernel_gets_what_the_table_says(number: int) -> None:
    line = f"[ 12.3] NVRM: Xid (PCI:0000:3b:00): {number}, pid=4242, name=python3, Ch 00000008"
    found = [finding for finding in diagnose(made(**PGPU, log=line)) if finding.rule == "xid"]
    assert [(finding.what, finding.remedy) for finding in found] == [
        (described(number).verdict, described(number).remedy)
    ]


def test_every_row_says_what_and_what_to_do_in_sentences() -> None:
    for xid in XIDS.values():
        assert xid.meaning
        assert xid.meaning[-1] != "."
        assert xid.remedy[-1] == "."
