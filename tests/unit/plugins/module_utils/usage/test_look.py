# SPDX-License-Identifier: Apache-2.0
"""A report's page can be read by day, at night, on paper, without color, and on a phone."""

from __future__ import annotations

import re

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils.usage.look import (
    DARK,
    LIGHT,
    OTHERS,
    PATTERNS,
    SERIES,
    STYLE,
)

import pictures
from tools.contrast import SHAPE, TEXT, ratio, too_close

PALETTES = pytest.mark.parametrize("palette", [LIGHT, DARK], ids=["light", "dark"])
WORDS = [
    *((text, back) for text in ("text", "quiet") for back in ("back", "panel")),
    ("text", "bad-back"),
    ("bad", "bad-back"),
]
"""What is text on what."""


@pytest.mark.parametrize(
    ("one", "other", "contrast"), [("#000000", "#ffffff", 21), ("#777777", "#ffffff", 4.48), ("#0000ff", "#0000ff", 1)]
)
def test_contrast_is_that_of_the_guidelines(one: str, other: str, contrast: float) -> None:
    assert ratio(one, other) == pytest.approx(contrast, abs=0.005)
    assert ratio(other, one) == ratio(one, other)


@PALETTES
def test_every_text_of_the_page_has_contrast(palette: dict[str, str]) -> None:
    assert too_close(palette, WORDS, TEXT) == []
    assert set(re.findall(r"(?<![-\w])color:var\(--([\w-]+)\)", STYLE)) <= {text for text, _ in WORDS}
    grounds = set(re.findall(r"background:var\(--([\w-]+)\)", STYLE))
    assert grounds <= {back for _, back in WORDS} | {"free", "own"}


@PALETTES
def test_every_bar_and_its_marks_have_contrast(palette: dict[str, str]) -> None:
    bars = [(name, "back") for name in (*SERIES, OTHERS, "edge", "bad")]
    assert too_close(palette, bars, SHAPE) == []


def test_the_style_names_no_color_outside_of_the_palettes() -> None:
    assert LIGHT.keys() == DARK.keys()
    assert set(re.findall(r"#[0-9a-f]{3,8}\b", STYLE)) == {*LIGHT.values(), *DARK.values()}
    assert set(re.findall(r"var\(--([\w-]+)\)", STYLE)) <= {*LIGHT, "own"}


def test_no_two_namespaces_of_a_chart_have_the_same_pattern() -> None:
    assert set(PATTERNS) == {*SERIES, OTHERS}
    assert len(set(PATTERNS.values())) == len(PATTERNS)


def test_paper_is_light() -> None:
    dark = re.findall(r"@media ([^{]*prefers-color-scheme:dark[^{]*)\{", STYLE)
    assert dark == ["screen and (prefers-color-scheme:dark)"]


def test_every_class_of_the_page_has_a_style() -> None:
    page = pictures.report()
    used = {name for names in re.findall(r'class="([^"]*)"', page) for name in names.split()}
    assert {name for name in used if f".{name}" not in STYLE} <= {"time"}
