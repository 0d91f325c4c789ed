# SPDX-License-Identifier: Apache-2.0
"""Which claims are prepared on this node: a file, since kubelet may call any of two instances, also after a crash.

Keys that this version does not know stay as they are. What was prepared before the machine was started anew is not
prepared any more: no container of then runs, and kubelet has its claim prepared again for the next one.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from kube_accel.dra.portions import Portion
from kube_accel.files import replacing
from kube_accel.shared.api_json import ANY, ApiJsonError, fit, read_object

_log = logging.getLogger(__name__)

VERSION: Final = 3
_SHARE_VERSION: Final = 2
_WHOLE_VERSION: Final = 1
"""Written while no claim has a share or a MIG device, for who reads no other: it would make whole GPUs of these."""
FILE: Final = "claims.json"
_DEVICE: Final = {
    "request!": str,
    "device!": str,
    "uuid!": str,
    "parentUuid": str,
    "admin": bool,
    "shareId": str,
    "share": {"cores!": int, "memoryBytes!": int},
}
_SHAPE: Final = {
    "version!": int,
    "bootId!": str,
    "claims!": {ANY: {"namespace!": str, "name!": str, "devices!": [_DEVICE]}},
}
BOOT_ID: Final = Path("/proc/sys/kernel/random/boot_id")


class CheckpointError(Exception):
    """The file cannot be used; the message says why, and what to do."""


@dataclass(frozen=True, slots=True)
class PreparedDevice:
    """A device as a claim has it."""

    request: str
    device: str
    uuid: str
    """GPU or MIG device that it stood for."""
    admin: bool = False
    share_id: str = ""
    """What tells it from other allocations of the same device; empty where there can be none."""
    portion: Portion | None = None
    """None for all of it."""
    parent: str = ""
    """GPU that a MIG device is a part of; empty for a GPU."""

    def takes_of(self, other: PreparedDevice) -> bool:
        """Return whether both are of one GPU, whatever it is called now, and this one keeps others from it.

        MIG devices of one GPU leave each other alone.
        """
        same = self.device == other.device or self.uuid in (other.uuid, other.parent) or self.parent == other.uuid
        return same and not self.admin


@dataclass(frozen=True, slots=True)
class PreparedClaim:
    """A claim, and the devices that containers may use because of it."""

    namespace: str
    name: str
    devices: tuple[PreparedDevice, ...]
    rest: Mapping[str, Any] = field(default_factory=dict)
    """What other versions note of it."""

    def __str__(self) -> str:
        return f"{self.namespace}/{self.name}"


@dataclass(slots=True)
class Prepared:
    """What the file says. Changes are kept by ``save``."""

    path: Path
    boot_id: str
    claims: dict[str, PreparedClaim]
    """By UID."""
    rest: Mapping[str, Any]
    saved: Callable[[Prepared, int], None]
    """Called with a descriptor of each file that is written."""

    def save(self) -> None:
        """Have the file say so, on disk. Raises OSError."""
        claims = {uid: _document(claim) for uid, claim in self.claims.items()}
        version = max((_version(each) for claim in self.claims.values() for each in claim.devices), default=1)
        document = {**self.rest, "version": version, "bootId": self.boot_id, "claims": claims}
        with replacing(self.path) as file:
            # Indented, it would be made by Python and not by C, while a pod waits.
            file.write(json.dumps(document).encode() + b"\n")
            file.flush()
            os.fsync(file.fileno())
            self.saved(self, file.fileno())


class Checkpoint:
    """The file, for all instances. It is read again once it is another."""

    def __init__(self, state_dir: Path, boot_id: Path = BOOT_ID) -> None:
        self._path = state_dir / FILE
        self._lock = state_dir / "claims.lock"
        self._boot_id = boot_id
        self._known: Prepared | None = None
        self._mark: tuple[int, ...] = ()
        """The inode, the time of the last change in nanoseconds, and the bytes of the file that says what is known."""
        self._file = -1
        """That file. While it is open, no other gets its inode."""

    def __del__(self) -> None:
        if self._file >= 0:
            os.close(self._file)

    @contextmanager
    def locked(self) -> Iterator[Prepared]:
        """Yield what the file says; nobody else reads or writes it meanwhile. Raises CheckpointError, OSError."""
        file = os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield self._read()
        finally:
            os.close(file)

    def _read(self) -> Prepared:
        boot = self._boot_id.read_text().strip()
        known = self._known
        try:
            if known is not None and known.boot_id == boot and _mark(self._path.stat()) == self._mark:
                return replace(known, claims=dict(known.claims))
            with self._path.open("rb") as file:
                prepared = self._understood(file.read(), boot)
                self._know(prepared, file.fileno())
        except FileNotFoundError:
            return self._prepared(boot)
        if prepared.boot_id == boot:
            return prepared
        _log.info("the machine was rebooted, no claim is prepared", extra={"claims": len(prepared.claims)})
        prepared = self._prepared(boot, rest=prepared.rest)
        prepared.save()
        return prepared

    def _know(self, prepared: Prepared, file: int) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._file, self._mark = os.dup(file), _mark(os.fstat(file))
        self._known = replace(prepared, claims=dict(prepared.claims))

    def _prepared(
        self, boot: str, claims: dict[str, PreparedClaim] | None = None, rest: Mapping[str, Any] | None = None
    ) -> Prepared:
        return Prepared(self._path, boot, claims or {}, rest or {}, self._know)

    def _understood(self, text: bytes, boot: str) -> Prepared:
        try:
            document = read_object(text)
            version = document.get("version")
            if isinstance(version, int) and version > VERSION:
                raise CheckpointError(
                    f"{self._path} has version {version}, and this program reads {VERSION}; run the one that wrote it"
                )
            fit(document, _SHAPE, str(self._path))
        except ApiJsonError as error:
            aside = self._path.with_suffix(".damaged")
            self._path.replace(aside)
            _log.error("the list of prepared claims is damaged", extra={"moved to": str(aside), "reason": str(error)})
            return self._prepared(boot)
        known = ("version", "bootId", "claims")
        rest = {key: each for key, each in document.items() if key not in known}
        claims = {uid: _claim(each) for uid, each in document["claims"].items()}
        return self._prepared(document["bootId"], claims, rest)


def _mark(found: os.stat_result) -> tuple[int, ...]:
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size


def _version(device: PreparedDevice) -> int:
    """Return the version of those who can read a device."""
    if device.parent:
        return VERSION
    return _WHOLE_VERSION if device.portion is None else _SHARE_VERSION


def _claim(each: Mapping[str, Any]) -> PreparedClaim:
    devices = tuple(map(_device, each["devices"]))
    known = ("namespace", "name", "devices")
    rest = {key: value for key, value in each.items() if key not in known}
    return PreparedClaim(each["namespace"], each["name"], devices, rest)


def _device(each: Mapping[str, Any]) -> PreparedDevice:
    share = each.get("share")
    return PreparedDevice(
        each["request"],
        each["device"],
        each["uuid"],
        bool(each.get("admin")),
        each.get("shareId") or "",
        None if share is None else Portion(share["cores"], share["memoryBytes"]),
        each.get("parentUuid") or "",
    )


def _device_document(device: PreparedDevice) -> dict[str, Any]:
    found: dict[str, Any] = {"request": device.request, "device": device.device, "uuid": device.uuid}
    if device.parent:
        found["parentUuid"] = device.parent
    if device.admin:
        found["admin"] = True
    if device.share_id:
        found["shareId"] = device.share_id
    if device.portion is not None:
        found["share"] = {"cores": device.portion.cores, "memoryBytes": device.portion.memory_bytes}
    return found


def _document(claim: PreparedClaim) -> dict[str, Any]:
    devices = list(map(_device_document, claim.devices))
    return {**claim.rest, "namespace": claim.namespace, "name": claim.name, "devices": devices}
