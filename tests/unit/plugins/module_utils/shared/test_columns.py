# SPDX-License-Identifier: Apache-2.0
"""Tables as people read them: words stand at the left, figures at the right, and nothing obeys a terminal."""

from __future__ import annotations

from ansible_collections.accel.kubernetes.plugins.module_utils.shared.columns import columns


def test_columns_are_as_wide_as_their_widest_cell() -> None:
    assert columns([("POD", "MODE"), ("training", "vgpu")]) == ["POD       MODE", "training  vgpu"]


def test_columns_of_figures_stand_at_the_right() -> None:
    rows = [("POD", "GPUS", "MODE"), ("a", "1", "vgpu"), ("b", "10000", "")]
    assert columns(rows, right=(1,)) == ["POD   GPUS  MODE", "a        1  vgpu", "b    10000"]


def test_cells_cannot_break_a_line_or_its_width() -> None:
    rows = [("POD", "MODE"), ("a\nb\x1b[31m", "vgpu")]
    assert columns(rows) == ["POD       MODE", "a b\ufffd[31m  vgpu"]


def test_a_table_without_rows_has_no_lines() -> None:
    assert columns([]) == []
