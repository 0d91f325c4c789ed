# Apache License 2.0 (see https://www.apache.org/licenses/LICENSE-2.0)
# SPDX-License-Identifier: Apache-2.0
"""Who has what of GPUs that our DRA driver gives: from ResourceSlices, ResourceClaims, and pods. Pure.

The names are those of the driver's metrics: a claim is its container's; if several of a pod have it, the pod's; if
several pods have it or none is known, ``resourceclaim/<name>`` stands for the pod.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import (
    Any,
    Callable,
    Dict,
    Iterable,
    Iterator,
    List,
    Mapping,
    NamedTuple,
    Optional,
    Sequence,
    Set,
    Tuple,
)

from .api_json import ANY, ODD, checked, fit, named, of_each, shaped
from .claim_devices import AT, DeviceName, cut, device_of
from .inventory_annotation import WHOLE, GpuView, Tenant
from .modes import (
    DRA_CLASSES,
    DRA_DRIVER,
    DRA_FIXED_CLASS,
    DRA_MIG_CLASS,
    DRA_MODE,
    DRA_SHARE_CLASS,
    DRA_TAINT,
    MODE_LABEL,
)
from .plugin_metrics import Place
from .plugin_pods import PodName
from .quantity import parse_quantity, rounded_up
from .registers import labels_of

CLAIM = "resourceclaim/"
"""Begins what stands for the pod of a claim that is no pod's alone; no pod's name has a slash."""
KINDS = ("ResourceSlice", "ResourceClaim")
API_VERSION = "resource.k8s.io/v1"
CLAIMS, TEMPLATES = "resourceclaims", "resourceclaimtemplates"
_SICK = f"its device has the taint {DRA_TAINT}; the node's condition GpusHealthy says why"

_POOL = {"name!": str, "generation!": int, "resourceSliceCount!": int}
_TEXT = {"string!": str}
_GPU = {
    "name!": str,
    "attributes!": {"uuid": _TEXT, "productName!": _TEXT, "parentUUID": _TEXT, "profile": _TEXT},
    "capacity!": {"memory!": {"value!": parse_quantity}},
    "taints": [{"key!": str}],
    "allowMultipleAllocations": bool,
}
_OURS = {"spec!": {"nodeName!": str, "pool!": _POOL, "devices": [_GPU]}}
_RESULT = {
    "pool!": str,
    "device!": str,
    "shareID": str,
    "adminAccess": bool,
    "consumedCapacity": {"cores": parse_quantity, "memory": parse_quantity},
}
_ONE = {"deviceClassName": str, "count": int, "capacity": {"requests": {ANY: str}}}
_SPEC = {"devices": {"requests": [{"name!": str, "exactly": _ONE, "firstAvailable": [_ONE]}]}}
_CLAIM = {
    "metadata!": {"namespace!": str, "name!": str},
    "spec": _SPEC,
    "status": {
        "allocation": {"devices": {"results": [{"driver!": str}]}},
        "reservedFor": [{"resource!": str, "name!": str}],
    },
}
_NAMED = {"name!": str, "resourceClaimName": str, "resourceClaimTemplateName": str}
_CONTAINER = {"name!": str, "restartPolicy": str, "resources": {"claims": [{"name!": str}]}}
_POD = {
    "spec": {"resourceClaims": [_NAMED], "containers": [_CONTAINER], "initContainers": [_CONTAINER]},
    "status": {
        "resourceClaimStatuses": [_NAMED],
        "extendedResourceClaimStatus": {"resourceClaimName": str, "requestMappings": [{"containerName!": str}]},
    },
}

_Item = Mapping[str, Any]
_Pods = Callable[[PodName], Optional[_Item]]


class ClaimObjects(NamedTuple):
    """Objects of a cluster, of all drivers."""

    slices: Sequence[_Item]
    claims: Sequence[_Item]


class Request(NamedTuple):
    """A request of a claim for devices of ours."""

    claim: str
    name: str
    kind: str
    """Name of the device class."""
    number: int
    """Devices, all on one node."""
    cores: Optional[int]
    """Percent of a GPU; None for all."""
    memory_bytes: Optional[int]
    others: Tuple["Request", ...] = ()
    """What it takes where that is not to be had, in order."""


@dataclass(frozen=True)
class _Slice:
    node: str
    pool: str
    generation: int
    of: int
    """How many slices the pool has."""
    gpus: Mapping[str, GpuView]
    """By device; what a MIG device tells of its GPU is its own memory."""


@dataclass(frozen=True)
class _Given:
    """What a claim has of one device."""

    pool: str
    device: str
    tenant: Tenant
    whole: bool
    """Whether it has all of it; the tenant does not say then how much that is."""


def served(nodes: Iterable[_Item]) -> bool:
    """Return whether any of these nodes is served by our DRA driver, so that slices and claims are worth reading."""
    return any(labels_of(node).get(MODE_LABEL) == DRA_MODE for node in nodes)


def read_objects(nodes: Iterable[_Item], read: Callable[[str], Optional[Sequence[_Item]]]) -> Optional[ClaimObjects]:
    """Return what there is where a node gives GPUs by claims; None where none does, or it cannot be read.

    ``read`` lists the objects of one of ``KINDS`` in all namespaces, and returns None where it cannot.
    """
    if not served(nodes):
        return None
    found = []
    for kind in KINDS:
        items = read(kind)
        if items is None:
            return None
        found.append(items)
    return ClaimObjects(*found)


def asks_for_gpus(item: _Item) -> bool:
    """Return whether a ResourceClaim or a ResourceClaimTemplate names a device class of ours in any alternative.

    Raises one of ``api_json.ODD``.
    """
    spec = checked(item).get("spec") or {}
    # Of a template, the spec of its claims is one level down.
    spec = spec.get("spec") or spec
    fit(spec, _SPEC, named(item), ("spec",))
    return any(
        each.get("deviceClassName") in DRA_CLASSES
        for request in (spec.get("devices") or {}).get("requests") or ()
        for each in (request.get("exactly") or {}, *(request.get("firstAvailable") or ()))
    )


def claim_sources(pod: _Item) -> List[Tuple[str, str]]:
    """Return where a pod's claims are from: the plural of ResourceClaim or ResourceClaimTemplate, and a name.

    Raises one of ``api_json.ODD``.
    """
    found = []
    for each in _claims(shaped(pod, _POD).get("spec") or {}):
        for field, kind in (("resourceClaimName", CLAIMS), ("resourceClaimTemplateName", TEMPLATES)):
            if each.get(field):
                found.append((kind, each[field]))
    return found


class ClaimedGpus:
    """The GPUs of all nodes of mode dra. Objects that cannot be read are among ``problems``, and cost themselves."""

    def __init__(self, objects: ClaimObjects, pods: _Pods, used: Mapping[Place, int], problems: List[str]) -> None:
        self._used = used
        found = of_each("resourceslice", _slice, objects.slices, problems)
        self._slices: Dict[str, List[_Slice]] = {}
        for each in found:
            if each is not None:
                self._slices.setdefault(each.node, []).append(each)
        given = of_each("resourceclaim", lambda item: _given(item, pods), objects.claims, problems)
        self._given: Dict[Tuple[str, str], List[_Given]] = {}
        for one in (one for several in given for one in several):
            self._given.setdefault((one.pool, one.device), []).append(one)
        self._requests = dict(of_each("resourceclaim", _requests, objects.claims, []))

    def of_node(self, name: str) -> Tuple[Tuple[GpuView, ...], str]:
        """Return a node's GPUs by index, and why these are not all it has, empty where they are."""
        slices = self._slices.get(name, [])
        if not slices:
            return (), "its driver has published no GPUs; look at its pod kube-accel-dra in kube-system"
        latest = max(each.generation for each in slices)
        slices = [each for each in slices if each.generation == latest]
        shown = [(device, self._with(each.pool, device, gpu)) for each in slices for device, gpu in each.gpus.items()]
        gpus = _joined(_whole(shown))
        lacks = len(slices) < max(each.of for each in slices)
        problem = "its driver is publishing its GPUs, of which some are not there yet" if lacks else ""
        return tuple(sorted(gpus, key=lambda gpu: gpu.index)), problem

    def requests(self, pod: _Item) -> List[Request]:
        """Return what a pod asks our device classes for by claims. Raises one of ``api_json.ODD``."""
        namespace = pod["metadata"]["namespace"]
        names = sorted(set(_claim_names(shaped(pod, _POD)).values()))
        return [request for name in names for request in self._requests.get((namespace, name), ())]

    def wants(self, pod: _Item) -> Dict[str, str]:
        """Return the number of devices that a pod asks for by claims, by class. Raises one of ``api_json.ODD``."""
        found: Dict[str, int] = {}
        for request in self.requests(pod):
            found[request.kind] = found.get(request.kind, 0) + request.number
        return {kind: str(count) for kind, count in sorted(found.items())}

    def _with(self, pool: str, device: str, gpu: GpuView) -> GpuView:
        tenants = []
        for one in self._given.get((pool, device), []):
            number = cut(device)[1]
            cores = WHOLE // number if number else WHOLE
            tenant = replace(one.tenant, cores=cores, memory_bytes=gpu.memory_bytes) if one.whole else one.tenant
            place = gpu.uuid, tenant.namespace, tenant.pod, tenant.container
            tenants.append(replace(tenant, used_bytes=self._used.get(place)))
        return replace(gpu, tenants=tuple(tenants))


