# SPDX-License-Identifier: Apache-2.0
"""The driver's metrics: the collector that device plugins have, with what claims have in place of kubelet's devices."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial

from kube_accel.dra.feedback import ClaimFeedback
from kube_accel.dra.metering import ClaimMetering
from kube_accel.dra.options import DraOptions
from kube_accel.dra.pending import PendingClaims
from kube_accel.dra.pods import ClaimPods
from kube_accel.dra.preparer import Preparer
from kube_accel.dra.refusals import Refusals
from kube_accel.dra.shares import Shares
from kube_accel.kube.cgroups import Places
from kube_accel.kube.client import KubeClient
from kube_accel.kube.podresources import PodResourcesClient
from kube_accel.metrics.collector import Collector, CollectorOptions
from kube_accel.metrics.service import Service
from kube_accel.model import Gpu
from kube_accel.nvml.gpus import Gpus
from kube_accel.plugin.allocation.ledger import Ledger, Owner, this_machine
from kube_accel.plugin.node.pending_pods import PendingPods
from kube_accel.plugin.node.pod_reporter import Reporter
from kube_accel.plugin.tenancy.metering import LedgerBooks
from kube_accel.shared.modes import DRA_MODE

Services = Callable[[], Mapping[str, Service]]


class Measuring:
    """Who has what, the ledger, and the pages."""

    def __init__(
        self,
        options: DraOptions,
        client: KubeClient,
        gpus: Gpus,
        claims: tuple[Preparer, Shares],
        services: Services,
    ) -> None:
        """``services`` returns what kubelet is served."""
        preparer, shares = claims
        ledger = Ledger(options.state_dir, DRA_MODE, owner=Owner(options.node_name, this_machine()))
        # Without shares no GPU has two tenants, and the processes of others are not to be seen.
        pods = ClaimPods(client) if shares.enforced else None
        lister = PodResourcesClient(options.pod_resources_socket)
        self._reporter = Reporter(client, options.node_name) if pods is not None else None
        refusals: Refusals | None = None
        if pods is not None and self._reporter is not None:
            refusals = Refusals(self._reporter, pods, partial(_gpus, gpus))
        self._metering = ClaimMetering(preparer.claims, lister, partial(_gpus, gpus), shares, pods, ledger, refusals)
        metrics = options.metrics
        self._pending: PendingPods | None = None
        if metrics.pending:
            look = PendingClaims(client, metrics.pending_all)
            self._pending = PendingPods(lambda: look)
        collecting = CollectorOptions(
            options.node_name, DRA_MODE, metrics.interval, options.proc_root, metrics.aliases, metrics.profiling
        )
        tenancy, books = self._metering.tenancy(), LedgerBooks(ledger)
        self._collector = Collector(collecting, gpus, tenancy, books, services, self._pending)
        self._metering.on_change = self._collector.changed
        self._feedback: ClaimFeedback | None = None
        if pods is not None and shares.containers is not None:
            processes = gpus.usage, Places(options.proc_root).of
            known = self._metering.seen, partial(_gpus, gpus)
            self._feedback = ClaimFeedback(shares, shares.containers, *known, pods, processes)

    @property
    def pages(self) -> Mapping[str, Callable[[], bytes]]:
        """Return what to serve, by path."""
        return self._collector.pages

    def parts(self, stop: threading.Event) -> Iterator[tuple[str, Callable[[], None]]]:
        """Yield threads to run, each with a name."""
        yield "tenants", partial(self._metering.run, stop)
        yield "metrics", partial(self._collector.run, stop)
        if self._reporter is not None:
            yield "reporter", self._reporter.run
        if self._pending is not None:
            yield "pending", partial(self._pending.run, stop)
        if self._feedback is not None:
            yield "feedback", partial(self._feedback.run, stop)

    def changed(self) -> None:
        """Note that claims were prepared or released just now. Returns at once."""
        self._metering.changed()

    def close(self) -> None:
        """Keep what was counted up to now."""
        self._metering.changed()
        self._collector.close()


def _gpus(gpus: Gpus) -> Iterable[Gpu] | None:
    inventory = gpus.snapshot().inventory
    return None if inventory is None else inventory.gpus
