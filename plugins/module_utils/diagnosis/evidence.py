# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What is known of a pod, nodes and daemons when something went wrong, from the API server's objects. Pure.

Anybody may have written what is read here: whatever it is, it becomes evidence or is left out.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Dict, FrozenSet, Iterable, List, Mapping, Optional, Sequence, Tuple

from ansible_collections.accel.kubernetes.plugins.module_utils.shared import gpu_view, plugin_metrics
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.asked import asked
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.claim_view import ClaimObjects, Request
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.gpu_view import NodeView
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.modes import RESOURCE
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.plugin_metrics import Sample
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.quantity import whole_units
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.reading import read_object

from ..shared import label_names

LOG_BYTES = 64 << 10
"""The most bytes that are read of a container's log, from its end."""
_LONGEST_LINE = 2048
_MOST = 1000
"""Entries of a list that are looked at."""
_NEVER_RAN = ("StartError", "ContainerCannotRun")
"""The reasons that containerd and CRI-O, and Docker, give for an end when the program was not started."""
_NOT_STARTED = 128
"""Exit code of kubelet and container runtimes for the same, which comes with their words."""
_UUID = re.compile(r"(?:GPU|MIG)-[A-Za-z0-9-]{1,60}\Z")
_ASSIGNMENT = label_names.ASSIGNMENT
_LONGEST_ASSIGNMENT = 64 << 10
"""Characters that the extender reads of one."""


@dataclass(frozen=True)
class Event:
    """Something that was reported about an object."""

    reason: str
    message: str
    normal: bool = False
    """Whether its teller says that all is as it should be."""


@dataclass(frozen=True)
class Container:
    """A container of a pod."""

    name: str
    image: str
    asks: Mapping[str, str]
    """Amounts of resources of GPUs."""
    environment: Mapping[str, str]
    """Variables with plain values."""
    waiting: str
    """Why it does not run, empty when it does or has ended."""
    ended: str
    """How it ended, now or the time before; empty when it never did."""
    code: Optional[int]
    """Its exit code, of the same end."""
    failed: bool
    """Whether it ended badly."""
    never_ran: bool
    """Whether the end was that its program could not even be started, which leaves no log."""
    killed: bool
    """By the kernel, over the machine's memory."""
    restarts: int
    first: bool
    """Whether the pod's others start when it has ended: an init container that is no sidecar."""
    unready: bool
    """Whether it runs and is not ready."""
    last_words: Tuple[str, ...]
    """Lines that its program left in the state for when it ends."""
    logs: Mapping[str, Tuple[str, ...]]
    """Lines by ``log`` and ``log of the previous run``."""


@dataclass(frozen=True)
class Pod:
    """The pod that is asked about."""

    namespace: str
    name: str
    node: str
    phase: str
    reason: str
    message: str
    scheduler: str
    unscheduled: Optional[str]
    """What the scheduler says of a pod it found no node for; None of one that has a node."""
    wants: Mapping[str, str]
    uuids: Tuple[str, ...]
    """GPUs it was assigned, by its annotation."""
    containers: Tuple[Container, ...]
    events: Tuple[Event, ...]
    exists: bool = True
    gates: Tuple[str, ...] = ()
    """What has to be taken off it before a scheduler tries it."""
    unready: str = ""
    """Why it is not ready, empty where it is or nothing says so."""
    disrupted: str = ""
    """What the cluster ended it for, by its condition."""
    finalizers: Optional[Tuple[str, ...]] = None
    """The finalizers that keep it until they are removed; None for one that is not deleted."""

    @property
    def full_name(self) -> str:
        """``namespace/name``."""
        return f"{self.namespace}/{self.name}"


@dataclass(frozen=True)
class Node:
    """A node with GPUs, or where the pod is."""

    name: str
    labels: Mapping[str, str]
    view: Optional[NodeView]
    """None where it neither has our GPUs nor is to have some."""
    not_ready: str
    """Why it is not ready, empty when it is."""
    cordoned: bool
    condition: Tuple[str, str]
    """Status and message of its condition ``GpusHealthy``; empty where it has none."""
    offers: Mapping[str, int]
    """What of our resources kubelet lets pods have."""
    events: Tuple[Event, ...]
    samples: Optional[Tuple[Sample, ...]]
    """What its plugin measures; None where that was not read."""


