# Apache License 2.0 (see https://www.apache.org/licenses/LICENSE-2.0)
# SPDX-License-Identifier: Apache-2.0
"""Kubernetes quantities, and amounts as people read them. Pure."""

from __future__ import annotations

import re
from typing import Optional, Tuple

_QUANTITY = re.compile(r"([+-]?[0-9]{1,30}(?:\.[0-9]{0,30})?)(?:[eE]([+-]?[0-9]{1,2})|([numkMGTPE]|[KMGTPE]i)?)")
_DECIMAL = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_MAX = 2**63 - 1


def parse_quantity(value: object) -> int:
    """Return a whole, non-negative Kubernetes quantity such as ``8``, ``"1k"`` or ``"320Gi"``.

    Raises ValueError for anything else, fractions and more than 63 bits included.
    """
    number, rest = _divided(value)
    if rest or not 0 <= number <= _MAX:
        raise ValueError(f"{_shown(value)} is not a whole number from 0 to {_MAX}")
    return number


def rounded_up(value: object) -> int:
    """Return a non-negative Kubernetes quantity in whole units, rounded up: 34 for ``"33500m"``.

    Raises ValueError for anything else, and for more than 63 bits.
    """
    number, rest = _divided(value)
    return parse_quantity(number + bool(rest))


def whole_units(value: object) -> Optional[int]:
    """Return a quantity without the part of a unit: 1000 for ``"1k"``, 1 for ``"1500m"``. None for anything else."""
    try:
        number, _rest = _divided(value)
    except ValueError:
        return None
    return number if number >= 0 else None


def thousandths(value: object) -> int:
    """Return a quantity in thousandths of a unit, rounded up: 1500 for ``"1500m"``.

    Raises ValueError for anything else.
    """
    amount, unit = _ratio(value)
    return -(-amount * 1000 // unit)


def _divided(value: object) -> Tuple[int, int]:
    """Whole units, and not 0 where there is more. Raises ValueError."""
    amount, unit = _ratio(value)
    return divmod(amount, unit)


def _ratio(value: object) -> Tuple[int, int]:
    """Return an amount, and how many of it are a unit. Raises ValueError."""
    if isinstance(value, int) and not isinstance(value, bool):
        return value, 1
    match = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"{_shown(value)} is not a quantity; write a number such as 8 or 320Gi")
    digits, exponent, suffix = match.groups()
    before, _point, after = digits.partition(".")
    tens = int(exponent or _DECIMAL.get(suffix, 0)) - len(after)
    # Not Fraction: it would bring the decimal module into every daemon.
    amount: int = int(before + after) * 2 ** _BINARY.get(suffix, 0) * 10 ** max(tens, 0)
    unit: int = 10 ** max(-tens, 0)
    return amount, unit


def human_bytes(amount: int) -> str:
    """``8 GiB``, ``79.64 GiB``, ``256 MiB``: never more than there is."""
    unit, name = (2**30, "GiB") if amount >= 2**30 else (2**20, "MiB")
    whole, hundredths = divmod(amount * 100 // unit, 100)
    return f"{whole}.{hundredths:02d}".rstrip("0").rstrip(".") + f" {name}"


def _shown(value: object) -> str:
    text = repr(value) if isinstance(value, str) else type(value).__name__
    return text if len(text) <= 60 else text[:57] + "..."
