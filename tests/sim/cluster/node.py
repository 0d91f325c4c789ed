# SPDX-License-Identifier: Apache-2.0
"""The node agent: what kubelet and containerd do with the pods bound to a node, and with static pods."""

from __future__ import annotations

import base64
import hashlib
import http.client
import json
import os
import platform
import select
import shutil
import ssl
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import yaml

from sim import cgroups, native
from sim.cluster.apiserver import PREVIOUS, ApiServer
from sim.cluster.containers import (
    IMAGE_LIBRARIES,
    PATH,
    SERVICE_ACCOUNT,
    ContainerError,
    Mounts,
    Process,
    Running,
    device_environment,
    enclosed,
    environment,
    expand,
    gpu_environment,
    runtimes,
)
from sim.cluster.discovery import VERSION
from sim.cluster.hostcmd import RUNNING_CONFIG
from sim.cluster.kinds import ApiError, Object, canonical, quantity
from sim.cluster.scheduler import Scheduler
from sim.cluster.schedulerconfig import ConfigError
from sim.cluster.store import Store, now, set_condition
from sim.kubelet import AdmissionError, Container, ContainerAllocation, ContainerStartError, FakeKubelet, PodSpec
from sim.kubelet.drivers import follow_drivers

CONTROL_PLANE = "node-role.kubernetes.io/control-plane"
_MIRROR = "kubernetes.io/config.mirror"
_MACHINE = {"cpu": "64", "memory": "512Gi", "ephemeral-storage": "1Ti", "pods": "110"}
_NODE_INFO = ("bootID", "containerRuntimeVersion", "kubeProxyVersion", "machineID", "osImage", "systemUUID")
_BACKOFF_FIRST, _BACKOFF_MOST = 0.2, 5.0
_EAGER = 0.1
"""How often a container that was not ready yet is asked; a kubelet would wait a whole period."""


def node_object(name: str, address: str, control_plane: bool = False) -> Object:
    """A node as its kubelet registers it, before any device plugin has come."""
    labels = {"kubernetes.io/hostname": name, "kubernetes.io/os": "linux", "kubernetes.io/arch": "amd64"}
    taint = {"key": CONTROL_PLANE, "effect": "NoSchedule"}
    body: Object = {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels | ({CONTROL_PLANE: ""} if control_plane else {})},
        "spec": {"taints": [taint]} if control_plane else {},
        "status": {
            "addresses": [{"type": "InternalIP", "address": address}, {"type": "Hostname", "address": name}],
            "nodeInfo": dict.fromkeys(_NODE_INFO, "simulated")
            | {
                "kubeletVersion": VERSION["gitVersion"],
                "kernelVersion": platform.release(),
                "operatingSystem": "linux",
                "architecture": "amd64",
            },
            "capacity": dict(_MACHINE),
            "allocatable": dict(_MACHINE),
        },
    }
    set_condition(body, "Ready", "True", "KubeletReady", "the simulated kubelet is posting ready status")
    return body


