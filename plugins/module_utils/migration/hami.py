# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""HAMi's settings: the names and units of its resources, and the GPUs of a node that it leaves alone. Pure.

From release 2.4 on its plugin and its scheduler have one configuration file, before that flags each.
"""

from __future__ import annotations

import posixpath
import re
from dataclasses import dataclass, field, replace
from typing import Any, Callable, Dict, Iterable, Iterator, List, Mapping, Optional, Sequence, Tuple

from ansible_collections.accel.kubernetes.plugins.module_utils.migration.resources import Hami
from ansible_collections.accel.kubernetes.plugins.module_utils.migration.settings import (
    File,
    Maps,
    Object,
    Program,
    containers,
    program_settings,
    runs,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.modes import MIB

_NODES_FILE = "/config/config.json"
"""Where the plugin has what single nodes have otherwise; the path is built into it."""
_BOOLEANS = frozenset(
    {
        *(
            "fail-on-init-error",
            "pass-device-specs",
            "gdrcopy-enabled",
            "gds-enabled",
            "mofed-enabled",
            "imex-required",
        ),
        *("disable-core-limit", "debug", "legacy-metrics", "leader-elect", "force-overwrite-default-scheduler"),
        *("help", "h", "version"),
    }
)
_PLUGIN = Program(frozenset({"nvidia-device-plugin", "device-plugin"}), _BOOLEANS, {"config-file": ("CONFIG_FILE",)})
_IMAGE = re.compile(r"hami|vgpu|vdevice")
_SCHEDULER = Program(frozenset({"scheduler"}), _BOOLEANS, {}, posix=True)
_SAID: Mapping[str, Tuple[str, str]] = {
    "counts": ("resourceCountName", "resource-name"),
    "memories": ("resourceMemoryName", "resource-mem"),
    "percentages": ("resourceMemoryPercentageName", "resource-mem-percentage"),
    "cores": ("resourceCoreName", "resource-cores"),
    "priorities": ("resourcePriorityName", "resource-priority"),
    "unit_bytes": ("memoryFactor", ""),
    "memory_bytes": ("defaultMemory", "default-mem"),
    "percent": ("defaultCores", "default-cores"),
    "gpus": ("defaultGPUNum", "default-gpu"),
}
"""By field of ``Hami``, the key of its file and the flag."""
_POLICY, _NO_LIMIT = "gpuCorePolicy", "disableCoreLimit"
_SCALED = {"deviceMemoryScaling": "memory", "deviceCoreScaling": "cores"}
_NAMED_FLAGS = (
    *((name, flag) for name, flag in _SAID.values() if flag),
    (_NO_LIMIT, "disable-core-limit"),
    ("deviceMemoryScaling", "device-memory-scaling"),
    ("deviceCoreScaling", "device-cores-scaling"),
)
"""Keys of its file, and the flags that said the same before."""
_TRUE = ("true", "t", "1")
_UNITS: Mapping[str, int] = {"unit_bytes": MIB, "memory_bytes": MIB, "percent": 1, "gpus": 1}
"""The units of those that are numbers."""


@dataclass(frozen=True)
class HamiTold:
    """The settings of HAMi's plugin on a node."""

    resources: Hami = field(default_factory=Hami)
    excluded: Mapping[str, Tuple[str, ...]] = field(default_factory=dict)
    """By node, UUIDs and indices of GPUs that it does not hand out."""
    modes: Mapping[str, str] = field(default_factory=dict)
    """By node, how it divides the GPUs there, where its configuration says so."""
    remarks: Tuple[str, ...] = ()
    """Its settings that no mode here has."""
    unread: str = ""
    """What it goes by that cannot be read here, so that its chart's defaults are believed."""


def read(daemonset: Object, deployments: Iterable[Object], maps: Maps, parse: Callable[[str], Any]) -> HamiTold:
    """Read the settings of a DaemonSet of HAMi's, and of its scheduler where they have no file."""
    everyone = containers(daemonset)
    plugin = program_settings(
        daemonset, ([each for each in everyone if runs(each, _PLUGIN.names)] or everyone)[0], _PLUGIN, maps
    )
    nodes, wrong = _nodes(plugin.files.get(_NODES_FILE), parse)
    path = plugin.values.get("config-file", "")
    said: Mapping[str, Any]
    if not path:
        flags = {**_flags(deployments, maps), **plugin.values}
        said, why = {name: flags[flag] for name, flag in _NAMED_FLAGS if flag in flags}, ""
    else:
        file = plugin.files.get(posixpath.normpath(path))
        why = f"its configuration {path} is in no ConfigMap that can be read"
        said, why = ({}, why) if file is None else _section(file, parse)
    return HamiTold(
        _settled({key: said.get(name) for key, (name, _flag) in _SAID.items()}),
        {str(each.get("name")): gpus for each in nodes if (gpus := _left_alone(each))},
        {str(each.get("name")): str(mode) for each in nodes if (mode := each.get("operatingmode"))},
        tuple(_remarks(said, nodes)),
        " and ".join(filter(None, (wrong, why))),
    )


