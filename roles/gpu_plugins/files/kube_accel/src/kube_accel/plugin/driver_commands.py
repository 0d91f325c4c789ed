# SPDX-License-Identifier: Apache-2.0
"""The commands of the admin socket that let go of the driver, and take it up again."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from kube_accel.model import DriverState
from kube_accel.nvml.gpus import Gpus
from kube_accel.plugin.admin import AdminError

_RESUME_TIMEOUT = 10.0
"""Seconds an administrator is kept waiting for the driver's first answer."""


def quiesce(gpus: Gpus, request: Mapping[str, Any]) -> dict[str, Any]:
    """Let go of NVML for ``seconds``. Raises AdminError for other numbers, or when NVML is not let go of in time."""
    seconds = request.get("seconds")
    if not isinstance(seconds, int | float) or isinstance(seconds, bool) or not 0 < seconds <= 86400:
        raise AdminError("seconds must be a number above 0 and at most 86400")
    try:
        gpus.quiesce(seconds)
    except TimeoutError as error:
        raise AdminError(str(error)) from error
    return {"driver": gpus.snapshot().driver_state.value}


def resume(gpus: Gpus, request: Mapping[str, Any]) -> dict[str, Any]:
    """Take NVML up again, and wait 10 s at most for its first answer."""
    before = gpus.snapshot()
    gpus.resume()
    if before.driver_state is DriverState.QUIESCED:
        before = gpus.wait(before.version, _RESUME_TIMEOUT)
    return {"driver": before.driver_state.value}
