# SPDX-License-Identifier: Apache-2.0
"""Shares enforced by the interposer: a library in the driver's place that keeps account and limits of a container."""

from __future__ import annotations

import json
import logging
import os
from collections.abc import Callable, Collection, Iterable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kube_accel.enforce.backend import Ask, EnforceError, Name, Start
from kube_accel.enforce.containers import Containers, key_of
from kube_accel.enforce.policy import Limit, Policy
from kube_accel.enforce.shim import HOOK, Builds, ShimError
from kube_accel.files import write_whole
from kube_accel.graphics import graphics_nodes
from kube_accel.model import Gpu, Inventory
from kube_accel.sharing.capabilities import LIMITED, Capability, node_wanted, selected
from kube_accel.sharing.cdi import DriverFiles
from kube_accel.sharing.delivery import Delivery, Grant
from kube_accel.sharing.fraction import Kind
from kube_accel.sharing.interposition import (
    CDI_FILES,
    Interposed,
    Sources,
    below,
    grant,
    interposed,
    missing,
    only_edits,
    shimmed,
    specification,
)
from kube_accel.sharing.whole import CONTROL_NODES, whole

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Paths:
    """Where things are."""

    state_dir: Path
    """The same path on the host and here."""
    shim_dir: Path
    """In the image."""
    sysfs_root: Path
    dev_root: Path
    """Where the host's are seen."""
    cdi_dir: Path


