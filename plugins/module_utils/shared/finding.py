# Apache License 2.0 (see https://www.apache.org/licenses/LICENSE-2.0)
# SPDX-License-Identifier: Apache-2.0
"""What a check of a host, a node, or the cluster found."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Finding:
    """A row of what ``validate.yml`` says."""

    verdict: str
    """``ok``, ``unknown``, ``unstable``, or ``blocked``."""
    what: str
    """What was looked at, in a word or two."""
    found: str
    remedy: str = ""
