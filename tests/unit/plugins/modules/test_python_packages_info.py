# SPDX-License-Identifier: Apache-2.0
"""Module python_packages_info in this Python."""

from __future__ import annotations

import sys
from collections.abc import Callable
from importlib.metadata import version
from typing import Any


def test_each_package_has_its_range_and_version(run_module: Callable[..., dict[str, Any]]) -> None:
    lines = [
        "# what is imported",
        "",
        "PyYAML>=6.0  # for files",
        "no-such-package >= 1",
        'tomlkit; python_version < "4"',
    ]
    found = run_module("python_packages_info", {"requirements": lines})
    assert found["packages"] == [
        {"name": "PyYAML", "wanted": ">=6.0", "version": version("PyYAML")},
        {"name": "no-such-package", "wanted": ">= 1", "version": ""},
        {"name": "tomlkit", "wanted": "", "version": version("tomlkit")},
    ]
    assert found["python"] == sys.executable
    assert found["changed"] is False
