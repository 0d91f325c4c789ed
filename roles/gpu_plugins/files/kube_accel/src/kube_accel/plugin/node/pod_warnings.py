# SPDX-License-Identifier: Apache-2.0
"""Tells owners of this node's pods what their pods lack, where no extender does: by one event for each pod and reason.

The API server's warnings reach neither owners before Kubernetes 1.30 nor those whose pods an operator makes.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from kube_accel.shared.api_json import checked
from kube_accel.shared.asked import names_asked
from kube_accel.shared.modes import RESOURCE
from kube_accel.shared.runtime_class import finds_no_driver, lacks_class
from kube_accel.shared.waiting_pods import ENDED
from kube_accel.shared.wishes import UNHEEDED, WISHES, no_effect

if TYPE_CHECKING:
    from kube_accel.kube.client import KubeClient

_log = logging.getLogger(__name__)

NO_CLASS: Final = "GpuRuntimeClassMissing"
_PATH = "/api/v1/pods"
_CONFLICT = 409


class PodWarnings:
    """What was told of the pods that the last list had."""

    def __init__(self, node: str, runtime_class: str) -> None:
        """``runtime_class`` is what pods with whole GPUs have to name; empty where they need none."""
        self._node = node
        self._runtime_class = runtime_class
        self._told: set[tuple[str, str]] = set()
        """UID of a pod, and reason."""

    def look(self, client: KubeClient) -> None:
        """List the node's pods, and tell of each once."""
        from kube_accel.kube.api import ApiError
        from kube_accel.kube.watch import page, passing_over

        # The API server answers from its cache, which has an index of pods by their node.
        query = {"fieldSelector": f"spec.nodeName={self._node}", "resourceVersion": "0"}
        try:
            _, items = page(client.send("GET", _PATH, query=query))
        except ApiError as error:
            _log.warning("owners of pods are not told what these lack", extra={"reason": str(error)})
            return
        found: set[tuple[str, str]] = set()
        for item in items:
            with passing_over(item, _PATH):
                pod = checked(item)
                for reason, message in lacking(pod, self._runtime_class):
                    key = pod["metadata"]["uid"], reason
                    found.add(key)
                    if key not in self._told:
                        self._tell(client, pod["metadata"], reason, message)
        self._told = found

    def _tell(self, client: KubeClient, metadata: Mapping[str, Any], reason: str, message: str) -> None:
        from kube_accel.kube import events
        from kube_accel.kube.api import ApiError, ApiRefusedError

        about = {"kind": "Pod", **{key: metadata[key] for key in ("namespace", "name", "uid")}}
        event = events.body(about, "Warning", reason, message, self._node)
        # One name for one thing: a plugin that starts anew sends it a second time in vain.
        name = f"{metadata['name'][:180]}.{reason.lower()}.{metadata['uid']}"
        event["metadata"] = {"name": name, "namespace": metadata["namespace"]}
        try:
            events.send(client, event)
        except ApiError as error:
            if not isinstance(error, ApiRefusedError) or error.status != _CONFLICT:
                _log.warning("the owner of a pod is not told", extra={"pod": metadata["name"], "reason": str(error)})


def lacking(pod: Mapping[str, Any], runtime_class: str) -> Iterator[tuple[str, str]]:
    """Yield reason and message for each thing that the owner of a pod on a node is to know.

    Raises one of ``api_json.ODD`` where the pod cannot be read.
    """
    spec = pod.get("spec") or {}
    if (pod.get("status") or {}).get("phase") in ENDED:
        return
    annotations = pod["metadata"].get("annotations") or {}
    wishes = sorted(WISHES.intersection(annotations))
    resources = sorted(filter(RESOURCE.match, names_asked(spec))) if wishes else []
    if resources:
        yield UNHEEDED, no_effect(", ".join(wishes), ", ".join(resources))
    if runtime_class and lacks_class(spec):
        yield NO_CLASS, finds_no_driver(runtime_class)
