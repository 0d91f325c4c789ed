# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The settings with which the kube-scheduler of a k3s or rke2 server reads a configuration file. No I/O.

Ours is a file of settings of its own, the last one. rke2 makes the static pod again from the settings at each start,
with every file mounted that an argument names, and with a hash of these files in it (rke2, pkg/podtemplate); k3s runs
kube-scheduler inside its own process.
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from typing import List, Mapping, Sequence

from ansible_collections.accel.kubernetes.plugins.module_utils.documents import yaml_text
from ansible_collections.accel.kubernetes.plugins.module_utils.host import command_line, rancher_settings
from ansible_collections.accel.kubernetes.plugins.module_utils.scheduler import manifest as scheduler_manifest
from ansible_collections.accel.kubernetes.plugins.module_utils.scheduler.schema import ConfigError

OUR_FILE = "zz-kube-accel.yaml"
_ARGUMENTS = "kube-scheduler-arg"
_MOUNTS = "kube-scheduler-extra-mount"
_DISABLED = "disable-scheduler"
_DEFAULTS = {"profiling": "false"}
"""What both give kube-scheduler unless settings say otherwise (k3s, pkg/daemons/control), as far as we ask."""
_HEADER = "# Written by accel.kubernetes. Settings of yours belong into another file.\n"


@dataclass(frozen=True)
class Distribution:
    """One of the two. Paths are the machine's."""

    name: str
    service: str
    directory: str
    """The directory of the settings."""
    kubeconfig: str
    """kube-scheduler's own; only servers have it."""
    in_pod: bool
    """kube-scheduler sees no more of the machine than is mounted."""

    @property
    def administrators(self) -> Sequence[str]:
        """Kubeconfigs of an administrator."""
        return (f"/etc/rancher/{self.name}/{self.name}.yaml",)

    @property
    def our_file(self) -> str:
        """Return the file of settings that is ours."""
        return f"{self.directory}/config.yaml.d/{OUR_FILE}"


DISTRIBUTIONS = (
    Distribution("k3s", "k3s", "/etc/rancher/k3s", "/var/lib/rancher/k3s/server/cred/scheduler.kubeconfig", False),
    Distribution(
        "rke2", "rke2-server", "/etc/rancher/rke2", "/var/lib/rancher/rke2/server/cred/scheduler.kubeconfig", True
    ),
)


