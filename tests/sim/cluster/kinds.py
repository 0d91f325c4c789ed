# SPDX-License-Identifier: Apache-2.0
"""The kinds our product touches, and the pure rules an API server applies to them."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

Object = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Kind:
    """One resource type of the API."""

    group: str
    plural: str
    name: str
    namespaced: bool = True
    short: tuple[str, ...] = ()
    subresources: tuple[str, ...] = ()
    fixed: tuple[str, ...] = ()
    """Dotted fields that an update may not change."""

    @property
    def api_version(self) -> str:
        return f"{self.group}/v1" if self.group else "v1"

    @property
    def qualified(self) -> str:
        """How messages of an API server name the resource."""
        return f"{self.plural}.{self.group}" if self.group else self.plural


RBAC = "rbac.authorization.k8s.io"
ADMISSION = "admissionregistration.k8s.io"
MONITORING = "monitoring.coreos.com"
CUSTOM = frozenset({MONITORING})
"""Groups that a server has where their CustomResourceDefinitions are installed."""
KINDS: Mapping[str, Kind] = {
    kind.plural: kind
    for kind in (
        Kind("", "namespaces", "Namespace", False, ("ns",)),
        Kind("", "nodes", "Node", False, ("no",), ("status",)),
        Kind("", "pods", "Pod", True, ("po",), ("status", "binding", "eviction", "log", "proxy"), ("spec",)),
        Kind("", "services", "Service", True, ("svc",), ("proxy",)),
        Kind("", "configmaps", "ConfigMap", True, ("cm",)),
        Kind("", "secrets", "Secret"),
        Kind("", "serviceaccounts", "ServiceAccount", True, ("sa",)),
        Kind("", "events", "Event", True, ("ev",)),
        Kind("apps", "daemonsets", "DaemonSet", True, ("ds",), ("status",), ("spec.selector",)),
        Kind("apps", "deployments", "Deployment", True, ("deploy",), ("status",), ("spec.selector",)),
        Kind("batch", "jobs", "Job", True, (), ("status",), ("spec.template", "spec.completions")),
        Kind(RBAC, "roles", "Role"),
        Kind(RBAC, "rolebindings", "RoleBinding", fixed=("roleRef",)),
        Kind(RBAC, "clusterroles", "ClusterRole", False),
        Kind(RBAC, "clusterrolebindings", "ClusterRoleBinding", False, fixed=("roleRef",)),
        Kind("node.k8s.io", "runtimeclasses", "RuntimeClass", False, fixed=("handler",)),
        Kind("scheduling.k8s.io", "priorityclasses", "PriorityClass", False, ("pc",), fixed=("value",)),
        Kind("coordination.k8s.io", "leases", "Lease"),
        Kind("policy", "poddisruptionbudgets", "PodDisruptionBudget", True, ("pdb",), ("status",)),
        Kind("", "resourcequotas", "ResourceQuota", True, ("quota",), ("status",)),
        Kind("resource.k8s.io", "deviceclasses", "DeviceClass", False),
        Kind("resource.k8s.io", "resourceslices", "ResourceSlice", False),
        Kind("resource.k8s.io", "resourceclaims", "ResourceClaim", True, (), ("status",)),
        # Kept as objects: no connection is refused.
        Kind("networking.k8s.io", "networkpolicies", "NetworkPolicy", True, ("netpol",)),
        Kind("discovery.k8s.io", "endpointslices", "EndpointSlice"),
        Kind(ADMISSION, "mutatingwebhookconfigurations", "MutatingWebhookConfiguration", False),
        # Kept as objects: no expression of theirs is evaluated.
        Kind(ADMISSION, "validatingadmissionpolicies", "ValidatingAdmissionPolicy", False),
        Kind(ADMISSION, "validatingadmissionpolicybindings", "ValidatingAdmissionPolicyBinding", False),
        Kind(MONITORING, "prometheuses", "Prometheus"),
        Kind(MONITORING, "podmonitors", "PodMonitor"),
        Kind(MONITORING, "prometheusrules", "PrometheusRule"),
    )
}


class ApiError(Exception):
    """An answer other than success, as the Status object of an API server."""

    def __init__(self, code: int, reason: str, message: str, details: Object | None = None) -> None:
        super().__init__(message)
        self.code, self.reason, self.message, self.details = code, reason, message, details or {}

    def status(self) -> Object:
        body: Object = {"kind": "Status", "apiVersion": "v1", "metadata": {}, "status": "Failure"}
        body |= {"message": self.message, "code": self.code} | ({"reason": self.reason} if self.reason else {})
        return body | ({"details": self.details} if self.details else {})


def _details(kind: Kind, name: str) -> Object:
    return {"name": name, **({"group": kind.group} if kind.group else {}), "kind": kind.plural}


def not_found(kind: Kind, name: str) -> ApiError:
    return ApiError(404, "NotFound", f'{kind.qualified} "{name}" not found', _details(kind, name))


def already_exists(kind: Kind, name: str) -> ApiError:
    return ApiError(409, "AlreadyExists", f'{kind.qualified} "{name}" already exists', _details(kind, name))


def conflict(kind: Kind, name: str, why: str, subresource: str = "") -> ApiError:
    message = f'Operation cannot be fulfilled on {kind.qualified}{subresource} "{name}": {why}'
    return ApiError(409, "Conflict", message, _details(kind, name) | {"kind": kind.plural + subresource})


def forbidden(kind: Kind, name: str, why: str) -> ApiError:
    return ApiError(403, "Forbidden", f'{kind.qualified} "{name}" is forbidden: {why}', _details(kind, name))


def invalid(kind: Kind, name: str, field: str, cause: str, why: str) -> ApiError:
    """422 for one field; ``cause`` is a FieldValue* reason."""
    details: Object = ({"name": name} if name else {}) | ({"group": kind.group} if kind.group else {})
    details |= {"kind": kind.name, "causes": [{"reason": cause, "message": why, "field": field}]}
    subject = f"{kind.name}.{kind.group}" if kind.group else kind.name
    return ApiError(422, "Invalid", f'{subject} "{name}" is invalid: {field}: {why}', details)


def bad_request(message: str) -> ApiError:
    return ApiError(400, "BadRequest", message)


def internal_error(message: str) -> ApiError:
    """What a plain error of the real server's code becomes."""
    return ApiError(500, "", message)


