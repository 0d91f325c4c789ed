# SPDX-License-Identifier: Apache-2.0
"""A meter's state as text, for who keeps it over restarts. Pure."""

from __future__ import annotations

import json

from kube_accel.metrics.charge import Model, State
from kube_accel.metrics.tenancy import Container, Holding

_VERSION = 1


def encode(state: State) -> str:
    """Return the state as text."""
    document = {
        "version": _VERSION,
        "boot": state.boot,
        "at": state.at,
        "gpus": state.gpus,
        "holdings": {
            uuid: [[*holding.container, holding.share, holding.memory_bytes] for holding in held]
            for uuid, held in state.holdings.items()
        },
    }
    return json.dumps(document, separators=(",", ":"))


def decode(text: str) -> State | None:
    """Return what charging needs of what ``encode`` was given; None for text of another version or origin."""
    try:
        document = json.loads(text)
        if document["version"] != _VERSION:
            return None
        gpus = {uuid: Model(str(name), int(size)) for uuid, (name, size) in document["gpus"].items()}
        holdings = {
            uuid: tuple(
                Holding(Container(str(namespace), str(pod), str(name)), uuid, float(share), memory_bytes=memory)
                for namespace, pod, name, share, memory in held
            )
            for uuid, held in document["holdings"].items()
        }
        return State(str(document["boot"]), float(document["at"]), gpus, holdings)
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return None