class Settings:
    """The settings of one server, of which our file is edited. Raises ConfigError for what cannot be read."""

    minor: int | None = None
    """Minor version of the kube-scheduler that it runs, which settings do not say."""

    def __init__(
        self, distribution: Distribution, files: Mapping[str, str], start: command_line.Start | None = None
    ) -> None:
        """``files`` are all that are there, ours too, by path in any order, and ``start`` what starts it."""
        self.distribution = distribution
        self.path = distribution.our_file
        self._is_there = self.path in files
        try:
            said = {path: rancher_settings.load(files[path], path) for path in sorted(files, key=rancher_settings.rank)}
        except yaml_text.YamlError as error:
            raise ConfigError(str(error)) from error
        ours = said.pop(self.path, {})
        self._others = said
        self._config = _argument(rancher_settings.listed(ours.get(f"{_ARGUMENTS}+")), "config")
        self._mounts = [str(mount) for mount in rancher_settings.listed(ours.get(f"{_MOUNTS}+"))]
        given = rancher_settings.merged(self._others).get(_ARGUMENTS)
        self._arguments = [str(item) for item in rancher_settings.listed(given)]
        self._start = start or command_line.Start()

    def flag(self, name: str) -> str | None:
        """Value of one of kube-scheduler's arguments, None when it has none."""
        ours = self._config if name == "config" else None
        return _argument(self._arguments, name) or ours or _DEFAULTS.get(name)

    def config_file(self) -> str | None:
        """Return the path of the file ``--config`` names, None without that argument."""
        return self.flag("config")

    def outside(self, inside: str) -> str | None:
        """Return the path on the machine of a path that kube-scheduler sees: the same."""
        return inside

    def mounts_our_file(self) -> bool:
        """Return whether the configuration file is one we brought."""
        return self._config is not None

    def reads_our_file(self) -> bool:
        """Return whether the configuration that it reads is the one we brought."""
        return self._config is not None and self.flag("config") == self._config

    def bears_checksum(self) -> bool:
        """Return whether we have edited the settings."""
        return self._is_there

    def add(self, wanted: scheduler_manifest.Wanted) -> None:
        """Make kube-scheduler read the configuration and see what it needs."""
        self._refuse_what_would_override()
        theirs = _argument(self._arguments, "config")
        if theirs is not None and self._config is not None:
            raise ConfigError(
                f"{self.path} and another file beside it both give kube-scheduler a configuration. The other file's is "
                f"{theirs}. Remove config= from the other file, or run with state=absent first"
            )
        if theirs is None:
            self._config = wanted.config_path
        for path in wanted.files if self.distribution.in_pod else ():
            if not any(path.startswith(mount.rstrip("/") + "/") for mount in wanted.mounts):
                raise ConfigError(
                    f"kube-scheduler cannot see {path}, which an extender's tls_config names: "
                    f"add {posixpath.dirname(path)} to mounts"
                )
        self._mounts = [f"{path}:{path}:ro" for path in wanted.mounts] if self.distribution.in_pod else []

    def remove(self, original: str | None, keep_config: bool) -> None:
        """Take out all that add() put in, or with ``keep_config`` all but the configuration file."""
        del original  # There is none: the file is ours alone.
        self._mounts = []
        if not keep_config:
            self._config = None

    def text(self) -> str | None:
        """Return the text of our file, None when it is not needed."""
        lines = [f"{_ARGUMENTS}+:", f"  - config={self._config}"] if self._config is not None else []
        lines += [f"{_MOUNTS}+:", *(f"  - {mount}" for mount in self._mounts)] if self._mounts else []
        return _HEADER + "\n".join(lines) + "\n" if lines else None

    def _refuse_what_would_override(self) -> None:
        self._refuse_other_files()
        name, directory = self.distribution.name, self.distribution.directory
        for option, given in self._start.go_flags((_ARGUMENTS, _MOUNTS)):
            raise ConfigError(
                f"{given.path} gives {name} --{option}={given.value}, and its command line wins over all files: "
                f"move it to {directory}/config.yaml, then run again"
            )
        disabled = [
            (path, str(settings[_DISABLED])) for path, settings in self._others.items() if _DISABLED in settings
        ]
        disabled += [(given.path, given.value) for _name, given in self._start.go_flags((), [_DISABLED])]
        for path, value in disabled[-1:]:
            if command_line.is_on(value):
                raise ConfigError(
                    f"{path} has {_DISABLED}, so this server runs no kube-scheduler: configure the servers that do, "
                    "or take that out"
                )
        for path, settings in self._others.items():
            replaced = {_ARGUMENTS, _MOUNTS}.intersection(settings)
            if rancher_settings.rank(path) > rancher_settings.rank(self.path) and replaced:
                key = sorted(replaced)[0]
                raise ConfigError(
                    f"{path} is read after {self.path} and its {key} replaces what is there: "
                    f"write '{key}+' in it, or give it a name before {OUR_FILE}"
                )

    def _refuse_other_files(self) -> None:
        """Raise ConfigError where the server reads other settings than those in its directory."""
        other = rancher_settings.other_file(self.distribution.name, self._start)
        if other:
            usual, (said, value) = f"{self.distribution.directory}/config.yaml", other
            raise ConfigError(
                f"{value.path} has {self.distribution.name} read {value.value} by {said}, and neither {usual} nor what "
                f"is in {usual}.d: move its settings to {usual} and take {said} out, then run again"
            )


def _argument(arguments: Sequence[object], name: str) -> str | None:
    """Return the value that holds: the last; names ending in ``-`` come first (k3s, pkg/util/args.go)."""
    found: List[str] = []
    for argument in arguments:
        key, equals, value = str(argument).partition("=")
        key = key[2:] if key.startswith("--") else key
        if key.rstrip("-+") != name:
            continue
        found.insert(0 if key.endswith("-") else len(found), value if equals else "true")
    return found[-1] if found else None
