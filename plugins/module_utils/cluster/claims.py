# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads ResourceSlices and ResourceClaims where a node gives its GPUs by claims."""

from __future__ import annotations

from typing import Any, Dict, Iterable, List, Mapping, Optional

from ansible_collections.accel.kubernetes.plugins.module_utils.shared.claim_view import (
    API_VERSION,
    ClaimObjects,
    read_objects,
)
from ansible_collections.kubernetes.core.plugins.module_utils.k8s.client import K8SClient

from .api_server import ApiServerError, explained, objects


def claim_objects(client: K8SClient, nodes: Iterable[Mapping[str, Any]], problems: List[str]) -> Optional[ClaimObjects]:
    """Return what there is; None where no node is of mode dra, or it cannot be read, which is one of ``problems``."""

    def read(kind: str) -> Optional[List[Dict[str, Any]]]:
        try:
            with explained():
                return list(objects(client, kind, API_VERSION, problems=problems))
        except ApiServerError as error:
            problems.append(f"claims are not read: {error}")
            return None

    return read_objects(nodes, read)
