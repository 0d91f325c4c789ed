# SPDX-License-Identifier: Apache-2.0
"""Kubernetes quantities, and amounts as people read them."""

from __future__ import annotations

import re

_QUANTITY = re.compile(r"([+-]?[0-9]{1,30}(?:\.[0-9]{0,30})?)(?:[eE]([+-]?[0-9]{1,2})|([numkMGTPE]|[KMGTPE]i)?)")
_DECIMAL = {"n": -9, "u": -6, "m": -3, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}
_MAX = 2**63 - 1


def parse_quantity(value: object) -> int:
    """A whole, non-negative Kubernetes quantity such as ``8``, ``"1k"`` or ``"320Gi"``.

    Raises ValueError for anything else, fractions and more than 63 bits included.
    """
    if isinstance(value, int) and not isinstance(value, bool):
        number, rest = value, 0
    else:
        match = _QUANTITY.fullmatch(value) if isinstance(value, str) else None
        if match is None:
            raise ValueError(f"{_shown(value)} is not a quantity; write a number such as 8 or 320Gi")
        digits, exponent, suffix = match.groups()
        before, _, after = digits.partition(".")
        tens = int(exponent or _DECIMAL.get(suffix, 0)) - len(after)
        # Not Fraction: it would bring the decimal module into every daemon.
        amount = int(before + after) * 2 ** _BINARY.get(suffix, 0) * 10 ** max(tens, 0)
        number, rest = divmod(amount, 10 ** max(-tens, 0))
    if rest or not 0 <= number <= _MAX:
        raise ValueError(f"{_shown(value)} is not a whole number from 0 to {_MAX}")
    return number


def human_bytes(amount: int) -> str:
    """``8 GiB``, ``79.64 GiB``, ``256 MiB``: never more than there is."""
    unit, name = (2**30, "GiB") if amount >= 2**30 else (2**20, "MiB")
    whole, hundredths = divmod(amount * 100 // unit, 100)
    return f"{whole}.{hundredths:02d}".rstrip("0").rstrip(".") + f" {name}"


def _shown(value: object) -> str:
    text = repr(value) if isinstance(value, str) else type(value).__name__
    return text if len(text) <= 60 else text[:57] + "..."
