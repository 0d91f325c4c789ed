# Apache License 2.0 (see https://www.apache.org/licenses/LICENSE-2.0)
# SPDX-License-Identifier: Apache-2.0
"""Reasons why a planner refuses what it was asked for."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Iterable


@dataclass(frozen=True)
class Refusal:
    """One reason, for programs and for people."""

    code: str
    """A word that stays the same when the message is reworded."""
    message: str
    """What is wrong, and what to do about it."""


def messages(refusals: Iterable[Refusal]) -> str:
    """Return the messages of all as one text; an empty one if nothing is refused."""
    return " ".join(refusal.message for refusal in refusals)
