# SPDX-License-Identifier: Apache-2.0
"""Prepares and releases claims. Whatever is done may be asked for again, of another instance too."""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

from kube_accel.dra.checkpoint import Checkpoint, CheckpointError, Prepared, PreparedClaim, PreparedDevice
from kube_accel.dra.claims import Allotted, ClaimError, allotted
from kube_accel.dra.node_devices import DeviceState, NodeDevices
from kube_accel.dra.portions import in_the_way
from kube_accel.dra.slices import fixed_share, usable_bytes
from kube_accel.dra.specifications import ClaimSpecifications
from kube_accel.dra.status import StatusWriter
from kube_accel.kube.api import ApiError, ApiRefusedError, claim_path
from kube_accel.kube.client import KubeClient
from kube_accel.shared.claim_devices import cut

_log = logging.getLogger(__name__)

_UID: Final = re.compile(r"[0-9A-Za-z-]{1,64}")
"""It becomes part of a file's name."""
_NOT_FOUND: Final = 404


class Preparer:
    """The node's claims."""

    def __init__(
        self,
        client: KubeClient,
        pool: str,
        checkpoint: Checkpoint,
        specifications: ClaimSpecifications,
        devices: NodeDevices,
        status: StatusWriter | None = None,
    ) -> None:
        """``status`` is told of claims that are prepared."""
        self._client = client
        self._status = status
        self._pool = pool
        self._checkpoint = checkpoint
        self._specifications = specifications
        self._devices = devices
        self._gone: set[str] = set()
        """UIDs of prepared claims that the API server did not have at the last look."""

    def prepare(self, uid: str, namespace: str, name: str) -> tuple[PreparedDevice, ...]:
        """Return the devices of a claim, which containers may use from now on.

        Raises ClaimError, ApiError, CheckpointError, OSError.
        """
        if not _UID.fullmatch(uid):
            raise ClaimError(f"claim {namespace}/{name} has no UID that can be used: {uid!r}")
        document = self._client.get(claim_path(namespace, name))
        wanted = allotted(document, uid, self._pool)
        state = self._devices.state
        if state.inventory is None:
            raise ClaimError("no GPU was read yet; see the driver's log on the node")
        with self._checkpoint.locked() as prepared:
            known = prepared.claims.get(uid)
            devices = tuple(_device(each, known, state) for each in wanted)
            _refuse_held(devices, uid, prepared, state)
            claim = PreparedClaim(namespace, name, devices, known.rest if known is not None else {})
            if claim != known:
                prepared.claims[uid] = claim
                prepared.save()
            self._specifications.write(uid, claim, state.inventory, new=claim != known)
        if claim != known:
            extra = {"claim": str(claim), "uid": uid, "devices": [each.device for each in devices]}
            _log.info("claim prepared", extra=extra)
        self._tell(uid, claim, document)
        return devices

    def _tell(self, uid: str, claim: PreparedClaim, document: dict[str, Any]) -> None:
        if self._status is not None:
            self._status.see(uid, claim, document)

    def release(self, uid: str) -> None:
        """Have a claim's devices be free. Raises CheckpointError, OSError."""
        if not _UID.fullmatch(uid):
            return
        with self._checkpoint.locked() as prepared:
            self._specifications.remove(uid)
            claim = prepared.claims.pop(uid, None)
            if claim is not None:
                prepared.save()
                self._specifications.released(uid, claim)
                _log.info("claim released", extra={"claim": str(claim), "uid": uid})

    def claims(self) -> dict[str, PreparedClaim]:
        """Return the prepared claims by UID. Raises CheckpointError, OSError."""
        with self._checkpoint.locked() as prepared:
            return dict(prepared.claims)

    def look_after_files(self) -> None:
        """Have the runtime's files be those of the prepared claims, and of the driver as it is now.

        Raises CheckpointError, OSError.
        """
        inventory = self._devices.state.inventory
        if inventory is not None:
            with self._checkpoint.locked() as prepared:
                self._specifications.match(prepared.claims.items(), inventory)

    def release_gone(self) -> None:
        """Release what the API server has no claim of, and had none of at the last look either.

        Kubelet may still be ending the containers of a pod that was deleted by force, and releases its claim itself.
        Raises ApiError, CheckpointError, OSError.
        """
        gone = {uid for uid, claim in self.claims().items() if not self._exists(uid, claim)}
        for uid in gone & self._gone:
            _log.warning("a claim that is deleted was still prepared", extra={"uid": uid})
            self.release(uid)
        self._gone = gone - self._gone

    def _exists(self, uid: str, claim: PreparedClaim) -> bool:
        try:
            found = self._client.get(claim_path(claim.namespace, claim.name))
        except ApiRefusedError as error:
            if error.status == _NOT_FOUND:
                return False
            raise
        exists = bool((found.get("metadata") or {}).get("uid") == uid)
        if exists:
            self._tell(uid, claim, found)
        return exists


