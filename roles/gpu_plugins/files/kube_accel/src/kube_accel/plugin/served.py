# SPDX-License-Identifier: Apache-2.0
"""The resources that a plugin serves, and how kubelet stands with them."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kube_accel.metrics.service import Service
from kube_accel.model import Snapshot
from kube_accel.plugin.kubelet.registration import Registrar, Registration
from kube_accel.plugin.kubelet.server import ListedPlugin

_FIRST, _TURN = 0.5, 0.005
"""Seconds that kubelet has for registering us before anything else is done; from one look at that to the next."""
_CALM, _LOOK = 0.1, 0.01
"""Seconds without a question after which none is on its way any more; from one look to the next."""


@dataclass(frozen=True, slots=True)
class Served:
    """A resource, with its plugin and registrar."""

    plugin: ListedPlugin
    registrar: Registrar
    offer: Callable[[Snapshot], bool]
    """Advertise what there is; True when that is news to kubelet."""


class ServedResources:
    """All resources that are served now."""

    def __init__(self) -> None:
        self.by_name: Mapping[str, Served] = {}
        """Replaced as a whole, so that every thread sees one state."""

    @property
    def all(self) -> Collection[Served]:
        """Return the resources."""
        return self.by_name.values()

    def serves(self, resource: str) -> bool:
        """Return whether kubelet has registered our plugin for this resource."""
        served = self.by_name.get(resource)
        return served is not None and served.registrar.state.registered

    def sockets(self) -> dict[str, Path]:
        """Return the sockets that are served on, by resource; a resource without one is absent."""
        sockets = {name: served.registrar.socket for name, served in self.by_name.items()}
        return {name: path for name, path in sockets.items() if path is not None}

    def have_answered(self, timeout: float) -> bool:
        """Wait until kubelet has what it asked us, and return whether it has. Nothing answers after a handover."""
        now = calm_since = time.monotonic()
        end = now + timeout
        while now < end:
            if not all(served.registrar.idle(served.plugin) for served in self.all):
                calm_since = now
            elif now - calm_since >= _CALM:
                return True
            time.sleep(_LOOK)
            now = time.monotonic()
        return False

    def wait_registered(self, stop: threading.Event) -> None:
        """Return once kubelet has registered our plugins, or soon."""
        end = time.monotonic() + _FIRST
        while time.monotonic() < end and not self.registration().registered:
            stop.wait(_TURN)

    def failure(self) -> str:
        """Return why kubelet cannot reach us through our own fault, or an empty string."""
        return next(filter(None, (served.registrar.failure() for served in self.all)), "")

    def registration(self) -> Registration:
        """Return the state of the first resource that is not registered, or of the first one."""
        states = [served.registrar.state for served in self.all]
        return next((state for state in states if not state.registered), states[0])

    def services(self) -> dict[str, Service]:
        """Return what metrics report of each resource."""
        return {
            name: Service(
                served.registrar.state.registered,
                any(device.healthy for device in served.plugin.devices),
                served.plugin.calls.counts,
            )
            for name, served in self.by_name.items()
        }

    def status(self) -> dict[str, Any]:
        """Return the status for the admin socket: registration and numbers of devices."""
        resources = {
            served.registrar.resource: {
                "registered": served.registrar.state.registered,
                "devices": len(served.plugin.devices),
                "healthy": sum(device.healthy for device in served.plugin.devices),
            }
            for served in self.all
        }
        devices, healthy = (sum(one[key] for one in resources.values()) for key in ("devices", "healthy"))
        return {"resources": resources, "devices": devices, "healthy": healthy}