class NodeAgent:
    """Everything that happens on one node. ``address`` is its own IP; its pods get others of the same /16."""

    def __init__(self, store: Store, api: ApiServer, name: str, host: Path, address: str, control_plane: bool) -> None:
        self.store, self.api, self.name, self.host, self.address = store, api, name, host, address
        self.kubelet = FakeKubelet(host / "var/lib/kubelet")
        self._control_plane = control_plane
        self._pods: dict[str, _Pod] = {}
        self._next_ip = 1
        self._stopped = threading.Event()
        following = (self._sync, self._follow_devices, self._follow_drivers)
        self._threads = [threading.Thread(target=target, daemon=True) for target in following]
        if control_plane:
            self._threads.append(threading.Thread(target=self._follow_manifests, daemon=True))

    def start(self) -> None:
        self.kubelet.start()
        self.store.create("nodes", "", node_object(self.name, self.address, self._control_plane))
        for thread in self._threads:
            thread.start()

    def stop(self, grace: float) -> None:
        """End every pod within ``grace`` seconds, then the kubelet."""
        self._stopped.set()
        self.store.wake()
        for thread in self._threads:
            thread.join(10)
        pods = list(self._pods.values())
        for pod in pods:
            pod.end(grace)
        for pod in pods:
            pod.join()
        self.kubelet.stop()

    def pod_ip(self) -> str:
        self._next_ip += 1
        return f"{self.address.rsplit('.', 2)[0]}.{self._next_ip // 256}.{self._next_ip % 256}"

    def place(self, path: str) -> Path:
        """Where a path of the host lies on this machine; daemons that run here know it already."""
        return Path(path) if Path(path).is_relative_to(self.host) else self.host / path.lstrip("/")

    def log_path(self, pod: Object, container: str) -> Path:
        metadata = pod["metadata"]
        return self.host / f"var/log/pods/{metadata['namespace']}_{metadata['name']}/{container}.log"

    def _sync(self) -> None:
        while not self._stopped.is_set():
            version = self.store.version
            mine = {
                pod["metadata"]["uid"]: pod
                for pod in self.store.all("pods")
                if pod["spec"].get("nodeName") == self.name
            }
            for uid, pod in mine.items():
                running = self._pods.get(uid)
                grace = pod["metadata"].get("deletionGracePeriodSeconds", 0)
                if pod["metadata"].get("deletionTimestamp"):
                    if not running or not running.end(grace):
                        self.remove(pod)
                elif not running and pod["status"].get("phase") not in ("Succeeded", "Failed"):
                    self._pods[uid] = _Pod(self, pod)
            for uid, running in list(self._pods.items()):
                if not running.is_alive():
                    del self._pods[uid]
                elif uid not in mine:
                    running.end(0)
            self.store.wait(("pods",), version, 30, self._stopped.is_set)

    def remove(self, pod: Object) -> None:
        """Take a deleted pod off the API server."""
        metadata = pod["metadata"]
        options = {"gracePeriodSeconds": 0, "preconditions": {"uid": metadata["uid"]}}
        with suppress(ApiError):
            self.store.delete("pods", metadata["namespace"], metadata["name"], options)

    def _follow_devices(self) -> None:
        shown: list[dict[str, int]] = []

        def news() -> bool:
            return [self.kubelet.capacity(), self.kubelet.allocatable()] != shown

        def edit(node: Object) -> None:
            for key, counts in zip(("capacity", "allocatable"), shown, strict=True):
                node["status"][key] |= {name: canonical(count) for name, count in counts.items()}

        while not self._stopped.is_set():
            with suppress(TimeoutError):
                self.kubelet.wait(news, 1)
            shown[:] = self.kubelet.capacity(), self.kubelet.allocatable()
            self.store.edit("nodes", "", self.name, edit)

    def _follow_drivers(self) -> None:
        follow_drivers(self.host / "var/lib/kubelet/plugins_registry", self._stopped)

    def _follow_manifests(self) -> None:
        directory, stamps, wanted = self.host / "etc/kubernetes/manifests", None, {}
        while not self._stopped.is_set():
            # Like kubelet: every file counts that is not hidden, whatever its suffix.
            files = sorted(path for path in directory.iterdir() if path.is_file() and not path.name.startswith("."))
            latest = [(path, path.stat().st_mtime_ns, path.stat().st_ino) for path in files]
            if latest != stamps:
                stamps, wanted = latest, self._manifests(files)
            for pod in self.store.all("pods"):
                annotations, name = pod["metadata"].get("annotations", {}), pod["metadata"]["name"]
                if pod["spec"].get("nodeName") != self.name or _MIRROR not in annotations:
                    continue
                if name not in wanted or wanted[name]["metadata"]["annotations"][_MIRROR] != annotations[_MIRROR]:
                    with suppress(ApiError):
                        self.store.delete("pods", pod["metadata"]["namespace"], name)
            for name, pod in wanted.items():
                if not self.store.find("pods", pod["metadata"]["namespace"], name):
                    self.store.create("pods", pod["metadata"]["namespace"], pod)
            self._stopped.wait(0.25)

    def _manifests(self, files: list[Path]) -> dict[str, Object]:
        pods = {}
        for path in files:
            try:
                pod = yaml.safe_load(path.read_text())
                digest = hashlib.md5(json.dumps(pod, sort_keys=True).encode(), usedforsecurity=False).hexdigest()
                pod["metadata"] = dict(pod["metadata"]) | {"name": f"{pod['metadata']['name']}-{self.name}"}
                pod["metadata"].setdefault("namespace", "default")
                marks = {_MIRROR: digest, "kubernetes.io/config.hash": digest, "kubernetes.io/config.source": "file"}
                pod["metadata"]["annotations"] = (pod["metadata"].get("annotations") or {}) | marks
                pod["spec"] = dict(pod["spec"]) | {"nodeName": self.name}
                pod.pop("status", None)
                pods[pod["metadata"]["name"]] = pod
            except (OSError, ValueError, yaml.YAMLError, TypeError, KeyError) as error:
                node = self.store.get("nodes", "", self.name)
                self.store.record("default", node, "FailedStaticPod", f"{path.name}: {error}", "kubelet")
        return pods


