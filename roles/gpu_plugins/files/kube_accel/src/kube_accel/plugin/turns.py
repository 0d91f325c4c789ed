# SPDX-License-Identifier: Apache-2.0
"""How a daemon waits for the one that serves its node in another mode."""

from __future__ import annotations

import logging
import threading

from kube_accel.plugin.configuration.options import NodeError, listen_problem
from kube_accel.plugin.mode_lock import ModeLock

_log = logging.getLogger(__name__)

_LOOK_SECONDS = 0.5
"""From one look at a plugin that is to leave to the next."""


def take_turns(listen: tuple[str, int], lock: ModeLock, stop: threading.Event) -> bool:
    """Be alive and not ready while another mode's plugin runs here; return False when stopped before it ends.

    Raises NodeError.
    """
    obstacle = lock.take()
    if not obstacle:
        return True
    # Loaded here: hardly ever needed.
    from kube_accel.plugin.probes import probe_server

    _log.warning("waiting for another mode's plugin", extra={"reason": obstacle})
    try:
        probes = probe_server(listen, {"/healthz": lambda: "", "/readyz": lambda: obstacle or "starting"})
    except OSError as error:
        raise NodeError(listen_problem(listen, error)) from error
    threading.Thread(target=probes.run, name="probes", daemon=True).start()
    try:
        while obstacle and not stop.wait(_LOOK_SECONDS):
            obstacle = lock.take()
    finally:
        probes.stop()
    return not obstacle