def _whole(devices: Iterable[Tuple[str, GpuView]]) -> Iterator[Tuple[str, GpuView]]:
    """Yield devices, and of a GPU's fixed shares one with all their tenants, as large as they are together."""
    joined: Dict[str, GpuView] = {}
    for name, device in devices:
        if not cut(name)[1]:
            yield name, device
            continue
        before = joined.get(device.uuid, replace(device, memory_bytes=0, tenants=()))
        memory, tenants = before.memory_bytes + device.memory_bytes, (*before.tenants, *device.tenants)
        joined[device.uuid] = replace(before, memory_bytes=memory, tenants=tenants)
    yield from joined.items()


def _joined(devices: Iterable[Tuple[str, GpuView]]) -> Iterator[GpuView]:
    """Yield each GPU with the tenants of its MIG devices, which have as much of its cores as of its memory.

    A GPU that is given as MIG devices alone is as large as they are together, or as the largest that can be made.
    """
    found: Dict[str, List[Tuple[str, GpuView]]] = {}
    for name, device in devices:
        found.setdefault(device.uuid, []).append((name, device))
    for same in found.values():
        whole = next((device for name, device in same if not device.mig), None)
        # One that could be made is none.
        parts = [device for name, device in same if device.mig and (AT not in name or device.tenants)]
        largest = max(device.memory_bytes for name, device in same)
        gpu = whole or replace(same[0][1], memory_bytes=max(largest, sum(device.memory_bytes for device in parts)))
        tenants = list(whole.tenants) if whole is not None else []
        for part in parts:
            cores = min(WHOLE, round(WHOLE * part.memory_bytes / max(1, gpu.memory_bytes)))
            tenants += [
                replace(tenant, cores=cores, why=f"{tenant.why}, as MIG {part.mig[0]}") for tenant in part.tenants
            ]
        tenants.sort(key=lambda t: (t.namespace, t.pod, t.container))
        classes = tuple(sorted({each for name, device in same for each in device.classes}))
        mig = tuple(sorted({part.mig[0] for part in parts}))
        yield replace(gpu, tenants=tuple(tenants), mig=mig, classes=classes)


