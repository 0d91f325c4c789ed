# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""containerd, as the module nvidia_runtime has to know it: one of its own, and that of MicroK8s."""

from __future__ import annotations

import abc
import json
import os
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any, Callable, Dict, Sequence

from ansible_collections.accel.kubernetes.plugins.module_utils.host.machine import CommandError, Host
from ansible_collections.accel.kubernetes.plugins.module_utils.host.outcome import Refused, bytes_like, text_of
from ansible_collections.accel.kubernetes.plugins.module_utils.host.record import FileChange
from ansible_collections.accel.kubernetes.plugins.module_utils.host.service import Watch

from . import config as runtime_config
from . import cri_status
from . import effect as runtime_effect
from .adapter import Adapter
from .cri_watch import cri_watch
from .dialect import ConfigError, parse

_MERGED = "the merged configuration"
_DUMP = "the output of 'containerd config dump'"


class AskedByCri(Adapter):
    """A containerd, of its own or of a distribution, which is asked over the socket of its CRI plugin."""

    KIND = "containerd"
    CRI_SOCKET: str
    CTR: Sequence[str]

    def listening(self) -> str:
        """Return the socket that it is known to listen on, empty where that is not known."""
        return ""

    def asks(self) -> Sequence[str]:
        """Return the command that asks containerd's own service."""
        listening = self.listening()
        return [*self.CTR, *(["--address", listening] if listening not in ("", self.CRI_SOCKET) else [])]

    def well(self) -> Watch:
        """Return a watch that asks containerd where it listens, which is found out before the restart."""

        def watch(host: Host, undoing: bool) -> Callable[[], str]:
            probe: Callable[[], str] = cri_watch(self.asks())(host, undoing)
            return probe

        return watch

    def can_be_asked(self) -> bool:
        """Return whether a socket is known."""
        return bool(self._socket())

    def said(self) -> Dict[str, Any]:
        """Return the configuration that containerd's verbose CRI status holds."""
        information = cri_status.info(self._socket()).get("config", "null")
        return runtime_effect.said_by_containerd(json.loads(information))

    def require_askable(self) -> None:
        """Raise Refused where it could not be asked after the restart, or runs and cannot be asked now."""
        super().require_askable()
        if self.unit.main_pid():
            self._require_heard()

    def _require_heard(self) -> None:
        """Raise Refused where a containerd that runs cannot be asked. Where its file has it listen, it will."""
        listening, socket = self.listening(), self._socket()
        wrong = cri_status.unheard(socket) if self.present and socket not in ("", listening) else ""
        if wrong:
            raise Refused(
                f"nothing answers at {socket} ({wrong}), though the unit of {self.name} runs, so nothing was changed. "
                f"Wait until {self.name} has started, or set cri_socket to the socket that it listens on. An empty "
                "cri_socket leaves out the check that the runtime has what its file says"
            )
        if self.params["ready"] is not None or listening:
            return
        try:
            self.host.run([*self.asks(), "plugins", "ls"], timeout=10)
        except CommandError as error:
            raise Refused(
                f"{self.name} does not answer, though its unit runs, so nothing was changed: {error}. Set ready to a "
                "command that succeeds once the runtime answers"
            ) from error

    def _socket(self) -> str:
        given: str | None = self.params["cri_socket"]
        if given is not None:
            return given[len("unix://") :] if given.startswith("unix://") else given
        if self.params["ready"] is not None:
            # It names a runtime elsewhere, and another may answer here.
            return ""
        return self.listening() or self.CRI_SOCKET


class ContainerdFile(AskedByCri):
    """A containerd whose file can be edited."""

    PROGRAM: str

    @abc.abstractmethod
    def require_known_default(self, stray: str) -> None:
        """Raise Refused for a default runtime, not empty, that is not among the runtimes."""

    def daemon(self) -> str:
        """Return containerd's program."""
        return self.command()[0]

    def command(self) -> Sequence[str]:
        """Return the command that runs containerd."""
        given: Sequence[str] | None = self.params["containerd_command"]
        return given or [self.PROGRAM]

    def validation(self) -> Sequence[str]:
        """Return the command that prints what containerd makes of the candidate."""
        return [*self.command(), "--config", "%s", "config", "dump"]

    def validate(self, command: Sequence[str], path: str, candidate: bytes) -> str:
        """Have the candidate accepted; unless a command was given, its effect has to be what is wanted too."""
        text = runtime_config.with_imports_from(text_of(candidate, path), path)
        dump = super().validate(command, path, bytes_like(candidate, text))
        if self.params["validate"] is None and self.present:
            try:
                self._require_effect(dump, text)
            except ConfigError as error:
                raise Refused(str(error)) from error
        return dump

    def _require_effect(self, dump: str, text: str) -> None:
        """Raise Refused where what containerd makes of the candidate and its imports does not hold our runtime."""
        merged = parse(self.KIND, dump, _DUMP)
        version = runtime_config.value_at(text, ("version",), self.path)
        if version > merged.get("version", version):
            raise Refused(
                f"{self.path} has version {version}, but this containerd ignores it, because it reads version "
                f"{merged['version']} at most. Nothing was changed. Upgrade containerd, or move the file away to start "
                "from 'containerd config default', then run again"
            )
        wanted = self.wanted
        if wanted.cdi and runtime_config.lacks_cdi(merged, _MERGED):
            # Which no file can change, and containers get their GPUs without it.
            self.transaction.warnings.append("This containerd has no CDI, which came with 1.7: cdi has no effect.")
            wanted = replace(wanted, cdi=None)
        wrong = runtime_config.unmet(self.KIND, merged, wanted, _MERGED)
        stray = runtime_config.stray_default(merged, _MERGED)
        if wrong:
            raise Refused(
                f"with the new {self.path}, {wrong}, because {self._overriding(text)}, which its 'imports' names, "
                "overrides it. Nothing was changed. Remove the setting there (for containerd before 2.0, all settings "
                "of that plugin), or set config_path to that file"
            )
        if stray:
            self.require_known_default(stray)

    def _overriding(self, text: str) -> str:
        """Return the last file that containerd's file imports, or those do, and that speaks of the runtimes too."""
        files = runtime_effect.imported(text, self.path, self.host.matching_in_go)
        speaking = [
            path for path, content in files.items() if runtime_config.speaks_of_cri(parse(self.KIND, content, path))
        ]
        return ["a file", *speaking][-1]


