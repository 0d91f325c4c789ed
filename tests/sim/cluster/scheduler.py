# SPDX-License-Identifier: Apache-2.0
"""The scheduler loop behind a ``kube-scheduler`` container: filters, scores, extenders, binding, healthz and Lease."""

from __future__ import annotations

import base64
import http.client
import json
import re
import ssl
import tempfile
import threading
import uuid
from collections import Counter
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from decimal import Decimal
from http.server import BaseHTTPRequestHandler
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from sim.cluster.apiserver import Authority, TlsServer
from sim.cluster.containers import SERVICE_ACCOUNT
from sim.cluster.kinds import ApiError, Object, matches_node, pod_requests, quantity, tolerates
from sim.cluster.schedulerconfig import ConfigError, SchedulerConfig, Scoring, load
from sim.cluster.store import Store, now, set_condition

_FLAGS = {
    *("authentication-kubeconfig", "authorization-kubeconfig", "bind-address", "config", "feature-gates", "kubeconfig"),
    *("leader-elect", "profiling", "secure-port", "tls-cert-file", "tls-private-key-file", "v"),
}
_RENEW = 2.0
_LEASE = 15
_TAINT = {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}
# What the real scheduler scores a pod with that names no cpu or memory.
_NONZERO = {"cpu": Decimal("0.1"), "memory": Decimal(200 * 2**20)}
Totals = dict[str, Decimal]


class _RetryError(Exception):
    """A pod that failed for a reason that no change of the cluster announces."""


