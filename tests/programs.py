# SPDX-License-Identifier: Apache-2.0
"""Where tests have Ansible's programs from."""

from __future__ import annotations

import os
import sys
from pathlib import Path

BIN = Path(os.environ.get("ACCEL_ANSIBLE_BIN", Path(sys.executable).parent))
"""To try another ansible-core than the pinned one: bin of an environment that has it and requirements.txt."""


def program(name: str) -> str:
    """Path of a program of Ansible's."""
    return str(BIN / name)
