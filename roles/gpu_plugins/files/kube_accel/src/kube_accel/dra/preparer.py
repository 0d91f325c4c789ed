# SPDX-License-Identifier: Apache-2.0
"""Prepares and releases claims. Whatever is done may be asked for again, of another instance too."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Sequence
from typing import Any, Final

from kube_accel.dra.checkpoint import Checkpoint, CheckpointError, Holdings, Prepared, PreparedClaim, PreparedDevice
from kube_accel.dra.claims import Allotted, ClaimError, allocated, allotted
from kube_accel.dra.maker import Maker, refuse_taken
from kube_accel.dra.node_devices import DeviceState, NodeDevices
from kube_accel.dra.partitioner import RefusedError
from kube_accel.dra.portions import in_the_way
from kube_accel.dra.slices import fixed_share, usable_bytes
from kube_accel.dra.specifications import ClaimSpecifications
from kube_accel.dra.status import StatusWriter
from kube_accel.kube.api import ApiError, ApiRefusedError, claim_path
from kube_accel.kube.client import KubeClient
from kube_accel.mig.process import CutError
from kube_accel.shared.claim_devices import AT, MIG, cut
from kube_accel.shared.modes import CORES

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
        maker: Maker,
        status: StatusWriter | None = None,
    ) -> None:
        """``status`` is told of claims that are prepared."""
        self.obstacle: Callable[[], str] = str
        """Returns what else gives the GPUs away, so that no further claim gets one; empty for nothing."""
        self._maker = maker
        self._client = client
        self._status = status
        self._pool = pool
        self._checkpoint = checkpoint
        self._specifications = specifications
        self._devices = devices
        self._gone: set[str] = set()
        """UIDs of prepared claims that the API server did not have at the last look."""

    def prepare(
        self, uid: str, namespace: str, name: str, awaited: Callable[[], bool] = lambda: True
    ) -> tuple[PreparedDevice, ...]:
        """Return the devices of a claim, which containers may use from now on.

        ``awaited`` returns whether kubelet waits for it still: it may have released the claim since.
        Raises ClaimError, CutError, ApiError, CheckpointError, OSError.
        """
        if not _UID.fullmatch(uid):
            raise ClaimError(f"claim {namespace}/{name} has no UID that can be used: {uid!r}")
        document = self._client.get(claim_path(namespace, name))
        wanted = allotted(document, uid, self._pool)
        if self._devices.state.inventory is None:
            raise ClaimError("no GPU was read yet; see the driver's log on the node")
        asked = {each.device for each in wanted}
        first = any(AT in each for each in asked) and self._make(uid, namespace, name, wanted, awaited)
        state = self._devices.state
        assert state.inventory is not None
        with self._checkpoint.locked() as prepared:
            if not awaited():
                raise ClaimError("kubelet waits for it no more")
            known = prepared.claims.get(uid)
            anew = known is not None and any(each.device not in asked for each in known.made)
            if not anew:
                claim = self._claim(uid, namespace, name, wanted, prepared)
                if not claim.complete:
                    raise ClaimError("the claim was released meanwhile; kubelet tries again")
                new = first or claim != known
                if claim != known:
                    prepared.claims[uid] = claim
                    prepared.save()
                self._specifications.write(uid, claim, state.inventory, new)
        if anew:  # what it had is to be destroyed
            self.release(uid)
            return self.prepare(uid, namespace, name, awaited)
        if new:
            extra = {"claim": str(claim), "uid": uid, "devices": [each.device for each in claim.devices]}
            _log.info("claim prepared", extra=extra)
        self._tell(uid, claim, document)
        return claim.devices

    def _claim(
        self, uid: str, namespace: str, name: str, wanted: Sequence[Allotted], prepared: Prepared
    ) -> PreparedClaim:
        """Return a claim as it is to be prepared. Raises ClaimError where others have of it."""
        known, state = prepared.claims.get(uid), self._devices.state
        devices = tuple(self._device(each, known, state, prepared.holdings) for each in wanted)
        if known is None and (why := self.obstacle()) and not all(device.admin for device in devices):
            raise ClaimError(f"the GPUs of this node are given by claims no more: {why}")
        _refuse_held(devices, uid, prepared, state)
        return PreparedClaim(namespace, name, devices, known.rest if known is not None else {})

    def _device(
        self, each: Allotted, known: PreparedClaim | None, state: DeviceState, holdings: Holdings
    ) -> PreparedDevice:
        """Return what a claim is given; what it was given before, where that is the same device. Raises ClaimError."""
        for held in known.devices if known is not None else ():
            if (held.request, held.device, held.admin, held.share_id) == (
                each.request,
                each.device,
                each.admin,
                each.share_id,
            ) and (held.portion == each.portion or cut(held.device)[1]):
                if _destroyed(held, state):
                    raise ClaimError(
                        f"GPU {held.gpu} was cut again since {held.device} ({held.uuid}) was prepared; delete the pod"
                    )
                return held
        if AT in each.device and each.admin:
            raise ClaimError(f"{each.device} is there only while a claim has it, and is not watched by another")
        if AT in each.device:
            return self._maker.intent(each.request, each.device, each.tolerant, holdings)
        return _given(each, state)

    def _make(
        self, uid: str, namespace: str, name: str, wanted: Sequence[Allotted], awaited: Callable[[], bool]
    ) -> bool:
        """Make the MIG devices of a claim that are not there; return whether there was one to make.

        Raises ClaimError, CutError, CheckpointError, OSError.
        """
        known, state = self.claims().get(uid), self._devices.state
        if known is not None and not {each.device for each in known.made} <= {each.device for each in wanted}:
            self.release(uid)  # it was allocated anew
        elif known is not None and known.complete and all(state.has(each.uuid) for each in known.made):
            return False
        with self._maker.alone():
            cards = self._maker.cards()
            with self._checkpoint.locked() as prepared:
                if not awaited():
                    raise ClaimError("kubelet waits for it no more")
                known = prepared.claims.get(uid)
                claim = self._claim(uid, namespace, name, wanted, prepared)
                old = known.devices if known is not None else ()
                refuse_taken((each for each in claim.made if each not in old), cards)
                prepared.claims[uid] = claim
                prepared.save()
            try:
                self._maker.make(uid, claim, cards)
            except RefusedError:
                if known is None:
                    self._destroy(uid)
                raise
        self._maker.await_made(uid)
        return True

    def _tell(self, uid: str, claim: PreparedClaim, document: dict[str, Any]) -> None:
        if self._status is not None:
            self._status.see(uid, claim, document)

    def release(self, uid: str) -> None:
        """Have a claim's devices be free. Raises ClaimError, CutError, CheckpointError, OSError."""
        if not _UID.fullmatch(uid):
            return
        if not self._forget(uid):
            with self._maker.alone():
                self._destroy(uid)

    def _destroy(self, uid: str) -> None:
        """Destroy what was made for a claim, and release it. The caller makes and destroys alone."""
        with self._checkpoint.locked() as prepared:
            claim = prepared.claims.get(uid)
        if claim is not None:
            self._forget(uid, self._maker.destroy(uid, claim))

    def _forget(self, uid: str, ended: frozenset[str] | None = None) -> bool:
        """Have a claim's devices be free; return False where some have to be destroyed before.

        They were if there are GPUs that ``ended`` MIG mode, or none. Raises CheckpointError, OSError.
        """
        with self._checkpoint.locked() as prepared:
            self._specifications.remove(uid)
            if ended is None and uid in prepared.claims and prepared.claims[uid].made:
                return False
            claim = prepared.claims.pop(uid, None)
            if claim is not None:
                prepared.switched -= ended or set()
                prepared.save()
                self._specifications.released(uid, claim)
                _log.info("claim released", extra={"claim": str(claim), "uid": uid})
            return True

    def claims(self) -> dict[str, PreparedClaim]:
        """Return the prepared claims by UID. Raises CheckpointError, OSError."""
        with self._checkpoint.locked() as prepared:
            return dict(prepared.claims)

    def holdings(self) -> Holdings:
        """Return all that is prepared. Raises CheckpointError, OSError."""
        with self._checkpoint.locked() as prepared:
            return prepared.holdings

    def look_after_files(self) -> None:
        """Have the runtime's files be those of the prepared claims, and of the driver as it is now.

        Raises CheckpointError, OSError.
        """
        inventory = self._devices.state.inventory
        if inventory is not None:
            with self._checkpoint.locked() as prepared:
                complete = [(uid, claim) for uid, claim in prepared.claims.items() if claim.complete]
                self._specifications.match(complete, inventory)

    def release_gone(self) -> None:
        """Release what the API server has no allocated claim of, and had none of at the last look either.

        Kubelet may still be ending the containers of a pod that was deleted by force, and releases its claim itself.
        Raises ApiError, CheckpointError, OSError.
        """
        gone = {uid for uid, claim in self.claims().items() if not self._exists(uid, claim)}
        for uid in gone & self._gone:
            _log.warning("a claim that is deleted, or has no device now, was still prepared", extra={"uid": uid})
            try:
                self.release(uid)
            except (ClaimError, CutError) as error:
                _log.warning("a claim that is deleted is not released", extra={"uid": uid, "reason": reason(error)})
        self._gone = gone - self._gone

    def _exists(self, uid: str, claim: PreparedClaim) -> bool:
        try:
            found = self._client.get(claim_path(claim.namespace, claim.name))
        except ApiRefusedError as error:
            if error.status == _NOT_FOUND:
                return False
            raise
        exists = bool((found.get("metadata") or {}).get("uid") == uid) and allocated(found, self._pool)
        if exists:
            self._tell(uid, claim, found)
        return exists


