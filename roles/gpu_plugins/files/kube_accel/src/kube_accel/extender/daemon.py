# SPDX-License-Identifier: Apache-2.0
"""The extender daemon: its threads and what they tell each other."""

from __future__ import annotations

import logging
import queue
import ssl
import sys
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from kube_accel.extender import unheeded
from kube_accel.extender.binder import Binder, Outcome
from kube_accel.extender.cache import Cluster
from kube_accel.extender.decide import Decider, Verdicts
from kube_accel.extender.heap import Heap
from kube_accel.extender.leader_lease import LeaderLease
from kube_accel.extender.metrics import Labels, Metrics
from kube_accel.extender.node import Reservation
from kube_accel.extender.pods import Pod, PodReader
from kube_accel.extender.quota import Quotas, QuotaSink
from kube_accel.extender.service import VERBS, Layout, Scheduling, Service
from kube_accel.extender.sinks import NodeSink, PodSink
from kube_accel.extender.traffic import Traffic
from kube_accel.kube.api import ApiError, ApiRefusedError, pod_path
from kube_accel.kube.client import KubeClient
from kube_accel.kube.watch import Watch, Watched
from kube_accel.metrics.families import PENDING
from kube_accel.model import PlacementPolicy
from kube_accel.placement.quota import total
from kube_accel.shared.printable import line
from kube_accel.shared.quota import EVERY_OTHER_NAMESPACE
from kube_accel.shared.waiting_pods import REFUSED
from kube_accel.stopping import Parts
from kube_accel.web.pages import METRICS_TYPE, Pages
from kube_accel.web.server import Limits, Server
from kube_accel.web.site import Response

_log = logging.getLogger(__name__)


QUOTA_CHANGED: Final = "kube-accel.io/quota-changed"
"""Annotation of pods that a quota kept waiting, set when it changed: seconds since 1970."""
ROOM_FOUND: Final = "kube-accel.io/room-found"
"""Likewise of pods that were refused before the news came that made room for them."""

_TICK = 1.0
_UNREACHED_SECONDS = 15.0
"""Seconds without the API server after which readyz reports that."""
_ADDRESS_SECONDS = 30.0
"""Seconds between attempts at the address of metrics, which others may have."""
_CONFLICT = 409
_LONGEST = 1024
"""Characters of an event's message that the API server takes."""
_LIVING = "status.phase!=Succeeded,status.phase!=Failed"
_SWITCH_SECONDS = 0.0001
"""A request waits at most so long, each time it waits for anything, for a thread that reads a list."""


class ExtenderError(Exception):
    """The extender cannot start; the message names the flag and the remedy."""


@dataclass(frozen=True, slots=True)
class ExtenderOptions:
    """The flags of ``kube-accel extender``."""

    listen: tuple[str, int]
    layout: Layout
    tls_cert: Path | None
    tls_key: Path | None
    client_ca: Path | None
    policy: PlacementPolicy
    quota_configmap: tuple[str, str]
    """Namespace and name."""
    manage_whole_gpus: bool
    metrics_listen: tuple[str, int] | None = None
    """Another address for ``/metrics`` alone, without TLS."""


