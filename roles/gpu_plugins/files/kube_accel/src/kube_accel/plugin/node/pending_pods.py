# SPDX-License-Identifier: Apache-2.0
"""Counts the cluster's pods that ask for GPUs and have no node, where no extender does, and looks at the node's own.

Every plugin counts, and all count the same: a plugin that is down leaves the others.
"""

from __future__ import annotations

import logging
import random
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kube_accel.plugin.node.pod_warnings import PodWarnings
from kube_accel.shared.api_json import checked
from kube_accel.shared.waiting_pods import unplaced

if TYPE_CHECKING:
    import threading

    from kube_accel.kube.client import KubeClient

_log = logging.getLogger(__name__)

_PATH = "/api/v1/pods"
_SECONDS = 60.0
"""From one list to the next, on average: lists of many nodes spread."""
_QUERY = {"fieldSelector": "spec.nodeName=,status.phase=Pending", "resourceVersion": "0"}
"""The API server answers from its cache, where it has an index of pods by their node: not even etcd is asked."""


Counts = Mapping[tuple[str, str], int]
"""How many pods there are by namespace and mode."""
Look = Callable[[], Counts]
"""Counts; may raise ApiError."""


class PendingPods:
    """The counts of the last list. ``run`` is for a thread of its own."""

    def __init__(self, connect: Callable[[], Look | None]) -> None:
        """``connect`` returns what counts; None where there is no API server."""
        self._connect = connect
        self.asked = False
        self.counts: Counts | None = None

    def run(self, stop: threading.Event) -> None:
        """Count until stopped; returns where there is no API server."""
        # Loaded here: TLS and HTTP are not needed to serve kubelet, which is waited for.
        from kube_accel.kube.api import ApiError

        look = self._connect()
        while look is not None and not stop.is_set():
            try:
                self.counts = look()
            except ApiError as error:
                if self.counts is not None or not self.asked:
                    _log.warning("pending pods are not counted", extra={"reason": str(error)})
                self.counts = None
            self.asked = True
            stop.wait(_SECONDS * random.uniform(0.75, 1.25))  # noqa: S311 - spreads clients


def plugin_look(service_account_dir: Path, warnings: PodWarnings) -> Look | None:
    """Return what a plugin counts by, which tells owners of its node's pods what these lack; None outside a cluster."""
    from kube_accel.kube.kubeconfig import KubeconfigError, client_in_cluster

    try:
        client = client_in_cluster(service_account_dir)
    except KubeconfigError as error:
        _log.info("pending pods are not counted", extra={"reason": str(error)})
        return None

    def look() -> Counts:
        found = count(client)
        warnings.look(client)
        return found

    return look


def count(client: KubeClient, by_claims: Callable[[Mapping[str, Any]], bool] = lambda item: False) -> Counts:
    """Return how many pods there are by namespace and mode; ``by_claims`` tells of one whether claims are how it asks.

    Raises ApiError.
    """
    from kube_accel.kube.watch import page, passing_over

    found: Counter[tuple[str, str]] = Counter()
    _, items = page(client.send("GET", _PATH, query=_QUERY))
    for item in items:
        with passing_over(item, _PATH):
            key = unplaced(checked(item), by_claims)
            if key is not None:
                found[key] += 1
    return found
