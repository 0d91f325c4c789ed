# SPDX-License-Identifier: Apache-2.0
"""Looks whether a DRA driver gives away the node's GPUs: the plugin leaves them to it then (``gpu_givers``)."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Protocol

from kube_accel.shared.api_json import shaped
from kube_accel.shared.gpu_givers import SLICES_PATH, driver_offers

if TYPE_CHECKING:
    from kube_accel.kube.watch import Watch
    from kube_accel.plugin.node.condition_reporter import ConditionReporter

_log = logging.getLogger(__name__)

_SHAPE: Final = {"metadata!": {"name!": str}, "spec!": {"driver!": str, "devices": [{"name!": str}]}}
_FIRST_LOOK: Final = 3.0
"""Seconds that the API server has to tell of the slices. If it does not, the GPUs are offered: without it, nobody gives
them away twice, and pods that are there already need them after a reboot."""
_NOT_KNOWN: Final = "the API server has not told yet whether a DRA driver gives away the GPUs of this node"


class Options(Protocol):
    """What is said of the node."""

    @property
    def node_name(self) -> str:
        """Return the node's name."""

    @property
    def service_account_dir(self) -> Path:
        """Return where the account's token is."""

    @property
    def watch_slices(self) -> bool:
        """Return whether DRA drivers are looked for."""


class DraDrivers:
    """The DRA drivers with GPUs of the node, as a watch of its ResourceSlices has them."""

    def __init__(self, options: Options, condition: ConditionReporter, on_change: Callable[[], None]) -> None:
        self._options = options
        self._on_change = on_change
        self._condition = condition
        self._slices: dict[str, Mapping[str, Any]] = {}
        """What ``driver_offers`` goes by of each, by name; a slice may have 128 devices."""
        self._lock = threading.Lock()
        self._looked = False
        self._obstacle = _NOT_KNOWN if options.watch_slices else ""

    @property
    def obstacle(self) -> str:
        """Return why the plugin is to offer no GPU; empty when it may."""
        return self._obstacle

    def run(self, stop: threading.Event) -> None:
        """Follow the slices until stopped, where that is wanted. Raises RuntimeError if the watch ends before."""
        if not self._options.watch_slices:
            return
        watch = self._watch()
        if watch is None:
            self._begin()
            return
        follower = threading.Thread(target=watch.run, args=(stop,), name="slices", daemon=True)
        follower.start()
        if not watch.synced.wait(_FIRST_LOOK):
            _, reason = watch.failing() or (0, "it is slow")
            _log.warning("GPUs are offered, and a DRA driver may give them away too", extra={"reason": reason})
        self._begin()
        follower.join()
        if not stop.is_set():
            raise RuntimeError("the watch of the node's ResourceSlices ended")

    def keep(self, item: dict[str, Any]) -> str | None:
        """Note that a slice is there. Raises ApiJsonError."""
        found = shaped(item, _SHAPE)
        name, spec = str(found["metadata"]["name"]), found["spec"]
        self._slices[name] = {"spec": {"driver": spec["driver"], "devices": (spec.get("devices") or ())[:1]}}
        self._see()
        return name

    def drop(self, item: dict[str, Any]) -> None:
        """Note that a slice is gone."""
        self.lose(str(item["metadata"]["name"]))

    def keys(self) -> set[str]:
        """Return the names of the slices."""
        return set(self._slices)

    def lose(self, key: str) -> None:
        """Note that a new list does not have a slice."""
        self._slices.pop(key, None)
        self._see()

    def _watch(self) -> Watch | None:
        """Return the watch; None where there is no API server."""
        # Loaded here: TLS and HTTP take as long as a worker takes to read the GPUs.
        from kube_accel.kube.kubeconfig import KubeconfigError, client_in_cluster
        from kube_accel.kube.watch import Watch, Watched

        try:
            client = client_in_cluster(self._options.service_account_dir)
        except KubeconfigError as error:
            _log.warning("no DRA driver is looked for", extra={"reason": str(error)})
            return None
        return Watch(client, Watched(SLICES_PATH, {"fieldSelector": f"spec.nodeName={self._options.node_name}"}), self)

    def _begin(self) -> None:
        self._looked = True
        self._see()

    def _found(self) -> str:
        drivers = ", ".join(driver_offers(list(self._slices.values())))
        if not drivers:
            return "" if self._looked else _NOT_KNOWN
        return (
            f"DRA driver {drivers} gives away the GPUs of this node by ResourceSlices; remove that driver from the"
            " node, and kubelet removes its slices 30 s later"
        )

    def _see(self) -> None:
        with self._lock:
            before, self._obstacle = self._obstacle, self._found()
            found = self._obstacle
        if found == before:
            return
        if found not in ("", _NOT_KNOWN):
            _log.error("GPUs are withheld", extra={"reason": found})
            self._condition.warn("GpuNotOffered", found)
        elif not found and before != _NOT_KNOWN:
            _log.info("GPUs are offered again: no DRA driver gives them away")
        self._on_change()
