# SPDX-License-Identifier: Apache-2.0
"""The device plugin service for shares of GPUs: one a resource, one mind for all resources of a mode."""

from __future__ import annotations

import logging
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import groupby, repeat
from pathlib import Path
from typing import Protocol

from kube_accel.enforce.backend import Ask, EnforceError
from kube_accel.enforce.containers import key_of
from kube_accel.kube.podresources import PodDevices
from kube_accel.kube.proto import deviceplugin_pb2 as pb
from kube_accel.model import Gpu, Inventory, Mode, Snapshot
from kube_accel.placement.topology import Connectivity
from kube_accel.plugin.allocation.call_matcher import Call, CallMatcher, NodeGpus, PendingPod, amounts
from kube_accel.plugin.allocation.ledger import Ledger
from kube_accel.plugin.allocation.pods import NodePod, NodePods, pending, staying
from kube_accel.plugin.allocation.start_check import Devices, Started, by_container, check_start, identifies
from kube_accel.plugin.kubelet.device_exclusivity import Claims, DeviceExclusivity, StartRefused
from kube_accel.plugin.kubelet.devices import Device, healthy_gpus
from kube_accel.plugin.kubelet.holdings import Holder, Lister
from kube_accel.plugin.kubelet.server import ListedPlugin
from kube_accel.rpc.server import Context
from kube_accel.rpc.status import Code, RpcError
from kube_accel.shared.offers import client_limit
from kube_accel.sharing import whole
from kube_accel.sharing.delivery import Grant, Terms
from kube_accel.sharing.fraction import WHOLE, Kind, counts, device_ids, gpu_of, resources
from kube_accel.sharing.profile import Profile

_log = logging.getLogger(__name__)

_API_SECONDS = 5.0
"""How long a call waits for this process to load what it needs to ask the API server."""
_WATCH_SECONDS = 0.5
"""Seconds that a call of an unknown pod waits for the watch."""
_LIST_SECONDS = 1.0


class Enforcer(Protocol):
    """How shares are enforced."""

    def grant(self, ask: Ask) -> Grant:
        """Return what a container receives for its devices of one kind. Raises EnforceError."""

    def admit(self, ask: Ask, started: Started) -> None:
        """Have the limits of a container in force before it starts. Raises EnforceError."""


class Api(Protocol):
    """What an allocation may ask of the API server."""

    @property
    def reachable(self) -> bool:
        """Return whether it is worth asking."""

    def list_now(self, timeout: float) -> None:
        """Bring ``NodePods`` up to date; gives up after ``timeout`` seconds."""