@dataclass(slots=True)
class _Container:
    """A container of a pod and what became of it so far."""

    spec: Object
    running: Running | None = None
    restarts: int = -1
    ready: bool = False
    started: bool = False
    state: Object = field(default_factory=lambda: {"waiting": {"reason": "ContainerCreating"}})
    last_state: Object = field(default_factory=dict)
    due: float = 0.0
    """When to start it (again), monotonic seconds."""
    exit_code: int | None = None
    """Set once it has ended for good."""
    probes: dict[str, tuple[float, int]] = field(default_factory=dict)
    """By kind: when to ask next, and how many answers in a row were like the last one: bad ones are negative."""

    def status(self) -> Object:
        status = {"name": self.spec["name"], "image": self.spec["image"], "imageID": self.spec["image"]}
        status |= {"ready": self.ready, "started": self.started, "restartCount": max(0, self.restarts)}
        return status | {
            "state": self.state,
            "lastState": self.last_state,
            "containerID": self.running.id if self.running else "",
        }


class _Pod:
    """One pod on a node, from admission to its end, on a thread of its own."""

    def __init__(self, agent: NodeAgent, pod: Object) -> None:
        self._agent, self._pod, self._spec = agent, pod, pod["spec"]
        self._namespace, self._name, self._uid = (pod["metadata"][key] for key in ("namespace", "name", "uid"))
        self._wake = os.eventfd(0, os.EFD_NONBLOCK)
        self._end_by: float | None = None
        self._directory = agent.host / "var/lib/kubelet/pods" / self._uid
        self._token = ""
        self._ip = agent.address if self._spec.get("hostNetwork") else agent.pod_ip()
        self._init = [_Container(item) for item in self._spec.get("initContainers", ())]
        self._containers = [_Container(item) for item in self._spec["containers"]]
        self._granted: dict[str, ContainerAllocation] = {}
        self._mounts: dict[str, Path] = {}
        self._started = now()
        self._lock = threading.Lock()
        self._thread = threading.Thread(target=self._run, name=f"pod {self._name}", daemon=True)
        self._thread.start()

    def end(self, grace: float) -> bool:
        """End the pod: its processes get ``grace`` seconds. False when it has ended before."""
        wanted = time.monotonic() + grace
        with self._lock:
            if self._wake < 0:
                return False
            if self._end_by is None or wanted < self._end_by - 1:
                self._end_by = wanted
                os.eventfd_write(self._wake, 1)
            return True

    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def join(self) -> None:
        self._thread.join()

    def _run(self) -> None:
        agent = self._agent
        try:
            asked = [
                tuple(Container(item.spec["name"], _devices(item.spec)) for item in group)
                for group in (self._containers, self._init)
            ]
            admitted = PodSpec(self._namespace, self._name, self._uid, *asked)
            try:
                self._live(admitted)
            finally:
                agent.kubelet.remove(admitted)
        finally:
            agent.api.revoke(self._token)
            shutil.rmtree(self._directory, ignore_errors=True)
            with self._lock:
                os.close(self._wake)
                self._wake = -1
                removed = self._end_by is not None
        if removed:
            agent.remove(self._pod)

    def _live(self, admitted: PodSpec) -> None:
        while self._end_by is None:
            try:
                self._granted = self._agent.kubelet.admit(admitted)
                break
            except AdmissionError as error:
                self._publish("Failed", "UnexpectedAdmissionError", f"Pod was rejected: {error}")
                self._event("UnexpectedAdmissionError", str(error))
                return
            except ContainerStartError as error:
                self._trouble("CreateContainerError", str(error), "Failed")
        while self._end_by is None:
            try:
                self._prepare()
                break
            except ContainerError as error:
                self._trouble("ContainerCreating", str(error), error.reason)
        for group in ([item] for item in self._init):
            if self._run_group(group, restart=self._spec["restartPolicy"] != "Never", final=False):
                break
        else:
            failed = self._run_group(self._containers, restart=True, final=True)
            if self._end_by is None:
                self._publish("Failed" if failed else "Succeeded")
            return
        if self._end_by is None:
            self._publish("Failed")

    def _trouble(self, waiting: str, message: str, event: str) -> None:
        """Say why the pod does not start, and wait a little before the next try."""
        for item in self._containers:
            item.state = {"waiting": {"reason": waiting, "message": message}}
        self._publish("Pending")
        self._event(event, message)
        self._sleep(time.monotonic() + 1)

    def _prepare(self) -> None:
        """Directories, mounts and credentials. Raises ContainerError."""
        agent, metadata = self._agent, self._pod["metadata"]
        self._runtime()
        self._directory.mkdir(parents=True, exist_ok=True)
        for volume in self._spec.get("volumes", ()):
            self._mounts[volume["name"]] = self._volume(volume)
        agent.log_path(self._pod, "").parent.mkdir(parents=True, exist_ok=True)
        if self._spec.get("automountServiceAccountToken", True) and not self._token:
            account = f"system:serviceaccount:{metadata['namespace']}:{self._spec['serviceAccountName']}"
            self._token = agent.api.token(account)
            secrets = self._directory / "serviceaccount"
            secrets.mkdir()
            contents = {"token": self._token, "ca.crt": agent.api.authority.pem, "namespace": metadata["namespace"]}
            for name, text in contents.items():
                (secrets / name).write_text(text)

    def _volume(self, volume: Object) -> Path:
        place: Path = self._directory / "volumes" / volume["name"]
        if "emptyDir" in volume:
            place.mkdir(parents=True, exist_ok=True)
            return place
        for key, plural, name in (("configMap", "configmaps", "name"), ("secret", "secrets", "secretName")):
            if key in volume:
                return self._projected(place, plural, volume[key][name])
        if "hostPath" not in volume:
            why = f"the simulated node does not offer volumes of type {sorted(set(volume) - {'name'})}"
            raise ContainerError("FailedMount", why)
        path, type_ = volume["hostPath"]["path"], volume["hostPath"].get("type", "")
        place = self._agent.host / path.lstrip("/")
        if type_ == "DirectoryOrCreate":
            place.mkdir(parents=True, exist_ok=True)
        elif type_ == "FileOrCreate":
            place.touch()
        checks = {"Directory": place.is_dir, "File": place.is_file, "Socket": place.is_socket}
        if type_ in checks and not checks[type_]():
            why = f'MountVolume.SetUp failed for volume "{volume["name"]}" : hostPath type check failed'
            raise ContainerError("FailedMount", f"{why}: {path} is not a {type_.lower()}")
        return place

    def _projected(self, place: Path, plural: str, name: str) -> Path:
        """A volume with a file for each entry of a ConfigMap or Secret, as it is now."""
        found = self._agent.store.find(plural, self._namespace, name)
        if found is None:
            why = f'MountVolume.SetUp failed for volume "{place.name}" : {plural[:-1]} "{name}" not found'
            raise ContainerError("FailedMount", why)
        place.mkdir(parents=True, exist_ok=True)
        for key, value in (found.get("data") or {}).items():
            (place / key).write_bytes(base64.b64decode(value) if plural == "secrets" else value.encode())
        return place

    def _runtime(self) -> Object:
        """The pod's runtime as containerd knows it. Raises ContainerError when it does not."""
        default, known = runtimes(self._agent.host / RUNNING_CONFIG)
        handler = default
        if self._spec.get("runtimeClassName"):
            handler = self._agent.store.get("runtimeclasses", "", self._spec["runtimeClassName"])["handler"]
        if handler not in known:
            why = f'failed to get sandbox runtime: no runtime for "{handler}" is configured'
            why = f"Failed to create pod sandbox: rpc error: code = Unknown desc = {why}"
            raise ContainerError("FailedCreatePodSandBox", why)
        runtime: Object = known[handler]
        return runtime

    def _run_group(self, group: list[_Container], restart: bool, final: bool) -> bool:
        """Run containers until all have ended for good, or the pod ends; whether one failed."""
        while self._end_by is None and any(item.exit_code is None for item in group):
            moment = time.monotonic()
            for item in group:
                if item.running and (code := item.running.poll()) is not None:
                    self._ended(item, code, restart, final)
                if not item.running and item.exit_code is None and item.due <= moment:
                    self._start(item)
                if item.running:
                    self._probe(item)
            self._publish("Running" if final else "Pending")
            self._sleep(min([self._next(item) for item in group if item.exit_code is None], default=moment), group)
        self._terminate(group)
        return any(item.exit_code for item in group)

    def _next(self, item: _Container) -> float:
        if not item.running:
            return item.due
        return min((when for when, _ in item.probes.values()), default=float("inf"))

    def _sleep(self, until: float, group: list[_Container] | None = None) -> None:
        """Until a moment, or until a container ends, or the pod is told to end."""
        poll = select.poll()
        for descriptor in (self._wake, *(item.running.fileno() for item in group or () if item.running)):
            poll.register(descriptor, select.POLLIN)
        left = max(0.0, until - time.monotonic())
        poll.poll(None if left == float("inf") else left * 1000)

    def _start(self, item: _Container) -> None:
        agent = self._agent
        pod = self._pod | {"status": {"podIP": self._ip, "hostIP": agent.address}}
        log = agent.log_path(self._pod, item.spec["name"])
        item.restarts += 1
        if item.restarts and log.exists():
            log.replace(log.with_suffix(PREVIOUS))
        try:
            granted = self._granted[item.spec["name"]]
            mounts = Mounts(
                {entry["mountPath"]: self._mounts[entry["name"]] for entry in item.spec.get("volumeMounts", ())}
                | {entry.container_path: agent.place(entry.host_path) for entry in granted.mounts}
                | ({IMAGE_LIBRARIES: native.build()} if IMAGE_LIBRARIES in str(item.spec.get("command")) else {})
                | ({SERVICE_ACCOUNT: self._directory / "serviceaccount"} if self._token else {})
            )
            base = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(agent.api.port)}
            base |= {"HOSTNAME": self._name, "PATH": PATH, "HOME": str(self._directory)}
            env = environment(item.spec, pod, base | dict(granted.envs))
            words = [*item.spec.get("command", ()), *item.spec.get("args", ())]
            if not words:
                raise ContainerError("CreateContainerError", "an image is not simulated: give the container a command")
            argv = [mounts.rewrite(expand(word, env)) for word in words]
            env = {key: value if base.get(key) == value else mounts.rewrite(value) for key, value in env.items()}
            env[cgroups.POD] = self._uid
            if self._spec.get("hostPID"):
                env["LD_PRELOAD"] = str(cgroups.build(self._directory))
            env |= gpu_environment(env, self._runtime(), agent.host, self._directory)
            if env.get("NVIDIA_VISIBLE_DEVICES") == "void":
                env |= device_environment(granted.devices, agent.host)
            if Path(argv[0]).name == "kube-scheduler":
                item.running = _SchedulerContainer(agent, argv, mounts, self._ip, log)
            else:
                own = self._directory / item.spec["name"]
                own.mkdir(exist_ok=True)
                found = [(agent.place(entry.host_path), entry) for entry in granted.mounts]
                argv, more, note = enclosed(argv, found, own)
                with log.open("a") as file:
                    file.write(note)
                item.running = Process(argv, env | more, self._directory, log)
        except ContainerError as error:
            item.state = {"waiting": {"reason": error.reason, "message": str(error)}}
            item.due = time.monotonic() + _backoff(item.restarts)
            self._event("Failed", f"Error: {error}")
            return
        item.state = {"running": {"startedAt": now()}}
        moment = time.monotonic()
        for kind in ("startup", "liveness", "readiness"):
            if f"{kind}Probe" in item.spec:
                item.probes[kind] = (moment + item.spec[f"{kind}Probe"].get("initialDelaySeconds", 0), 0)
        item.started = "startup" not in item.probes
        item.ready = item.started and "readiness" not in item.probes

    def _ended(self, item: _Container, code: int, restart: bool, final: bool) -> None:
        assert item.running
        reason = "Completed" if code == 0 else "Error"
        began = item.state.get("running", {}).get("startedAt", now())
        times = {"startedAt": began, "finishedAt": now()}
        item.state = {"terminated": {"exitCode": code, "reason": reason, "containerID": item.running.id} | times}
        item.running.close()
        item.running, item.ready, item.started = None, False, False
        item.probes.clear()
        policy = self._spec["restartPolicy"]
        if restart and ((policy == "Always" and final) or (policy != "Never" and code != 0)):
            pause = _backoff(item.restarts)
            item.last_state, item.due = item.state, time.monotonic() + pause
            whose = f"container={item.spec['name']} pod={self._name}_{self._namespace}"
            why = f"back-off {pause:g}s restarting failed {whose}"
            item.state = {"waiting": {"reason": "CrashLoopBackOff", "message": why}}
        else:
            item.exit_code = code

    def _probe(self, item: _Container) -> None:
        """Ask the probes that are due; a failed liveness or startup probe ends the container."""
        for kind, (when, streak) in list(item.probes.items()):
            if when > time.monotonic() or (kind != "startup" and "startup" in item.probes):
                continue
            probe = item.spec[f"{kind}Probe"]
            failure = _ask(probe, item.spec, self._ip)
            streak = min(streak, 0) - 1 if failure else max(streak, 0) + 1
            period = float(probe.get("periodSeconds", 10))
            eager = failure and kind != "liveness" and not (kind == "readiness" and item.ready)
            item.probes[kind] = (time.monotonic() + (min(period, _EAGER) if eager else period), streak)
            if not failure:
                if kind == "startup":
                    del item.probes[kind]
                    item.started = True
                    item.ready = "readiness" not in item.probes
                elif kind == "readiness" and streak >= probe.get("successThreshold", 1):
                    item.ready = True
            elif kind == "readiness" and -streak >= probe.get("failureThreshold", 3):
                item.ready = False
            elif kind == "liveness" and -streak >= probe.get("failureThreshold", 3) and item.running:
                self._event("Unhealthy", f"Liveness probe failed: {failure}")
                self._event("Killing", f"Container {item.spec['name']} failed liveness probe, will be restarted")
                item.running.end(force=False)

    def _terminate(self, group: list[_Container]) -> None:
        """End what still runs: asked first, killed at the deadline."""
        for item in group:
            if item.running:
                item.running.end(force=False)
        with suppress(BlockingIOError):
            os.eventfd_read(self._wake)
        for item in group:
            while item.running and item.running.poll() is None:
                if self._end_by is None or time.monotonic() >= self._end_by:
                    item.running.end(force=True)
                left = max(0.0, (self._end_by or 0) - time.monotonic()) or 0.05
                select.select([item.running.fileno(), self._wake], [], [], left)
                with suppress(BlockingIOError):
                    os.eventfd_read(self._wake)
            if item.running:
                item.running.close()
                item.running = None

    def _publish(self, phase: str, reason: str = "", message: str = "") -> None:
        ready = bool(self._containers) and all(item.ready for item in self._containers)

        def edit(pod: Object) -> None:
            if pod["metadata"]["uid"] != self._uid:
                # A namesake: ours is gone.
                return
            status = pod["status"]
            status |= {"phase": phase, "hostIP": self._agent.address, "podIP": self._ip, "podIPs": [{"ip": self._ip}]}
            status |= {"startTime": self._started} | ({"reason": reason, "message": message} if reason else {})
            status["containerStatuses"] = [item.status() for item in self._containers]
            if self._init:
                status["initContainerStatuses"] = [item.status() for item in self._init]
            set_condition(pod, "Initialized", str(all(item.exit_code == 0 for item in self._init)))
            set_condition(pod, "ContainersReady", str(ready), "" if ready else "ContainersNotReady")
            set_condition(pod, "Ready", str(ready), "" if ready else "ContainersNotReady")

        self._agent.store.edit("pods", self._namespace, self._name, edit)

    def _event(self, reason: str, message: str) -> None:
        self._agent.store.record(self._namespace, self._pod, reason, message, "kubelet")


