# SPDX-License-Identifier: Apache-2.0
"""One host of the molecule scenario container_runtime: a dry run, the role, and what containerd says."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from hosts.__main__ import HERE, HostError, check, down, up

pytestmark = pytest.mark.full
ROOT = HERE.parents[1]
SCENARIO = ROOT / ".build/link/ansible_collections/accel/kubernetes/molecule/container_runtime"


@pytest.fixture
def inventory() -> Iterator[Path]:
    """A host with containerd 1.7."""
    try:
        check()
    except HostError as error:
        pytest.skip(str(error))
    with tempfile.TemporaryDirectory(prefix="accel-hosts-") as directory:
        try:
            up(Path(directory), ROOT / ".cache" / "hosts", ["containerd-1-7"])
            yield Path(directory, "inventory.yml")
        finally:
            down(Path(directory))


def test_the_role_on_a_real_containerd(inventory: Path) -> None:
    environment = os.environ | {
        "ANSIBLE_COLLECTIONS_PATH": str(ROOT / ".build" / "link"),
        "ANSIBLE_INJECT_FACT_VARS": "false",
        "PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}",
    }
    for playbook in ("dry_run", "converge", "verify"):
        command = ["ansible-playbook", "-i", str(inventory), str(SCENARIO / f"{playbook}.yml")]
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
