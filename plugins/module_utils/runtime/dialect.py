# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The configuration of a container runtime as plain data, and where each runtime keeps what we set. No I/O.

Sources: containerd's docs/cri/config.md (file versions 2 to 4), Docker's daemon.json reference, crio.conf(5).
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from typing import Any, Dict, Mapping, Sequence, Tuple

from ansible_collections.accel.kubernetes.plugins.module_utils.documents import nested, toml_text
from ansible_collections.accel.kubernetes.plugins.module_utils.documents.nested import Path

CONTAINERD_CRI = {
    2: ("io.containerd.grpc.v1.cri",),
    3: ("io.containerd.cri.v1.runtime",),
    4: ("io.containerd.cri.v1.runtime",),
}


class ConfigError(Exception):
    """The file cannot be edited. Says where, why and what to do."""


class _TwiceError(Exception):
    """A JSON object has a key twice, and its readers disagree on what that means."""


@dataclass(frozen=True)
class Dialect:
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
    implied: Sequence[Path] = ()
    """Fields that are as we set them where nothing is said."""
    inherited: Sequence[Path] = ()
    """Fields kept equal to those of the base."""
    explicit_base: Mapping[str, Any] = field(default_factory=dict)
    """The base as it is by default, where naming any runtime makes the runtime forget its defaults."""


def parse(runtime: str, text: str, path: str) -> Dict[str, Any]:
    """Return the file as plain data. Raises ConfigError naming the line."""
    try:
        if runtime == "docker":
            # dockerd takes an empty file for {}.
            data = json.loads(text, object_pairs_hook=_unique) if text.strip() else {}
        else:
            data = toml_text.parse(text)
    except _TwiceError as error:
        raise ConfigError(f"{path} has {error} twice in one object; leave one of them, then run again") from error
    except json.JSONDecodeError as error:
        raise ConfigError(
            f"{path} is not JSON, line {error.lineno} column {error.colno}: {error.msg}; correct it "
            f"('python3 -m json.tool {path}' reads it in the same way), then run again"
        ) from error
    except RecursionError as error:
        raise ConfigError(f"{path} is nested too deeply to be read; make it flatter, then run again") from error
    except ValueError as error:
        if runtime == "docker":
            raise ConfigError(f"{path} cannot be read as JSON: {error}; correct it, then run again") from error
        raise ConfigError(
            f"{path} cannot be read as TOML: {error}; correct it, then run again. "
            "If that line is right, move its table before the tables below it"
        ) from error
    if not isinstance(data, dict):
        raise ConfigError(f"{path} holds no JSON object but {type(data).__name__}; {{}} is an empty configuration")
    return data


def dialect_of(runtime: str, data: Mapping[str, Any], path: str) -> Dialect:
    """Return where a file keeps what we set. Raises ConfigError where that cannot be used or is not known."""
    if runtime == "docker":
        return Dialect(("runtimes",), ("default-runtime",), ("features", "cdi"), fields={("path",): ""})
    if runtime == "crio":
        return Dialect(
            ("crio", "runtime", "runtimes"),
            ("crio", "runtime", "default_runtime"),
            None,
            fields={("runtime_path",): "", ("runtime_type",): "oci"},
            implied=(("runtime_type",),),
        )
    version = data.get("version", 1)
    names = {"cri", "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"}
    listed = data.get("disabled_plugins")
    disabled = names.intersection(map(str, listed if isinstance(listed, list) else ()))
    if disabled:
        raise ConfigError(
            f"{path} lists {sorted(disabled)[0]!r} in disabled_plugins, as Docker's packages ship it, so kubelet "
            "cannot use this containerd. Take it out of that list, or move the file away to start from "
            "'containerd config default', then run again"
        )
    if version == 1:
        raise ConfigError(
            f"{path} has version 1 (or names none), which containerd 2 no longer documents. Move it away to start from "
            "'containerd config default', or convert it with 'containerd config migrate', then run again"
        )
    if not isinstance(version, int) or version not in CONTAINERD_CRI:
        raise ConfigError(
            f"{path} has version {version!r}, and this collection knows 2, 3, and 4. Upgrade the collection, or set "
            "container_runtime_configure=false and register the runtime yourself"
        )
    cri = ("plugins",) + CONTAINERD_CRI[version]
    return Dialect(
        (*cri, "containerd", "runtimes"),
        (*cri, "containerd", "default_runtime_name"),
        (*cri, "enable_cdi"),
        fallback="runc",
        base="runc",
        # runc.v1 is gone from containerd 2.
        fields={("runtime_type",): "io.containerd.runc.v2", ("options", "BinaryName"): ""},
        # One kubelet cgroup driver for all runtimes: a differing value lets pods crash-loop.
        inherited=(("options", "SystemdCgroup"),),
        # containerd 1: any runtime in the file, and its built-in runc is gone, and the CRI plugin with it.
        explicit_base={"runtime_type": "io.containerd.runc.v2"} if version == 2 else {},
    )


def base_of(dialect: Dialect, data: Mapping[str, Any], name: str, before: Mapping[str, Any]) -> str:
    """Return the default runtime, or the one before us, if it is of runc's kind, else runc."""
    default = nested.get(data, dialect.default)
    if default == name:
        default = nested.get(before, dialect.default)
    if isinstance(default, str) and default != name:
        kind = nested.get(data, (*dialect.runtimes, default, "runtime_type"))
        if kind == dialect.fields.get(("runtime_type",)):
            return default
    return dialect.base


def _unique(pairs: Sequence[Tuple[str, Any]]) -> Dict[str, Any]:
    result = dict(pairs)
    if len(result) < len(pairs):
        keys = [key for key, _value in pairs]
        raise _TwiceError(repr(next(key for key in keys if keys.count(key) > 1)))
    return result
