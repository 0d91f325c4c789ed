# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a runtime heeds its file: later drop-ins, flags of its command line, what it says of itself. No I/O.

Sources: containerd's docs/man/containerd-config.toml.5.md (imports, in the order of their names), crio.conf.d(5),
crio(8) (a flag counts before every file), dockerd's reference (a directive that is a flag and in the file keeps it from
starting).
"""

from __future__ import annotations

import posixpath
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any, Callable, Dict, Mapping, Sequence, Tuple

from ansible_collections.accel.kubernetes.plugins.module_utils.documents import nested
from ansible_collections.accel.kubernetes.plugins.module_utils.documents.nested import Path
from ansible_collections.accel.kubernetes.plugins.module_utils.host import command_line
from ansible_collections.accel.kubernetes.plugins.module_utils.host.command_line import Given, Start
from ansible_collections.accel.kubernetes.plugins.module_utils.runtime import config as runtime_config
from ansible_collections.accel.kubernetes.plugins.module_utils.runtime.config import Wanted
from ansible_collections.accel.kubernetes.plugins.module_utils.runtime.dialect import parse

_DOCKER_FLAGS = {"default-runtime": "default-runtime", "feature": "features"}
"""Flags of dockerd and the directives that its file must not have too. Of runtimes it takes those of both."""
_CRIO_RUNTIMES: Path = ("crio", "runtime", "runtimes")
"""Where CRI-O keeps the runtimes, of which it takes each from the last file that has it (BurntSushi/toml, unifyMap)."""
_CRIO_FLAGS = {
    "config": ("c", "CONTAINER_CONFIG"),
    "config-dir": ("d", "CONTAINER_CONFIG_DIR"),
    "default-runtime": ("", "CONTAINER_DEFAULT_RUNTIME"),
    "runtimes": ("", "CONTAINER_RUNTIMES"),
}
"""Flags of CRI-O, the letter of each, and the variable that stands for it where it is not given (cri-o, criocli)."""


def winner(
    runtime: str, before: Sequence[Mapping[str, Any]], later: Mapping[str, str], wanted: Wanted, directory: str
) -> str:
    """Return what the first of the later drop-ins that overrides ours does, empty when none does.

    ``before`` are the documents that are read first, ours last; ``later`` the texts of others by their paths below the
    directory, read in the order of their names, level by level. Raises ConfigError where one of them cannot be read.
    """
    together: Dict[str, Any] = {}
    replaced = _CRIO_RUNTIMES if runtime == "crio" else None
    for document in before:
        together = merged(together, document, replaced)
    for name in sorted(later, key=reading_order):
        path = posixpath.join(directory, name)
        together = merged(together, parse(runtime, later[name], path), replaced)
        wrong = runtime_config.unmet(runtime, together, wanted, path)
        if wrong:
            return f"{path}, which is read after ours, overrides it: {wrong}"
    return ""


def reading_order(name: str) -> list[str]:
    """Return a key that sorts the files of a directory, by their paths below it, as Go's filepath.Walk reads them."""
    return name.split("/")


def read_later(drop_ins: Mapping[str, str], path: str, directory: str) -> Dict[str, str]:
    """Return those of a directory's drop-ins that are read after a file: all, where that is not below the directory."""
    if not is_below(path, directory):
        return dict(drop_ins)
    ours = reading_order(posixpath.relpath(path, directory))
    return {name: text for name, text in drop_ins.items() if reading_order(name) > ours}


def is_below(path: str, directory: str) -> bool:
    """Return whether a file is in a directory or in one inside it."""
    return PurePosixPath(directory) in PurePosixPath(path).parents


def merged(one: Mapping[str, Any], other: Mapping[str, Any], replaced: Path | None = None) -> Dict[str, Any]:
    """Return both documents as one, table by table; the other's values count.

    Of the tables in the one at ``replaced`` those of the other count as a whole.
    """
    found = dict(one)
    for key, value in other.items():
        old = found.get(key)
        if isinstance(old, dict) and isinstance(value, dict) and replaced != ():
            below = replaced[1:] if replaced and replaced[0] == key else None
            found[key] = merged(old, value, below)
        else:
            found[key] = value
    return found


def imported(text: str, path: str, matching: Callable[[str], Mapping[str, str]]) -> Dict[str, str]:
    """Return the files that containerd's file imports, and those that they import, as they are read; later ones win.

    ``matching`` gives the texts of the files that a pattern of Go's filepath.Glob names, by path in the order of names.
    Raises ConfigError where one of them cannot be read.
    """
    found: Dict[str, str] = {}
    pending = {path: text}
    while pending:
        following: Dict[str, str] = {}
        for name, content in pending.items():
            for pattern in runtime_config.imports_of(content, name):
                following.update(matching(posixpath.normpath(posixpath.join(posixpath.dirname(name), pattern))))
        pending = {name: content for name, content in following.items() if name not in (path, *found)}
        found.update(pending)
    return found


def file_read(runtime: str, start: Start) -> Given:
    """Return the configuration file that a daemon's command line names, an empty one when it names none."""
    found = {"containerd": start.go_flags(("config", "c")), "docker": start.pflags(("config-file",))}.get(runtime, [])
    return found[-1][1] if found else Given("", "")