@dataclass(frozen=True)
class Daemon:
    """A pod of ours."""

    kind: str
    """``plugin`` or ``extender``."""
    name: str
    node: str
    ready: bool
    told: Tuple[str, ...] = ()
    """Where it is not ready: what it waits for or how it ended, and its last complaint."""


@dataclass(frozen=True)
class Quota:
    """A ResourceQuota's limit on a resource of ours."""

    name: str
    resource: str
    used: str
    hard: str
    full: bool


@dataclass(frozen=True)
class Evidence:
    """What was found out about pods, nodes and quotas."""

    pod: Optional[Pod] = None
    nodes: Tuple[Node, ...] = ()
    everywhere: bool = True
    """Whether these are all nodes with GPUs."""
    daemons: Optional[Tuple[Daemon, ...]] = ()
    """None where they could not be listed."""
    quotas: Tuple[Quota, ...] = ()
    """The quotas of the pod's namespace."""
    requests: Tuple[Request, ...] = ()
    """What the pod asks for by claims."""
    classes: Optional[FrozenSet[str]] = None
    """Names of the device classes there are; None where they were not read."""

    def node(self, name: str) -> Optional[Node]:
        """Return the node of this name, where it was looked at."""
        return next((node for node in self.nodes if node.name == name), None)


def pod_of(item: object, events: object = (), logs: Optional[Mapping[Tuple[str, bool], str]] = None) -> Pod:
    """Return a pod by its object. ``logs`` are texts by container and whether of the run before."""
    metadata, spec, status = _parts(item)
    statuses = {
        _text(entry.get("name")): entry
        for key in ("initContainerStatuses", "containerStatuses")
        for entry in _maps(status.get(key))
    }
    containers = []
    before = list(_maps(spec.get("initContainers")))
    for entry in [*before, *_maps(spec.get("containers"))]:
        first = entry in before and entry.get("restartPolicy") != "Always"
        containers.append(_container(entry, statuses.get(_text(entry.get("name"))) or {}, logs or {}, first))
    conditions = {_text(entry.get("type")): entry for entry in _maps(status.get("conditions"))}
    ready, disruption = conditions.get("Ready") or {}, conditions.get("DisruptionTarget") or {}
    node = _text(spec.get("nodeName"))
    return Pod(
        namespace=_text(metadata.get("namespace")),
        name=_text(metadata.get("name")),
        node=node,
        phase=_text(status.get("phase")),
        reason=_text(status.get("reason")),
        message=_text(status.get("message")),
        scheduler=_text(spec.get("schedulerName")),
        unscheduled=None if node else _unscheduled(status),
        wants=_wants(containers),
        uuids=_assigned(_map(metadata.get("annotations"))),
        containers=tuple(containers),
        events=events_of(events, _text(metadata.get("uid"))),
        gates=tuple(_text(gate.get("name")) for gate in _maps(spec.get("schedulingGates"))),
        unready=_why(ready) if ready.get("status") in ("False", "Unknown") else "",
        disrupted=_why(disruption) if disruption.get("status") == "True" else "",
        finalizers=tuple(map(_text, _list(metadata.get("finalizers")))) if metadata.get("deletionTimestamp") else None,
    )


def absent_pod(namespace: str, name: str, events: object = ()) -> Pod:
    """Return a pod that is not there, of which events may be left."""
    return Pod(namespace, name, "", "", "", "", "", None, {}, (), (), events_of(events), exists=False)


def node_of(
    item: object, events: object = (), page: Optional[str] = None, claimed: Optional[ClaimObjects] = None
) -> Node:
    """Return a node by its object; ``page`` is its plugin's ``/metrics``, ``claimed`` what is given by claims."""
    metadata, spec, status = _parts(item)
    name, labels = _text(metadata.get("name")), _texts(metadata.get("labels"))
    conditions = {_text(entry.get("type")): entry for entry in _maps(status.get("conditions"))}
    addresses = [
        {"type": _text(entry.get("type")), "address": _text(entry.get("address"))}
        for entry in _maps(status.get("addresses"))
    ]
    ready = conditions.get("Ready") or {"status": "True"}
    heard = _text(ready.get("message")) or _text(ready.get("reason")) or "its kubelet reports nothing"
    clean = {
        "metadata": {"name": name, "labels": labels, "annotations": _texts(metadata.get("annotations"))},
        "status": {"addresses": addresses},
    }
    healthy = conditions.get("GpusHealthy") or {}
    views = gpu_view.view([clean], None, objects=claimed).nodes
    return Node(
        name=name,
        labels=labels,
        view=views[0] if views else None,
        not_ready="" if ready.get("status") == "True" else heard,
        cordoned=spec.get("unschedulable") is True,
        condition=(_text(healthy.get("status")), _text(healthy.get("message"))),
        offers={
            resource: units
            for resource, amount in _texts(status.get("allocatable")).items()
            if RESOURCE.match(resource) and (units := whole_units(amount)) is not None
        },
        events=events_of(events),
        samples=None if page is None else tuple(plugin_metrics.read_samples(page)),
    )