class Allocator:
    """Chooses devices for all resources of a mode; for any thread."""

    def __init__(self, profile: Profile, pods: NodePods, refresh: Callable[[], None]) -> None:
        """``refresh`` asks kubelet who holds what, and calls ``settle`` with it."""
        self.profile = profile
        self._refresh = refresh
        self.pods = pods
        self._api: Api | None = None
        self._api_decided = threading.Event()
        self._matcher = CallMatcher(profile)
        self._lock = threading.Lock()
        self._gpus: NodeGpus | None = None
        self._admitted: set[str] = set()
        self._placed: dict[str, PendingPod] = {}
        self._adopted: set[str] | None = None
        """Devices that containers had before this process began, and have had ever since."""

    def see(self, snapshot: Snapshot) -> None:
        """Take the GPUs as they are now."""
        inventory = snapshot.inventory
        if inventory is None:
            return
        with self._lock:
            old = self._gpus
            same = old is not None and old.inventory == inventory
            connectivity = old.connectivity if same and old is not None else Connectivity.of(inventory)
            self._gpus = NodeGpus(inventory, snapshot.health, connectivity)

    def use_api(self, api: Api | None) -> None:
        """Use this API server, or none. Until this is called, allocations wait a moment for it."""
        self._api = api
        self._api_decided.set()

    def prefer(self, call: Call) -> tuple[str, ...]:
        """Return the devices to take; empty leaves it to kubelet."""
        gpus = self._gpus
        if gpus is None:
            return ()
        if found := self._steer(call, gpus):
            return found
        # What seems to be taken may have been given back since kubelet was asked.
        self._refresh()
        if found := self._steer(call, gpus):
            return found
        with self._lock:
            if _forced(call):
                return self._matcher.choose(call, gpus)
            known = self._matcher.candidates(call, self._pending())
        if not known or any(pod.assigned is None for pod in known):
            found = self._steer_after_news(call, gpus)
        with self._lock:
            found = found or self._place(call, gpus)
            if found:
                return found
            chosen = self._matcher.choose(call, gpus)
        extra = {"resource": resources(self.profile)[call.kind], "size": call.size, "gpus": _gpus_of(chosen)}
        _log.info("the pod of this call is unknown: GPUs chosen here", extra=extra)
        return chosen

    def split_across_gpus(self, kind: Kind, ids: Iterable[str]) -> str:
        """Return why a container cannot take these devices; empty when it can."""
        with self._lock:
            return self._matcher.split_across_gpus(kind, ids)

    def granted(self, kind: Kind, ids: Iterable[str]) -> None:
        """Note that kubelet has taken these devices."""
        with self._lock:
            taken = frozenset(ids)
            self._matcher.granted(kind, taken)
            if self._adopted is not None:
                self._adopted -= taken

    def settle(self, containers: Mapping[Holder, Devices]) -> None:
        """Take in that kubelet lists these containers with our devices."""
        # Thousands of devices: what can be done before the lock is taken, and not one by one, is.
        by_pod: dict[tuple[str, str], dict[str, Devices]] = {}
        for holder, devices in containers.items():
            by_pod.setdefault((holder.namespace, holder.pod), {})[holder.container] = devices
        ids_of = {key: _ids(listed.values()) for key, listed in by_pod.items()}
        held = set[str]().union(*ids_of.values())
        held_of, count = _by_gpu(containers.values())
        with self._lock:
            self._adopted = held if self._adopted is None else self._adopted & held
            granted = frozenset(device for entry in self._matcher.grants for device in entry.ids)
            known = self.pods.all()
            done: set[str] = set()
            admitted = {pod.uid for pod in known if pod.uid in self._admitted}
            for pod in known:
                listed = by_pod.get((pod.namespace, pod.name), {})
                ids = ids_of.get((pod.namespace, pod.name), set())
                # An earlier pod of this name may be listed still: what a new one has was handed out lately.
                own = not pod.waiting or not granted.isdisjoint(ids) or ids <= self._adopted
                if own and _complete(pod, listed, self.profile):
                    admitted.add(pod.uid)
                    done |= ids
            names = {(pod.namespace, pod.name) for pod in known if pod.request is not None}
            for key, listed in by_pod.items():
                if key not in names and all(_both(devices, self.profile) for devices in listed.values()):
                    done |= ids_of[key]
            self._admitted = admitted
            self._placed = {uid: pod for uid, pod in self._placed.items() if uid not in admitted}
            self._matcher.settle(held_of, done, count)

    def _pending(self) -> list[PendingPod]:
        return [self._placed.get(pod.uid, pod) for pod in pending(self.pods.all(), self._admitted)]

    def _steer_after_news(self, call: Call, gpus: NodeGpus) -> tuple[str, ...]:
        """Wait for the watch to show the pod whose call it is, then ask once."""
        self._api_decided.wait(_API_SECONDS)
        if self._api is None:
            return ()
        deadline = time.monotonic() + _WATCH_SECONDS
        version = self.pods.version
        found: tuple[str, ...] = ()
        news = True
        while news and not found and self._api.reachable:
            found = self._steer(call, gpus)
            news = not found and self.pods.wait(version, deadline - time.monotonic())
            version = self.pods.version
        if not found and self._api.reachable:
            self._api.list_now(_LIST_SECONDS)
            found = self._steer(call, gpus)
        return found

    def _steer(self, call: Call, gpus: NodeGpus) -> tuple[str, ...]:
        with self._lock:
            return self._matcher.match(call, self._pending(), gpus) or self._matcher.partner_devices(call)

    def _place(self, call: Call, gpus: NodeGpus) -> tuple[str, ...]:
        """Choose GPUs for the pod whose call it most likely is: the extender has chosen none, or none that do."""
        for strict in (True, False):
            for pod in self._matcher.candidates(call, self._pending(), strict):
                others = [other for other in self._pending() if other.uid != pod.uid]
                self._placed[pod.uid] = self._matcher.assign(pod, others, gpus)
                if found := self._matcher.match(call, self._pending(), gpus, strict):
                    extra = {"pod": pod.uid, "gpus": _gpus_of(found)}
                    _log.info("no GPUs are assigned to a pod, or none with room: chosen here", extra=extra)
                    return found
        return ()


@dataclass(frozen=True, slots=True)
class Shared:
    """What the services of all resources of a mode have in common."""

    allocator: Allocator
    lister: Lister
    ledger: Ledger
    enforcer: Enforcer
    on_refused: Callable[[StartRefused], None]
    """Gets every refused start. Runs on request threads and must be quick."""
    dev_root: Path
    """Where the host's ``/dev`` is seen."""


