# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Docker, as the module nvidia_runtime has to know it."""

from __future__ import annotations

import json
from typing import Any, Dict, Sequence

from ansible_collections.accel.kubernetes.plugins.module_utils.host.machine import CommandError
from ansible_collections.accel.kubernetes.plugins.module_utils.host.outcome import Refused
from ansible_collections.accel.kubernetes.plugins.module_utils.host.record import FileChange

from . import effect as runtime_effect
from .adapter import Adapter


class Docker(Adapter):
    """The Docker daemon, configured by daemon.json."""

    KIND = "docker"
    CONFIG_PATH = "/etc/docker/daemon.json"
    UNIT = "docker"

    def daemon(self) -> str:
        """Return dockerd."""
        return "dockerd"

    def base(self) -> str:
        """Return an empty object."""
        return "{}\n"

    def asks(self) -> Sequence[str]:
        """Return the command that succeeds once the daemon answers."""
        return ["docker", "version"]

    def said(self) -> Dict[str, Any]:
        """Return what Docker's information holds of its configuration."""
        information = self.host.run(["docker", "info", "--format", "{{json .}}"], timeout=30)
        return runtime_effect.said_by_docker(json.loads(information))

    def validation(self) -> Sequence[str]:
        """Return dockerd's own check."""
        return ["dockerd", "--validate", "--config-file", "%s"]

    def validate(self, command: Sequence[str], path: str, candidate: bytes) -> str:
        """Have the candidate accepted; a dockerd that has no such check gets a warning."""
        try:
            return super().validate(command, path, candidate)
        except Refused as error:
            if "unknown flag: --validate" not in str(error):
                raise
            self.transaction.warnings.append(
                "This dockerd, before 23.0, has no --validate: the candidate was not validated."
            )
            return ""

    def require_heeded(self, changes: Sequence[FileChange]) -> None:
        """Raise Refused where its command line names another file, or says the same as ours."""
        start = self.unit.started_with()
        another = self.reads_another(runtime_effect.file_read(self.KIND, start))
        if another:
            raise Refused(another)
        flag = runtime_effect.flags_against(start, self.candidate(changes))
        if flag:
            raise Refused(
                f"dockerd on this host is started with {flag}, and does not start when {self.path} says the same, "
                f"so nothing was changed. Move {flag} from the unit's command line to that file, then run again"
            )

    def why_not_now(self) -> str:
        """Return that the restart would stop containers, empty where it would not."""
        if not self.unit.name or self.params["stop_containers"]:
            return ""
        command = ["docker", "info", "--format", "{{.LiveRestoreEnabled}} {{.ContainersRunning}}"]
        try:
            said = self.host.run(command, timeout=30).split()
        except CommandError:
            return ""  # a Docker that does not answer is not what keeps containers running
        if len(said) != 2 or said[0] != "false" or said[1] == "0":
            return ""
        return (
            f"Docker needs a restart, which would stop the {said[1]} containers of this host because live-restore is "
            'off, so nothing was changed. Set "live-restore": true in its configuration, and run \'systemctl reload '
            "docker'. Or drain the node and set stop_containers=true"
        )