class Scheduler:
    """One running kube-scheduler. ``argv`` is its command line, with host paths.

    Raises ConfigError when the real one would end at start.
    """

    def __init__(
        self,
        store: Store,
        authority: Authority,
        node: str,
        argv: list[str],
        seen: Callable[[str], Path | None],
        pod_address: str,
        log: Callable[[str], None],
    ) -> None:
        self._store, self._log, self._seen = store, log, seen
        flags = {}
        for argument in argv[1:]:
            key, _, value = argument.lstrip("-").partition("=")
            if key not in _FLAGS:
                raise ConfigError(f"unknown flag: --{key}")
            flags[key] = value
        self.config = (
            load(Path(flags["config"]), seen)
            if "config" in flags
            else SchedulerConfig({"default-scheduler": Scoring()})
        )
        if not self.config.kubeconfig and "kubeconfig" not in flags and not seen(f"{SERVICE_ACCOUNT}/token"):
            raise ConfigError("no kubeconfig and no service account: unable to load in-cluster configuration")
        self._holder = f"{node}_{uuid.uuid4()}"
        self._stopped = threading.Event()
        # All addresses of a pod are its own alone.
        bind = flags.get("bind-address", "0.0.0.0").replace("0.0.0.0", pod_address)
        address = (bind, int(flags.get("secure-port", 10259)))
        self._server = TlsServer(address, _Healthz, authority.server_context("127.0.0.1", "localhost"))
        self._leads = False
        self._extenders = [_Extender(item, seen) for item in self.config.extenders]

    def start(self) -> None:
        self._server.start()
        self._thread = threading.Thread(target=self._run, name="kube-scheduler", daemon=True)
        self._thread.start()

    def stop(self) -> None:
        """End the loop and wait for it."""
        self._stopped.set()
        self._store.wake()
        self._server.stop()
        self._thread.join(10)
        if self._leads:
            self._store.edit("leases", *self.config.lease, lambda lease: lease["spec"].update(holderIdentity=""))

    def _run(self) -> None:
        self._log(f"serving with profiles {sorted(self.config.profiles)} and {len(self._extenders)} extenders")
        while not self._stopped.is_set() and not self._store.closed:
            if self.config.leader_elect:
                self._renew()
            version, retry = self._store.version, False
            for pod in self._pending() if self._leads or not self.config.leader_elect else ():
                try:
                    self._schedule(pod)
                except (_RetryError, ApiError) as error:
                    retry = True
                    self._unschedulable(pod, str(error), "SchedulerError")
            self._store.wait(("pods", "nodes"), version, 0.5 if retry else _RENEW, self._stopped.is_set)

    def _renew(self) -> None:
        namespace, name = self.config.lease
        spec = {"holderIdentity": self._holder, "leaseDurationSeconds": _LEASE, "renewTime": now(micro=True)}
        self._leads = True

        def edit(lease: Object) -> None:
            holder, until = lease["spec"]["holderIdentity"], datetime.fromisoformat(lease["spec"]["renewTime"])
            if holder not in ("", self._holder) and until + timedelta(seconds=_LEASE) > datetime.now(UTC):
                self._leads = False
                return
            if holder != self._holder:
                lease["spec"]["leaseTransitions"] = lease["spec"].get("leaseTransitions", 0) + 1
                lease["spec"]["acquireTime"] = spec["renewTime"]
            lease["spec"] |= spec

        if self._store.edit("leases", namespace, name, edit) is None:
            body = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease", "metadata": {"name": name}}
            try:
                self._store.create("leases", namespace, body | {"spec": spec | {"acquireTime": spec["renewTime"]}})
            except ApiError:
                self._leads = False  # Another one was faster.

    def _pending(self) -> list[Object]:
        pods = [
            pod
            for pod in self._store.all("pods")
            if not pod["spec"].get("nodeName")
            and not pod["metadata"].get("deletionTimestamp")
            and pod["spec"]["schedulerName"] in self.config.profiles
        ]
        return sorted(pods, key=lambda pod: (-pod["spec"].get("priority", 0), int(pod["metadata"]["resourceVersion"])))

    def _schedule(self, pod: Object) -> None:
        nodes = self._store.all("nodes")
        used: dict[str, Totals] = {node["metadata"]["name"]: {} for node in nodes}
        for other in self._store.all("pods"):
            where = other["spec"].get("nodeName")
            if where in used and other["status"].get("phase") not in ("Failed", "Succeeded"):
                _add(used[where], pod_requests(other) | {"pods": Decimal(1)})
        wanted = pod_requests(pod)
        fits, reasons = [], Counter[str]()
        for node in nodes:
            why = self._filter(pod, wanted, node, used[node["metadata"]["name"]])
            reasons.update(why)
            if not why:
                fits.append(node)
        extenders = [item for item in self._extenders if item.manages(wanted)]
        for extender in extenders:
            if fits:
                fits, failed = extender.filter(pod, fits)
                reasons.update(failed.values())
        if not fits:
            parts = ", ".join(sorted(f"{count} {reason}" for reason, count in reasons.items()))
            self._unschedulable(pod, f"0/{len(nodes)} nodes are available: {parts}.")
            return
        scoring = self.config.profiles[pod["spec"]["schedulerName"]]
        scores = {
            node["metadata"]["name"]: score(scoring, wanted, allocatable(node), used[node["metadata"]["name"]])
            for node in fits
        }
        if len(fits) > 1:
            for extender in extenders:
                extender.prioritize(pod, fits, scores)
        best = max(sorted(scores), key=lambda name: scores[name])
        binder = next((item for item in extenders if item.binds), None)
        if binder:
            binder.bind(pod, best)
        else:
            metadata = {"name": pod["metadata"]["name"], "uid": pod["metadata"]["uid"]}
            binding = {"apiVersion": "v1", "kind": "Binding", "metadata": metadata}
            target = {"apiVersion": "v1", "kind": "Node", "name": best}
            self._store.bind(pod["metadata"]["namespace"], pod["metadata"]["name"], binding | {"target": target})
        full = f"{pod['metadata']['namespace']}/{pod['metadata']['name']}"
        self._store.record(
            pod["metadata"]["namespace"],
            pod,
            "Scheduled",
            f"Successfully assigned {full} to {best}",
            "default-scheduler",
        )
        self._log(f"bound {full} to {best}")

    def _filter(self, pod: Object, wanted: Totals, node: Object, used: Totals) -> list[str]:
        """Why a pod cannot run on a node, as its first failing plugin says it; empty when it can."""
        tolerations = pod["spec"].get("tolerations") or []
        if node["spec"].get("unschedulable") and not tolerates(tolerations, _TAINT):
            return ["node(s) were unschedulable"]
        for taint in node["spec"].get("taints", ()):
            if taint["effect"] in ("NoSchedule", "NoExecute") and not tolerates(tolerations, taint):
                return [f"node(s) had untolerated taint {{{taint['key']}: {taint.get('value', '')}}}"]
        if not matches_node(pod["spec"], node):
            return ["node(s) didn't match Pod's node affinity/selector"]
        free = allocatable(node)
        short = []
        for name, amount in (wanted | {"pods": Decimal(1)}).items():
            if name not in self.config.ignored and amount > free.get(name, 0) - used.get(name, 0) and amount:
                short.append("Too many pods" if name == "pods" else f"Insufficient {name}")
        return short

    def _unschedulable(self, pod: Object, message: str, reason: str = "Unschedulable") -> None:
        metadata = pod["metadata"]

        def edit(body: Object) -> None:
            set_condition(body, "PodScheduled", "False", reason, message)

        edited = self._store.edit("pods", metadata["namespace"], metadata["name"], edit)
        if edited and edited["metadata"]["resourceVersion"] != metadata["resourceVersion"]:
            self._store.record(metadata["namespace"], pod, "FailedScheduling", message, "default-scheduler")


