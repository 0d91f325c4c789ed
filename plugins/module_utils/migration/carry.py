# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Which variables of ours stand for the settings of NVIDIA's device plugin, and which of them are not set so. Pure.

The plugin is set by arguments, environment and a configuration file, in this order (its documentation, 0.20).
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Callable, Dict, List, Mapping, Optional, Sequence, Tuple

from ansible_collections.accel.kubernetes.plugins.module_utils.migration.peers import Object, Peer, full_name, labels_of
from ansible_collections.accel.kubernetes.plugins.module_utils.migration.settings import (
    ANYTHING,
    File,
    Maps,
    Program,
    ProgramSettings,
    containers,
    program_settings,
    runs,
    truth,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.modes import GIB, MIB

from ..shared import label_names

CONFIG_LABEL = label_names.CONFIG
EXCLUDED = "gpu_plugins_excluded_gpus"
_SOME_NODE = "some\0node"
"""A name that no node has."""
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
        **{"gdrcopy-enabled": ("GDRCOPY_ENABLED",), "gds-enabled": ("GDS_ENABLED",)},
        **{"mofed-enabled": ("MOFED_ENABLED",), "driver-root": ("NVIDIA_DRIVER_ROOT",)},
        # Of config-manager, where one container has both programs' environment.
        **{"config-file-srcdir": ("CONFIG_FILE_SRCDIR",), "default-config": ("DEFAULT_CONFIG",)},
        **{"fallback-strategies": ("FALLBACK_STRATEGIES",), "node-label": ("NODE_LABEL",)},
    },
)
_CONFIG_MANAGER = Program(frozenset({_MANAGER}), _FLAGS, _PLUGIN.variables)

_SEEN = "NVIDIA_VISIBLE_DEVICES"
"""Environment by which the runtime lets a plugin see some GPUs alone."""
_OF_FILE: Mapping[str, str] = {
    "mig-strategy": "migStrategy",
    "gdrcopy-enabled": "gdrcopyEnabled",
    "gds-enabled": "gdsEnabled",
    "mofed-enabled": "mofedEnabled",
}
"""Flags, and what stands for them in a configuration file."""
_SWITCHES = ("gdrcopyEnabled", "gdsEnabled", "mofedEnabled")

_GPUSHARE = Program(
    frozenset({"gpushare-device-plugin", "gpushare-device-plugin-v2"}),
    frozenset({"logtostderr", "alsologtostderr", "mps", "health-check", "query-kubelet"}),
    {},
)


@dataclass(frozen=True)
class Carried:
    """The plugin's settings on a node."""

    variables: Mapping[str, Any]
    """By names of ours."""
    problems: Tuple[str, ...] = ()
    """What ours has otherwise."""
    configuration: Mapping[str, Any] = field(default_factory=dict)
    """The document that the node has, empty where there is none."""
    unknown: str = ""
    """What is not to be had of it, so that only a person can say it in gpu_plugins_configs."""
    strategy: str = ""
    """For MIG, of NVIDIA's plugin."""
    hidden: str = ""
    """Why it is not known which GPUs it does not see, so that only a person can say it in gpu_plugins_excluded_gpus."""


@dataclass(frozen=True)
class Settings:
    """The settings of one DaemonSet of NVIDIA's plugin."""

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
    """Read the DaemonSet's settings on a node, wherever they stand."""
    everyone = containers(daemonset)
    others = [each for each in everyone if not runs(each, _BESIDE)]
    named = [each for each in others if runs(each, _PLUGIN.names)]
    mounting = [each for each in others if _kubelets(each)]
    plugin = program_settings(daemonset, (named or mounting or others or everyone)[0], _PLUGIN, maps, node)
    managers = [
        program_settings(daemonset, each, _CONFIG_MANAGER, maps, node) for each in everyone if runs(each, (_MANAGER,))
    ]
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


def _unread(plugin: ProgramSettings, path: str, managed: bool) -> str:
    """Return what the plugin goes by that cannot be read here."""
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