def daemons_of(items: object, logs: Optional[Mapping[str, str]] = None) -> Tuple[Daemon, ...]:
    """Return which of these pods are our daemons, and their state; ``logs`` are by ``namespace/name``."""
    found = []
    for item in _maps(items):
        metadata, spec, status = _parts(item)
        kind = next(
            (
                command[1]
                for entry in _maps(spec.get("containers"))
                for command in [[_text(word) for word in _list(entry.get("command"))[:2]]]
                if command[:1] == ["kube-accel"] and command[1:] in (["plugin"], ["dra"], ["extender"])
            ),
            "",
        )
        if kind and not metadata.get("deletionTimestamp"):
            conditions = {_text(entry.get("type")): entry.get("status") for entry in _maps(status.get("conditions"))}
            ready = conditions.get("Ready") == "True"
            name = f"{_text(metadata.get('namespace'))}/{_text(metadata.get('name'))}"
            told = () if ready else (_trouble(status), *_complaint((logs or {}).get(name, "")))
            found.append(Daemon("plugin" if kind == "dra" else kind, name, _text(spec.get("nodeName")), ready, told))
    return tuple(sorted(found, key=lambda daemon: (daemon.kind, daemon.node, daemon.name)))


def quotas_of(items: object) -> Tuple[Quota, ...]:
    """Return what ResourceQuotas say of our resources."""
    found = []
    for item in _maps(items):
        status, name = _map(item.get("status")), _text(_map(item.get("metadata")).get("name"))
        used = _texts(status.get("used"))
        for resource, hard in sorted(_texts(status.get("hard")).items()):
            if RESOURCE.match(resource.rpartition("requests.")[2]):
                have = used.get(resource, "0")
                amount, most = whole_units(have), whole_units(hard)
                full = amount is not None and most is not None and amount >= most
                found.append(Quota(name, resource, have, hard, full))
    return tuple(found)


def events_of(items: object, uid: str = "") -> Tuple[Event, ...]:
    """Events, the latest last; ``uid`` leaves out those of a namesake."""
    found = []
    for item in _maps(items):
        about = _text(_map(item.get("involvedObject")).get("uid"))
        if not uid or not about or about == uid:
            when = _text(item.get("lastTimestamp")) or _text(item.get("eventTime"))
            told = Event(_text(item.get("reason")), _text(item.get("message")), item.get("type") == "Normal")
            found.append((when, told))
    found.sort(key=lambda entry: entry[0])
    return tuple(event for _when, event in found)


def _why(condition: Mapping[str, Any]) -> str:
    """Return what a condition says."""
    words = filter(None, (_text(condition.get("reason")), _text(condition.get("message"))))
    return ": ".join(words) or "no reason given"


