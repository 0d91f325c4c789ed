# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""CRI-O, as the module nvidia_runtime has to know it."""

from __future__ import annotations

import os
from typing import Any, Dict, Sequence

from ansible_collections.accel.kubernetes.plugins.module_utils.host.machine import CommandError
from ansible_collections.accel.kubernetes.plugins.module_utils.host.outcome import Refused, text_of
from ansible_collections.accel.kubernetes.plugins.module_utils.host.record import FileChange

from . import config as runtime_config
from . import effect as runtime_effect
from .adapter import Adapter
from .config import LowLevel
from .dialect import ConfigError, parse


class Crio(Adapter):
    """CRI-O, configured by a drop-in."""

    KIND = "crio"
    CONFIG_PATH = "/etc/crio/crio.conf.d/99-nvidia.toml"
    UNIT = "crio"

    def daemon(self) -> str:
        """Return CRI-O's program."""
        return "crio"

    def base(self) -> str:
        """Return an empty drop-in."""
        return ""

    def asks(self) -> Sequence[str]:
        """Return the command of crictl or, where a node has none, as from kubeadm 1.32, that of CRI-O from 1.28."""
        if self.host.find("crictl") is None:
            return ["crio", "status", "info"]
        # By its endpoint: crictl's default is the first socket that answers, as a containerd beside it does.
        return ["crictl", "--runtime-endpoint", "unix:///run/crio/crio.sock", "info"]

    def said(self) -> Dict[str, Any]:
        """Return what CRI-O says of itself, before 1.28 by a program of its own."""
        try:
            said = self.host.run(["crio", "status", "config"], timeout=30)
        except CommandError:
            if self.host.find("crio-status") is None:
                raise
            said = self.host.run(["crio-status", "config"], timeout=30)
        return parse(self.KIND, said, "what CRI-O says of itself")

    def low_levels(self) -> Sequence[LowLevel]:
        """Return what CRI-O runs containers with. Nothing is known where it does not say."""
        if not self.present:
            return ()
        try:
            said = self.host.run(["crio", "config"], timeout=30)
            data = parse(self.KIND, said, "the output of 'crio config'")
            return runtime_config.crio_low_levels(data, self.wanted)
        except (CommandError, ConfigError):
            return ()

    def validation(self) -> Sequence[str]:
        """Return CRI-O's own reading of a file, which it does not read without the runtime's program."""
        return [] if self._lacks_program() else ["crio", "--config", "%s", "--config-dir", "", "config"]

    def require_heeded(self, changes: Sequence[FileChange]) -> None:
        """Raise Refused where it would not find the program, or a flag or a later drop-in overrides our file."""
        self._require_program()
        path, start = self.path, self.unit.started_with()
        directory = runtime_effect.crio_drop_ins(path, start)
        against = runtime_effect.crio_flag_against(start, self.wanted, directory)
        if not runtime_effect.is_below(path, directory):
            against = runtime_effect.crio_other_file(start, path) or against
        said = self.candidate(changes)
        if against:
            raise Refused(
                f"CRI-O on this host is started with {against}, which overrides {path}, so nothing was changed: take "
                "that out (see 'systemctl cat crio'), then run again"
            )
        self.require_last(path, [said], self._drop_ins(directory), "set config_path to that file", directory)

    def _drop_ins(self, directory: str) -> Dict[str, str]:
        """Return the drop-ins of a directory, and of those in it, by their paths below it, hidden ones too."""
        found = [os.path.join(place, name) for place, _inside, names in os.walk(directory) for name in names]
        return {
            os.path.relpath(path, directory): text_of(self.host.read(path) or b"", path)
            for path in found
            if os.path.isfile(path)
        }

    def _require_program(self) -> None:
        """Raise Refused where CRI-O, which does not start with a runtime that is not there, would not find ours.

        In check mode the toolkit may be what an earlier task of the same run would have installed.
        """
        if self._lacks_program() and not self.module.check_mode:
            raise Refused(
                f"{self.wanted.binary} does not exist and CRI-O would not start with it, so nothing was changed: "
                "install the container toolkit, or set runtime_binary"
            )

    def _lacks_program(self) -> bool:
        return self.present and self.host.read(self.wanted.binary) is None
