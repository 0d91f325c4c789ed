# SPDX-License-Identifier: Apache-2.0
"""Frees a node of the pods that hold what a cut of its GPUs would take."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from kube_accel.kube.podresources import PodDevices, PodResourcesError
from kube_accel.mig.process import Cut
from kube_accel.plugin.configuration.options import MigOptions
from kube_accel.plugin.kubelet.holdings import Lister
from kube_accel.plugin.mig import affected
from kube_accel.plugin.mig.outcomes import FailedError, WaitingError
from kube_accel.shared.api_json import checked
from kube_accel.shared.holders import Pod

if TYPE_CHECKING:
    from kube_accel.kube.client import KubeClient

_EVICTING = 1.0
"""Seconds between two looks at the pods."""
_TOO_MANY, _NOT_FOUND = 429, 404
_PODS = "/api/v1/pods"


class Drain:
    """The pods of a node, and how they are evicted if that is wanted."""

    def __init__(self, options: MigOptions, node: str, lister: Lister) -> None:
        self._options = options
        self._node = node
        self._path = f"/api/v1/nodes/{quote(node, safe='')}"
        self._lister = lister

    def pods(self, client: KubeClient) -> list[dict[str, Any]]:
        """Return the pods of the node. Raises ApiError."""
        from kube_accel.kube.watch import passing_over

        found: list[dict[str, Any]] = []
        for item in client.get(_PODS, {"fieldSelector": f"spec.nodeName={self._node}"}).get("items") or ():
            with passing_over(item, _PODS):
                found.append(checked(item))
        return found

    def listed(self) -> tuple[PodDevices, ...]:
        """Return every container with devices. Raises WaitingError."""
        try:
            return self._lister.list(timeout=5)
        except PodResourcesError as error:
            raise WaitingError(str(error)) from error

    def empty(self, client: KubeClient, planned: Cut, stop: threading.Event) -> None:
        """Wait until no process holds what goes, and evict pods if that is wanted."""
        deadline = time.monotonic() + self._options.drain_timeout
        while True:
            items = self.pods(client)
            pods = affected.in_the_way(items, self.listed(), planned.going)
            staying = affected.leaving(checked(client.get(self._path)), items)
            if not pods and not staying:
                return
            self.check(pods)
            if time.monotonic() >= deadline:
                seconds = f"{self._options.drain_timeout:g} s"
                raise FailedError(f"these pods are still there after {seconds}: {affected.named((*pods, *staying))}")
            for pod in pods:
                self._evict(client, pod)
            if stop.wait(_EVICTING):
                raise WaitingError("the plugin is stopped", cordoned=True)

    def check(self, pods: tuple[Pod, ...]) -> None:
        """Raise WaitingError where these pods have to end by themselves."""
        if pods and not self._options.drain:
            raise WaitingError(f"pods hold devices that would go: {affected.named(pods)}; applied when they have ended")
        problem = affected.not_to_be_evicted(pods, self._options.drain_force)
        if problem:
            raise WaitingError(problem)

    def _evict(self, client: KubeClient, pod: Pod) -> None:
        from kube_accel.kube.api import ApiRefusedError, pod_path

        if not pod.uid:
            return  # gone, and kubelet has not noticed
        metadata = {"name": pod.name, "namespace": pod.namespace}
        options = {"preconditions": {"uid": pod.uid}}
        body = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": metadata, "deleteOptions": options}
        try:
            client.post(f"{pod_path(pod.namespace, pod.name)}/eviction", body)
        except ApiRefusedError as error:
            # A disruption budget may let it go later.
            if error.status not in (_TOO_MANY, _NOT_FOUND):
                raise
