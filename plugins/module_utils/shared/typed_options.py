# Apache License 2.0 (see https://www.apache.org/licenses/LICENSE-2.0)
# SPDX-License-Identifier: Apache-2.0
"""Reads variables of a role that are numbers, mappings, and lists of mappings. Pure."""

from __future__ import annotations

from typing import Any, List, Mapping

from .options import OptionReader
from .registers import mapping, mappings


class Reader(OptionReader):
    """Reads also numbers, mappings, and lists of mappings."""

    def number(self, name: str, least: int, most: int) -> int:
        """Return a whole number from ``least`` to ``most``, and ``least`` in place of another value."""
        value = self._values.get(name)
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

    def mappings(self, name: str) -> List[Mapping[str, Any]]:
        """Return a list of mappings."""
        value = self._values.get(name)
        found = mappings(value)
        if value is not None and (not isinstance(value, (list, tuple)) or len(found) < len(value)):
            self._refuse(name, value, "a list of mappings")
        return found
