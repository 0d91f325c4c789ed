# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether a containerd that was restarted is well: it is asked for its plugins by ctr."""

from __future__ import annotations

from typing import Callable, Sequence

from ansible_collections.accel.kubernetes.plugins.module_utils.host.machine import CommandError, Host
from ansible_collections.accel.kubernetes.plugins.module_utils.host.service import Watch

_CRI_PLUGINS = {("io.containerd.grpc.v1", "cri"), ("io.containerd.cri.v1", "runtime")}


def cri_watch(ctr: Sequence[str]) -> Watch:
    """Return a watch that calls containerd well when its CRI plugin runs; containerd starts without it too."""

    def watch(host: Host, undoing: bool) -> Callable[[], str]:
        del undoing

        def probe() -> str:
            try:
                rows = [line.split() for line in host.run([*ctr, "plugins", "ls"], timeout=10).splitlines()]
                states = {(row[0], row[1]): row[-1] for row in rows if len(row) > 2}
                found = {plugin: states[plugin] for plugin in _CRI_PLUGINS if plugin in states}
                if not found:
                    return "containerd runs without its CRI plugin, which kubelet needs"
                ill = [plugin for plugin, state in found.items() if state != "ok"]
                if not ill:
                    return ""
                said = host.run([*ctr, "plugins", "ls", "-d", f"id=={ill[0][1]}"], timeout=10)
            except CommandError as error:
                return str(error)
            reasons = [
                line.split(":", 1)[1].strip() for line in said.splitlines() if line.strip().startswith("Message:")
            ]
            return f"the CRI plugin did not start: {reasons[0] if reasons else found[ill[0]]}"

        return probe

    return watch
