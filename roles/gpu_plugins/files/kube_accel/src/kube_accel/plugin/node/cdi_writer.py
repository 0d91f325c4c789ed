# SPDX-License-Identifier: Apache-2.0
"""Keeps the CDI specification of a node's GPUs true: the driver's files found, the document written in one step."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from kube_accel.files import write_whole
from kube_accel.graphics import graphics_nodes
from kube_accel.plugin.node.driver_files import DriverFinder
from kube_accel.sharing.cdi import FILE, HostNodes, extra_nodes, specification
from kube_accel.sharing.delivery import Delivery
from kube_accel.sharing.whole import Part

_log = logging.getLogger(__name__)

_INTERVAL = 10.0
"""Seconds from one look at device nodes and files to the next: modules are loaded and drivers updated under us."""

_HOOKS = ("usr/bin/nvidia-cdi-hook", "usr/bin/nvidia-ctk")


@dataclass(frozen=True, slots=True)
class CdiOptions:
    """The paths that the CDI writer uses."""

    directory: Path = Path("/var/run/cdi")
    hook: str = ""
    """NVIDIA's hook program on the host; empty to look for it."""


class CdiDocuments:
    """Makes specifications of what the node has now."""

    def __init__(self, options: CdiOptions, dev_root: Path, proc_root: Path, sysfs_root: Path) -> None:
        """``dev_root``, ``proc_root`` and ``sysfs_root`` are where the host's are seen."""
        self._options = options
        self._dev_root = dev_root
        self._proc_root = proc_root
        self._sysfs_root = sysfs_root
        self._finder = DriverFinder()

    def of(self, parts: Iterable[Part], driver_version: str, delivery: Delivery) -> dict[str, Any] | None:
        """Return the specification of these parts; None when none of them has device nodes.

        Raises FileNotFoundError where the driver's libraries are not to be seen.
        """
        files = self._finder.find(Path(delivery.driver_root_here), driver_version)
        if not files.links:
            raise FileNotFoundError(
                f"no library of driver {driver_version} is below {delivery.driver_root_here}; mount the driver's root"
                " there, or set --container-driver-root"
            )
        host = HostNodes(
            lambda name: (self._dev_root / name).exists(),
            self._capability_major(),
            partial(graphics_nodes, self._sysfs_root),
        )
        more, hook = extra_nodes(delivery, self._listed), self._hook(delivery)
        return specification(parts, files, delivery.driver_root, host, more, hook)

    def _listed(self, directory: str) -> list[str]:
        with suppress(OSError):
            return [path.name for path in (self._dev_root / directory).iterdir()]
        return []

    def _capability_major(self) -> int | None:
        """Return the major number of the driver's capabilities by the kernel; None while it has none."""
        with suppress(OSError, ValueError):
            for line in (self._proc_root / "devices").read_text().splitlines():
                number, _, name = line.strip().partition(" ")
                if name == "nvidia-caps":
                    return int(number)
        return None

    def _hook(self, delivery: Delivery) -> str | None:
        """Return the hook program on the host. One outside the driver's root is named, not looked for."""
        if self._options.hook:
            return self._options.hook
        if delivery.driver_root != "/":
            return None
        found = (path for path in _HOOKS if (Path(delivery.driver_root_here) / path).is_file())
        return next((f"/{path}" for path in found), None)


class CdiWriter:
    """Writes the specification when it is no longer what it was."""

    def __init__(self, options: CdiOptions, dev_root: Path, proc_root: Path, sysfs_root: Path) -> None:
        """As ``CdiDocuments``."""
        self._path = options.directory / FILE
        self._documents = CdiDocuments(options, dev_root, proc_root, sysfs_root)
        self._lock = threading.Lock()
        self._parts: tuple[Part, ...] = ()
        self._version = ""
        self._delivery: Delivery | None = None

    def update(self, parts: Iterable[Part], driver_version: str, delivery: Delivery) -> None:
        """Have the specification hold these parts, unless CDI is not used. Raises OSError."""
        with self._lock:
            by_uuid = tuple({part.uuid: part for part in parts}.values())
            if by_uuid:
                self._parts, self._version = by_uuid, driver_version
            self._delivery = delivery
            self._write()

    def run(self, stop: threading.Event) -> None:
        """Look after it until stopped."""
        said = ""
        while not stop.wait(_INTERVAL):
            try:
                with self._lock:
                    self._write()
                said = ""
            except OSError as error:
                if str(error) != said:
                    _log.warning("the CDI specification is not kept", extra={"reason": str(error)})
                said = str(error)

    def _write(self) -> None:
        delivery = self._delivery
        # A specification of before stays: containers that were made with it may be started again.
        if delivery is None or not delivery.by_cdi or not self._parts:
            return
        document = self._documents.of(self._parts, self._version, delivery)
        if document is None:
            return
        if write_document(self._path, document):
            _log.info("CDI specification written", extra={"file": str(self._path), "devices": len(document["devices"])})


def write_document(path: Path, document: Mapping[str, Any]) -> bool:
    """Have a file of the runtime's directory hold a specification; return whether it did not. Raises OSError."""
    text = json.dumps(document, indent=1) + "\n"
    with suppress(OSError, ValueError):
        if path.read_text() == text:
            return False
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, text, 0o644)
    return True
