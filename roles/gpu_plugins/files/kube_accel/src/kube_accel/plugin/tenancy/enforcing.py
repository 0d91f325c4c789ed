# SPDX-License-Identifier: Apache-2.0
"""Which way this node's shares are enforced, found out from what the node has, and looked at again while it runs."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path

from kube_accel.enforce.backend import Backend, Choice, Name, Unenforced, WithMps, choose, possible
from kube_accel.enforce.dmem import Dmem, LimitMemory
from kube_accel.enforce.interposer import Interposer, Paths
from kube_accel.enforce.mps import MpsPaths
from kube_accel.enforce.mps import grant as mps_grant
from kube_accel.model import Enforcement, GpuHealth, Health, Inventory, Mode, Snapshot
from kube_accel.plugin.configuration.delivery_flags import settle
from kube_accel.plugin.configuration.file import Configuration
from kube_accel.plugin.configuration.options import NodeError, PluginOptions
from kube_accel.plugin.node.driver_files import DriverFinder
from kube_accel.sharing.capabilities import unlimited
from kube_accel.sharing.profile import Profile

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 10.0
"""From one look at the driver's files to the next: they come and go under us."""


class Enforcing:
    """The choice, and the backends there are to choose from. Raises NodeError for what this mode cannot have."""

    def __init__(
        self,
        options: PluginOptions,
        profile: Profile,
        limit_memory: LimitMemory,
        on_change: Callable[[], None],
    ) -> None:
        """``on_change`` is called on another thread when shares become available or unavailable."""
        if not possible(options.mode, options.enforcement):
            raise NodeError(
                f"--enforcement={options.enforcement} is not for mode {options.mode}; leave it out, or see --help"
            )
        self._options = options
        self._on_change = on_change
        self._lock = threading.Lock()
        self._inventory: Inventory | None = None
        self.choice = Choice(Name.NONE, "the GPUs were not read yet", withheld=True)
        self._delivery = settle(options.delivery, Configuration())
        self._finder = DriverFinder()
        self.interposer = Interposer(
            Paths(options.state_dir, options.shim_dir, options.sysfs_root, options.dev_root, options.cdi.directory),
            self._delivery,
            self._finder.find,
            capabilities=options.share_capabilities,
        )
        plain = Unenforced(profile, lambda name: (options.dev_root / name).exists())
        self._dmem = Dmem(plain, limit_memory, options.sysfs_root)
        mps = partial(mps_grant, profile=profile, paths=MpsPaths(options.mps_root, options.mps_control_command))
        self._backends: Mapping[Name, Backend] = {
            Name.NONE: plain,
            Name.DMEM: self._dmem,
            Name.INTERPOSER: self.interposer,
            Name.MPS: WithMps(Name.MPS, plain, mps),
            Name.MPS_INTERPOSER: WithMps(Name.MPS_INTERPOSER, self.interposer, mps),
        }

    @property
    def backend(self) -> Backend:
        """Return what is in use."""
        return self._backends[self.choice.name]

    @property
    def problem(self) -> str:
        """Return why no share is offered; empty when shares are."""
        if not self.choice.withheld:
            return ""
        return (
            f"shares cannot be enforced here and are not offered: {self.choice.reason}; to offer them without limits, "
            "set --allow-unenforced (gpu_plugins_allow_unenforced)"
        )

    def see(self, snapshot: Snapshot) -> Snapshot:
        """Take the GPUs as they are, and return them unhealthy where their shares are withheld."""
        inventory = snapshot.inventory
        if inventory is None:
            return snapshot
        with self._lock:
            known, self._inventory = self._inventory, inventory
            if known is None or known != inventory:
                self._decide(inventory)
        if not self.choice.withheld:
            return snapshot
        bad = GpuHealth(Health.UNHEALTHY, self.problem)
        health = {uuid: known if known.health is Health.UNHEALTHY else bad for uuid, known in snapshot.health.items()}
        return replace(snapshot, health=health)

    def run(self, stop: threading.Event) -> None:
        """Look again now and then."""
        while not stop.wait(_LOOK_SECONDS):
            with self._lock:
                changed = self._inventory is not None and self._decide(self._inventory)
            if changed:
                self._on_change()

    def _decide(self, inventory: Inventory) -> bool:
        options = self._options
        # Holds them open: without the interposer NVIDIA's runtime brings the same files into containers.
        self._finder.find(Path(self._delivery.driver_root_here), inventory.driver_version)
        unfit = {}
        if options.enforcement in (Enforcement.AUTO, Enforcement.INTERPOSER):
            unfit[Enforcement.INTERPOSER] = self.interposer.unfit(inventory)
        elif options.enforcement is Enforcement.DMEM:
            unfit[Enforcement.DMEM] = self._dmem.unfit(inventory)
        found = choose(options.mode, options.enforcement, unfit, options.allow_unenforced)
        if found == self.choice:
            return False
        self.choice = found
        extra = {"enforcement": found.name.value, "reason": found.reason}
        if self.problem:
            _log.error("shares are not offered", extra={"reason": self.problem})
        elif found.reason or found.name is Name.NONE:
            _log.warning("shares are not enforced as they could be", extra=extra)
        else:
            _log.info("shares are enforced", extra=extra)
        return True

    @property
    def unlimited(self) -> str | None:
        """Return what containers with a share have of the driver without a limit; None if the runtime brings it."""
        if self.choice.name not in (Name.INTERPOSER, Name.MPS_INTERPOSER):
            return None
        return unlimited(self._options.share_capabilities)

    @property
    def limits_cores(self) -> bool:
        """Return whether policies limit cores."""
        return self._options.mode is not Mode.MPS
