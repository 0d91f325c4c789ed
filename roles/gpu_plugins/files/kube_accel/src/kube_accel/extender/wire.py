# SPDX-License-Identifier: Apache-2.0
"""The JSON kube-scheduler and its extenders exchange (kube-scheduler/extender/v1 ``types.go``). Pure.

The outer structures have no JSON names of their own, so Go writes ``NodeNames`` and reads any case; so do we.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, TypeVar

from kube_accel.shared.api_json import checked, of_each
from kube_accel.shared.printable import line

_log = logging.getLogger(__name__)

T = TypeVar("T")

Body = bytes | bytearray

_quoted = json.encoder.encode_basestring_ascii


class WireError(ValueError):
    """What came is not what kube-scheduler sends."""


@dataclass(frozen=True, slots=True)
class Arguments:
    """``ExtenderArgs``: a pod and the nodes in question."""

    pod: dict[str, Any]
    names: list[str]
    nodes: dict[str, Any] | None
    """The node objects by name where kube-scheduler sent them; None where it sent names."""
    written: bytes = field(default=b"", compare=False)
    """The names as they came; empty where that is not known."""


@dataclass(frozen=True, slots=True)
class BindArguments:
    """``ExtenderBindingArgs``."""

    name: str
    namespace: str
    uid: str
    node: str


@dataclass(frozen=True, slots=True)
class Victims:
    """The pods of one node that would be evicted, by UID."""

    uids: tuple[str, ...]
    pdb_violations: int


@dataclass(frozen=True, slots=True)
class PreemptionArguments:
    """``ExtenderPreemptionArgs``."""

    pod: dict[str, Any]
    victims: Mapping[str, Victims]
    """By node."""


@dataclass(frozen=True, slots=True)
class Filtered:
    """What is answered to ``predicates``."""

    passed: list[str]
    failed: dict[str, str] = field(default_factory=dict)
    """Reason by node, where evicting other pods could help."""
    unresolvable: dict[str, str] = field(default_factory=dict)
    """Likewise, where it could not."""


def demand_few_values(body: Body, most: int) -> None:
    """Refuse a body that may hold more values than that, before they take memory. Raises WireError."""
    # Every value but the first of its list or object comes after a comma.
    if sum(body.count(sign) for sign in (b",", b"[", b"{")) >= most:
        raise WireError(f"it may hold more than {most} values")


def read_arguments(body: Body) -> Arguments:
    """Read ``ExtenderArgs``. Raises WireError."""
    document = _document(body)
    pod = _required(document, "pod", dict)
    names = _optional(document, "nodenames", list)
    if names is not None:
        if not are_names(names):
            raise WireError("NodeNames: not all are strings")
        return Arguments(pod, names, None)
    items = _optional(_required(document, "nodes", dict), "items", list) or []
    problems: list[str] = []
    nodes = dict(of_each("node", lambda item: (checked(item)["metadata"]["name"], item), items, problems))
    for problem in problems:
        _log.warning("a node is left out", extra={"reason": problem})
    return Arguments(pod, list(nodes), nodes)


def are_names(found: list[Any]) -> bool:
    """Return whether each of them is a text."""
    return set(map(type, found)) <= {str}


def read_binding(body: Body) -> BindArguments:
    """Read ``ExtenderBindingArgs``. Raises WireError."""
    document = _document(body)
    return BindArguments(*(_required(document, key, str) for key in ("podname", "podnamespace", "poduid", "node")))


def read_preemption(body: Body) -> PreemptionArguments:
    """Read ``ExtenderPreemptionArgs`` with whole pods or with UIDs. Raises WireError."""
    document = _document(body)
    meta = _optional(document, "nodenametometavictims", dict)
    full = _optional(document, "nodenametovictims", dict)
    return PreemptionArguments(
        _required(document, "pod", dict), {name: _victims(name, entry) for name, entry in (meta or full or {}).items()}
    )


def write_filtered(answer: Filtered, nodes: Mapping[str, Any] | None) -> bytes:
    """Write ``ExtenderFilterResult``: names or the node objects, as they came."""
    if nodes is None:
        return write_filtered_names(write_names(answer.passed), answer)
    return _filtered(_text({"metadata": {}, "items": [nodes[name] for name in answer.passed]}), b"null", answer)


def write_names(names: list[str]) -> bytes:
    """Write names of nodes, as Go does."""
    return f"[{','.join(map(_quoted, names))}]".encode()


def write_filtered_names(names: bytes, answer: Filtered) -> bytes:
    """Write ``ExtenderFilterResult`` with ``names``, which ``write_names`` has made of those that passed."""
    return _filtered(b"null", names, answer)


def _filtered(nodes: bytes, names: bytes, answer: Filtered) -> bytes:
    return b'{"Nodes":%b,"NodeNames":%b,"FailedNodes":%b,"FailedAndUnresolvableNodes":%b,"Error":""}' % (
        nodes,
        names,
        _text(_each_said(answer.failed)),
        _text(_each_said(answer.unresolvable)),
    )


def _each_said(reasons: Mapping[str, str]) -> dict[str, str]:
    # Most nodes have one of a few reasons.
    said = {reason: _said(reason) for reason in set(reasons.values())}
    return {name: said[reason] for name, reason in reasons.items()}


def write_filter_error(error: str) -> bytes:
    """Write an ``ExtenderFilterResult`` that fails the scheduling of this pod, which is then tried again."""
    return _text({"Nodes": None, "NodeNames": None, "FailedNodes": {}, "Error": _said(error)})


def write_scores(scores: Mapping[str, int]) -> bytes:
    """Write ``HostPriorityList``: 0 to 10 by node."""
    # Without a dict for each: thousands of them would set off garbage collections.
    entries = [f'{{"Host":{_quoted(name)},"Score":{score}}}' for name, score in scores.items()]
    return f"[{','.join(entries)}]".encode()


def write_bound(error: str) -> bytes:
    """Write ``ExtenderBindingResult``; an empty ``error`` is success."""
    return _text({"Error": _said(error)})


def write_preemption(victims: Mapping[str, Victims]) -> bytes:
    """Write ``ExtenderPreemptionResult``."""
    return _text(
        {
            "NodeNameToMetaVictims": {
                name: {"Pods": [{"UID": uid} for uid in entry.uids], "NumPDBViolations": entry.pdb_violations}
                for name, entry in victims.items()
            }
        }
    )


def _said(reason: str) -> str:
    """Escape the percent signs: kube-scheduler makes an event's format of it, and ``% and`` an ``%!a(MISSING)nd``."""
    return line(reason).replace("%", "percent")


