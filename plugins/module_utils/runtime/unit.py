# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The unit of systemd that runs a container runtime."""

from __future__ import annotations

import contextlib

from ansible_collections.accel.kubernetes.plugins.module_utils.host import command_line, systemd_units
from ansible_collections.accel.kubernetes.plugins.module_utils.host.machine import CommandError, Host
from ansible_collections.accel.kubernetes.plugins.module_utils.host.outcome import Refused

_UNSTARTABLE = ("masked", "bad-setting", "error")
"""Load states of a unit that systemd knows and does not start (systemctl(1))."""


class Unit:
    """A unit as it is before a restart. Without a name, or without systemd, nothing is known of it."""

    def __init__(self, host: Host, name: str) -> None:
        self.name = name
        self._host = host
        self._start: command_line.Start | None = None
        self._main_pid: str | None = None

    def start(self) -> command_line.Start:
        """Return what systemd starts it with, which is empty where that is not known."""
        if self._start is None:
            self._start = command_line.Start()
            if self._is_known():
                with contextlib.suppress(CommandError):
                    files = systemd_units.shown(self._host.run(["systemctl", "cat", self.name], timeout=10))
                    self._start = systemd_units.effective(files, self._host.matching)
        return self._start

    def started_with(self) -> command_line.Start:
        """Return what it starts its daemon with or, where it does not say, what the daemon runs with."""
        start = self.start()
        if start.words or not self.main_pid():
            return start
        running: command_line.Start = command_line.started(command_line.of_process("/proc", self.main_pid()))
        return running

    def main_pid(self) -> str:
        """Return the process id of its daemon, which is empty where none runs or that is not known."""
        if self._main_pid is None:
            self._main_pid = ""
            if self._is_known():
                with contextlib.suppress(CommandError):
                    shown = self._host.run(["systemctl", "show", "--property=MainPID", self.name], timeout=10)
                    said = dict(line.partition("=")[::2] for line in shown.splitlines()).get("MainPID", "")
                    self._main_pid = said if said.isdecimal() and said != "0" else ""
        return self._main_pid

    def require_startable(self, runtime: str) -> None:
        """Raise Refused where it does not exist, or cannot be started."""
        if not self._is_known():
            return
        shown = self._host.run(["systemctl", "show", "--property=LoadState", "--value", self.name], timeout=10)
        if shown.strip() == "not-found":
            raise Refused(
                f"this host has no unit {self.name}, so nothing was changed: is {runtime} what kubelet uses "
                "here? Set runtime to what it uses, or service to the unit that runs it"
            )
        if shown.strip() in _UNSTARTABLE:
            raise Refused(
                f"the unit {self.name} cannot be started, being {shown.strip()}, so nothing was changed: "
                f"see 'systemctl status {self.name}' (one that is masked needs 'systemctl unmask'), then run again"
            )

    def _is_known(self) -> bool:
        return bool(self.name) and self._host.find("systemctl") is not None
