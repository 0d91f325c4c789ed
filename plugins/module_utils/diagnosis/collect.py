# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads from the API server what a diagnosis looks at. What cannot be read is a problem, and the rest is read still."""

from __future__ import annotations

from typing import Any, Callable, Dict, FrozenSet, Iterable, List, Mapping, Optional, Sequence, Tuple, TypeVar
from urllib.parse import quote, urlencode

from ansible_collections.accel.kubernetes.plugins.module_utils.cluster.api_server import (
    ApiServerError,
    explained,
    objects,
    text_at,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.diagnosis import evidence as gpu_evidence
from ansible_collections.accel.kubernetes.plugins.module_utils.diagnosis.evidence import Evidence
from ansible_collections.accel.kubernetes.plugins.module_utils.shared import gpu_view, plugin_metrics, plugin_pods
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.api_json import (
    ODD,
    ApiJsonError,
    fit,
    read_object,
    shaped,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.claim_view import (
    API_VERSION,
    ClaimedGpus,
    ClaimObjects,
    Request,
    read_objects,
)
from ansible_collections.kubernetes.core.plugins.module_utils.k8s.client import K8SClient

_LOG_LINES = 2000
_DAEMON_LOG_LINES = 100
_MOST_LOGS = 16
"""Containers of a pod, and daemons in trouble, whose logs are read."""
_BAD_REQUEST, _NOT_FOUND = 400, 404
_SYSTEM = "kube-system"
"""Where the extender runs."""

Object = Dict[str, Any]
Answer = TypeVar("Answer")

SUBJECT_SPEC: Dict[str, Any] = {
    "pod": {
        "type": "dict",
        "options": {
            "name": {"type": "str", "required": True},
            "namespace": {"type": "str", "default": "default"},
        },
    },
    "node": {"type": "str"},
    "plugins_namespace": {"type": "str", "default": plugin_pods.NAMESPACE},
}
"""Options that say what is looked at, as the documentation fragment ``subject`` tells; ``pod`` and ``node`` exclude
each other."""


def subject(params: Mapping[str, Any]) -> Tuple[Optional[Tuple[str, str]], str]:
    """Return the pod (namespace and name) and the node that these options name."""
    pod = params["pod"]
    return ((pod["namespace"], pod["name"]) if pod else None), params["node"] or ""


def _read(item: object) -> Object:
    """Return an object that has a name. Raises ApiJsonError."""
    found: Object = shaped(item, {"metadata": {"name!": str}, "involvedObject": {}})
    return found


class Collector:
    """Asks one API server each thing once; ``problems`` is what it did not answer."""

    def __init__(self, client: K8SClient, namespace: str) -> None:
        """``namespace`` is where plugins run."""
        self._client = client
        self.namespace = namespace
        self.problems: List[str] = []
        self._answered = False
        self._told: Dict[Tuple[Any, ...], Any] = {}

    @property
    def namespaces(self) -> List[str]:
        """Return the namespaces in which daemons of ours run."""
        return sorted({self.namespace, _SYSTEM})

    def evidence(self, pod: Optional[Tuple[str, str]], node: str) -> Evidence:
        """Return what there is about a pod (namespace and name) and where it runs or may run, a node, or all nodes.

        Raises ApiServerError where the API server does not answer at all.
        """
        item = self.one("Pod", pod[1], pod[0]) if pod is not None else None
        name = node or str(((item or {}).get("spec") or {}).get("nodeName") or "")
        if name:
            found = self.one("Node", name)
            nodes = [] if found is None else [found]
        else:
            nodes = [entry for entry in self.all("Node") or [] if has_gpus(entry)]
        claimed = self.claim_objects(nodes)
        ours = self.daemons()
        pages = self._pages(ours or [], [entry["metadata"]["name"] for entry in nodes])
        return Evidence(
            pod=None if pod is None else self._pod(pod, item),
            nodes=tuple(
                gpu_evidence.node_of(
                    entry,
                    self.events("default", entry["metadata"]["name"], "Node"),
                    pages.get(entry["metadata"]["name"]),
                    claimed,
                )
                for entry in nodes
            ),
            everywhere=not name,
            daemons=None if ours is None else gpu_evidence.daemons_of(ours, self._words(ours, name)),
            quotas=gpu_evidence.quotas_of(self.all("ResourceQuota", namespace=pod[0]) or []) if pod is not None else (),
            requests=self._requests(item, claimed),
            classes=self._classes() if claimed is not None else None,
        )

    def claim_objects(self, nodes: Iterable[Object]) -> Optional[ClaimObjects]:
        """Return slices and claims where a node gives GPUs by claims; None where none does, or they are not read."""
        return read_objects(nodes, lambda kind: self.all(kind, API_VERSION))

    def _requests(self, pod: Optional[Object], claimed: Optional[ClaimObjects]) -> Tuple[Request, ...]:
        if pod is None or claimed is None:
            return ()
        try:
            return tuple(ClaimedGpus(claimed, lambda name: None, {}, []).requests(pod))
        except ODD:
            return ()

    def _classes(self) -> Optional[FrozenSet[str]]:
        found = self.all("DeviceClass", API_VERSION)
        return None if found is None else frozenset(item["metadata"]["name"] for item in found)

    def one(self, kind: str, name: str, namespace: Optional[str] = None) -> Optional[Object]:
        """Return an object; None where it is not there, or cannot be read."""
        return self._once(("one", kind, name, namespace), lambda: self._one(kind, name, namespace))

    def all(self, kind: str, api_version: str = "v1", **selected: str) -> Optional[List[Object]]:
        """Objects of a kind; None where they cannot be listed."""
        key = ("all", kind, api_version, *sorted(selected.items()))
        return self._once(key, lambda: self._all(kind, api_version, selected))

    def page(self, node: str, path: str) -> Optional[str]:
        """Return a plugin's ``/metrics``; None where it does not answer."""
        return self._once(("page", path), lambda: self._page(node, path))

    def _once(self, key: Tuple[Any, ...], ask: Callable[[], Answer]) -> Answer:
        if key not in self._told:
            self._told[key] = ask()
        answer: Answer = self._told[key]
        return answer

    def _one(self, kind: str, name: str, namespace: Optional[str]) -> Optional[Object]:
        full = f"{kind.lower()} {namespace + '/' if namespace else ''}{name}"
        try:
            with explained():
                item = self._client.get(self._client.resource(kind, "v1"), name=name, namespace=namespace).to_dict()
        except ApiServerError as error:
            self._heard(error)
            absent = error.status == _NOT_FOUND
            self.problems.append(f"{full} does not exist" if absent else f"{full}: {error}")
            return None
        self._answered = True
        try:
            return _read(item)
        except ApiJsonError as error:
            self.problems.append(f"{full} cannot be read: {error}")
            return None

    def _all(self, kind: str, api_version: str, selected: Mapping[str, str]) -> Optional[List[Object]]:
        try:
            with explained():
                found = list(objects(self._client, kind, api_version, self.problems, _read, **selected))
        except ApiServerError as error:
            self._heard(error)
            where = f" of namespace {selected['namespace']}" if "namespace" in selected else ""
            self.problems.append(f"{kind}s{where}: {error}")
            return None
        self._answered = True
        return found

    def _heard(self, error: ApiServerError) -> None:
        """Raise an error without a status where the API server has answered nothing yet: a refusal is an answer."""
        if not error.status and not self._answered:
            raise error
        self._answered = True

    def daemons(self) -> Optional[List[Object]]:
        """Pods of the namespaces where plugins and extender run; None where they cannot be listed."""
        lists = [self.all("Pod", namespace=name) for name in self.namespaces]
        known = [items for items in lists if items is not None]
        return [item for items in known for item in items] if len(known) == len(lists) else None

    def events(self, namespace: str, name: str, kind: str) -> List[Object]:
        """Events about an object."""
        selector = f"involvedObject.name={name}"
        found = self.all("Event", namespace=namespace, field_selector=selector) or []
        return [item for item in found if (item.get("involvedObject") or {}).get("kind") in (kind, None)]

    def log(self, item: Object, container: str, previous: bool, lines: int, most: int) -> Optional[str]:
        """Return the end of a container's log; None where there is none, or it cannot be read.

        A node that is silent is not asked: the API server would wait for it, log after log.
        """
        namespace, pod = item["metadata"]["namespace"], item["metadata"]["name"]
        node = str((item.get("spec") or {}).get("nodeName") or "")
        if node and self._once(("silent", node), lambda: self._silent(node)):
            return None
        query = {"container": container, "tailLines": str(lines), "limitBytes": str(most)}
        query.update({"previous": "true"} if previous else {})
        path = f"/api/v1/namespaces/{quote(namespace, safe='')}/pods/{quote(pod, safe='')}/log?{urlencode(query)}"
        try:
            text: str = text_at(self._client, path, most)
        except ApiServerError as error:
            # 400: it has not started, or no run went before.
            if error.status not in (_BAD_REQUEST, _NOT_FOUND):
                self.problems.append(f"log of {namespace}/{pod} {container}: {error}")
            return None
        return text

    def _silent(self, name: str) -> bool:
        found = self.one("Node", name)
        silent = found is not None and gpu_view.is_silent(found)
        if silent:
            self.problems.append(f"node {name}: kubelet does not answer, so the logs of its pods were not read")
        return silent

    def version(self) -> str:
        """Return the API server's version; empty where it is not reported."""
        try:
            told = read_object(text_at(self._client, "/version", gpu_evidence.LOG_BYTES))
            fit(told, {"gitVersion!": str}, "its answer")
            return str(told["gitVersion"])
        except (ApiServerError, ApiJsonError) as error:
            self.problems.append(f"version of the API server: {error}")
            return ""

    def _page(self, node: str, path: str) -> Optional[str]:
        try:
            text: str = text_at(self._client, path, plugin_metrics.PAGE_BYTES)
        except ApiServerError as error:
            self.problems.append(f"node {node}: metrics of its plugin: {error}")
            return None
        return text

    def _pod(self, pod: Tuple[str, str], item: Optional[Object]) -> gpu_evidence.Pod:
        events = self.events(pod[0], pod[1], "Pod")
        if item is None:
            return gpu_evidence.absent_pod(*pod, events=events)
        logs = {}
        for container in containers(item)[:_MOST_LOGS]:
            for previous in (True, False):
                text = self.log(item, container, previous, _LOG_LINES, gpu_evidence.LOG_BYTES)
                if text is not None:
                    logs[container, previous] = text
        return gpu_evidence.pod_of(item, events, logs)

    def _pages(self, pods: Sequence[Object], nodes: Iterable[str]) -> Mapping[str, Optional[str]]:
        paths = plugin_pods.metrics_paths(pods, self.namespace)
        # The state of a node that is not ready says so.
        ready = {pod.node for pod in gpu_evidence.daemons_of(pods) if pod.kind == "plugin" and pod.ready}
        return {name: self.page(name, paths[name]) for name in nodes if name in paths and name in ready}

    def _words(self, pods: Sequence[Object], node: str) -> Dict[str, str]:
        """Logs of daemons that are not ready: extenders', and plugins' of the node, or all of them."""
        found: Dict[str, str] = {}
        troubled = [daemon for daemon in gpu_evidence.daemons_of(pods) if not daemon.ready]
        for daemon in [entry for entry in troubled if entry.kind == "extender" or node in ("", entry.node)][
            :_MOST_LOGS
        ]:
            place = tuple(daemon.name.split("/"))
            item = next(entry for entry in pods if (entry["metadata"]["namespace"], entry["metadata"]["name"]) == place)
            for name, previous in [(name, previous) for name in containers(item)[-1:] for previous in (False, True)]:
                text = self.log(item, name, previous, _DAEMON_LOG_LINES, gpu_evidence.LOG_BYTES)
                if text and daemon.name not in found:
                    found[daemon.name] = text
        return found


def containers(item: Object) -> List[str]:
    """Return the names of a pod's containers, those that come first included."""
    return [container.name for container in gpu_evidence.pod_of(item).containers if container.name]


def has_gpus(item: Object) -> bool:
    """Return whether a plugin of ours has reported GPUs of this node."""
    return gpu_evidence.node_of(item).view is not None