class Interposer:
    """The files of this node's containers; for any thread.

    Whole GPUs have no limits, and the interposer all the same: kubelet asks for cores and memory in two calls, neither
    of which knows of the other, and both have to bring the same libraries.
    """

    name = Name.INTERPOSER

    def __init__(
        self,
        paths: Paths,
        delivery: Delivery,
        find_files: Callable[[Path, str], DriverFiles],
        machine: str = os.uname().machine,
        capabilities: Collection[Capability] = LIMITED,
    ) -> None:
        """``find_files`` finds the driver's files of a version below a directory.

        ``capabilities`` are what containers get of the driver.
        """
        self.containers = Containers(paths.state_dir, paths.sysfs_root)
        self._builds = Builds(paths.shim_dir, paths.state_dir, paths.sysfs_root, machine)
        self._paths = paths
        self._delivery = delivery
        self._find_files = find_files
        self._capabilities = capabilities
        self._machine = machine
        self._build = ""
        self._files = DriverFiles()
        self._inventory: Inventory | None = None

    def unfit(self, inventory: Inventory) -> str:
        """Return why it cannot be used with this driver; empty when it can."""
        root = self._delivery.driver_root_here
        files = self._find_files(Path(root), inventory.driver_version)
        lacking = missing(files, inventory.driver_version)
        own = {} if lacking else shimmed(files, inventory.driver_version)
        try:
            build = self._builds.install({library: Path(below(root, path)) for library, path in own.items()})
        except ShimError as error:
            return str(error)
        if lacking:
            return (
                f"the driver's library {lacking} is not below {root}; mount the driver's root there, or set"
                " --container-driver-root"
            )
        self._build, self._files, self._inventory = build, selected(files, self._capabilities), inventory
        return ""

    def grant(self, ask: Ask) -> Grant:
        """Return everything with the memory, and with cores that are whole GPUs; nothing with other cores."""
        if ask.kind is Kind.CORES and not ask.whole:
            return Grant({}, ())
        key = key_of(ask.ids)
        try:
            self.containers.prepare(key, self._build)
            got = self._interposed(key, self._build, [ask.gpus[uuid] for uuid in ask.chosen])
            self._specify(key, got)
        except OSError as error:
            raise EnforceError(f"the container's files cannot be made: {error}") from error
        return grant(got, key, self._delivery)

    def start(self, start: Start) -> None:
        """Write a new policy and account. Raises EnforceError."""
        key = key_of(start.ids)
        try:
            build = self.containers.build_of(key)
            if not build:
                # A reboot has emptied a tmpfs of the files, and it is not known which build kubelet goes on mounting.
                build = self._build
                self.containers.prepare(key, "")
            self.containers.start(key, Policy(start.limits))
            # The driver may be another than when the container was admitted.
            gpus = [gpu for limit in start.limits if (gpu := self._gpu(limit.uuid)) is not None]
            self._specify(key, self._interposed(key, build, gpus))
        except (OSError, ValueError) as error:
            raise EnforceError(f"its limits cannot be written: {error}") from error

    def keep(self, key: str, limits: tuple[Limit, ...], new: bool) -> dict[str, Any]:
        """Return CDI's edits for all containers of a share that has these limits for as long as it lives.

        Its policy and account are made if it is ``new`` or they are not there. Raises EnforceError.
        """
        try:
            if new or not self.kept(key, limits):
                self.containers.start(key, Policy(limits), self._build)
            gpus = [gpu for limit in limits if (gpu := self._gpu(limit.uuid)) is not None]
            return only_edits(self._interposed(key, self.containers.build_of(key) or self._build, gpus))
        except (OSError, ValueError) as error:
            raise EnforceError(f"the container's files cannot be made: {error}") from error

    def kept(self, key: str, limits: tuple[Limit, ...]) -> bool:
        """Return whether a share with these limits has its policy and its account."""
        known = self.containers.policy(key) if self.containers.state_path(key).exists() else None
        return known is not None and _given(known.limits) == _given(limits)

    def around(self) -> Interposed:
        """Return what all edits are made of, to compare: the driver's files, the build, the device nodes of all GPUs.

        Raises OSError.
        """
        return self._interposed("", self._build, self._inventory.gpus if self._inventory is not None else ())

    def prune(self, held: Collection[str]) -> None:
        """Forget containers other than those with these keys, a while after they were made."""
        self.containers.prune(held)
        left = self.containers.keys()
        used = {self.containers.build_of(key) for key in left} | {self._build}
        for build in used - {""}:
            self._builds.keep(build)
        if "" not in used:
            self._builds.prune(used)
        with suppress(OSError):
            for path in list(self._paths.cdi_dir.glob(f"{CDI_FILES}*.json")):
                if path.stem.removeprefix(CDI_FILES) not in left:
                    path.unlink(missing_ok=True)

    def _gpu(self, uuid: str) -> Gpu | None:
        return self._inventory.gpu(uuid) if self._inventory is not None else None

    def _interposed(self, key: str, build: str, gpus: Iterable[Gpu]) -> Interposed:
        if self._inventory is None:
            raise OSError("the driver's files were not found yet")
        # The container keeps its libraries; the hook is the newest, which earlier builds did not have.
        shim, hook = str(self._builds.path(build)), str(self._builds.path(self._build) / HOOK)
        version, root = self._inventory.driver_version, self._delivery.driver_root
        ordered = sorted(gpus, key=lambda gpu: gpu.index)
        nodes = [name for gpu in ordered for name in whole(gpu).device_nodes]
        if Capability.GRAPHICS in self._capabilities:
            nodes += [name for gpu in ordered for name in graphics_nodes(self._paths.sysfs_root, gpu)]
        nodes += [name for name in CONTROL_NODES if node_wanted(name, self._capabilities)]
        present = [name for name in nodes if (self._paths.dev_root / name).exists()]
        return interposed(
            Sources(self._files, root, version, shim, hook, self._machine),
            str(self.containers.policy_path(key)),
            str(self.containers.state_path(key)),
            dict.fromkeys(present),
        )

    def _specify(self, key: str, got: Interposed) -> None:
        """Have the container runtime know the container's device, where CDI brings it. Raises OSError."""
        if not (self._delivery.by_cdi or self._delivery.hooks_by_cdi):
            return
        directory = self._paths.cdi_dir
        directory.mkdir(parents=True, exist_ok=True)
        text = json.dumps(specification(got, key, self._delivery)) + "\n"
        write_whole(directory / f"{CDI_FILES}{key}.json", text, 0o644)


def _given(limits: Iterable[Limit]) -> list[tuple[str, int, int]]:
    """Return what a share is of its GPUs, without what else is charged to it."""
    return [(limit.uuid, limit.memory_bytes, limit.cores) for limit in limits]
