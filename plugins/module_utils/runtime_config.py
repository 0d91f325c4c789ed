# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the configuration of a container runtime has to become so that it knows the NVIDIA runtime. No I/O.

Sources: containerd's docs/cri/config.md (file versions 2 to 4), Docker's daemon.json reference, crio.conf(5).
"""

from __future__ import annotations

import copy
import json
import traceback
from dataclasses import dataclass, field
from typing import Any, Dict, Mapping, Sequence, Tuple

from ansible_collections.accel.kubernetes.plugins.module_utils import json_text

try:
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    TOMLKIT_TRACEBACK = ""
except ImportError:
    # The module says so before it plans TOML.
    tomlkit = None  # type: ignore[assignment]
    TOMLKitError = ValueError  # type: ignore[assignment,misc]
    TOMLKIT_TRACEBACK = traceback.format_exc()

Path = Tuple[str, ...]

_CONTAINERD_CRI = {
    2: ("io.containerd.grpc.v1.cri",),
    3: ("io.containerd.cri.v1.runtime",),
    4: ("io.containerd.cri.v1.runtime",),
}


class ConfigError(Exception):
    """The file cannot be edited. Says where, why and what to do."""


@dataclass(frozen=True)
class Wanted:
    """The runtime a node is to have. ``cdi`` None leaves CDI alone."""

    name: str
    binary: str
    default: bool = False
    cdi: bool | None = None


@dataclass(frozen=True)
class Owned:
    """What in the file is our doing: the runtime of that name, its being the default, the CDI switch."""

    name: str = ""
    default: bool = False
    cdi: bool = False


@dataclass(frozen=True)
class Edit:
    """One difference; value None deletes."""

    path: Path
    value: Any


@dataclass(frozen=True)
class Plan:
    """The new text and how it differs. Without edits it is the old text."""

    text: str
    edits: Sequence[Edit]
    owned: Owned


@dataclass(frozen=True)
class _Dialect:
    """Where one runtime keeps what we set."""

    runtimes: Path
    default: Path
    cdi: Path | None
    fallback: str = ""
    """The default runtime when the previous one is not known."""
    base: str = ""
    """The runtime ours is modelled on."""
    fields: Mapping[Path, str] = field(default_factory=dict)
    """Below a runtime; an empty value stands for the binary."""
    inherited: Sequence[Path] = ()
    """Fields kept equal to those of the base."""


def parse(runtime: str, text: str, path: str) -> Dict[str, Any]:
    """The file as plain data. Raises ConfigError naming the line."""
    try:
        data = json.loads(text) if runtime == "docker" else _plain(tomlkit.parse(text))
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path} is not JSON, line {error.lineno} column {error.colno}: {error.msg}") from error
    except (TOMLKitError, AttributeError) as error:
        # tomlkit stumbles over some tables that come after those below them.
        raise ConfigError(
            f"{path} cannot be read as TOML: {error}. If that line is right, move its table before the tables below it"
        ) from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path} holds no JSON object but {type(data).__name__}; {{}} is an empty configuration")
    return data


def has_runtime(runtime: str, data: Mapping[str, Any], name: str, path: str) -> bool:
    """Whether the file names that runtime."""
    dialect = _dialect(runtime, data, path)
    return _get(data, (*dialect.runtimes, name)) is not None


def complaint(runtime: str, data: Mapping[str, Any], wanted: Wanted, path: str) -> str:
    """What a merged configuration lacks of what is wanted, empty when nothing."""
    dialect = _dialect(runtime, data, path)
    if not has_runtime(runtime, data, wanted.name, path):
        return f"there is no runtime {wanted.name}"
    for place, value in dialect.fields.items():
        expected = value or wanted.binary
        found = _get(data, (*dialect.runtimes, wanted.name, *place))
        if found != expected:
            return f"runtime {wanted.name} has {'.'.join(place)} = {found!r} instead of {expected!r}"
    default = _get(data, dialect.default)
    if wanted.default and default != wanted.name:
        return f"the default runtime is {default!r} instead of {wanted.name!r}"
    return ""


def plan_present(runtime: str, text: str, wanted: Wanted, owned: Owned, original: str | None, path: str) -> Plan:
    """The file with the runtime in it. ``original`` is the text before our first change, None when not known."""
    data = parse(runtime, text, path)
    dialect = _dialect(runtime, data, path)
    before = {} if original is None else parse(runtime, original, path)
    edits = []
    if owned.name and owned.name != wanted.name:
        edits += _removal(dialect, data, owned.name, before)
        owned = Owned(cdi=owned.cdi)
    place = (*dialect.runtimes, wanted.name)
    current = _get(data, place)
    base_name = _base(dialect, data, wanted.name)
    base = _get(data, (*dialect.runtimes, base_name))
    fields: Dict[Path, Any] = {key: value or wanted.binary for key, value in dialect.fields.items()}
    for key in dialect.inherited:
        inherited = _get(base, key)
        if inherited is not None:
            fields[key] = inherited
    if current is None:
        entry = copy.deepcopy(base) if isinstance(base, dict) and dialect.inherited else {}
        for key, value in fields.items():
            _set(entry, key, value)
        edits.append(Edit(place, entry))
    else:
        edits += [Edit(place + key, value) for key, value in fields.items() if _get(current, key) != value]
    default = _get(data, dialect.default)
    made_default = owned.default
    if wanted.default and default != wanted.name:
        edits.append(Edit(dialect.default, wanted.name))
        made_default = True
    elif not wanted.default and owned.default and default == wanted.name:
        edits.append(Edit(dialect.default, _previous_default(dialect, data, wanted.name, before)))
        made_default = False
    switched_cdi = owned.cdi
    if wanted.cdi is not None:
        if dialect.cdi is None:
            raise ConfigError("cdi cannot be set for cri-o, where it is always on; leave the option out")
        if _get(data, dialect.cdi) != wanted.cdi:
            edits.append(Edit(dialect.cdi, wanted.cdi))
            switched_cdi = True
    return _plan(runtime, text, data, edits, Owned(wanted.name, made_default, switched_cdi), path)


def plan_absent(runtime: str, text: str, name: str, owned: Owned, original: str | None, path: str) -> Plan:
    """The file without the runtime, its being the default and a CDI switch of ours."""
    data = parse(runtime, text, path)
    dialect = _dialect(runtime, data, path)
    before = {} if original is None else parse(runtime, original, path)
    edits = _removal(dialect, data, name, before)
    if owned.cdi and dialect.cdi is not None and _get(data, dialect.cdi) is not None:
        previous = _get(before, dialect.cdi)
        if _get(data, dialect.cdi) != previous:
            edits.append(Edit(dialect.cdi, previous))
    if original is not None:
        edits = _pruned(data, edits, before)
    return _plan(runtime, text, data, edits, Owned(), path)


def _dialect(runtime: str, data: Mapping[str, Any], path: str) -> _Dialect:
    if runtime == "docker":
        return _Dialect(("runtimes",), ("default-runtime",), ("features", "cdi"), fields={("path",): ""})
    if runtime == "crio":
        return _Dialect(
            ("crio", "runtime", "runtimes"),
            ("crio", "runtime", "default_runtime"),
            None,
            fields={("runtime_path",): "", ("runtime_type",): "oci"},
        )
    version = data.get("version", 1)
    if version == 1:
        raise ConfigError(
            f"{path} has version 1 (or names none), which containerd 2 no longer documents: move it away to start from "
            "'containerd config default', or convert it with 'containerd config migrate', then run again"
        )
    if version not in _CONTAINERD_CRI:
        raise ConfigError(f"{path} has version {version!r}; this collection knows containerd versions 2, 3 and 4")
    cri = ("plugins",) + _CONTAINERD_CRI[version]
    disabled = {"cri", "io.containerd.grpc.v1.cri", cri[-1]}.intersection(data.get("disabled_plugins") or ())
    if disabled:
        raise ConfigError(
            f"{path} lists {sorted(disabled)[0]!r} in disabled_plugins, so kubelet cannot use this containerd; "
            "take it out of that list, then run again"
        )
    return _Dialect(
        (*cri, "containerd", "runtimes"),
        (*cri, "containerd", "default_runtime_name"),
        (*cri, "enable_cdi"),
        fallback="runc",
        base="runc",
        # runc.v1 is gone from containerd 2.
        fields={("runtime_type",): "io.containerd.runc.v2", ("options", "BinaryName"): ""},
        # One kubelet cgroup driver for all runtimes: a differing value lets pods crash-loop.
        inherited=(("options", "SystemdCgroup"),),
    )


def _base(dialect: _Dialect, data: Mapping[str, Any], name: str) -> str:
    """The default runtime if it is of runc's kind, else runc."""
    default = _get(data, dialect.default)
    if isinstance(default, str) and default != name:
        kind = _get(data, (*dialect.runtimes, default, "runtime_type"))
        if kind == dialect.fields.get(("runtime_type",)):
            return default
    return dialect.base