class Extender:
    """One extender. ``run`` is its life."""

    def __init__(self, options: ExtenderOptions, api: KubeClient, stop: threading.Event) -> None:
        """Listens at once. Raises ExtenderError."""
        self._options = options
        self._api = api
        self._stop = stop
        self._parts = Parts(stop)
        self._tls = _Tls(options)
        verdicts = Verdicts()
        reader = PodReader(policy=options.policy, whole_gpus=options.manage_whole_gpus)
        self._cluster = Cluster(reader, verdicts.forget)
        decider = Decider(self._cluster, verdicts)
        self._metrics = Metrics(VERBS, [outcome.value for outcome in Outcome])
        self._quotas = Quotas(self._cluster, decider.choose)
        traffic = Traffic()
        self._pods = PodSink(self._cluster, self._say_of_pod)
        self._watches = self._watched(reader, traffic)
        self._lease = LeaderLease(api, self._cluster, self._watches["pods"].following)
        self._binder = Binder(api, self._cluster, decider, self._quotas, self._lease, traffic.aside)
        self._errands: queue.SimpleQueue[Callable[[], None]] = queue.SimpleQueue()
        self._warm = threading.Event()
        self._rendering = threading.Lock()
        if options.layout is Layout.PROXIED:
            self._cluster.bound = self._seen_bound
        pages = Pages({"/healthz": lambda: "", "/readyz": self._readyz}, {"/metrics": self._metrics_page})
        scheduling = Scheduling(
            reader, self._cluster, decider, self._binder, self._lease, self._quotas.limits, self._metrics
        )
        self._service = Service(options.layout, scheduling, pages)
        try:
            self._server = Server(
                options.listen, self._service, self._service.limits, self._tls.context, traffic.request
            )
        except OSError as error:
            host, port = options.listen
            raise ExtenderError(f"--listen {host}:{port} cannot be used: {error}; choose another port") from error
        self._metrics_server = self._listen_for_metrics()

    def _watched(self, reader: PodReader, traffic: Traffic) -> dict[str, Watch]:
        pods = Watched("/api/v1/pods", {"fieldSelector": _LIVING}, interesting=reader.interesting)
        nodes = Watched("/api/v1/nodes", metadata_only=True)
        namespace, name = self._options.quota_configmap
        quota = Watched(f"/api/v1/namespaces/{namespace}/configmaps", {"fieldSelector": f"metadata.name={name}"})
        return {
            "nodes": Watch(self._api, nodes, NodeSink(self._cluster), traffic.let_pass),
            "pods": Watch(self._api, pods, self._pods, traffic.let_pass),
            "quota": Watch(self._api, quota, QuotaSink(self._quotas, self._wake, self._complain)),
        }

    def _listen_for_metrics(self) -> Server | None:
        """Return the server of metrics alone; None where there is to be none, or its address cannot be used."""
        if self._options.metrics_listen is None:
            return None
        try:
            return Server(self._options.metrics_listen, Pages({}, {"/metrics": self._metrics_page}), Limits())
        except OSError as error:
            host, port = self._options.metrics_listen
            reason = f"--metrics-listen {host}:{port} cannot be used: {error}; free the port or choose another one"
            _log.warning("metrics are not served, but pods are placed", extra={"reason": reason})
            return None

    def _serve_metrics(self) -> None:
        """Serve metrics as soon as their address can be used."""
        while self._metrics_server is None:
            if self._stop.wait(_ADDRESS_SECONDS):
                return
            self._metrics_server = self._listen_for_metrics()
        self._metrics_server.run()

    @property
    def port(self) -> int:
        """Return the port it listens on."""
        return self._server.port

    @property
    def metrics_port(self) -> int | None:
        """Return the port of the metrics alone."""
        return self._metrics_server.port if self._metrics_server is not None else None

    def run(self) -> int:
        """Serve until ``stop`` is set, and return the exit code of the process."""
        heap = Heap()
        try:
            return self._run(heap)
        finally:
            heap.release()

    def _run(self, heap: Heap) -> int:
        for name, watch in self._watches.items():
            self._parts.start(f"watch {name}", lambda watch=watch: watch.run(self._stop))  # type: ignore[misc]
        self._parts.start("server", self._server.run)
        if self._options.metrics_listen is not None:
            self._parts.start("metrics server", self._serve_metrics)
        self._parts.start("errands", self._run_errands)
        self._parts.start("reservations", self._expire)
        if self._options.layout is Layout.LOCAL:
            self._parts.start("lease", lambda: self._lease.run(self._stop))
        self._parts.start("warm-up", lambda: self._warm_up(heap))
        _log.info("serving", extra={"layout": self._options.layout.value, "port": self.port})
        while not self._stop.wait(_TICK):
            self._tick()
            if self._lease.idle():
                heap.tidy()
        self._server.stop()
        if self._metrics_server is not None:
            self._metrics_server.stop()
        self._lease.release()
        return self._parts.exit_code

    def _warm_up(self, heap: Heap) -> None:
        """Do what the first request would otherwise wait for."""
        for watch in self._watches.values():
            watch.synced.wait()
        self._sum_up()
        heap.settle()
        # Before, there is no request that waits, and each switch costs time.
        sys.setswitchinterval(_SWITCH_SECONDS)
        self._warm.set()

    def _sum_up(self) -> None:
        for node in list(self._cluster.nodes.values()):
            with node.lock:
                node.view()

    def _tick(self) -> None:
        if self._warm.is_set():
            # So that the first request after news need not sum up every node.
            self._sum_up()
        self._tls.renew()
        self._wake(self._service.recheck(), ROOM_FOUND)

    def _expire(self) -> None:
        while not self._stop.wait(_TICK):
            for settle in (self._binder.expire, self._lease.retry_unfenced):
                try:
                    settle()
                except ApiError as error:
                    _log.warning("GPUs stay kept for pods that may be bound", extra={"reason": str(error)})

    def _run_errands(self) -> None:
        """Send the API server what no request waits for."""
        while True:
            errand = self._errands.get()
            try:
                errand()
            except ApiError as error:
                _log.warning("a request to the API server failed", extra={"reason": str(error)})

    def _seen_bound(self, pod: Pod, reservation: Reservation | None) -> None:
        """Tell the node's plugin which GPUs were reserved; without that, it chooses itself."""
        if reservation is not None and reservation.annotations:
            metadata = {"uid": pod.uid, "annotations": dict(reservation.annotations)}
            self._errands.put(lambda: self._patch(pod, metadata))

    def _wake(self, pods: list[Pod], why: str = QUOTA_CHANGED) -> None:
        """Have kube-scheduler try these pods again; ``why`` is the annotation that they get.

        It does so when something changes that it watches. A quota is nothing it knows, so the pods themselves change.
        """
        for pod in pods:
            metadata = {"uid": pod.uid, "annotations": {why: str(int(time.time()))}}
            self._errands.put(lambda pod=pod, metadata=metadata: self._patch(pod, metadata))  # type: ignore[misc]

    def _patch(self, pod: Pod, metadata: Mapping[str, object]) -> None:
        self._api.patch(pod_path(pod.namespace, pod.name), {"metadata": metadata})

    def _complain(self, config_map: Mapping[str, Any], problem: str) -> None:
        """Send an event about the ConfigMap, where its author looks."""
        name = (config_map.get("metadata") or {}).get("name")
        said = f"The quota before stays in force: {problem}"
        self._warn(config_map, "ConfigMap", f"{name}.{time.time_ns():x}", "QuotaUnreadable", said)

    def _say_of_pod(self, pod: Mapping[str, Any], said: str) -> None:
        """Send an event about a pod. It has one name, so that of several extenders one sends it."""
        metadata = pod.get("metadata") or {}
        name, uid = str(metadata.get("name")), metadata.get("uid")
        self._warn(pod, "Pod", f"{name[:200]}.unheeded.{uid}", unheeded.REASON, said)

    def _warn(self, item: Mapping[str, Any], kind: str, named: str, reason: str, said: str) -> None:
        metadata = item.get("metadata") or {}
        namespace, name = metadata.get("namespace"), metadata.get("name")
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        event = {
            "metadata": {"name": named, "namespace": namespace},
            "involvedObject": {
                "apiVersion": "v1",
                "kind": kind,
                "namespace": namespace,
                "name": name,
                "uid": metadata.get("uid"),
                "resourceVersion": metadata.get("resourceVersion"),
            },
            "type": "Warning",
            "reason": reason,
            "message": line(said, _LONGEST),
            "source": {"component": "kube-accel-extender"},
            "firstTimestamp": now,
            "lastTimestamp": now,
            "count": 1,
        }
        self._errands.put(lambda: self._post(f"/api/v1/namespaces/{namespace}/events", event))

    def _post(self, path: str, body: object) -> None:
        try:
            self._api.post(path, body)
        except ApiRefusedError as error:
            # Another extender said so.
            if error.status != _CONFLICT:
                raise

    def _readyz(self) -> str:
        for name, watch in self._watches.items():
            failing = watch.failing()
            if not watch.synced.is_set():
                return f"{name} not listed yet: {failing[1] if failing else 'under way'}"
            if failing is not None and failing[0] > _UNREACHED_SECONDS:
                return f"{name} not heard of for {failing[0]:.0f} s, answers are from before: {failing[1]}"
        return "" if self._warm.is_set() else "summing up the nodes"

    def _metrics_page(self) -> Response:
        # One at a time, for what it takes.
        with self._rendering:
            return self._render_metrics()

    def _render_metrics(self) -> Response:
        none: Labels = ()
        watches = {name: ((("kind", name),),) for name in self._watches}
        gauges: dict[str, tuple[str, dict[Labels, float]]] = {
            "accel_extender_nodes": ("Nodes known.", {none: len(self._cluster.nodes)}),
            "accel_extender_pods": ("Pods known that ask for GPUs.", {none: len(self._cluster.pods)}),
            "accel_extender_reservations": ("Binds that no watch has shown yet.", {none: self._cluster.reservations}),
            "accel_extender_watch_up": (
                "1 while a kind of object is listed and watched, otherwise 0.",
                {watches[name][0]: float(watch.failing() is None) for name, watch in self._watches.items()},
            ),
            "accel_extender_list_seconds": (
                "Time that the last complete list took.",
                {watches[name][0]: watch.list_seconds for name, watch in self._watches.items()},
            ),
            "accel_extender_lists": (
                "Complete lists since the start.",
                {watches[name][0]: watch.lists for name, watch in self._watches.items()},
            ),
        }
        quota = self._quotas.quota
        used: dict[Labels, float] = {}
        limits: dict[Labels, float] = {}
        for namespace in {*self._cluster.charges.namespaces(), *quota.namespaces} - {EVERY_OTHER_NAMESPACE}:
            amounts = self._cluster.charges.used(namespace)
            for limit in quota.of(namespace).limits:
                have = total(limit, amounts)
                for resource, most, amount in (
                    ("cores", limit.cores, have.cores),
                    ("memory", limit.memory_bytes, have.memory_bytes),
                    ("cards", limit.cards, have.cards),
                ):
                    if most is not None:
                        labels = (("namespace", namespace), ("model", limit.model), ("resource", resource))
                        limits[labels], used[labels] = most, amount
        told = "The most that a namespace may have, by resource: percent of cores, bytes of memory, cards."
        gauges["accel_namespace_gpu_quota"] = (told, limits)
        gauges["accel_namespace_gpu_quota_used"] = ("How much of its quota a namespace has.", used)
        # Copied at once: watches go on.
        waiting = [pod for pod in list(self._cluster.pods.values()) if not pod.node]
        pending = Counter(
            (pod.namespace, pod.request.mode.value if pod.request is not None else REFUSED) for pod in waiting
        )
        pending.update(list(self._pods.unmanaged.values()))
        gauges[PENDING.name] = (
            PENDING.help,
            {tuple(zip(("namespace", "mode"), key, strict=True)): float(count) for key, count in pending.items()},
        )
        return Response(200, self._metrics.render(gauges).encode(), METRICS_TYPE)


