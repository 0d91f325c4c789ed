# SPDX-License-Identifier: Apache-2.0
"""Contrast of two colors, as the Web Content Accessibility Guidelines 2 compute it."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

TEXT, SHAPE = 4.5, 3.0
"""The least contrast of text (1.4.3 AA), and of a shape that has a meaning (1.4.11)."""


def ratio(one: str, other: str) -> float:
    """Return the contrast of two colors ``#rrggbb``, from 1 to 21."""
    lighter, darker = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def too_close(palette: Mapping[str, str], pairs: Iterable[tuple[str, str]], least: float) -> list[str]:
    """Return the pairs of names whose colors have less contrast, with their ratio."""
    found = {pair: ratio(palette[pair[0]], palette[pair[1]]) for pair in pairs}
    return [f"{one} on {other}: {value:.2f}" for (one, other), value in found.items() if value < least]


def _luminance(color: str) -> float:
    if not re.fullmatch("#[0-9a-f]{6}", color):
        raise ValueError(f"expected a color like #1c2430, got {color!r}")
    parts = (int(color[place : place + 2], 16) / 255 for place in (1, 3, 5))
    red, green, blue = (part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