def _removal(dialect: _Dialect, data: Mapping[str, Any], name: str, before: Mapping[str, Any]) -> list[Edit]:
    edits = []
    if _get(data, (*dialect.runtimes, name)) is not None:
        edits.append(Edit((*dialect.runtimes, name), None))
    if _get(data, dialect.default) == name:
        edits.append(Edit(dialect.default, _previous_default(dialect, data, name, before)))
    return edits


def _previous_default(dialect: _Dialect, data: Mapping[str, Any], name: str, before: Mapping[str, Any]) -> str | None:
    previous = _get(before, dialect.default)
    if isinstance(previous, str) and previous != name:
        return previous
    if before or not dialect.fallback or _get(data, (*dialect.runtimes, dialect.fallback)) is None:
        return None
    return dialect.fallback


def _pruned(data: Mapping[str, Any], edits: Sequence[Edit], before: Mapping[str, Any]) -> list[Edit]:
    """The edits, with tables that they leave empty and that we had to create deleted as a whole."""
    left = _edited(data, edits)
    deleted: list[Path] = []
    for edit in edits:
        path = edit.path
        if edit.value is not None:
            continue
        while len(path) > 1 and _get(left, path[:-1]) == {} and _get(before, path[:-1]) is None:
            path = path[:-1]
            _delete(left, path)
        deleted.append(path)
    topmost = [
        path for path in dict.fromkeys(deleted) if not any(path != top and path[: len(top)] == top for top in deleted)
    ]
    return [edit for edit in edits if edit.value is not None] + [Edit(path, None) for path in topmost]


