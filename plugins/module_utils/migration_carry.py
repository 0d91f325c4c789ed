# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which variables of ours say what NVIDIA's device plugin was told, and which of them are not set so. Pure.

The plugin is told by arguments, environment and a configuration file, in this order (its documentation, 0.20).
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from ansible_collections.accel.kubernetes.plugins.module_utils.migration_peers import Object, Peer, labels_of
from ansible_collections.accel.kubernetes.plugins.module_utils.migration_told import (
    ANYTHING,
    File,
    Maps,
    Program,
    Told,
    containers,
    runs,
    told,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.share_resources import GIB, MIB

CONFIG_LABEL = "nvidia.com/device-plugin.config"
_NVIDIA = ("nvidia", "gpu-operator")
_HEALTH: Mapping[str, str] = {
    "DP_DISABLE_HEALTHCHECKS": "gpu_plugins_disable_healthchecks",
    "DP_ENABLE_HEALTHCHECKS": "gpu_plugins_enable_healthchecks",
}
"""Environment of the plugin, and our variable."""
_OPERATOR_DRIVER_ROOT = "/run/nvidia/driver"
_MANAGER, _DIRECTORY = "config-manager", "/available-configs"
"""The program that picks a configuration by the node's label, and where from."""
_BESIDE = (_MANAGER, "gpu-feature-discovery", "mps-control-daemon")
_FLAGS = frozenset(
    {
        *("fail-on-init-error", "restart-on-device-unhealthy", "pass-device-specs", "gds-enabled", "gdrcopy-enabled"),
        *("mofed-enabled", "imex-required", "oneshot", "send-signal", "help", "h", "version", "v"),
    }
)
_PLUGIN = Program(
    frozenset({"nvidia-device-plugin"}),
    _FLAGS,
    {
        "mig-strategy": ("MIG_STRATEGY",),
        "config-file": ("CONFIG_FILE",),
        # Of config-manager, where one container has both programs' environment.
        **{"config-file-srcdir": ("CONFIG_FILE_SRCDIR",), "default-config": ("DEFAULT_CONFIG",)},
        **{"fallback-strategies": ("FALLBACK_STRATEGIES",), "node-label": ("NODE_LABEL",)},
    },
)
_CONFIG_MANAGER = Program(frozenset({_MANAGER}), _FLAGS, _PLUGIN.variables)

_GPUSHARE = Program(
    frozenset({"gpushare-device-plugin", "gpushare-device-plugin-v2"}),
    frozenset({"logtostderr", "alsologtostderr", "mps", "health-check", "query-kubelet"}),
    {},
)


@dataclass(frozen=True)
class Carried:
    """What the plugin was told on a node."""

    variables: Mapping[str, Any]
    """By names of ours."""
    problems: Tuple[str, ...] = ()
    """What ours has otherwise."""
    configuration: Mapping[str, Any] = field(default_factory=dict)
    """The document that the node has, empty where there is none."""
    unknown: str = ""
    """What is not to be had of it, so that only a person can say it in gpu_plugins_configs."""


@dataclass(frozen=True)
class Settings:
    """What one DaemonSet of NVIDIA's plugin was told."""

    values: Mapping[str, str]
    environment: Mapping[str, str]
    files: Mapping[str, File]
    """Its configurations by name."""
    default: str
    """Which of them nodes without the label have."""
    label: str
    """The label of nodes that names one; empty where the plugin goes by no label."""
    unknown: str = ""


def settings(daemonset: Object, maps: Maps, node: str = "") -> Settings:
    """Read what the DaemonSet was told on a node, wherever that is said."""
    everyone = containers(daemonset)
    others = [each for each in everyone if not runs(each, _BESIDE)]
    named = [each for each in others if runs(each, _PLUGIN.names)]
    mounting = [each for each in others if _kubelets(each)]
    plugin = told(daemonset, (named or mounting or others or everyone)[0], _PLUGIN, maps, node)
    managers = [told(daemonset, each, _CONFIG_MANAGER, maps, node) for each in everyone if runs(each, (_MANAGER,))]
    values = {**plugin.values}
    for each in managers:
        values.update({name: value for name, value in each.values.items() if name != "config-file"})
    path = posixpath.normpath(values["config-file"]) if values.get("config-file") else ""
    unknown = _unread(plugin, path, bool(managers))
    if path in plugin.files:
        file = plugin.files[path]
        return Settings(values, plugin.environment, {file.key: file}, file.key, "", unknown)
    directory = posixpath.normpath(values.get("config-file-srcdir") or _DIRECTORY)
    found = {
        posixpath.basename(name): file
        for each in (*managers, plugin)
        for name, file in each.files.items()
        if posixpath.dirname(name) == directory
    }
    label = values.get("node-label") or CONFIG_LABEL
    return Settings(values, plugin.environment, found, _default(values, found), label, unknown)


def _kubelets(container: Object) -> bool:
    mounts = container.get("volumeMounts") or ()
    return any((each.get("mountPath") or "").rstrip("/").endswith("/device-plugins") for each in mounts)


def _unread(plugin: Told, path: str, managed: bool) -> str:
    """What the plugin goes by and cannot be read here."""
    hidden = [
        f"{variable} is from {plugin.unread[variable]}"
        for name in ("mig-strategy", "config-file")
        for variable in _PLUGIN.variables[name]
        if variable in plugin.unread and name not in plugin.values
    ]
    if ANYTHING in plugin.unread and not {"mig-strategy", "config-file"} <= plugin.values.keys():
        hidden.append(f"its environment is from {plugin.unread[ANYTHING]}")
    if path and path not in plugin.files and not managed and not plugin.files:
        hidden.append(f"its configuration {path} is in no ConfigMap that can be read")
    elif path and path not in plugin.files and not managed:
        hidden.append(f"its configuration {path} is in none of the ConfigMaps that it mounts")
    return " and ".join(hidden)


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


def carried(
    peer: Peer, node: Object, mode: str, maps: Maps, parse: Callable[[str], Any], serving: Optional[Object] = None
) -> Carried:
    """What has to be set for the node, by its DaemonSet. ``parse`` raises ValueError."""
    if peer.kind.name not in _NVIDIA:
        return Carried({})
    own = serving or peer.plugins[0]
    name = node["metadata"]["name"]
    said = settings(own, maps, name)
    variables: Dict[str, Any] = {}
    if peer.kind.name == "gpu-operator" and labels_of(node).get("nvidia.com/gpu.deploy.driver") == "true":
        variables["gpu_plugins_driver_root"] = _OPERATOR_DRIVER_ROOT
    configurations, wrong = read({name: file.text for name, file in said.files.items()}, parse)
    strategy = said.values.get("mig-strategy")
    configurations = {name: _overridden(each, strategy) for name, each in configurations.items()}
    chosen = labels_of(node).get(said.label, said.default) if said.label else said.default
    problems = []
    if chosen in wrong:
        file = said.files[chosen]
        label = f", or have the node name another by its label {said.label}" if said.label else ""
        problems.append(
            f"its configuration {chosen} in ConfigMap {file.configmap} cannot be used: {wrong[chosen]}; "
            f"mend it there{label}"
        )
    configuration = configurations.get(chosen) or {}
    if mode != "pgpu":
        return Carried(variables, (), configuration, said.unknown)
    health = ((ours, said.environment.get(name)) for name, ours in _HEALTH.items())
    variables.update({ours: value for ours, value in health if value})
    if any(_said(settings(each, maps, name)) != _said(said) for each in peer.plugins):
        variables.update(_of_its_own(own, chosen, configuration, strategy))
        return Carried(variables, tuple(problems), configuration, said.unknown)
    if strategy not in (None, "none"):
        variables["gpu_plugins_mig_strategy"] = strategy
    if configurations:
        variables["gpu_plugins_configs"] = configurations
    # A default is every node's, and a file that is named by the node is not.
    default = said.default if settings(own, maps).default == said.default else ""
    if default in configurations:
        variables["gpu_plugins_default_config"] = default
    # Ours goes by this label alone.
    if chosen in configurations and labels_of(node).get(CONFIG_LABEL, default) != chosen:
        variables["gpu_plugins_config"] = chosen
    return Carried(variables, tuple(problems), configuration, said.unknown)


def _said(said: Settings) -> Tuple[Any, ...]:
    """What of it has to be said of ours too."""
    texts = {name: file.text for name, file in said.files.items()}
    return said.values.get("mig-strategy") or "none", texts, said.default, said.label


def left_out(peer: Peer, maps: Maps, parse: Callable[[str], Any]) -> List[str]:
    """Say of each file among its configurations that is none why."""
    lost: Dict[str, None] = {}
    for item in peer.plugins if peer.kind.name in _NVIDIA else ():
        said = settings(item, maps)
        _configurations, wrong = read({name: file.text for name, file in said.files.items()}, parse)
        for name, why in wrong.items():
            source = said.files[name].configmap
            lost[f"ConfigMap {source} has {name}, which is no configuration and is left out: {why}"] = None
    return list(lost)


def _overridden(configuration: object, strategy: Optional[str]) -> object:
    """With what a flag or variable said in its place: NVIDIA's goes by that first, and ours by the file."""
    if not isinstance(configuration, dict) or strategy is None:
        return configuration
    flags = configuration.get("flags")
    if not isinstance(flags, dict) or flags.get("migStrategy") in (None, strategy):
        return configuration
    return {**configuration, "flags": {**flags, "migStrategy": strategy}}


def _of_its_own(daemonset: Object, chosen: str, configuration: Mapping[str, Any], strategy: Optional[str]) -> Object:
    """Where DaemonSets were told differently, a configuration for the node: ours is one DaemonSet for all."""
    document: Dict[str, Any] = {"version": "v1", **configuration}
    if strategy not in (None, "none"):
        document["flags"] = {**(document.get("flags") or {}), "migStrategy": strategy}
    if document == {"version": "v1"}:
        return {}
    name = ".".join(filter(None, (daemonset["metadata"]["name"], chosen)))[-63:].lstrip("-._")
    return {"gpu_plugins_configs": {name: document}, "gpu_plugins_config": name}


def _default(values: Mapping[str, str], configurations: Mapping[str, Any]) -> str:
    """Which configuration nodes without the label have: the named one, ``default``, or the only one."""
    if values.get("default-config"):
        return values["default-config"]
    strategies = values.get("fallback-strategies", "").split(",")
    if "named" in strategies and "default" in configurations:
        return "default"
    return next(iter(configurations)) if "single" in strategies and len(configurations) == 1 else ""


def replicas(configuration: Mapping[str, Any]) -> Tuple[int, str]:
    """Into how many parts a configuration has each GPU shared, and how: ``time-slicing``, ``mps``, or empty."""
    sharing = configuration.get("sharing") or {}
    for key, how in (("timeSlicing", "time-slicing"), ("mps", "mps")):
        part = sharing.get(key)
        entries = part.get("resources") if isinstance(part, dict) else None
        for each in entries if isinstance(entries, list) else ():
            count = each.get("replicas") if isinstance(each, dict) else None
            if isinstance(count, int) and count > 1 and each.get("name") in ("gpu", "nvidia.com/gpu"):
                return count, how
    return 1, ""


def memory_unit(peer: Peer, serving: Sequence[Object], maps: Maps) -> int:
    """Return the bytes of a unit of ``aliyun.com/gpu-mem`` on a node, by the DaemonSet that serves it."""
    mib: int = MIB
    gib: int = GIB
    for item in (*serving, *peer.plugins)[:1] if peer.kind.name == "gpushare" else ():
        units = (told(item, each, _GPUSHARE, maps).values.get("memory-unit") for each in containers(item))
        return mib if "MiB" in units else gib
    return gib


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
