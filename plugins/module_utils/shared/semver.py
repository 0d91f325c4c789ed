# Apache License 2.0 (see https://www.apache.org/licenses/LICENSE-2.0)
# SPDX-License-Identifier: Apache-2.0
"""Versions as attributes of devices have them. Pure."""

from __future__ import annotations

from typing import Optional


def semver(text: str) -> Optional[str]:
    """Return a version as semver has it: three numbers without zeros in front; None if it has none of that."""
    parts = text.split(".")[:3]
    if not all(part.isdecimal() for part in parts):
        return None
    return ".".join(str(int(part)) for part in (*parts, "0", "0")[:3])
