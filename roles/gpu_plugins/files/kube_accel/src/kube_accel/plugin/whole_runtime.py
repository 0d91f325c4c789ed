# SPDX-License-Identifier: Apache-2.0
"""What the daemon knows of its resources in the mode that hands out GPUs and parts of them."""

from __future__ import annotations

import logging
from collections.abc import Iterable, KeysView, Mapping
from typing import Any

from kube_accel.kube.podresources import PodDevices
from kube_accel.model import Inventory, Snapshot
from kube_accel.plugin.configuration.choice import NotChosenError, in_the_way
from kube_accel.plugin.configuration.delivery_flags import DeliveryFlags, settle
from kube_accel.plugin.configuration.file import Configuration
from kube_accel.plugin.kubelet.devices import healthy_gpus
from kube_accel.plugin.kubelet.server import WholeGpuPlugin
from kube_accel.shared.offers import TooManyError, client_limit, left_out, mig_problem
from kube_accel.sharing import mig, whole
from kube_accel.sharing.delivery import Terms
from kube_accel.sharing.replication import check_clients, replicated

_log = logging.getLogger(__name__)


class WholeGpus:
    """Which resources there are, and what each of them offers."""

    def __init__(
        self,
        configuration: Configuration | None = Configuration(),  # noqa: B008 - frozen
        strategy: mig.Strategy | None = None,
        layout: whole.Layout | None = None,
        flags: DeliveryFlags = DeliveryFlags(),  # noqa: B008 - frozen
    ) -> None:
        """``layout`` says what the hardware has, the configuration what is offered of it.

        A ``strategy`` and ``flags`` go before what the configuration says; the strategy makes the layout where none is
        given.
        """
        self._flags = flags
        self.configuration = configuration
        """None while it is not known, and nothing can be offered."""
        self._strategy = strategy
        self._layout = layout
        self.problem = ""
        """Why nothing is offered although there are GPUs; empty when there is no reason."""
        self.left_out: tuple[str, ...] = ()
        """Why single GPUs are not offered although others are."""
        self._inventory: Inventory | None = None
        self._parts: dict[str, tuple[whole.Part, ...]] = {whole.RESOURCE: ()}
        self.known_parts: tuple[whole.Part, ...] | None = None
        """All there are, for any thread; None while there is no inventory that says so."""
        self._good: frozenset[str] = frozenset()

    @property
    def resources(self) -> KeysView[str]:
        """Return the resources that are served: the last known ones without an inventory, and never none."""
        return self._parts.keys()

    @property
    def parts(self) -> Iterable[whole.Part]:
        """Return all parts."""
        return (part for parts in self._parts.values() for part in parts)

    @property
    def offered(self) -> Mapping[str, tuple[whole.Part, ...]]:
        """Return the parts by resource."""
        return self._parts

    @property
    def divided(self) -> frozenset[str]:
        """Return the UUIDs of GPUs that no container gets as a whole by the usual name."""
        gpus = self._inventory.gpus if self._inventory is not None else ()
        return frozenset(gpu.uuid for gpu in gpus) - {part.id for part in self._parts.get(whole.RESOURCE, ())}

    @property
    def strategy(self) -> mig.Strategy:
        """Return what becomes of GPUs in MIG mode."""
        return self._strategy_of(self.configuration or Configuration())

    def see(self, snapshot: Snapshot) -> None:
        """Take the GPUs as they are now."""
        self._inventory = snapshot.inventory
        self._good = healthy_gpus(snapshot, self._good)
        if snapshot.inventory is None:
            self._parts = dict.fromkeys(self._parts, ())
        else:
            configuration = self.configuration or Configuration()
            strategy = self._strategy_of(configuration)
            problem = mig_problem(strategy, snapshot.inventory.gpus)
            try:
                self._parts = self._offered(snapshot.inventory, configuration)
            except TooManyError as error:
                self._parts, problem = dict.fromkeys(self._parts, ()), str(error)
            self._log_problem(problem)
            self.left_out = tuple(left_out(strategy, snapshot.inventory.gpus).values())
        self.known_parts = None if snapshot.inventory is None else tuple(self.parts)

    def terms(self, configuration: Configuration | None) -> Terms:
        """Return how parts are handed out by that configuration; None is one that says nothing."""
        configuration = configuration or Configuration()
        delivery = settle(self._flags, configuration)
        return Terms(configuration.pack_shared, configuration.one_replica_each, delivery)

    def try_on(
        self, configuration: Configuration, inventory: Inventory, listed: Iterable[PodDevices]
    ) -> NotChosenError | None:
        """Return why pods or kubelet keep the node from that configuration, or None."""
        layouts = [self._laid_out(inventory, one) for one in (self.configuration or configuration, configuration)]
        hardware = {part.uuid for found in layouts for parts in found.values() for part in parts}
        try:
            offered = self._offered(inventory, configuration)
        except TooManyError as error:
            return NotChosenError("ConfigurationRefused", str(error))
        wanted = {resource: {part.id for part in parts} for resource, parts in offered.items()}
        return in_the_way(listed, hardware, wanted)

    def _strategy_of(self, configuration: Configuration) -> mig.Strategy:
        return self._strategy or mig.Strategy(configuration.mig_strategy or mig.Strategy.NONE)

    def _laid_out(self, inventory: Inventory, configuration: Configuration) -> Mapping[str, tuple[whole.Part, ...]]:
        return (self._layout or mig.layout(self._strategy_of(configuration)))(inventory)

    def parts_of(self, configuration: Configuration, inventory: Inventory) -> tuple[whole.Part, ...]:
        """Return all parts that there would be; what the hardware has where that is too many."""
        try:
            offered: Mapping[str, tuple[whole.Part, ...]] = self._offered(inventory, configuration)
        except TooManyError:
            offered = self._laid_out(inventory, configuration)
        return tuple(part for parts in offered.values() for part in parts)

    def status(self, inventory: Inventory | None) -> dict[str, Any]:
        """Return the status for the admin socket."""
        shared = self.shared_by_mps(inventory) if inventory is not None else frozenset()
        return {"shared_by_mps": sorted(shared)} if shared else {}

    def shared_by_mps(self, inventory: Inventory) -> frozenset[str]:
        """Return UUIDs of GPUs whose containers are to be clients of MPS."""
        configuration = self.configuration or Configuration()
        # Asked at every look at the GPUs, and replicas can be many.
        if not any(replication.by_mps for replication in configuration.replications):
            return frozenset()
        parts = self.parts_of(configuration, inventory)
        return frozenset(part.gpu.uuid for part in parts if part.mps_replicas)

    def _offered(self, inventory: Inventory, configuration: Configuration) -> dict[str, tuple[whole.Part, ...]]:
        found = replicated(self._laid_out(inventory, configuration), configuration.replications)
        check_clients(found, client_limit(inventory.cuda_version))
        return found or {whole.RESOURCE: ()}

    def _log_problem(self, problem: str) -> None:
        if problem and problem != self.problem:
            _log.warning("no GPU is offered", extra={"reason": problem})
        self.problem = problem

    def offer(self, resource: str, plugin: WholeGpuPlugin) -> bool:
        """Have ``plugin`` offer what there is of its resource; return whether that is new to kubelet."""
        return plugin.offer(self._parts[resource], self._good, self._inventory, self.terms(self.configuration))