class _Tls:
    """The server's side of TLS, with certificates that may be renewed."""

    def __init__(self, options: ExtenderOptions) -> None:
        """Raises ExtenderError."""
        self._options = options
        self._files = [path for path in (options.tls_cert, options.tls_key, options.client_ca) if path is not None]
        self._tried: list[tuple[int, ...]] = []
        self._context: ssl.SSLContext | None = None
        if options.layout is Layout.LOCAL and len(self._files) < 3:
            raise ExtenderError("--layout local needs --tls-cert, --tls-key and --client-ca: pods are bound through it")
        if (options.tls_cert is None) is not (options.tls_key is None):
            raise ExtenderError("--tls-cert and --tls-key go together; give both")
        if options.tls_cert is None:
            return
        try:
            self._tried = self._written()
            self._context = self._load(options.tls_cert)
        except (OSError, ValueError) as error:
            files = ", ".join(map(str, self._files))
            raise ExtenderError(
                f"TLS cannot start with {files}: {error}; give PEM files that belong together"
            ) from error

    def context(self) -> ssl.SSLContext | None:
        """Return the context for the next connection; None without TLS."""
        return self._context

    def renew(self) -> None:
        """Load the files if they have changed; as long as that fails, use what was loaded before."""
        if self._options.tls_cert is None:
            return
        written = self._written()
        if written == self._tried:
            return
        # Files are replaced one after another: once the last one is, they belong together again.
        self._tried = written
        try:
            self._context = self._load(self._options.tls_cert)
            _log.info("certificates renewed")
        except (OSError, ValueError) as error:
            _log.warning("the certificates are not renewed", extra={"reason": str(error)})

    def _written(self) -> list[tuple[int, ...]]:
        found: list[tuple[int, ...]] = []
        for path in self._files:
            try:
                status = path.stat()
                found.append((status.st_mtime_ns, status.st_ino, status.st_size))
            except OSError:
                found.append(())
        return found

    def _load(self, cert: Path) -> ssl.SSLContext:
        # A context only ever learns to trust more: another client CA takes a new one.
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_RENEGOTIATION
        # Nobody who calls us resumes a session, and two tickets are a fifth of what a handshake costs.
        context.num_tickets = 0
        if self._options.layout is Layout.LOCAL:
            # kube-scheduler then binds over one connection, not over a new one for every third pod.
            context.set_alpn_protocols(["h2", "http/1.1"])
        context.load_cert_chain(cert, self._options.tls_key)
        if self._options.client_ca is not None:
            context.load_verify_locations(self._options.client_ca)
            context.verify_mode = ssl.CERT_OPTIONAL
        return context