def not_simulated(what: str) -> ApiError:
    return ApiError(501, "NotImplemented", f"the simulated API server does not offer {what}")


def dig(value: Any, path: str) -> Any:
    """The value at a dotted path of plain keys, or None."""
    for key in path.split("."):
        value = value.get(key) if isinstance(value, dict) else None
    return value


def pod_spec(kind: Kind, body: Object) -> tuple[Object, str] | None:
    """The pod spec within an object, with its path, or None for kinds without one."""
    if kind.name == "Pod":
        return body.get("spec") or {}, "spec"
    if kind.group in ("apps", "batch"):
        return dig(body, "spec.template.spec") or {}, "spec.template.spec"
    return None


def set_defaults(kind: Kind, body: Object) -> None:
    """Fill in what consumers read back: few of the real defaults, and none that a merge patch would undo."""
    spec = body.get("spec")
    if "status" in kind.subresources:
        body.setdefault("status", {})
    if kind.name == "Deployment" and isinstance(spec, dict):
        spec.setdefault("replicas", 1)
    if kind.name == "DaemonSet":
        numbers = ("currentNumberScheduled", "desiredNumberScheduled", "numberMisscheduled", "numberReady")
        body["status"] = dict.fromkeys(numbers, 0) | body["status"]
    if kind.name == "Pod" and isinstance(spec, dict):
        spec.setdefault("restartPolicy", "Always")
        spec.setdefault("terminationGracePeriodSeconds", 30)
        spec.setdefault("schedulerName", "default-scheduler")
        spec.setdefault("serviceAccountName", "default")
        body["status"].setdefault("phase", "Pending")


def drop_shares(body: Object) -> None:
    """Drop what a slice says of shares, as an API server does whose feature gate DRAConsumableCapacity is off."""
    for device in dig(body, "spec.devices") or ():
        device.pop("allowMultipleAllocations", None)


_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")


def _strings(value: Any, path: str) -> None:
    for key, item in (value or {}).items():
        if not isinstance(item, str):
            raise bad_request(f"json: cannot unmarshal {type(item).__name__} into {path}.{key} of type string")