class Reader:
    """The settings of DaemonSets: each is read once, and again for a node only where it goes by the node's name."""

    def __init__(self, maps: Maps, parse: Callable[[str], Any]) -> None:
        self.maps = maps
        self.parse: Callable[[str], Any] = lru_cache(maxsize=None)(parse)
        """Raises ValueError."""
        self._common: Dict[str, Settings] = {}

    def settings(self, daemonset: Object, node: str) -> Settings:
        """Read the DaemonSet's settings on a node."""
        name = full_name(daemonset)
        if name not in self._common:
            self._common[name] = settings(daemonset, self.maps, _SOME_NODE)
        common = self._common[name]
        said = (*common.values.values(), *map(common.environment.get, (*_HEALTH, _SEEN)), common.default)
        return settings(daemonset, self.maps, node) if any(_SOME_NODE in (each or "") for each in said) else common

    def default(self, daemonset: Object) -> str:
        """Return which configuration nodes without the label have; empty where that goes by the node's name."""
        default = self.settings(daemonset, "").default
        return default if self.settings(daemonset, _SOME_NODE).default == default else ""


def carried(
    peer: Peer, node: Object, mode: str, reader: Reader, serving: Optional[Object] = None, gpus: Sequence[Object] = ()
) -> Carried:
    """Return what has to be set for the node, by its DaemonSet.

    ``gpus``: those of the node with uuid and index, as known.
    """
    own = serving or peer.plugins[0]
    name = node["metadata"]["name"]
    said = reader.settings(own, name)
    variables, hidden = _hidden(own, said, gpus)
    if peer.kind.name not in _NVIDIA:
        return Carried(variables, hidden=hidden)
    configurations, wrong = read({name: file.text for name, file in said.files.items()}, reader.parse)
    configurations = {name: _effective(each, said.values) for name, each in configurations.items()}
    chosen = labels_of(node).get(said.label, said.default) if said.label else said.default
    problems = []
    if chosen in wrong:
        file = said.files[chosen]
        label = f", or have the node name another by its label {said.label}" if said.label else ""
        problems.append(
            f"its configuration {chosen} in ConfigMap {file.configmap} cannot be used: {wrong[chosen]}; "
            f"correct it there{label}"
        )
    configuration = configurations.get(chosen) or {}
    root = _driver_root(peer, node, said.values, configuration)
    if root:
        variables["gpu_plugins_driver_root"] = root
    strategy = _strategy(said.values, configuration)
    if mode != "pgpu":
        return Carried(variables, (), configuration, said.unknown, strategy, hidden)
    health = ((ours, said.environment.get(name)) for name, ours in _HEALTH.items())
    variables.update({ours: value for ours, value in health if value})
    told_strategy = said.values.get("mig-strategy")
    alike = all(_said(reader.settings(each, name)) == _said(said) for each in peer.plugins)
    if not alike or (_switched(said.values) and not configurations):
        variables.update(_of_its_own(own, chosen, _effective(configuration, said.values), told_strategy))
        return Carried(variables, tuple(problems), configuration, said.unknown, strategy, hidden)
    if told_strategy not in (None, "none"):
        variables["gpu_plugins_mig_strategy"] = told_strategy
    if configurations:
        variables["gpu_plugins_configs"] = configurations
    default = said.default if reader.default(own) == said.default else ""
    if default in configurations:
        variables["gpu_plugins_default_config"] = default
    # Ours goes by this label alone.
    if chosen in configurations and labels_of(node).get(CONFIG_LABEL, default) != chosen:
        variables["gpu_plugins_config"] = chosen
    return Carried(variables, tuple(problems), configuration, said.unknown, strategy, hidden)


def _said(said: Settings) -> Tuple[Any, ...]:
    """Return the part of it that our own settings have to say too."""
    texts = {name: file.text for name, file in said.files.items()}
    return said.values.get("mig-strategy") or "none", _switched(said.values), texts, said.default, said.label