def _remarks(said: Mapping[str, Any], nodes: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    """Yield a sentence for each setting that no mode here has."""
    policy = str(said.get(_POLICY) or "default")
    if str(said.get(_NO_LIMIT)).lower() in _TRUE or policy == "disable":
        yield "does not hold programs to their cores (gpuCorePolicy); the modes here that share do"
    elif policy not in ("default", "force"):
        yield f"has the gpuCorePolicy {policy}, which is not known here; cores are limits here"
    for name, of_what in _SCALED.items():
        values = [said.get(name), *(each.get(name.lower()) for each in nodes)]
        most = max([1.0, *(number for value in values if (number := _fraction(value)) is not None)])
        if most > 1:
            yield (
                f"allocates {most:g} times the {of_what} that GPUs have ({name}), which no mode here does: pods may be "
                "pending"
            )


def _fraction(value: object) -> Optional[float]:
    try:
        return float(str(value))
    except ValueError:
        return None


def _flags(deployments: Iterable[Object], maps: Maps) -> Dict[str, str]:
    """Return the flags of its scheduler, from every Deployment that runs one."""
    values: Dict[str, str] = {}
    for item in deployments:
        for each in containers(item) if item.get("spec") else ():
            if runs(each, _SCHEDULER.names) and _IMAGE.search(str(each.get("image"))):
                values.update(program_settings(item, each, _SCHEDULER, maps).values)
    return values


def _settled(said: Mapping[str, object]) -> Hami:
    """Return it with what was said in place of what its chart has."""
    changes: Dict[str, Any] = {}
    for key, value in said.items():
        number = _number(value)
        if value is None:
            continue
        if key not in _UNITS:
            changes[key] = (str(value),)
        elif number is not None and (number or key in ("memory_bytes", "percent")):
            changes[key] = number * _UNITS[key]
    return replace(Hami(), **changes)


def _number(value: object) -> Optional[int]:
    text = str(value).strip() if isinstance(value, (int, str)) and not isinstance(value, bool) else ""
    return int(text) if text.isascii() and text.isdigit() else None


def _section(file: File, parse: Callable[[str], Any]) -> Tuple[Mapping[str, Any], str]:
    """Return what a file says of NVIDIA's GPUs, and why it cannot be used."""
    try:
        document = parse(file.text)
    except ValueError as error:
        return {}, f"{file.key} in ConfigMap {file.configmap} is not YAML: {error}"
    section = document.get("nvidia") if isinstance(document, dict) else None
    return (
        (section, "") if isinstance(section, dict) else ({}, f"{file.key} in ConfigMap {file.configmap} has no nvidia")
    )


def _nodes(file: Optional[File], parse: Callable[[str], Any]) -> Tuple[List[Mapping[str, Any]], str]:
    """Return what single nodes set differently, with keys in lower case, and why that is not known."""
    if file is None:
        return [], ""
    try:
        document = _lowered(parse(file.text))
    except ValueError as error:
        return [], f"{file.key} in ConfigMap {file.configmap} is not JSON: {error}"
    entries = document.get("nodeconfig") if isinstance(document, dict) else None
    return [each for each in entries if isinstance(each, dict)] if isinstance(entries, list) else [], ""


def _left_alone(entry: Mapping[str, Any]) -> Tuple[str, ...]:
    """Return the GPUs of a node that the plugin does not register."""
    found = entry.get("filterdevices")
    lists = [found.get(key) for key in ("uuid", "index")] if isinstance(found, dict) else []
    return tuple(str(item) for items in lists if isinstance(items, list) for item in items)


def _lowered(value: object) -> object:
    """Return the value with all keys in lower case: Go's JSON does not tell them apart."""
    if isinstance(value, dict):
        return {str(key).lower(): _lowered(item) for key, item in value.items()}
    return [_lowered(item) for item in value] if isinstance(value, list) else value
