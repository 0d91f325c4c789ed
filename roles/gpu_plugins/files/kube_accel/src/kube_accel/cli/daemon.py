# SPDX-License-Identifier: Apache-2.0
"""How the daemons of a node begin and end: ``kube-accel plugin`` and ``kube-accel dra``."""

from __future__ import annotations

import argparse
import ctypes
import logging
import os
import threading
from collections.abc import Callable
from contextlib import suppress

from kube_accel import exclusions, logs
from kube_accel.enforce.fd_cache import raise_limit
from kube_accel.nvml import switches
from kube_accel.nvml.monitor import GpuMonitor
from kube_accel.nvml.options import MonitorOptions
from kube_accel.plugin.configuration.options import NodeError
from kube_accel.plugin.mode_lock import ModeLock
from kube_accel.plugin.turns import take_turns
from kube_accel.sharing.profile import PROFILES
from kube_accel.sharing.whole import NEEDED_NODES
from kube_accel.stopping import stop_event

_EXIT_OK, _EXIT_NODE = 0, 2

_M_ARENA_MAX = -8
"""malloc.h of the GNU C library."""

_log = logging.getLogger(__name__)

Start = Callable[[GpuMonitor, threading.Event], int]
"""Makes the daemon and runs it until the event; returns the exit code. Raises NodeError."""


def run_daemon(arguments: argparse.Namespace, mode: str, prepare: Callable[[], Start]) -> int:
    """Serve the node by this mode until SIGTERM or SIGINT, and return the exit code.

    ``prepare`` finds out whether the node can be served; it raises NodeError.
    """
    with suppress(AttributeError):
        # Many threads that each need little: one heap for all costs some MiB less than one for each.
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)
    stop = stop_event()
    logs.configure(arguments.log_level)
    raise_limit()
    monitor = GpuMonitor(watching(arguments))
    try:
        start = prepare()
        if not take_turns(arguments.listen, ModeLock(arguments.state_dir, mode), stop):
            return _EXIT_OK
        monitor.start()
        return start(monitor, stop)
    except NodeError as error:
        _log.error("cannot start", extra={"reason": str(error)})
        return _EXIT_NODE
    finally:
        monitor.stop()


def watching(arguments: argparse.Namespace) -> MonitorOptions:
    """Return what is watched of the GPUs, and how."""
    found, wrong = switches.read(os.environ)
    for sentence in wrong:
        _log.warning("a health check switch is not understood", extra={"reason": sentence})
    return MonitorOptions(
        sysfs_root=arguments.sysfs_root,
        proc_root=arguments.proc_root,
        switches=found,
        kernel_logs=tuple(arguments.kernel_log),
        memory=arguments.state_dir / "health.json",
        excluded=arguments.state_dir / exclusions.FILE,
        # A driver below another root has its device files there.
        dev_root=arguments.dev_root if arguments.nvidia_driver_root in (None, "", "/") else None,
        shared_nodes=NEEDED_NODES if arguments.mode in PROFILES else (),
    )
