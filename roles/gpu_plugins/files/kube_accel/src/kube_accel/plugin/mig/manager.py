# SPDX-License-Identifier: Apache-2.0
"""Has the node's GPUs cut by MIG as its label says, as NVIDIA's MIG manager does, and tells what became of it."""

from __future__ import annotations

import fcntl
import json
import logging
import math
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from kube_accel import exclusions
from kube_accel.files import write_whole
from kube_accel.kube.podresources import PodDevices, PodResourcesError
from kube_accel.kube.single_object import SingleObjectStore
from kube_accel.mig.process import Cut, CutError, cut
from kube_accel.model import DriverState
from kube_accel.nvml.gpus import HeldGpus
from kube_accel.plugin.configuration.options import MigOptions
from kube_accel.plugin.kubelet.holdings import Lister
from kube_accel.plugin.mig import affected
from kube_accel.plugin.mig.affected import State
from kube_accel.shared.api_json import ODD, checked, unreadable
from kube_accel.shared.holders import Pod
from kube_accel.shared.printable import line

if TYPE_CHECKING:
    from kube_accel.kube.client import KubeClient

_log = logging.getLogger(__name__)

_LOOK = 30.0
"""Seconds between two looks at the file of configurations, and at what the manager waits for."""
_AGAIN = 10.0
"""Seconds after which the API server is asked again."""
_AGAIN_RESET = 60.0
"""The same, where the GPUs have to be let go of for it."""
_SCHEDULER = 1.0
"""Seconds in which a scheduler may still place a pod on a node that has just been cordoned."""
_CUT = 120.0
"""Seconds that the driver may take."""
_EVICTING = 1.0
_TOO_MANY, _NOT_FOUND = 429, 404
_BEFORE = "before"
_PODS = "/api/v1/pods"
_HOLDER = "mig"


class _WaitingError(Exception):
    """It cannot be done yet; the message says why."""

    def __init__(self, message: str, state: State = State.PENDING, cordoned: bool = False) -> None:
        super().__init__(message)
        self.state, self.cordoned = state, cordoned


class _FailedError(Exception):
    """It cannot be done; the message says why."""


@dataclass(frozen=True, slots=True)
class _Begun:
    """A configuration that GPUs are being cut by, on disk for the daemon that goes on after a kill."""

    config: str = ""
    text: str = ""
    """Checksum of the configurations."""
    before: tuple[dict[str, Any], ...] = field(default=())
    """The geometry to put back."""
    boot: str = ""
    """The boot in which it was found to need another."""


_Asked = tuple[str, str | None]
"""Name and text of what is to be applied."""
_Geometry = frozenset[tuple[str, bool, tuple[str, ...]]]
"""UUID of each GPU, whether it is in MIG mode, and the profiles of its devices."""


@dataclass(slots=True)
class _Dealt:
    """What has been dealt with, and need not be again while it and the GPUs stay as they are."""

    asked: _Asked
    geometry: _Geometry | None = None
    """None until the GPUs have been seen after it."""
    until: float = math.inf

    def stands(self, asked: _Asked, geometry: _Geometry | None) -> bool:
        if self.geometry is None:
            self.geometry = geometry
        return self.asked == asked and geometry in (None, self.geometry) and time.monotonic() < self.until


