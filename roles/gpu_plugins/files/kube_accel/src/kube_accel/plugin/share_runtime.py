# SPDX-License-Identifier: Apache-2.0
"""What the daemon has more of in a mode that divides GPUs: pods, steering, ledger, enforcement."""

from __future__ import annotations

import logging
import math
import threading
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from kube_accel.enforce.accounts import Wrong
from kube_accel.enforce.backend import LABEL, Ask, Name, Start
from kube_accel.enforce.containers import key_of
from kube_accel.enforce.mps import MpsMonitor, MpsPaths
from kube_accel.kube.cgroups import Places
from kube_accel.kube.podresources import PodDevices, PodResourcesError
from kube_accel.model import ContainerKind, Gpu, Mode, OnAbuse, Share, Snapshot
from kube_accel.nvml.gpus import SharedGpus
from kube_accel.plugin.allocation.ledger import Ledger, Owner, this_machine
from kube_accel.plugin.allocation.pods import NodePod, NodePods
from kube_accel.plugin.allocation.share_service import Allocator, Shared, SharePlugin
from kube_accel.plugin.allocation.start_check import Devices, Started, by_container, held_shares
from kube_accel.plugin.configuration.options import PluginOptions
from kube_accel.plugin.kubelet.device_exclusivity import StartRefused
from kube_accel.plugin.kubelet.holdings import Holder, Lister
from kube_accel.plugin.tenancy.abuse import sentence
from kube_accel.plugin.tenancy.enforcing import Enforcing
from kube_accel.plugin.tenancy.running import keys_of
from kube_accel.plugin.tenancy.tenants import Processes, Rules, Tenants
from kube_accel.sharing.delivery import Grant
from kube_accel.sharing.fraction import WHOLE, Kind, gpu_of, resources
from kube_accel.sharing.profile import Profile

if TYPE_CHECKING:
    from kube_accel.metrics.tenancy import Tenancy
    from kube_accel.plugin.node.pod_reporter import Reporter

_log = logging.getLogger(__name__)

_PRUNE_SECONDS = 60.0
"""From one search for files of containers that ended to the next: it looks at every one that was there lately."""


class Listing:
    """Kubelet's PodResources, with everybody's questions of use to all: answers are passed on in the order asked."""

    def __init__(self, lister: Lister, on_listed: Callable[[tuple[PodDevices, ...]], None]) -> None:
        self._lister = lister
        self._on_listed = on_listed
        self._lock = threading.Lock()
        self._asked = 0
        self._answered = 0

    def list(self, timeout: float) -> tuple[PodDevices, ...]:
        """Return every container with devices. Raises PodResourcesError."""
        with self._lock:
            self._asked += 1
            number = self._asked
        listed = self._lister.list(timeout)
        with self._lock:
            # An answer that was overtaken is older than what is known.
            if number > self._answered:
                self._answered = number
                self._on_listed(listed)
        return listed


