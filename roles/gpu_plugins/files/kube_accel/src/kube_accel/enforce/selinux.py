# SPDX-License-Identifier: Apache-2.0
"""The label that lets containers use a file of ours, on nodes with SELinux."""

from __future__ import annotations

import logging
import os
from pathlib import Path

_log = logging.getLogger(__name__)

_ATTRIBUTE = "security.selinux"
LABEL = "system_u:object_r:container_file_t:s0"
"""Without categories, so that every container may: which of them gets the file is the mount's business."""


def wanted(sysfs_root: Path) -> bool:
    """Return whether files have labels here: the kernel shows selinuxfs where SELinux is enabled."""
    return (sysfs_root / "fs/selinux/enforce").exists()


def share(path: Path, label: bool) -> None:
    """Let containers use the file, where that needs a ``label``. What fails is said: the node may be permissive."""
    if not label:
        return
    try:
        os.setxattr(path, _ATTRIBUTE, f"{LABEL}\0".encode())
    except OSError as error:
        _log.warning("a file is not labelled for containers", extra={"path": str(path), "reason": str(error)})


def unshared(path: Path) -> str:
    """Return the label of a file that containers may not use by it; empty for one that they may."""
    try:
        label = os.getxattr(path, _ATTRIBUTE).decode(errors="replace").rstrip("\0")
    except OSError as error:
        label = error.strerror or str(error)
    return "" if ":container_file_t:" in label else label
