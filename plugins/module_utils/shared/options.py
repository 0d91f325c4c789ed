# Apache License 2.0 (see https://www.apache.org/licenses/LICENSE-2.0)
# SPDX-License-Identifier: Apache-2.0
"""Reads the variables of a role, which an inventory, a survey or ``-e name=value`` may give in other types. Pure."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from .refusal import Refusal, messages
from .registers import mapping, mappings

_TRUE = frozenset({"true", "t", "yes", "y", "on", "1", "1.0"})
_FALSE = frozenset({"false", "f", "no", "n", "off", "0", "0.0"})
_MOST_SHOWN = 80
_HUGE = 1 << 63


class OptionReader:
    """Reads variables one by one, and collects a refusal for each value that has another type.

    A variable that is absent or null has the value that its type has when it is empty. So has one that is refused.
    """

    def __init__(self, values: Mapping[str, object]) -> None:
        self._values = values
        self.refusals: List[Refusal] = []

    def text(self, name: str) -> str:
        """Return a text. YAML makes a number of 580 and of 580.95, which is text too."""
        value = self._values.get(name)
        found = _text(value)
        if found is None:
            self._refuse(name, value, "a text")
        return found or ""

    def choice(self, name: str, choices: Sequence[str]) -> str:
        """Return one of the choices, and the first of them in place of another value."""
        value = self._values.get(name)
        found = _text(value)
        if found is not None and found in choices:
            return found
        if value is not None:
            self._refuse(name, value, f"one of {', '.join(choices)}")
        return choices[0]

    def boolean(self, name: str) -> bool:
        """Return a truth value, which may be written in each way that Ansible knows."""
        value = self._values.get(name)
        found = value if isinstance(value, bool) else _truth(value)
        if found is None:
            self._refuse(name, value, "true or false")
        return bool(found)

    def words(self, name: str) -> Tuple[str, ...]:
        """Return a list of texts. A text alone is a list that is separated by commas, as Ansible reads it."""
        value = self._values.get(name)
        if isinstance(value, str):
            return tuple(word.strip() for word in value.split(",")) if value else ()
        entries = list(value) if isinstance(value, (list, tuple)) else None if value is not None else []
        texts = [_text(entry) for entry in entries or ()]
        found = tuple(text for text in texts if text)
        if entries is None or len(found) < len(texts):
            self._refuse(name, value, "a list of texts")
        return found

    def numbers(self, name: str) -> Dict[str, int]:
        """Return a mapping of texts to whole numbers of 0 or more."""
        value = self._values.get(name)
        entries = dict(value) if isinstance(value, Mapping) else None if value is not None else {}
        read = {key: _number(amount) for key, amount in (entries or {}).items() if isinstance(key, str)}
        if entries is None or len(read) < len(entries) or None in read.values():
            self._refuse(name, value, "a mapping of texts to whole numbers")
        return {key: amount for key, amount in read.items() if amount is not None}

    def number(self, name: str, least: int, most: int) -> int:
        """Return a whole number from ``least`` to ``most``, and ``least`` in place of another value."""
        if name not in self._values:
            return least
        value = self._values[name]
        written = str(value).strip() if isinstance(value, (int, str)) and not isinstance(value, bool) else ""
        if written.isascii() and written.isdigit() and len(written) <= len(str(most)) and least <= int(written) <= most:
            return int(written)
        self._refuse(name, value, f"a number from {least} to {most}")
        return least

    def mapping(self, name: str) -> Mapping[str, Any]:
        """Return a mapping."""
        value = self._values.get(name)
        if value is not None and not isinstance(value, Mapping):
            self._refuse(name, value, "a mapping")
        return mapping(value)

    def text_or_mapping(self, name: str) -> str:
        """Return the text of a variable that is a text or a mapping, and nothing of a mapping."""
        value = self._values.get(name)
        if value is not None and not isinstance(value, (str, Mapping)):
            self._refuse(name, value, "a text or a mapping")
        return value if isinstance(value, str) else ""

    def mappings(self, name: str) -> List[Mapping[str, Any]]:
        """Return a list of mappings."""
        value = self._values.get(name)
        found = mappings(value)
        if value is not None and (not isinstance(value, (list, tuple)) or len(found) < len(value)):
            self._refuse(name, value, "a list of mappings")
        return found

    def require_values(self) -> None:
        """Raise ValueError if a value was refused. It says which ones, and what to set them to."""
        if self.refusals:
            raise ValueError(messages(self.refusals))

    def _refuse(self, name: str, value: object, wanted: str) -> None:
        self.refusals.append(Refusal("option_type", f"{name} is {_shown(value)}; set it to {wanted}."))


def _shown(value: object) -> str:
    try:
        shown = ascii(value)
    except (ValueError, RecursionError):  # a number of thousands of digits, or lists in lists without end
        return f"a value of the type {type(value).__name__}"
    return shown if len(shown) <= _MOST_SHOWN else shown[:_MOST_SHOWN] + "..."


def _text(value: object) -> Optional[str]:
    if value is None or isinstance(value, str):
        return value or ""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or abs(value) >= _HUGE:
        return None
    return str(value)


def _truth(value: object) -> Optional[bool]:
    written = (_text(value) or "").strip().lower()
    return True if written in _TRUE else False if written in _FALSE or value is None else None


def _number(value: object) -> Optional[int]:
    written = (_text(value) or "").strip()
    return int(written) if written.isascii() and written.isdigit() and len(written) < len(str(_HUGE)) else None
