# SPDX-License-Identifier: Apache-2.0
"""The device nodes by which graphics programs use a GPU, as sysfs lists them."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from kube_accel.model import Gpu


def graphics_nodes(sysfs_root: Path, gpu: Gpu) -> tuple[str, ...]:
    """Return the GPU's nodes below ``/dev``: ``dri/card0``, ``dri/renderD128``. None without the module nvidia-drm."""
    with suppress(OSError):
        names = {path.name for path in (sysfs_root / "bus/pci/devices" / gpu.pci_address / "drm").iterdir()}
        return tuple(f"dri/{name}" for name in sorted(names) if name.startswith(("card", "renderD")))
    return ()
