# SPDX-License-Identifier: Apache-2.0
"""The README's pictures are of what there is."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from pictures import IMAGES, REPORTS, SIZE, allocation, browser, is_of, photograph, report

LARGEST = 150 * 1024


def test_the_picture_of_who_has_what_is_not_old() -> None:
    assert (IMAGES / "allocation.svg").read_text() == allocation(), "make it anew: make pictures"


@pytest.mark.parametrize("name", REPORTS)
def test_the_picture_of_the_report_is_not_old(name: str) -> None:
    png = (IMAGES / name).read_bytes()
    assert is_of(png, report()), "make it anew: make pictures"
    assert not is_of(png, report().replace("vision", "visions"))
    assert struct.unpack(">II", png[16:24]) == SIZE


def test_pictures_are_small() -> None:
    assert {path.name: path.stat().st_size for path in IMAGES.iterdir() if path.stat().st_size > LARGEST} == {}


def test_the_page_can_be_photographed(tmp_path: Path) -> None:
    if browser() is None:
        pytest.skip("no Chromium on PATH")
    photograph(report(), tmp_path / "report.png")
    assert is_of((tmp_path / "report.png").read_bytes(), report())