class Containerd(ContainerdFile):
    """A containerd of its own, which may read another file or listen elsewhere."""

    CONFIG_PATH = "/etc/containerd/config.toml"
    UNIT = "containerd"
    CRI_SOCKET = "/run/containerd/containerd.sock"
    CTR = ("ctr",)
    PROGRAM = "containerd"
    _address: str | None = None

    def base(self) -> str:
        """Return what containerd has by default."""
        try:
            return str(self.host.run([*self.command(), "config", "default"], timeout=30))
        except CommandError as error:
            if not self.module.check_mode:
                raise Refused(
                    f"{self.path} does not exist and its default cannot be made: {error}; "
                    "install containerd, or set containerd_command or config_path"
                ) from error
            self.module.warn(
                f"{self.path} does not exist and containerd, which prints its default, is not there yet: "
                "the run will write that default and what is shown here."
            )
            return "version = 2\n"

    def listening(self) -> str:
        """Return the socket that its command line or file names, empty where neither does."""
        if self._address is None:
            start = self.unit.started_with()
            path = runtime_effect.file_read(self.KIND, start).value or self.path
            try:
                text = text_of(self.transaction.read(path) or b"", path)
                merged = self.merged(text, path)
                said = parse(self.KIND, text, path) if merged is None else merged
                self._address = runtime_effect.address(start, said)
            except ConfigError:
                self._address = ""
        return self._address

    def merged(self, text: str, path: str) -> Dict[str, Any] | None:
        """Return what containerd makes of a file with those it imports, None where it imports none or cannot say."""
        if not runtime_config.imports_of(text, path):
            return None
        copy = self.host.temporary(runtime_config.with_imports_from(text, path).encode(), os.path.basename(path))
        try:
            said = self.host.run([*self.command(), "--config", copy, "config", "dump"], timeout=30)
            return parse(self.KIND, said, _DUMP)
        except (CommandError, ConfigError):
            return None

    def require_heeded(self, changes: Sequence[FileChange]) -> None:
        """Raise Refused where its command line names another file, which does not import ours either."""
        del changes
        read = runtime_effect.file_read(self.KIND, self.unit.started_with())
        another = self.reads_another(read)
        if another and not self._is_imported_by(read.value):
            raise Refused(another)

    def _is_imported_by(self, path: str) -> bool:
        """Return whether the file that containerd reads imports ours."""
        data = self.host.read(path)
        if data is None:
            return False
        text = text_of(data, path)
        files = {path: text, **runtime_effect.imported(text, path, self.host.matching_in_go)}
        ours = PurePosixPath(self.path)
        return any(
            ours.match(os.path.normpath(os.path.join(os.path.dirname(name), pattern)))
            for name, content in files.items()
            for pattern in runtime_config.imports_of(content, name)
        )

    def require_known_default(self, stray: str) -> None:
        """Raise Refused: containerd would not start containers."""
        raise Refused(
            f"with the new {self.path}, the default runtime {stray!r} is not among containerd's runtimes, "
            "so nothing was changed: add its table to that file, then run again"
        )


class MicroK8s(ContainerdFile):
    """The containerd of MicroK8s, which makes its file of a template that can be edited."""

    CONFIG_PATH = "/var/snap/microk8s/current/args/containerd-template.toml"
    UNIT = "snap.microk8s.daemon-containerd"
    CRI_SOCKET = "/var/snap/microk8s/common/run/containerd.sock"
    CTR = ("microk8s", "ctr")
    PROGRAM = "/snap/microk8s/current/bin/containerd"

    def base(self) -> str:
        """Raise Refused: MicroK8s brings its template."""
        raise Refused(f"{self.path} does not exist; start microk8s once, or set config_path to its template")

    def require_heeded(self, changes: Sequence[FileChange]) -> None:
        """Do nothing: its command line is its own."""

    def require_known_default(self, stray: str) -> None:
        """Do nothing: the default is a variable that MicroK8s fills in itself."""
