# SPDX-License-Identifier: Apache-2.0
"""The plugin daemon: its threads and what they tell each other."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from kube_accel.enforce.mps import MpsMonitor, MpsPaths
from kube_accel.kube.podresources import PodResourcesClient, PodResourcesError
from kube_accel.model import DriverState, Health, Inventory, Share, Snapshot
from kube_accel.nvml import machine
from kube_accel.nvml.gpus import Gpus
from kube_accel.plugin.configuration.choice import NotChosenError
from kube_accel.plugin.configuration.configurator import Configurator, NotNowError
from kube_accel.plugin.configuration.file import Configuration
from kube_accel.plugin.configuration.options import NodeError, PluginOptions, read_configuration
from kube_accel.plugin.front import Front, listen
from kube_accel.plugin.kubelet.device_exclusivity import DeviceExclusivity
from kube_accel.plugin.kubelet.handover import Keeper
from kube_accel.plugin.kubelet.holdings import Holder, HoldingsReader, Lister, strangers
from kube_accel.plugin.kubelet.registration import ForeignPluginError, Registrar
from kube_accel.plugin.kubelet.server import WholeGpuPlugin
from kube_accel.plugin.node.annotation import AnnotationWriter, render, share_holdings, whole_holdings
from kube_accel.plugin.node.cdi_writer import CdiWriter
from kube_accel.plugin.node.condition import silences
from kube_accel.plugin.node.dra_drivers import DraDrivers
from kube_accel.plugin.node.labels import LabelWriter
from kube_accel.plugin.served import Served, ServedResources
from kube_accel.plugin.whole_runtime import WholeGpus
from kube_accel.sharing import whole
from kube_accel.sharing.fraction import Kind, gpu_of, resources
from kube_accel.sharing.node_labels import Machine, labels
from kube_accel.sharing.profile import PROFILES, mode_of
from kube_accel.stopping import EXIT_OK, Parts

if TYPE_CHECKING:
    from kube_accel.metrics.collector import Collector
    from kube_accel.plugin.allocation.ledger import Ledger
    from kube_accel.plugin.mig.manager import MigManager
    from kube_accel.plugin.node.pending_pods import PendingPods
    from kube_accel.plugin.share_runtime import ShareRuntime

_log = logging.getLogger(__name__)

EXIT_FOREIGN = 3

_CUT_TIMEOUT = 20.0
"""Seconds that a plugin which is to end goes on cutting GPUs."""
_ANSWER_TIMEOUT = 20.0
"""Seconds that a plugin with a successor goes on answering what kubelet asked it before: PreStartContainer may take so
long, and the DaemonSet leaves a pod 30."""


class Daemon:
    """One node's plugin. ``run`` is its life."""

    def __init__(self, options: PluginOptions, gpus: Gpus, stop: threading.Event) -> None:
        """Listens on the probe and admin sockets at once. Raises NodeError."""
        self._options = options
        self._gpus = gpus
        self._stop = stop
        self._parts = Parts(stop)
        self._publishing = threading.Lock()
        self._annotation = AnnotationWriter(options.node_name, options.service_account_dir, self._annotation_text)
        self._labels = LabelWriter(options.node_name, options.service_account_dir, self._wanted_labels)
        lister: Lister = PodResourcesClient(options.pod_resources_socket)
        profile = PROFILES.get(options.mode)
        self._held_elsewhere: Mapping[str, str] = {}
        self._shares: ShareRuntime | None = None
        if profile is not None:
            # Loaded here: whole GPUs need neither a ledger nor steering.
            from kube_accel.plugin.share_runtime import ShareRuntime

            self._shares = ShareRuntime(options, profile, lister, gpus, self._publish)
            lister = self._shares.lister
        self._holdings = HoldingsReader(lister, lambda name: mode_of(name) is not None, self._holdings_changed)
        self._lister = lister
        self._whole = WholeGpus(read_configuration(options), options.mig_strategy, flags=options.delivery)
        self._mps_paths = MpsPaths(options.mps_root, options.mps_control_command)
        self._mps = MpsMonitor(self._mps_paths, self._publish, self._mps_incident, options.mps_interval)
        """Monitors the GPUs that a configuration shares by MPS, and no others."""
        self._cdi = CdiWriter(options.cdi, options.dev_root, options.proc_root, options.sysfs_root)
        self._cdi_problem = ""
        self._configurator: Configurator | None = None
        if options.config_map is not None:
            self._configurator = Configurator(options, self._configure)
            current = self._configurator.current
            self._whole.configuration = current.configuration if current is not None else None
        self._mig = _mig_manager(options, gpus, lister)
        for note in self._whole.configuration.notes if self._whole.configuration is not None else ():
            _log.warning("part of the configuration is not used", extra={"reason": note})
        self._served = ServedResources()
        if self._shares is None:
            self._served.by_name = {name: self._serve_whole(name) for name in self._whole.resources}
        else:
            kinds = resources(self._shares.profile).items()
            self._served.by_name = {name: self._serve_kind(kind, name, self._shares) for kind, name in kinds}
        self._registering: dict[str, threading.Thread] = {}
        self._whole_ledger: Ledger | None = None
        """Ledger of whole GPUs, where metrics are kept; shares have one in any case."""
        self._recorded: Mapping[Holder, tuple[Share, ...]] | None = None
        self._pending: PendingPods | None = None
        self._metrics = self._collector() if options.metrics_interval else None
        self.handed_over = False
        """The connections are the successor's by now: the process has to end without closing them."""
        self._front = self._listen()

    def _listen(self) -> Front:
        options, pages = self._options, self._metrics.pages if self._metrics is not None else {}
        probes = {"/healthz": self._served.failure, "/readyz": self._readyz}
        front = listen(options, probes, pages, self._status, self._gpus)
        self._drivers = DraDrivers(options, front.condition, self._publish)
        try:
            self._keeper = Keeper(options.state_dir, self._served.serves)
        except OSError as error:
            raise NodeError(f"--state-dir {options.state_dir} cannot be used: {error}; choose another") from error
        return front

    def run(self) -> int:
        """Serve until ``stop`` is set, and return the exit code of the process."""
        self._start("drivers", partial(self._drivers.run, self._stop))
        for name in self._served.by_name:
            self._register(name)
        self._start("gpus", self._follow_gpus)
        self._start("holdings", self._holdings.run)
        self._start("handover", self._keeper.run)
        self._start("admin", self._front.admin.run)
        self._start("probes", self._front.probes.run)
        for name, part in self._shares.parts(self._stop) if self._shares is not None else ():
            self._start(name, part)
        # What kubelet waits for would take turns with the rest.
        self._served.wait_registered(self._stop)
        self._start("annotation", self._annotation.run)
        self._start("labels", self._labels.run)
        if self._shares is None:
            self._start("cdi", partial(self._cdi.run, self._stop))
        if self._configurator is not None:
            self._start("configuration", partial(self._follow, "--config-map", self._configurator))
        cutting = None
        if self._mig is not None:
            cutting = self._start("mig", partial(self._follow, "--mig-configs", self._mig))
        self._start("condition", self._front.condition.run)
        if self._metrics is not None:
            self._start("metrics", partial(self._metrics.run, self._stop))
        if self._pending is not None:
            self._start("pending", partial(self._pending.run, self._stop))
        self._stop.wait()
        if self._metrics is not None:
            self._metrics.close()
        if self._mig is not None and cutting is not None:
            self._mig.wake()
            cutting.join(_CUT_TIMEOUT)
        self.handed_over = self._parts.exit_code == EXIT_OK and self._hand_over()
        with self._publishing:
            for served in self._served.all:
                served.registrar.stop(keep_connections=self.handed_over)
        for registering in self._registering.values():
            # It may be held up by a kubelet that does not answer; open streams would then keep the process alive.
            registering.join(timeout=1)
        if self.handed_over:
            return self._parts.exit_code
        for served in self._served.all:
            served.plugin.close()
        self._front.condition.withdraw()
        return self._parts.exit_code

    def _hand_over(self) -> bool:
        """Leave kubelet's connections to a successor that serves all we do; return False where there is none."""
        sockets = self._served.sockets()
        try:
            return (
                len(sockets) == len(self._served.by_name)
                and self._keeper.has_successor
                and self._served.have_answered(_ANSWER_TIMEOUT)
                and self._keeper.hand_over(sockets)
            )
        except OSError as error:
            _log.warning("nothing was handed over", extra={"reason": str(error)})
            return False

    def _serve_whole(self, name: str) -> Served:
        options = self._options
        # Two plugins of different resources must not take each other's sockets for their own.
        known_as = options.mode.value if name == whole.RESOURCE else f"{options.mode.value}.{name.partition('/')[2]}"
        registrar = Registrar(options.device_plugin_dir, known_as, name, options.takeover)
        exclusivity = DeviceExclusivity(self._lister, self._given_twice)
        plugin = WholeGpuPlugin(
            options.dev_root, self._holdings.allocated, registrar.wake, exclusivity, self._mps_paths
        )
        return Served(plugin, registrar, lambda snapshot: self._whole.offer(name, plugin))

    def _serve_kind(self, kind: Kind, name: str, shares: ShareRuntime) -> Served:
        options = self._options
        registrar = Registrar(options.device_plugin_dir, name.partition("/")[2], name, options.takeover)
        plugin = shares.plugin(kind, self._given_twice, self._holdings.allocated, registrar.wake)
        return Served(
            plugin, registrar, lambda snapshot: plugin.publish(plugin.device_list(snapshot), snapshot.inventory)
        )

    def _given_twice(self, reason: str) -> None:
        self._front.condition.warn("GpuGivenTwice", reason)

    def _register(self, name: str) -> None:
        served = self._served.by_name[name]
        self._registering[name] = self._start("registrar", partial(served.registrar.run, served.plugin))

    def _match_resources(self) -> None:
        """Serve what the GPUs make now, and nothing else."""
        wanted, served = self._whole.resources, self._served.by_name
        if self._stop.is_set() or served.keys() == wanted:
            return
        self._served.by_name = {name: served[name] if name in served else self._serve_whole(name) for name in wanted}
        for name in wanted - served.keys():
            self._register(name)
        for name in served.keys() - wanted:
            served[name].registrar.stop()
            del self._registering[name]
            _log.info("no longer offered", extra={"resource": name})

    def _start(self, name: str, target: Callable[[], None]) -> threading.Thread:
        def refusing() -> None:
            try:
                target()
            except ForeignPluginError as error:
                _log.error("refused to start", extra={"reason": str(error)})
                self._parts.end(EXIT_FOREIGN)

        return self._parts.start(name, refusing)

    def _follow_gpus(self) -> None:
        snapshot = self._gpus.snapshot()
        while True:
            self._publish()
            self._front.condition.wake()
            if self._mig is not None:
                self._mig.wake()
            version = snapshot.version
            while snapshot.version <= version:
                snapshot = self._gpus.wait(version, timeout=60)

    def _follow(self, option: str, follower: Configurator | MigManager) -> None:
        """Have it follow what the API server says, as this option asks for."""
        # Loaded here: TLS and HTTP are not needed to serve kubelet, which is waited for.
        from kube_accel.kube.kubeconfig import KubeconfigError, client_in_cluster

        try:
            client = client_in_cluster(self._options.service_account_dir)
        except KubeconfigError as error:
            problem = f"{option} needs an API server: {error}"
            _log.error("no label is followed", extra={"reason": problem})
            if isinstance(follower, Configurator):
                follower.problem = problem
            return
        follower.run(client, self._stop)

    def _configure(self, configuration: Configuration) -> None:
        """Offer what this configuration makes of the GPUs. Raises NotChosenError, NotNowError."""
        if self._holdings.allocated_lately:
            raise NotNowError("a pod is being admitted")
        with self._publishing:
            inventory = self._gpus.snapshot().inventory
            if inventory is None:
                raise NotNowError("no GPU was read")
            try:
                listed = self._lister.list(timeout=5)
            except PodResourcesError as error:
                raise NotNowError(str(error)) from error
            problem = self._whole.try_on(configuration, inventory, listed)
            if problem is not None:
                raise problem
            # Written before it is announced, and before there is a way back.
            parts, terms = self._whole.parts_of(configuration, inventory), self._whole.terms(configuration)
            try:
                self._cdi.update(parts, inventory.driver_version, terms.delivery)
            except OSError as error:
                message = f"the CDI specification that it asks for cannot be written: {error}"
                raise NotChosenError("ConfigurationRefused", message) from error
            self._whole.configuration = configuration
        self._publish()

    def _publish(self) -> None:
        """Advertise the GPUs as they are now."""
        # One look at kubelet first: pods that another mode's plugin admitted may have GPUs.
        if not self._holdings.asked or self._whole.configuration is None:
            return
        with self._publishing:
            offering, withheld = any(served.plugin.has_list for served in self._served.all), self._drivers.obstacle
            # Kubelet does not get to know a plugin that has nothing to offer. One that it knows serves its pods on.
            if withheld and not offering:
                return
            snapshot = self._snapshot()
            for fault in silences(snapshot):
                self._front.condition.warn("GpuValueUnreadable", fault)
            # A plugin that follows another must not show an empty list before it looked.
            if snapshot.inventory is None and snapshot.driver_state is DriverState.STARTING:
                return
            if self._shares is None:
                # What is offered already has a specification, and its health must be reported whatever happens.
                if not self._specify(snapshot.inventory) and not offering:
                    return
                self._whole.see(snapshot)
                for reason in self._whole.left_out:
                    self._front.condition.warn("GpuNotOffered", reason)
                self._match_resources()
                self._record_whole(snapshot.inventory)
            for served in self._served.all:
                if served.plugin.publish((), snapshot.inventory) if withheld else served.offer(snapshot):
                    devices = served.plugin.devices
                    bad = sorted({gpu_of(device.id) for device in devices if not device.healthy})
                    _log.info("devices advertised", extra={"devices": len(devices), "unhealthy": bad})
                served.registrar.wake()
        self._annotation.wake()
        self._labels.wake()

    def _specify(self, inventory: Inventory | None) -> bool:
        """Have the container runtime know the GPUs before kubelet does; return False when that failed."""
        configuration = self._whole.configuration or Configuration()
        problem = ""
        try:
            if inventory is not None:
                delivery = self._whole.terms(configuration).delivery
                self._cdi.update(self._whole.parts_of(configuration, inventory), inventory.driver_version, delivery)
        except OSError as error:
            problem = f"the CDI specification is not written: {error}"
            if problem != self._cdi_problem:
                _log.error("GPUs are not offered", extra={"reason": problem})
        self._cdi_problem = problem
        return not problem

    def _snapshot(self) -> Snapshot:
        snapshot = self._gpus.snapshot()
        health = dict(snapshot.health)
        for uuid in self._held_elsewhere.keys() & health.keys():
            if health[uuid].health is not Health.UNHEALTHY:
                health[uuid] = replace(health[uuid], health=Health.UNHEALTHY, reason=self._held_elsewhere[uuid])
        snapshot = replace(snapshot, health=health)
        if self._shares is not None:
            return self._shares.see(snapshot)
        inventory = snapshot.inventory
        self._mps.see(inventory, self._whole.shared_by_mps(inventory) if inventory is not None else frozenset())
        return self._mps.apply(snapshot)

    def _mps_incident(self, uuid: str, message: str) -> None:
        self._front.condition.warn("MpsInterrupted", f"GPU {uuid}: {message}")

    def _holdings_changed(self) -> None:
        self._held_elsewhere = strangers(self._holdings.listed or (), self._foreign)
        self._publish()
        if self._shares is not None and self._holdings.listed is not None:
            self._shares.listed(self._holdings.listed, self._holdings.listed_at)
        if self._metrics is not None:
            self._metrics.changed()
        self._annotation.wake()
        if self._configurator is not None:
            self._configurator.wake()
        if self._mig is not None:
            self._mig.wake()

    def _annotation_text(self) -> str | None:
        # One look at kubelet first, so that a restart does not blank what the annotation says is held.
        if not self._holdings.asked:
            return None
        snapshot, held = self._snapshot(), self._holdings.held
        mode, divided = self._options.mode, frozenset() if self._shares is not None else self._whole.divided
        unit = None if self._shares is None else self._shares.profile.memory_unit_bytes
        if held is None or snapshot.inventory is None:
            return render(snapshot, None, mode, unit, divided)
        if self._shares is not None:
            return render(snapshot, share_holdings(self._shares.held), mode, unit)
        return render(snapshot, whole_holdings(held, snapshot.inventory, self._whole.parts), mode, divided=divided)

    def _wanted_labels(self) -> dict[str, str] | None:
        inventory = self._gpus.snapshot().inventory
        if inventory is None or not self._holdings.asked:
            return None
        root = self._options.sysfs_root
        classes = machine.pci_classes(root, (gpu.pci_address for gpu in inventory.gpus))
        kernel = Machine(machine.product(root), classes)
        found = labels(inventory, self._options.mode, self._whole.offered, kernel, self._whole.strategy)
        return found if self._shares is None or not found else found | self._shares.labels()

    def _foreign(self, resource: str) -> bool:
        return mode_of(resource) not in (None, self._options.mode)

    def _readyz(self) -> str:
        if self._drivers.obstacle:
            return f"no GPU is offered: {self._drivers.obstacle}"
        if self._configurator is not None and self._configurator.current is None:
            return f"no configuration yet: {self._configurator.problem or 'the API server was not heard'}"
        if self._cdi_problem:
            return self._cdi_problem
        registration = self._served.registration()
        if not registration.registered:
            return f"not registered with kubelet: {registration.detail}"
        snapshot = self._gpus.snapshot()
        if snapshot.inventory is None:
            return f"no GPU was read: driver {snapshot.driver_state.value}: {snapshot.detail}"
        return self._shares.enforcing.problem if self._shares is not None else self._whole.problem

    def _collector(self) -> Collector:
        # Loaded here: metrics can be off, and whole GPUs need no ledger then.
        from kube_accel.metrics.collector import Collector, CollectorOptions
        from kube_accel.plugin.allocation.ledger import Ledger, Owner, this_machine
        from kube_accel.plugin.tenancy.metering import LedgerBooks, whole_tenancy

        options, shares = self._options, self._shares
        if shares is not None:
            ledger, tenancy = shares.ledger, shares.tenancy()
        else:
            owner = Owner(options.node_name, this_machine())
            ledger = self._whole_ledger = Ledger(options.state_dir, options.mode, owner=owner)
            tenancy = whole_tenancy(lambda: self._holdings.held, lambda: self._whole.known_parts)
        collecting = CollectorOptions(
            options.node_name,
            options.mode.value,
            options.metrics_interval,
            options.proc_root,
            options.metrics_aliases,
            options.metrics_profiling,
        )
        if options.metrics_pending:
            from kube_accel.plugin.node.pending_pods import PendingPods, plugin_look
            from kube_accel.plugin.node.pod_warnings import PodWarnings

            warnings = PodWarnings(options.node_name, options.runtime_class)
            connect = partial(plugin_look, options.service_account_dir, warnings)
            self._pending = PendingPods(connect)
        return Collector(collecting, self._gpus, tenancy, LedgerBooks(ledger), self._served.services, self._pending)

    def _record_whole(self, inventory: Inventory | None) -> None:
        if self._whole_ledger is None or inventory is None or self._holdings.held is None:
            return
        from kube_accel.plugin.tenancy.metering import whole_shares

        shares = whole_shares(self._holdings.held, self._whole.parts)
        if shares != self._recorded:
            self._whole_ledger.reconcile(shares, lambda holder: "")
            self._recorded = shares

    def _status(self, request: Mapping[str, Any]) -> dict[str, Any]:
        registration = self._served.registration()
        snapshot = self._gpus.snapshot()
        return {
            "registered": registration.registered,
            "registration": self._drivers.obstacle or registration.detail,
            "driver": snapshot.driver_state.value,
            "detail": snapshot.detail,
            "mode": self._options.mode.value,
            **(self._configurator.status() if self._configurator is not None else {}),
            **(self._shares.status() if self._shares is not None else self._whole.status(snapshot.inventory)),
            **self._served.status(),
        }


def _mig_manager(options: PluginOptions, gpus: Gpus, lister: Lister) -> MigManager | None:
    if options.mig is None:
        return None
    # Loaded here, since few nodes want it.
    from kube_accel.plugin.mig.manager import MigManager

    return MigManager(options.mig, options.node_name, options.state_dir, gpus, lister)
