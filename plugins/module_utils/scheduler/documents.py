# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads the YAML documents of a cluster by which the role scheduler decides. No I/O."""

from __future__ import annotations

import base64
from typing import Any, Mapping

from ..shared.registers import mapping, mappings, resources

try:
    import yaml
except ImportError:  # Filters run on the controller, and Ansible brings it there.
    yaml = None  # type: ignore[assignment,unused-ignore]


class DocumentError(ValueError):
    """A document is not what its name says. Says which, and why."""


def api_server(register: object) -> str:
    """Return where a slurped kubeconfig of kube-scheduler reaches the API server; empty where nothing was read.

    Raises DocumentError.
    """
    content = mapping(register).get("content")
    if content is None:
        return ""
    try:
        text = base64.b64decode(str(content)).decode(errors="replace")
    except ValueError:
        raise DocumentError("/etc/kubernetes/scheduler.conf: it was not read as it is") from None
    document = _load("/etc/kubernetes/scheduler.conf", text)
    clusters = [mapping(each.get("cluster")) for each in mappings(document.get("clusters"))]
    server = str(clusters[0].get("server") or "") if clusters else ""
    if not server:
        raise DocumentError("/etc/kubernetes/scheduler.conf: no cluster with a server; copy a kubeconfig there")
    return server


def cluster_configuration(register: object) -> Mapping[str, Any]:
    """Return the ClusterConfiguration of the ConfigMap that was found; an empty one where kubeadm wrote none.

    Raises DocumentError, also for a part of kube-scheduler that is not of kubeadm's API.
    """
    found = next(iter(resources(register)), {})
    text = mapping(found.get("data")).get("ClusterConfiguration")
    name = "ConfigMap kube-system/kubeadm-config: ClusterConfiguration"
    document = _load(name, str(text)) if text else {}
    part = document.get("scheduler") or {}
    arguments, volumes = (mapping(part).get(key) or [] for key in ("extraArgs", "extraVolumes"))
    lists = [value for value in (arguments, volumes) if not isinstance(value, Mapping)]
    if not isinstance(part, Mapping) or isinstance(volumes, Mapping) or any(not _is_list(value) for value in lists):
        raise DocumentError(f"{name}: scheduler is not as kubeadm has it; correct its extraArgs and extraVolumes")
    return document


def _is_list(value: object) -> bool:
    return isinstance(value, list) and len(mappings(value)) == len(value)


def _load(name: str, text: str) -> Mapping[str, Any]:
    try:
        document = yaml.safe_load(text) or {}
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        raise DocumentError(f"{name}: not YAML: {error}") from None
    if not isinstance(document, Mapping):
        raise DocumentError(f"{name}: not a mapping")
    return document
