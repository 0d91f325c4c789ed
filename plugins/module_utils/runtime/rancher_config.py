# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How k3s and rke2, which write containerd's configuration at each start, get to know the NVIDIA runtime. No I/O.

Three ways, by what the configuration they last wrote shows:

- It imports a directory of drop-ins: a file of ours there.
- It does not, and they look for the NVIDIA runtime by themselves: nothing is written, a restart lets them find it.
- It does not, and they would not find it: a marked block in the template they write the configuration from.

Source: docs.k3s.io/advanced, "Configuring containerd".
"""

from __future__ import annotations

import json
import posixpath
import re
from dataclasses import dataclass, field
from typing import Any, Dict, Mapping

from ansible_collections.accel.kubernetes.plugins.module_utils.documents import yaml_text
from ansible_collections.accel.kubernetes.plugins.module_utils.host import command_line, rancher_settings
from ansible_collections.accel.kubernetes.plugins.module_utils.runtime import config as runtime_config
from ansible_collections.accel.kubernetes.plugins.module_utils.runtime.config import Wanted
from ansible_collections.accel.kubernetes.plugins.module_utils.runtime.dialect import ConfigError, parse

DROP_IN = "99-accel-kubernetes.toml"
TEMPLATES = ("config-v3.toml.tmpl", "config.toml.tmpl")
"""The first that exists is the one in effect."""
SETTINGS = ("data-dir", "docker", "container-runtime-endpoint", "default-runtime")
"""What of the distribution's settings matters here."""
_BEGIN, _END = "# BEGIN accel.kubernetes", "# END accel.kubernetes"
_BLOCK = re.compile(rf"\n*^{_BEGIN}$.*?^{_END}$\n?", re.DOTALL | re.MULTILINE)
_BASE = re.compile(r"{{-?\s*template\s+\"base\"\s+\.\s*-?}}")
_SEARCHED = (
    "/usr/local/nvidia/toolkit",
    "/usr/local/sbin",
    "/usr/local/bin",
    "/usr/sbin",
    "/usr/bin",
    "/sbin",
    "/bin",
)
"""Where the service finds a program: NVIDIA's operator, and PATH of a systemd unit."""


@dataclass(frozen=True)
class Places:
    """Paths on the host."""

    name: str
    """k3s or rke2."""
    containerd: str
    """Directory of the written configuration and its templates."""
    settings: str
    """Our file among the distribution's own settings."""

    @property
    def generated(self) -> str:
        """Return the configuration containerd runs with."""
        return posixpath.join(self.containerd, "config.toml")

    def template(self, name: str) -> str:
        """Return a template by its file name."""
        return posixpath.join(self.containerd, name)


@dataclass(frozen=True)
class Seen:
    """Contents of the files that decide."""

    generated: str
    templates: Mapping[str, str] = field(default_factory=dict)
    """Existing ones by file name."""


@dataclass(frozen=True)
class RancherPlan:
    """What the files have to hold; None stands for no file. Files not named stay."""

    files: Mapping[str, str | None]
    awaited: bool
    """Whether the next written configuration has to name the runtime."""


def _drop_in_path(where: Places, generated: Mapping[str, Any]) -> str:
    """Return the path of our drop-in, in the directory that the configuration imports; empty when it has none."""
    for pattern in generated.get("imports") or ():
        directory, name = posixpath.split(str(pattern))
        if name == "*.toml" and re.fullmatch(r"config.*\.toml\.d", posixpath.basename(directory)):
            return posixpath.join(where.containerd, posixpath.basename(directory), DROP_IN)
    return ""


def _drop_in(generated: Mapping[str, Any], wanted: Wanted, path: str) -> str:
    """Return our drop-in beside a configuration of that version; its runtime has runc's cgroup driver there."""
    cri = runtime_config.cri_table(generated, path)
    head = f"plugins.{_key(cri)}"
    lines = ["# Written by accel.kubernetes.nvidia_runtime", f"version = {generated['version']}", ""]
    if wanted.cdi is not None:
        lines += [f"[{head}]", f"  enable_cdi = {_literal(wanted.cdi)}", ""]
    if wanted.default:
        lines += [f"[{head}.containerd]", f"  default_runtime_name = {_literal(wanted.name)}", ""]
    return "\n".join(lines + _runtime_lines(head, generated, wanted, path))


def plan_present(where: Places, seen: Seen, wanted: Wanted) -> RancherPlan:
    """Return the files that make the runtime known. Raises ConfigError where that cannot be done."""
    generated = parse("containerd", seen.generated, where.generated)
    path = _drop_in_path(where, generated)
    known = not runtime_config.complaint("containerd", generated, Wanted(wanted.name, wanted.binary), where.generated)
    if path:
        files: Dict[str, str | None] = {
            path: _drop_in(generated, wanted, where.generated),
            where.settings: None,
        }
        files.update(_without_blocks(where, seen))
        return RancherPlan(files, False)
    if wanted.cdi is not None and runtime_config.cdi_of(generated, where.generated) != wanted.cdi:
        raise ConfigError(
            f"this {where.name} imports no drop-ins, so enable_cdi stays as its template has it: upgrade it, "
            f"write enable_cdi to {where.template(TEMPLATES[-1])}, or leave cdi unset"
        )
    name, template = _in_effect(seen)
    complete = name == "" or bool(_BASE.search(template))
    finds = (complete or ".ExtraRuntimes" in template) and _would_find(wanted)
    files = {where.settings: None}
    if finds:
        files.update(_without_blocks(where, seen))
    elif not known or _BEGIN in template:
        name = name or TEMPLATES[-1]
        body = _BLOCK.sub("\n", template) if template else '{{ template "base" . }}\n'
        block = _runtime_lines(
            f"plugins.{_key(runtime_config.cri_table(generated, where.generated))}", generated, wanted, name
        )
        files[where.template(name)] = body.rstrip("\n") + "\n\n" + "\n".join([_BEGIN, *block[:-1], _END, ""])
    if wanted.default:
        if not complete and ".DefaultRuntime" not in template:
            if runtime_config.default_of(generated, where.generated) != wanted.name:
                raise ConfigError(
                    f"{where.template(name)} replaces the configuration of {where.name}, default_runtime_name with it; "
                    f"set it to {wanted.name} there, or move that file away, then run again"
                )
        else:
            files[where.settings] = (
                f"# Written by accel.kubernetes.nvidia_runtime\ndefault-runtime: {json.dumps(wanted.name)}\n"
            )
    return RancherPlan(files, True)


