# SPDX-License-Identifier: Apache-2.0
"""The daemon's flags and what they demand of a node."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple

from kube_accel.files import make_private
from kube_accel.model import Enforcement, Mode, OnAbuse
from kube_accel.plugin.configuration.delivery_flags import DeliveryFlags
from kube_accel.plugin.configuration.file import Configuration, parse
from kube_accel.plugin.node.cdi_writer import CdiOptions
from kube_accel.sharing.capabilities import LIMITED, Capability
from kube_accel.sharing.mig import Strategy


class NodeError(Exception):
    """The node is not as the flags say; the message names the flag and the remedy."""


class ConfigMapRef(NamedTuple):
    """A ConfigMap, each key of which is a configuration."""

    namespace: str
    name: str


@dataclass(frozen=True, slots=True)
class MigOptions:
    """How the GPUs are cut by MIG as a label of the node says."""

    configs: Path
    """A file as nvidia-mig-parted has it."""
    drain: bool = False
    """Have pods evicted that hold what goes."""
    drain_force: bool = False
    """Those too that no controller makes again."""
    drain_timeout: float = 300.0
    """Seconds until they have to have ended."""
    proc_root: Path = Path("/proc")


@dataclass(frozen=True, slots=True)
class PluginOptions:
    """The flags of ``kube-accel plugin``."""

    mode: Mode
    node_name: str
    device_plugin_dir: Path
    pod_resources_socket: Path
    listen: tuple[str, int]
    state_dir: Path
    dev_root: Path
    service_account_dir: Path
    takeover: bool
    config_file: Path | None = None
    """A configuration as NVIDIA's plugin has it, for mode pgpu."""
    sysfs_root: Path = Path("/sys")
    """Where the host's is seen."""
    config_map: ConfigMapRef | None = None
    """Several of them, of which a label of the node names one."""
    default_config: str = ""
    """Which of them a node without the label has; empty for none."""
    mig_strategy: Strategy | None = None
    """None for that of the configuration."""
    mig: MigOptions | None = None
    """None to leave the GPUs as they are cut."""
    delivery: DeliveryFlags = field(default_factory=DeliveryFlags)
    """What flags say of how containers get to know their GPUs, in mode pgpu."""
    cdi: CdiOptions = field(default_factory=CdiOptions)
    mps_root: Path = Path("/run/nvidia/mps")
    """Where the MPS control daemons' directories are, on the host and here."""
    mps_control_command: str = "nvidia-cuda-mps-control"
    mps_interval: float = 5.0
    """Seconds from one look at a control daemon to the next; each runs the control program."""
    enforcement: Enforcement = Enforcement.AUTO
    """What enforces shares. All that follows is about shares too."""
    allow_unenforced: bool = False
    """Offer shares even where nothing can enforce them."""
    share_capabilities: frozenset[Capability] = LIMITED
    """What containers with a share get of the driver, where the interposer enforces it."""
    shim_dir: Path = Path("/usr/lib/kube-accel/native")
    """The interposer in the image."""
    proc_root: Path = Path("/proc")
    """Where processes are seen by the host's ids."""
    context_overhead_bytes: int = 0
    """Charged to a container for each of its processes on a GPU."""
    account_abuse: OnAbuse = OnAbuse.DELETE
    """What becomes of a pod that misuses its account again and again."""
    quota_overrides: ConfigMapRef | None = None
    """Other limits than containers were given, by administrators."""
    metrics_interval: float = 10.0
    """Seconds from one collection of metrics to the next; 0 for none."""
    metrics_aliases: bool = False
    """Serve them by the names of other exporters too."""
    metrics_profiling: bool = False
    """Read counters of GPUs' parts, where there are any."""
    metrics_pending: bool = False
    """Count the cluster's pods that ask for GPUs and have no node, and tell owners of the node's what their pods lack,
    since no extender does."""
    watch_slices: bool = False
    """Offer no GPU while a DRA driver gives them away, by ResourceSlices."""
    runtime_class: str = ""
    """What pods with whole GPUs have to name; empty where they need none."""


def check_directories(options: PluginOptions) -> None:
    """Create the state directory if need be.

    Raises NodeError when a directory the daemon cannot do without is missing or not writable.
    """
    if not options.device_plugin_dir.is_dir():
        raise NodeError(
            f"--kubelet-device-plugin-dir {options.device_plugin_dir} is no directory; mount kubelet's "
            "device-plugins directory there (below kubelet's --root-dir, usually /var/lib/kubelet)"
        )
    check_state(options.state_dir, {"kubelet-device-plugin-dir": options.device_plugin_dir})


def check_state(state_dir: Path, directories: Mapping[str, Path]) -> None:
    """Create the state directory if need be.

    Raises NodeError when it cannot be used, or one of these directories, by flag, is not writable.
    """
    try:
        make_private(state_dir)
    except OSError as error:
        raise NodeError(f"--state-dir {state_dir} cannot be used: {error}; choose another") from error
    for flag, path in {**directories, "state-dir": state_dir}.items():
        if not os.access(path, os.W_OK | os.X_OK):
            raise NodeError(f"--{flag} {path} is not writable; mount it read-write and run as its owner, root")


def read_configuration(options: PluginOptions) -> Configuration:
    """Return what ``--config-file`` says, or nothing. Raises NodeError."""
    path = options.config_file
    if (path is not None or options.config_map is not None) and options.mode is not Mode.PGPU:
        raise NodeError(f"--config-file and --config-map are for mode pgpu, not {options.mode.value}; leave them out")
    if path is None:
        return Configuration()
    if options.config_map is not None:
        raise NodeError("--config-file and --config-map are both given; leave one of them out")
    try:
        return parse(path.read_text())
    except (OSError, ValueError) as error:
        raise NodeError(f"--config-file {path} is not used: {error}; nothing of it was applied") from error


def listen_problem(listen: tuple[str, int], error: OSError) -> str:
    """Return what to tell about an address that cannot be listened on."""
    host, port = listen
    return f"--listen {host}:{port} cannot be used: {error}; choose another port"