def _switched(values: Mapping[str, str]) -> Dict[str, bool]:
    """Switches of a configuration file that a flag or variable turned on."""
    named = ((flag, key) for flag, key in _OF_FILE.items() if key in _SWITCHES)
    return {key: True for flag, key in named if truth(values.get(flag, ""))}


def _strategy(values: Mapping[str, str], configuration: Mapping[str, Any]) -> str:
    flags = configuration.get("flags")
    said = values.get("mig-strategy") or (flags.get("migStrategy") if isinstance(flags, dict) else None)
    return str(said or "none")


def _driver_root(peer: Peer, node: Object, values: Mapping[str, str], configuration: Mapping[str, Any]) -> str:
    """Return where the driver is on the node; empty where it is the node's own."""
    if peer.kind.name == "gpu-operator":
        return _OPERATOR_DRIVER_ROOT if labels_of(node).get("nvidia.com/gpu.deploy.driver") == "true" else ""
    flags = configuration.get("flags")
    root = values.get("nvidia-driver-root") or values.get("driver-root")
    root = root or (flags.get("nvidiaDriverRoot") if isinstance(flags, dict) else None)
    return "" if root in (None, "/") else str(root)


def _hidden(daemonset: Object, said: Settings, gpus: Sequence[Object]) -> Tuple[Dict[str, Any], str]:
    """Return the GPUs that the runtime hides from the plugin, and why it is not known which these are."""
    seen = said.environment.get(_SEEN, "all")
    if seen in ("all", "void", "none", "") or any(map(_is_privileged, containers(daemonset))):
        return {}, ""
    words = [word.strip() for word in seen.split(",")]
    known = {name for gpu in gpus for name in (str(gpu["index"]), str(gpu["uuid"]))}
    if not gpus or not set(words) <= known:
        return {}, f"its plugin sees {seen} alone ({_SEEN}); exclude all other GPUs by {EXCLUDED}"
    others = [str(gpu["uuid"]) for gpu in gpus if not {str(gpu["index"]), str(gpu["uuid"])} & set(words)]
    return {EXCLUDED: others} if others else {}, ""


def _is_privileged(container: Object) -> bool:
    return bool((container.get("securityContext") or {}).get("privileged"))


def left_out(peer: Peer, reader: Reader) -> List[str]:
    """Say of each file among its configurations that is none why."""
    lost: Dict[str, None] = {}
    for item in peer.plugins if peer.kind.name in _NVIDIA else ():
        said = reader.settings(item, "")
        _configurations, wrong = read({name: file.text for name, file in said.files.items()}, reader.parse)
        for name, why in wrong.items():
            source = said.files[name].configmap
            lost[f"ConfigMap {source} has {name}, which is no configuration and is left out: {why}"] = None
    return list(lost)


def _effective(configuration: Optional[Mapping[str, Any]], values: Mapping[str, str]) -> Mapping[str, Any]:
    """Return a configuration as NVIDIA's plugin has it, which ours takes as it stands.

    What a flag or variable says goes before it, and neither names nor choices of devices have an effect.
    """
    configuration = configuration or {}
    flags = configuration.get("flags")
    flags = flags if isinstance(flags, dict) else {}
    strategy = values.get("mig-strategy")
    over: Dict[str, Any] = {**_switched(values)}
    if strategy is not None and flags.get("migStrategy") is not None:
        over["migStrategy"] = strategy
    found = (
        {**configuration, "flags": {**flags, **over}}
        if any(flags.get(key) != over[key] for key in over)
        else configuration
    )
    sharing = found.get("sharing")
    if not isinstance(sharing, dict):
        return found
    shared = {how: _unnamed(part) for how, part in sharing.items()}
    return {**found, "sharing": shared} if shared != sharing else found


def _unnamed(part: object) -> object:
    """Return how GPUs are shared, without names of its own and without choices of devices."""
    entries = part.get("resources") if isinstance(part, dict) else None
    if not isinstance(part, dict) or not isinstance(entries, list):
        return part
    kept = [
        {key: value for key, value in each.items() if key not in ("rename", "devices")}
        if isinstance(each, dict)
        else each
        for each in entries
    ]
    return {**part, "resources": kept}


