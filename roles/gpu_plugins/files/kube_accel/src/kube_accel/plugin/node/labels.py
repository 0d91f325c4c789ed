# SPDX-License-Identifier: Apache-2.0
"""Keeps the node's labels current."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path

from kube_accel.plugin.node.reconcile import reconcile_loop
from kube_accel.sharing.node_labels import plan

_log = logging.getLogger(__name__)

_BETWEEN_WRITES = 1.0
_BACK_OFF = (1.0, 60.0)
_LOOK = 300.0
"""Seconds after which unchanged labels are compared with the node's again, for what others did to them."""


class LabelWriter:
    """Writes those that differ, in one patch, from a thread of its own; an absent API server only delays it."""

    def __init__(self, node: str, service_account_dir: Path, wanted: Callable[[], Mapping[str, str] | None]) -> None:
        """``wanted`` returns the labels, None while they are not known."""
        self._node = node
        self._service_account_dir = service_account_dir
        self._wanted = wanted
        self._wake = threading.Event()
        self._foreign: tuple[str, ...] = ()
        """Labels of others that were reported last."""

    def wake(self) -> None:
        """Compare the labels again: they may have changed. Returns at once."""
        self._wake.set()

    def run(self) -> None:
        """Write for ever; returns where there is no API server."""
        # Loaded here: TLS and HTTP are not needed to serve kubelet, which is waited for.
        from kube_accel.kube.api import ApiError, in_cluster

        api = in_cluster(self._service_account_dir)
        if api is None:
            return
        done: Mapping[str, str] | None = None
        look_at = 0.0

        def write() -> bool:
            nonlocal done, look_at
            wanted = self._wanted()
            if wanted is None or (wanted == done and time.monotonic() < look_at):
                return False
            metadata = api.node(self._node).get("metadata") or {}
            patch = plan(metadata.get("labels") or {}, metadata.get("annotations") or {}, wanted, int(time.time()))
            if patch:
                api.patch_node(self._node, {"labels": patch.labels, "annotations": patch.annotations})
                _log.info("the node is labelled", extra={"node": self._node, "labels": sorted(patch.labels)})
            if patch.foreign and patch.foreign != self._foreign:
                _log.warning(
                    "labels of another program have other values and stay; remove them, and the plugin sets its own",
                    extra={"node": self._node, "labels": list(patch.foreign)},
                )
            done, look_at, self._foreign = wanted, time.monotonic() + _LOOK, patch.foreign
            time.sleep(_BETWEEN_WRITES)
            return True

        reconcile_loop(write, self._wake, _LOOK, _BACK_OFF, (ApiError,), self._failed)

    def _failed(self, reason: str) -> None:
        _log.warning("the node is not labelled", extra={"node": self._node, "reason": reason})
        self._foreign = ()
