# Apache License 2.0 (see https://www.apache.org/licenses/LICENSE-2.0)
# SPDX-License-Identifier: Apache-2.0
"""What a configuration of NVIDIA's device plugin (api/config/v1 of its source) has offered several times. Pure."""

from __future__ import annotations

import re
from dataclasses import replace
from typing import Any, Collection, Dict, List, Mapping, Optional, Set, Tuple, Union

from . import goyaml
from .modes import WHOLE_MODE, mode_of
from .offers import Replication

PREFIX = "nvidia.com/"
_MAX_NAME = 63
_NAME = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]*[A-Za-z0-9])?")
_DEVICE = re.compile(r"\d+(:\d+)?|(GPU|MIG)-[A-Za-z0-9/-]+")


class Reader:
    """Looks things up, and remembers what is wrong and what has no effect."""

    def __init__(self) -> None:
        self.problems: List[str] = []
        self.notes: List[str] = []

    def problem(self, path: str, text: str) -> None:
        """Note what is wrong at ``path``."""
        self.problems.append(f"{path}: {text}")

    def section(
        self, value: object, path: str, known: Collection[str], unused: Collection[str] = (), exactly: bool = False
    ) -> Mapping[str, Any]:
        """Return what the mapping at ``path`` says by these keys; None is an empty one.

        Go (encoding/json) prefers a key as it is spelled and else takes one that differs in case, unless a type reads
        its keys ``exactly``. Other keys have no effect.
        """
        if value is None:
            return {}
        if not isinstance(value, Mapping):
            self.problem(path or "the file", f"is {value!r}; it must be a mapping")
            return {}
        spelled = {key.casefold(): key for key in (*known, *unused)}
        found: Dict[str, Any] = {}
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

    def choice(self, section: Mapping[str, Any], path: str, key: str, known: Collection[str]) -> Optional[str]:
        """Return the value of ``key``, if it is there."""
        value = section.get(key)
        if value is None or (isinstance(value, str) and value in known):
            return value
        self.problem(f"{path}.{key}", f"is {value!r}; it must be one of {', '.join(known)}")
        return None

    def switch(self, section: Mapping[str, Any], path: str, key: str) -> Optional[bool]:
        """Return the value of ``key``, if it is there."""
        value = section.get(key)
        if value is None or isinstance(value, bool):
            return value
        self.problem(f"{path}.{key}", f"is {value!r}; it must be true or false")
        return None

    def text(self, section: Mapping[str, Any], path: str, key: str) -> Optional[str]:
        """Return the value of ``key``, if it is there."""
        value = section.get(key)
        if isinstance(value, (bool, int, float)):
            return str(value).lower() if isinstance(value, bool) else str(value)
        if value is None or isinstance(value, str):
            return value or None
        self.problem(f"{path}.{key}", f"is {value!r}; it must be a text")
        return None


STRATEGIES = ("none", "single", "mixed")


def mig_strategy(reader: Reader, flags: Mapping[str, Any], replications: Collection[Replication]) -> Optional[str]:
    """Return what the section ``flags`` has become of GPUs in MIG mode; None where it does not say."""
    strategy = reader.choice(flags, "flags", "migStrategy", STRATEGIES)
    if strategy == "mixed" and any(each.by_mps for each in replications):
        reader.problem("flags.migStrategy", "is mixed, which MPS does not go with; use none or single, or time-slicing")
    return strategy


def sharing(reader: Reader, value: object) -> Tuple[Tuple[Replication, ...], bool]:
    """Return what is replicated, and whether a container gets one replica at most. MPS goes before time-slicing."""
    section = reader.section(value, "sharing", ("timeSlicing", "mps"))
    slices, one_slice = _replicated(reader, section.get("timeSlicing"), "sharing.timeSlicing")
    if section.get("mps") is None:
        return slices, one_slice or False
    if slices:
        reader.notes.append("sharing.timeSlicing has no effect beside sharing.mps")
    clients, one_client = _replicated(reader, section["mps"], "sharing.mps")
    if any(client.devices is not None for client in clients):
        reader.notes.append("devices has no effect in sharing.mps: all GPUs of a resource are shared")
    # A client is one process on one GPU.
    return tuple(replace(client, devices=None, by_mps=True) for client in clients), one_client is not False


def renamed(configurations: Mapping[str, Any]) -> Set[str]:
    """Return the names that configurations give what is replicated. One that cannot be read gives none."""
    found: Set[str] = set()
    for document in configurations.values():
        reader = Reader()
        try:
            top = reader.section(goyaml.load(document) if isinstance(document, str) else document, "", ("sharing",))
        except ValueError:
            continue
        found.update(each.name for each in sharing(reader, top.get("sharing"))[0])
    return found


def _replicated(reader: Reader, value: object, path: str) -> Tuple[Tuple[Replication, ...], Optional[bool]]:
    section = reader.section(value, path, ("renameByDefault", "failRequestsGreaterThanOne", "resources"), exactly=True)
    if not section:
        return (), None
    rename = reader.switch(section, path, "renameByDefault") or False
    one_each = reader.switch(section, path, "failRequestsGreaterThanOne")
    entries = section.get("resources")
    if not isinstance(entries, list) or not entries:
        reader.problem(f"{path}.resources", "must be a list of what is shared, each with name and replicas")
        return (), one_each
    found: List[Replication] = []
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


def _replication(reader: Reader, value: object, path: str, rename_by_default: bool) -> Optional[Replication]:
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


def _whole(value: object) -> Optional[int]:
    """Return the whole number that a value is; 4.0 is one in JSON, by which the other plugin goes."""
    if isinstance(value, bool) or not isinstance(value, (int, float)) or value != value // 1:
        return None
    return int(value)


def _resource(reader: Reader, value: object, path: str) -> Optional[str]:
    text = value if isinstance(value, str) else ""
    name = text if text.startswith(PREFIX) else PREFIX + text
    if not _NAME.fullmatch(name[len(PREFIX) :]) or len(name) > _MAX_NAME:
        reader.problem(path, f"is {value!r}; it must be {PREFIX}<name>, at most {_MAX_NAME} characters")
        return None
    if mode_of(name) != WHOLE_MODE:
        reader.problem(path, f"is {value!r}, which another mode offers; choose another name")
        return None
    return name


def _devices(reader: Reader, value: object, path: str) -> Optional[Union[int, Tuple[str, ...]]]:
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
