# SPDX-License-Identifier: Apache-2.0
"""Collects in the background and keeps the page that is served: a scrape waits for nothing."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import kube_accel
from kube_accel.metrics import families
from kube_accel.metrics.aliases import dcgm, gpu_manager
from kube_accel.metrics.attribute import Attributed, Owner, attribute
from kube_accel.metrics.charge import Charge, Meter, Model, Payer, State, charge_families
from kube_accel.metrics.claims import Claim, claims
from kube_accel.metrics.containers import Containers, Kept, Key, unattributed
from kube_accel.metrics.devices import Devices, device_families
from kube_accel.metrics.exposition import Family, Series, Writer
from kube_accel.metrics.processes import Processes
from kube_accel.metrics.sample import GpuSample, Rare, samples
from kube_accel.metrics.service import Service, Services
from kube_accel.metrics.tenancy import Account, Charged, Container, Holdings, Tenancy
from kube_accel.model import DriverState
from kube_accel.nvml.gpus import WatchedGpus

_log = logging.getLogger(__name__)

_NVML_SECONDS = 4.0
"""How long NVML may take: less than it takes to be called wedged."""
_RARE_SECONDS = 60.0
"""Between questions about what changes rarely or takes long to read."""
_MANY_SERIES = 20_000
"""Most series of a node that a cluster's Prometheus should have to keep: 8 GPUs with 64 containers are 1,100."""

_OWN, _DCGM, _GPU_MANAGER = "/metrics", "/metrics/dcgm", "/metrics/gpu-manager"


