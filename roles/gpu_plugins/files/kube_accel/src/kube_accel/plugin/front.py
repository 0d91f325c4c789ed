# SPDX-License-Identifier: Apache-2.0
"""What every daemon of a node is asked by, and tells: probes, the admin socket, and the node's condition."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

from kube_accel.model import Snapshot
from kube_accel.nvml.gpus import Gpus
from kube_accel.plugin.admin import AdminServer, Command
from kube_accel.plugin.configuration.options import NodeError, listen_problem
from kube_accel.plugin.driver_commands import quiesce, resume
from kube_accel.plugin.node.condition_reporter import ConditionReporter
from kube_accel.plugin.probes import Rendered, probe_server
from kube_accel.web.pages import Probe
from kube_accel.web.server import Server


class Options(Protocol):
    """What a daemon is told of its node."""

    @property
    def node_name(self) -> str:
        """Return the node's name."""

    @property
    def listen(self) -> tuple[str, int]:
        """Return host and port of the probes."""

    @property
    def state_dir(self) -> Path:
        """Return where the admin socket is."""

    @property
    def service_account_dir(self) -> Path:
        """Return where the account's token is."""


@dataclass(frozen=True, slots=True)
class Front:
    """Each has a ``run``, for a thread of its own."""

    probes: Server
    admin: AdminServer
    condition: ConditionReporter


def listen(
    options: Options,
    probes: Mapping[str, Probe],
    pages: Mapping[str, Rendered],
    status: Command,
    gpus: Gpus,
    snapshot: Callable[[], Snapshot] | None = None,
) -> Front:
    """Listen on the probe and admin sockets at once. Raises NodeError.

    The node's condition tells of ``snapshot``, or else of that of ``gpus``.
    """
    try:
        server = probe_server(options.listen, probes, pages)
    except OSError as error:
        raise NodeError(listen_problem(options.listen, error)) from error
    commands: dict[str, Command] = {
        "status": status,
        "quiesce": partial(quiesce, gpus),
        "resume": partial(resume, gpus),
    }
    try:
        admin = AdminServer(options.state_dir, commands)
    except OSError as error:
        raise NodeError(
            f"--state-dir {options.state_dir} cannot hold the admin socket: {error}; choose another directory"
        ) from error
    try:
        condition = ConditionReporter(
            options.node_name, options.service_account_dir, options.state_dir, snapshot or gpus.snapshot
        )
    except OSError as error:
        raise NodeError(f"--state-dir {options.state_dir} cannot be used: {error}; choose another") from error
    return Front(server, admin, condition)
