# SPDX-License-Identifier: Apache-2.0
"""A configuration as NVIDIA's device plugin has it (api/config/v1 of its source): what that takes is taken. Pure.

What it takes and ignores, and what nothing here needs, is noted. A file with a mistake is refused as a whole.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, replace
from typing import Any

from kube_accel.model import Mode
from kube_accel.plugin import goyaml
from kube_accel.plugin.deliveryflags import DeliveryFlags
from kube_accel.sharing.delivery import Strategy
from kube_accel.sharing.profile import mode_of
from kube_accel.sharing.replication import Replication

PREFIX = "nvidia.com/"

_MAX_NAME = 63
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?")
_DEVICE = re.compile(r"\d+(:\d+)?|(GPU|MIG)-[A-Za-z0-9/-]+")

_UNUSED_FLAGS = (
    "failOnInitError",
    "restartOnDeviceUnhealthy",
    "mpsRoot",
    "nvidiaDevRoot",
    "useNodeFeatureAPI",
    "deviceDiscoveryStrategy",
)
_UNUSED_PLUGIN_FLAGS = ("nvidiaCTKPath", "nvidiaCDIHookPath", "cdiFeatureFlags", "cdiDisableHooks")
_GFD_FLAGS = ("oneshot", "noTimestamp", "sleepInterval", "outputFile", "machineTypeFile")


class ConfigError(ValueError):
    """The text is no configuration; the message names every key that is wrong, and why."""


@dataclass(frozen=True, slots=True)
class Configuration(DeliveryFlags):
    """What a file says, also of what is a flag of the command. None: nothing, so that a flag or a default decides."""

    mig_strategy: str | None = None
    pack_shared: bool = False
    """Replicas of one GPU are handed out one after the other; otherwise those of the least used."""
    imex_channels: tuple[int, ...] = ()
    replications: tuple[Replication, ...] = ()
    one_replica_each: bool = False
    """A container gets one replica at most."""
    notes: tuple[str, ...] = ()
    """What of it has no effect, for a person."""


def parse(text: str) -> Configuration:
    """What the file says. Raises ConfigError."""
    try:
        document = goyaml.load(text)
    except ValueError as error:
        raise ConfigError(str(error)) from error
    reader = _Reader()
    found = _configuration(reader, document)
    if reader.problems:
        raise ConfigError("; ".join(reader.problems))
    return found


def _configuration(reader: _Reader, document: object) -> Configuration:
    top = reader.section(document, "", ("version", "flags", "resources", "sharing", "imex"))
    if top.get("version") not in (None, "", "v1"):
        reader.problem("version", f"is {top['version']!r}; it must be v1")
    flags = reader.section(
        top.get("flags"),
        "flags",
        ("migStrategy", "nvidiaDriverRoot", "gdrcopyEnabled", "gdsEnabled", "mofedEnabled", "plugin", "gfd"),
        _UNUSED_FLAGS,
    )
    plugin = reader.section(
        flags.get("plugin"),
        "flags.plugin",
        (
            "passDeviceSpecs",
            "deviceListStrategy",
            "deviceIDStrategy",
            "cdiAnnotationPrefix",
            "containerDriverRoot",
            "sharedDevicesAllocationPolicy",
        ),
        _UNUSED_PLUGIN_FLAGS,
    )
    reader.section(flags.get("gfd"), "flags.gfd", (), _GFD_FLAGS)
    reader.section(top.get("resources"), "resources", (), ("gpus", "mig", "migs"))
    imex = reader.section(top.get("imex"), "imex", ("channelIDs", "required"))
    if reader.switch(imex, "imex", "required"):
        reader.notes.append("imex.required has no effect here: a channel that does not exist is left out")
    replications, one_each = _sharing(reader, top.get("sharing"))
    strategy = reader.choice(flags, "flags", "migStrategy", ("none", "single", "mixed"))
    if strategy == "mixed" and any(each.by_mps for each in replications):
        reader.problem("flags.migStrategy", "is mixed, which MPS does not go with; use none or single, or time-slicing")
    policy = reader.choice(plugin, "flags.plugin", "sharedDevicesAllocationPolicy", ("distributed", "packed"))
    return Configuration(
        mig_strategy=strategy,
        device_list_strategy=_strategies(reader, plugin.get("deviceListStrategy")),
        device_id_strategy=reader.choice(plugin, "flags.plugin", "deviceIDStrategy", ("uuid", "index")),
        pass_device_specs=reader.switch(plugin, "flags.plugin", "passDeviceSpecs"),
        cdi_annotation_prefix=reader.text(plugin, "flags.plugin", "cdiAnnotationPrefix"),
        driver_root=reader.text(flags, "flags", "nvidiaDriverRoot"),
        container_driver_root=reader.text(plugin, "flags.plugin", "containerDriverRoot"),
        gdrcopy=reader.switch(flags, "flags", "gdrcopyEnabled"),
        gds=reader.switch(flags, "flags", "gdsEnabled"),
        mofed=reader.switch(flags, "flags", "mofedEnabled"),
        pack_shared=policy == "packed",
        imex_channels=_channels(reader, imex.get("channelIDs")),
        replications=replications,
        one_replica_each=one_each,
        notes=tuple(reader.notes),
    )


def _sharing(reader: _Reader, value: object) -> tuple[tuple[Replication, ...], bool]:
    """What is replicated, and whether a container gets one replica at most. MPS goes before time-slicing."""
    sharing = reader.section(value, "sharing", ("timeSlicing", "mps"))
    slices, one_slice = _replicated(reader, sharing.get("timeSlicing"), "sharing.timeSlicing")
    if sharing.get("mps") is None:
        return slices, one_slice or False
    if slices:
        reader.notes.append("sharing.timeSlicing has no effect beside sharing.mps")
    clients, one_client = _replicated(reader, sharing["mps"], "sharing.mps")
    if any(client.devices is not None for client in clients):
        reader.notes.append("devices has no effect in sharing.mps: all GPUs of a resource are shared")
    # A client is one process on one GPU.
    return tuple(replace(client, devices=None, by_mps=True) for client in clients), one_client is not False


def _replicated(reader: _Reader, value: object, path: str) -> tuple[tuple[Replication, ...], bool | None]:
    section = reader.section(value, path, ("renameByDefault", "failRequestsGreaterThanOne", "resources"), exactly=True)
    if not section:
        return (), None
    rename = reader.switch(section, path, "renameByDefault") or False
    one_each = reader.switch(section, path, "failRequestsGreaterThanOne")
    entries = section.get("resources")
    if not isinstance(entries, list) or not entries:
        reader.problem(f"{path}.resources", "must be a list of what is shared, each with name and replicas")
        return (), one_each
    found: list[Replication] = []
    for number, entry in enumerate(entries):
        replication = _replication(reader, entry, f"{path}.resources[{number}]", rename)
        if replication is None:
            continue
        others = {other.name for other in found if other.resource == replication.resource}
        if others - {replication.name}:
            reader.notes.append(
                f"{path}.resources[{number}]: {replication.resource} is in the list twice with different names; a "
                "device that both take is offered by the first"
            )
        found.append(replication)
    return tuple(found), one_each


def _replication(reader: _Reader, value: object, path: str, rename_by_default: bool) -> Replication | None:
    entry = reader.section(value, path, ("name", "rename", "devices", "replicas"), exactly=True)
    name = _resource(reader, entry.get("name"), f"{path}.name")
    if name is None:
        return None
    rename = name + (".shared" if rename_by_default else "")
    if entry.get("rename") is not None:
        rename = _resource(reader, entry["rename"], f"{path}.rename") or name
    elif len(rename) > _MAX_NAME:
        reader.problem(f"{path}.name", f"with .shared it is longer than {_MAX_NAME} characters")
    replicas = entry.get("replicas")
    count = _whole(replicas)
    if count is None or count < 1:
        reader.problem(f"{path}.replicas", f"is {replicas!r}; it must be a whole number, at least 1")
        return None
    return Replication(name, rename, count, _devices(reader, entry.get("devices"), f"{path}.devices"))


def _whole(value: object) -> int | None:
    """The whole number that a value is; 4.0 is one in JSON, by which the other plugin goes."""
    if isinstance(value, bool) or not isinstance(value, int | float) or value != value // 1:
        return None
    return int(value)


def _resource(reader: _Reader, value: object, path: str) -> str | None:
    text = value if isinstance(value, str) else ""
    name = text if text.startswith(PREFIX) else PREFIX + text
    if not _NAME.fullmatch(name.removeprefix(PREFIX)) or len(name) > _MAX_NAME:
        reader.problem(path, f"is {value!r}; it must be {PREFIX}<name>, at most {_MAX_NAME} characters")
        return None
    if mode_of(name) is not Mode.PGPU:
        reader.problem(path, f"is {value!r}, which another mode offers; choose another name")
        return None
    return name


def _devices(reader: _Reader, value: object, path: str) -> int | tuple[str, ...] | None:
    if value is None or value == "all":
        return None
    count = _whole(value)
    if count is not None and count > 0:
        return count
    if isinstance(value, list):
        names = tuple(item if isinstance(item, str) else str(_whole(item)) for item in value)
        if names and all(map(_DEVICE.fullmatch, names)):
            return names
    reader.problem(path, f"is {value!r}; it must be all, a number of devices, or a list of indices and UUIDs")
    return None


def _strategies(reader: _Reader, value: object) -> tuple[Strategy, ...] | None:
    if value is None:
        return None
    names = value if isinstance(value, list) else [name.strip() for name in str(value).split(",")]
    try:
        return tuple(dict.fromkeys(map(Strategy, names))) or None
    except (TypeError, ValueError):
        known = ", ".join(Strategy)
        reader.problem("flags.plugin.deviceListStrategy", f"is {value!r}; it must be one or several of {known}")
        return None


def _channels(reader: _Reader, value: object) -> tuple[int, ...]:
    if value is None or value == []:
        return ()
    if value == [0]:
        return (0,)
    reader.problem("imex.channelIDs", f"is {value!r}; it must be [] or [0]")
    return ()


class _Reader:
    """Looks things up, and remembers what is wrong and what has no effect."""

    def __init__(self) -> None:
        self.problems: list[str] = []
        self.notes: list[str] = []

    def problem(self, path: str, text: str) -> None:
        self.problems.append(f"{path}: {text}")

    def section(
        self, value: object, path: str, known: Collection[str], unused: Collection[str] = (), exactly: bool = False
    ) -> Mapping[str, Any]:
        """What the mapping at ``path`` says by these keys; None is an empty one.

        Go (encoding/json) prefers a key as it is spelled and else takes one that differs in case, unless a type reads
        its keys ``exactly``. Other keys have no effect.
        """
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            self.problem(path or "the file", f"is {value!r}; it must be a mapping")
            return {}
        spelled = {key.casefold(): key for key in (*known, *unused)}
        found: dict[str, Any] = {}
        for key, item in ((str(key), item) for key, item in value.items()):
            name = key if exactly else spelled.get(key.casefold(), key)
            where = f"{path}.{key}" if path else key
            if name in unused:
                if item is not None:
                    self.notes.append(f"{where} has no effect here")
            elif name not in known:
                self.notes.append(f"{where} has no effect: the key is not known; known are {', '.join(sorted(known))}")
            elif key == name or name not in value:
                found[name] = item
        return found

    def choice(self, section: Mapping[str, Any], path: str, key: str, known: Collection[str]) -> str | None:
        """The value of ``key``, if it is there."""
        value = section.get(key)
        if value is None or (isinstance(value, str) and value in known):
            return value
        self.problem(f"{path}.{key}", f"is {value!r}; it must be one of {', '.join(known)}")
        return None

    def switch(self, section: Mapping[str, Any], path: str, key: str) -> bool | None:
        """The value of ``key``, if it is there."""
        value = section.get(key)
        if value is None or isinstance(value, bool):
            return value
        self.problem(f"{path}.{key}", f"is {value!r}; it must be true or false")
        return None

    def text(self, section: Mapping[str, Any], path: str, key: str) -> str | None:
        """The value of ``key``, if it is there."""
        value = section.get(key)
        if isinstance(value, bool | int | float):
            return str(value).lower() if isinstance(value, bool) else str(value)
        if value is None or isinstance(value, str):
            return value or None
        self.problem(f"{path}.{key}", f"is {value!r}; it must be a text")
        return None
