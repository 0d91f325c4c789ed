# SPDX-License-Identifier: Apache-2.0
"""Counts the cluster's pods that ask for GPUs and have no node, where no extender does, and looks at the node's own.

Every plugin counts, and all count the same: a plugin that is down leaves the others.
"""

from __future__ import annotations

import logging
import random
import threading
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from kube_accel.plugin.node.pod_warnings import PodWarnings
from kube_accel.shared.api_json import checked
from kube_accel.shared.waiting_pods import unplaced

if TYPE_CHECKING:
    from kube_accel.kube.client import KubeClient

_log = logging.getLogger(__name__)

_PATH = "/api/v1/pods"
_SECONDS = 60.0
"""From one list to the next, on average: lists of many nodes spread."""
_QUERY = {"fieldSelector": "spec.nodeName=,status.phase=Pending", "resourceVersion": "0"}
"""The API server answers from its cache, where it has an index of pods by their node: not even etcd is asked."""


class PendingPods:
    """The counts of the last list. ``run`` is for a thread of its own."""

    def __init__(self, service_account_dir: Path, warnings: PodWarnings, stop: threading.Event) -> None:
        self._service_account_dir = service_account_dir
        self._warnings = warnings
        self._stop = stop
        self.asked = False
        self.counts: Mapping[tuple[str, str], int] | None = None

    def run(self) -> None:
        """Count until stopped; returns where there is no API server."""
        # Loaded here: TLS and HTTP are not needed to serve kubelet, which is waited for.
        from kube_accel.kube.api import ApiError
        from kube_accel.kube.kubeconfig import KubeconfigError, client_in_cluster

        try:
            client = client_in_cluster(self._service_account_dir)
        except KubeconfigError as error:
            _log.info("pending pods are not counted", extra={"reason": str(error)})
            return
        while not self._stop.is_set():
            try:
                self.counts = count(client)
                self._warnings.look(client)
            except ApiError as error:
                if self.counts is not None or not self.asked:
                    _log.warning("pending pods are not counted", extra={"reason": str(error)})
                self.counts = None
            self.asked = True
            self._stop.wait(_SECONDS * random.uniform(0.75, 1.25))  # noqa: S311 - spreads clients


def count(client: KubeClient) -> Mapping[tuple[str, str], int]:
    """Return how many pods there are by namespace and mode. Raises ApiError."""
    from kube_accel.kube.watch import page, passing_over

    found: Counter[tuple[str, str]] = Counter()
    _, items = page(client.send("GET", _PATH, query=_QUERY))
    for item in items:
        with passing_over(item, _PATH):
            key = unplaced(checked(item))
            if key is not None:
                found[key] += 1
    return found
