# SPDX-License-Identifier: Apache-2.0
"""The driver daemon: its threads and what they tell each other."""

from __future__ import annotations

import itertools
import logging
import threading
import time
from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, Final

from kube_accel.dra.changes import COUNTERS
from kube_accel.dra.checkpoint import Checkpoint, CheckpointError
from kube_accel.dra.maker import Maker
from kube_accel.dra.measuring import Measuring
from kube_accel.dra.node_devices import NodeDevices
from kube_accel.dra.offering import Offerer
from kube_accel.dra.options import NOT_WANTED, OFFERED, WELL, DraOptions
from kube_accel.dra.partitioner import Partitioner
from kube_accel.dra.preparer import ERRORS, Preparer, reason
from kube_accel.dra.publisher import Publisher
from kube_accel.dra.service import DriverService
from kube_accel.dra.shares import Shares
from kube_accel.dra.slices import CONSUMES, DRIVER, SHARED, Device
from kube_accel.dra.sockets import Sockets, paths
from kube_accel.dra.specifications import ClaimSpecifications
from kube_accel.dra.status import StatusWriter
from kube_accel.enforce.interposer import Interposer, Paths
from kube_accel.kube.api import ApiError
from kube_accel.kube.client import KubeClient
from kube_accel.metrics.service import Service
from kube_accel.model import Inventory
from kube_accel.nvml.gpus import Gpus
from kube_accel.plugin.configuration.options import NodeError
from kube_accel.plugin.front import listen
from kube_accel.plugin.mode_lock import DRA
from kube_accel.plugin.node.cdi_writer import CdiDocuments
from kube_accel.plugin.node.driver_files import DriverFinder
from kube_accel.shared.label_names import FIXED_SHARES
from kube_accel.shared.modes import dra_pool
from kube_accel.stopping import Parts

_log = logging.getLogger(__name__)


_FIRST_LOOK: Final = 10.0
"""Seconds that the GPUs have to be read before kubelet is served without knowing them."""
_FILES: Final = 10.0
"""Seconds from one look at the claims' files to the next: drivers are updated under us."""
_GONE: Final = (120.0, 900.0)
"""Seconds to the second look for claims that are gone, and from then on from one look to the next."""


_CARDS: Final = 60.0
"""Seconds to the next try where what GPUs can be cut into is not read."""
_MODES: Final = 60.0
"""Seconds from one look for GPUs that could not leave MIG mode to the next."""


