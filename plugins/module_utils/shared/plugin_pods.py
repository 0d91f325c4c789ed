# Apache License 2.0 (see https://www.apache.org/licenses/LICENSE-2.0)
# SPDX-License-Identifier: Apache-2.0
"""Which pods are our plugins, where they listen, and whether they run. Pure."""

from __future__ import annotations

import re
from typing import Any, Dict, Iterable, List, Mapping, Optional, Sequence, Tuple

from .api_json import of_each

NAMESPACE = "kube-system"
"""Where plugins run unless another place is given."""

_SERVING = (["plugin"], ["dra"])
"""Commands that serve a node: a device plugin, and the DRA driver."""
_LISTEN = re.compile(r"--listen=.*:([0-9]+)")

PodName = Tuple[str, str]
"""Namespace and name."""


class PluginPods:
    """The pods that one is shown, and how the plugins among them are."""

    def __init__(self, items: Optional[Sequence[Mapping[str, Any]]], namespace: str) -> None:
        """``items`` is None where they were not read; ``namespace`` is where plugins run."""
        self._namespace = namespace
        self._named = {(pod["metadata"]["namespace"], pod["metadata"]["name"]): pod for pod in items or ()}
        everywhere = [pod for pod in items or () if _plugin_port(pod) is not None]
        plugins = [pod for pod in everywhere if pod["metadata"]["namespace"] == namespace]
        self._plugins: Dict[str, List[Mapping[str, Any]]] = {}
        for pod in plugins:
            self._plugins.setdefault(node_name_of(pod), []).append(pod)
        self.doubt = ""
        """Why nothing can be said of any plugin; empty where something can."""
        if items is not None and not plugins and everywhere:
            others = ", ".join(sorted({pod["metadata"]["namespace"] for pod in everywhere}))
            self.doubt = f"no plugin is in namespace {namespace}, but in {others}; say where plugins run"
        # Some accounts are shown the pods of their own namespaces alone.
        elif items is not None and not any(place == namespace for place, _name in self._named):
            self.doubt = (
                f"no pod of namespace {namespace} is visible, so reports of nodes may be out of date. Name the "
                "namespace of the plugins, and use an account that may list the pods of all namespaces"
            )
        self.judged = items is not None and not self.doubt
        """Whether it is known which plugins run."""

    def get(self, name: Tuple[str, str]) -> Optional[Mapping[str, Any]]:
        """Return a pod by namespace and name."""
        return self._named.get(name)

    def plugin_problem(self, node: str) -> str:
        """Return why the report of the node's plugin may be old; empty where it runs, or where that is not known."""
        mine = self._plugins.get(node, [])
        if not self.judged or any(map(is_ready, mine)):
            return ""
        if not mine:
            return f"no plugin of it runs in {self._namespace}, and this was last told; look at the DaemonSets there"
        return (
            f"its plugin {self._namespace}/{mine[0]['metadata']['name']} is not ready, and this was last told; look at "
            "that pod and its log"
        )


def metrics_paths(pods: Iterable[Mapping[str, Any]], namespace: str = NAMESPACE) -> Dict[str, str]:
    """Return, by node, the API server's path to the metrics of the node's plugin.

    Pods of other namespaces do not count, whatever they call themselves. Of two on a node, as while one is replaced,
    the one that is ready is taken. What ``view`` cannot read is left out.
    """
    ports = [(pod, _plugin_port(pod)) for pod in of_each("pod", readable_pod, pods, [])]
    mine = [(pod, port) for pod, port in ports if port is not None and pod["metadata"]["namespace"] == namespace]
    return {
        node_name_of(pod): f"/api/v1/namespaces/{namespace}/pods/{pod['metadata']['name']}:{port}/proxy/metrics"
        for pod, port in sorted(mine, key=lambda entry: is_ready(entry[0]))
    }


def _plugin_port(pod: Mapping[str, Any]) -> Optional[str]:
    """Return where a plugin listens that is on a node and stays; None for any other pod."""
    spec = pod.get("spec") or {}
    if not spec.get("nodeName") or pod["metadata"].get("deletionTimestamp"):
        return None
    for container in spec.get("containers") or ():
        command = container.get("command") or []
        ports = [match.group(1) for match in map(_LISTEN.match, command) if match is not None]
        if command[:1] == ["kube-accel"] and command[1:2] in _SERVING and ports:
            return ports[0]
    return None


def readable_pod(item: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the pod if it can be read which one it is, and whether it is a plugin. Raises one of ODD."""
    name = item["metadata"]["namespace"], item["metadata"]["name"]
    if not all(isinstance(part, str) for part in name):
        raise TypeError("its name is no text")
    if _plugin_port(item) is not None:
        is_ready(item)
    return item


def node_name_of(pod: Mapping[str, Any]) -> str:
    """Return the name of a pod's node; empty without one."""
    return str((pod.get("spec") or {}).get("nodeName") or "")


def is_ready(item: Mapping[str, Any]) -> bool:
    """Return whether the object says that it is ready. Raises one of ODD."""
    return condition(item, "Ready").get("status") == "True"


def condition(item: Mapping[str, Any], kind: str) -> Mapping[str, Any]:
    """Return the object's condition of that kind, empty without one. Raises one of ODD."""
    conditions = (item.get("status") or {}).get("conditions") or ()
    return next((entry for entry in conditions if entry["type"] == kind), {})