def _of_its_own(daemonset: Object, chosen: str, configuration: Mapping[str, Any], strategy: Optional[str]) -> Object:
    """Return the node's own configuration, where DaemonSets are set differently: ours is one for all nodes."""
    document: Dict[str, Any] = {"version": "v1", **configuration}
    if strategy not in (None, "none"):
        document["flags"] = {**(document.get("flags") or {}), "migStrategy": strategy}
    if document == {"version": "v1"}:
        return {}
    name = ".".join(filter(None, (daemonset["metadata"]["name"], chosen)))[-63:].lstrip("-._")
    return {"gpu_plugins_configs": {name: document}, "gpu_plugins_config": name}


def _default(values: Mapping[str, str], configurations: Mapping[str, Any]) -> str:
    """Return which configuration nodes without the label have: the named one, ``default``, or the only one."""
    if values.get("default-config"):
        return values["default-config"]
    strategies = values.get("fallback-strategies", "").split(",")
    if "named" in strategies and "default" in configurations:
        return "default"
    return next(iter(configurations)) if "single" in strategies and len(configurations) == 1 else ""


def replicas(configuration: Mapping[str, Any]) -> Dict[str, Tuple[int, str]]:
    """Return, by resource, into how many parts its devices are shared, and how: ``time-slicing`` or ``mps``."""
    sharing = configuration.get("sharing") or {}
    found: Dict[str, Tuple[int, str]] = {}
    for key, how in (("timeSlicing", "time-slicing"), ("mps", "mps")):
        part = sharing.get(key)
        entries = part.get("resources") if isinstance(part, dict) else None
        for each in entries if isinstance(entries, list) else ():
            name, count = (each.get("name"), each.get("replicas")) if isinstance(each, dict) else (None, None)
            if isinstance(name, str) and isinstance(count, int) and count > 1:
                found.setdefault(name if "/" in name else f"nvidia.com/{name}", (count, how))
    return found


def memory_unit(peer: Peer, serving: Sequence[Object], maps: Maps) -> int:
    """Return the bytes of a unit of ``aliyun.com/gpu-mem`` on a node, by the DaemonSet that serves it."""
    mib: int = MIB
    gib: int = GIB
    for item in (*serving, *peer.plugins)[:1] if peer.kind.name == "gpushare" else ():
        units = (program_settings(item, each, _GPUSHARE, maps).values.get("memory-unit") for each in containers(item))
        return mib if "MiB" in units else gib
    return gib


def unset(wanted: Mapping[str, Any], present: Mapping[str, Any], parse: Callable[[str], Any]) -> Dict[str, Any]:
    """Return the settings that differ. Each configuration and GPU has to be there; others may be there too."""
    missing: Dict[str, Any] = {}
    for name, value in wanted.items():
        if name == "gpu_plugins_configs":
            there, _wrong = read(present.get(name) or {}, parse)
            if any(there.get(key) != text for key, text in value.items()):
                missing[name] = value
        elif name == EXCLUDED:
            named = {str(each).strip().lower() for each in present.get(name) or ()}
            if not {str(each).lower() for each in value} <= named:
                missing[name] = value
        elif str(present.get(name, "")) != str(value):
            missing[name] = value
    return missing


def unread(wanted: Mapping[str, Any], present: Mapping[str, Any], parse: Callable[[str], Any]) -> List[str]:
    """Return what the inventory has in place of configurations, where some are wanted."""
    name = "gpu_plugins_configs"
    _there, wrong = read(present.get(name) or {}, parse) if name in wanted else ({}, {})
    return [f"{name} of the inventory has {key}, which cannot be used: {why}; correct it" for key, why in wrong.items()]


def lines(variables: Mapping[str, Any]) -> List[str]:
    """Return a line ``name: value`` each, for a person."""
    return [f"{name}: {value}" for name, value in sorted(variables.items())]