def address(start: Start, data: Mapping[str, Any]) -> str:
    """Return the socket that containerd listens on, empty where neither its command line nor its file says.

    From version 4 of the file that is a setting of a plugin.
    """
    given = command_line.last(start.go_flags(("address", "a")))
    found = nested.get(data, ("plugins", "io.containerd.server.v1.grpc", "address"))
    found = found or nested.get(data, ("grpc", "address"))
    return str(given or found or "")


def flags_against(start: Start, directives: Mapping[str, Any]) -> str:
    """Return the first flag of dockerd that stands for a directive its file is to have, empty when none does."""
    given = (name for name, _value in start.pflags(tuple(_DOCKER_FLAGS)))
    return next((f"--{name}" for name in given if _DOCKER_FLAGS[name] in directives), "")


def crio_drop_ins(path: str, start: Start) -> str:
    """Return the directory of CRI-O's drop-ins: the one our file is in or, for a main file, read after it."""
    read = posixpath.normpath(_value(_crio(start, "config-dir")) or f"{path}.d")
    main = _value(_crio(start, "config")) == path or posixpath.basename(path) == "crio.conf"
    if main or is_below(path, read):
        return str(read)
    above = [str(place) for place in PurePosixPath(path).parents if place.name.endswith(".conf.d")]
    return str([posixpath.dirname(path), *above][-1])


def crio_other_file(start: Start, path: str) -> str:
    """Return what has CRI-O read another main file than ours at ``path`` or none, empty when nothing does."""
    return next(
        (said for said, value in _crio(start, "config")[-1:] if posixpath.normpath(value or "none") != path), ""
    )


def crio_flag_against(start: Start, wanted: Wanted, directory: str) -> str:
    """Return what keeps CRI-O from what its drop-in in ``directory`` says: a flag or variable, empty when none does."""
    for said, value in _crio(start, "config-dir")[-1:]:
        if posixpath.normpath(value or "none") != directory:
            return said
    for said, value in _crio(start, "default-runtime")[-1:]:
        if wanted.default and value != wanted.name:
            return said
    runtimes = ((said, value.split(",")) for said, value in _crio(start, "runtimes"))
    ours = (said for said, values in runtimes if any(each.strip().startswith(f"{wanted.name}:") for each in values))
    return next(ours, "")


def _crio(start: Start, flag: str) -> list[Tuple[str, str]]:
    """Return what CRI-O is given for one of its flags, each with how that is said and where.

    A variable counts where no flag does.
    """
    letter, variable = _CRIO_FLAGS[flag]
    found = [
        (f"--{flag} {given.value}" + _in(given.path), given.value)
        for _name, given in start.go_flags([flag, letter] if letter else [flag])
    ]
    given = start.environment.get(variable)
    return found or ([(f"{variable}={given.value}" + _in(given.path), given.value)] if given else [])


def _value(found: Sequence[Tuple[str, str]]) -> str:
    return found[-1][1] if found else ""


def _in(path: str) -> str:
    return f" (in {path})" if path else ""


def said_by_containerd(config: object) -> Dict[str, Any]:
    """Return the configuration in containerd's verbose CRI status as a file has it, empty where it holds no runtimes.

    CDI is left out where the containerd has none, before 1.7.
    """
    containerd = _table(config, "containerd")
    if "runtimes" not in containerd:
        return {}
    runtimes = {
        name: {"runtime_type": table.get("runtimeType"), "options": table.get("options") or {}}
        for name, table in _table(containerd, "runtimes").items()
        if isinstance(table, dict)
    }
    cri: Dict[str, Any] = {
        "containerd": {"default_runtime_name": containerd.get("defaultRuntimeName"), "runtimes": runtimes}
    }
    if isinstance(config, dict) and "enableCDI" in config:
        cri["enable_cdi"] = bool(config["enableCDI"])
    return {"version": 3, "plugins": {"io.containerd.cri.v1.runtime": cri}}


def said_by_docker(info: object) -> Dict[str, Any]:
    """Return the configuration in Docker's information as daemon.json has it, empty where it holds none.

    Docker names directories of CDI while that is on, and has no such field before 25.
    """
    runtimes = _table(info, "Runtimes")
    if not isinstance(info, dict) or not runtimes:
        return {}
    found: Dict[str, Any] = {"runtimes": runtimes, "default-runtime": info.get("DefaultRuntime")}
    if "CDISpecDirs" in info:
        found["features"] = {"cdi": bool(info["CDISpecDirs"])}
    return found


def unmet(runtime: str, said: Mapping[str, Any], wanted: Wanted) -> str:
    """Return what a running runtime, as it says of itself, lacks of what is wanted; empty when nothing.

    Of CDI nothing is wanted from a runtime that does not speak of it.
    """
    source = f"what {runtime} says of itself"
    if runtime == "docker":
        speaks = "features" in said
    else:
        speaks = runtime == "containerd" and not runtime_config.lacks_cdi(said, source)
    return str(runtime_config.unmet(runtime, said, wanted if speaks else replace(wanted, cdi=None), source))


def _table(data: object, key: str) -> Dict[str, Any]:
    value = data.get(key) if isinstance(data, dict) else None
    return value if isinstance(value, dict) else {}