def _slice(item: _Item) -> Optional[_Slice]:
    """Return a slice with GPUs of ours; None for another. Raises one of ``api_json.ODD``."""
    if item["spec"]["driver"] != DRA_DRIVER:
        return None
    spec = shaped(item, _OURS)["spec"]
    gpus = {device["name"]: _gpu(device) for device in spec.get("devices") or () if device_of(device["name"])}
    pool = spec["pool"]
    return _Slice(spec["nodeName"], pool["name"], pool["generation"], pool["resourceSliceCount"], gpus)


def _gpu(device: _Item) -> GpuView:
    attributes, known = device["attributes"], device_of(device["name"])
    sick = any(taint["key"] == DRA_TAINT for taint in device.get("taints") or ())
    is_mig = known is not None and known.is_mig
    mig = (attributes["profile"]["string"],) if is_mig else ()
    return GpuView(
        attributes["parentUUID" if is_mig else "uuid"]["string"],
        known.gpu if known is not None else 0,
        attributes["productName"]["string"],
        parse_quantity(device["capacity"]["memory"]["value"]),
        "unhealthy" if sick else "healthy",
        _SICK if sick else "",
        (),
        mig=mig,
        classes=_classes(known, device.get("allowMultipleAllocations") is True),
        cut_into=known.cut_into if known is not None else 0,
    )


def _classes(known: Optional[DeviceName], shared: bool) -> Tuple[str, ...]:
    """Return the device classes that a device is of."""
    if known is not None and known.cut_into:
        return (DRA_FIXED_CLASS,)
    if known is not None and known.is_mig:
        return (DRA_MIG_CLASS,)
    return (DRA_DRIVER, DRA_SHARE_CLASS) if shared else (DRA_DRIVER,)


