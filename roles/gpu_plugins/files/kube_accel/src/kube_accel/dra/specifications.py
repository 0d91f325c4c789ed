# SPDX-License-Identifier: Apache-2.0
"""A CDI specification for each prepared claim: how the container runtime brings its GPUs into containers."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Final

from kube_accel.dra.checkpoint import PreparedClaim, PreparedDevice
from kube_accel.dra.claims import ClaimError
from kube_accel.dra.shares import Shares
from kube_accel.dra.slices import parts_by_device
from kube_accel.model import Inventory
from kube_accel.plugin.node.cdi_writer import CdiDocuments, write_document
from kube_accel.sharing.cdi import VERSION
from kube_accel.sharing.delivery import Delivery
from kube_accel.sharing.interposition import WHOLE

_log = logging.getLogger(__name__)

KIND: Final = "kube-accel.io/claim"
PREFIX: Final = "kube-accel.io-claim-"
_SHARE: Final = "share-"
_MARK: Final = {"hostPath": "/dev/null", "containerPath": WHOLE, "options": ["ro", "nosuid", "nodev", "bind"]}
"""By this the hook of a share knows that a container has a whole GPU too."""

_Mark = tuple[int, int, int] | None
"""Inode, time of the last change in nanoseconds, and bytes."""


class ClaimSpecifications:
    """The files in the runtime's directory. Called by who has the checkpoint locked."""

    def __init__(self, directory: Path, documents: CdiDocuments, delivery: Delivery, shares: Shares) -> None:
        self._directory = directory
        self._shares = shares
        self._documents = documents
        self._delivery = delivery
        self._around: object = None
        """What the files were made of at the last look: the driver's files and the host's device nodes."""
        self._made: dict[str, tuple[PreparedClaim, tuple[_Mark, ...]]] = {}
        """Whose files were right then, by the claim's UID, and how they were."""
        self._problems: dict[str, str] = {}
        """Why the files of others were not, by the claim's UID."""

    def write(self, uid: str, claim: PreparedClaim, inventory: Inventory, new: bool = False) -> None:
        """Have the runtime know the devices of a claim, with the driver's files as they are now.

        The shares of a ``new`` claim begin with empty accounts. Raises ClaimError, OSError.
        """
        names = {each.uuid: f"{uid}-{each.device}" for each in claim.devices if each.portion is None}
        if names:
            self._write_whole(uid, names, inventory)
        shares = [
            {"name": f"{uid}-{_SHARE}{request}", "containerEdits": edits}
            for request, edits in self._shares.edits(uid, claim, new)
        ]
        if shares:
            write_document(self._paths(uid)[1], {"cdiVersion": VERSION, "kind": KIND, "devices": shares})

    def _write_whole(self, uid: str, names: Mapping[str, str], inventory: Inventory) -> None:
        parts = [part for part in parts_by_device(inventory).values() if part.uuid in names]
        document = self._documents.of(parts, inventory.driver_version, self._delivery)
        found = document["devices"] if document is not None else []
        if document is None or len(found) < len(names):
            lacking = ", ".join(sorted(names.keys() - {each["name"] for each in found}))
            raise ClaimError(f"no device node of {lacking} is on the host; run nvidia-modprobe -c0 -u there")
        devices = [{**each, "name": names[each["name"]]} for each in found]
        edits = document["containerEdits"]
        edits = {**edits, "mounts": [*edits.get("mounts", ()), _MARK]}
        write_document(self._paths(uid)[0], {**document, "kind": KIND, "devices": devices, "containerEdits": edits})

    def remove(self, uid: str) -> None:
        """Have the runtime forget a claim. Raises OSError."""
        for path in self._paths(uid):
            path.unlink(missing_ok=True)

    def released(self, uid: str, claim: PreparedClaim) -> None:
        """Remove what the containers of a claim had. Raises OSError."""
        self._shares.remove(uid, claim)

    def match(self, claims: Iterable[tuple[str, PreparedClaim]], inventory: Inventory) -> None:
        """Have the files be those of these claims, and no others. Raises OSError."""
        held, known, problems = tuple(claims), set[Path](), dict[str, str]()
        around = self._things_around(inventory, [claim for _, claim in held])
        before, self._made = (self._made if around == self._around else {}), {}
        self._around = around
        for uid, claim in held:
            known.update(self._paths(uid))
            try:
                if before.get(uid) != (claim, self._marks(uid)) or not self._shares.kept(uid, claim):
                    self.write(uid, claim, inventory)
                self._made[uid] = claim, self._marks(uid)
            except ClaimError as error:
                problems[uid] = str(error)
                if self._problems.get(uid) != str(error):
                    _log.warning("a CDI specification is not kept", extra={"claim": str(claim), "reason": str(error)})
        self._problems = problems
        for path in self._directory.glob(f"{PREFIX}*.json"):
            if path not in known:
                path.unlink(missing_ok=True)
        self._shares.prune(held)

    def _things_around(self, inventory: Inventory, claims: Iterable[PreparedClaim]) -> object:
        """Return what the specifications of these claims depend on, to compare. Raises OSError."""
        portions = {each.portion is not None for claim in claims for each in claim.devices}
        parts, version = parts_by_device(inventory).values(), inventory.driver_version
        whole = self._documents.of(parts, version, self._delivery) if False in portions else None
        return inventory, whole, self._shares.around() if True in portions else None

    def _marks(self, uid: str) -> tuple[_Mark, ...]:
        return tuple(map(_mark, self._paths(uid)))

    def _paths(self, uid: str) -> tuple[Path, Path]:
        """Return the specification of a claim's whole GPUs, and that of its shares: containers get other files."""
        return self._directory / f"{PREFIX}{uid}.json", self._directory / f"{PREFIX}{uid}.shares.json"


def _mark(path: Path) -> _Mark:
    """Return what tells whether a file is the one that was written; None where there is none. Raises OSError."""
    try:
        found = path.lstat()
    except FileNotFoundError:
        return None
    return found.st_ino, found.st_mtime_ns, found.st_size


def device_ids(uid: str, devices: Iterable[PreparedDevice]) -> list[list[str]]:
    """Return the names by which the runtime knows each device of a claim; a request's shares are one to it."""
    found, told = [], set[tuple[str, str]]()
    for each in devices:
        name = each.device if each.portion is None else f"{_SHARE}{each.request}"
        found.append([] if (each.request, name) in told else [f"{KIND}={uid}-{name}"])
        told.add((each.request, name))
    return found
