# SPDX-License-Identifier: Apache-2.0
"""A CDI specification for each prepared claim: how the container runtime brings its GPUs into containers."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from kube_accel.dra.checkpoint import PreparedClaim
from kube_accel.dra.claims import ClaimError
from kube_accel.model import Inventory
from kube_accel.plugin.node.cdi_writer import CdiDocuments, write_document
from kube_accel.sharing.delivery import Delivery
from kube_accel.sharing.whole import whole

_log = logging.getLogger(__name__)

KIND: Final = "kube-accel.io/claim"
PREFIX: Final = "kube-accel.io-claim-"


class ClaimSpecifications:
    """The files in the runtime's directory. Called by who has the checkpoint locked."""

    def __init__(self, directory: Path, documents: CdiDocuments, delivery: Delivery) -> None:
        self._directory = directory
        self._documents = documents
        self._delivery = delivery

    def write(self, uid: str, claim: PreparedClaim, inventory: Inventory) -> None:
        """Have the runtime know the devices of a claim, with the driver's files as they are now.

        Raises ClaimError, OSError.
        """
        names = {each.uuid: f"{uid}-{each.device}" for each in claim.devices}
        parts = [whole(gpu) for gpu in inventory.gpus if gpu.uuid in names]
        document = self._documents.of(parts, inventory.driver_version, self._delivery)
        found = document["devices"] if document is not None else []
        if document is None or len(found) < len(names):
            lacking = ", ".join(sorted(names.keys() - {each["name"] for each in found}))
            raise ClaimError(f"no device node of {lacking} is on the host; run nvidia-modprobe -c0 -u there")
        devices = [{**each, "name": names[each["name"]]} for each in found]
        write_document(self._path(uid), {**document, "kind": KIND, "devices": devices})

    def remove(self, uid: str) -> None:
        """Have the runtime forget a claim. Raises OSError."""
        self._path(uid).unlink(missing_ok=True)

    def match(self, claims: Iterable[tuple[str, PreparedClaim]], inventory: Inventory) -> None:
        """Have the files be those of these claims, and no others. Raises OSError."""
        known = set()
        for uid, claim in claims:
            known.add(self._path(uid))
            try:
                self.write(uid, claim, inventory)
            except ClaimError as error:
                _log.warning("a CDI specification is not kept", extra={"claim": str(claim), "reason": str(error)})
        for path in self._directory.glob(f"{PREFIX}*.json"):
            if path not in known:
                path.unlink(missing_ok=True)

    def _path(self, uid: str) -> Path:
        return self._directory / f"{PREFIX}{uid}.json"


def device_id(uid: str, device: str) -> str:
    """Return the name by which the runtime knows a device of a claim."""
    return f"{KIND}={uid}-{device}"
