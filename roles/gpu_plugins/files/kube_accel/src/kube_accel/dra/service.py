# SPDX-License-Identifier: Apache-2.0
"""What kubelet calls."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from kube_accel.dra.claims import ClaimError
from kube_accel.dra.node_devices import DeviceState, NodeDevices
from kube_accel.dra.preparer import ERRORS, Preparer, reason
from kube_accel.dra.slices import DRIVER
from kube_accel.dra.specifications import device_ids
from kube_accel.kube import dra
from kube_accel.kube.proto import dra_pb2 as pb
from kube_accel.metrics.service import Outcome
from kube_accel.model import Health
from kube_accel.plugin.kubelet.calls import Calls
from kube_accel.rpc.server import Context
from kube_accel.shared.printable import line

_log = logging.getLogger(__name__)

PREPARE, UNPREPARE = "prepare", "unprepare"
_HEALTH: Final = {Health.HEALTHY: pb.HEALTHY, Health.UNHEALTHY: pb.UNHEALTHY, Health.UNKNOWN: pb.UNKNOWN}
_REPEAT: Final = 10.0
"""Seconds after which health is told again though it is the same; kubelet believes it for 30 s."""
_LONGEST: Final = 1000
"""Characters of a message; kubelet cuts those of more than 1024."""


class DriverService:
    """The driver's service (``dra.Driver``): each claim succeeds or fails by itself."""

    def __init__(self, preparer: Preparer, devices: NodeDevices, pool: str, on_change: Callable[[], None]) -> None:
        """``on_change`` is called after claims were prepared or released, and must be quick."""
        self._preparer = preparer
        self._devices = devices
        self._pool = pool
        self._on_change = on_change
        self.calls = Calls((PREPARE, UNPREPARE))
        """What kubelet has asked for, by claims."""

    def prepare(self, request: pb.NodePrepareResourcesRequest, context: Context) -> pb.NodePrepareResourcesResponse:
        """Return the devices of each claim, or why there are none."""
        reply = pb.NodePrepareResourcesResponse()
        for claim in request.claims:
            answer = reply.claims[claim.uid]
            with self._counted(PREPARE, claim, answer):
                devices = self._preparer.prepare(claim.uid, claim.namespace, claim.name, context.is_active)
                for each, ids in zip(devices, device_ids(claim.uid, devices), strict=True):
                    answer.devices.add(
                        request_names=[each.request],
                        pool_name=self._pool,
                        device_name=each.device,
                        cdi_device_ids=ids,
                        share_id=each.share_id or None,
                    )
        self._on_change()
        return reply

    def unprepare(
        self, request: pb.NodeUnprepareResourcesRequest, context: Context
    ) -> pb.NodeUnprepareResourcesResponse:
        """Return for each claim why it is not released; empty where it is, or was not prepared."""
        reply = pb.NodeUnprepareResourcesResponse()
        for claim in request.claims:
            with self._counted(UNPREPARE, claim, reply.claims[claim.uid]):
                self._preparer.release(claim.uid)
        self._on_change()
        return reply

    def health(
        self, request: pb.NodeWatchResourcesRequest, context: Context
    ) -> Iterator[pb.NodeWatchResourcesResponse]:
        """Yield the health of all devices now, after each change, and before kubelet thinks it too old."""
        if not context.add_callback(self._devices.wake):
            return
        serial = 0
        while context.is_active():
            state = self._devices.wait(serial, _REPEAT)
            if state is None:
                return
            serial = state.serial
            if context.is_active() and serial:
                yield self._told(state)

    def _told(self, state: DeviceState) -> pb.NodeWatchResourcesResponse:
        reply, now = pb.NodeWatchResourcesResponse(), int(time.time())
        for name in self._devices.names():
            health = state.health_of(name)
            device = pb.DeviceIdentifier(pool_name=self._pool, device_name=name)
            message = line(health.reason or health.advice, _LONGEST)
            reply.devices.add(device=device, health=_HEALTH[health.health], last_updated_time=now, message=message)
        return reply

    @contextmanager
    def _counted(
        self, call: str, claim: pb.Claim, answer: pb.NodePrepareResourceResponse | pb.NodeUnprepareResourceResponse
    ) -> Iterator[None]:
        """Count the work on a claim, and have its answer say why it failed."""
        begin, outcome = time.perf_counter(), Outcome.OK
        try:
            yield
        except ERRORS as error:
            outcome = Outcome.REFUSED if isinstance(error, ClaimError) else Outcome.FAILED
            answer.error = line(reason(error), _LONGEST)
            extra = {"call": call, "claim": f"{claim.namespace}/{claim.name}", "uid": claim.uid, "reason": answer.error}
            _log.warning("a claim failed", extra=extra)
        finally:
            self.calls.add(call, outcome, time.perf_counter() - begin)


class RegistrationService:
    """The service by which kubelet gets to know the driver (``dra.Registration``)."""

    def __init__(self, endpoint: Path) -> None:
        """``endpoint`` is the socket of the driver's service, as kubelet sees it."""
        self._endpoint = endpoint
        self.registered = False
        self.detail = "kubelet has not asked yet"

    def info(self, request: pb.InfoRequest, context: Context) -> pb.PluginInfo:
        """Return who serves where."""
        return dra.plugin_info(DRIVER, self._endpoint)

    def status(self, request: pb.RegistrationStatus, context: Context) -> pb.RegistrationStatusResponse:
        """Note whether kubelet registered us."""
        self.registered, self.detail = request.plugin_registered, line(request.error)
        if self.registered:
            _log.info("registered with kubelet", extra={"driver": DRIVER, "endpoint": str(self._endpoint)})
        else:
            _log.error("kubelet refuses the driver", extra={"driver": DRIVER, "reason": self.detail})
        return pb.RegistrationStatusResponse()
