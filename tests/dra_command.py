# SPDX-License-Identifier: Apache-2.0
"""How tests and benchmarks start the DRA driver of a node."""

from __future__ import annotations

import sys
from dataclasses import dataclass, fields
from pathlib import Path


@dataclass(frozen=True)
class Places:
    """Where the driver finds what is the node's, by the names of its flags; None is left to the driver."""

    kubelet_plugins_dir: Path
    kubelet_registry_dir: Path
    state_dir: Path
    service_account_dir: Path
    cdi_dir: Path
    pod_resources_socket: Path | None = None
    sysfs_root: Path | None = None
    dev_root: Path | None = None
    proc_root: Path | None = None
    container_driver_root: Path | None = None
    shim_dir: Path | None = None


def dra_command(port: int, places: Places, *flags: str) -> list[str]:
    """The shipped command, with its pages on this port of 127.0.0.1."""
    command = [str(Path(sys.executable).with_name("kube-accel")), "dra", f"--listen=127.0.0.1:{port}"]
    found = {field.name.replace("_", "-"): getattr(places, field.name) for field in fields(places)}
    return [*command, *(f"--{name}={value}" for name, value in found.items() if value is not None), *flags]