def _text(document: object) -> bytes:
    return json.dumps(document, separators=(",", ":")).encode()


def _document(body: Body) -> dict[str, Any]:
    try:
        document = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise WireError(f"not JSON: {error}") from error
    if not isinstance(document, dict):
        raise WireError("not a JSON object")
    return document


def _optional(document: Mapping[str, Any], key: str, kind: type[T]) -> T | None:
    """Return the member whose name is ``key`` in any case; None when it is absent or null."""
    value = None
    for name, found in document.items():
        if name.lower() == key:
            value = found
            break
    if value is not None and not isinstance(value, kind):
        raise WireError(f"{key}: not a {kind.__name__}")
    return value


def _required(document: Mapping[str, Any], key: str, kind: type[T]) -> T:
    value = _optional(document, key, kind)
    if value is None:
        raise WireError(f"{key}: absent")
    return value


def _victims(node: str, entry: object) -> Victims:
    if not isinstance(entry, dict):
        raise WireError(f"victims of {node}: not an object")
    uids = []
    for pod in _optional(entry, "pods", list) or []:
        where = pod.get("metadata", pod) if isinstance(pod, dict) else {}
        uids.append(_required(where, "uid", str))
    return Victims(tuple(uids), _optional(entry, "numpdbviolations", int) or 0)
