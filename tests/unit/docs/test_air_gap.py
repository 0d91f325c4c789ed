# SPDX-License-Identifier: Apache-2.0
"""What hosts install from a mirror is in the list of what the bundle lacks."""

from __future__ import annotations

import re
from pathlib import Path

from yaml_files import document

ROOT = Path(__file__).parents[3]


def test_every_list_of_packages_of_hosts_is_named() -> None:
    page = (ROOT / "docs/how-to/install-without-internet.md").read_text()
    table = page.partition("| Not in the bundle |")[2].partition("\n\n")[0]
    lists = {
        name
        for path in ROOT.glob("roles/*/defaults/main.yml")
        for name in document(path)
        if re.fullmatch(r"\w+_(python|pki|prerequisite|repository|toolkit)_packages", name)
    }
    assert len(lists) > 4
    assert {name for name in lists if f"`{name}`" not in table} == set()