class MigManager:
    """Follows the label from a thread of its own."""

    def __init__(self, options: MigOptions, node: str, state_dir: Path, gpus: HeldGpus, lister: Lister) -> None:
        self._options = options
        self._path = f"/api/v1/nodes/{quote(node, safe='')}"
        self._node = node
        self._gpus = gpus
        self._lister = lister
        self._lock = state_dir / "mig.lock"
        self._file = state_dir / "mig.json"
        self._excluded = state_dir / exclusions.FILE
        self._wake = threading.Event()
        self._stop = threading.Event()
        self._dealt: _Dealt | None = None
        """What was applied, or failed, or waits on a node that is cordoned for it."""
        self._said: State | None = None
        self._sent = ""
        self._again = _LOOK

    def wake(self) -> None:
        """Look again: pods may have released GPUs, or GPUs have changed. Returns at once."""
        self._wake.set()

    def run(self, client: KubeClient, stop: threading.Event) -> None:
        """Follow the label until stopped. A cut that has begun is brought to its end."""
        from kube_accel.kube.watch import Watch, Watched

        self._stop = stop
        watched = SingleObjectStore(self._wake.set)
        query = {"fieldSelector": f"metadata.name={self._node}"}
        node = Watched("/api/v1/nodes", query, metadata_only=True, odd=watched.odd)
        watch = Watch(client, node, watched)
        threading.Thread(target=partial(watch.run, stop), name="MIG label watch", daemon=True).start()
        while not stop.is_set():
            self._wake.wait(self._again if watch.synced.is_set() else 0.1)
            self._wake.clear()
            if not watch.synced.is_set() or stop.is_set():
                continue
            self._look(client, watched.item.get("metadata") or {})

    def _look(self, client: KubeClient, metadata: dict[str, Any]) -> None:
        """Bring the node's GPUs to what its label says, as far as that is to be had now."""
        from kube_accel.kube.api import ApiError

        self._again = _LOOK
        try:
            try:
                self._settle(client, metadata)
            except ODD as error:
                why = f"what the API server says {unreadable(error)}"
                remedy = f"see kubectl get node {self._node} --output=yaml, and mend it"
                self._send_event(
                    client, "Warning", "MigConfigWaiting", f"label {affected.LABEL} waits: {why}; {remedy}"
                )
                self._again = _AGAIN
        except (ApiError, OSError) as error:
            _log.warning("the MIG configuration is not looked after", extra={"reason": line(str(error))})
            self._again = _AGAIN

    def _settle(self, client: KubeClient, metadata: dict[str, Any]) -> None:
        name = (metadata.get("labels") or {}).get(affected.LABEL, "")
        if not name and self._dealt is None and not self._unfinished(metadata):
            return
        if self._quiesced():
            return  # who resets GPUs or replaces the driver; its end wakes us
        text = self._text() if name else ""
        geometry = self._geometry()
        if self._asked_again(client, metadata):
            self._dealt = None
        # Neither a reset nor the driver's reload nor a reboot leaves a GPU its devices.
        # And letting go of the GPUs changes the node, which wakes us.
        if self._dealt is not None and self._dealt.stands((name, text), geometry):
            self._again = min(_LOOK, self._dealt.until - time.monotonic())
            return
        self._dealt = None
        with self._alone() as alone:
            if not alone:
                self._again = _AGAIN
            elif name:
                self._apply(client, name, text)
            else:
                self._leave(client)

    def _text(self) -> str | None:
        """Return the configurations; None where they cannot be read."""
        try:
            return self._options.configs.read_text()
        except (OSError, ValueError):
            return None

    def _asked_again(self, client: KubeClient, metadata: dict[str, Any]) -> bool:
        """Return whether the state that we reported was set back to pending."""

        def pending(metadata: dict[str, Any]) -> bool:
            return (metadata.get("labels") or {}).get(affected.STATE_LABEL) == State.PENDING

        if self._said in (None, State.PENDING) or not pending(metadata):
            return False
        # What is watched may be older than what we said.
        return pending(self._read(client)["metadata"])

    def _quiesced(self) -> bool:
        """Return whether another command has NVML released."""
        return self._gpus.snapshot().driver_state is DriverState.QUIESCED

    def _geometry(self) -> _Geometry | None:
        """Return how the GPUs are cut; None where that is not known now."""
        snapshot = self._gpus.snapshot()
        if snapshot.driver_state is not DriverState.READY or snapshot.inventory is None:
            return None
        return frozenset(
            (gpu.uuid, gpu.mig_enabled, tuple(sorted(device.profile for device in gpu.mig_devices)))
            for gpu in snapshot.inventory.gpus
        )

    def _unfinished(self, metadata: dict[str, Any]) -> bool:
        marks = affected.CORDON in (metadata.get("annotations") or {}) or affected.STATE_LABEL in (
            metadata.get("labels") or {}
        )
        return marks or self._file.exists()

    def _apply(self, client: KubeClient, name: str, text: str | None) -> None:
        try:
            self._bring(client, name, text)
        except OSError as error:  # a full disk, no process to be had
            self._wait(client, name, text, _WaitingError(str(error)))
            self._again = _AGAIN

    def _bring(self, client: KubeClient, name: str, text: str | None) -> None:
        try:
            if text is None:
                raise _FailedError(f"--mig-configs {self._options.configs} cannot be read")
            changed = self._attempt(client, name, text)
        except _WaitingError as why:
            self._wait(client, name, text, why)
            return
        except _FailedError as why:
            back = self._put_back()
            self._release(client)
            self._report_state(client, State.FAILED, text)
            self._send_event(
                client, "Warning", "MigConfigFailed", f"MIG configuration {name} is not applied: {why}{back}"
            )
            self._dealt = _Dealt((name, text))
            return
        self._forget()
        self._release(client)
        self._report_state(client, State.SUCCESS, text)
        if changed:
            self._send_event(client, "Normal", "MigConfigApplied", f"the GPUs are cut by MIG configuration {name}")
        self._dealt, self._sent = _Dealt((name, text)), ""

    def _wait(self, client: KubeClient, name: str, text: str | None, why: _WaitingError) -> None:
        if why.cordoned:
            self._again = _AGAIN_RESET
            self._dealt = _Dealt((name, text), until=time.monotonic() + _AGAIN_RESET)
        else:
            self._release(client)
        self._report_state(client, why.state, text)
        self._send_event(client, "Warning", "MigConfigWaiting", f"MIG configuration {name} waits: {why}")

    def _leave(self, client: KubeClient) -> None:
        """Undo what was begun, and leave the GPUs as they are: the label asks for nothing."""
        self._put_back()
        self._release(client)
        self._report_state(client, None)
        self._dealt, self._sent = None, ""

    def _attempt(self, client: KubeClient, name: str, text: str) -> bool:
        """Cut the GPUs; return False when there was nothing to do. Raises _WaitingError, _FailedError."""
        planned = self._planned(name, text)
        if not planned.changed:
            return False
        checksum = affected.checksum(text)
        known = self._begun()
        begun = known or _Begun(name, checksum, planned.before)
        if (begun.config, begun.text) != (name, checksum):
            begun = replace(begun, config=name, text=checksum, boot="")
        if planned.switched and begun.boot and begun.boot == self._boot():
            raise _WaitingError("a GPU changes its MIG mode with the next reboot of the node", State.REBOOTING, True)
        self._report_state(client, State.PENDING, text)
        pods = affected.in_the_way(self._pods(client), self._listed(), planned.going)
        self._must_go(pods)
        self._remember(begun)  # before the node is cordoned: it is where a full disk shows
        try:
            self._clear(client, name, text, planned)
        except _WaitingError as why:
            if known is None and not why.cordoned:
                self._forget()
            raise
        done = self._cut(name, text)
        if done.reboot:
            self._await_reboot(done, begun)
        if done.reset:
            raise _WaitingError(
                f"{', '.join(done.reset)} cannot be reset, because something on the host holds it open: stop that "
                "(nvidia-persistenced, nvidia-dcgm) or reset the GPU; the node stays cordoned",
                cordoned=True,
            )
        return True

    def _clear(self, client: KubeClient, name: str, text: str, planned: Cut) -> None:
        """Have no pod use what goes. Raises _WaitingError, _FailedError."""
        self._hold(client, name)
        self._stop.wait(_SCHEDULER)
        self._empty(client, planned)
        if self._quiesced():
            raise _WaitingError(self._gpus.snapshot().detail, cordoned=True)
        in_use = self._planned(name, text).in_use
        if in_use:
            raise _WaitingError(f"processes of no pod use GPUs: {'; '.join(in_use)}; end them")
        if self._stop.is_set():
            raise _WaitingError("the plugin is stopped", cordoned=True)

    def _await_reboot(self, done: Cut, begun: _Begun) -> None:
        gpus = ", ".join(done.reboot)
        if begun.boot:
            raise _FailedError(f"the MIG mode of {gpus} did not change with a reboot")
        self._remember(replace(begun, boot=self._boot()))
        raise _WaitingError(f"reboot the node, for the MIG mode of {gpus} to change", State.REBOOTING, True)

    def _planned(self, name: str, text: str) -> Cut:
        try:
            return _usable(cut(text, name, check=True, timeout=_CUT, excluded=self._excluded))
        except CutError as error:
            raise _FailedError(str(error)) from error

    def _cut(self, name: str, text: str) -> Cut:
        """Cut the GPUs while our own plugin does not hold them open."""
        try:
            self._gpus.quiesce(_CUT + 60, _HOLDER)
        except TimeoutError as error:
            self._gpus.resume(_HOLDER)
            raise _WaitingError(str(error), cordoned=True) from error
        try:
            return _usable(cut(text, name, check=False, timeout=_CUT, excluded=self._excluded))
        except CutError as error:
            raise _FailedError(str(error)) from error
        finally:
            quiesced = self._gpus.snapshot()
            self._gpus.resume(_HOLDER)
            if quiesced.driver_state is DriverState.QUIESCED:
                self._gpus.wait(quiesced.version, _AGAIN)

    # --- pods ---------------------------------------------------------------------------------------------------------

    def _pods(self, client: KubeClient) -> list[dict[str, Any]]:
        from kube_accel.kube.watch import passing_over

        found: list[dict[str, Any]] = []
        for item in client.get(_PODS, {"fieldSelector": f"spec.nodeName={self._node}"}).get("items") or ():
            with passing_over(item, _PODS):
                found.append(checked(item))
        return found

    def _listed(self) -> tuple[PodDevices, ...]:
        try:
            return self._lister.list(timeout=5)
        except PodResourcesError as error:
            raise _WaitingError(str(error)) from error

    def _empty(self, client: KubeClient, planned: Cut) -> None:
        """Wait until no process holds what goes, and evict pods if that is wanted."""
        deadline = time.monotonic() + self._options.drain_timeout
        while True:
            items = self._pods(client)
            pods = affected.in_the_way(items, self._listed(), planned.going)
            staying = affected.leaving(self._read(client), items)
            if not pods and not staying:
                return
            self._must_go(pods)
            if time.monotonic() >= deadline:
                seconds = f"{self._options.drain_timeout:g} s"
                raise _FailedError(f"these pods are still there after {seconds}: {affected.named((*pods, *staying))}")
            for pod in pods:
                self._evict(client, pod)
            if self._stop.wait(_EVICTING):
                raise _WaitingError("the plugin is stopped", cordoned=True)

    def _must_go(self, pods: tuple[Pod, ...]) -> None:
        """Raise _WaitingError where these pods have to end by themselves."""
        if pods and not self._options.drain:
            raise _WaitingError(
                f"pods hold devices that would go: {affected.named(pods)}; applied when they have ended"
            )
        problem = affected.not_to_be_evicted(pods, self._options.drain_force)
        if problem:
            raise _WaitingError(problem)

    def _evict(self, client: KubeClient, pod: Pod) -> None:
        from kube_accel.kube.api import ApiRefusedError

        if not pod.uid:
            return  # gone, and kubelet has not noticed
        namespace, name = quote(pod.namespace, safe=""), quote(pod.name, safe="")
        metadata = {"name": pod.name, "namespace": pod.namespace}
        options = {"preconditions": {"uid": pod.uid}}
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata, "deleteOptions": options}
        try:
            client.post(f"/api/v1/namespaces/{namespace}/pods/{name}/eviction", body)
        except ApiRefusedError as error:
            # A disruption budget may let it go later.
            if error.status not in (_TOO_MANY, _NOT_FOUND):
                raise

    # --- what others see ----------------------------------------------------------------------------------------------

    def _read(self, client: KubeClient) -> dict[str, Any]:
        """Return the node as the API server has it. Raises ApiError, and ApiJsonError for what is no node."""
        return checked(client.get(self._path))

    def _hold(self, client: KubeClient, name: str) -> None:
        patch = affected.hold(self._read(client), name)
        if patch:
            client.patch(self._path, patch)

    def _release(self, client: KubeClient) -> None:
        patch = affected.release(self._read(client))
        if patch:
            client.patch(self._path, patch)

    def _report_state(self, client: KubeClient, state: State | None, text: str | None = None) -> None:
        """Report what became of these configurations."""
        node = self._read(client)
        patch = affected.report(node, state, text)
        if patch:
            client.patch(self._path, patch)
            label = (node["metadata"].get("labels") or {}).get(affected.LABEL, "")
            _log.info("MIG configuration", extra={"label": label, "state": state or "none"})
        self._said = state

    def _send_event(self, client: KubeClient, kind: str, reason: str, message: str) -> None:
        from kube_accel.kube import events

        if message == self._sent:
            return
        _log.log(logging.INFO if kind == "Normal" else logging.WARNING, "MIG", extra={"reason": message})
        events.send(client, events.of_node(self._node, kind, reason, message))
        self._sent = message

    # --- what outlives us ---------------------------------------------------------------------------------------------

    @contextmanager
    def _alone(self) -> Iterator[bool]:
        """Yield whether the other plugin of an upgrade is not at it."""
        with os.fdopen(os.open(self._lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)) as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                yield False
            else:
                yield True

    def _begun(self) -> _Begun | None:
        try:
            found = json.loads(self._file.read_text())
            return _Begun(found["config"], found.get("text", ""), tuple(found["before"]), found["boot"])
        except (OSError, ValueError, LookupError, TypeError, RecursionError):
            return None

    def _remember(self, begun: _Begun) -> None:
        write_whole(self._file, json.dumps(asdict(begun)), sync=True)

    def _forget(self) -> None:
        self._file.unlink(missing_ok=True)

    def _put_back(self) -> str:
        """Restore the geometry from before an interrupted cut; return why that failed, empty when it did not."""
        from kube_accel.shared.mig_geometry import as_document

        begun = self._begun()
        self._forget()
        if begun is None:
            return ""
        text = json.dumps(as_document(_BEFORE, begun.before))
        try:
            if self._planned(_BEFORE, text).changed:
                self._cut(_BEFORE, text)
        except (_WaitingError, _FailedError) as error:
            return f"; the geometry from before cannot be put back: {error}"
        return ""

    def _boot(self) -> str:
        with suppress(OSError):
            return (self._options.proc_root / "sys/kernel/random/boot_id").read_text().strip()
        return ""


def _usable(done: Cut) -> Cut:
    if done.unavailable:
        raise _WaitingError(done.unavailable)
    if done.refused:
        raise _FailedError(done.refused)
    return done
