# SPDX-License-Identifier: Apache-2.0
"""The MIG devices that are made for claims: each step is on disk before it is done, so that a kill leaves nothing.

What is to be made is in the checkpoint before it is there, and what was destroyed until it is gone. A GPU is noted
before it is put into MIG mode, until it is out of it again.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Final

from kube_accel.dra.checkpoint import Checkpoint, CheckpointError, Holdings, Prepared, PreparedClaim, PreparedDevice
from kube_accel.dra.claims import ClaimError
from kube_accel.dra.node_devices import DeviceState, NodeDevices
from kube_accel.dra.offering import Offerer
from kube_accel.dra.partitioner import Partitioner
from kube_accel.shared.mig_geometry import Card

_log = logging.getLogger(__name__)

_SEEN: Final = 15.0
"""Seconds until the driver's own NVML shows what was done."""


class Maker:
    """Makes what claims have, and destroys it. Whoever calls for that holds ``alone``, and not the checkpoint."""

    def __init__(
        self, partitioner: Partitioner, checkpoint: Checkpoint, devices: NodeDevices, offerer: Offerer
    ) -> None:
        self._partitioner = partitioner
        self._checkpoint = checkpoint
        self._devices = devices
        self._offerer = offerer

    @contextmanager
    def alone(self) -> Iterator[None]:
        """Have no other instance make or destroy meanwhile. Raises ClaimError, OSError."""
        with self._partitioner.alone():
            yield

    def intent(self, request: str, device: str, tolerant: bool, holdings: Holdings) -> PreparedDevice:
        """Return a device that is to be made. Raises ClaimError where it is none."""
        state = self._devices.state
        gpu = state.gpu_of(device)
        if gpu is None or state.inventory is None:
            raise ClaimError(f"MIG device {device} cannot be made: its GPU is not there; delete the pod")
        current = self._offerer.now(state.inventory, holdings)
        division = current.divided.get(gpu.uuid)
        found = [each for each in division.partitions if each.device == device] if division is not None else []
        why = "" if found else current.notes.get(gpu.uuid, "it is not offered")
        if not why and gpu.uuid not in state.good and not tolerant:
            why = state.health_of(device).reason
        if why:
            raise ClaimError(f"MIG device {device} cannot be made on GPU {gpu.uuid}: {why}; delete the pod")
        return PreparedDevice(request, device, "", parent=gpu.uuid, placement=found[0].placement)

    def cards(self) -> dict[str, Card]:
        """Return what is on the GPUs now, by UUID. Raises ClaimError, CutError, OSError."""
        return {card.uuid: card for card in self._partitioner.cards()}

    def make(self, uid: str, claim: PreparedClaim, cards: Mapping[str, Card]) -> None:
        """Make what is not there of a claim that is in the checkpoint; ``cards`` is what there is now.

        Raises RefusedError, ClaimError, CutError, CheckpointError, OSError.
        """
        enabled = {gpu for gpu, card in cards.items() if card.enabled}
        there = {uuid for card in cards.values() for each in card.instances for uuid in each.devices}
        for device in claim.made:
            if device.uuid in there:
                continue
            switches = device.gpu not in enabled
            if switches:
                self._note_switched(device.gpu)
                enabled.add(device.gpu)
            uuid = self._partitioner.make(device, switches)
            self._note_made(uid, device, uuid)
            _log.info("MIG device made", extra={"claim": str(claim), "device": device.device, "uuid": uuid})

    def _note_switched(self, gpu: str) -> None:
        with self._checkpoint.locked() as prepared:
            prepared.switched.add(gpu)
            prepared.save()

    def _note_made(self, uid: str, device: PreparedDevice, uuid: str) -> None:
        with self._checkpoint.locked() as prepared:
            claim = self._present(prepared, uid)
            devices = tuple(replace(each, uuid=uuid) if each == device else each for each in claim.devices)
            prepared.claims[uid] = replace(claim, devices=devices)
            prepared.save()

    @staticmethod
    def _present(prepared: Prepared, uid: str) -> PreparedClaim:
        if uid not in prepared.claims:
            raise CheckpointError("the list of prepared claims was removed meanwhile; kubelet tries again")
        return prepared.claims[uid]

    def await_made(self, uid: str) -> None:
        """Wait until the driver's own NVML shows what was made for a claim.

        Raises ClaimError, CheckpointError, OSError.
        """
        with self._checkpoint.locked() as prepared:
            uuids = [device.uuid for device in self._present(prepared, uid).made]
        if not self._await(lambda state: all(map(state.has, uuids))):
            raise ClaimError("the MIG device was made, and NVML does not show it yet; kubelet tries again")

    def destroy(self, uid: str, claim: PreparedClaim) -> frozenset[str]:
        """Destroy what was made for a claim; return the GPUs that are to leave MIG mode thereby, and did.

        The claim stays in the checkpoint. Raises RefusedError, ClaimError, CutError, CheckpointError, OSError.
        """
        with self._checkpoint.locked() as prepared:
            switched = frozenset(prepared.switched)
            others = {device.gpu for other, each in prepared.claims.items() if other != uid for device in each.made}
        ended: set[str] = set()
        left = list(claim.made)
        while left:
            device = left.pop()
            off = device.gpu in switched - others and device.gpu not in {each.gpu for each in left}
            removed = self._partitioner.remove(device, off)
            if off and not removed.enabled:
                ended.add(device.gpu)
            if removed.kept:
                _log.warning("a GPU stays in MIG mode", extra={"gpu": device.gpu, "reason": removed.kept})
            _log.info("MIG device destroyed", extra={"claim": str(claim), "device": device.device, "uuid": device.uuid})
        uuids = {device.uuid for device in claim.made if device.uuid}
        self._await(lambda state: not any(map(state.has, uuids)) and not ended & _in_mig_mode(state))
        return frozenset(ended)

    def end_modes(self) -> None:
        """Have GPUs leave MIG mode that should have and could not.

        Raises ClaimError, CutError, CheckpointError, OSError.
        """
        state = self._devices.state
        with self._checkpoint.locked() as prepared:
            idle = _idle(prepared.holdings)
        if not idle or state.inventory is None:
            return
        cut = {gpu.uuid for gpu in state.inventory.gpus if gpu.mig_devices}
        with self._partitioner.alone(timeout=0):
            with self._checkpoint.locked() as prepared:
                idle = _idle(prepared.holdings) - cut
            ended = {gpu for gpu in sorted(idle) if not self._partitioner.end_mode(gpu).enabled}
            self._await(lambda state: not ended & _in_mig_mode(state))
            with self._checkpoint.locked() as prepared:
                prepared.switched -= ended
                prepared.save()

    def _await(self, reached: Callable[[DeviceState], bool]) -> bool:
        """Return whether the GPUs are so before time is up."""
        end = time.monotonic() + _SEEN
        state: DeviceState | None = self._devices.state
        while state is not None and not reached(state) and (left := end - time.monotonic()) > 0:
            state = self._devices.wait(state.serial, left)
        return state is not None and reached(state)


def refuse_taken(devices: Iterable[PreparedDevice], cards: Mapping[str, Card]) -> None:
    """Raises ClaimError where something is already that is to be made: nobody knows whose that is."""
    for device in devices:
        card, place = cards.get(device.gpu), device.placement
        for each in card.instances if card is not None and place is not None else ():
            if place is not None and place.overlaps(each.start, each.size):
                raise ClaimError(
                    f"MIG device {device.device} cannot be made: {card} has an instance of {each.profile} there that"
                    " was not made for a claim; destroy it"
                )


def _in_mig_mode(state: DeviceState) -> set[str]:
    return {gpu.uuid for gpu in state.inventory.gpus if gpu.mig_enabled} if state.inventory is not None else set()


def _idle(holdings: Holdings) -> set[str]:
    """Return the GPUs that are to leave MIG mode: without a device that was made."""
    used = {device.gpu for device in holdings.devices if device.placement is not None}
    return set(holdings.switched - used)