def plan_absent(where: Places, seen: Seen) -> RancherPlan:
    """Return the files without anything of ours."""
    generated = parse("containerd", seen.generated, where.generated)
    files: Dict[str, str | None] = {where.settings: None}
    path = _drop_in_path(where, generated)
    if path:
        files[path] = None
    files.update(_without_blocks(where, seen))
    return RancherPlan(files, False)


def unread(where: Places, files: Mapping[str, str]) -> str:
    """Return what settings that cannot be read on the host may say against us; empty where they do not matter.

    ``files`` are their texts by path.
    """
    for path, text in files.items():
        word = next((word for word in SETTINGS if word in text), "")
        if word and path != where.settings:
            return (
                f"{path} has {word}, which may override what would be configured for {where.name}, and this host has "
                "no library that reads YAML"
            )
    return ""


def overriding(where: Places, start: command_line.Start, files: Mapping[str, str], wanted: Wanted) -> str:
    """Return what overrides containerd, or the default runtime of our settings; empty when nothing does.

    ``files`` are the texts of its settings by path, ours too where it is to name the default. A flag counts before
    every file. Raises ConfigError where one of them cannot be read.
    """
    said: Dict[str, command_line.Given] = {}
    try:
        for path in sorted(files, key=rancher_settings.rank):
            for key, value in rancher_settings.merged({path: rancher_settings.load(files[path], path)}).items():
                last = value[-1] if isinstance(value, list) and value else value
                said[key] = command_line.Given("" if last is None else str(last), path)
    except yaml_text.YamlError as error:
        raise ConfigError(str(error)) from error
    said.update(start.go_flags(("default-runtime", "container-runtime-endpoint"), ["docker"]))
    docker, endpoint, default = (said.get(key) for key in SETTINGS[1:])
    if docker and command_line.is_on(docker.value):
        return f"{docker.path} has {where.name} use Docker, and no containerd of its own: set runtime=docker, or take"
    if endpoint and endpoint.value:
        return (
            f"{endpoint.path} has {where.name} use the runtime at {endpoint.value}, and no containerd of its own: set "
            "runtime to that one, or take"
        )
    if where.settings not in files:
        return ""
    other = rancher_settings.other_file(where.name, start)
    if other and f"{posixpath.normpath(other[1].value)}.d" != posixpath.dirname(where.settings):
        _said, read = other
        return (
            f"{read.path} has {where.name} read {read.value} and what is in {read.value}.d, and not {where.settings}: "
            "set settings_path to a file there, or take"
        )
    if not default or default.value == wanted.name:
        return ""
    return (
        f"{default.path} has {where.name} run containers with {default.value} by default, over {where.settings}: take"
    )


def _in_effect(seen: Seen) -> tuple[str, str]:
    for name in TEMPLATES:
        if name in seen.templates:
            return name, seen.templates[name]
    return "", ""


def _without_blocks(where: Places, seen: Seen) -> Dict[str, str | None]:
    files: Dict[str, str | None] = {}
    for name, text in seen.templates.items():
        if _BEGIN in text:
            rest = _BLOCK.sub("\n", text)
            # What is left of a template that we began ourselves.
            files[where.template(name)] = None if _BASE.fullmatch(rest.strip()) else rest
    return files


def _would_find(wanted: Wanted) -> bool:
    directory, program = posixpath.split(wanted.binary)
    return wanted.name == "nvidia" and program == "nvidia-container-runtime" and directory in _SEARCHED


def _runtime_lines(head: str, generated: Mapping[str, Any], wanted: Wanted, path: str) -> list[str]:
    """Return the tables of our runtime, the last line empty."""
    cgroup = runtime_config.systemd_cgroup_of(generated, wanted.name, path)
    runtime = f"{head}.containerd.runtimes.{_key(wanted.name)}"
    return [
        f"[{runtime}]",
        '  runtime_type = "io.containerd.runc.v2"',
        "",
        f"[{runtime}.options]",
        f"  BinaryName = {_literal(wanted.binary)}",
        *([] if cgroup is None else [f"  SystemdCgroup = {_literal(cgroup)}"]),
        "",
    ]


def _key(name: str) -> str:
    return name if re.fullmatch(r"[A-Za-z0-9_-]+", name) else _literal(name)


def _literal(value: object) -> str:
    """TOML's booleans and basic strings are JSON's."""
    return json.dumps(value)
