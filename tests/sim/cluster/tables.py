# SPDX-License-Identifier: Apache-2.0
"""Lists as kubectl prints them: the server names columns and cells (meta.k8s.io/v1 Table). Pure."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime

from sim.cluster.kinds import Kind, Object, is_ready

WANTED = "as=Table"
"""In the header Accept of who wants a table."""
_ROLES = "node-role.kubernetes.io/"
_UNITS = (("d", 86400), ("h", 3600), ("m", 60), ("s", 1))


def table(kind: Kind, content: Object) -> Object:
    """The table of one object, or of a list; of kinds that have no columns of their own, names and ages."""
    columns = _COLUMNS.get(kind.plural, {"Name": _name, "Age": _age})
    items = content["items"] if content["kind"].endswith("List") else [content]
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": {"resourceVersion": content["metadata"].get("resourceVersion", "")},
        "columnDefinitions": [
            {
                "name": name,
                "type": "string",
                "format": "name" if name == "Name" else "",
                "description": "",
                "priority": 0,
            }
            for name in columns
        ],
        "rows": [
            {
                "cells": [cell(item) for cell in columns.values()],
                "object": {
                    "kind": "PartialObjectMetadata",
                    "apiVersion": "meta.k8s.io/v1",
                    "metadata": item["metadata"],
                },
            }
            for item in items
        ],
    }


def _name(item: Object) -> str:
    return str(item["metadata"]["name"])


def _age(item: Object) -> str:
    born = item["metadata"].get("creationTimestamp")
    if not born:
        return "<unknown>"
    seconds = int((datetime.now(UTC) - datetime.fromisoformat(born)).total_seconds())
    unit, length = next(((unit, length) for unit, length in _UNITS if seconds >= 2 * length), ("s", 1))
    return f"{max(seconds, 0) // length}{unit}"


def _ready(pod: Object) -> str:
    containers = pod.get("spec", {}).get("containers", ())
    statuses = pod.get("status", {}).get("containerStatuses", ())
    return f"{sum(bool(each.get('ready')) for each in statuses)}/{len(containers)}"


def _pod_status(pod: Object) -> str:
    if pod["metadata"].get("deletionTimestamp"):
        return "Terminating"
    status = pod.get("status", {})
    states = [each.get("state", {}) for each in status.get("containerStatuses", ())]
    reasons = [
        state[key]["reason"]
        for state in states
        for key in ("waiting", "terminated")
        if state.get(key, {}).get("reason")
    ]
    return str(next(iter(reasons), status.get("reason") or status.get("phase", "Unknown")))


def _restarts(pod: Object) -> str:
    return str(sum(each.get("restartCount", 0) for each in pod.get("status", {}).get("containerStatuses", ())))


def _node_status(node: Object) -> str:
    cordoned = ",SchedulingDisabled" if node.get("spec", {}).get("unschedulable") else ""
    return ("Ready" if is_ready(node) else "NotReady") + cordoned


def _roles(node: Object) -> str:
    labels = node["metadata"].get("labels", {})
    return ",".join(sorted(label.removeprefix(_ROLES) for label in labels if label.startswith(_ROLES))) or "<none>"


def _version(node: Object) -> str:
    return str(node.get("status", {}).get("nodeInfo", {}).get("kubeletVersion", ""))


def _last(event: Object) -> str:
    return _age(
        {"metadata": {"creationTimestamp": event.get("lastTimestamp") or event["metadata"].get("creationTimestamp")}}
    )


def _about(event: Object) -> str:
    about = event.get("involvedObject", {})
    return f"{about.get('kind', '').lower()}/{about.get('name', '')}"


_COLUMNS: Mapping[str, Mapping[str, Callable[[Object], str]]] = {
    "pods": {"Name": _name, "Ready": _ready, "Status": _pod_status, "Restarts": _restarts, "Age": _age},
    "nodes": {"Name": _name, "Status": _node_status, "Roles": _roles, "Age": _age, "Version": _version},
    "events": {
        "Last Seen": _last,
        "Type": lambda event: str(event.get("type", "")),
        "Reason": lambda event: str(event.get("reason", "")),
        "Object": _about,
        "Message": lambda event: str(event.get("message", "")),
    },
}
