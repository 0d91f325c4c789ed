# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decides on the files that a Prometheus of the user's reads. Pure."""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from typing import Any, List, Mapping

from ..shared.registers import entries, mapping, mappings

_NO_DISCOVERY = "field kubernetes_sd_configs not found"
"""What promtool says of a configuration that discovers pods, where it was built without that."""


@dataclass(frozen=True)
class Files:
    """What becomes of the files beside those that are written."""

    discovers_nothing: bool
    """Whether the Prometheus of the host is built without the discovery of Kubernetes."""
    reload_note: str
    """What Prometheus runs with once it has read the files, which is noted beside them."""
    dashboards_unwanted: List[str]
    """Files in the directory of dashboards that are none of ours any more."""


def files(seen: Mapping[str, Any], reload_url: str) -> Files:
    """Decide by what tasks wrote and found."""
    checksums = [mapping(each).get("checksum", "") for each in entries(seen.get("written"))]
    wanted = {posixpath.basename(str(path)) for path in entries(seen.get("dashboards"))}
    found = [str(each.get("path")) for each in mappings(mapping(seen.get("dashboards_found")).get("files"))]
    return Files(
        discovers_nothing=_NO_DISCOVERY in str(mapping(seen.get("checked")).get("stderr", "")),
        reload_note="\n".join(f"{reload_url} {checksum}" for checksum in checksums),
        dashboards_unwanted=[path for path in found if posixpath.basename(path) not in wanted],
    )
