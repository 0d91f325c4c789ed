# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Fills a support bundle from the API server. Secrets are never asked for."""

from __future__ import annotations

import json
from typing import Any, Dict, List, Mapping, Optional, Sequence, Tuple

from ansible_collections.accel.kubernetes.plugins.module_utils.diagnosis import (
    evidence as gpu_evidence,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.diagnosis import (
    verdict as gpu_diagnosis,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.diagnosis.collect import (
    Collector,
    Object,
    containers,
    has_gpus,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.diagnosis.redaction import Redaction
from ansible_collections.accel.kubernetes.plugins.module_utils.diagnosis.support_bundle import (
    Bundle,
    file_name,
    secrets_of,
    shown,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.shared import gpu_view, plugin_pods
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.claim_view import API_VERSION, ClaimObjects
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.modes import DRA_CLASSES

_OURS = "app.kubernetes.io/managed-by=accel.kubernetes"
_KINDS = (("DaemonSet", "apps/v1"), ("Deployment", "apps/v1"), ("ConfigMap", "v1"))
_BY_NAME = ("kube-accel-quota-overrides",)
"""ConfigMaps that administrators write for us."""
_LOG_LINES, _LOG_BYTES = 5000, 512 << 10
_ALL_LOGS = 64 << 20
"""Bytes of logs in a bundle."""


def collect(collector: Collector, pod: Optional[Tuple[str, str]], node: str, ansible: str) -> Bundle:
    """Return all evidence on a pod (namespace and name), a node or the cluster; ``ansible`` is its version.

    Raises ApiServerError where the API server does not answer at all.
    """
    evidence = collector.evidence(pod, node)
    name = node or (evidence.pod.node if evidence.pod is not None else "")
    nodes = collector.all("Node") or []
    daemons = [item for item in collector.daemons() or [] if _is_daemon(item)]
    asked = collector.one("Pod", pod[1], pod[0]) if evidence.pod is not None and evidence.pod.exists and pod else None
    workloads = _workloads(collector)
    redaction = Redaction(secrets_of([*daemons, *workloads, *([asked] if asked else [])]))
    bundle = Bundle()
    told = gpu_diagnosis.document(
        gpu_diagnosis.diagnose(evidence), gpu_diagnosis.looked_at(evidence), collector.problems
    )
    bundle.add_json("diagnosis.json", redaction.document(told))
    bundle.add_text("diagnosis.txt", "\n".join(gpu_diagnosis.lines(redaction.document(told))) + "\n")
    claimed = collector.claim_objects(nodes)
    seen = gpu_view.view(nodes, collector.all("Pod"), namespace=collector.namespace, objects=claimed)
    if name:
        seen = gpu_view.of_node(seen, name)
    mine = [item for item in daemons if not name or not _is_plugin(item) or _node(item) == name]
    bundle.add_json("inspection.json", redaction.document(gpu_view.document(seen)))
    versions = _versions(collector, [item for item in nodes if name in ("", _name(item))], mine)
    bundle.add_json("versions.json", {"ansible": ansible, **versions})
    kept = [item for item in nodes if _name(item) == name or (not name and has_gpus(item))]
    for item in kept:
        bundle.add_json(f"nodes/{file_name(_name(item))}.json", shown(item, redaction))
    for kind, items in _claims(collector, claimed).items():
        for item in items:
            name_of = file_name(kind, _namespace(item), _name(item))
            bundle.add_json(f"claims/{name_of}.json", shown({**item, "kind": kind}, redaction))
    for item in workloads:
        bundle.add_json(
            f"objects/{file_name(item['kind'], _namespace(item), _name(item))}.json", shown(item, redaction)
        )
    for item in [*mine, *([asked] if asked else [])]:
        bundle.add_json(f"pods/{file_name(_namespace(item), _name(item))}.json", shown(item, redaction))
    _events(collector, bundle, redaction, [*kept, *workloads, *mine, *([asked] if asked else [])])
    _logs(collector, bundle, redaction, [*([asked] if asked else []), *mine])
    _pages(collector, bundle, redaction, mine)
    bundle.problems = [redaction.text(problem) for problem in dict.fromkeys([*collector.problems, *bundle.problems])]
    return bundle


def _claims(collector: Collector, claimed: Optional[ClaimObjects]) -> Dict[str, List[Object]]:
    """Return slices, claims, and device classes of our driver, by kind."""
    if claimed is None:
        return {}
    classes = collector.all("DeviceClass", API_VERSION) or []
    found = {"ResourceSlice": claimed.slices, "ResourceClaim": claimed.claims, "DeviceClass": classes}
    return {
        kind: [dict(item) for item in items if any(ours in json.dumps(item, default=str) for ours in DRA_CLASSES)]
        for kind, items in found.items()
    }


def _workloads(collector: Collector) -> List[Object]:
    """Return our DaemonSets, Deployments and ConfigMaps, by kind, namespace and name."""
    found = []
    for kind, version in _KINDS:
        for namespace in collector.namespaces:
            items = collector.all(kind, version, namespace=namespace, label_selector=_OURS) or []
            if kind == "ConfigMap":
                for name in _BY_NAME:
                    items += collector.all(kind, namespace=namespace, field_selector=f"metadata.name={name}") or []
            found += [{**item, "kind": kind} for item in items]
    unique = {(item["kind"], _namespace(item), _name(item)): item for item in found}
    return [unique[key] for key in sorted(unique)]


def _versions(collector: Collector, nodes: Sequence[Object], daemons: Sequence[Object]) -> Dict[str, Any]:
    images: Dict[str, List[str]] = {}
    for item in daemons:
        for container in gpu_evidence.pod_of(item).containers:
            images.setdefault(container.image, []).append(f"{_namespace(item)}/{_name(item)}")
    return {
        "api_server": collector.version(),
        "images": {image: sorted(names) for image, names in sorted(images.items())},
        "nodes": {_name(item): (item.get("status") or {}).get("nodeInfo") or {} for item in nodes},
    }


def _events(collector: Collector, bundle: Bundle, redaction: Redaction, items: Sequence[Object]) -> None:
    """Events about these objects."""
    found = []
    for item in items:
        namespace = _namespace(item) or "default"
        kind = item.get("kind") or ("Pod" if "nodeName" in (item.get("spec") or {}) else "Node")
        found += collector.events(namespace, _name(item), str(kind))
    found.sort(key=lambda event: (str(event.get("lastTimestamp")), _namespace(event), _name(event)))
    bundle.add_json("events.json", shown(found, redaction))


def _logs(collector: Collector, bundle: Bundle, redaction: Redaction, items: Sequence[Object]) -> None:
    """Add the ends of the logs of all containers of these pods, and of the runs before."""
    left = _ALL_LOGS
    for item in items:
        for name in containers(item):
            for previous in (False, True):
                place = file_name(_namespace(item), _name(item), name) + (".previous.log" if previous else ".log")
                if left <= 0:
                    bundle.problems.append(f"logs/{place}: left out, there are {_ALL_LOGS >> 20} MiB of logs already")
                    continue
                text = collector.log(item, name, previous, _LOG_LINES, _LOG_BYTES)
                if text is not None:
                    left -= len(text)
                    bundle.add_text(f"logs/{place}", redaction.text(text))


def _pages(collector: Collector, bundle: Bundle, redaction: Redaction, daemons: Sequence[Object]) -> None:
    """Add what plugins that are ready measure."""
    ready = {pod.name for pod in gpu_evidence.daemons_of(daemons) if pod.ready}
    good = [item for item in daemons if f"{_namespace(item)}/{_name(item)}" in ready]
    for node, path in sorted(plugin_pods.metrics_paths(good, collector.namespace).items()):
        page = collector.page(node, path)
        if page is not None:
            bundle.add_text(f"metrics/{file_name(node)}.prom", redaction.text(page))


def _name(item: Mapping[str, Any]) -> str:
    return str(item["metadata"]["name"])


def _namespace(item: Mapping[str, Any]) -> str:
    return str(item["metadata"].get("namespace") or "")


def _node(item: Mapping[str, Any]) -> str:
    return str(item["spec"].get("nodeName") or "")


def _is_daemon(item: Object) -> bool:
    return bool(gpu_evidence.daemons_of([item]))


def _is_plugin(item: Object) -> bool:
    return any(daemon.kind == "plugin" for daemon in gpu_evidence.daemons_of([item]))
