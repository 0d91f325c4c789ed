# SPDX-License-Identifier: Apache-2.0
"""Makes MIG devices for claims and destroys them, by the process that cuts GPUs. One at a time on a node."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from kube_accel import exclusions
from kube_accel.dra.checkpoint import PreparedDevice
from kube_accel.dra.claims import ClaimError
from kube_accel.mig.instances import card_of
from kube_accel.mig.lock import alone
from kube_accel.mig.process import run_task
from kube_accel.model import DriverState, Snapshot
from kube_accel.nvml.gpus import HeldGpus
from kube_accel.shared.mig_geometry import Card

_log = logging.getLogger(__name__)

TIMEOUT: Final = 20.0
"""Seconds for one device: kubelet gives up a call after 45."""
_LOCK: Final = 15.0
"""Seconds to wait while another is made."""
_HOLDER: Final = "mig"

Task = Callable[[Mapping[str, Any], float], dict[str, Any]]


class RefusedError(ClaimError):
    """It cannot be made or destroyed, and nothing was changed."""


@dataclass(frozen=True, slots=True)
class Removed:
    """What became of a GPU."""

    enabled: bool
    """Whether it is in MIG mode still."""
    kept: str = ""
    """Why, though MIG mode was to end."""


class Partitioner:
    """The node's only hand on MIG while claims are served."""

    def __init__(self, gpus: HeldGpus, state_dir: Path, task: Task = run_task) -> None:
        self._gpus = gpus
        self._state_dir = state_dir
        self._excluded = state_dir / exclusions.FILE
        self._task = task
        self._before: Snapshot | None = None
        """What was known of the GPUs before the driver's own NVML was let go of; None while it is not."""

    def snapshot(self) -> Snapshot:
        """Return what is known of the GPUs; while one changes its MIG mode, what was before. Never waits."""
        found, before = self._gpus.snapshot(), self._before
        return before if before is not None and found.driver_state is DriverState.QUIESCED else found

    @contextmanager
    def alone(self, timeout: float = _LOCK) -> Iterator[None]:
        """Have nobody else make any meanwhile. Raises ClaimError, OSError."""
        with alone(self._state_dir, timeout) as taken:
            if not taken:
                raise ClaimError("another MIG device is being made or destroyed; kubelet tries again")
            yield

    def cards(self) -> tuple[Card, ...]:
        """Return the GPUs that can be read, and what is on them. Raises ClaimError, CutError, OSError."""
        return tuple(map(card_of, self._do("cards", {})["cards"]))

    def make(self, device: PreparedDevice, switches: bool) -> str:
        """Return the UUID of a device that is made now, or is there already.

        ``switches``: its GPU is not in MIG mode yet. Raises RefusedError, ClaimError, CutError, OSError.
        """
        assert device.placement is not None
        arguments = {"gpu": device.gpu, **asdict(device.placement)}
        return str(self._held("make", arguments, switches)["uuid"])

    def remove(self, device: PreparedDevice, off: bool) -> Removed:
        """Destroy a device, if it is there; with ``off``, have its GPU leave MIG mode after the last one.

        Raises RefusedError, ClaimError, CutError, OSError.
        """
        assert device.placement is not None
        place = device.placement
        arguments = {"gpu": device.gpu, "uuid": device.uuid, "profile": place.profile, "start": place.start, "off": off}
        try:
            return Removed(**self._held("remove", arguments, off))
        except RefusedError:
            if off:
                raise
        # What watches GPUs may be what holds it.
        return Removed(**self._held("remove", arguments, True))

    def end_mode(self, gpu: str) -> Removed:
        """Have a GPU without devices leave MIG mode. Raises RefusedError, ClaimError, CutError, OSError."""
        return Removed(**self._held("remove", {"gpu": gpu, "uuid": "", "profile": "", "start": 0, "off": True}, True))

    def _held(self, what: str, arguments: Mapping[str, Any], release: bool) -> dict[str, Any]:
        """Do it, and where that is needed without NVML of our own in the way."""
        if not release:
            return self._do(what, arguments)
        self._before = self._gpus.snapshot()
        try:
            self._gpus.quiesce(TIMEOUT + 10, _HOLDER)
            return self._do(what, arguments)
        except TimeoutError as error:
            raise ClaimError(f"MIG mode cannot be changed now: {error}") from error
        finally:
            let_go = self._gpus.snapshot()
            self._gpus.resume(_HOLDER)
            end = time.monotonic() + 10
            while let_go.driver_state is DriverState.QUIESCED and time.monotonic() < end:
                let_go = self._gpus.wait(let_go.version, 1)
            self._before = None

    def _do(self, what: str, arguments: Mapping[str, Any]) -> dict[str, Any]:
        task = {"do": what, "arguments": dict(arguments), "excluded": str(self._excluded)}
        found = self._task(task, TIMEOUT)
        if "unavailable" in found:
            raise ClaimError(f"NVML cannot be used: {found['unavailable']}")
        if "refused" in found:
            raise RefusedError(f"the MIG device is not {'made' if what == 'make' else 'destroyed'}: {found['refused']}")
        return found
