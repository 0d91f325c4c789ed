# SPDX-License-Identifier: Apache-2.0
"""Whom it concerns when a node's GPUs are cut by MIG: its pods, the scheduler, NVIDIA's operator. Pure."""

from __future__ import annotations

import hashlib
from collections.abc import Container, Iterable, Mapping
from enum import StrEnum
from typing import Any, Final

from kube_accel.kube.podresources import PodDevices
from kube_accel.shared import label_names
from kube_accel.shared.holders import Pod, asks, has_ended, key_of, pod_of
from kube_accel.sharing.fraction import gpu_of
from kube_accel.sharing.profile import mode_of

LABEL: Final = label_names.MIG_CONFIG
"""The node label that names a configuration, as NVIDIA's MIG manager has it."""
STATE_LABEL: Final = label_names.MIG_STATE
TEXT: Final = label_names.MIG_TEXT
"""Annotation: the checksum of the configurations that the state is about."""
CORDON: Final = label_names.MIG_CORDONED
"""Annotation of a node that was cordoned for a configuration, which it names."""

_DEPLOY: Final = "nvidia.com/gpu.deploy."
_OPERANDS: Final = {f"{_DEPLOY}{name}": f"nvidia-{name}" for name in ("dcgm", "dcgm-exporter", "nvsm")}
"""Who holds GPUs open and is sent away by a label of the node, where NVIDIA's operator runs: the label of its pods."""
_EXPORTER: Final = label_names.EXPORTER
"""The same for the exporter that the role gpu_plugins rolls out, which runs where there is no such label."""
_APPS: Final = {**_OPERANDS, _EXPORTER: label_names.EXPORTER_NAME}
_PAUSED: Final = "paused-for-mig-change"
_SHOWN = 5


class State(StrEnum):
    """The state of a configuration, as NVIDIA's MIG manager names them."""

    PENDING = "pending"
    SUCCESS = "success"
    FAILED = "failed"
    REBOOTING = "rebooting"


def in_the_way(
    items: Iterable[Mapping[str, Any]], listed: Iterable[PodDevices], going: Container[str]
) -> tuple[Pod, ...]:
    """Return the pods that hold a device in ``going``, and those of which kubelet does not say yet what they hold.

    ``items`` are the node's pods as the API server has them, ``listed`` what kubelet says that containers hold. A pod
    without a name cannot be evicted.
    """
    known = {key: item for item in items if (key := key_of(item)) is not None}
    devices: dict[tuple[str, str], set[str]] = {}
    for entry in listed:
        if mode_of(entry.resource) is not None:
            devices.setdefault((entry.namespace, entry.pod), set()).update(map(gpu_of, entry.device_ids))
    found = set()
    for key in known.keys() | devices.keys():
        item = known.get(key)
        if item is None:
            holds = any(device in going for device in devices[key])
        elif has_ended(item):
            holds = False
        elif key in devices:
            holds = any(device in going for device in devices[key])
        else:
            holds = asks(item)
        if holds:
            found.add(pod_of(key, item))
    return tuple(sorted(found))


def named(pods: Iterable[Pod]) -> str:
    """Return some of the pods' names, for a message."""
    names = list(map(str, pods))
    more = f" and {len(names) - _SHOWN} more" if len(names) > _SHOWN else ""
    return f"{', '.join(names[:_SHOWN])}{more}"


def not_to_be_evicted(pods: Iterable[Pod], force: bool) -> str:
    """Return why evicting them does not help; empty when it does."""
    pods = tuple(pods)
    returning = [pod for pod in pods if pod.returns]
    if returning:
        return f"pods of DaemonSets, and static pods, would return: {named(returning)}; keep them off the node"
    bare = [pod for pod in pods if pod.bare]
    if bare and not force:
        return f"these pods have no controller: {named(bare)}; delete them, or set --mig-drain-force"
    return ""


def hold(node: Mapping[str, Any], config: str) -> dict[str, Any]:
    """Return the patch that keeps new pods off the node and sends monitoring away; empty when that is done."""
    metadata, spec = node.get("metadata") or {}, node.get("spec") or {}
    known = metadata.get("labels") or {}
    labels = {name: _PAUSED for name in _OPERANDS if known.get(name) == "true"}
    if _EXPORTER not in known:
        labels[_EXPORTER] = _PAUSED
    patch: dict[str, Any] = {"metadata": {"labels": labels}} if labels else {}
    if not spec.get("unschedulable"):  # a cordon by another stays
        patch.setdefault("metadata", {})["annotations"] = {CORDON: config}
        patch["spec"] = {"unschedulable": True}
    return patch


def checksum(text: str) -> str:
    """Return the SHA-256 hex digest of the MIG configurations."""
    return hashlib.sha256(text.encode()).hexdigest()


def report(node: Mapping[str, Any], state: State | None, text: str | None) -> dict[str, Any]:
    """Return the patch that says what became of these configurations; empty when the node says so."""
    metadata = node.get("metadata") or {}
    told: dict[str, dict[str, str | None]] = {
        "labels": {STATE_LABEL: state},
        "annotations": {TEXT: None if text is None else checksum(text)},
    }
    same = all((metadata.get(part) or {}).get(key) == value for part in told for key, value in told[part].items())
    return {} if same else {"metadata": told}


def leaving(node: Mapping[str, Any], items: Iterable[Mapping[str, Any]]) -> tuple[Pod, ...]:
    """Pods that have been sent away by labels and are still there."""
    labels = (node.get("metadata") or {}).get("labels") or {}
    apps = {app for name, app in _APPS.items() if labels.get(name) == _PAUSED}
    gone = ((key_of(item), (item["metadata"].get("labels") or {}).get("app")) for item in items)
    return tuple(sorted(Pod(*key) for key, app in gone if key is not None and app in apps))


def release(node: Mapping[str, Any]) -> dict[str, Any]:
    """Return the patch that undoes ``hold``, even another daemon's; empty when there is nothing to undo."""
    metadata = node.get("metadata") or {}
    known = metadata.get("labels") or {}
    labels: dict[str, str | None] = {name: "true" for name in _OPERANDS if known.get(name) == _PAUSED}
    if known.get(_EXPORTER) == _PAUSED:
        labels[_EXPORTER] = None
    patch: dict[str, Any] = {"metadata": {"labels": labels}} if labels else {}
    if CORDON in (metadata.get("annotations") or {}):
        patch.setdefault("metadata", {})["annotations"] = {CORDON: None}
        patch["spec"] = {"unschedulable": False}
    return patch