class SharePlugin(ListedPlugin):
    """The service for one resource of a mode that divides GPUs."""

    options = pb.DevicePluginOptions(get_preferred_allocation_available=True, pre_start_required=True)

    def __init__(
        self,
        kind: Kind,
        shared: Shared,
        on_given_twice: Callable[[str], None],
        on_allocate: Callable[[tuple[str, ...]], None],
        on_stream_end: Callable[[], None],
    ) -> None:
        """``on_given_twice`` gets the reason of a refused start when others have the same devices.

        The callbacks run on request threads and must be quick.
        """
        super().__init__(shared.dev_root, on_allocate, on_stream_end)
        self._allocator = shared.allocator
        self._profile = self._allocator.profile
        self.resource = resources(self._profile)[kind]
        self._kind = kind
        self._exclusivity = DeviceExclusivity(shared.lister, on_given_twice, self._claims)
        self._ledger = shared.ledger
        self._enforcer = shared.enforcer
        self._on_refused = shared.on_refused
        self._rows: dict[tuple[Gpu, bool], tuple[Device, ...]] = {}
        """The devices of a GPU, healthy or not: thousands, the same each time."""
        self._ids: Mapping[str, frozenset[str]] = {}
        """The ids of every GPU's devices, by UUID."""

    def get_options(self, request: pb.Empty, context: Context) -> pb.DevicePluginOptions:
        """Return what kubelet shall call, which it asks each time it gets to know us."""
        self._exclusivity.forget()
        return super().get_options(request, context)

    def device_list(self, snapshot: Snapshot) -> tuple[Device, ...]:
        """Return the devices of ``snapshot``, given those advertised last."""
        if snapshot.inventory is None:
            return ()
        good = healthy_gpus(snapshot, {gpu_of(device.id) for device in self.devices if device.healthy})
        found: list[Device] = []
        for gpu in snapshot.inventory.gpus:
            row = (gpu, gpu.uuid in good)
            if row not in self._rows:
                # Without NUMA nodes: kubelet would then choose among GPUs before it asks us.
                ids = device_ids(gpu, self._kind, self._profile)
                self._rows[row] = tuple(Device(device, row[1], None) for device in ids)
            found += self._rows[row]
        return tuple(found)

    def publish(
        self,
        devices: tuple[Device, ...],
        inventory: Inventory | None,
        parts: tuple[whole.Part, ...] = (),
        terms: Terms = Terms(),  # noqa: B008 - frozen
    ) -> bool:
        """Offer these devices."""
        if devices != self.devices:
            by_gpu = groupby((device.id for device in devices), gpu_of)
            self._ids = {uuid: frozenset(ids) for uuid, ids in by_gpu}
        return super().publish(devices, inventory, parts, terms)

    def get_preferred_allocation(
        self, request: pb.PreferredAllocationRequest, context: Context
    ) -> pb.PreferredAllocationResponse:
        """Return devices of the GPU that the container was assigned. After any error the choice is kubelet's."""
        reply = pb.PreferredAllocationResponse()
        for container in request.container_requests:
            ids: Collection[str] = ()
            try:
                available = frozenset(container.available_deviceIDs)
                required = frozenset(container.must_include_deviceIDs)
                call = Call.of(self._kind, container.allocation_size, self._ids, available, required)
                known = sum(map(len, call.by_gpu.values()))
                if call.size > 0 and known == len(available | required):
                    ids = self._allocator.prefer(call)
            except Exception:
                _log.exception("no preference for this request", extra={"resource": self.resource})
            reply.container_responses.add(deviceIDs=ids)
        return reply

    def allocate(self, request: pb.AllocateRequest, context: Context) -> pb.AllocateResponse:
        """Return what each container receives for its devices, which is all that is known of it."""
        offer = self._offer
        reply = pb.AllocateResponse()
        for container in request.container_requests:
            try:
                chosen = counts(container.devices_ids, self._kind, offer.gpus, self._profile)
            except ValueError as error:
                raise RpcError(
                    Code.INVALID_ARGUMENT,
                    f"{self.resource}: {error}; kubelet's list is outdated, retry the pod",
                ) from error
            for device in container.devices_ids:
                if device in offer.unhealthy:
                    raise RpcError(
                        Code.FAILED_PRECONDITION,
                        f"{self.resource}: GPU {gpu_of(device)} has become unhealthy; retry the pod",
                    )
            if problem := self._spread(chosen) or self._allocator.split_across_gpus(self._kind, container.devices_ids):
                raise RpcError(Code.RESOURCE_EXHAUSTED, f"{self.resource}: {problem}")
            try:
                given = self._enforcer.grant(Ask(self._kind, tuple(container.devices_ids), chosen, offer.gpus))
            except EnforceError as error:
                raise RpcError(Code.FAILED_PRECONDITION, f"{self.resource}: {error}") from error
            reply.container_responses.append(self._response(given))
        for container in request.container_requests:
            self._exclusivity.allocated(container.devices_ids)
            self._allocator.granted(self._kind, container.devices_ids)
            self._on_allocate(tuple(container.devices_ids))
        return reply

    def pre_start_container(
        self, request: pb.PreStartContainerRequest, context: Context
    ) -> pb.PreStartContainerResponse:
        """Find the container of these devices, check that they belong together, and record that."""
        try:
            started = self._exclusivity.admit(request.devices_ids, partial(self._check, request.devices_ids))
        except StartRefused as error:
            _log.warning("a container is not started", extra={"resource": self.resource, "reason": str(error)})
            self._on_refused(error)
            raise RpcError(Code.FAILED_PRECONDITION, str(error)) from error
        try:
            gpus = self._offer.gpus
            chosen = counts(request.devices_ids, self._kind, gpus, self._profile)
            self._enforcer.admit(Ask(self._kind, tuple(request.devices_ids), chosen, gpus), started)
        except (EnforceError, ValueError) as error:
            _log.error("a container is not started", extra={"resource": self.resource, "reason": str(error)})
            raise RpcError(Code.FAILED_PRECONDITION, f"{self.resource}: {error}") from error
        holder = started.holder
        if holder is not None:
            pod = self._allocator.pods.find(holder.namespace, holder.pod)
            self._ledger.record(holder, pod.uid if pod is not None else "", started.shares)
        return pb.PreStartContainerResponse()

    def _check(self, ids: Collection[str], listed: tuple[PodDevices, ...]) -> Started:
        containers = by_container(listed, self._profile)
        return check_start(self._kind, ids, containers, self._offer.gpus, self._profile, self._most_containers)

    def _claims(self, ids: Collection[str]) -> Claims:
        """Return what is for one pod at a time: what a container's files are kept by. Other cores may add up."""
        if not ids or not identifies(self._kind, ids):
            return {}
        return {key_of(ids): f"{len(ids)} {self.resource} of {', '.join(_gpus_of(ids))}"}

    @property
    def _most_containers(self) -> int | None:
        inventory = self._offer.inventory
        if inventory is None or self._profile.mode is not Mode.MPS:
            return None
        return client_limit(inventory.cuda_version)

    def _spread(self, chosen: Mapping[str, int]) -> str:
        """Return why devices of several GPUs cannot be one container's; empty when they can."""
        if len(chosen) < 2:
            return ""
        if self._kind is Kind.CORES and all(count == WHOLE for count in chosen.values()):
            return ""
        if self._kind is Kind.MEMORY and self._profile.core_resource is not None:
            return ""
        return (
            f"no GPU has {sum(chosen.values())} left, only {len(chosen)} GPUs together; "
            "wait for room, or use the scheduler extender, which keeps such pods waiting"
        )


