# Apache License 2.0 (see https://www.apache.org/licenses/LICENSE-2.0)
# SPDX-License-Identifier: Apache-2.0
"""Reasons why a planner refuses what it was asked for."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Refusal:
    """One reason, for programs and for people."""

    code: str
    """A word that stays the same when the message is reworded."""
    message: str
    """What is wrong, and what to do about it."""
