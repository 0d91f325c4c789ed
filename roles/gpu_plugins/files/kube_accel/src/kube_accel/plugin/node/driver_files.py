# SPDX-License-Identifier: Apache-2.0
"""Finds the driver's files on a node. They come and go under us, so they are looked for again and again."""

from __future__ import annotations

import os
import posixpath
import re
import stat
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kube_accel.enforce.held_open import HeldOpen
from kube_accel.sharing.cdi import DriverFiles

_LIBRARY_DIRECTORIES = (
    # Debian's own packages; beside it there are links to /etc/alternatives.
    "usr/lib/x86_64-linux-gnu/nvidia/current",
    "usr/lib/aarch64-linux-gnu/nvidia/current",
    "usr/lib/x86_64-linux-gnu",
    "usr/lib/aarch64-linux-gnu",
    "usr/lib64",
    "usr/lib",
    "lib/x86_64-linux-gnu",
    "lib/aarch64-linux-gnu",
    "lib64",
)
_PROGRAMS = (
    "nvidia-smi",
    "nvidia-debugdump",
    "nvidia-persistenced",
    "nvidia-cuda-mps-control",
    "nvidia-cuda-mps-server",
)
_PROGRAM_DIRECTORIES = ("usr/lib/nvidia/current", "usr/bin", "usr/sbin", "opt/bin")
_OTHER_VERSIONS = re.compile(r"libnvidia-egl-[a-z0-9]+\.so\.\d+(\.\d+)+")
"""Libraries of graphics that come with the driver and have versions of their own."""
_DATA = (
    *((f"{top}/vulkan/icd.d", "nvidia*.json") for top in ("etc", "usr/share")),
    *((f"{top}/vulkan/implicit_layer.d", "nvidia*.json") for top in ("etc", "usr/share")),
    *((f"{top}/vulkansc/icd.d", "nvidia*.json") for top in ("etc", "usr/share")),
    *((f"{top}/glvnd/egl_vendor.d", "*nvidia*.json") for top in ("etc", "usr/share")),
    *((f"{top}/egl/egl_external_platform.d", "*nvidia*.json") for top in ("etc", "usr/share")),
    ("usr/share/nvidia", "nvoptix.bin"),
    ("etc/OpenCL/vendors", "nvidia.icd"),
)
_GBM = "gbm/nvidia-drm_gbm.so"
"""Mesa's loader looks for it below the directory of its libraries."""
_MOST_LINKS = 40
_SOCKETS = ("run/nvidia-persistenced/socket", "run/nvidia-fabricmanager/socket")
_SETTLED_NS = 2_000_000_000
"""A directory that changed less than this ago may change again without its time's saying so."""


@dataclass(frozen=True, slots=True)
class _Libraries:
    """What a directory has of one version of the driver."""

    changed_ns: int
    names: frozenset[str]
    links: Mapping[str, str]
    """Names of links, and of the libraries that they lead to."""


class DriverFinder:
    """Looks below directories of a node; one that did not change is not read again. What was found last stays open."""

    def __init__(self) -> None:
        self._held = HeldOpen()
        self._read: dict[tuple[int, int, str], _Libraries] = {}
        """By device and inode of the directory, and the version that was looked for."""

    def find(self, root: Path, version: str) -> DriverFiles:
        """Find the driver's files of this version below ``root``. Links are not followed out of their directory."""
        files: dict[str, None] = {}
        links: dict[str, str] = {}
        read: dict[tuple[int, int, str], _Libraries] = {}
        backends: list[str] = []
        for name in _LIBRARY_DIRECTORIES:
            try:
                status = (root / name).stat()
            except OSError:
                continue
            key = status.st_dev, status.st_ino, version
            # /lib is a link to /usr/lib nearly everywhere.
            if key in read or not stat.S_ISDIR(status.st_mode):
                continue
            known = self._read.get(key)
            if known is None or known.changed_ns != status.st_mtime_ns:
                settled = time.time_ns() - status.st_mtime_ns > _SETTLED_NS
                try:
                    known = _libraries(root / name, version, status.st_mtime_ns if settled else -1)
                except OSError:
                    continue
            read[key] = known
            files |= dict.fromkeys(f"/{name}/{library}" for library in sorted(known.names))
            links |= {f"/{name}/{link}": f"/{name}/{known.links[link]}" for link in sorted(known.links)}
            backends.append(f"{name}/{_GBM}")
        self._read = read
        for program in _PROGRAMS:
            found = (f"{directory}/{program}" for directory in _PROGRAM_DIRECTORIES)
            files |= dict.fromkeys([f"/{path}" for path in found if (root / path).is_file()][:1])
        firmware = root / f"lib/firmware/nvidia/{version}"
        with suppress(OSError):
            files |= dict.fromkeys(
                f"/lib/firmware/nvidia/{version}/{path.name}" for path in sorted(firmware.glob("gsp*.bin"))
            )
        found = (f"{at}/{path.name}" for at, pattern in _DATA for path in sorted((root / at).glob(pattern)))
        data = {f"/{path}": end for path in (*found, *backends) if (end := _end(root, f"/{path}"))}
        self._held.hold(root / path.lstrip("/") for path in (*files, *data.values()))
        sockets = tuple(f"/{path}" for path in _SOCKETS if (root / path).is_socket())
        return DriverFiles(tuple(files), sockets, links, data)


def _end(root: Path, path: str) -> str:
    """Resolve a file's links as a process with this ``root`` would; empty if there is none."""
    for _ in range(_MOST_LINKS):
        try:
            target = (root / path.lstrip("/")).readlink()
        except OSError:
            break
        path = posixpath.normpath(posixpath.join(posixpath.dirname(path), target))
    whole = root / path.lstrip("/")
    return path if whole.is_file() and not whole.is_symlink() else ""


def _libraries(directory: Path, version: str, changed_ns: int) -> _Libraries:
    names, targets = set(), {}
    with os.scandir(directory) as entries:
        for entry in entries:
            if ".so" not in entry.name:
                continue
            if entry.is_symlink():
                with suppress(OSError):
                    targets[entry.name] = str(Path(entry.path).readlink())
            elif (entry.name.startswith("lib") and entry.name.endswith(f".so.{version}")) or _OTHER_VERSIONS.fullmatch(
                entry.name
            ):
                names.add(entry.name)
    return _Libraries(changed_ns, frozenset(names), dict(_links(targets, names)))


def _links(targets: Mapping[str, str], libraries: set[str]) -> Iterator[tuple[str, str]]:
    """Yield the links that lead, perhaps by another one, to these libraries."""
    for link in targets:
        end, steps = link, 0
        while end in targets and steps < len(targets):
            end, steps = targets[end], steps + 1
        if end in libraries:
            yield link, end
