# SPDX-License-Identifier: Apache-2.0
"""DaemonSets, Deployments, Jobs, what is to go, and the taint of a cordon, in one loop that wakes on changes."""

from __future__ import annotations

import hashlib
import json
import math
import threading
from datetime import UTC, datetime
from typing import Any

from sim.cluster.kinds import ApiError, Object, dig, is_ready, matches_node, tolerates
from sim.cluster.store import Store, now, set_condition

HASH = "controller-revision-hash"
_WATCHED = (
    "daemonsets",
    "deployments",
    "jobs",
    "pods",
    "nodes",
    "serviceaccounts",
    "runtimeclasses",
    "priorityclasses",
    "namespaces",
)
_RETRY = 30.0
_JOB_SECONDS = 1.0
"""How exact deadlines of Jobs are."""
_UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
# What the DaemonSet controller adds to every pod it makes.
_TOLERATIONS = [
    {"key": f"node.kubernetes.io/{key}", "operator": "Exists", "effect": effect}
    for key, effect in (
        ("not-ready", "NoExecute"),
        ("unreachable", "NoExecute"),
        ("disk-pressure", "NoSchedule"),
        ("memory-pressure", "NoSchedule"),
        ("pid-pressure", "NoSchedule"),
        ("unschedulable", "NoSchedule"),
    )
]


