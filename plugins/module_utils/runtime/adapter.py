# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the module nvidia_runtime has to know of a container runtime, of which each has an adapter of its own.

Sources of what they say of themselves: containerd's CRI plugin (its verbose status holds its configuration), Docker's
API (GET /info), crio-status(8).
"""

from __future__ import annotations

import abc
import os
from dataclasses import replace
from typing import Any, Callable, Dict, Mapping, Sequence, Tuple

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.accel.kubernetes.plugins.module_utils.host.command_line import Given
from ansible_collections.accel.kubernetes.plugins.module_utils.host.machine import CommandError, Host
from ansible_collections.accel.kubernetes.plugins.module_utils.host.outcome import (
    Refused,
    spelled,
    text_of,
    transaction_for,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.host.record import FileChange, Record
from ansible_collections.accel.kubernetes.plugins.module_utils.host.service import Service, Watch, command_watch

from . import cri_status
from . import effect as runtime_effect
from .config import LowLevel, Wanted
from .config_file import ConfigFile
from .dialect import ConfigError, parse
from .unit import Unit


class SilentError(Exception):
    """The runtime could not be asked, or did not say how it is configured. Says why."""


class Adapter(abc.ABC):
    """A container runtime on this host: where its configuration is, what runs it, and whom to ask about it.

    An adapter whose configuration is not one file to edit has a ``changes`` of its own.
    """

    KIND: str
    """What its configuration is written for: containerd, docker or crio."""
    CONFIG_PATH: str
    UNIT = ""
    TIMEOUT = 60

    def __init__(self, module: AnsibleModule) -> None:
        params = module.params
        self.module = module
        self.params: Dict[str, Any] = params
        self.name: str = params["runtime"]
        self.present: bool = params["state"] == "present"
        self.host = Host(module)
        self.unit = Unit(self.host, self.unit_name() if params["service"] is None else params["service"])
        self.path = self.place()
        if not params["runtime_name"].strip():
            raise Refused("runtime_name is empty; name the handler of the RuntimeClass, such as nvidia")
        self.wanted = Wanted(params["runtime_name"], params["runtime_binary"], params["default_runtime"], params["cdi"])
        self.transaction = transaction_for(module, "nvidia_runtime", self.path, self._service())

    def unit_name(self) -> str:
        """Return the name of the unit that runs it. Raises Refused where the host has none."""
        return self.UNIT

    def place(self) -> str:
        """Return the path of its configuration."""
        return str(spelled(self.params["config_path"] or self.CONFIG_PATH))

    @abc.abstractmethod
    def daemon(self) -> str:
        """Return the program that is there once the runtime is installed."""

    @abc.abstractmethod
    def base(self) -> str:
        """Return what to begin a missing configuration with. Raises Refused where nothing can be begun."""

    @abc.abstractmethod
    def asks(self) -> Sequence[str]:
        """Return the command that asks it whether it is well."""

    @abc.abstractmethod
    def said(self) -> Dict[str, Any]:
        """Return what it says that its configuration is, laid out as its file is; empty where it does not say."""

    @abc.abstractmethod
    def validation(self) -> Sequence[str]:
        """Return the command that has to accept a candidate at ``%s``, empty where there is none."""

    @abc.abstractmethod
    def require_heeded(self, changes: Sequence[FileChange]) -> None:
        """Raise Refused where something keeps it from what its files are to say."""

    def can_be_asked(self) -> bool:
        """Return whether it is known how to ask it for its configuration."""
        return True

    def well(self) -> Watch:
        """Return the watch that calls it well."""
        watch: Watch = command_watch(self.asks())
        return watch

    def merged(self, text: str, path: str) -> Dict[str, Any] | None:
        """Return what it makes of a file with those it imports, None where it imports none or cannot say."""
        del text, path
        return None

    def low_levels(self) -> Sequence[LowLevel]:
        """Return the runtimes that ours hands containers to, where the toolkit has to know them."""
        return ()

    def why_not_now(self) -> str:
        """Return why it must not be restarted now, empty where it may be."""
        return ""

    def changes(self, record: Record, shared: Mapping[str, Any]) -> Tuple[Sequence[FileChange], bool]:
        """Return the changes of its files, and whether it has to be restarted in any case.

        ``shared`` are fields that ours has of the runtime it hands containers to. Notes in the record what is ours.
        """
        current = self.transaction.read(self.path)
        file = ConfigFile(self.KIND, self.path, current)
        if not self.present:
            change = file.without_runtime(record)
        else:
            text = self.base() if current is None else text_of(current, self.path)
            wanted = replace(self.wanted, shared=shared)
            merged = None if current is None else self.merged(text, self.path)
            change = file.with_runtime(record, text, wanted, merged)
        return [change] if change else [], False

    def validate(self, command: Sequence[str], path: str, candidate: bytes) -> str:
        """Have a command accept a candidate, and return what it prints. Raises Refused where it does not."""
        copy = self.host.temporary(candidate, os.path.basename(path))
        try:
            return str(self.host.run([word.replace("%s", copy) for word in command], timeout=30))
        except CommandError as error:
            raise Refused(f"the new {path} was refused, so nothing was changed: {error}") from error

    def require_askable(self) -> None:
        """Raise Refused where it could not be found out after the restart that it is well and has what is wanted."""
        if not self.unit.name:
            return
        ready = self.asks() if self.params["ready"] is None else self.params["ready"]
        # In check mode both may be what an earlier task of the same run would have installed.
        coming = self.module.check_mode and self.host.find(self.daemon()) is None
        if ready and self.host.find(ready[0]) is None and not coming:
            raise Refused(
                f"{ready[0]} is not on PATH, and only it can say whether {self.name} is well after its restart, so "
                "nothing was changed. Install it, or set ready to a command that succeeds once the runtime answers"
            )

    def reads_another(self, read: Given) -> str:
        """Return why our file is not heeded where it reads another one, ``read``; empty where it does not."""
        if not read.value or os.path.realpath(read.value) == os.path.realpath(self.path):
            return ""
        where = f" in {read.path}" if read.path else ""
        return (
            f"{self.name} on this host reads {read.value}, as its command line says{where}, and not "
            f"{self.path}, so nothing was changed: set config_path to {read.value}"
        )

    def candidate(self, changes: Sequence[FileChange]) -> Dict[str, Any]:
        """Return what our file is to say. Raises ConfigError where it cannot be read."""
        data = changes[0].after if changes else self.transaction.read(self.path)
        return parse(self.KIND, text_of(data or b"", self.path), self.path)

    def require_last(
        self, path: str, documents: Sequence[Dict[str, Any]], drop_ins: Mapping[str, str], remedy: str, directory: str
    ) -> None:
        """Raise Refused where one of a directory's drop-ins that is read later overrides ours, the last document."""
        later = runtime_effect.read_later(drop_ins, path, directory)
        wrong = runtime_effect.winner(self.KIND, documents, later, self.wanted, directory)
        if wrong:
            raise Refused(f"{wrong}, so nothing was changed: take that out there, or {remedy}")

    def is_behind(self) -> bool:
        """Return whether it runs since before its files say what is wanted. One that is silent is left alone."""
        try:
            return bool(self._lacks())
        except SilentError as error:
            self.transaction.warnings.append(
                f"{self.path} is as wanted. Whether that is in effect is not known: {error}."
            )
            return False

    def unheeded(self) -> str:
        """Return what keeps us from saying that what is wanted is in effect, empty when nothing or nobody can tell."""
        try:
            wrong = self._lacks()
        except SilentError as error:
            return str(error)
        return f"{self.name} runs, and says that {wrong}: what else it is told overrides {self.path}" if wrong else ""

    def _lacks(self) -> str:
        """Return what the running runtime lacks of what is wanted, empty when it is not known how to ask it."""
        if not (self.present and self.unit.name and self.can_be_asked()):
            return ""
        try:
            said = self.said()
            if not said:
                raise SilentError(f"{self.name} answers, and does not say how it is configured")
            return runtime_effect.unmet(self.KIND, said, self.wanted)
        except (CommandError, cri_status.StatusError, ConfigError, ValueError) as error:
            raise SilentError(str(error)) from error

    def _service(self) -> Service:
        unit, ready = self.unit.name, self.params["ready"]
        if not unit:
            return Service()
        watch: Watch | None = self.well() if ready is None else command_watch(ready) if ready else None
        reset = ["systemctl", "reset-failed", unit]
        timeout = self.params["timeout"] or self.TIMEOUT
        return Service(self.host.restart_of(unit), self._heeded(watch) if self.present else watch, timeout, reset)

    def _heeded(self, well: Watch | None) -> Watch:
        """Return a watch that also has the restarted runtime say that it has what is wanted."""

        def watch(host: Host, undoing: bool) -> Callable[[], str]:
            ready = well(host, undoing) if well else lambda: ""
            return ready if undoing else lambda: ready() or self.unheeded()

        return watch
