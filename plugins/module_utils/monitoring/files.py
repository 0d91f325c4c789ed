# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decides on the files that a Prometheus of the user's reads. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Mapping

from ..shared.registers import mapping, results

_NO_DISCOVERY = "field kubernetes_sd_configs not found"
"""What promtool says of a configuration that discovers pods, where it was built without that."""


@dataclass(frozen=True)
class Files:
    """What becomes of the files beside those that are written."""

    discovers_nothing: bool
    """Whether promtool, which answered last, is built without the discovery of Kubernetes."""
    reload_note: str
    """What Prometheus runs with once it has read the files, which is noted beside them."""


def files(seen: Mapping[str, Any], reload_url: str) -> Files:
    """Decide by what tasks wrote, and by the last answer of a task."""
    checksums = [each.get("checksum", "") for each in results(seen.get("written"))]
    return Files(
        discovers_nothing=_NO_DISCOVERY in str(mapping(seen.get("answer")).get("stderr", "")),
        reload_note="\n".join(f"{reload_url} {checksum}" for checksum in checksums),
    )