def validate(kind: Kind, body: Object, old: Object | None = None) -> None:
    """What of the real validation a mistake in our roles would meet.

    Raises ApiError 400 for a wrong type and 422 for a wrong value.
    """
    name = body["metadata"]["name"]
    if not _NAME.fullmatch(name) and kind.group != RBAC:
        raise invalid(kind, name, "metadata.name", "FieldValueInvalid", f'Invalid value: "{name}": not a DNS name')
    for field in kind.fixed if old else ():
        if dig(old, field) != dig(body, field):
            if kind.name == "Pod":
                raise invalid(kind, name, field, "FieldValueForbidden", "Forbidden: pod updates may not change it")
            raise invalid(kind, name, field, "FieldValueInvalid", "Invalid value: field is immutable")
    for field in ("labels", "annotations"):
        _strings(body["metadata"].get(field), f"metadata.{field}")
    if kind.name == "ConfigMap":
        _strings(body.get("data"), "ConfigMap.data")
    found = pod_spec(kind, body)
    if found:
        spec, path = found
        if not spec.get("containers"):
            raise invalid(kind, name, f"{path}.containers", "FieldValueRequired", "Required value")
        for index, container in enumerate(spec["containers"]):
            for field in ("name", "image"):
                if not container.get(field):
                    where = f"{path}.containers[{index}].{field}"
                    raise invalid(kind, name, where, "FieldValueRequired", "Required value")
            for variable in container.get("env", ()):
                _strings({"value": variable.get("value", "")}, "Go struct field EnvVar")
    if kind.name == "Job" and dig(body, "spec.template.spec.restartPolicy") not in ("Never", "OnFailure"):
        why = 'Unsupported value: "Always": supported values: "OnFailure", "Never"'
        raise invalid(kind, name, "spec.template.spec.restartPolicy", "FieldValueNotSupported", why)
    if kind.group == "apps":
        selector = dig(body, "spec.selector.matchLabels") or {}
        labels = dig(body, "spec.template.metadata.labels") or {}
        if not selector or not selector.items() <= labels.items():
            why = f"Invalid value: {labels}: `selector` does not match template `labels`"
            raise invalid(kind, name, "spec.template.metadata.labels", "FieldValueInvalid", why)
    if kind.name == "RuntimeClass" and not body.get("handler"):
        raise invalid(kind, name, "handler", "FieldValueRequired", "Required value")


_REQUIREMENT = re.compile(r"\s*(!?)\s*([\w./-]+)\s*(?:(==|=|!=)\s*([\w.-]*)|\s(in|notin)\s*\(([^)]*)\))?\s*(?:,|$)")


def label_selector(text: str) -> Callable[[Mapping[str, str]], bool]:
    """A predicate on labels. Raises ApiError 400 when the selector cannot be parsed."""
    tests: list[tuple[str, set[str | None] | None, bool]] = []
    position = 0
    while position < len(text):
        match = _REQUIREMENT.match(text, position)
        if not match:
            raise bad_request(f"unable to parse requirement: {text[position:]!r}")
        position = match.end()
        absent, key, equals, value, word, values = match.groups()
        if equals:
            tests.append((key, {value}, equals == "!="))
        elif word:
            tests.append((key, {item.strip() for item in values.split(",")}, word == "notin"))
        else:
            tests.append((key, None, bool(absent)))
    return lambda labels: all(
        (key in labels if allowed is None else labels.get(key) in allowed) != negate for key, allowed, negate in tests
    )


_FIELDS = {"metadata.name", "metadata.namespace", "spec.nodeName", "status.phase", "reason", "type"} | {
    # By what `kubectl describe` finds the events of an object.
    f"involvedObject.{name}"
    for name in ("kind", "namespace", "name", "uid")
}


def field_selector(text: str) -> Callable[[Object], bool]:
    """A predicate on objects, for the few fields our consumers select by. Raises ApiError 400 for others."""
    tests = []
    for term in filter(None, text.split(",")):
        key, operator, value = re.split(r"(!=|==?)", f"{term}", maxsplit=1) if "=" in term else (term, "", "")
        if key not in _FIELDS:
            raise bad_request(f"field label not supported: {key}")
        tests.append((key, value, operator == "!="))
    return lambda body: all(((dig(body, key) or "") == value) != negate for key, value, negate in tests)


_SCALE = {"n": -9, "u": -6, "m": -3, "": 0, "k": 3, "M": 6, "G": 9, "T": 12, "P": 15, "E": 18}
_BINARY = {"Ki": 10, "Mi": 20, "Gi": 30, "Ti": 40, "Pi": 50, "Ei": 60}


def quantity(value: str | int | float) -> Decimal:
    """The number a Kubernetes quantity stands for. Raises ValueError."""
    match = re.fullmatch(r"([+-]?[0-9.]+(?:[eE][+-]?[0-9]+)?)([a-zA-Z]*)", str(value).strip())
    if not match or (match[2] not in _SCALE and match[2] not in _BINARY):
        raise ValueError(f"not a quantity: {value!r}")
    if match[2] in _BINARY:
        return Decimal(match[1]) * Decimal(2) ** _BINARY[match[2]]
    return Decimal(match[1]).scaleb(_SCALE[match[2]])


