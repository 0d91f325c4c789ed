# SPDX-License-Identifier: Apache-2.0
"""What the daemon has more of in a mode that divides GPUs: pods, steering, ledger, MPS."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from kube_accel.enforce.mps import MpsMonitor, MpsPaths
from kube_accel.enforce.mps import grant as mps_grant
from kube_accel.kube.podresources import PodDevices, PodResourcesError
from kube_accel.model import Mode, Share, Snapshot
from kube_accel.plugin.fraction import Allocator, Enforcement, FractionPlugin
from kube_accel.plugin.holdings import Holder, Lister
from kube_accel.plugin.ledger import Ledger
from kube_accel.plugin.options import PluginOptions
from kube_accel.plugin.pods import NodePod, NodePods
from kube_accel.plugin.prestart import StartRefused, by_container, held_shares
from kube_accel.sharing.fraction import Kind, resources
from kube_accel.sharing.profile import Profile

if TYPE_CHECKING:
    from kube_accel.plugin.reporter import Reporter

_log = logging.getLogger(__name__)


class Listing:
    """Kubelet's PodResources, with everybody's questions of use to all: answers are passed on in the order asked."""

    def __init__(self, lister: Lister, on_listed: Callable[[tuple[PodDevices, ...]], None]) -> None:
        self._lister = lister
        self._on_listed = on_listed
        self._lock = threading.Lock()
        self._asked = 0
        self._answered = 0

    def list(self, timeout: float) -> tuple[PodDevices, ...]:
        """Every container with devices. Raises PodResourcesError."""
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


class Fraction:
    """Everything the resources of one mode share."""

    def __init__(self, options: PluginOptions, profile: Profile, lister: Lister, on_health: Callable[[], None]) -> None:
        """``on_health`` is called when a GPU became fit or unfit to be shared, on another thread."""
        self.profile = profile
        self.held: Mapping[Holder, tuple[Share, ...]] = {}
        """What every container has, as kubelet told it last."""
        self.lister = Listing(lister, self._settle)
        """To be asked by whoever wants to know who holds what."""
        self._options = options
        self._pods = NodePods(profile, options.node_name, self._pod_changed)
        self._allocator = Allocator(profile, self._pods, self._refresh)
        self._ledger = Ledger(options.state_dir, options.mode)
        self._snapshot: Snapshot | None = None
        self._listed: tuple[PodDevices, ...] | None = None
        self._listing = threading.Lock()
        self._reporter: Reporter | None = None
        self._mps: MpsMonitor | None = None
        self._enforcement: Enforcement | None = None
        if options.mode is Mode.MPS:
            paths = MpsPaths(options.mps_root, options.mps_control_command)
            self._mps = MpsMonitor(paths, on_health, self._mps_incident, options.mps_interval)
            self._enforcement = partial(mps_grant, profile=profile, paths=paths)

    def plugin(
        self, kind: Kind, on_allocate: Callable[[tuple[str, ...]], None], on_stream_end: Callable[[], None]
    ) -> FractionPlugin:
        """The service for one of the resources."""
        return FractionPlugin(
            kind,
            self._allocator,
            self.lister,
            self._ledger,
            self._enforcement,
            self._start_refused,
            self._options.dev_root,
            on_allocate,
            on_stream_end,
        )

    def parts(self, stop: threading.Event) -> Iterator[tuple[str, Callable[[], None]]]:
        """Threads to run, each with a name."""
        yield "api", partial(self._follow_api, stop)

    def see(self, snapshot: Snapshot) -> Snapshot:
        """Take the GPUs as NVML tells them; returned as they are for this mode."""
        if self._mps is not None:
            self._mps.see(snapshot.inventory)
            snapshot = self._mps.apply(snapshot)
        first = self._snapshot is None or self._snapshot.inventory is None
        self._snapshot = snapshot
        self._allocator.see(snapshot)
        if first and self._listed is not None and snapshot.inventory is not None:
            self.listed(self._listed)
        return snapshot

    def listed(self, listed: tuple[PodDevices, ...]) -> None:
        """Kubelet has told who holds what."""
        with self._listing:
            self._listed = listed
            inventory = self._snapshot.inventory if self._snapshot is not None else None
            if inventory is None:
                return
            containers = by_container(listed, self.profile)
            self.held = held_shares(containers, {gpu.uuid: gpu for gpu in inventory.gpus}, self.profile)
            self._ledger.reconcile(self.held, self._uid)

    def _refresh(self) -> None:
        with suppress(PodResourcesError):
            self.lister.list(timeout=1)

    def _settle(self, listed: tuple[PodDevices, ...]) -> None:
        self._allocator.settle(by_container(listed, self.profile))

    def _uid(self, holder: Holder) -> str:
        pod = self._pods.find(holder.namespace, holder.pod)
        return pod.uid if pod is not None else ""

    def _follow_api(self, stop: threading.Event) -> None:
        # Loaded here: TLS and HTTP are not needed to serve kubelet, which is waited for.
        from kube_accel.kube.kubeconfig import KubeconfigError, client_in_cluster
        from kube_accel.plugin.podwatch import PodsWatch
        from kube_accel.plugin.reporter import Reporter

        try:
            client = client_in_cluster(self._options.service_account_dir)
        except KubeconfigError:
            _log.info("no API server in the environment: GPUs are chosen here, pods are not told of")
            self._allocator.use_api(None)
            return
        self._reporter = Reporter(client, self._options.node_name, tuple(resources(self.profile).values()))
        watch = PodsWatch(client, self._pods, self._options.node_name, stop)
        self._allocator.use_api(watch)
        for name, target in (("reporter", self._reporter.run), ("pod lists", watch.run_lists)):
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

    def _mps_incident(self, uuid: str, message: str) -> None:
        if self._reporter is None:
            return
        for holder, shares in self.held.items():
            pod = self._pods.find(holder.namespace, holder.pod)
            if pod is not None and any(share.uuid == uuid for share in shares):
                self._reporter.event(pod, "MpsInterrupted", f"GPU {uuid}: {message}")