def reason(error: Exception) -> str:
    """Return what to tell kubelet, and so the pod's owner, of a claim that failed."""
    if isinstance(error, ClaimError | CheckpointError):
        return str(error)
    if isinstance(error, ApiError):
        return f"the claim is not read: {error}; kubelet tries again"
    if isinstance(error, CutError):
        return f"the MIG device is neither made nor destroyed: {error}"
    return f"the claim's files are not written: {error}"


ERRORS: Final = (ClaimError, CheckpointError, ApiError, CutError, OSError)
"""What ends the preparation of one claim, and of no other."""


def _given(each: Allotted, state: DeviceState) -> PreparedDevice:
    """Return a device that is there. Raises ClaimError."""
    part = state.part_of(each.device)
    if part is None and state.gpu_of(each.device) is not None and MIG not in each.device:
        raise ClaimError(f"{each.device} is in MIG mode still; kubelet tries again")
    if part is None:
        offered = ", ".join(state.parts) or "none"
        raise ClaimError(f"device {each.device} is not on this node; it has {offered}; delete the pod")
    gpu, asked = part.gpu, each.portion
    if asked is not None and (asked.cores > CORES or asked.memory_bytes > usable_bytes(gpu)):
        raise ClaimError(
            f"{each.device} ({part.uuid}) is smaller than the share: it has {usable_bytes(gpu)} bytes; delete the pod"
        )
    if gpu.uuid not in state.good and not (each.tolerant or each.admin):
        why = state.health_of(each.device).reason
        raise ClaimError(f"{each.device} ({part.uuid}) cannot be used: {why}; delete the pod to get another GPU")
    portion = None if each.admin else each.portion or fixed_share(each.device, gpu)
    parent = "" if part.uuid == gpu.uuid else gpu.uuid
    return PreparedDevice(each.request, each.device, part.uuid, each.admin, each.share_id, portion, parent)


