# SPDX-License-Identifier: Apache-2.0
"""How a monitor of GPUs behaves."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path

from kube_accel.nvml.switches import Switches


@dataclass(frozen=True, slots=True)
class MonitorOptions:
    """How a monitor behaves. Times in seconds."""

    sysfs_root: Path = Path("/sys")
    proc_root: Path = Path("/proc")
    poll_interval: float = 2.0
    deadline: float = 5.0
    """For the answer to a poll; NVML counts as wedged after it."""
    start_deadline: float = 60.0
    """For a worker's first answer: without nvidia-persistenced the driver brings up each GPU in turn."""
    call_deadline: float = 20.0
    """For one call about one GPU while a worker starts: as long as the driver may take to bring up a GPU."""
    retry_initial: float = 1.0
    retry_max: float = 15.0
    """Between attempts to start a worker; doubles from the initial value."""
    renew_interval: float = 60.0
    """While a GPU is lost: age at which a worker is replaced, since NVML looks for GPUs only when initialised.

    Also the time after which a function that did not return for a GPU is called again; doubles each time.
    """
    recovery_polls: int = 3
    """Good polls in a row that make a GPU healthy again."""
    xid_recovery_seconds: float = 300.0
    """Without news after a critical XID that nothing shows to have ended in a reset; see ``health``."""
    switches: Switches = field(default_factory=Switches)
    kernel_logs: tuple[Path, ...] = ()
    """Where the kernel's log is: the first that can be read is followed."""
    memory: Path | None = None
    """File that keeps what a restart must not forget."""
    excluded: Path | None = None
    """File that lists the GPUs to leave alone."""
    dev_root: Path | None = None
    """Where the host's ``/dev`` is seen; None: device files are not looked at."""
    shared_nodes: tuple[str, ...] = ()
    """Names of the device files that containers need besides their GPUs' own."""