def _backoff(restarts: int) -> float:
    """Seconds before the next start: what kubelet does, fifty times as fast."""
    return float(min(_BACKOFF_FIRST * 2**restarts, _BACKOFF_MOST))


def _devices(container: Object) -> dict[str, int]:
    """Extended resources of a container: the ones with a domain."""
    limits = (container.get("resources") or {}).get("limits") or {}
    return {name: int(quantity(value)) for name, value in limits.items() if "/" in name}


def _ask(probe: Object, container: Object, ip: str) -> str:
    """Why an httpGet probe fails, empty when it does not."""
    get = probe.get("httpGet")
    if not get:
        return f"the simulated node offers httpGet probes only, not {sorted(probe)}"
    port = get["port"]
    if isinstance(port, str):
        port = next(item["containerPort"] for item in container.get("ports", ()) if item.get("name") == port)
    address, timeout = get.get("host", ip), float(probe.get("timeoutSeconds", 1))
    connection = (
        http.client.HTTPSConnection(address, port, timeout=timeout, context=ssl._create_unverified_context())
        if get.get("scheme") == "HTTPS"
        else http.client.HTTPConnection(address, port, timeout=timeout)
    )
    try:
        connection.request("GET", get.get("path", "/"))
        code = connection.getresponse().status
        return "" if 200 <= code < 400 else f"HTTP probe failed with statuscode: {code}"
    except (OSError, http.client.HTTPException) as error:
        return f"Get {address}:{port}{get.get('path', '/')}: {error}"
    finally:
        connection.close()


class _SchedulerContainer:
    """A kube-scheduler container: the scheduler loop of this process."""

    def __init__(self, agent: NodeAgent, argv: list[str], mounts: Mounts, address: str, log: Path) -> None:
        self._fd = os.eventfd(0)
        self._code: int | None = None
        self._log = log
        self.id = f"thread://kube-scheduler-{agent.name}"
        self._scheduler: Scheduler | None = None
        try:
            store, authority = agent.store, agent.api.authority
            self._scheduler = Scheduler(store, authority, agent.name, argv, mounts.seen, address, self._say)
            self._scheduler.start()
        except (ConfigError, OSError) as error:
            self._say(f'"command failed" err="{error}"')
            self._finish(1)

    def _say(self, line: str) -> None:
        with self._log.open("a") as file:
            file.write(f"{now(micro=True)} {line}\n")

    def _finish(self, code: int) -> None:
        self._code = code
        os.eventfd_write(self._fd, 1)

    def fileno(self) -> int:
        return self._fd

    def poll(self) -> int | None:
        return self._code

    def end(self, force: bool) -> None:
        if self._scheduler and self._code is None:
            self._scheduler.stop()
            self._finish(137 if force else 0)

    def close(self) -> None:
        os.close(self._fd)
