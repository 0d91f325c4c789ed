# SPDX-License-Identifier: Apache-2.0
"""How an attempt to cut GPUs may end other than well."""

from __future__ import annotations

from kube_accel.plugin.mig.affected import State


class WaitingError(Exception):
    """It cannot be done yet; the message says why."""

    def __init__(self, message: str, state: State = State.PENDING, cordoned: bool = False) -> None:
        super().__init__(message)
        self.state, self.cordoned = state, cordoned


class FailedError(Exception):
    """It cannot be done; the message says why."""