def _destroyed(device: PreparedDevice, state: DeviceState) -> bool:
    """Return whether a MIG device was destroyed by others. Its containers may open what has its number now."""
    return bool(device.parent) and device.placement is None and not state.has(device.uuid)


def _refuse_held(devices: Sequence[PreparedDevice], uid: str, prepared: Prepared, state: DeviceState) -> None:
    """Raises ClaimError where there is no room on a GPU beside what other claims have, or this one itself."""
    others = [
        (f"claim {claim} ({other})", each)
        for other, claim in prepared.claims.items()
        if other != uid
        for each in claim.devices
    ]
    for place, device in enumerate(devices):
        gpu = state.gpu_of(device.device)
        if device.admin or gpu is None:
            continue
        beside = [*others, *(("this claim", each) for each in devices[:place])]
        taken = [
            (owner, each)
            for owner, each in beside
            if each.takes_of(device) or (each.gpu == gpu.uuid and _destroyed(each, state))
        ]
        # Who has the very device has all of it, if it is none that several may have.
        owners = [owner for owner, each in taken if each.device == device.device and not device.share_id]
        owners = owners or in_the_way(
            device.portion, ((owner, each.portion) for owner, each in taken), usable_bytes(gpu)
        )
        if owners:
            raise ClaimError(
                f"{device.device} ({device.uuid or device.gpu}) is still prepared for"
                f" {', '.join(dict.fromkeys(owners))}; kubelet tries again until the containers of that claim have"
                " ended"
            )
