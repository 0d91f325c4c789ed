# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""k3s and rke2, which write containerd's configuration at each start, as the module nvidia_runtime has to know them."""

from __future__ import annotations

import os
from typing import Any, Dict, Mapping, Sequence, Tuple

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.accel.kubernetes.plugins.module_utils.documents import yaml_text
from ansible_collections.accel.kubernetes.plugins.module_utils.host import (
    command_line,
    openrc_service,
    rancher_settings,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.host.machine import CommandError
from ansible_collections.accel.kubernetes.plugins.module_utils.host.outcome import (
    Refused,
    bytes_like,
    spelled,
    text_of,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.host.record import FileChange, Record

from . import config as runtime_config
from . import rancher_config
from .containerd import AskedByCri
from .dialect import ConfigError, parse


class Rancher(AskedByCri):
    """The containerd of k3s or rke2."""

    TIMEOUT = 300
    CRI_SOCKET = "/run/k3s/containerd/containerd.sock"
    UNITS: Sequence[str]
    DAEMON: str

    def __init__(self, module: AnsibleModule) -> None:
        self.awaited = False
        self.data_dir = f"/var/lib/rancher/{module.params['runtime']}"
        super().__init__(module)

    def unit_name(self) -> str:
        """Return whichever of its units the host has. Raises Refused where it has none."""
        for unit in self.UNITS:
            if self.host.find("systemctl") is None:
                if self.host.find("rc-service") is not None and self.host.read(f"/etc/init.d/{unit}") is not None:
                    return unit
                continue
            try:
                self.host.run(["systemctl", "cat", unit], timeout=10)
            except CommandError:
                continue
            return unit
        raise Refused(f"this host has no unit {' or '.join(self.UNITS)}; set service to the one that runs {self.name}")

    def place(self) -> str:
        """Return the path of the configuration that it writes, in its configured data directory."""
        params, usual = self.params, self.CONFIG_PATH
        path: str = spelled(params["config_path"] or usual)
        settings = params["settings_path"] or f"/etc/rancher/{self.name}/config.yaml.d/99-accel-kubernetes.yaml"
        self.settings_path = spelled(settings)
        told = self._told_data_dir()
        if told:
            written = os.path.normpath(told.value) + usual[len(self.data_dir) :]
            if path.endswith(usual):
                path = path[: -len(usual)] + written
            elif not path.endswith(written) and self.present:
                raise Refused(
                    f"{told.path} has {self.name} keep its data in {told.value}, so it writes {written}, and not "
                    f"{path}: leave config_path out, then run again; nothing was changed"
                )
            self.data_dir = os.path.normpath(told.value)
        self.where = rancher_config.Places(self.name, os.path.dirname(path), self.settings_path)
        return path

    def daemon(self) -> str:
        """Return the program that is there once it is installed."""
        return self.DAEMON

    def base(self) -> str:
        """Raise Refused: it writes its configuration itself."""
        raise Refused(
            f"{self.where.generated} does not exist: {self.name} writes it when it starts; start it once, "
            "or set config_path to where its data directory has it"
        )

    def validation(self) -> Sequence[str]:
        """Return nothing: what is written is not what containerd reads."""
        return []

    def unheeded(self) -> str:
        """Return what the configuration that it wrote lacks, else what it says of itself."""
        missing = self._missing(self.transaction.host.read(self.path)) if self.awaited else ""
        return missing or super().unheeded()

    def changes(self, record: Record, shared: Mapping[str, Any]) -> Tuple[Sequence[FileChange], bool]:
        """Return the changes of its files, and whether it has to be restarted to find the runtime by itself."""
        seen = self._seen()
        if self.present:
            plan = rancher_config.plan_present(self.where, seen, self.wanted)
            self._require_last_drop_in(plan, seen)
        else:
            plan = rancher_config.plan_absent(self.where, seen)
        self.awaited = plan.awaited
        every = [self._change(record, path, text) for path, text in plan.files.items()]
        changes = [change for change in every if change.before != change.after]
        return changes, plan.awaited and not changes and bool(self._missing(seen.generated.encode()))

    def _change(self, record: Record, path: str, text: str | None) -> FileChange:
        """Return what becomes of a file, with what the record remembers of it."""
        record.name(path)
        current = self.transaction.read(path)
        after = None if text is None else bytes_like(current, text)
        known = path in record.originals and record.untouched(path, current)
        if known and (after is None or not self.present):
            after = record.originals[path]
        if after != current and self.present:
            record.originals.setdefault(path, current)
        elif after != current:
            record.originals.pop(path, None)
        return FileChange(path, current, after)

    def _require_last_drop_in(self, plan: rancher_config.RancherPlan, seen: rancher_config.Seen) -> None:
        generated = parse(self.KIND, seen.generated, self.where.generated)
        for path, text in plan.files.items():
            if text is not None and os.path.basename(path) == rancher_config.DROP_IN:
                ours = parse(self.KIND, text, path)
                directory = os.path.dirname(path)
                names = [name for name in _listed(directory) if name.endswith(".toml")]
                paths = {name: os.path.join(directory, name) for name in names}
                drop_ins = {name: text_of(self.host.read(file) or b"", file) for name, file in paths.items()}
                self.require_last(path, [generated, ours], drop_ins, "move that file away, then run again", directory)

    def require_heeded(self, changes: Sequence[FileChange]) -> None:
        """Raise Refused where the distribution's flags or settings override what is to be set."""
        files = self._settings()
        for change in changes:
            if change.path == self.where.settings:
                files.pop(change.path, None)
                files.update({change.path: text_of(change.after, change.path)} if change.after is not None else {})
        if not yaml_text.CAN_READ:
            unread = rancher_config.unread(self.where, files)
            if unread:
                raise Refused(f"{unread}, so nothing was changed: install python3-yaml, then run again")
            files = {}
        try:
            against = rancher_config.overriding(self.where, self._start(), files, self.wanted)
        except ConfigError as error:
            raise Refused(str(error)) from error
        if against:
            raise Refused(f"{against} that out, then run again; nothing was changed")

    def _start(self) -> command_line.Start:
        """Return what systemd or OpenRC starts the distribution with."""
        start: command_line.Start = self.unit.start()
        for unit in self.UNITS:
            if not start.words:
                files = {path: self.host.words(path) for path in (f"/etc/conf.d/{unit}", f"/etc/init.d/{unit}")}
                start = openrc_service.started(files, self.host.matching)
        return start

    def _told_data_dir(self) -> command_line.Given | None:
        """Return its configured data directory, None where there is none.

        Settings that cannot be read are refused later.
        """
        try:
            texts = self._settings() if yaml_text.CAN_READ else {}
            said = {path: rancher_settings.load(texts[path], path) for path in sorted(texts, key=rancher_settings.rank)}
        except (yaml_text.YamlError, Refused):
            said = {}
        return rancher_settings.data_dir(self.name, self._start(), said)

    def _settings(self) -> Dict[str, str]:
        """Return the texts of the distribution's settings by path, ours among them."""
        directory = os.path.dirname(self.settings_path)
        other = rancher_settings.other_file(self.name, self._start())
        if other:
            directory = f"{other[1].value}.d"
        elif not directory.endswith(".d"):
            return {}
        names = [name for name in _listed(directory) if name.lower().endswith((".yaml", ".yml"))]
        paths = [directory[: -len(".d")], *(os.path.join(directory, name) for name in names)]
        found = {path: self.host.read(path) for path in paths if os.path.isfile(path)}
        return {path: text_of(data, path) for path, data in found.items() if data is not None}

    def _seen(self) -> rancher_config.Seen:
        generated = self.host.read(self.where.generated)
        text = self.base() if generated is None else text_of(generated, self.where.generated)
        templates = {}
        for name in rancher_config.TEMPLATES:
            data = self.transaction.read(self.where.template(name))
            if data is not None:
                templates[name] = text_of(data, self.where.template(name))
        return rancher_config.Seen(text, templates)

    def _missing(self, generated: bytes | None) -> str:
        """Return what the written configuration lacks."""
        if generated is None:
            return f"{self.where.generated} is gone"
        try:
            data = parse(self.KIND, generated.decode(errors="replace"), self.where.generated)
            wrong = runtime_config.complaint(self.KIND, data, self.wanted, self.where.generated)
        except ConfigError as error:
            return str(error)
        return f"{self.name} was restarted, but in {self.where.generated} {wrong}" if wrong else ""


class K3s(Rancher):
    """The containerd of k3s."""

    CONFIG_PATH = "/var/lib/rancher/k3s/agent/etc/containerd/config.toml"
    CTR = ("k3s", "ctr")
    UNITS = ("k3s", "k3s-agent")
    DAEMON = "k3s"


class Rke2(Rancher):
    """The containerd of rke2, whose programs are where it keeps its data."""

    CONFIG_PATH = "/var/lib/rancher/rke2/agent/etc/containerd/config.toml"
    UNITS = ("rke2-server", "rke2-agent")
    DAEMON = "/var/lib/rancher/rke2/bin/containerd"

    def asks(self) -> Sequence[str]:
        """Return the command that asks containerd's own service."""
        return [f"{self.data_dir}/bin/ctr", "--address", self.CRI_SOCKET]


def _listed(directory: str) -> Sequence[str]:
    """Return the names of the files in a directory, which need not be there."""
    names = os.listdir(directory) if os.path.isdir(directory) else []
    return [name for name in names if os.path.isfile(os.path.join(directory, name))]
