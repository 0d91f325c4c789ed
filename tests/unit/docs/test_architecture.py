# SPDX-License-Identifier: Apache-2.0
"""The page on architecture has a row for each package, and names files that are there."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs/explanation/architecture.md").read_text()
DAEMON = ROOT / "roles/gpu_plugins/files/kube_accel/src/kube_accel"
MODULES = ROOT / "plugins/module_utils"


def section(heading: str) -> str:
    return PAGE.partition(f" {heading}\n")[2].partition("\n#")[0]


@pytest.mark.parametrize(
    ("heading", "source", "inner"),
    [("Packages of `plugins/module_utils`", MODULES, ()), ("From kubelet to a GPU", DAEMON, ("plugin",))],
    ids=["collection", "daemons"],
)
def test_each_package_has_a_row(heading: str, source: Path, inner: tuple[str, ...]) -> None:
    rows = re.findall(r"^\| `([\w/]+)/` \|", section(heading), re.MULTILINE)
    folders = [source, *(source / name for name in inner)]
    packages = [path for folder in folders for path in folder.iterdir() if path.is_dir() and any(path.glob("*.py"))]
    assert sorted(rows) == sorted(str(path.relative_to(source)) for path in packages)


def test_files_that_are_named_exist() -> None:
    named = re.findall(r"`((?:\w+/)*\w+\.py)`", PAGE)
    assert len(named) > 40
    there = [*MODULES.rglob("*.py"), *DAEMON.rglob("*.py"), *(ROOT / "tests/tools").glob("*.py")]
    assert [name for name in named if not any(str(path).endswith(f"/{name}") for path in there)] == []
