# SPDX-License-Identifier: Apache-2.0
"""Events, as ``kubectl describe`` shows them with the object they are about."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from kube_accel.shared.printable import line

if TYPE_CHECKING:
    from kube_accel.kube.client import KubeClient

_LONGEST = 1024
"""Characters of a message that the API server takes."""


def timestamp(moment: datetime | None = None) -> str:
    """Return a moment as the API writes it; now by default."""
    return (moment or datetime.now(UTC)).isoformat(timespec="seconds").replace("+00:00", "Z")


def body(about: dict[str, str], kind: str, reason: str, message: str, host: str) -> dict[str, Any]:
    """Return a v1 Event of type ``kind`` (Normal, Warning) about an object; one about a node is in ``default``."""
    now = timestamp()
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{about['name'][:200]}.", "namespace": about.get("namespace", "default")},
        "involvedObject": {"apiVersion": "v1", **about},
        "type": kind,
        "reason": reason,
        "message": line(message, _LONGEST),
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
        "source": {"component": "kube-accel", "host": host},
    }


def of_node(node: str, kind: str, reason: str, message: str) -> dict[str, Any]:
    """Return a v1 Event about a node, from that node."""
    # kubectl describe looks for events of a node by its name in place of its uid, as kubelet writes them.
    return body({"kind": "Node", "name": node, "uid": node}, kind, reason, message, node)


def send(client: KubeClient, event: dict[str, Any]) -> None:
    """Create an event. Raises ApiError."""
    client.post(f"/api/v1/namespaces/{quote(event['metadata']['namespace'], safe='')}/events", event)