def _complete(pod: NodePod, listed: Mapping[str, Devices], profile: Profile) -> bool:
    """Return whether kubelet lists every container of the pod that keeps devices, with all it is going to get."""
    if pod.request is None or not listed:
        return False
    return all(
        amounts(container, profile).keys() <= listed.get(container.name, {}).keys()
        for container in staying(pod.request)
    )


def _ids(containers: Iterable[Devices]) -> set[str]:
    return set[str]().union(*(found for devices in containers for found in devices.values()))


def _by_gpu(containers: Iterable[Devices]) -> tuple[dict[tuple[str, Kind], set[str]], Counter[str]]:
    """Return the devices of each GPU and kind that containers hold, and how many containers hold some of each GPU."""
    held: defaultdict[tuple[str, Kind], set[str]] = defaultdict(set)
    count: Counter[str] = Counter()
    for devices in containers:
        gpus: set[str] = set()
        for kind, found in devices.items():
            # Nearly always they are of one GPU, which is quickly seen.
            first = gpu_of(next(iter(found), ""))
            alike = all(map(str.startswith, found, repeat(f"{first}::")))
            for uuid in {first} if alike else {gpu_of(device) for device in found}:
                held[uuid, kind] |= found if alike else {device for device in found if gpu_of(device) == uuid}
                gpus.add(uuid)
        count.update(gpus)
    return dict(held), count


def _both(devices: Devices, profile: Profile) -> bool:
    """Return whether a container has all it is going to get."""
    cores = len(devices.get(Kind.CORES, ()))
    return len(devices) == len(resources(profile)) or (cores > 0 and cores % WHOLE == 0)


def _forced(call: Call) -> bool:
    """Return whether there is no choice to make."""
    if call.whole:
        return sum(len(ids) == WHOLE for ids in call.by_gpu.values()) <= call.whole
    return sum(len(ids) >= call.size for ids in call.by_gpu.values()) == 1


def _gpus_of(ids: Iterable[str]) -> list[str]:
    return sorted({gpu_of(device) for device in ids})
