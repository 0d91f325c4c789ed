# SPDX-License-Identifier: Apache-2.0
"""Reading annotations that anyone may have written: every check ends in ValueError, whatever the text. Pure."""

from __future__ import annotations

import json
import re
from typing import Any


def read_document(text: str, version: int, most: int) -> dict[str, Any]:
    """The JSON object of this version in a text of at most ``most`` characters. Raises ValueError."""
    if len(text) > most:
        raise ValueError(f"longer than {most} characters")
    try:
        document = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if not isinstance(document, dict):
        raise ValueError("not a JSON object")
    if document.get("version") != version:
        raise ValueError(f"version: not {version}, the one this release reads")
    return document


def read_text(parent: dict[str, Any], key: str, pattern: re.Pattern[str]) -> str:
    """A string that the pattern matches in full."""
    value = parent.get(key)
    if not isinstance(value, str) or pattern.fullmatch(value) is None:
        raise ValueError(f"{key}: absent or malformed")
    return value


def read_number(parent: dict[str, Any], key: str, most: int, least: int = 0) -> int:
    """A whole number between ``least`` and ``most``."""
    value = parent.get(key)
    if not isinstance(value, int) or isinstance(value, bool) or not least <= value <= most:
        raise ValueError(f"{key}: not a whole number from {least} to {most}")
    return value


def read_list(value: object, key: str, most: int, least: int = 0) -> list[Any]:
    """A list of ``least`` to ``most`` entries."""
    if not isinstance(value, list) or not least <= len(value) <= most:
        raise ValueError(f"{key}: not a list of {least} to {most} entries")
    return value


def read_objects(value: object, key: str, most: int, least: int = 0) -> list[dict[str, Any]]:
    """A list of ``least`` to ``most`` JSON objects."""
    entries = read_list(value, key, most, least)
    if not all(isinstance(entry, dict) for entry in entries):
        raise ValueError(f"{key}: an entry is not a JSON object")
    return entries
