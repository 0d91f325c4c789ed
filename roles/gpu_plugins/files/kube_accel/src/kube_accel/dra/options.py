# SPDX-License-Identifier: Apache-2.0
"""The flags of ``kube-accel dra``."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kube_accel.plugin.configuration.options import NodeError, check_state
from kube_accel.plugin.node.cdi_writer import CdiOptions
from kube_accel.shared.mig_offers import MigOffer
from kube_accel.sharing.capabilities import Capability
from kube_accel.sharing.delivery import Delivery

WELL, OFFERED, NOT_WANTED = "as they should be", "offered", "off"
"""What the status of a driver says of slices, and of shares, where nothing is wrong."""


@dataclass(frozen=True, slots=True)
class ShareOptions:
    """What the driver is told of shares."""

    shim_dir: Path
    """Where the image has the interposer."""
    capabilities: frozenset[Capability]
    """What containers with a share get of the driver."""
    context_overhead_bytes: int
    """Charged once a process, for what a CUDA context takes by itself."""
    sized: bool = True
    """Whether claims say how much of a GPU they want; if not, shares are fixed ones alone."""


@dataclass(frozen=True, slots=True)
class MetricsOptions:
    """What the driver is told of metrics."""

    interval: float
    """Seconds from one collection to the next; 0 for no metrics, and no ledger."""
    aliases: bool = False
    profiling: bool = False
    pending: bool = False
    """Whether the cluster's pods that wait for GPUs by claims are counted."""
    pending_all: bool = False
    """Whether those that wait for GPUs by extended resources are, too: no extender does."""


@dataclass(frozen=True, slots=True)
class DraOptions:
    """What the driver is told."""

    node_name: str
    instance: str
    """What tells it from another one on the node: the UID of its pod; empty where there is never another."""
    plugins_dir: Path
    """Kubelet's, as kubelet sees it: it calls the driver on a socket below."""
    registry_dir: Path
    listen: tuple[str, int]
    pod_resources_socket: Path
    state_dir: Path
    service_account_dir: Path
    dev_root: Path
    proc_root: Path
    sysfs_root: Path
    cdi: CdiOptions
    delivery: Delivery
    """What containers get of the driver's files."""
    shares: ShareOptions | None
    """How GPUs are shared; None where they are given whole."""
    mig_offers: tuple[MigOffer, ...]
    """MIG devices that are made for claims."""
    metrics: MetricsOptions


def check_directories(options: DraOptions) -> None:
    """Create the state directory if need be.

    Raises NodeError when a directory the driver cannot do without is missing or not writable.
    """
    directories = {"kubelet-plugins-dir": options.plugins_dir, "kubelet-registry-dir": options.registry_dir}
    for flag, path in directories.items():
        if not path.is_dir():
            raise NodeError(
                f"--{flag} {path} is no directory; mount kubelet's there, at the path that it has on the host (below"
                " kubelet's --root-dir, usually /var/lib/kubelet)"
            )
    check_state(options.state_dir, directories)