def _given(item: _Item, pods: _Pods) -> List[_Given]:
    """Return what a claim has of devices of ours. Raises one of ``api_json.ODD``."""
    allocation = (shaped(item, _CLAIM).get("status") or {}).get("allocation") or {}
    results = [each for each in (allocation.get("devices") or {}).get("results") or () if each["driver"] == DRA_DRIVER]
    if not results:
        return []
    # What other drivers give is theirs to understand.
    fit(results, [_RESULT], named(item), ("status", "allocation", "devices", "results"))
    tenant = _tenant(item, pods)
    return [_result(each, tenant) for each in results if not each.get("adminAccess")]


def _result(result: _Item, tenant: Tenant) -> _Given:
    consumed = result.get("consumedCapacity") or {}
    pool, device = result["pool"], result["device"]
    if not result.get("shareID") or not {"cores", "memory"} <= set(consumed):
        return _Given(pool, device, tenant, True)
    cores, memory = (parse_quantity(consumed[name]) for name in ("cores", "memory"))
    return _Given(pool, device, replace(tenant, cores=min(WHOLE, cores), memory_bytes=memory), False)


def _tenant(item: _Item, pods: _Pods) -> Tenant:
    namespace, name = (item["metadata"][key] for key in ("namespace", "name"))
    users = [each["name"] for each in item["status"].get("reservedFor") or () if each["resource"] == "pods"]
    having: Set[Tuple[str, str]] = set()
    for user in users:
        pod = pods((namespace, user))
        having.update((user, container) for container in _containers(pod, name) or [""])
    pod_names = {pod for pod, _container in having}
    pod_name = next(iter(pod_names)) if len(pod_names) == 1 else f"{CLAIM}{name}"
    container = next(iter(having))[1] if len(having) == 1 else ""
    return Tenant(namespace, pod_name, container, WHOLE, 0, why=f"by ResourceClaim {name}")


def _containers(pod: Optional[_Item], claim: str) -> List[str]:
    """Return the containers of a pod that have a claim, and go on running; none of a pod that cannot be read."""
    try:
        pod = shaped(pod, _POD)
    except ODD:
        return []
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    known_as = {name for name, found in _claim_names(pod).items() if found == claim}
    found = [
        container["name"]
        for container in _staying(spec)
        if any(each["name"] in known_as for each in (container.get("resources") or {}).get("claims") or ())
    ]
    extended = status.get("extendedResourceClaimStatus") or {}
    if extended.get("resourceClaimName") == claim:
        found += [each["containerName"] for each in extended.get("requestMappings") or ()]
    return sorted(set(found))


def _staying(spec: _Item) -> Iterator[_Item]:
    yield from (each for each in spec.get("initContainers") or () if each.get("restartPolicy") == "Always")
    yield from spec.get("containers") or ()


def _claim_names(pod: _Item) -> Dict[str, str]:
    """Return the names of a pod's claims, by what the pod calls them."""
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    made = {each["name"]: each.get("resourceClaimName") for each in status.get("resourceClaimStatuses") or ()}
    names = {each["name"]: each.get("resourceClaimName") or made.get(each["name"]) for each in _claims(spec)}
    return {name: found for name, found in names.items() if found is not None}


def _claims(spec: _Item) -> Sequence[_Item]:
    found: Sequence[_Item] = spec.get("resourceClaims") or ()
    return found


def _requests(item: _Item) -> Tuple[PodName, List[Request]]:
    """Return what a claim asks our classes for, with alternatives of ours. Raises one of ``api_json.ODD``."""
    metadata = shaped(item, _CLAIM)["metadata"]
    found = []
    for request in ((item.get("spec") or {}).get("devices") or {}).get("requests") or ():
        asked = [request.get("exactly") or {}, *(request.get("firstAvailable") or ())]
        ours = [each for each in asked if each.get("deviceClassName") in DRA_CLASSES]
        if ours:
            first, *others = (_request(metadata["name"], request["name"], each) for each in ours)
            found.append(first._replace(others=tuple(others)))
    return (metadata["namespace"], metadata["name"]), found


def _request(claim: str, name: str, asked: _Item) -> Request:
    amounts = (asked.get("capacity") or {}).get("requests") or {}
    # As kube-scheduler has it, to whose steps it is rounded up.
    cores, memory = (rounded_up(amounts[key]) if key in amounts else None for key in ("cores", "memory"))
    count = asked.get("count")
    return Request(claim, name, asked["deviceClassName"], 1 if count is None else count, cores, memory)
