# SPDX-License-Identifier: Apache-2.0
"""The state of the simulated cluster: objects, their resource versions and what happened to them.

The API server and the cluster's own loops write through the same methods. An object handed out is never changed
afterwards, and whoever gets one must not change it.
"""

from __future__ import annotations

import copy
import json
import secrets
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from datetime import UTC, datetime

from sim.cluster.kinds import (
    KINDS,
    ApiError,
    Kind,
    Object,
    already_exists,
    bad_request,
    conflict,
    drop_shares,
    forbidden,
    internal_error,
    invalid,
    is_ready,
    not_found,
    not_simulated,
    set_defaults,
    set_quantities,
    validate,
)

_HISTORY = 20_000
_ALPHABET = "bcdfghjklmnpqrstvwxz2456789"


def now(micro: bool = False) -> str:
    """The time as API objects carry it."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ" if micro else "%Y-%m-%dT%H:%M:%SZ")


@dataclass(frozen=True, slots=True)
class Change:
    """One write: the object before (None when created) and after (None when deleted)."""

    version: int
    plural: str
    before: Object | None
    after: Object | None


class Store:
    """All objects of a cluster. Thread-safe."""

    def __init__(self) -> None:
        self._changed = threading.Condition(threading.RLock())
        self._objects: dict[str, dict[tuple[str, str], Object]] = {plural: {} for plural in KINDS}
        self._history: deque[Change] = deque(maxlen=_HISTORY)
        self._version = 1
        self._last: dict[str, int] = dict.fromkeys(KINDS, 1)
        self.closed = False
        self.keeps_shares = False
        """Whether devices that claims share are kept, as Kubernetes 1.36 does, which is newer than what this plays."""

    def _complete(self, kind: Kind, body: Object) -> None:
        set_defaults(kind, body)
        if kind.name == "ResourceSlice" and not self.keeps_shares:
            drop_shares(body)

    def close(self) -> None:
        """Wake everybody who waits: the cluster ends."""
        with self._changed:
            self.closed = True
            self._changed.notify_all()

    @property
    def version(self) -> int:
        return self._version

    def get(self, plural: str, namespace: str, name: str) -> Object:
        """Raises ApiError 404."""
        with self._changed:
            try:
                return self._objects[plural][namespace, name]
            except KeyError:
                raise not_found(KINDS[plural], name) from None

    def find(self, plural: str, namespace: str, name: str) -> Object | None:
        """The object, or None."""
        return self._objects[plural].get((namespace, name))

    def all(self, plural: str, namespace: str = "") -> list[Object]:
        """Objects of a kind, of one namespace unless that is empty, by namespace and name."""
        with self._changed:
            items = sorted(self._objects[plural].items())
        return [item for (where, _), item in items if namespace in ("", where)]

    def snapshot(self, plural: str, namespace: str = "") -> tuple[int, list[Object]]:
        """A list together with the version it is as of."""
        with self._changed:
            return self._version, self.all(plural, namespace)

    def create(self, plural: str, namespace: str, body: Object, dry_run: bool = False) -> Object:
        """Raises ApiError 400, 403, 404 (no such namespace), 409 and 422."""
        kind = KINDS[plural]
        body = copy.deepcopy(body)
        metadata = body.setdefault("metadata", {})
        if metadata.get("finalizers"):
            raise not_simulated("finalizers")
        if metadata.get("resourceVersion"):
            raise internal_error("resourceVersion should not be set on objects to be created")
        if not metadata.get("name"):
            if not metadata.get("generateName"):
                why = "Required value: name or generateName is required"
                raise invalid(kind, "", "metadata.name", "FieldValueRequired", why)
            metadata["name"] = metadata["generateName"] + "".join(secrets.choice(_ALPHABET) for _ in range(5))
        self._check_identity(kind, namespace, body)
        metadata |= {"uid": str(uuid.uuid4()), "creationTimestamp": now()}
        if "status" in kind.subresources and plural != "nodes":
            metadata["generation"] = 1
        if plural != "nodes":
            body.pop("status", None)
        self._complete(kind, body)
        set_quantities(kind, body)
        validate(kind, body)
        with self._changed:
            if kind.namespaced and ("", namespace) not in self._objects["namespaces"]:
                raise not_found(KINDS["namespaces"], namespace)
            if (namespace, metadata["name"]) in self._objects[plural]:
                raise already_exists(kind, metadata["name"])
            if plural == "pods":
                self._admit_pod(body)
            result = body if dry_run else self._write(plural, namespace, None, body)
            if plural == "namespaces" and not dry_run:
                account: Object = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "default"}}
                self.create("serviceaccounts", metadata["name"], account)
            return result

    def update(
        self,
        plural: str,
        namespace: str,
        name: str,
        change: Callable[[Object], Object],
        subresource: str = "",
        dry_run: bool = False,
    ) -> Object:
        """Replace an object by what ``change`` makes of it (given the current one, which it must not alter).

        Raises ApiError 400, 404, 409 (resourceVersion does not match) and 422.
        """
        kind = KINDS[plural]
        with self._changed:
            old = self.get(plural, namespace, name)
            new = copy.deepcopy(change(old))
            metadata = new.setdefault("metadata", {})
            if metadata.get("name", name) != name:
                why = f"the name of the object ({metadata['name']}) does not match the name on the URL ({name})"
                raise bad_request(why)
            metadata["name"] = name
            self._check_identity(kind, namespace, new)
            if metadata.get("resourceVersion") not in (None, "", old["metadata"]["resourceVersion"]):
                why = "the object has been modified; please apply your changes to the latest version and try again"
                raise conflict(kind, name, why)
            if metadata.get("uid", old["metadata"]["uid"]) != old["metadata"]["uid"]:
                why = f"Precondition failed: UID in precondition: {metadata['uid']}"
                raise conflict(kind, name, f"{why}, UID in object meta: {old['metadata']['uid']}")
            if subresource == "status":
                new = old | {"status": new.get("status", {})}
            elif "status" in kind.subresources:
                new.pop("status", None)
                new |= {"status": old["status"]} if "status" in old else {}
            kept = ("uid", "creationTimestamp", "generation", "resourceVersion", "deletionTimestamp")
            new["metadata"] = new["metadata"] | {key: old["metadata"][key] for key in kept if key in old["metadata"]}
            self._complete(kind, new)
            set_quantities(kind, new)
            validate(kind, new, old)
            if "generation" in new["metadata"] and new.get("spec") != old.get("spec"):
                new["metadata"]["generation"] += 1
            return new if dry_run or new == old else self._write(plural, namespace, old, new)

    def edit(self, plural: str, namespace: str, name: str, edit: Callable[[Object], None]) -> Object | None:
        """Let one of the cluster's own parts change an object in place, status and all; None when it is gone."""
        with self._changed:
            old = self.find(plural, namespace, name)
            if old is None:
                return None
            new = copy.deepcopy(old)
            edit(new)
            return old if new == old else self._write(plural, namespace, old, new)

    def bind(self, namespace: str, name: str, binding: Object, dry_run: bool = False) -> None:
        """Bind a pod to a node, its annotations merged into the pod's in the same write.

        Raises ApiError 404, 409 and 422.
        """
        kind, target = KINDS["pods"], (binding.get("target") or {}).get("name")
        metadata = binding.get("metadata") or {}
        if metadata.get("name") != name:
            raise bad_request("name in URL does not match name in Binding object")
        with self._changed:
            pod = copy.deepcopy(self.get("pods", namespace, name))
            if not target:
                raise internal_error("target.name: Required value")
            if metadata.get("uid", pod["metadata"]["uid"]) != pod["metadata"]["uid"]:
                raise conflict(kind, name, f"Precondition failed: UID in object meta: {pod['metadata']['uid']}")
            version = pod["metadata"]["resourceVersion"]
            if metadata.get("resourceVersion") not in (None, "", version):
                raise conflict(kind, name, f"Precondition failed: ResourceVersion in object meta: {version}")
            if pod["metadata"].get("deletionTimestamp"):
                raise conflict(kind, name, f"pod {name} is being deleted, cannot be assigned to a host", "/binding")
            if pod["spec"].get("nodeName"):
                why = f'pod {name} is already assigned to node "{pod["spec"]["nodeName"]}"'
                raise conflict(kind, name, why, "/binding")
            if metadata.get("annotations"):
                pod["metadata"]["annotations"] = pod["metadata"].get("annotations", {}) | metadata["annotations"]
            pod["spec"]["nodeName"] = target
            set_condition(pod, "PodScheduled", "True")
            if not dry_run:
                self._write("pods", namespace, self.get("pods", namespace, name), pod)

    def evict(self, namespace: str, name: str, eviction: Object, dry_run: bool = False) -> None:
        """Delete a pod unless a disruption budget (minAvailable as a number) forbids it.

        Raises ApiError 400, 404 and 429.
        """
        if (eviction.get("metadata") or {}).get("name") != name:
            raise bad_request("name in URL does not match name in Eviction object")
        with self._changed:
            pod = self.get("pods", namespace, name)
            if is_ready(pod):
                for budget in self.all("poddisruptionbudgets", namespace):
                    if _covers(budget, pod):
                        self._spend(budget)
            self.delete("pods", namespace, name, eviction.get("deleteOptions"), dry_run)

    def _spend(self, budget: Object) -> None:
        """Raises ApiError 429 when the budget does not allow another pod to go."""
        least = budget["spec"].get("minAvailable")
        if not isinstance(least, int):
            raise not_simulated(f"a disruption budget without a number as minAvailable ({least!r})")
        namespace = budget["metadata"]["namespace"]
        healthy = sum(is_ready(pod) and _covers(budget, pod) for pod in self.all("pods", namespace))
        if healthy <= least:
            needs = f"The disruption budget {budget['metadata']['name']} needs {least} healthy pods and has {healthy}"
            cause = {"reason": "DisruptionBudget", "message": f"{needs} currently"}
            why = "Cannot evict pod as it would violate the pod's disruption budget."
            raise ApiError(429, "TooManyRequests", why, {"causes": [cause]})

    def delete(
        self, plural: str, namespace: str, name: str, options: Object | None = None, dry_run: bool = False
    ) -> Object:
        """Delete an object and return it; a pod on a node and a namespace are only marked.

        A pod is removed by its node, and a namespace by ``remove_empty``. Raises ApiError 403 (a namespace of the
        cluster's own), 404 and 409 (preconditions).
        """
        options, kind = options or {}, KINDS[plural]
        if options.get("propagationPolicy", "Background") != "Background":
            raise not_simulated(f"propagationPolicy {options['propagationPolicy']}")
        if plural == "namespaces" and (name == "default" or name.startswith("kube-")):
            raise ApiError(403, "Forbidden", f'namespaces "{name}" is forbidden: this namespace may not be deleted')
        with self._changed:
            old = self.get(plural, namespace, name)
            wanted = (options.get("preconditions") or {}).get("uid", old["metadata"]["uid"])
            if wanted != old["metadata"]["uid"]:
                raise conflict(kind, name, f"Precondition failed: UID in precondition: {wanted}")
            grace = 0
            if plural == "pods" and old["spec"].get("nodeName"):
                grace = options.get("gracePeriodSeconds", old["spec"].get("terminationGracePeriodSeconds", 30))
            if grace:
                stamp = old["metadata"].get("deletionTimestamp", now())
                marks: Object = {"deletionTimestamp": stamp, "deletionGracePeriodSeconds": grace}
                if "deletionTimestamp" not in old["metadata"]:
                    marks["generation"] = old["metadata"]["generation"] + 1
                marked = old | {"metadata": old["metadata"] | marks}
                return marked if dry_run or marked == old else self._write(plural, namespace, old, marked)
            if plural == "namespaces":
                stamp = {"deletionTimestamp": old["metadata"].get("deletionTimestamp", now())}
                ending = old | {"metadata": old["metadata"] | stamp, "status": {"phase": "Terminating"}}
                return ending if dry_run or ending == old else self._write(plural, namespace, old, ending)
            if not dry_run:
                self._write(plural, namespace, old, None)
            return old

    def remove_empty(self, name: str) -> None:
        """Delete what a namespace that ends has, owners before their pods, and the namespace once it is empty."""
        kinds = sorted((plural for plural in KINDS if KINDS[plural].namespaced), key=lambda plural: plural == "pods")
        with self._changed:
            for plural in kinds:
                for item in self.all(plural, name):
                    self.delete(plural, name, item["metadata"]["name"])
            if not any(self.all(plural, name) for plural in kinds):
                self._write("namespaces", "", self.get("namespaces", "", name), None)

    def record(self, namespace: str, involved: Object, reason: str, message: str, source: str) -> None:
        """Write an Event about an object; repeated ones are counted, as an event recorder does."""
        with self._changed:
            for event in self.all("events", namespace):
                same = (event["involvedObject"].get("uid"), event["reason"], event["message"])
                if same == (involved["metadata"]["uid"], reason, message):

                    def again(old: Object) -> None:
                        old |= {"count": old["count"] + 1, "lastTimestamp": now()}

                    self.edit("events", namespace, event["metadata"]["name"], again)
                    return
            body: Object = {
                "apiVersion": "v1",
                "kind": "Event",
                "metadata": {"name": f"{involved['metadata']['name']}.{secrets.token_hex(8)}"},
                "involvedObject": {
                    "kind": involved["kind"],
                    "namespace": involved["metadata"].get("namespace", ""),
                    "name": involved["metadata"]["name"],
                    "uid": involved["metadata"]["uid"],
                },
                "reason": reason,
                "message": message,
                "type": "Normal" if reason in ("Scheduled", "Started") else "Warning",
                "source": {"component": source},
                "firstTimestamp": now(),
                "lastTimestamp": now(),
                "count": 1,
            }
            self.create("events", namespace, body)

    def wait(
        self, plurals: Collection[str], since: int, timeout: float, stopped: Callable[[], bool] = lambda: False
    ) -> None:
        """Wait until one of the kinds changes after ``since``, for at most ``timeout`` seconds, or until stopped."""

        def over() -> bool:
            return self.closed or stopped() or max(self._last[item] for item in plurals) > since

        with self._changed:
            self._changed.wait_for(over, timeout)

    def wake(self) -> None:
        """Let everybody who waits look whether they were stopped."""
        with self._changed:
            self._changed.notify_all()

    def changes(self, plural: str, since: int) -> Iterator[Change]:
        """Changes of a kind after a version, oldest first. Raises ApiError 410 when they are forgotten."""
        with self._changed:
            if since < self._version and self._history and self._history[0].version > since + 1:
                message = f"too old resource version: {since} ({self._history[0].version})"
                raise ApiError(410, "Expired", message)
            found = []
            for change in reversed(self._history):
                if change.version <= since:
                    break
                if change.plural == plural:
                    found.append(change)
        return reversed(found)

    def _check_identity(self, kind: Kind, namespace: str, body: Object) -> None:
        if (body.get("apiVersion"), body.get("kind")) != (kind.api_version, kind.name):
            got = f"{body.get('apiVersion')}, Kind={body.get('kind')}"
            raise bad_request(f"the object provided is {got}, expected {kind.api_version}, Kind={kind.name}")
        if kind.namespaced:
            if body["metadata"].setdefault("namespace", namespace) != namespace:
                raise bad_request(
                    "the namespace of the provided object does not match the namespace sent on the request"
                )
        else:
            body["metadata"].pop("namespace", None)

    def _admit_pod(self, pod: Object) -> None:
        """The admission plugins that a mistake in a role would meet: service account, runtime class, priority."""
        kind, spec, metadata = KINDS["pods"], pod["spec"], pod["metadata"]
        account = spec["serviceAccountName"]
        if not self.find("serviceaccounts", metadata["namespace"], account):
            looked_up = f"error looking up service account {metadata['namespace']}/{account}"
            raise forbidden(kind, metadata["name"], f'{looked_up}: serviceaccount "{account}" not found')
        runtime = spec.get("runtimeClassName")
        if runtime and not self.find("runtimeclasses", "", runtime):
            raise forbidden(kind, metadata["name"], f'pod rejected: RuntimeClass "{runtime}" not found')
        priority, policy = spec.get("priorityClassName"), "PreemptLowerPriority"
        if priority:
            found = self.find("priorityclasses", "", priority)
            if not found:
                raise forbidden(kind, metadata["name"], f"no PriorityClass with name {priority} was found")
            spec["priority"] = found["value"]
            policy = found.get("preemptionPolicy", policy)
        if (asked := spec.get("preemptionPolicy", policy)) != policy:
            reason = f"the string value of PreemptionPolicy ({asked}) must not be provided in pod spec; "
            reason += f"priority admission controller computed {policy} from the given PriorityClass name"
            raise forbidden(kind, metadata["name"], reason)

    def _write(self, plural: str, namespace: str, old: Object | None, new: Object | None) -> Object:
        self._version += 1
        self._last[plural] = self._version
        # One JSON round trip makes the object plain and nobody else's.
        subject: Object = json.loads(json.dumps(new if new is not None else old))
        metadata, spec = subject["metadata"], subject.get("spec") or {}
        # The real server does not keep what it leaves out where it is empty.
        for holder, key in ((metadata, "labels"), (metadata, "annotations"), (subject, "data"), (spec, "taints")):
            if not holder.get(key, True):
                del holder[key]
        subject["metadata"]["resourceVersion"] = str(self._version)
        place = (namespace, subject["metadata"]["name"])
        if new is None:
            del self._objects[plural][place]
            # A watcher is shown the deleted object with the version of its deletion.
            self._history.append(Change(self._version, plural, subject, None))
        else:
            self._objects[plural][place] = subject
            self._history.append(Change(self._version, plural, old, subject))
        self._changed.notify_all()
        return subject


def _covers(budget: Object, pod: Object) -> bool:
    labels: dict[str, str] = pod["metadata"].get("labels", {})
    return bool(dict(budget["spec"]["selector"]["matchLabels"]).items() <= labels.items())


def set_condition(body: Object, type_: str, status: str, reason: str = "", message: str = "") -> None:
    """Set one of an object's conditions; the transition time moves only with the status."""
    conditions = body.setdefault("status", {}).setdefault("conditions", [])
    new: Object = {"type": type_, "status": status} | ({"reason": reason} if reason else {})
    new |= {"message": message} if message else {}
    old = next((item for item in conditions if item["type"] == type_), None)
    new["lastTransitionTime"] = old["lastTransitionTime"] if old and old["status"] == status else now()
    if old:
        conditions[conditions.index(old)] = new
    else:
        conditions.append(new)


def wait_for(condition: Callable[[], bool], timeout: float, store: Store) -> bool:
    """Whether a condition on the store came true within ``timeout`` seconds."""
    deadline = time.monotonic() + timeout
    while True:
        version = store.version
        if condition():
            return True
        left = deadline - time.monotonic()
        if left <= 0 or store.closed:
            return False
        store.wait(KINDS, version, left)