class DraDaemon:
    """One node's driver. ``run`` is its life."""

    def __init__(self, options: DraOptions, gpus: Gpus, client: KubeClient, stop: threading.Event) -> None:
        """Listens on the probe and admin sockets at once. Raises NodeError."""
        self._options = options
        self._gpus = gpus
        self._stop = stop
        self._parts = Parts(stop)
        name = dra_pool(options.node_name)
        self._devices = NodeDevices(options.sysfs_root)
        documents = CdiDocuments(options.cdi, options.dev_root, options.proc_root, options.sysfs_root)
        self._shares = _shares(options)
        specifications = ClaimSpecifications(options.cdi.directory, documents, options.delivery, self._shares)
        checkpoint = Checkpoint(options.state_dir)
        self._status_writer = StatusWriter(client, name, lambda: self._devices.state.parts.values())
        self._partitioner = Partitioner(gpus, options.state_dir)
        self._offerer = Offerer(options.mig_offers)
        self._maker = Maker(self._partitioner, checkpoint, self._devices, self._offerer)
        self._preparer = Preparer(
            client, name, checkpoint, specifications, self._devices, self._maker, self._status_writer
        )
        self._publisher = Publisher(client, options.node_name, options.state_dir, self._wanted)
        self._preparer.obstacle = lambda: self._publisher.obstacle
        self._service = DriverService(self._preparer, self._devices, name, self._holdings_changed)
        where = paths(options.plugins_dir, options.registry_dir, options.instance)
        self._sockets = Sockets(where, options.state_dir, self._service)
        self._measuring: Measuring | None = None
        if options.metrics.interval:
            self._measuring = Measuring(options, client, gpus, (self._preparer, self._shares), self._served)
        self._files_problem = ""
        self._cards_at = 0.0
        probes = {"/healthz": lambda: "", "/readyz": self._readyz}
        pages = self._measuring.pages if self._measuring is not None else {}
        self._front = listen(options, probes, pages, self._status, gpus, self._partitioner.snapshot)

    def run(self) -> int:
        """Serve until ``stop`` is set, and return the exit code of the process. Raises NodeError."""
        self._parts.start("gpus", self._follow_gpus)
        self._parts.start("slices", partial(self._publisher.watch.run, self._stop))
        self._parts.start("publisher", partial(self._publisher.run, self._stop))
        self._parts.start("condition", self._front.condition.run)
        self._parts.start("admin", self._front.admin.run)
        self._parts.start("probes", self._front.probes.run)
        self._devices.wait(0, _FIRST_LOOK)
        self._look_after_files()
        try:
            self._preparer.claims()
            self._sockets.open()
        except CheckpointError as error:
            raise NodeError(str(error)) from error
        except OSError as error:
            raise NodeError(f"kubelet cannot be served: {error}; remove what has the socket") from error
        self._parts.start("files", self._keep_files)
        for name, part in self._shares.parts(self._stop):
            self._parts.start(name, part)
        self._parts.start("claims", self._follow_claims)
        self._parts.start("MIG modes", self._keep_modes)
        self._parts.start("status", partial(self._status_writer.run, self._stop))
        for name, part in self._measuring.parts(self._stop) if self._measuring is not None else ():
            self._parts.start(name, part)
        self._stop.wait()
        if self._measuring is not None:
            self._measuring.close()
        # Kubelet's streams of health would keep the sockets busy.
        self._devices.close()
        self._sockets.close()
        self._publisher.stop()
        self._front.condition.withdraw()
        return self._parts.exit_code

    def _follow_gpus(self) -> None:
        version = self._gpus.snapshot().version
        while True:
            snapshot = self._partitioner.snapshot()
            # What is offered depends on it, so it comes first.
            changed = snapshot.inventory is not None and self._shares.see(snapshot.inventory)
            if snapshot.inventory is not None:
                self._read_cards(snapshot.inventory)
            if self._devices.see(snapshot) or changed:
                self._publisher.wake()
            self._front.condition.wake()
            version = self._gpus.wait(version, timeout=60).version

    def _read_cards(self, inventory: Inventory) -> None:
        """Find out what the GPUs can be cut into, if MIG devices are to be made of them."""
        try:
            if time.monotonic() >= self._cards_at and self._offerer.lacks(inventory, self._preparer.holdings()):
                self._cards_at = time.monotonic() + _CARDS
                self._offerer.read(self._partitioner.cards())
        except ERRORS as error:
            _log.warning("the MIG profiles of GPUs are not read", extra={"reason": reason(error)})

    def _keep_files(self) -> None:
        while not self._stop.wait(_FILES):
            inventory = self._devices.state.inventory
            if inventory is not None and self._shares.see(inventory):
                self._publisher.wake()
            self._look_after_files()

    def _keep_modes(self) -> None:
        while not self._stop.wait(_MODES):
            try:
                self._maker.end_modes()
            except ERRORS as error:
                _log.warning("a GPU stays in MIG mode", extra={"reason": reason(error)})

    def _follow_claims(self) -> None:
        for pause in itertools.chain(_GONE, itertools.repeat(_GONE[-1])):
            self._check_claims()
            if self._stop.wait(pause):
                return

    def _check_claims(self) -> None:
        try:
            self._preparer.release_gone()
        except CheckpointError as error:
            raise NodeError(str(error)) from error
        except (ApiError, OSError) as error:
            _log.warning("prepared claims are not compared with the cluster's", extra={"reason": str(error)})

    def _look_after_files(self) -> None:
        problem = ""
        try:
            self._preparer.look_after_files()
        except (CheckpointError, OSError) as error:
            problem = f"the claims' CDI specifications are not kept: {error}"
            if problem != self._files_problem:
                _log.warning("the claims' CDI specifications are not kept", extra={"reason": str(error)})
        self._files_problem = problem

    def _wanted(self, keeps_taints: bool, keeps_counters: bool, withheld: bool, fixed: int) -> Sequence[Device] | None:
        inventory = self._devices.state.inventory  # before what is held: a device is made and destroyed meanwhile
        holdings, unfit = self._preparer.holdings(), bool(self._shares.problem)
        if inventory is None or (self._offerer.lacks(inventory, holdings) and holdings.made):
            return None
        offering = self._offerer.look(inventory, holdings, keeps_counters and not fixed)
        shared = self._shares.wanted and not unfit
        # Whoever has a GPU cut into shares does not want it to be given whole.
        withheld = withheld or bool(fixed and unfit)
        return self._devices.wanted(keeps_taints, withheld, holdings.names, shared, fixed, offering)

    def _readyz(self) -> str:
        registration = self._sockets.registration
        if not registration.registered:
            return f"not registered with kubelet: {registration.detail}"
        if self._devices.state.inventory is None:
            snapshot = self._gpus.snapshot()
            return f"no GPU was read: driver {snapshot.driver_state.value}: {snapshot.detail}"
        return self._publisher.problem or self._files_problem or self._shares_problem() or self._mig_problem()

    def _mig_problem(self) -> str:
        """Return why MIG devices that are to be made are not offered; empty where they are, or are not wanted."""
        lost = self._publisher.dropped & {COUNTERS, CONSUMES}
        return (
            f"MIG devices are not made: the cluster does not keep {', '.join(sorted(lost))} of devices; enable the"
            " feature gate DRAPartitionableDevices, or leave out --mig-offers (gpu_plugins_dra_mig_offers)"
            if lost and self._offerer.wanted
            else ""
        )

    def _shares_problem(self) -> str:
        """Return why shares that are wanted are not offered; empty where they are, or are not wanted."""
        if self._publisher.fixed:
            return self._shares.problem and (
                f"GPUs are withheld: label {FIXED_SHARES} of the node has them cut into {self._publisher.fixed} shares,"
                f" and {self._shares.problem}"
            )
        if not self._shares.wanted:
            return ""
        if SHARED in self._publisher.dropped:
            return (
                f"the cluster does not keep {SHARED} of devices, so that no share can be given; enable the feature gate"
                " DRAConsumableCapacity, or leave out --shares (gpu_plugins_dra_shares)"
            )
        return self._shares.problem and f"shares are not offered: {self._shares.problem}"

    def _offered(self) -> str:
        return OFFERED if self._shares.wanted or self._publisher.fixed else NOT_WANTED

    def _holdings_changed(self) -> None:
        self._publisher.holdings_changed()
        if self._devices.waiting:
            self._publisher.wake()
        if self._measuring is not None:
            self._measuring.changed()

    def _served(self) -> Mapping[str, Service]:
        calls = self._service.calls.counts
        return {DRIVER: Service(self._sockets.registration.registered, bool(self._devices.state.good), calls)}

    def _status(self, request: Mapping[str, Any]) -> dict[str, Any]:
        registration, publisher, snapshot = self._sockets.registration, self._publisher, self._gpus.snapshot()
        return {
            "registered": registration.registered,
            "registration": registration.detail,
            "driver": snapshot.driver_state.value,
            "detail": snapshot.detail,
            "mode": DRA,
            "slices": publisher.problem or WELL,
            "dropped": sorted(publisher.dropped),
            "shares": self._shares_problem() or self._offered(),
            "fixed": publisher.fixed,
            "mig": self._mig_problem() or (OFFERED if self._offerer.wanted else NOT_WANTED),
            "gpus": dict(self._offerer.current.notes),
            "claims": {uid: str(claim) for uid, claim in self._preparer.claims().items()},
        }


def _shares(options: DraOptions) -> Shares:
    wanted = options.shares
    if wanted is None:
        return Shares(None)
    paths = Paths(options.state_dir, wanted.shim_dir, options.sysfs_root, options.dev_root, options.cdi.directory)
    interposer = Interposer(paths, options.delivery, DriverFinder().find, capabilities=wanted.capabilities)
    return Shares(interposer, wanted.context_overhead_bytes, wanted.sized)
