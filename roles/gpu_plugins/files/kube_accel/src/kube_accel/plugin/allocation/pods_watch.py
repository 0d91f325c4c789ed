# SPDX-License-Identifier: Apache-2.0
"""Watching this node's pods. Apart from ``plugin.pods``: it loads HTTP and TLS, which kubelet need not wait for."""

from __future__ import annotations

import logging
import threading
import time
from queue import Empty, SimpleQueue

from kube_accel.kube.api import ApiError
from kube_accel.kube.client import KubeClient
from kube_accel.kube.watch import Watch, Watched, page, passing_over
from kube_accel.plugin.allocation.pods import NodePods
from kube_accel.shared.api_json import checked

_log = logging.getLogger(__name__)

_PATH = "/api/v1/pods"


class PodsWatch:
    """Keeps ``NodePods`` current from a thread of its own, and lists at once when asked to."""

    def __init__(self, client: KubeClient, pods: NodePods, node: str, stop: threading.Event) -> None:
        self._client = client
        self._pods = pods
        self._stop = stop
        self._query = {"fieldSelector": f"spec.nodeName={node}"}
        self._watch = Watch(client, Watched(_PATH, self._query, interesting=pods.interesting), pods)
        self._asked: SimpleQueue[threading.Event] = SimpleQueue()

    @property
    def reachable(self) -> bool:
        """Return whether the API server was heard lately, or has only not been heard yet."""
        return self._watch.failing() is None or not self._watch.synced.is_set()

    def run(self) -> None:
        """Watch until stopped."""
        self._watch.run(self._stop)

    def run_lists(self) -> None:
        """Answer ``list_now`` until stopped."""
        while not self._stop.is_set():
            try:
                done = self._asked.get(timeout=1)
            except Empty:
                continue
            try:
                self._list()
            except ApiError as error:
                _log.info("this node's pods are not listed", extra={"reason": str(error)})
            done.set()

    def list_now(self, timeout: float) -> None:
        """Take in what the API server says at this moment; gives up after ``timeout`` seconds."""
        done = threading.Event()
        self._asked.put(done)
        done.wait(timeout)

    def _list(self) -> None:
        begin = time.monotonic()
        body = self._client.send("GET", _PATH, query=self._query)
        # The watch may be ahead of this list; what is gone is for it alone to say.
        _, items = page(body)
        for item in items:
            with passing_over(item, _PATH):
                self._pods.keep(checked(item), in_order=False)
        _log.info("pods listed for an allocation", extra={"seconds": round(time.monotonic() - begin, 3)})