class _Healthz(BaseHTTPRequestHandler):
    """healthz, livez and readyz of a scheduler that runs."""

    def log_message(self, format: str, *args: Any) -> None:
        """Quiet."""

    def do_GET(self) -> None:
        known = self.path.split("?")[0] in ("/healthz", "/livez", "/readyz")
        self.send_response(200 if known else 404)
        self.end_headers()
        self.wfile.write(b"ok" if known else b"404 page not found")


def allocatable(node: Object) -> Totals:
    """What a node offers, as numbers."""
    return {name: quantity(value) for name, value in node.get("status", {}).get("allocatable", {}).items()}


def _add(total: Totals, more: Totals) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, Decimal(0)) + amount


def score(scoring: Scoring, wanted: Totals, total: Totals, used: Totals) -> float:
    """The NodeResourcesFit score of a node, 0 to 100."""
    result, weights = 0.0, 0
    for name, weight in scoring.resources:
        amount = wanted.get(name) or _NONZERO.get(name, Decimal(0))
        if not total.get(name) or not amount:
            continue
        share = min(float((used.get(name, Decimal(0)) + amount) / total[name]), 1.0)
        if scoring.type == "MostAllocated":
            points = share * 100
        elif scoring.type == "LeastAllocated":
            points = (1 - share) * 100
        else:
            points = _interpolate(scoring.shape, share * 100) * 10
        result, weights = result + points * weight, weights + weight
    return result / weights if weights else 0.0


def _interpolate(shape: tuple[tuple[int, int], ...], utilization: float) -> float:
    before = shape[0]
    for point in shape:
        if utilization <= point[0]:
            if point[0] == before[0]:
                return float(point[1])
            return before[1] + (point[1] - before[1]) * (utilization - before[0]) / (point[0] - before[0])
        before = point
    return float(before[1])


