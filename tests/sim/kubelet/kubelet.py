# SPDX-License-Identifier: Apache-2.0
"""Kubelet's device manager: registration, device lists, admission, as in pkg/kubelet/cm/devicemanager of 1.36.2."""

from __future__ import annotations

import random
import re
import stat
import threading
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping
from concurrent import futures
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import TracebackType

import grpc

from kube_accel.kube.deviceplugin import (
    KUBELET_SOCKET,
    UNHEALTHY,
    VERSION,
)
from kube_accel.kube.proto import deviceplugin_pb2 as pb
from sim.kubelet.channel import open_channel
from sim.kubelet.client import DevicePluginClient, add_registration
from sim.kubelet.model import Container, ContainerAllocation, Device, PodSpec, merge
from sim.kubelet.podresources import MAX_MESSAGE, Claim, PodDevices, PodResourcesServer

PRE_START_SECONDS = 30.0
SOCKET_PATH_LIMIT = 107
RPC_ERRORS = (grpc.RpcError, ValueError)
"""ValueError is what gRPC raises for a call on a channel that another thread has closed."""
EXTENDED_RESOURCE = re.compile(
    r"(?!requests\.)(?!.*kubernetes\.io/)[a-z0-9][-a-z0-9.]*/[A-Za-z0-9][-\w.]{0,62}", re.ASCII
)


class AdmissionError(Exception):
    """The pod failed for good; ``reason`` is what its status would say."""

    reason = "UnexpectedAdmissionError"


class ContainerStartError(Exception):
    """PreStartContainer failed: the pod stays admitted and its devices stay taken; kubelet would try again."""


@dataclass(slots=True, eq=False)
class _Endpoint:
    """One registration: the plugin behind a resource."""

    resource: str
    socket: str
    options: pb.DevicePluginOptions
    client: DevicePluginClient
    channel: grpc.Channel
    stream: grpc.Call
    stopped: bool = False

    def stop(self) -> None:
        self.stopped = True
        self.stream.cancel()
        self.channel.close()


@dataclass(slots=True)
class _Grant:
    """Devices of one resource that a container got, and what its plugin said about them."""

    ids: frozenset[str]
    response: pb.ContainerAllocateResponse


@dataclass(slots=True)
class _Admitted:
    pod: PodSpec
    grants: dict[str, dict[str, _Grant]] = field(default_factory=lambda: defaultdict(dict))
    """By container, then resource."""


