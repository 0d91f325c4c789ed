# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How a machine runs kube-scheduler, and what tells that its command line."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Callable, Dict, List, Mapping, Union

from ansible_collections.accel.kubernetes.plugins.module_utils.documents import yaml_text
from ansible_collections.accel.kubernetes.plugins.module_utils.host import (
    command_line,
    openrc_service,
    rancher_settings,
    systemd_units,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.host.machine import Host
from ansible_collections.accel.kubernetes.plugins.module_utils.host.outcome import Refused, text_of

from . import config as scheduler_config
from . import manifest as scheduler_manifest
from . import rancher as scheduler_rancher
from .schema import ConfigError

_KUBECONFIG = "/etc/kubernetes/scheduler.conf"
_ADMINISTRATORS = ("/etc/kubernetes/super-admin.conf", "/etc/kubernetes/admin.conf")

Read = Callable[[str], "bytes | None"]
"""Gives a file's content, None where there is no file."""

Told = Union[scheduler_manifest.Manifest, scheduler_rancher.Settings]
"""The file that has kube-scheduler's command line."""


class Installation:
    """Static pod with a manifest of its own, or k3s or rke2, which run it themselves."""

    def __init__(self, host: Host, root: str, chosen: str, manifest_path: str) -> None:
        """``root`` is the machine's file system as seen from here; ``chosen`` may be ``auto``."""
        self._host = host
        self._root = root
        self.distribution = self._found(chosen)
        """None for a static pod."""
        self.told_path = self.on_host(self.distribution.our_file if self.distribution else manifest_path)
        """The file to edit that tells the command line."""

    def _found(self, chosen: str) -> scheduler_rancher.Distribution | None:
        """Return how this machine runs kube-scheduler; None for a static pod with a manifest of its own."""
        for distribution in map(self._placed, scheduler_rancher.DISTRIBUTIONS):
            server = os.path.exists(self.on_host(distribution.kubeconfig))
            if chosen == distribution.name or (chosen == "auto" and server):
                return distribution
        return None

    def _placed(self, distribution: scheduler_rancher.Distribution) -> scheduler_rancher.Distribution:
        """Return the distribution with its data directory. Settings that cannot be read count as silent."""
        if not yaml_text.CAN_READ:
            return distribution
        try:
            texts = _texts({path: self._host.read(path) for path in self._settings(distribution)})
            said = {path: rancher_settings.load(texts[path], path) for path in sorted(texts, key=rancher_settings.rank)}
        except (OSError, Refused, yaml_text.YamlError):
            return distribution
        told = rancher_settings.data_dir(distribution.name, self._service(distribution.service), said)
        if told is None:
            return distribution
        kubeconfig = distribution.kubeconfig.replace(
            f"/var/lib/rancher/{distribution.name}", os.path.normpath(told.value)
        )
        return replace(distribution, kubeconfig=kubeconfig)

    def _settings(self, distribution: scheduler_rancher.Distribution) -> List[str]:
        """Paths of the files of settings that are there, or may be."""
        directory = self.on_host(distribution.directory)
        inside = f"{directory}/config.yaml.d"
        names = [f"{directory}/config.yaml", self.on_host(distribution.our_file)]
        for name in os.listdir(inside) if os.path.isdir(inside) else ():
            if name.lower().endswith((".yaml", ".yml")) and os.path.isfile(f"{inside}/{name}"):
                names.append(f"{inside}/{name}")
        return names

    def told(self, read: Read) -> Told:
        """Return what tells kube-scheduler its command line. Raises ConfigError where it cannot be edited."""
        if self.distribution is None:
            return scheduler_manifest.Manifest(text_of(read(self.told_path) or b"", self.told_path), self.told_path)
        directory = self.on_host(self.distribution.directory)
        settings = {name: read(name) for name in self._settings(self.distribution)}
        return scheduler_rancher.Settings(
            replace(self.distribution, directory=directory), _texts(settings), self._service(self.distribution.service)
        )

    def _service(self, name: str) -> command_line.Start:
        """Return what systemd starts the service with, paths as seen from here."""
        candidates = [f"{directory}/{name}.service" for directory in systemd_units.DIRECTORIES]
        for directory in systemd_units.DIRECTORIES:
            for inside in systemd_units.drop_in_directories(name):
                place = self.on_host(f"{directory}/{inside}")
                found = sorted(os.listdir(place)) if os.path.isdir(place) else []
                candidates += [f"{directory}/{inside}/{file}" for file in found]
        # A link to /dev/null is there too, and takes away what it is named after.
        there = [path for path in candidates if os.path.exists(self.on_host(path))]
        host = self._host
        chosen = [self.on_host(path) for path in systemd_units.chosen(name, there)]
        start = systemd_units.effective({path: host.words(path) for path in chosen}, self._matching)
        scripts = [self.on_host(f"/etc/{place}/{name}") for place in ("conf.d", "init.d")]
        # Where there is no unit, OpenRC's script may be.
        return (
            start
            if start.words
            else openrc_service.started({path: host.words(path) for path in scripts}, self._matching)
        )

    def _matching(self, pattern: str) -> Dict[str, str]:
        """Contents of the files on the machine that a pattern names."""
        found: Dict[str, str] = self._host.matching(self.on_host(pattern))
        return found

    def refuse_second_manifest(self, told: Told, read: Read) -> None:
        """Raise ConfigError where the directory has another manifest of the same pod: kubelet reads every file."""
        if isinstance(told, scheduler_rancher.Settings):
            return
        directory = os.path.dirname(self.told_path)
        for name in sorted(os.listdir(directory)):
            path = os.path.join(directory, name)
            if (
                name.startswith(".")
                or not os.path.isfile(path)
                or os.path.realpath(path) == os.path.realpath(self.told_path)
            ):
                continue
            text = (read(path) or b"").decode(errors="replace")
            if told.is_same_pod(text):
                raise ConfigError(
                    f"{path} is a manifest of the same pod as {self.told_path}, and kubelet runs only one of them: "
                    "move it out of that directory, then run again"
                )

    def base(self, told: Told, flags: bool = True) -> str:
        """Return the configuration to begin with, by ``flags`` with what the command line says of it."""
        leader_elect = told.flag("leader-elect") != "false"
        given = None if self.distribution else told.flag("kubeconfig")
        default = self.distribution.kubeconfig if self.distribution else _KUBECONFIG
        more = (told.flag,) if flags else ()
        return str(scheduler_config.base(given or default, leader_elect, *more))

    def on_host(self, path: str) -> str:
        """Return the path of a file of the machine as seen from here."""
        return os.path.join(self._root, path.lstrip("/"))

    def administrators(self) -> List[str]:
        """Return the kubeconfigs that may ask kube-scheduler for its configuration."""
        paths = self.distribution.administrators if self.distribution else _ADMINISTRATORS
        return [self.on_host(path) for path in paths]


def _texts(files: Mapping[str, bytes | None]) -> Dict[str, str]:
    return {path: text_of(data, path) for path, data in files.items() if data is not None}