class CollectError(Exception):
    """A part of a collection has no result; ``reason`` is one of few words."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class Books(Protocol):
    """Where a meter and peaks are kept while no daemon runs."""

    @property
    def ledger(self) -> str:
        """Return the name of the ledger that charges are kept in; empty where there is none."""

    def load(self) -> tuple[State | None, Mapping[Payer, Charge]]:
        """Return what was kept last."""

    def save(self, state: State, charges: Mapping[Payer, Charge]) -> Collection[Payer]:
        """Keep this, and return the payers that are forgotten because they were long charged nothing.

        A failure is logged, and the meter goes on.
        """

    def peaks(self) -> Mapping[Key, Kept]:
        """Return the peaks of containers with GPUs; none when they cannot be read, which is logged."""

    def peaked(self, peaks: Mapping[int, int]) -> None:
        """Keep these peaks, by allocation, where they are higher than what is kept. A failure is logged."""


class Pending(Protocol):
    """Counts the pods of the cluster that ask for GPUs and have no node."""

    @property
    def asked(self) -> bool:
        """Return whether the API server was asked yet."""

    @property
    def counts(self) -> Mapping[tuple[str, str], int] | None:
        """Return how many there are by namespace and mode; None while that is not known."""


class Parts:
    """How the parts of collections went."""

    def __init__(self, node: str) -> None:
        self._node = node
        self._success: dict[str, int] = {}
        self._duration: dict[str, float] = {}
        self._at: dict[str, float] = {}
        self._failures: Counter[tuple[str, str]] = Counter()

    @contextmanager
    def part(self, name: str) -> Iterator[None]:
        """Time what is done within; a CollectError ends it and is counted."""
        begin = time.perf_counter()
        try:
            yield
        except CollectError as error:
            if self._success.get(name) != 0:
                _log.warning("metrics are incomplete", extra={"collector": name, "reason": error.reason})
            self._success[name] = 0
            self.failed(name, error.reason)
        else:
            self._success[name] = 1
            self._at[name] = time.time()
        self._duration[name] = time.perf_counter() - begin

    def failed(self, name: str, reason: str) -> None:
        """Count something that is missing from a part."""
        self._failures[name, reason] += 1

    def families(self) -> Iterator[tuple[Family, Series]]:
        """Return the families about the collector itself."""
        for family, found in (
            (families.COLLECTOR_SUCCESS, self._success),
            (families.COLLECTOR_DURATION, self._duration),
            (families.COLLECTOR_AT, self._at),
        ):
            yield family, {(self._node, name): value for name, value in found.items()}
        yield families.COLLECTOR_FAILURES, {(self._node, *key): count for key, count in self._failures.items()}


@dataclass(frozen=True, slots=True)
class CollectorOptions:
    """What a collector is to do."""

    node: str
    mode: str
    interval: float
    """Seconds from one collection to the next."""
    proc_root: Path
    aliases: bool = False
    """Whether there are pages with the names of other exporters too."""
    profiling: bool = False
    """Whether GPUs are asked for the counters of their parts."""


class Collector:
    """The page, and what makes it. ``collect`` and ``run`` are for one thread, ``page`` for all."""

    def __init__(
        self,
        options: CollectorOptions,
        gpus: WatchedGpus,
        tenancy: Tenancy,
        books: Books,
        services: Callable[[], Mapping[str, Service]],
        pending: Pending | None = None,
    ) -> None:
        """``services`` returns by resource what kubelet is served; ``pending`` is None where others count."""
        mode, node = options.mode, options.node
        self._options = options
        self._node = node
        self._gpus = gpus
        self._tenancy = tenancy
        self._processes = Processes(options.proc_root, tenancy.owner) if tenancy.owner is not None else None
        self._containers = Containers(node, mode)
        self._accounts: Mapping[Account, Charged] = {}
        """As they were read last."""
        self._outcomes: Counter[tuple[str, str]] = Counter()
        self._books = books
        self._metering = threading.Lock()
        self._meter = Meter(mode, *books.load())
        self._boot = _boot_id()
        self._asked_services = services
        self._services = Services(node)
        self._parts = Parts(node)
        self._pending = pending
        self._pending_pods: Series = {}
        self._busy: defaultdict[str, float] = defaultdict(float)
        self._rare: dict[str, Rare] = {}
        self._rare_at = -_RARE_SECONDS
        self._writers = {path: Writer() for path in ((_OWN, _DCGM, _GPU_MANAGER) if options.aliases else (_OWN,))}
        self._pages: dict[str, bytes] = {}
        self._many = False
        self._render(None, {})

    def page(self) -> bytes:
        """Return the last page."""
        return self._pages[_OWN]

    @property
    def pages(self) -> Mapping[str, Callable[[], bytes]]:
        """Return what to serve, by path."""
        return {path: partial(self._pages.__getitem__, path) for path in self._writers}

    def changed(self) -> None:
        """Note that a container got or lost a GPU just now. For any thread."""
        with self._metering:
            self._measure()

    def close(self) -> None:
        """Keep what was counted up to now."""
        with self._metering:
            self._measure()
            self._keep()

    def _measure(self) -> Holdings | None:
        """Charge the time until now, and note the present allocations."""
        inventory, holdings = self._gpus.snapshot().inventory, self._tenancy.holdings()
        if inventory is not None and holdings is not None:
            gpus = {gpu.uuid: Model(gpu.model, gpu.memory_bytes) for gpu in inventory.gpus}
            self._meter.see(State(self._boot, time.clock_gettime(time.CLOCK_BOOTTIME), gpus, holdings))
        return holdings

    def _keep(self) -> None:
        if self._meter.state is not None:
            self._meter.forget(self._books.save(self._meter.state, self._meter.charges))

    def run(self, stop: threading.Event) -> None:
        """Collect until ``stop`` is set."""
        due = time.monotonic()
        while not stop.is_set():
            before = self._gpus.snapshot()
            self.collect()
            if before.driver_state is DriverState.STARTING:
                # The first answer is worth a collection of its own.
                self._gpus.wait(before.version, self._options.interval)
                continue
            due = max(due + self._options.interval, time.monotonic())
            stop.wait(due - time.monotonic())

    def collect(self) -> None:
        """Ask for everything once, and make the next page."""
        found: Mapping[str, GpuSample] | None = None
        with self._parts.part("nvml"):
            found = self._sample()
        attributed: Mapping[str, Attributed] = {}
        with self._parts.part("containers"):
            with self._metering:
                holdings = self._measure()
            attributed = self._attribute(found or {}, holdings)
        self._pending_pods = self._count_pending()
        with self._metering, self._parts.part("page"):
            for uuid, told in attributed.items():
                for container, figures in told.containers.items():
                    self._meter.busy(uuid, container, figures.busy_seconds or 0.0)
            # What is shown must not be taken back by a successor.
            self._keep()
            self._render(found, attributed)

    def _count_pending(self) -> Series:
        if self._pending is None or not self._pending.asked:
            return {}
        with self._parts.part("pending"):
            counts = self._pending.counts
            if counts is None:
                raise CollectError("api_server")
            return {(self._node, *key): float(count) for key, count in counts.items()}
        return {}

    def _attribute(self, found: Mapping[str, GpuSample], holdings: Holdings | None) -> Mapping[str, Attributed]:
        if holdings is None:
            raise CollectError("kubelet")
        owners = self._owners(found.values())
        attributed: dict[str, Attributed] = {}
        claimed = self._claims(found.values())
        for uuid, sample in found.items():
            told = attributed[uuid] = attribute(sample, holdings.get(uuid, ()), owners, claimed.get(uuid, {}))
            self._outcomes.update(told.outcomes)
        # Read each time: in an upgrade both plugins see peaks.
        risen = self._containers.see(holdings, found, attributed, self._books.peaks(), time.time())
        if risen:
            self._books.peaked(risen)
        if self._processes is not None and owners is None:
            self._parts.failed("containers", "namespace")
        return attributed

    def _owners(self, found: Collection[GpuSample]) -> Mapping[int, Owner] | None:
        """Return the owners of processes; None where processes cannot be looked at."""
        if self._processes is None or not self._processes.visible():
            return None
        pids = [pid for sample in found for pid in sample.processes or ()]
        pids += [pid for sample in found for pid, _, _ in sample.process_time or ()]
        return self._processes.owners(pids)

    def _claims(self, found: Collection[GpuSample]) -> Mapping[str, Mapping[Container, Claim]]:
        """Return what accounts say, by GPU. Read after NVML by each collection: GPU time is what they grew by."""
        before, self._accounts = self._accounts, self._tenancy.accounts()
        return claims(before, self._accounts, {sample.uuid: sample.capacity_bytes for sample in found})

    def _sample(self) -> Mapping[str, GpuSample]:
        snapshot = self._gpus.snapshot()
        if snapshot.driver_state is not DriverState.READY or snapshot.inventory is None:
            self._rare.clear()
            raise CollectError(snapshot.driver_state.value)
        now = time.monotonic()
        slow = now - self._rare_at >= _RARE_SECONDS
        answer = self._gpus.samples(slow, self._options.profiling, _NVML_SECONDS)
        if answer is None:
            raise CollectError("no_answer")
        told = samples(answer)
        if slow:
            self._rare_at = now
            self._rare = {uuid: gpu.rare for uuid, gpu in told.items() if gpu.rare is not None}
        # One that is lost says so, or is not reported by a worker that was started since.
        for uuid in {gpu.uuid for gpu in snapshot.inventory.gpus} - told.keys():
            self._rare.pop(uuid, None)
            self._parts.failed("nvml", "gpu")
        for uuid, gpu in told.items():
            if self._options.profiling and gpu.profile is None and not gpu.mig_profiles:
                self._parts.failed("nvml", "profiling")
            if gpu.withheld:
                self._parts.failed("nvml", "value")
            if gpu.busy is not None:
                self._busy[uuid] += gpu.busy.seconds
        return told

    def _render(self, found: Mapping[str, GpuSample] | None, attributed: Mapping[str, Attributed]) -> None:
        snapshot = self._gpus.snapshot()
        xids, seen = self._gpus.xids(), self._gpus.seen()
        told = Devices(self._node, self._options.mode, snapshot, found, self._rare, self._busy, xids, seen)
        gpus = snapshot.inventory.gpus if snapshot.inventory is not None else ()
        capacity = {gpu.uuid: gpu.memory_bytes for gpu in gpus}
        ledger: Series = {(self._node, name): 1.0 for name in [self._books.ledger] if name}
        own = (
            *device_families(told),
            (families.GPU_UNATTRIBUTED, unattributed(self._node, attributed)),
            *self._containers.families(capacity, self._tenancy.refusals()),
            *charge_families(self._node, self._meter.charges),
            (families.LEDGER_INFO, ledger),
            (families.PENDING, self._pending_pods),
            *self._own(),
            *self._parts.families(),
        )
        made: dict[str, Iterable[tuple[Family, Series]]] = {_OWN: (*own, self._counted(own))}
        if _DCGM in self._writers:
            holdings, uses = self._containers.holdings, self._containers.uses
            made[_DCGM] = dcgm(told, holdings, uses, time.time())
            made[_GPU_MANAGER] = gpu_manager(self._node, gpus, holdings, uses)
        self._pages.update((path, writer.page(made[path])) for path, writer in self._writers.items())

    def _counted(self, own: Iterable[tuple[Family, Series]]) -> tuple[Family, Series]:
        """Return how many series there are, this one included; says so, once, when they are many."""
        number = 1 + sum(len(series) for _, series in own)
        if number > _MANY_SERIES and not self._many:
            most = max(own, key=lambda pair: len(pair[1]))[0].name
            _log.warning("the page of metrics has many series", extra={"series": number, "most": most})
        self._many = number > _MANY_SERIES
        return families.COLLECTOR_SERIES, {(self._node,): number}

    def _own(self) -> Iterator[tuple[Family, Series]]:
        yield from self._services.families(self._asked_services(), time.time())
        yield families.ATTRIBUTION, {(self._node, *key): count for key, count in self._outcomes.items()}
        yield families.BUILD_INFO, {(self._node, kube_accel.__version__, self._options.mode): 1}


def _boot_id() -> str:
    """Return an identity that changes each time the machine starts."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()
