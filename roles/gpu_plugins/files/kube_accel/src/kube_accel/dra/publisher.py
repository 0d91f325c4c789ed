# SPDX-License-Identifier: Apache-2.0
"""Keeps the ResourceSlices of the node as they should be, whoever changes or deletes them.

Kubelet deletes all slices of a node when it starts, and ours when no instance of the driver is connected for 30 s.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

from kube_accel.dra.changes import COUNTERS, Changes, Slice, changes, contents, dropped
from kube_accel.dra.checkpoint import CheckpointError
from kube_accel.dra.slices import CONSUMES, DRIVER, Device, in_slices, is_counters
from kube_accel.kube.api import ApiError, ApiRefusedError
from kube_accel.kube.client import KubeClient
from kube_accel.kube.watch import Watch, Watched
from kube_accel.shared.api_json import ANY, ApiJsonError, shaped
from kube_accel.shared.fixed_shares import fixed_shares
from kube_accel.shared.gpu_givers import SLICES_PATH, driver_offers, plugin_offers
from kube_accel.shared.modes import dra_pool
from kube_accel.shared.printable import line

_log = logging.getLogger(__name__)

_SPEC: Final = {
    "driver!": str,
    "pool!": {"name!": str, "generation!": int},
    "devices": [{"name!": str, "taints": [{"key!": str, ANY: str}]}],
    COUNTERS: [{"name!": str}],
}
_SHAPE: Final = {"metadata!": {"name!": str, "uid!": str, "resourceVersion!": str}, "spec!": _SPEC}
_TRIED: Final = {"spec!": _SPEC}
"""What is not stored has no version."""
_LOOK: Final = 15.0
"""Seconds after which the node is looked at again though nothing changed."""
_SOON: Final = 5.0
"""The same while something else serves its GPUs."""
_TURN: Final = 0.5
"""Seconds from one look to the next whether another instance has ended that publishes."""
_BACK_OFF: Final = (0.2, 10.0)
_NODE: Final = {"metadata!": {"uid!": str, "labels": {ANY: str}}, "status": {"allocatable": {ANY: str}}}
_GONE: Final = 404
_CONFLICT: Final = 409
_INVALID: Final = 422
_MOST_DIGITS: Final = 20
"""Of 64 bits."""


class NodeSlices:
    """The slices of the node, of all drivers, as a watch has them."""

    def __init__(self, on_change: Callable[[], None]) -> None:
        self._lock = threading.Lock()
        self._slices: dict[str, Slice] = {}
        self._seen = 0
        """The latest version that the watch brought."""
        self._on_change = on_change

    def keep(self, item: dict[str, Any]) -> str | None:
        """Note that a slice is there. An older version than ours is left. Raises ApiJsonError."""
        name, version = str(shaped(item, _SHAPE)["metadata"]["name"]), _version(item)
        ours = item["spec"]["driver"] == DRIVER
        with self._lock:
            self._seen = max(self._seen, version)
            if not ours or name not in self._slices or version > _version(self._slices[name]):
                self._slices[name] = item
        self._on_change()
        return name

    def correct(self, item: dict[str, Any]) -> None:
        """Note what there is, whatever was known: an API server that was restored counts from before."""
        with self._lock:
            self._seen = _version(item)
            self._slices[item["metadata"]["name"]] = item

    def drop(self, item: dict[str, Any]) -> None:
        """Note that a slice is gone. Raises ApiJsonError."""
        version = _version(item)
        with self._lock:
            self._seen = max(self._seen, version)
        self.lose(item["metadata"]["name"])

    def written(self, item: dict[str, Any]) -> None:
        """Note what a write of ours made. Once the watch is past it, the watch knows better: it may be gone."""
        name, version = item["metadata"]["name"], _version(item)
        with self._lock:
            if version > self._seen:
                self._slices[name] = item

    def keys(self) -> set[str]:
        """Return the names of all."""
        with self._lock:
            return set(self._slices)

    def lose(self, key: str) -> None:
        """Note that a new list does not have a slice."""
        with self._lock:
            self._slices.pop(key, None)
        self._on_change()

    def of_pool(self, name: str) -> list[Slice]:
        """Return our slices of a pool."""
        specs = ((each, each["spec"]) for each in self._all())
        return [each for each, spec in specs if (spec["driver"], spec["pool"]["name"]) == (DRIVER, name)]

    def other_drivers(self) -> list[str]:
        """Return the names of the DRA drivers of others that give away GPUs of the node."""
        return [name for name in driver_offers(self._all()) if name != DRIVER]

    def _all(self) -> list[Slice]:
        with self._lock:
            return list(self._slices.values())


class Publisher:
    """Writes slices, and only what differs. One instance of the node does so at a time."""

    def __init__(
        self,
        client: KubeClient,
        node: str,
        state_dir: Path,
        wanted: Callable[[bool, bool, bool, int], Sequence[Device] | None],
    ) -> None:
        """``wanted`` is told whether taints and counters are kept, whether all is withheld, and of fixed shares.

        It returns the devices and sets of counters, None while they are not known.
        """
        self._client = client
        self._node = node
        self._lock_file = state_dir / "publisher.lock"
        self._wanted = wanted
        self._wake = threading.Event()
        self._accepted: dict[str, Sequence[Device]] = {}
        """What the API server made of devices that it did not store as they were."""
        self._keeps_taints: bool | None = None
        self._keeps_counters: bool | None = None
        """None until it was tried."""
        self.slices = NodeSlices(self._wake.set)
        self.watch = Watch(client, Watched(SLICES_PATH, {"fieldSelector": f"spec.nodeName={node}"}), self.slices)
        self.problem = "the slices are not written yet"
        """Why they are not as they should be; empty when they are."""
        self.obstacle = ""
        """What else serves the node's GPUs, so that ours are withheld."""
        self.fixed = 0
        """Into how many equal shares the node's label has each GPU cut; 0 for none."""
        self.dropped: frozenset[str] = frozenset()
        """Fields of devices that this cluster does not keep."""

    def wake(self) -> None:
        """Compare again: what is wanted may have changed. Returns at once."""
        self._wake.set()

    def run(self, stop: threading.Event) -> None:
        """Keep them until stopped; they stay then, for a successor. Raises OSError."""
        file = os.open(self._lock_file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            if self._take_turn(file, stop):
                self._keep(stop)
        finally:
            os.close(file)

    def _keep(self, stop: threading.Event) -> None:
        while not self.watch.synced.wait(_TURN):
            if stop.is_set():
                return
        pause = _BACK_OFF[0]
        while not stop.is_set():
            self._wake.clear()
            try:
                self.problem, pause = self._publish(), _BACK_OFF[0]
            except (ApiError, ApiJsonError, CheckpointError, OSError) as error:
                if pause == _BACK_OFF[0]:
                    _log.warning("slices are not written", extra={"pool": dra_pool(self._node), "reason": str(error)})
                self.problem = f"slices are not written: {error}"
                if isinstance(error, ApiRefusedError) and error.status == _CONFLICT:
                    self._reread()
                stop.wait(pause)
                self._wake.set()
                pause = min(pause * 2, _BACK_OFF[1])
            self._wake.wait(_SOON if self.obstacle else _LOOK)

    def holdings_changed(self) -> None:
        """Compare again if that depends on what is prepared. Returns at once."""
        if self._keeps_taints is False:
            self._wake.set()

    def stop(self) -> None:
        """Have ``run`` look whether it is to end."""
        self._wake.set()

    def _reread(self) -> None:
        """Take the slices from the API server, which knows others than we do."""
        for each in self.slices.of_pool(dra_pool(self._node)):
            try:
                self.slices.correct(shaped(self._client.get(_at(each)), _SHAPE))
            except ApiRefusedError as error:
                if error.status == _GONE:
                    self.slices.lose(each["metadata"]["name"])
            except (ApiError, ApiJsonError):
                return

    def _take_turn(self, file: int, stop: threading.Event) -> bool:
        """Wait until no other instance publishes; return False when stopped before."""
        look_at = 0.0
        while not stop.is_set():
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                self.problem = ""  # the other one's
                if self.watch.synced.is_set() and time.monotonic() >= look_at:
                    look_at = time.monotonic() + _LOOK
                    # Kubelet may call this one, too.
                    with suppress(ApiError, ApiJsonError):
                        self._see_others(self._read_node())
                stop.wait(_TURN)
            else:
                return True
        return False

    def _publish(self) -> str:
        """Write what differs; return why nothing can be. Raises ApiError, ApiJsonError."""
        node = self._read_node()
        self._see_others(node)
        wanted = self._wanted(
            self._keeps_taints is not False, self._keeps_counters is not False, bool(self.obstacle), self.fixed
        )
        if wanted is None:
            return "no GPU was read yet"
        stored = self.slices.of_pool(dra_pool(self._node))
        if self.obstacle and not stored:
            return self.obstacle
        wanted_slices = in_slices(wanted)
        texts = [_text(each) for each in wanted_slices]
        self._accepted = {text: self._accepted[text] for text in texts if text in self._accepted}
        accepted = [self._accepted.get(text, each) for text, each in zip(texts, wanted_slices, strict=True)]
        needed = changes(stored, wanted_slices, accepted, self._node)
        if self._keeps_counters is None and any(map(is_counters, wanted)):
            self._try_counters(needed, node)
            if not self._keeps_counters:
                return self._publish()
        if self._keeps_taints is None and any("taints" in device for device in wanted):
            self._try_taints(needed, node)
            if not self._keeps_taints:
                return self._publish()
        self._apply(needed, wanted_slices, node)
        return self.obstacle

    def _read_node(self) -> dict[str, Any]:
        """Raises ApiError, ApiJsonError."""
        return shaped(self._client.get(f"/api/v1/nodes/{quote(self._node, safe='')}"), _NODE)

    def _try_counters(self, needed: Changes, node: Mapping[str, Any]) -> None:
        """Find out whether counters are kept, without a moment in which a GPU could be given away twice."""
        for body in needed.writes.values():
            sent = contents(body)
            if not any(is_counters(each) or CONSUMES in each for each in sent):
                continue
            try:
                lost = dropped(sent, _tried(self._write(body, node, trial=True)))
            except ApiRefusedError as error:
                # Kubernetes 1.34 wants sets of counters beside their devices.
                if error.status != _INVALID:
                    raise
                lost = frozenset({COUNTERS})
            if lost & {COUNTERS, CONSUMES}:
                self._keeps_counters = False
                self._note(lost)
                return
        self._keeps_counters = True

    def _try_taints(self, needed: Changes, node: Mapping[str, Any]) -> None:
        """Find out whether taints are kept, without a moment in which a sick GPU is offered."""
        for body in needed.writes.values():
            if any("taints" in device for device in contents(body)):
                answer = self._write(body, node, trial=True)
                self._keeps_taints = "taints" not in dropped(contents(body), _tried(answer))
                if not self._keeps_taints:
                    self._note(frozenset({"taints"}))
                return
        # What is stored has them.
        self._keeps_taints = True

    def _apply(self, needed: Changes, wanted: Sequence[Sequence[Device]], node: Mapping[str, Any]) -> None:
        for each in needed.delete:
            self._delete(each)
        for place, body in needed.writes.items():
            answer = self._write(body, node)
            lost = dropped(wanted[place], _contents(answer))
            if lost:
                self._accepted[_text(wanted[place])] = _contents(answer)
                self._note(lost)
                if "taints" in lost:
                    self._keeps_taints = False
                    self._wake.set()
                if lost & {COUNTERS, CONSUMES}:
                    self._keeps_counters = False
                    self._wake.set()
            self.slices.written(answer)
        if needed.delete or needed.writes:
            generations = {each["spec"]["pool"]["generation"] for each in self.slices.of_pool(dra_pool(self._node))}
            extra = {"pool": dra_pool(self._node), "slices": len(wanted), "generation": max(generations, default=0)}
            _log.info("slices written", extra=extra)

    def _write(self, body: Slice, node: Mapping[str, Any], trial: bool = False) -> dict[str, Any]:
        query = "?dryRun=All" if trial else ""
        if "name" in body["metadata"]:
            return self._client.put(_at(body) + query, body)
        uid = node["metadata"]["uid"]
        owner = {"apiVersion": "v1", "kind": "Node", "name": self._node, "uid": uid, "controller": True}
        return self._client.post(
            SLICES_PATH + query, {**body, "metadata": {**body["metadata"], "ownerReferences": [owner]}}
        )

    def _see_others(self, node: Mapping[str, Any]) -> None:
        """Look whether something else gives the GPUs away (``gpu_givers``). Read the label, too."""
        offered = ", ".join(map(line, plugin_offers(node)))
        drivers = ", ".join(self.slices.other_drivers())
        found = ""
        try:
            self.fixed = fixed_shares(node["metadata"].get("labels") or {})
        except ValueError as error:
            found = line(str(error))
        if offered:
            found = f"a device plugin offers {offered} on this node; remove that plugin"
        elif drivers:
            found = f"another DRA driver offers GPUs on this node: {drivers}; remove that driver"
        if found and found != self.obstacle:
            _log.error("GPUs are withheld", extra={"reason": found})
        self.obstacle = found

    def _delete(self, each: Slice) -> None:
        metadata = each["metadata"]
        conditions = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
        try:
            self._client.send("DELETE", _at(each), {"preconditions": conditions})
        except ApiRefusedError as error:
            if error.status != _GONE:
                raise
        self.slices.lose(metadata["name"])

    def _note(self, lost: frozenset[str]) -> None:
        if lost - self.dropped:
            extra = {"fields": sorted(lost), "remedy": "enable the feature gates of these fields, or leave them off"}
            _log.warning("the cluster does not keep fields of devices", extra=extra)
        self.dropped = self.dropped | lost


def _version(item: Mapping[str, Any]) -> int:
    """Return the resourceVersion. Of one kind of object, the API server counts them up (KEP-5504)."""
    found = str(item["metadata"]["resourceVersion"])
    if not found.isdecimal() or len(found) > _MOST_DIGITS:
        raise ApiJsonError(f"the API server's ResourceSlice has the resourceVersion {line(found)}, which is no number")
    return int(found)


def _contents(answer: Mapping[str, Any]) -> Sequence[Device]:
    return contents(shaped(answer, _SHAPE))


def _tried(answer: Mapping[str, Any]) -> Sequence[Device]:
    return contents(shaped(answer, _TRIED))


def _text(devices: Sequence[Device]) -> str:
    return json.dumps(devices, sort_keys=True)


def _at(each: Slice) -> str:
    return f"{SLICES_PATH}/{quote(each['metadata']['name'], safe='')}"
