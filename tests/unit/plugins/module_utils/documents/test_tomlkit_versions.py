# SPDX-License-Identifier: Apache-2.0
"""What becomes of the files that are found on hosts with the tomlkit of distributions in place of the pinned one."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from unit.plugins.module_utils.runtime.test_golden import test_again_is_nothing_and_absent_is_the_same_bytes as kept

pytestmark = pytest.mark.full
LAID_OUT_ANEW = {
    "0.9.2": {"containerd-inline.toml", "containerd-runtimes-inline.toml"},  # Ubuntu 22.04
    "0.11.7": set[str](),  # Debian 12
    "0.12.4": set[str](),  # Ubuntu 24.04
    "0.13.2": set[str](),  # Debian 13
}
"""By version, the files of which lines of others come out in another order or indentation, or which are refused."""


@pytest.mark.parametrize("version", LAID_OUT_ANEW)
def test_lines_of_others_stay(version: str, tmp_path: Path) -> None:
    install = [Path(sys.executable).with_name("uv"), "pip", "install", "--quiet", "--no-deps", "--target", tmp_path]
    subprocess.run([*install, f"tomlkit=={version}"], check=True)
    golden = f"{Path(__file__).parents[1] / 'runtime/test_golden.py'}::{kept.__name__}"
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", golden],
        env=os.environ | {"PYTHONPATH": f"{tmp_path}:{os.environ.get('PYTHONPATH', '')}"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert re.search(r"\d+ passed", done.stdout), done.stdout + done.stderr
    assert set(re.findall(rf"^FAILED .*{kept.__name__}\[(\S+)\]", done.stdout, re.MULTILINE)) == LAID_OUT_ANEW[version]