class Controllers:
    """Runs until the store closes."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._thread = threading.Thread(target=self._run, name="controllers", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def join(self) -> None:
        if self._thread.ident:
            self._thread.join(10)

    def _run(self) -> None:
        while not self._store.closed:
            version = self._store.version
            for item in self._store.all("daemonsets"):
                self._daemonset(item)
            for item in self._store.all("deployments"):
                self._deployment(item)
            jobs = self._store.all("jobs")
            for item in jobs:
                self._job(item)
            self._collect()
            for item in self._store.all("namespaces"):
                if "deletionTimestamp" in item["metadata"]:
                    self._store.remove_empty(item["metadata"]["name"])
            self._taint()
            self._store.wait(_WATCHED, version, _JOB_SECONDS if jobs else _RETRY)

    def _daemonset(self, owner: Object) -> None:
        template = owner["spec"]["template"]
        tolerations = (template["spec"].get("tolerations") or []) + _TOLERATIONS
        revision = _revision(template)
        nodes = {
            node["metadata"]["name"]: matches_node(template["spec"], node)
            and all(tolerates(tolerations, taint) for taint in _hard_taints(node))
            for node in self._store.all("nodes")
        }
        pods: dict[str, list[Object]] = {name: [] for name in nodes}
        for pod in self._owned(owner):
            where = pod["spec"].get("nodeName") or _target(pod)
            if not nodes.get(where) or pod["status"]["phase"] in ("Failed", "Succeeded"):
                self._delete(pod)
            if where in pods:
                pods[where].append(pod)
        desired = [name for name, wanted in nodes.items() if wanted]
        strategy = owner["spec"].get("updateStrategy", {})
        update = strategy.get("rollingUpdate") or {}
        surge = _share(update.get("maxSurge", 0), len(desired))
        live = {name: [pod for pod in pods[name] if not pod["metadata"].get("deletionTimestamp")] for name in desired}
        fresh = {name: [pod for pod in live[name] if _hash(pod) == revision] for name in desired}
        stale = {name: [pod for pod in live[name] if _hash(pod) != revision] for name in desired}
        if strategy.get("type") == "OnDelete":
            # Whoever deletes a pod has it made anew; until then it stays.
            fresh, stale = live, {name: [] for name in desired}
        unavailable = sum(not any(map(is_ready, live[name])) for name in desired)
        allowed = _share(update.get("maxUnavailable", 0 if surge else 1), len(desired)) - unavailable
        surge -= sum(bool(stale[name] and fresh[name]) for name in desired)
        for name in desired:
            if stale[name] and (any(map(is_ready, fresh[name])) or not any(map(is_ready, stale[name]))):
                # The new pod serves, or the old one does not: nothing is lost without it.
                self._delete(*stale[name])
            elif stale[name] and not fresh[name] and surge > 0:
                surge -= 1
                self._create(owner, name, revision)
            elif stale[name] and not fresh[name] and allowed > 0:
                allowed -= 1
                self._delete(*stale[name])
            elif not pods[name] or (not live[name] and surge > 0):
                self._create(owner, name, revision)
        ready = sum(any(map(is_ready, live[name])) for name in desired)
        numbers = {
            "currentNumberScheduled": sum(bool(live[name]) for name in desired),
            "desiredNumberScheduled": len(desired),
            "numberMisscheduled": sum(bool(pods[name]) for name in nodes if not nodes[name]),
            "numberReady": ready,
            "numberAvailable": ready,
            "numberUnavailable": len(desired) - ready,
            "updatedNumberScheduled": sum(bool(fresh[name]) for name in desired),
        }
        self._status("daemonsets", owner, numbers)

    def _deployment(self, owner: Object) -> None:
        revision, wanted = _revision(owner["spec"]["template"]), owner["spec"]["replicas"]
        live = [
            pod
            for pod in self._owned(owner)
            if not pod["metadata"].get("deletionTimestamp") and pod["status"]["phase"] not in ("Failed", "Succeeded")
        ]
        fresh = [pod for pod in live if _hash(pod) == revision]
        stale = [pod for pod in live if _hash(pod) != revision]
        for _ in range(wanted - len(fresh)):
            self._create(owner, "", revision)
        self._delete(*sorted(fresh, key=is_ready)[: max(0, len(fresh) - wanted)])
        # Old pods go as new ones become ready.
        self._delete(*stale[: max(0, sum(map(is_ready, fresh)) + len(stale) - wanted)])
        ready = sum(map(is_ready, live))
        numbers = {
            "replicas": len(live),
            "updatedReplicas": len(fresh),
            "readyReplicas": ready,
            "availableReplicas": ready,
            "unavailableReplicas": max(0, wanted - ready),
        }
        self._status("deployments", owner, numbers, available=ready >= wanted)

    def _job(self, owner: Object) -> None:
        """Pods side by side, and none anew where more fail than the limit says. Both end when their time is up."""
        spec, status, metadata = owner["spec"], owner["status"], owner["metadata"]
        uid = metadata["uid"]
        pods = [
            pod
            for pod in self._store.all("pods", metadata["namespace"])
            if any(item["uid"] == uid for item in pod["metadata"].get("ownerReferences", ()))
        ]
        phases = [pod["status"]["phase"] for pod in pods]
        ended = [item for item in status.get("conditions", ()) if item["type"] in ("Complete", "Failed")]
        if ended:
            if (
                "ttlSecondsAfterFinished" in spec
                and _age(ended[0]["lastTransitionTime"]) > spec["ttlSecondsAfterFinished"]
            ):
                self._store.delete("jobs", metadata["namespace"], metadata["name"])
            return
        wanted, done = spec.get("completions", 1), phases.count("Succeeded")
        late = _age(status.get("startTime") or now()) > spec.get("activeDeadlineSeconds", math.inf)
        failed = phases.count("Failed") > spec.get("backoffLimit", 6)
        active = [pod for pod in pods if pod["status"]["phase"] in ("Pending", "Running")]
        if late or failed:
            self._delete(*active)
        else:
            for _ in range(min(spec.get("parallelism", 1), wanted - done) - len(active)):
                self._create(owner, "", "")

        def edit(body: Object) -> None:
            numbers = {"active": len(active), "succeeded": done, "failed": phases.count("Failed")}
            body["status"] = {"startTime": now()} | body["status"] | numbers
            if late or failed:
                reason = "DeadlineExceeded" if late else "BackoffLimitExceeded"
                why = (
                    "Job was active longer than specified deadline"
                    if late
                    else "Job has reached the specified backoff limit"
                )
                set_condition(body, "Failed", "True", reason, why)
            elif done >= wanted:
                set_condition(body, "Complete", "True")

        self._store.edit("jobs", metadata["namespace"], metadata["name"], edit)

    def _owned(self, owner: Object) -> list[Object]:
        """Its pods; those that its selector does not select any more are let go."""
        uid, namespace = owner["metadata"]["uid"], owner["metadata"]["namespace"]
        wanted = dig(owner, "spec.selector.matchLabels").items()
        owned = []

        def release(pod: Object) -> None:
            del pod["metadata"]["ownerReferences"]

        for pod in self._store.all("pods", namespace):
            if any(item["uid"] == uid for item in pod["metadata"].get("ownerReferences", ())):
                if wanted <= pod["metadata"].get("labels", {}).items():
                    owned.append(pod)
                else:
                    self._store.edit("pods", namespace, pod["metadata"]["name"], release)
        return owned

    def _create(self, owner: Object, node: str, revision: str) -> None:
        template, name, namespace = owner["spec"]["template"], owner["metadata"]["name"], owner["metadata"]["namespace"]
        spec: Object = dict(template["spec"])
        if node:
            term = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
            required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term]}}
            spec["affinity"] = (spec.get("affinity") or {}) | {"nodeAffinity": required}
            spec["tolerations"] = (spec.get("tolerations") or []) + _TOLERATIONS
        reference = {key: owner[key] for key in ("apiVersion", "kind")}
        reference |= {"name": name, "uid": owner["metadata"]["uid"], "controller": True, "blockOwnerDeletion": True}
        metadata: Object = {
            "generateName": f"{name}-",
            "labels": (dig(template, "metadata.labels") or {})
            | ({HASH: revision} if revision else {"batch.kubernetes.io/job-name": name}),
            "annotations": dig(template, "metadata.annotations") or {},
            "ownerReferences": [reference],
        }
        try:
            pod = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
            self._store.create("pods", namespace, pod)
        except ApiError as error:
            source = f"{owner['kind'].lower()}-controller"
            self._store.record(namespace, owner, "FailedCreate", f"Error creating: {error.message}", source)

    def _delete(self, *pods: Object) -> None:
        for pod in pods:
            metadata = pod["metadata"]
            if not metadata.get("deletionTimestamp") and self._store.find(
                "pods", metadata["namespace"], metadata["name"]
            ):
                self._store.delete("pods", metadata["namespace"], metadata["name"])

    def _status(self, plural: str, owner: Object, numbers: Object, available: bool | None = None) -> None:
        def edit(body: Object) -> None:
            status = body.setdefault("status", {})
            status |= {"observedGeneration": owner["metadata"]["generation"]} | numbers
            if available is not None:
                set_condition(body, "Available", str(available))

        self._store.edit(plural, owner["metadata"]["namespace"], owner["metadata"]["name"], edit)

    def _collect(self) -> None:
        """Delete pods whose owners are gone."""
        alive = {
            item["metadata"]["uid"]
            for plural in ("daemonsets", "deployments", "jobs")
            for item in self._store.all(plural)
        }
        for pod in self._store.all("pods"):
            owners = pod["metadata"].get("ownerReferences", ())
            if owners and not any(item["uid"] in alive for item in owners):
                self._delete(pod)

    def _taint(self) -> None:
        """A cordon is also a taint: the node lifecycle controller's part."""

        def edit(body: Object) -> None:
            spec = body.setdefault("spec", {})
            taints = [item for item in spec.pop("taints", ()) if item["key"] != _UNSCHEDULABLE]
            if spec.get("unschedulable"):
                taints.append({"key": _UNSCHEDULABLE, "effect": "NoSchedule", "timeAdded": now()})
            spec |= {"taints": taints} if taints else {}

        for node in self._store.all("nodes"):
            spec = node.get("spec", {})
            tainted = any(item["key"] == _UNSCHEDULABLE for item in spec.get("taints", ()))
            if tainted != bool(spec.get("unschedulable")):
                self._store.edit("nodes", "", node["metadata"]["name"], edit)


def _hard_taints(node: Object) -> list[Object]:
    return [item for item in node["spec"].get("taints", ()) if item["effect"] in ("NoSchedule", "NoExecute")]


def _target(pod: Object) -> str:
    required = dig(pod, "spec.affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution")
    name: str = required["nodeSelectorTerms"][0]["matchFields"][0]["values"][0] if required else ""
    return name


def _revision(template: Object) -> str:
    return hashlib.sha256(json.dumps(template, sort_keys=True).encode()).hexdigest()[:10]


def _hash(pod: Object) -> str:
    return str(pod["metadata"]["labels"].get(HASH, ""))


def _age(text: str) -> float:
    return (datetime.now(UTC) - datetime.fromisoformat(text)).total_seconds()


def _share(value: Any, total: int) -> int:
    """A maxSurge or maxUnavailable: a number, or a percentage rounded up."""
    return math.ceil(total * int(value.removesuffix("%")) / 100) if isinstance(value, str) else int(value)
