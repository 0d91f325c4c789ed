# SPDX-License-Identifier: Apache-2.0
"""Prometheus' text format, version 0.0.4. Label strings are made once and kept while they are in use."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import StrEnum


class Kind(StrEnum):
    """The types we have families of."""

    GAUGE = "gauge"
    COUNTER = "counter"


@dataclass(frozen=True, slots=True)
class Family:
    """A metric by name, and the labels each of its series has."""

    name: str
    kind: Kind
    help: str
    labels: tuple[str, ...] = ()


Series = Mapping[tuple[str, ...], float]
"""Values by what the labels are, in the family's order."""


def escaped(value: str) -> str:
    """Return a label's value between its quotes."""
    return value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")


def labels_text(pairs: Iterable[tuple[str, str]]) -> str:
    """Return labels in braces; empty for none."""
    inside = ",".join(f'{name}="{escaped(value)}"' for name, value in pairs)
    return f"{{{inside}}}" if inside else ""


def head(name: str, kind: str, text: str) -> list[str]:
    """Return the lines above a family's series."""
    return [f"# HELP {name} {text}", f"# TYPE {name} {kind}"]


def number(value: float) -> str:
    """Write a number with every digit of integers up to 2^53, and fifteen digits otherwise."""
    return str(int(value)) if value == int(value) and abs(value) < 2**53 else f"{value:.15g}"


class Writer:
    """Makes pages, one after the other, of much the same series."""

    def __init__(self) -> None:
        self._known: dict[tuple[tuple[str, ...], tuple[str, ...]], str] = {}

    def page(self, families: Iterable[tuple[Family, Series]]) -> bytes:
        """Return the text; families without series are left out."""
        used: dict[tuple[tuple[str, ...], tuple[str, ...]], str] = {}
        lines: list[str] = []
        for family, series in families:
            if not series:
                continue
            lines += head(family.name, family.kind.value, family.help)
            for values, value in series.items():
                key = family.labels, values
                text = used.get(key) or self._known.get(key)
                if text is None:
                    text = labels_text(zip(family.labels, values, strict=True))
                used[key] = text
                lines.append(f"{family.name}{text} {number(value)}")
        self._known = used
        lines.append("")
        return "\n".join(lines).encode()
