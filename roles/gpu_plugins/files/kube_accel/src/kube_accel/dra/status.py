# SPDX-License-Identifier: Apache-2.0
"""What the status of a ResourceClaim says of our devices: which GPU each is, and how much of it.

It is written after the claim is prepared, by a thread of its own: no container waits for it, and none fails for it.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime
from typing import Any, Final

from kube_accel.dra.checkpoint import PreparedClaim, PreparedDevice
from kube_accel.dra.slices import DRIVER, quantity, usable_bytes
from kube_accel.kube.api import ApiError, ApiRefusedError, claim_path
from kube_accel.kube.client import KubeClient
from kube_accel.shared.api_json import ODD
from kube_accel.shared.modes import CORES
from kube_accel.shared.printable import line
from kube_accel.sharing.whole import Part

_log = logging.getLogger(__name__)

APPLY: Final = "application/apply-patch+yaml"
_READY: Final = "Ready"
_PAUSE: Final = 10.0
"""Seconds to the next try where nobody answered."""
_GONE: Final = (404, 409)
"""The claim is gone, or another one has its name."""

Parts = Callable[[], Iterable[Part]]


def devices(claim: PreparedClaim, pool: str, parts: Iterable[Part], now: str) -> list[dict[str, Any]]:
    """Return what ``status.devices`` is to have of a claim; ``now`` is a time as Kubernetes writes it. Pure.

    What several requests have is told once: the API server refuses it twice.
    """
    known = {part.uuid: part for part in parts}
    unique: dict[tuple[str, str], PreparedDevice] = {}
    for device in sorted(claim.devices, key=lambda device: device.admin):
        unique.setdefault((device.device, device.share_id), device)
    return [_device(device, pool, known.get(device.uuid), now) for device in unique.values()]


def says_so(claim: object, wanted: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether a claim's status has all of these devices, whenever they became so. Pure."""
    try:
        found = claim["status"].get("devices") or ()  # type: ignore[index]
        told = [_bare(each) for each in found if each["driver"] == DRIVER]
    except ODD:
        return False
    return all(_bare(each) in told for each in wanted)


def _bare(device: Mapping[str, Any]) -> dict[str, Any]:
    """Return what is compared of a device."""
    ready = [each["status"] for each in device.get("conditions") or () if each["type"] == _READY]
    return {**{key: device.get(key) for key in ("driver", "pool", "device", "shareID", "data")}, "ready": ready}


def _device(device: PreparedDevice, pool: str, part: Part | None, now: str) -> dict[str, Any]:
    data: dict[str, Any] = {"uuid": device.uuid}
    if device.parent:
        data |= {"parentUUID": device.parent}
        data |= {} if part is None or part.memory_bytes is None else {"memory": quantity(part.memory_bytes)}
    elif device.portion is not None:
        data |= {"cores": device.portion.cores, "memory": quantity(device.portion.memory_bytes)}
    elif part is not None and not device.admin:
        data |= {"cores": CORES, "memory": quantity(usable_bytes(part.gpu))}
    condition = {
        "type": _READY,
        "status": "True",
        "reason": "Prepared",
        "message": f"Containers may use {'MIG device' if device.parent else 'GPU'} {device.uuid}.",
        "lastTransitionTime": now,
    }
    share = {"shareID": device.share_id} if device.share_id else {}
    return {"driver": DRIVER, "pool": pool, "device": device.device, **share, "conditions": [condition], "data": data}


class StatusWriter:
    """Writes by server-side apply: what others say of their own devices stays."""

    def __init__(self, client: KubeClient, pool: str, parts: Parts) -> None:
        self._client = client
        self._pool = pool
        self._parts = parts
        self._lock = threading.Lock()
        self._due: dict[str, PreparedClaim] = {}
        self._wake = threading.Event()
        self._said = ""
        """The last refusal that was logged."""

    def see(self, uid: str, claim: PreparedClaim, document: Mapping[str, Any]) -> None:
        """Have the status of a prepared claim be right, which now is this ``document``. Returns at once."""
        if says_so(document, devices(claim, self._pool, self._parts(), "")):
            return
        with self._lock:
            self._due[uid] = claim
        self._wake.set()

    def run(self, stop: threading.Event) -> None:
        """Write until stopped."""
        while not stop.is_set():
            if not self.write():
                stop.wait(_PAUSE)
            elif not self._wake.wait(_PAUSE):
                continue
            self._wake.clear()

    def write(self) -> bool:
        """Write what is due; return False where nobody answers, so that it stays due."""
        with self._lock:
            due, self._due = self._due, {}
        for place, (uid, claim) in enumerate(due.items()):
            try:
                self._apply(uid, claim)
            except ApiRefusedError as error:
                self._log_once(claim, error)
            except ApiError:
                with self._lock:
                    self._due = {**dict(list(due.items())[place:]), **self._due}
                return False
        return True

    def _apply(self, uid: str, claim: PreparedClaim) -> None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        body = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            # The UID refuses a claim that was made again by the same name.
            "metadata": {"name": claim.name, "namespace": claim.namespace, "uid": uid},
            "status": {"devices": devices(claim, self._pool, self._parts(), now)},
        }
        path = f"{claim_path(claim.namespace, claim.name)}/status"
        self._client.send("PATCH", path, body, APPLY, {"fieldManager": DRIVER, "force": "true"})

    def _log_once(self, claim: PreparedClaim, error: ApiRefusedError) -> None:
        said = line(str(error))
        if error.status not in _GONE and said != self._said:
            self._said = said
            _log.warning("the status of a claim is not written", extra={"claim": str(claim), "reason": said})
