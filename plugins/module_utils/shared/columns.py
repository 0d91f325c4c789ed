# Apache License 2.0 (see https://www.apache.org/licenses/LICENSE-2.0)
# SPDX-License-Identifier: Apache-2.0
"""Rows of a table as lines of text whose columns stand below each other. Pure."""

from __future__ import annotations

from typing import Collection, Iterable, List, Sequence

from . import printable

_BETWEEN = "  "


def columns(rows: Iterable[Sequence[object]], right: Collection[int] = ()) -> List[str]:
    """Return a line for each row, with columns as wide as their widest cell.

    ``right`` has the numbers, from 0, of the columns that stand at the right, as figures do. All rows have as many
    cells as the first. Each cell becomes what ``printable.line`` makes of it.
    """
    shown = [printable.lines(row) for row in rows]
    widths = [max(len(row[number]) for row in shown) for number in range(len(shown[0]))] if shown else []
    return [
        _BETWEEN.join(
            row[number].rjust(width) if number in right else row[number].ljust(width)
            for number, width in enumerate(widths)
        ).rstrip()
        for row in shown
    ]