def _container(
    entry: Mapping[str, Any], status: Mapping[str, Any], logs: Mapping[Tuple[str, bool], str], first: bool
) -> Container:
    name, state, last = _text(entry.get("name")), _map(status.get("state")), _map(status.get("lastState"))
    waiting, ended = _map(state.get("waiting")), _map(state.get("terminated")) or _map(last.get("terminated"))
    code = ended.get("exitCode")
    how = (
        _text(ended.get("reason")),
        _text(ended.get("message")),
        f"exit code {code}" if isinstance(code, int) else "",
    )
    unstarted = ended.get("reason") in _NEVER_RAN or (code == _NOT_STARTED and bool(ended.get("message")))
    restarts = status.get("restartCount")
    told = {"log of the previous run": logs.get((name, True)), "log": logs.get((name, False))}
    return Container(
        name=name,
        image=_text(entry.get("image")),
        asks=_asks(entry),
        environment={
            _text(item.get("name")): _text(item.get("value"))
            for item in _maps(entry.get("env"))
            if "valueFrom" not in item
        },
        waiting=": ".join(filter(None, (_text(waiting.get("reason")), _text(waiting.get("message")))))
        or ("no reason given" if isinstance(state.get("waiting"), dict) else ""),
        ended=", ".join(filter(None, how)),
        code=code if isinstance(code, int) else None,
        failed=bool(ended) and code != 0,
        never_ran=unstarted,
        killed=ended.get("reason") == "OOMKilled",
        restarts=restarts if isinstance(restarts, int) else 0,
        first=first,
        unready=isinstance(state.get("running"), dict) and status.get("ready") is False,
        last_words=() if unstarted else _log_lines(_text(ended.get("message"))),
        logs={where: _log_lines(text) for where, text in told.items() if text},
    )


def _log_lines(text: str) -> Tuple[str, ...]:
    return tuple(part[:_LONGEST_LINE] for part in text[-LOG_BYTES:].splitlines())


def _unscheduled(status: Mapping[str, Any]) -> str:
    for entry in _maps(status.get("conditions")):
        if entry.get("type") == "PodScheduled" and entry.get("status") != "True":
            return _text(entry.get("message")) or _text(entry.get("reason")) or "not scheduled"
    return ""


def _wants(containers: Iterable[Container]) -> Dict[str, str]:
    found: Dict[str, List[str]] = {}
    for container in containers:
        for resource, amount in container.asks.items():
            found.setdefault(resource, []).append(amount)
    return {resource: "+".join(amounts) for resource, amounts in sorted(found.items())}


def _asks(entry: Mapping[str, Any]) -> Dict[str, str]:
    try:
        return _texts(asked(entry, RESOURCE.match))
    except ValueError:
        return {}


def _assigned(annotations: Mapping[str, Any]) -> Tuple[str, ...]:
    """Return the GPUs that the pod's annotation names. It is only a hint: the pod's owner may have written it."""
    try:
        said = read_object(_text(annotations.get(_ASSIGNMENT)) or "{}", _LONGEST_ASSIGNMENT)
    except ValueError:
        return ()
    containers = _map(said.get("containers"))
    uuids = (_text(share.get("uuid")) for shares in containers.values() for share in _maps(shares))
    return tuple(sorted({uuid for uuid in uuids if _UUID.match(uuid)}))


def _trouble(status: Mapping[str, Any]) -> str:
    for key in ("initContainerStatuses", "containerStatuses"):
        for entry in _maps(status.get(key)):
            waiting = _map(_map(entry.get("state")).get("waiting"))
            if waiting:
                return ": ".join(filter(None, (_text(waiting.get("reason")), _text(waiting.get("message")))))
    return _text(status.get("message")) or _text(status.get("phase")) or "it is not ready"


def _complaint(log: str) -> Tuple[str, ...]:
    """Return the last thing a daemon complained of. Each line of a complete log is a JSON object."""
    for said in reversed(log.splitlines()):
        try:
            entry: Mapping[str, Any] = read_object(said, LOG_BYTES)
        except ValueError:
            entry = {"level": "error", "message": said}
        if entry.get("level") in ("error", "critical", "warning"):
            return (": ".join(filter(None, (_text(entry.get(key)) for key in ("message", "reason", "exception")))),)
    return ()


def _parts(item: object) -> Tuple[Mapping[str, Any], Mapping[str, Any], Mapping[str, Any]]:
    """Metadata, spec and status."""
    whole = _map(item)
    return _map(whole.get("metadata")), _map(whole.get("spec")), _map(whole.get("status"))


def _map(value: object) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: object) -> Sequence[Any]:
    return value[:_MOST] if isinstance(value, (list, tuple)) else ()


def _maps(value: object) -> List[Mapping[str, Any]]:
    return [entry for entry in _list(value) if isinstance(entry, dict)]


def _text(value: object) -> str:
    if isinstance(value, str):
        # JSON can write halves of characters, which nothing can be asked with.
        return value.encode(errors="replace").decode()
    return str(value) if isinstance(value, (int, float)) and not isinstance(value, bool) else ""


def _texts(value: object) -> Dict[str, str]:
    return {_text(key): _text(entry) for key, entry in _map(value).items()}
