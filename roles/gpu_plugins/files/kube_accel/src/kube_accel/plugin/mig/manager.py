# SPDX-License-Identifier: Apache-2.0
"""Has the node's GPUs cut by MIG as its label says, as NVIDIA's MIG manager does, and reports the outcome."""

from __future__ import annotations

import json
import logging
import math
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from kube_accel import exclusions
from kube_accel.kube.single_object import SingleObjectStore
from kube_accel.mig.process import Cut, CutError, cut
from kube_accel.model import DriverState
from kube_accel.nvml.gpus import HeldGpus
from kube_accel.plugin.configuration.options import MigOptions
from kube_accel.plugin.kubelet.holdings import Lister
from kube_accel.plugin.mig import affected
from kube_accel.plugin.mig.affected import State
from kube_accel.plugin.mig.begun import Begun, BegunStore
from kube_accel.plugin.mig.drain import Drain
from kube_accel.plugin.mig.outcomes import FailedError, WaitingError
from kube_accel.shared.api_json import ODD, checked, unreadable
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
_BEFORE = "before"
_HOLDER = "mig"


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
        self._drain = Drain(options, node, lister)
        self._store = BegunStore(state_dir)
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
                remedy = f"see kubectl get node {self._node} --output=yaml, and correct it"
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
        with self._store.alone() as alone:
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
        return marks or self._store.exists()

    def _apply(self, client: KubeClient, name: str, text: str | None) -> None:
        try:
            self._bring(client, name, text)
        except OSError as error:  # a full disk, no process to be had
            self._wait(client, name, text, WaitingError(str(error)))
            self._again = _AGAIN

    def _bring(self, client: KubeClient, name: str, text: str | None) -> None:
        try:
            if text is None:
                raise FailedError(f"--mig-configs {self._options.configs} cannot be read")
            changed = self._attempt(client, name, text)
        except WaitingError as why:
            self._wait(client, name, text, why)
            return
        except FailedError as why:
            back = self._put_back()
            self._release(client)
            self._report_state(client, State.FAILED, text)
            self._send_event(
                client, "Warning", "MigConfigFailed", f"MIG configuration {name} is not applied: {why}{back}"
            )
            self._dealt = _Dealt((name, text))
            return
        self._store.remove()
        self._release(client)
        self._report_state(client, State.SUCCESS, text)
        if changed:
            self._send_event(client, "Normal", "MigConfigApplied", f"the GPUs are cut by MIG configuration {name}")
        self._dealt, self._sent = _Dealt((name, text)), ""

    def _wait(self, client: KubeClient, name: str, text: str | None, why: WaitingError) -> None:
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
        """Cut the GPUs; return False when there was nothing to do. Raises WaitingError, FailedError."""
        planned = self._planned(name, text)
        if not planned.changed:
            return False
        checksum = affected.checksum(text)
        known = self._store.read()
        begun = known or Begun(name, checksum, planned.before)
        if (begun.config, begun.text) != (name, checksum):
            begun = replace(begun, config=name, text=checksum, boot="")
        if planned.switched and begun.boot and begun.boot == _boot_id(self._options.proc_root):
            raise WaitingError("a GPU changes its MIG mode with the next reboot of the node", State.REBOOTING, True)
        self._report_state(client, State.PENDING, text)
        pods = affected.in_the_way(self._drain.pods(client), self._drain.listed(), planned.going)
        self._drain.check(pods)
        self._store.write(begun)  # before the node is cordoned: it is where a full disk shows
        try:
            self._clear(client, name, text, planned)
        except WaitingError as why:
            if known is None and not why.cordoned:
                self._store.remove()
            raise
        done = self._cut(name, text)
        if done.reboot:
            self._await_reboot(done, begun)
        if done.reset:
            raise WaitingError(
                f"{', '.join(done.reset)} cannot be reset, because something on the host holds it open: stop that "
                "(nvidia-persistenced, nvidia-dcgm) or reset the GPU; the node stays cordoned",
                cordoned=True,
            )
        return True

    def _clear(self, client: KubeClient, name: str, text: str, planned: Cut) -> None:
        """Have no pod use what goes. Raises WaitingError, FailedError."""
        self._hold(client, name)
        self._stop.wait(_SCHEDULER)
        self._drain.empty(client, planned, self._stop)
        if self._quiesced():
            raise WaitingError(self._gpus.snapshot().detail, cordoned=True)
        in_use = self._planned(name, text).in_use
        if in_use:
            raise WaitingError(f"processes of no pod use GPUs: {'; '.join(in_use)}; end them")
        if self._stop.is_set():
            raise WaitingError("the plugin is stopped", cordoned=True)

    def _await_reboot(self, done: Cut, begun: Begun) -> None:
        gpus = ", ".join(done.reboot)
        if begun.boot:
            raise FailedError(f"the MIG mode of {gpus} did not change with a reboot")
        self._store.write(replace(begun, boot=_boot_id(self._options.proc_root)))
        raise WaitingError(f"reboot the node, for the MIG mode of {gpus} to change", State.REBOOTING, True)

    def _planned(self, name: str, text: str) -> Cut:
        try:
            return _usable(cut(text, name, check=True, timeout=_CUT, excluded=self._excluded))
        except CutError as error:
            raise FailedError(str(error)) from error

    def _cut(self, name: str, text: str) -> Cut:
        """Cut the GPUs while our own plugin does not hold them open."""
        try:
            self._gpus.quiesce(_CUT + 60, _HOLDER)
        except TimeoutError as error:
            self._gpus.resume(_HOLDER)
            raise WaitingError(str(error), cordoned=True) from error
        try:
            return _usable(cut(text, name, check=False, timeout=_CUT, excluded=self._excluded))
        except CutError as error:
            raise FailedError(str(error)) from error
        finally:
            quiesced = self._gpus.snapshot()
            self._gpus.resume(_HOLDER)
            if quiesced.driver_state is DriverState.QUIESCED:
                self._gpus.wait(quiesced.version, _AGAIN)

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

    def _put_back(self) -> str:
        """Restore the geometry from before an interrupted cut; return why that failed, empty when it did not."""
        from kube_accel.shared.mig_geometry import as_document

        begun = self._store.read()
        self._store.remove()
        if begun is None:
            return ""
        text = json.dumps(as_document(_BEFORE, begun.before))
        try:
            if self._planned(_BEFORE, text).changed:
                self._cut(_BEFORE, text)
        except (WaitingError, FailedError) as error:
            return f"; the geometry from before cannot be put back: {error}"
        return ""


def _usable(done: Cut) -> Cut:
    if done.unavailable:
        raise WaitingError(done.unavailable)
    if done.refused:
        raise FailedError(done.refused)
    return done


def _boot_id(proc_root: Path) -> str:
    with suppress(OSError):
        return (proc_root / "sys/kernel/random/boot_id").read_text().strip()
    return ""
