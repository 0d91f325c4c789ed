# SPDX-License-Identifier: Apache-2.0
"""Builds of the interposer: copied out of the daemon's image into directories that never change, one a content.

A container keeps the build that it was admitted with, whatever the daemon is upgraded to meanwhile. A build offers what
the node's driver offers, and nothing that it lacks: programs take a name that is there for a driver that has it.
"""

from __future__ import annotations

import hashlib
import logging
import mmap
import os
import shutil
import struct
import time
from collections.abc import Collection, Mapping
from contextlib import suppress
from pathlib import Path

from kube_accel.enforce import elf, selinux
from kube_accel.enforce.held_open import HeldOpen
from kube_accel.files import open_regular

_log = logging.getLogger(__name__)

LIBRARIES = ("libcuda.so.1", "libnvidia-ml.so.1")
HOOK = "ldcache"
"""The OCI hook that enters the libraries into a container's loader cache; the runtime runs it on the host."""
FILES = (*LIBRARIES, HOOK)
"""Files of a build."""
_MACHINES = {"x86_64": 62, "aarch64": 183}
"""ELF's ``e_machine``."""
_NAMES = {number: name for name, number in _MACHINES.items()}
_KEPT_SECONDS = 86400.0
"""A build that no container is known to use stays so long: init containers are listed nowhere."""


class ShimError(Exception):
    """There is no build that containers could use; the message says why and what to do."""


class Builds:
    """``<state-dir>/shim/<digest>``, each held open."""

    def __init__(self, source: Path, state_dir: Path, sysfs_root: Path, machine: str = os.uname().machine) -> None:
        """``source`` is the directory in the image."""
        self._source = source
        self._root = state_dir / "shim"
        self._label = selinux.wanted(sysfs_root)
        self._machine = machine
        self._held = HeldOpen()
        self._digest = ""
        self._stamps: tuple[tuple[int, ...], ...] | None = None
        """Stamps of the image's build, the host's and the driver, as they were when all were read last."""

    def install(self, driver: Mapping[str, Path] | None = None) -> str:
        """Put the image's build on the host, fitted to the driver, and return its digest. Reads only what has changed.

        ``driver`` has the driver's own library for each of ours. Raises ShimError.
        """
        try:
            return self._installed(driver or {})
        finally:
            self._held.hold(path / name for path in self._root.glob("[!.]*") for name in FILES)

    def _installed(self, driver: Mapping[str, Path]) -> str:
        if self._stamps is not None and self._stamps == self._stamped(self._digest, driver):
            return self._digest
        try:
            contents = {name: (self._source / name).read_bytes() for name in FILES}
        except OSError as error:
            raise ShimError(
                f"the image has no interposer ({error}); use an image that contains it, or set --shim-dir"
            ) from error
        for name, data in contents.items():
            if wrong := _unfit(data, self._machine):
                raise ShimError(f"{self._source / name} {wrong}; use the image for this node's architecture")
        contents |= {name: _fitted(contents[name], path) for name, path in driver.items()}
        digest = hashlib.sha256(b"".join(hashlib.sha256(data).digest() for data in contents.values())).hexdigest()[:32]
        try:
            self._write(self._root / digest, contents)
        except OSError as error:
            raise ShimError(f"the interposer cannot be copied to {self._root}: {error}; free space there") from error
        self._digest, self._stamps = digest, self._stamped(digest, driver)
        return digest

    def _stamped(self, digest: str, driver: Mapping[str, Path]) -> tuple[tuple[int, ...], ...] | None:
        ours = (directory / name for directory in (self._source, self._root / digest) for name in FILES)
        return _stamps(*ours, *driver.values())

    def path(self, digest: str) -> Path:
        """Return where a build is."""
        return self._root / digest

    def prune(self, used: Collection[str], now: float | None = None) -> None:
        """Remove builds that are none of ``used`` and were not looked after for a day."""
        moment = time.time() if now is None else now
        with suppress(OSError):
            for path in list(self._root.iterdir()):
                if path.name not in used and moment - path.stat().st_mtime > _KEPT_SECONDS:
                    _log.info("a build of the interposer is removed", extra={"build": path.name})
                    shutil.rmtree(path, ignore_errors=True)

    def keep(self, digest: str) -> None:
        """Note that this build is in use."""
        with suppress(OSError):
            os.utime(self._root / digest)

    def _write(self, target: Path, contents: dict[str, bytes]) -> None:
        if target.is_dir() and all(_same(target / name, data) for name, data in contents.items()):
            return
        self._root.mkdir(parents=True, exist_ok=True)
        self._root.chmod(0o755)
        draft = self._root / f".{os.urandom(4).hex()}"
        draft.mkdir(0o700)
        try:
            for name, data in contents.items():
                (draft / name).write_bytes(data)
                (draft / name).chmod(0o555)
                # The hook is the runtime's to use, and no container's.
                selinux.share(draft / name, self._label and name != HOOK)
            draft.chmod(0o755)
            if target.is_dir():
                # Damaged, or kept by a file lease: containers that run keep the files they have mapped.
                aside = draft.with_name(f"{draft.name}.old")
                target.rename(aside)
                draft.rename(target)
                shutil.rmtree(aside, ignore_errors=True)
            else:
                draft.rename(target)
        finally:
            shutil.rmtree(draft, ignore_errors=True)
        _log.info("a build of the interposer is installed", extra={"path": str(target)})


def _stamps(*paths: Path) -> tuple[tuple[int, ...], ...] | None:
    """Return a mark that differs when files have changed; None when one is not there."""
    try:
        found = [path.stat() for path in paths]
    except OSError:
        return None
    return tuple((status.st_dev, status.st_ino, status.st_size, status.st_ctime_ns) for status in found)


def _fitted(data: bytes, driver: Path) -> bytes:
    """Return a library of ours without the names that the driver's lacks; whole where the driver's cannot be read."""
    try:
        with driver.open("rb") as file, mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as library:
            return elf.without(data, elf.exports(data) - elf.exports(library))
    except (OSError, ValueError) as error:
        _log.warning(
            "the driver's library cannot be read, so that programs find names in the interposer that it may lack",
            extra={"path": str(driver), "error": str(error)},
        )
        return data


def _same(path: Path, data: bytes) -> bool:
    try:
        with os.fdopen(open_regular(path, os.O_RDONLY), "rb") as file:
            return file.read() == data
    except OSError:
        return False


def _unfit(data: bytes, machine: str) -> str:
    """Return why a file is no library for this machine; empty when it is one."""
    if data[:5] != b"\x7fELF\x02" or len(data) < 20:
        return "is no 64-bit ELF library"
    (found,) = struct.unpack_from("<H", data, 18)
    if found != _MACHINES.get(machine):
        return f"is for {_NAMES.get(found, f'machine {found}')}, and this node is {machine}"
    return ""
