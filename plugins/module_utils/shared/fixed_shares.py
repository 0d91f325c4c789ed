# Apache License 2.0 (see https://www.apache.org/licenses/LICENSE-2.0)
# SPDX-License-Identifier: Apache-2.0
"""Into how many equal shares a node's GPUs are cut, where claims cannot say how much of a GPU they want. Pure."""

from __future__ import annotations

from typing import Mapping

from . import label_names
from .modes import CORES

MOST = CORES
"""A share has 1 % of the cores at least."""


def fixed_shares(labels: Mapping[str, str]) -> int:
    """Return the number of fixed shares of each GPU of a node with these labels; 0 for GPUs that are not cut.

    Raises ValueError that says what is wrong with the label.
    """
    text = str(labels.get(label_names.FIXED_SHARES, "0"))
    number = int(text) if text.isascii() and text.isdecimal() else -1
    if not 0 <= number <= MOST:
        raise ValueError(
            f"label {label_names.FIXED_SHARES} of the node is {text!r}, which is no number from 0 to {MOST}"
        )
    return number
