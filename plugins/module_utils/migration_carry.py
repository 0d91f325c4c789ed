# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which variables of ours say what NVIDIA's device plugin was told, and which of them are not set so. Pure.

The plugin is told by arguments, environment and a configuration file, in this order (its documentation, 0.20).
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Callable, Dict, List, Mapping, Tuple

from ansible_collections.accel.kubernetes.plugins.module_utils.migration_peers import (
    Object,
    Peer,
    labels_of,
    words_of,
)

CONFIG_LABEL = "nvidia.com/device-plugin.config"
_NVIDIA = ("nvidia", "gpu-operator")
_VARIABLES: Tuple[Tuple[str, str, str], ...] = (
    ("MIG_STRATEGY", "gpu_plugins_mig_strategy", "none"),
    ("DP_DISABLE_HEALTHCHECKS", "gpu_plugins_disable_healthchecks", ""),
    ("DP_ENABLE_HEALTHCHECKS", "gpu_plugins_enable_healthchecks", ""),
)
"""Environment of the plugin, our variable, and its default, which needs no saying."""
_OPERATOR_DRIVER_ROOT = "/run/nvidia/driver"


@dataclass(frozen=True)
class Carried:
    """What the plugin was told on a node."""

    variables: Mapping[str, Any]
    """By names of ours."""
    problems: Tuple[str, ...] = ()
    """What ours has otherwise."""


def configuration_map(peer: Peer) -> str:
    """The ConfigMap with its configuration files, ``namespace/name``; empty where it has none."""
    plugin = peer.daemonsets[0]
    if peer.kind.name not in _NVIDIA:
        return ""
    spec = plugin["spec"]["template"]["spec"]
    mounted = {
        mount["name"]
        for container in spec["containers"]
        for mount in container.get("volumeMounts") or ()
        if mount.get("mountPath") == "/available-configs"
    }
    names = (
        (volume.get("configMap") or {}).get("name") for volume in spec.get("volumes") or () if volume["name"] in mounted
    )
    name = next(filter(None, names), None)
    return f"{plugin['metadata']['namespace']}/{name}" if name else ""


def read(files: Mapping[str, object], parse: Callable[[str], Any]) -> Tuple[Dict[str, Any], Dict[str, str]]:
    """Configurations by name, as text or as documents, and why the others are none."""
    configurations: Dict[str, Any] = {}
    wrong: Dict[str, str] = {}
    for name, text in sorted(files.items()):
        try:
            document: Any = parse(text) if isinstance(text, str) else text
        except ValueError as error:
            wrong[name] = f"it is not YAML: {error}"
            continue
        if not isinstance(document or {}, dict):
            wrong[name] = "it is no mapping"
        elif not isinstance((document or {}).get("sharing") or {}, dict):
            wrong[name] = "its sharing is no mapping"
        else:
            configurations[name] = document
    return configurations, wrong


def carried(peer: Peer, node: Object, mode: str, files: Mapping[str, str], parse: Callable[[str], Any]) -> Carried:
    """What has to be set for the node. ``files`` are those of its ConfigMap, ``parse`` raises ValueError."""
    if peer.kind.name not in _NVIDIA:
        return Carried({})
    told = _told(peer.daemonsets[0])
    variables: Dict[str, Any] = {}
    if peer.kind.name == "gpu-operator" and labels_of(node).get("nvidia.com/gpu.deploy.driver") == "true":
        variables["gpu_plugins_driver_root"] = _OPERATOR_DRIVER_ROOT
    if mode != "pgpu":
        return Carried(variables)
    for name, variable, default in _VARIABLES:
        if told.get(name, default) != default:
            variables[variable] = told[name]
    configurations, wrong = read(files, parse)
    default = _default(told, files)
    name = labels_of(node).get(CONFIG_LABEL, default)
    problems = []
    if name in wrong:
        problems.append(
            f"its configuration {name} in ConfigMap {configuration_map(peer)} cannot be used: {wrong[name]}; "
            f"mend it there, or have the node name another by its label {CONFIG_LABEL}"
        )
    if configurations:
        variables["gpu_plugins_configs"] = configurations
    if default in configurations:
        variables["gpu_plugins_default_config"] = default
    return Carried(variables, tuple(problems))


def _told(daemonset: Object) -> Dict[str, str]:
    """Its environment, and arguments under the name of their variable, which come first."""
    told: Dict[str, str] = {}
    for container in daemonset["spec"]["template"]["spec"]["containers"]:
        for each in container.get("env") or ():
            # The plugin's own name is not the sidecar's: an empty value is none.
            if each.get("value"):
                told[each["name"]] = each["value"]
    for word in words_of(daemonset):
        match = re.fullmatch(r"--([a-z-]+)=(.+)", word)
        if match:
            told[match[1].replace("-", "_").upper()] = match[2]
    return told


def _default(told: Mapping[str, str], configurations: Mapping[str, Any]) -> str:
    """Which configuration nodes without the label have: the named one, ``default``, or the only one."""
    if told.get("DEFAULT_CONFIG"):
        return told["DEFAULT_CONFIG"]
    strategies = told.get("FALLBACK_STRATEGIES", "").split(",")
    if "named" in strategies and "default" in configurations:
        return "default"
    return next(iter(configurations)) if "single" in strategies and len(configurations) == 1 else ""


def unset(wanted: Mapping[str, Any], present: Mapping[str, Any], parse: Callable[[str], Any]) -> Dict[str, Any]:
    """Those that are not set so. Of configurations, each has to be there; others may be there too."""
    missing: Dict[str, Any] = {}
    for name, value in wanted.items():
        if name == "gpu_plugins_configs":
            there, _wrong = read(present.get(name) or {}, parse)
            if any(there.get(key) != text for key, text in value.items()):
                missing[name] = value
        elif str(present.get(name, "")) != str(value):
            missing[name] = value
    return missing


def unread(wanted: Mapping[str, Any], present: Mapping[str, Any], parse: Callable[[str], Any]) -> List[str]:
    """What the inventory has in place of configurations, where some are wanted."""
    name = "gpu_plugins_configs"
    _there, wrong = read(present.get(name) or {}, parse) if name in wanted else ({}, {})
    return [f"{name} of the inventory has {key}, which cannot be used: {why}; mend it" for key, why in wrong.items()]


def lines(variables: Mapping[str, Any]) -> List[str]:
    """For a person: ``name: value`` each."""
    return [f"{name}: {value}" for name, value in sorted(variables.items())]