class ShareRuntime:
    """Everything the resources of one mode share."""

    def __init__(
        self, options: PluginOptions, profile: Profile, lister: Lister, gpus: SharedGpus, on_health: Callable[[], None]
    ) -> None:
        """``on_health`` is called when a GPU became fit or unfit to be shared, on another thread. Raises NodeError."""
        self.profile = profile
        self.held: Mapping[Holder, tuple[Share, ...]] = {}
        """What every container has, as kubelet listed it last."""
        self._held_known = False
        """Whether that was made once of a list and of GPUs."""
        self.lister = Listing(lister, self._settle)
        """The list of holders, shared by all that ask for it."""
        self._options = options
        self._pods = NodePods(profile, options.node_name, self._pod_changed)
        self._allocator = Allocator(profile, self._pods, self._refresh)
        self.ledger = Ledger(options.state_dir, options.mode, owner=Owner(options.node_name, this_machine()))
        """Who has what since when."""
        self._snapshot: Snapshot | None = None
        self._listed: tuple[PodDevices, ...] | None = None
        self._listed_at = -math.inf
        self._listing = threading.Lock()
        self._prune_at = 0.0
        self._containers: Mapping[Holder, Devices] = {}
        """The devices of all containers as kubelet listed them last."""
        self._reporter: Reporter | None = None
        self._mps: MpsMonitor | None = None
        if options.mode is Mode.MPS:
            paths = MpsPaths(options.mps_root, options.mps_control_command)
            self._mps = MpsMonitor(paths, on_health, self._mps_incident, options.mps_interval, self._in_use)
        self.enforcing = Enforcing(options, profile, gpus.limit_memory, on_health)
        self.tenants = Tenants(
            self.enforcing.interposer.containers,
            self.ledger,
            self._pods,
            Processes(gpus.usage, Places(options.proc_root).of),
            Rules(self.enforcing.limits_cores, options.context_overhead_bytes),
            self._event,
            self._abused,
        )

    def plugin(
        self,
        kind: Kind,
        on_given_twice: Callable[[str], None],
        on_allocate: Callable[[tuple[str, ...]], None],
        on_stream_end: Callable[[], None],
    ) -> SharePlugin:
        """Return the service for one of the resources."""
        shared = Shared(self._allocator, self.lister, self.ledger, self, self._start_refused, self._options.dev_root)
        return SharePlugin(kind, shared, on_given_twice, on_allocate, on_stream_end)

    def parts(self, stop: threading.Event) -> Iterator[tuple[str, Callable[[], None]]]:
        """Yield threads to run, each with a name."""
        yield "api", partial(self._follow_api, stop)
        yield "enforcement", partial(self.enforcing.run, stop)
        yield "tenants", partial(self.tenants.run, stop)
        yield "spares", partial(self.enforcing.interposer.containers.spares.run, stop)

    def grant(self, ask: Ask) -> Grant:
        """Return what a container receives for its devices of one kind. Raises EnforceError."""
        return self.enforcing.backend.grant(ask)

    def admit(self, ask: Ask, started: Started) -> None:
        """Have the limits of a container in force before it starts. Raises EnforceError."""
        if ask.kind is Kind.CORES and not ask.whole:
            # The files come with the memory.
            return
        shares = started.shares or self._unlisted(ask)
        holder = started.holder
        uid = self._uid(holder) if holder is not None else ""
        backend, beside = self.enforcing.backend, self._beside(holder)
        self.tenants.start(
            holder, key_of(ask.ids), shares, lambda limits: backend.start(Start(ask.ids, limits, uid, beside))
        )

    def _beside(self, holder: Holder | None) -> dict[str, int]:
        """Return bytes that the other containers of a pod have, by the GPU's UUID."""
        found: Counter[str] = Counter()
        for other, devices in self._containers.items():
            if (
                holder is not None
                and other != holder
                and (other.namespace, other.pod) == (holder.namespace, holder.pod)
            ):
                for device in devices.get(Kind.MEMORY, ()):
                    found[gpu_of(device)] += self.profile.memory_unit_bytes
        return dict(found)

    def _unlisted(self, ask: Ask) -> tuple[Share, ...]:
        """Return what an init container has, which kubelet does not list: its cores are those that its pod asks for."""
        if ask.kind is Kind.CORES:
            return tuple(Share(uuid, WHOLE, ask.gpus[uuid].memory_bytes) for uuid in ask.chosen)
        unit = self.profile.memory_unit_bytes
        size = sum(ask.chosen.values()) * unit
        candidates = [
            (pod.phase == "Pending", WHOLE if container.whole else container.cores)
            for pod in self._pods.all()
            for container in (pod.request.containers if pod.request is not None else ())
            if container.kind is ContainerKind.INIT and container.memory_bytes == size
        ]
        # A pod is Pending until its init containers have ended; that this one is again may not be known yet.
        pending = [cores for is_pending, cores in candidates if is_pending]
        # Of several that it may be the least is taken.
        least = min(pending or [cores for _, cores in candidates], default=0)
        return tuple(Share(uuid, least, count * unit) for uuid, count in ask.chosen.items())

    def tenancy(self) -> Tenancy:
        """Return what metrics are made of."""
        # Loaded here: metrics can be off.
        from kube_accel.plugin.tenancy.metering import ShareTenancy

        return ShareTenancy(
            self.profile,
            lambda: self.held if self._held_known and self._gpus else None,
            lambda: self._gpus,
            self._pods,
            self.ledger,
            self.tenants,
            lambda: self.enforcing.choice.name in (Name.INTERPOSER, Name.MPS_INTERPOSER),
        ).tenancy()

    @property
    def _gpus(self) -> tuple[Gpu, ...]:
        inventory = self._snapshot.inventory if self._snapshot is not None else None
        return inventory.gpus if inventory is not None else ()

    def labels(self) -> dict[str, str]:
        """Return what the node is labelled with besides."""
        return {LABEL: self.enforcing.choice.name.value}

    def status(self) -> dict[str, object]:
        """Return the status for the admin socket."""
        choice = self.enforcing.choice
        refused = [
            {"pod": f"{row.allocation.holder.namespace}/{row.allocation.holder.pod}", "reason": row.reason}
            | {"container": row.allocation.holder.container, "gpu": row.allocation.share.uuid, "count": row.count}
            for row in self.ledger.refusals()
        ]
        return {
            "enforcement": choice.name.value,
            "enforcement_problem": choice.reason,
            "unlimited": self.enforcing.unlimited,
            "refusals": refused,
        }

    def see(self, snapshot: Snapshot) -> Snapshot:
        """Take the GPUs as NVML reports them, and return them as they are for this mode."""
        if self._mps is not None:
            self._mps.see(snapshot.inventory)
            snapshot = self._mps.apply(snapshot)
        snapshot = self.enforcing.see(snapshot)
        first = self._snapshot is None or self._snapshot.inventory is None
        self._snapshot = snapshot
        self._allocator.see(snapshot)
        if first and self._listed is not None and snapshot.inventory is not None:
            self.listed(self._listed, self._listed_at)
        return snapshot

    def listed(self, listed: tuple[PodDevices, ...], asked_at: float) -> None:
        """Take in the holders that kubelet, asked at this moment of ``time.monotonic``, listed."""
        with self._listing:
            self._listed, self._listed_at = listed, asked_at
            inventory = self._snapshot.inventory if self._snapshot is not None else None
            if inventory is None:
                return
            containers = by_container(listed, self.profile)
            gpus = {gpu.uuid: gpu for gpu in inventory.gpus}
            self.held = held_shares(containers, gpus, self.profile)
            self._held_known = True
            # What ended has its last count taken before the ledger closes it.
            self.tenants.listed(containers, self.held, gpus)
            self.ledger.reconcile(self.held, self._uid, asked_at)
            if (now := time.monotonic()) >= self._prune_at:
                self._prune_at = now + _PRUNE_SECONDS
                held = set[str]().union(*(keys_of(devices) for devices in containers.values()))
                self.enforcing.interposer.prune(held)

    def _refresh(self) -> None:
        with suppress(PodResourcesError):
            self.lister.list(timeout=1)

    def _settle(self, listed: tuple[PodDevices, ...]) -> None:
        self._containers = by_container(listed, self.profile)
        self._allocator.settle(self._containers)

    def _uid(self, holder: Holder) -> str:
        pod = self._pods.find(holder.namespace, holder.pod)
        return pod.uid if pod is not None else ""

    def _follow_api(self, stop: threading.Event) -> None:
        # Loaded here: TLS and HTTP are not needed to serve kubelet, which is waited for.
        from kube_accel.kube.kubeconfig import KubeconfigError, client_in_cluster
        from kube_accel.plugin.allocation.pods_watch import PodsWatch
        from kube_accel.plugin.node.pod_reporter import Reporter
        from kube_accel.plugin.tenancy.overrides_watch import OverridesWatch

        try:
            client = client_in_cluster(self._options.service_account_dir)
        except KubeconfigError:
            _log.info("no API server in the environment: GPUs are chosen here, and nothing is reported to pods")
            self._allocator.use_api(None)
            return
        self._reporter = Reporter(client, self._options.node_name, tuple(resources(self.profile).values()))
        watch = PodsWatch(client, self._pods, self._options.node_name, stop)
        self._allocator.use_api(watch)
        targets = {"reporter": self._reporter.run, "pod lists": watch.run_lists}
        if self._options.quota_overrides is not None:
            overrides = OverridesWatch(client, self._options.quota_overrides, self.tenants.override)
            targets["quota overrides"] = partial(overrides.run, stop)
        for name, target in targets.items():
            threading.Thread(target=target, name=name, daemon=True).start()
        watch.run()

    def _pod_changed(self, pod: NodePod) -> None:
        if self._reporter is not None:
            self._reporter.failed(pod)

    def _start_refused(self, refused: StartRefused) -> None:
        if refused.holder is None:
            return
        pod = self._pods.find(refused.holder.namespace, refused.holder.pod)
        if pod is not None and self._reporter is not None:
            self._reporter.event(pod, "GpuShareRefused", str(refused))
            self._reporter.remove(pod, str(refused))

    def _abused(self, holder: Holder, wrong: Collection[Wrong]) -> None:
        pod, on_abuse = self._pods.find(holder.namespace, holder.pod), self._options.account_abuse
        if pod is None or self._reporter is None:
            _log.warning("a container misuses its account", extra={"pod": f"{holder.namespace}/{holder.pod}"})
            return
        said = f"container {holder.container}: {sentence(wrong, on_abuse, pod.static)}"
        if pod.static or on_abuse is OnAbuse.EVENT:
            self._reporter.event(pod, "GpuAccountAbused", said)
        else:
            self._reporter.end(pod, "GpuAccountAbused", said)

    def _event(self, holder: Holder, reason: str, message: str) -> None:
        extra = {"pod": f"{holder.namespace}/{holder.pod}", "container": holder.container, "reason": message}
        pod = self._pods.find(holder.namespace, holder.pod)
        if pod is not None and self._reporter is not None:
            self._reporter.event(pod, reason, f"container {holder.container}: {message}")
        else:
            _log.warning("not reported to a pod", extra=extra)

    def _in_use(self, uuid: str) -> bool:
        return not self._held_known or any(share.uuid == uuid for shares in self.held.values() for share in shares)

    def _mps_incident(self, uuid: str, message: str) -> None:
        if self._reporter is None:
            return
        for holder, shares in self.held.items():
            pod = self._pods.find(holder.namespace, holder.pod)
            if pod is not None and any(share.uuid == uuid for share in shares):
                self._reporter.event(pod, "MpsInterrupted", f"GPU {uuid}: {message}")