def _plan(runtime: str, text: str, data: Mapping[str, Any], edits: Sequence[Edit], owned: Owned, path: str) -> Plan:
    if not edits:
        return Plan(text, (), owned)
    try:
        result = _edit_json(text, edits) if runtime == "docker" else _edit_toml(text, edits)
        right = parse(runtime, result, path) == _edited(data, edits)
    except (AttributeError, ConfigError, KeyError, TypeError, ValueError):
        # Every version of tomlkit has some layout that it loses its way in.
        right = False
    if not right:
        raise ConfigError(
            f"{path} is laid out in a way that cannot be edited safely: write its inline tables out with headers"
        )
    return Plan(result, tuple(edits), owned)


def _edit_json(text: str, edits: Sequence[Edit]) -> str:
    for edit in edits:
        if edit.value is None:
            text = json_text.delete_member(text, edit.path)
        else:
            text = json_text.set_member(text, edit.path, edit.value)
    return text


def _edit_toml(text: str, edits: Sequence[Edit]) -> str:
    document = tomlkit.parse(text)
    for edit in edits:
        node: Any = document
        for key in edit.path[:-1]:
            if key not in node:
                node[key] = tomlkit.table(True)
            node = node[key]
        if edit.value is None:
            del node[edit.path[-1]]
        elif isinstance(edit.value, dict):
            siblings = [item for item in node.values() if isinstance(item, tomlkit.items.Table)]
            table = _table(edit.value)
            node[edit.path[-1]] = table
            _indent(table, siblings[0].trivia.indent if siblings else "")
        else:
            node[edit.path[-1]] = _quoted_as(node.get(edit.path[-1]), edit.value)
    return str(tomlkit.dumps(document))


def _quoted_as(old: object, value: object) -> object:
    """A string in the kind of quotes of the one it replaces."""
    literal = isinstance(old, tomlkit.items.String) and old.as_string().startswith("'")
    return tomlkit.value(f"'{value}'") if literal and isinstance(value, str) and "'" not in value else value


def _table(value: Mapping[str, Any]) -> tomlkit.items.Table:
    """A TOML table: its values, a blank line, its tables."""
    table = tomlkit.table()
    for key, item in value.items():
        if not isinstance(item, dict):
            table.add(key, item)
    table.add(tomlkit.nl())
    for key, item in value.items():
        if isinstance(item, dict):
            table.add(key, _table(item))
    return table


def _indent(table: tomlkit.items.Table, indent: str) -> None:
    """Indent a table as containerd writes its own: each level two deeper, or nothing at all."""
    table.trivia.indent = indent
    for key, item in table.value.body:
        if isinstance(item, tomlkit.items.Table):
            _indent(item, indent and indent + "  ")
        elif key is not None:
            item.trivia.indent = indent and indent + "  "


def _edited(data: Mapping[str, Any], edits: Sequence[Edit]) -> Dict[str, Any]:
    result: Dict[str, Any] = copy.deepcopy(dict(data))
    for edit in edits:
        if edit.value is None:
            _delete(result, edit.path)
        else:
            _set(result, edit.path, edit.value)
    return result


def _get(data: object, path: Path) -> Any:  # noqa: ANN401
    for key in path:
        if not isinstance(data, dict) or key not in data:
            return None
        data = data[key]
    return data


def _set(data: Dict[str, Any], path: Path, value: object) -> None:
    for key in path[:-1]:
        data = data.setdefault(key, {})
    data[path[-1]] = value


def _delete(data: Dict[str, Any], path: Path) -> None:
    parent = _get(data, path[:-1])
    if isinstance(parent, dict):
        parent.pop(path[-1], None)


def _plain(value: object) -> Any:  # noqa: ANN401
    """tomlkit's values as Python's own."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)
    return value
