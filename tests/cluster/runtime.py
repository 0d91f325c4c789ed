# SPDX-License-Identifier: Apache-2.0
"""What the node's container runtime can."""

from __future__ import annotations

import json
import os
import re
import subprocess

import pytest


def needs_cdi() -> None:
    """Skip where containerd does not know what devices CDI names."""
    said = subprocess.run(["ctr", "version"], check=True, capture_output=True, text=True).stdout
    if max(int(number) for number in re.findall(r"Version: +v?(\d+)", said)) < 2:
        pytest.skip("CDI needs containerd 2: name the directory of its programs in RIG_CONTAINERD")


def needs_user_namespaces() -> None:
    """Skip where runc cannot map the users of what is mounted."""
    path = os.pathsep.join([os.environ.get("RIG_CONTAINERD", ""), os.environ["PATH"]])
    said = subprocess.run(["runc", "features"], env=os.environ | {"PATH": path}, check=True, capture_output=True).stdout
    if not json.loads(said)["linux"].get("mountExtensions", {}).get("idmap", {}).get("enabled"):
        pytest.skip("a user namespace needs runc 1.2: name the directory of such programs in RIG_CONTAINERD")
