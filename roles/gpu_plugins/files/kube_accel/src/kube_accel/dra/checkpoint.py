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
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from kube_accel.dra.partitions import Placement
from kube_accel.dra.portions import Portion
from kube_accel.files import replacing
from kube_accel.shared.api_json import ANY, ApiJsonError, fit, read_object

_log = logging.getLogger(__name__)

VERSION: Final = 4
_MIG_VERSION: Final = 3
_SHARE_VERSION: Final = 2
_WHOLE_VERSION: Final = 1
"""Written while no claim has more, for who reads no other: whole GPUs would be made of shares and of MIG devices."""
FILE: Final = "claims.json"
_DEVICE: Final = {
    "request!": str,
    "device!": str,
    "uuid": str,
    "parentUuid": str,
    "admin": bool,
    "shareId": str,
    "share": {"cores!": int, "memoryBytes!": int},
    "placement": {"profile!": str, "start!": int, "size!": int},
}
_SHAPE: Final = {
    "version!": int,
    "bootId!": str,
    "claims!": {ANY: {"namespace!": str, "name!": str, "devices!": [_DEVICE]}},
    "switched": [str],
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
    placement: Placement | None = None
    """Where a MIG device is made for the claim; it has no UUID before. None for what is there without claims."""

    @property
    def gpu(self) -> str:
        """Return the UUID of the GPU that it is, or is a part of."""
        return self.parent or self.uuid

    def takes_of(self, other: PreparedDevice) -> bool:
        """Return whether both are of one GPU, whatever it is called now, and this one keeps others from it.

        MIG devices of one GPU leave each other alone, if they are not at one place.
        """
        if self.admin:
            return False
        if self.device == other.device:
            return True
        if self.parent and other.parent:
            mine, its = self.placement, other.placement
            place = mine is not None and its is not None and mine.overlaps(its.start, its.size)
            return self.gpu == other.gpu and (place or bool(self.uuid and self.uuid == other.uuid))
        return self.gpu == other.gpu


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

    @property
    def made(self) -> tuple[PreparedDevice, ...]:
        """Return the devices that are made for it, and destroyed after it."""
        return tuple(device for device in self.devices if device.placement is not None)

    @property
    def complete(self) -> bool:
        """Return whether all of its devices are there."""
        return all(device.uuid for device in self.devices)


@dataclass(frozen=True, slots=True)
class Holdings:
    """What is prepared, at one look."""

    devices: tuple[PreparedDevice, ...] = ()
    switched: frozenset[str] = frozenset()
    """UUIDs of the GPUs that the driver has put into MIG mode, and is to take out of it."""

    @property
    def names(self) -> frozenset[str]:
        """Return the names of the devices. What is only watched over is nobody's."""
        return frozenset(device.device for device in self.devices if not device.admin)

    @property
    def made(self) -> bool:
        """Return whether a device is made for a claim."""
        return any(device.placement is not None for device in self.devices)

    def of(self, gpu: str) -> tuple[PreparedDevice, ...]:
        """Return the devices of the GPU with this UUID."""
        return tuple(device for device in self.devices if device.gpu == gpu)


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
    switched: set[str] = field(default_factory=set)
    """UUIDs of the GPUs that the driver has put into MIG mode, and is to take out of it."""

    @property
    def holdings(self) -> Holdings:
        """Return all that is prepared."""
        devices = tuple(device for claim in self.claims.values() for device in claim.devices)
        return Holdings(devices, frozenset(self.switched))

    def save(self) -> None:
        """Have the file say so, on disk. Raises OSError."""
        claims = {uid: _document(claim) for uid, claim in self.claims.items()}
        version = max((_version(each) for claim in self.claims.values() for each in claim.devices), default=1)
        document = {**self.rest, "version": version, "bootId": self.boot_id, "claims": claims}
        if self.switched:
            document["switched"] = sorted(self.switched)
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
                return _copy(known)
            with self._path.open("rb") as file:
                prepared = self._understood(file.read(), boot)
                self._know(prepared, file.fileno())
        except FileNotFoundError:
            return self._prepared(boot)
        if prepared.boot_id == boot:
            return prepared
        _log.info("the machine was rebooted, no claim is prepared", extra={"claims": len(prepared.claims)})
        prepared = self._prepared(boot, rest=prepared.rest, switched=prepared.switched)
        prepared.save()
        return prepared

    def _know(self, prepared: Prepared, file: int) -> None:
        if self._file >= 0:
            os.close(self._file)
        self._file, self._mark = os.dup(file), _mark(os.fstat(file))
        self._known = _copy(prepared)

    def _prepared(
        self,
        boot: str,
        claims: dict[str, PreparedClaim] | None = None,
        rest: Mapping[str, Any] | None = None,
        switched: set[str] | None = None,
    ) -> Prepared:
        return Prepared(self._path, boot, claims or {}, rest or {}, self._know, switched or set())

    def _understood(self, text: bytes, boot: str) -> Prepared:
        try:
            document = read_object(text)
            version = document.get("version")
            if isinstance(version, int) and version > VERSION:
                raise CheckpointError(
                    f"{self._path} has version {version}, and this program reads {VERSION}; run the one that wrote it"
                )
            fit(document, _SHAPE, str(self._path))
            claims = {uid: _claim(each) for uid, each in document["claims"].items()}
        except ApiJsonError as error:
            aside = self._path.with_suffix(".damaged")
            self._path.replace(aside)
            _log.error("the list of prepared claims is damaged", extra={"moved to": str(aside), "reason": str(error)})
            return self._prepared(boot)
        known = ("version", "bootId", "claims", "switched")
        rest = {key: each for key, each in document.items() if key not in known}
        return self._prepared(document["bootId"], claims, rest, set(document.get("switched") or ()))


def _copy(prepared: Prepared) -> Prepared:
    """Return what may be changed by who has it."""
    return replace(prepared, claims=dict(prepared.claims), switched=set(prepared.switched))


def _mark(found: os.stat_result) -> tuple[int, ...]:
    return found.st_dev, found.st_ino, found.st_mtime_ns, found.st_size


def _version(device: PreparedDevice) -> int:
    """Return the version of those who can read a device."""
    if device.placement is not None:
        return VERSION
    if device.parent:
        return _MIG_VERSION
    return _WHOLE_VERSION if device.portion is None else _SHARE_VERSION


def _claim(each: Mapping[str, Any]) -> PreparedClaim:
    devices = tuple(map(_device, each["devices"]))
    known = ("namespace", "name", "devices")
    rest = {key: value for key, value in each.items() if key not in known}
    return PreparedClaim(each["namespace"], each["name"], devices, rest)


def _device(each: Mapping[str, Any]) -> PreparedDevice:
    share, place = each.get("share"), each.get("placement")
    if not each.get("uuid") and not (place and each.get("parentUuid")):
        raise ApiJsonError(f"device {each['device']} has no uuid")
    return PreparedDevice(
        each["request"],
        each["device"],
        each.get("uuid") or "",
        bool(each.get("admin")),
        each.get("shareId") or "",
        None if share is None else Portion(share["cores"], share["memoryBytes"]),
        each.get("parentUuid") or "",
        None if place is None else Placement(place["profile"], place["start"], place["size"]),
    )


def _device_document(device: PreparedDevice) -> dict[str, Any]:
    found: dict[str, Any] = {"request": device.request, "device": device.device}
    if device.uuid:
        found["uuid"] = device.uuid
    if device.parent:
        found["parentUuid"] = device.parent
    if device.placement is not None:
        found["placement"] = asdict(device.placement)
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
