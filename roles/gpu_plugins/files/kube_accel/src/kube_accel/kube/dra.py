# SPDX-License-Identifier: Apache-2.0
"""Kubelet's DRA API: the services of a driver, and how kubelet gets to know it.

Kubelet finds the registration socket by itself, asks on it for the name and the other socket, and calls there.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Protocol

from kube_accel.kube.proto import dra_pb2 as pb
from kube_accel.rpc.server import Context, Method

PLUGIN_TYPE = "DRAPlugin"
REGISTRATION_SERVICE = "pluginregistration.Registration"
HEALTH_SERVICE = "v1alpha1.DRAResourceHealth"
SERVICES = ("v1.DRAPlugin", "v1beta1.DRAPlugin")
"""Names that are announced, the best first; their messages are alike."""
_PACKAGE = "k8s.io.kubelet.pkg.apis.dra"


class Driver(Protocol):
    """What a driver serves. Kubelet waits 45 s for the first two, and calls again for ever when they fail."""

    def prepare(self, request: pb.NodePrepareResourcesRequest, context: Context) -> pb.NodePrepareResourcesResponse:
        """Return the devices of each claim, or why there are none."""

    def unprepare(
        self, request: pb.NodeUnprepareResourcesRequest, context: Context
    ) -> pb.NodeUnprepareResourcesResponse:
        """Return for each claim why it is not released; empty where it is."""

    def health(
        self, request: pb.NodeWatchResourcesRequest, context: Context
    ) -> Iterator[pb.NodeWatchResourcesResponse]:
        """Yield the health of all devices now, after each change, and before it is too old."""


class Registration(Protocol):
    """What kubelet asks and tells on the registration socket. It waits a second for the first."""

    def info(self, request: pb.InfoRequest, context: Context) -> pb.PluginInfo:
        """Return who serves where."""

    def status(self, request: pb.RegistrationStatus, context: Context) -> pb.RegistrationStatusResponse:
        """Note whether kubelet registered us."""


def driver_methods(driver: Driver) -> dict[str, Method]:
    """Return what serves a driver, for ``rpc.server.Server``."""
    calls = {
        "NodePrepareResources": Method(driver.prepare, pb.NodePrepareResourcesRequest),
        "NodeUnprepareResources": Method(driver.unprepare, pb.NodeUnprepareResourcesRequest),
    }
    found = {f"/{_PACKAGE}.{service}/{name}": method for service in SERVICES for name, method in calls.items()}
    found[f"/{HEALTH_SERVICE}/NodeWatchResources"] = Method(driver.health, pb.NodeWatchResourcesRequest, streams=True)
    return found


def registration_methods(registration: Registration) -> dict[str, Method]:
    """Return what serves the registration socket, for ``rpc.server.Server``."""
    return {
        f"/{REGISTRATION_SERVICE}/GetInfo": Method(registration.info, pb.InfoRequest),
        f"/{REGISTRATION_SERVICE}/NotifyRegistrationStatus": Method(registration.status, pb.RegistrationStatus),
    }


def plugin_info(driver: str, endpoint: Path) -> pb.PluginInfo:
    """Return what makes kubelet call a driver on the socket ``endpoint``."""
    versions = [*SERVICES, HEALTH_SERVICE]
    return pb.PluginInfo(type=PLUGIN_TYPE, name=driver, endpoint=str(endpoint), supported_versions=versions)
