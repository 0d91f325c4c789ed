# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Whether the container runtime that runs is well, and has what its file says: it is asked, over its own socket.

Sources: containerd's CRI plugin (its verbose status holds its configuration), Docker's API (GET /info), crio-status(8).
"""

from __future__ import annotations

import json
from typing import Any, Callable, Dict, Sequence

from ansible_collections.accel.kubernetes.plugins.module_utils.host.machine import CommandError, Host
from ansible_collections.accel.kubernetes.plugins.module_utils.host.transaction import Watch
from ansible_collections.accel.kubernetes.plugins.module_utils.runtime import (
    config as runtime_config,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.runtime import (
    cri_status,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.runtime import (
    effect as runtime_effect,
)

CRI_SOCKETS = {
    "containerd": "/run/containerd/containerd.sock",
    "k3s": "/run/k3s/containerd/containerd.sock",
    "rke2": "/run/k3s/containerd/containerd.sock",
    "microk8s": "/var/snap/microk8s/common/run/containerd.sock",
}
_COMMANDS = {
    "docker": ["docker", "info", "--format", "{{json .}}"],
    "crio": ["crio", "status", "config"],
}
_OLD_COMMANDS = {"crio": ["crio-status", "config"]}
"""Before CRI-O 1.28, a program of its own."""
_CRI_PLUGINS = {("io.containerd.grpc.v1", "cri"), ("io.containerd.cri.v1", "runtime")}


class SilentError(Exception):
    """The runtime could not be asked, or did not say how it is configured. Says why."""


def can_be_asked(name: str, socket: str) -> bool:
    """Return whether it is known how to ask that runtime; ``socket`` is that of its CRI, empty when not known."""
    return name in _COMMANDS or bool(socket)


def lacks(host: Host, name: str, socket: str, wanted: runtime_config.Wanted) -> str:
    """Return what the running runtime lacks of what is wanted, empty when nothing. Raises SilentError."""
    try:
        said = _said(host, name, socket)
        if not said:
            raise SilentError(f"{name} answers, and does not say how it is configured")
        return str(runtime_effect.unmet(name if name in _COMMANDS else "containerd", said, wanted))
    except (CommandError, cri_status.StatusError, runtime_config.ConfigError, ValueError) as error:
        raise SilentError(str(error)) from error


def _said(host: Host, name: str, socket: str) -> Dict[str, Any]:
    """Return the configuration that a running runtime reports, laid out as its file is; empty where it does not."""
    if name == "docker":
        return dict(runtime_effect.said_by_docker(json.loads(host.run(_COMMANDS[name], timeout=30))))
    if name == "crio":
        try:
            said = host.run(_COMMANDS[name], timeout=30)
        except CommandError:
            if host.find(_OLD_COMMANDS[name][0]) is None:
                raise
            said = host.run(_OLD_COMMANDS[name], timeout=30)
        return dict(runtime_config.parse("crio", said, "what CRI-O says of itself"))
    return dict(runtime_effect.said_by_containerd(json.loads(cri_status.info(socket).get("config", "null"))))


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