def reason(error: Exception) -> str:
    """Return what to tell kubelet, and so the pod's owner, of a claim that failed."""
    if isinstance(error, ClaimError | CheckpointError):
        return str(error)
    if isinstance(error, ApiError):
        return f"the claim is not read: {error}; kubelet tries again"
    return f"the claim's files are not written: {error}"


ERRORS: Final = (ClaimError, CheckpointError, ApiError, OSError)
"""What ends the preparation of one claim, and of no other."""


def _device(each: Allotted, known: PreparedClaim | None, state: DeviceState) -> PreparedDevice:
    """Return what a claim is given; what it was given before, where that is the same device. Raises ClaimError."""
    for held in known.devices if known is not None else ():
        if (held.request, held.device, held.admin, held.share_id) == (
            each.request,
            each.device,
            each.admin,
            each.share_id,
        ) and (held.portion == each.portion or cut(held.device)[1]):
            return held
    part = state.part_of(each.device)
    if part is None:
        offered = ", ".join(state.parts) or "none"
        raise ClaimError(f"device {each.device} is not on this node; it has {offered}; delete the pod")
    gpu = part.gpu
    if gpu.uuid not in state.good and not (each.tolerant or each.admin):
        why = state.health_of(each.device).reason
        raise ClaimError(f"{each.device} ({part.uuid}) cannot be used: {why}; delete the pod to get another GPU")
    portion = None if each.admin else each.portion or fixed_share(each.device, gpu)
    parent = "" if part.uuid == gpu.uuid else gpu.uuid
    return PreparedDevice(each.request, each.device, part.uuid, each.admin, each.share_id, portion, parent)


def _refuse_held(devices: Sequence[PreparedDevice], uid: str, prepared: Prepared, state: DeviceState) -> None:
    """Raises ClaimError where there is no room on a GPU beside what other claims have, or this one itself."""
    others = [
        (f"claim {claim} ({other})", each)
        for other, claim in prepared.claims.items()
        if other != uid
        for each in claim.devices
    ]
    for place, device in enumerate(devices):
        part = state.part_of(device.device)
        if device.admin or part is None:
            continue
        beside = [*others, *(("this claim", each) for each in devices[:place])]
        taken = [(owner, each) for owner, each in beside if each.takes_of(device)]
        # Who has the very device has all of it, if it is none that several may have.
        owners = [owner for owner, each in taken if each.device == device.device and not device.share_id]
        owners = owners or in_the_way(
            device.portion, ((owner, each.portion) for owner, each in taken), usable_bytes(part.gpu)
        )
        if owners:
            raise ClaimError(
                f"{device.device} ({device.uuid}) is still prepared for {', '.join(dict.fromkeys(owners))}; kubelet"
                " tries again until the containers of that claim have ended"
            )


def names(claims: Iterable[PreparedClaim]) -> frozenset[str]:
    """Return the devices of these claims."""
    return frozenset(device.device for claim in claims for device in claim.devices)