class FakeKubelet:
    """Serves ``<root>/device-plugins`` and ``<root>/pod-resources`` and admits pods, one after the other.

    ``rng`` decides everything a kubelet leaves to chance: the order of a container's resources and which devices
    are taken when the plugin does not prefer any. A plugin that registers has ``dial_timeout`` seconds to answer the
    dial-back. One that hangs in Allocate hangs ``admit`` until ``stop``.
    """

    def __init__(self, root: Path, rng: random.Random | None = None, dial_timeout: float = 10.0) -> None:
        self._plugin_dir = root / "device-plugins"
        self._pod_resources_dir = root / "pod-resources"
        for directory in (self._plugin_dir, self._pod_resources_dir):
            if len(str(directory / KUBELET_SOCKET)) > SOCKET_PATH_LIMIT:
                raise ValueError(f"{directory}/{KUBELET_SOCKET} is too long for a socket: use a shorter root")
        self._rng = rng or random.Random()
        self._dial_timeout = dial_timeout
        self._changed = threading.Condition()
        self._admission = threading.Lock()
        self._endpoints: dict[str, _Endpoint] = {}
        self.lists: Counter[str] = Counter()
        """How many registrations of each socket were followed by a list."""
        self._followers: list[tuple[_Endpoint, threading.Thread]] = []
        self._following: set[_Endpoint] = set()
        self._devices: dict[str, dict[str, Device]] = {}
        self._pods: dict[str, _Admitted] = {}
        self._forgotten: set[str] = set()
        self._servers: list[grpc.Server] = []
        self._starts = 0
        self.claims: list[Claim] = []
        """What it lists of DRA drivers."""
        self.seconds: defaultdict[str, list[float]] = defaultdict(list)
        """What calls of plugins took, by the method's name."""

    def __enter__(self) -> FakeKubelet:
        self.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, tb: TracebackType | None) -> None:
        self.stop()

    def start(self) -> None:
        """Delete every socket plugins left behind, then serve. Resources known before count 0 until re-registered."""
        for directory in (self._plugin_dir, self._pod_resources_dir):
            directory.mkdir(parents=True, exist_ok=True)
            for path in directory.iterdir():
                if stat.S_ISSOCK(path.lstat().st_mode):
                    path.unlink()
        with self._changed:
            self._starts += 1
            self._forgotten.clear()
            self._devices = {resource: {} for resource in self._devices}
            self._changed.notify_all()
        registration, pod_resources = _server(), _server(("grpc.max_send_message_length", MAX_MESSAGE))
        add_registration(registration, self)
        PodResourcesServer(self._pod_devices, self._healthy_devices, self.claims).add_to(pod_resources)
        self._servers = [registration, pod_resources]
        for server, directory in ((registration, self._plugin_dir), (pod_resources, self._pod_resources_dir)):
            server.add_insecure_port(f"unix:{directory / KUBELET_SOCKET}")
            server.start()

    def stop(self) -> None:
        """Go away as a kubelet that ends: plugins and their sockets stay, pods keep their devices."""
        with self._changed:
            servers, self._servers = self._servers, []
            followers, self._followers = self._followers, []
        for endpoint, _ in followers:
            endpoint.stop()
        for _, thread in followers:
            thread.join()
        with self._changed:
            self._endpoints = {}
        for stopped in [server.stop(None) for server in servers]:
            stopped.wait()

    def restart(self) -> None:
        self.stop()
        self.start()

    # What is known

    def devices(self, resource: str) -> dict[str, Device]:
        """The plugin's last list, by device id; empty when there is none."""
        with self._changed:
            return dict(self._devices.get(resource, {}))

    def capacity(self) -> dict[str, int]:
        """Devices by resource, 0 for one whose plugin has not come back since a restart."""
        with self._changed:
            return {resource: len(devices) for resource, devices in self._devices.items()}

    def allocatable(self) -> dict[str, int]:
        """Healthy devices by resource, held ones included."""
        with self._changed:
            return {name: sum(d.healthy for d in devices.values()) for name, devices in self._devices.items()}

    def held(self) -> list[tuple[PodSpec, dict[str, dict[str, frozenset[str]]]]]:
        """Every admitted pod and the devices of its containers, by name and resource."""
        with self._changed:
            return [
                (
                    pod.pod,
                    {name: {resource: g.ids for resource, g in grants.items()} for name, grants in pod.grants.items()},
                )
                for pod in self._pods.values()
            ]

    def following(self) -> set[str]:
        """Sockets of the plugins whose lists are being received."""
        with self._changed:
            return {endpoint.socket for endpoint in self._following}

    def plugins(self) -> dict[str, str]:
        """The socket of the plugin that is registered, by resource."""
        with self._changed:
            return {resource: endpoint.socket for resource, endpoint in self._endpoints.items() if not endpoint.stopped}

    def wait(self, predicate: Callable[[], bool], timeout: float) -> None:
        """Return once ``predicate`` holds; it is asked again after every change of devices or pods.

        Raises TimeoutError after ``timeout`` seconds.
        """
        with self._changed:
            if not self._changed.wait_for(predicate, timeout):
                raise TimeoutError(f"not within {timeout} s; devices: {self._devices}")

    # Registration

    def register(self, request: pb.RegisterRequest, context: grpc.ServicerContext) -> pb.Empty:
        """Dial the plugin back, ask its options, and only then answer; its answer counts, not ``request.options``."""
        if request.version != VERSION:
            context.abort(grpc.StatusCode.UNKNOWN, f"API version {request.version!r}: kubelet supports {VERSION!r}")
        if not EXTENDED_RESOURCE.fullmatch(request.resource_name):
            context.abort(grpc.StatusCode.UNKNOWN, f"{request.resource_name!r} is not a name for an extended resource")
        start = self._starts
        channel = open_channel(self._plugin_dir / request.endpoint)
        client = DevicePluginClient(channel)
        try:
            grpc.channel_ready_future(channel).result(timeout=self._dial_timeout)
            options = client.get_options(timeout=self._dial_timeout)
        except (grpc.RpcError, grpc.FutureTimeoutError) as error:
            channel.close()
            context.abort(grpc.StatusCode.UNKNOWN, f"failed to dial device plugin on {request.endpoint}: {error}")
        stream = client.list_and_watch()
        endpoint = _Endpoint(request.resource_name, request.endpoint, options, client, channel, stream)
        with self._changed:
            if self._starts != start or not self._servers:
                endpoint.stop()
                context.abort(grpc.StatusCode.UNAVAILABLE, "kubelet is stopping")
            self._endpoints[request.resource_name] = endpoint
            self._devices.setdefault(request.resource_name, {})
            follower = threading.Thread(target=self._follow, args=(endpoint,), daemon=True)
            self._followers.append((endpoint, follower))
            self._following.add(endpoint)
            follower.start()
            self._changed.notify_all()
        return pb.Empty()

    def _follow(self, endpoint: _Endpoint) -> None:
        heard = False
        with suppress(grpc.RpcError):
            for message in endpoint.stream:
                devices = {
                    device.ID: Device(device.health, tuple(node.ID for node in device.topology.nodes))
                    for device in message.devices
                }
                with self._changed:
                    self._devices[endpoint.resource] = devices
                    self.lists[endpoint.socket] += not heard
                    heard = True
                    self._changed.notify_all()
        with self._changed:
            self._following.discard(endpoint)
            # Kubelet disconnects whoever is registered by now, also when that is a newer plugin whose own stream is
            # fine: it looks the client up by resource. The newer one has to register again.
            current = self._endpoints[endpoint.resource]
            if not current.stopped:
                current.stop()
                known = self._devices[endpoint.resource]
                self._devices[endpoint.resource] = {name: replace(known[name], health=UNHEALTHY) for name in known}
            self._changed.notify_all()

    # Admission

    def admit(self, pod: PodSpec) -> dict[str, ContainerAllocation]:
        """Give every container its devices, then ``run`` the pod. Raises AdmissionError: the pod holds nothing then.

        A pod admitted before keeps what it has, without a new Allocate.
        """
        self.accept(pod)
        return self.run(pod)

    def accept(self, pod: PodSpec) -> None:
        """Give every container its devices, as ``admit`` does; none is started yet. Raises AdmissionError."""
        with self._admission:
            with self._changed:
                held = self._pods.setdefault(pod.uid, _Admitted(pod))
            reusable: dict[str, set[str]] = defaultdict(set)
            try:
                for container in pod.all_containers:
                    self._allocate(held, container, reusable)
            except (AdmissionError, *RPC_ERRORS) as error:
                self.remove(pod)
                raise AdmissionError(f"Allocate failed due to {_cause(error)}, which is unexpected") from error

    def run(self, pod: PodSpec) -> dict[str, ContainerAllocation]:
        """Start, or start again, the containers of an admitted pod. Raises ContainerStartError."""
        with self._changed:
            held = self._pods[pod.uid]
        started = {}
        for container in pod.all_containers:
            grants = held.grants.get(container.name, {})
            for resource in self._shuffled(grants):
                self._pre_start(resource, grants[resource].ids)
            responses = [grants[resource].response for resource in self._shuffled(grants)]
            ids = {resource: tuple(sorted(grant.ids)) for resource, grant in grants.items()}
            started[container.name] = merge(responses, ids)
        return started

    def remove(self, pod: PodSpec) -> None:
        """The pod has ended: its devices are free."""
        with self._changed:
            self._pods.pop(pod.uid, None)
            self._forgotten.clear()
            self._changed.notify_all()

    def forget(self, pod: PodSpec) -> None:
        """Take what an admitted pod has for free, until a pod ends or kubelet restarts.

        So it is where PodResources was listed while the pod's Allocate was under way and another had just ended.
        """
        with self._changed:
            self._forgotten.add(pod.uid)

    def _allocate(self, held: _Admitted, container: Container, reusable: dict[str, set[str]]) -> None:
        """``reusable``: devices of earlier init containers of the pod, by resource."""
        grants = held.grants[container.name]
        with self._changed:
            wanted = [r for r in self._shuffled(container.resources) if r in self._devices and r not in grants]
        for resource in wanted:
            size = container.resources[resource]
            if size == 0:
                continue
            ids = self._choose(resource, size, reusable[resource])
            client, asked = self._endpoint(resource).client, self._shuffled(ids)
            with self._timed("Allocate"):
                reply = client.allocate(asked)
            if not reply.container_responses:
                raise AdmissionError(f"the plugin for {resource} answered Allocate without a container")
            with self._changed:
                grants[resource] = _Grant(frozenset(ids), reply.container_responses[0])
                self._changed.notify_all()
        lends = container in held.pod.init_containers and not container.restartable
        for resource, grant in grants.items():
            reusable[resource] = reusable[resource] | grant.ids if lends else reusable[resource] - grant.ids

    def _choose(self, resource: str, size: int, reusable: set[str]) -> set[str]:
        chosen = set(self._shuffled(reusable)[:size])
        needed = size - len(chosen)
        with self._changed:
            healthy = {name for name, device in self._devices[resource].items() if device.healthy}
            in_use = {
                name
                for uid, pod in self._pods.items()
                if uid not in self._forgotten
                for grants in pod.grants.values()
                if resource in grants
                for name in grants[resource].ids
            }
        if not healthy:
            raise AdmissionError(f"no healthy devices present; cannot allocate unhealthy devices {resource}")
        if not needed:
            return chosen
        available = healthy - in_use
        if len(available) < needed:
            raise AdmissionError(
                f"requested number of devices unavailable for {resource}. "
                f"Requested: {needed}, Available: {len(available)}"
            )
        endpoint = self._endpoint(resource)
        preferred: list[str] = []
        if endpoint.options.get_preferred_allocation_available:
            offered, required = self._shuffled(available | chosen), self._shuffled(chosen)
            with self._timed("GetPreferredAllocation"):
                answer = endpoint.client.get_preferred_allocation(offered, required, size)
            preferred = [name for name in dict.fromkeys(answer) if name in available]
        rest = self._shuffled(available - set(preferred))
        return chosen | set([*preferred, *rest][:needed])

    def _pre_start(self, resource: str, ids: frozenset[str]) -> None:
        with self._changed:
            known = self._endpoints.get(resource)
        if known is None or not known.options.pre_start_required:
            return  # a plugin that has not come back since kubelet's restart is not waited for
        try:
            client, asked = self._endpoint(resource).client, self._shuffled(ids)
            with self._timed("PreStartContainer"):
                client.pre_start_container(asked, timeout=PRE_START_SECONDS)
        except (AdmissionError, *RPC_ERRORS) as error:
            raise ContainerStartError(f"PreStartContainer of {resource} failed: {_cause(error)}") from error

    @contextmanager
    def _timed(self, method: str) -> Iterator[None]:
        begin = time.perf_counter()
        yield
        self.seconds[method].append(time.perf_counter() - begin)

    def _endpoint(self, resource: str) -> _Endpoint:
        with self._changed:
            endpoint = self._endpoints.get(resource)
        if endpoint is None or endpoint.stopped:
            raise AdmissionError(f"the plugin for {resource} has gone")
        return endpoint

    def _shuffled(self, names: Mapping[str, object] | set[str] | frozenset[str]) -> list[str]:
        return self._rng.sample(sorted(names), len(names))

    # PodResources

    def _pod_devices(self) -> PodDevices:
        def devices(grant: _Grant, resource: str) -> dict[str, Device | None]:
            return {name: self._devices.get(resource, {}).get(name) for name in grant.ids}

        with self._changed:
            return [
                (
                    held.pod,
                    {
                        container.name: {
                            resource: devices(grant, resource)
                            for resource, grant in held.grants.get(container.name, {}).items()
                        }
                        for container in held.pod.all_containers
                        if container.restartable or container in held.pod.containers
                    },
                )
                for held in self._pods.values()
            ]

    def _healthy_devices(self) -> dict[str, dict[str, Device | None]]:
        with self._changed:
            return {
                resource: {name: device for name, device in devices.items() if device.healthy}
                for resource, devices in self._devices.items()
            }


def _cause(error: Exception) -> str:
    return f"{error.code().name}: {error.details()}" if isinstance(error, grpc.RpcError) else str(error)


def _server(*options: tuple[str, int]) -> grpc.Server:
    return grpc.server(futures.ThreadPoolExecutor(max_workers=8), options=options)