def canonical(value: str | int | float) -> str:
    """The quantity as an API server writes those of resources: ``1k`` for 1000. Raises ValueError."""
    number, text = quantity(value), str(value).strip()
    binary = text.endswith("i") and number >= 1024
    step, suffixes = (1024, ["", *_BINARY]) if binary else (1000, list(_SCALE)[2:])
    if re.search("[eE][-+0-9]", text):
        suffixes = [f"e{power}" if power else "" for power in list(_SCALE.values())[2:]]
    # No finer than a thousandth.
    amount = math.ceil(number if binary else number.scaleb(3))
    while amount and amount % step == 0 and len(suffixes) > 1:
        amount //= step
        del suffixes[0]
    return f"{amount}{suffixes[0]}" if amount else "0"


def set_quantities(kind: Kind, body: Object) -> None:
    """Write those of nodes, pods and quotas as an API server does. Raises ApiError 400."""
    spec, status = body.get("spec") or {}, body.get("status") or {}
    found: list[Object | None] = []
    if kind.name == "Node":
        found = [status.get("capacity"), status.get("allocatable")]
    elif kind.name == "ResourceQuota":
        found = [spec.get("hard"), status.get("hard"), status.get("used")]
    for container in _containers(kind, body):
        resources = container.get("resources") or {}
        found += [resources.get("limits"), resources.get("requests")]
    for amounts in filter(None, found):
        for name, value in amounts.items():
            try:
                amounts[name] = canonical(value)
            except ValueError as error:
                raise bad_request(f'{kind.name} in version "v1" cannot be handled as a {kind.name}: {error}') from error


def _containers(kind: Kind, body: Object) -> list[Object]:
    spec, _ = pod_spec(kind, body) or ({}, "")
    return [*(spec.get("initContainers") or ()), *(spec.get("containers") or ())]


def pod_requests(pod: Object) -> dict[str, Decimal]:
    """What a pod asks of a node: the sum of its containers, or its largest init container where that is more."""
    total: dict[str, Decimal] = {}
    spec = pod["spec"]
    for container in spec["containers"]:
        for name, amount in _requests(container):
            total[name] = total.get(name, Decimal(0)) + amount
    for container in spec.get("initContainers", ()):
        for name, amount in _requests(container):
            total[name] = max(total.get(name, Decimal(0)), amount)
    return total


def _requests(container: Object) -> Iterator[tuple[str, Decimal]]:
    resources = container.get("resources") or {}
    merged = (resources.get("limits") or {}) | (resources.get("requests") or {})
    return ((name, quantity(amount)) for name, amount in merged.items())


def tolerates(tolerations: list[Object], taint: Object) -> bool:
    """Whether one of the tolerations matches the taint."""
    for item in tolerations:
        same_effect = item.get("effect", "") in ("", taint["effect"])
        exists = item.get("operator", "Equal") == "Exists"
        same_key = item.get("key", "") == taint["key"] or (exists and not item.get("key"))
        if same_effect and same_key and (exists or item.get("value", "") == taint.get("value", "")):
            return True
    return False


def matches_node(spec: Object, node: Object) -> bool:
    """nodeSelector and required node affinity of a pod spec against a node."""
    labels = node["metadata"].get("labels", {})
    if not (spec.get("nodeSelector") or {}).items() <= labels.items():
        return False
    required = dig(spec, "affinity.nodeAffinity.requiredDuringSchedulingIgnoredDuringExecution")
    if not required:
        return True
    fields = {"metadata.name": node["metadata"]["name"]}
    return any(
        all(_holds(item, labels) for item in term.get("matchExpressions", ()))
        and all(_holds(item, fields) for item in term.get("matchFields", ()))
        for term in required["nodeSelectorTerms"]
    )


def _holds(requirement: Object, labels: Mapping[str, str]) -> bool:
    value: str | None = labels.get(requirement["key"])
    values: list[str] = requirement.get("values", [])
    operator: str = requirement["operator"]
    if operator in ("Exists", "DoesNotExist"):
        return (value is not None) == (operator == "Exists")
    if operator in ("In", "NotIn"):
        return (value in values) == (operator == "In")
    if operator in ("Gt", "Lt"):
        try:
            left, right = int(value or ""), int(values[0])
        except ValueError:
            return False
        return left > right if operator == "Gt" else left < right
    raise ValueError(f"not a node selector operator: {operator!r}")


def is_ready(pod: Object) -> bool:
    """Whether the pod's Ready condition is true and it is not on its way out."""
    conditions = pod.get("status", {}).get("conditions", ())
    ready = any(item["type"] == "Ready" and item["status"] == "True" for item in conditions)
    return ready and not pod["metadata"].get("deletionTimestamp")