class _Extender:
    """One extender of the configuration, called as kube-scheduler does."""

    def __init__(self, config: Object, seen: Callable[[str], Path | None]) -> None:
        self._config = config
        self.binds = bool(config.get("bindVerb"))
        self._managed = {item["name"] for item in config.get("managedResources") or ()}
        self._url = urlsplit(config["urlPrefix"])
        tls = config.get("tlsConfig") or {}
        self._context: ssl.SSLContext | None = None
        if config.get("enableHTTPS") or self._url.scheme == "https":
            self._context = _tls(tls, seen)
        seconds = re.fullmatch(r"(\d+(?:\.\d+)?)(ms|s|m)", config.get("httpTimeout", "5s"))
        if not seconds:
            raise ConfigError(f"extenders: httpTimeout: not a duration: {config['httpTimeout']!r}")
        self._timeout = float(seconds[1]) * {"ms": 0.001, "s": 1, "m": 60}[seconds[2]]

    def manages(self, wanted: Totals) -> bool:
        return not self._managed or bool(self._managed & wanted.keys())

    def filter(self, pod: Object, nodes: list[Object]) -> tuple[list[Object], dict[str, str]]:
        """Nodes left, and why others are not. Raises _RetryError when it fails and is not ignorable."""
        if not self._config.get("filterVerb"):
            return nodes, {}
        try:
            answer = self._call("filterVerb", self._arguments(pod, nodes))
        except OSError as error:
            if self._config.get("ignorable"):
                return nodes, {}
            raise _RetryError(str(error)) from error
        if answer.get("Error"):
            raise _RetryError(answer["Error"])
        if self._config.get("nodeCacheCapable"):
            names = answer.get("NodeNames") or []
        else:
            names = [item["metadata"]["name"] for item in (answer.get("Nodes") or {}).get("items") or []]
        if set(names) - {node["metadata"]["name"] for node in nodes}:
            raise _RetryError(
                f"extender {self._config['urlPrefix']} claims a filtered node not found in the input node list"
            )
        failed = (answer.get("FailedNodes") or {}) | (answer.get("FailedAndUnresolvableNodes") or {})
        return [node for node in nodes if node["metadata"]["name"] in names], failed

    def prioritize(self, pod: Object, nodes: list[Object], scores: dict[str, float]) -> None:
        """Add the extender's scores; its failure is ignored, as in the real scheduler."""
        if not self._config.get("prioritizeVerb"):
            return
        try:
            for item in self._call("prioritizeVerb", self._arguments(pod, nodes)):
                scores[item["Host"]] += item["Score"] * self._config["weight"] * 10
        except OSError:
            return

    def bind(self, pod: Object, node: str) -> None:
        """Raises _RetryError."""
        metadata = pod["metadata"]
        body = {"PodName": metadata["name"], "PodNamespace": metadata["namespace"], "PodUID": metadata["uid"]}
        try:
            answer = self._call("bindVerb", body | {"Node": node})
        except OSError as error:
            raise _RetryError(str(error)) from error
        if answer.get("Error"):
            raise _RetryError(answer["Error"])

    def _arguments(self, pod: Object, nodes: list[Object]) -> Object:
        if self._config.get("nodeCacheCapable"):
            return {"Pod": pod, "Nodes": None, "NodeNames": [node["metadata"]["name"] for node in nodes]}
        return {"Pod": pod, "Nodes": {"metadata": {}, "items": nodes}, "NodeNames": None}

    def _call(self, verb: str, body: Object) -> Any:
        """Raises OSError, also for an answer other than 200."""
        host, url = self._url.netloc, f"{self._url.path.rstrip('/')}/{self._config[verb]}"
        connection = (
            http.client.HTTPSConnection(host, timeout=self._timeout, context=self._context)
            if self._context
            else http.client.HTTPConnection(host, timeout=self._timeout)
        )
        try:
            connection.request("POST", url, json.dumps(body), {"Content-Type": "application/json"})
            response = connection.getresponse()
            data = response.read()
            if response.status != 200:
                where = f"{self._config['urlPrefix']}/{self._config[verb]}"
                raise OSError(f"failed {verb} with extender at URL {where}, code {response.status}")
            return json.loads(data)
        except (http.client.HTTPException, ValueError) as error:
            raise OSError(f"extender {host}: {error!r}") from error
        finally:
            connection.close()


def _tls(config: Object, seen: Callable[[str], Path | None]) -> ssl.SSLContext:
    def pem(name: str) -> str:
        path = seen(config[f"{name}File"]) if config.get(f"{name}File") else None
        return path.read_text() if path else base64.b64decode(config.get(f"{name}Data", "")).decode()

    context = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    if config.get("insecure") or not pem("ca"):
        context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    else:
        context.load_verify_locations(cadata=pem("ca"))
    if pem("cert"):
        # The ssl module reads a certificate from files only.
        with tempfile.NamedTemporaryFile("w") as file:
            file.write(pem("cert") + "\n" + pem("key"))
            file.flush()
            context.load_cert_chain(file.name)
    return context
