# SPDX-License-Identifier: Apache-2.0
"""Events, as ``kubectl describe`` shows them with the object they are about."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

_LONGEST = 1024
"""Characters of a message that the API server takes."""


def timestamp(moment: datetime | None = None) -> str:
    """A moment as the API writes it; now by default."""
    return (moment or datetime.now(UTC)).isoformat(timespec="seconds").replace("+00:00", "Z")


def body(about: dict[str, str], kind: str, reason: str, message: str, host: str) -> dict[str, Any]:
    """A v1 Event of type ``kind`` (Normal, Warning) about an object reference; one about a node is in ``default``."""
    now = timestamp()
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"generateName": f"{about['name'][:200]}.", "namespace": about.get("namespace", "default")},
        "involvedObject": {"apiVersion": "v1", **about},
        "type": kind,
        "reason": reason,
        "message": message[:_LONGEST],
        "firstTimestamp": now,
        "lastTimestamp": now,
        "count": 1,
        "source": {"component": "kube-accel", "host": host},
    }
