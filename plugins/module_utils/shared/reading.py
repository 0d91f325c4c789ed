# Apache License 2.0 (see https://www.apache.org/licenses/LICENSE-2.0)
# SPDX-License-Identifier: Apache-2.0
"""Read annotations that anyone may have written: every check ends in ValueError, whatever the text. Pure."""

from __future__ import annotations

import json
import math
import re
from typing import Any, Dict, List, NoReturn, Tuple

_OWNED = re.compile(
    r"cuda-(?:major|minor)-version"
    r"|(?:nvidia\.com|kube-accel\.io)/[A-Za-z0-9](?:[A-Za-z0-9._-]{0,61}[A-Za-z0-9])?"
)
_MOST_DIGITS = 20
"""The most digits of a number: 64 bits have no more."""


def read_document(text: object, version: int, most: int) -> dict[str, Any]:
    """Return the JSON object of this version in a text of at most ``most`` characters. Raises ValueError."""
    document = read_object(text, most)
    if document.get("version") != version:
        raise ValueError(f"version: not {version}, the one this release reads")
    return document


def read_object(text: object, most: int) -> dict[str, Any]:
    """Return the JSON object in a text of at most ``most`` characters.

    Raises ValueError for anything else, and for numbers without end, names given twice, and what is nested so deeply
    that Python cannot read it.
    """
    if not isinstance(text, str):
        raise ValueError("not text")
    if len(text) > most:
        raise ValueError(f"longer than {most} characters")
    try:
        document = _DECODER.decode(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(document, dict):
        raise ValueError("not a JSON object")
    return document


def read_text(parent: dict[str, Any], key: str, pattern: re.Pattern[str]) -> str:
    """Return a string that the pattern matches in full."""
    value = parent.get(key)
    if not isinstance(value, str) or pattern.fullmatch(value) is None:
        raise ValueError(f"{key}: absent or malformed")
    return value


def read_number(parent: dict[str, Any], key: str, most: int, least: int = 0) -> int:
    """Return a whole number between ``least`` and ``most``."""
    value = parent.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ValueError(f"{key}: not a whole number from {least} to {most}")
    return value


def read_list(value: object, key: str, most: int, least: int = 0) -> list[Any]:
    """Return a list of ``least`` to ``most`` entries."""
    if not isinstance(value, list) or not least <= len(value) <= most:
        raise ValueError(f"{key}: not a list of {least} to {most} entries")
    return value


def read_objects(value: object, key: str, most: int, least: int = 0) -> list[dict[str, Any]]:
    """Return a list of ``least`` to ``most`` JSON objects."""
    entries = read_list(value, key, most, least)
    if not all(isinstance(entry, dict) for entry in entries):
        raise ValueError(f"{key}: an entry is not a JSON object")
    return entries


def read_owned_labels(text: object) -> List[str]:
    """Return the names in a list by commas that our plugins write. Other names belong to others."""
    names = text.split(",") if isinstance(text, str) else []
    return [name for name in names if _OWNED.fullmatch(name)]


def _object(pairs: List[Tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        raise ValueError("a name is given twice")
    return made


def _whole(digits: str) -> int:
    if len(digits) > _MOST_DIGITS:
        raise ValueError(f"a number of more than {_MOST_DIGITS} digits")
    return int(digits)


def _finite(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError("a number without end")
    return number


def _refused(name: str) -> NoReturn:
    raise ValueError(f"{name} is no number of JSON")


NUMBERS: Dict[str, Any] = {"parse_int": _whole, "parse_float": _finite, "parse_constant": _refused}
"""For a decoder of JSON: what is no number that 64 bits have ends in ValueError."""

_DECODER = json.JSONDecoder(object_pairs_hook=_object, **NUMBERS)
