# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Decides what kubeadm's configuration says of kube-scheduler, whose manifest it rewrites at an upgrade. Pure."""

from __future__ import annotations

import hashlib
import posixpath
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Sequence

from ..shared.inventory import CONTROL_PLANES, Inventory
from ..shared.printable import line
from ..shared.registers import mapping, mappings
from .asked import Options, without_slash
from .layout import Plan

_BY_NAME = ("kubeadm.k8s.io/v1beta2", "kubeadm.k8s.io/v1beta3")
"""Versions in which extraArgs is a mapping; later it is a list of names and values."""
_CONFIG_VOLUME, _MOUNT_VOLUME = "kube-accel-scheduler-config", "kube-accel-mount-"
_KUBESPRAY_FILE = "/kubescheduler-config.yaml"


@dataclass(frozen=True)
class Kubeadm:
    """What becomes of kubeadm's ClusterConfiguration."""

    known: bool
    """Whether kubeadm made the control plane."""
    differs: bool
    after: Dict[str, Any]
    volumes: List[Dict[str, Any]]
    """Those of ours."""
    unlike: Dict[str, str]
    """By control plane whose kube-scheduler reads another file than ours, that file.

    What kubeadm is told goes for all: with our file named, such a control plane would be upgraded to one that it does
    not have. Empty too where our file is not to be named anyway.
    """
    kubespray: bool
    """Whether kubespray wrote the configuration of this host."""
    unread: str
    """Why it is not known whether kubeadm made the control plane, and "" where it is."""


def kubeadm(
    options: Options, plan: Plan, inventory: Inventory, before: Mapping[str, Any], seen: Mapping[str, Any]
) -> Kubeadm:
    """Decide by the ClusterConfiguration as it is, and by what tasks were answered on this host."""
    part = mapping(before.get("scheduler"))
    wanted = plan.state == "present"
    listed = before.get("apiVersion") not in _BY_NAME
    volumes = mappings(part.get("extraVolumes"))
    others = _arguments_of_others(part, listed, options.config_path, volumes)
    named = wanted and all(item.get("name") != "config" for item in others)
    unlike = _unlike(options, inventory) if named else {}
    named = named and not unlike
    ours = _volumes(options.config_path if named else "", plan.mounts)
    arguments = others + ([{"name": "config", "value": options.config_path}] if named else [])
    new = {
        "extraArgs": arguments if listed else {item.get("name"): item.get("value") for item in arguments},
        "extraVolumes": [*(item for item in volumes if not _is_ours(str(item.get("name")))), *ours],
    }
    kept = {key: value for key, value in part.items() if key not in new}
    scheduler = {**kept, **{key: value for key, value in new.items() if value}}
    after = {**before, "scheduler": scheduler} if scheduler or "scheduler" in before else dict(before)
    return Kubeadm(
        known=bool(before),
        differs=bool(before) and after != before,
        after=after,
        volumes=ours,
        unlike=unlike if before else {},
        kubespray=_KUBESPRAY_FILE in str(mapping(seen.get("configured")).get("scheduler_config_path", "")),
        unread=line(mapping(seen.get("kubeadm")).get("msg", "")),
    )


def _arguments_of_others(
    part: Mapping[str, Any], listed: bool, config_path: str, volumes: Sequence[Mapping[str, Any]]
) -> List[Dict[str, Any]]:
    """Return extraArgs without ours, which an earlier scheduler_config_path is too: it is in our volume."""
    given = part.get("extraArgs")
    pairs = [{"name": name, "value": value} for name, value in mapping(given).items()]
    arguments = [dict(item) for item in mappings(given)] if listed else pairs
    directories = [item.get("hostPath") for item in volumes if item.get("name") == _CONFIG_VOLUME]

    def ours(item: Mapping[str, Any]) -> bool:
        path = str(item.get("value"))
        return item.get("name") == "config" and (path == config_path or posixpath.dirname(path) in directories)

    return [item for item in arguments if not ours(item)]


def _unlike(options: Options, inventory: Inventory) -> Dict[str, str]:
    """Return the control planes whose kube-scheduler reads another file, as their manifests were edited by hand."""
    found: Dict[str, str] = {}
    for host in inventory.members(CONTROL_PLANES):
        variables = inventory.variables(host)
        registers = [mapping(variables.get(name)) for name in ("__scheduler_configured", "__scheduler_proposal")]
        read = next((str(each["scheduler_config_path"]) for each in registers if "scheduler_config_path" in each), "")
        root = without_slash(str(variables.get("scheduler_host_root", options.host_root)))
        if read not in ("", f"{root}{variables.get('scheduler_config_path', options.config_path)}"):
            found[host] = read
    return found


def _volumes(config_path: str, mounts: Sequence[str]) -> List[Dict[str, Any]]:
    wanted = [(_CONFIG_VOLUME, posixpath.dirname(config_path), "DirectoryOrCreate")] if config_path else []
    wanted += [(f"{_MOUNT_VOLUME}{_short_hash(path)}", path, "Directory") for path in mounts]
    return [
        {"name": name, "hostPath": path, "mountPath": path, "pathType": kind, "readOnly": True}
        for name, path, kind in wanted
    ]


def _short_hash(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def _is_ours(name: str) -> bool:
    return name.startswith((_CONFIG_VOLUME, _MOUNT_VOLUME))
