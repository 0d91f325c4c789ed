# SPDX-License-Identifier: Apache-2.0
"""Reference pages name all that there is."""

from __future__ import annotations

import re
from pathlib import Path

from tools import modules

ROOT = Path(__file__).parents[3]
PLAYBOOKS = (ROOT / "docs/reference/playbooks.md").read_text()


def test_module_page_is_what_make_docs_writes() -> None:
    assert modules.DOCUMENT.read_text() == modules.document()


def test_playbook_page_has_a_row_for_each_playbook() -> None:
    there = {path.stem for path in (ROOT / "playbooks").glob("*.yml")}
    assert there
    linked = re.findall(r"^\| \[`(\w+)`\]\(../../playbooks/\w+.yml\)", PLAYBOOKS, re.MULTILINE)
    with_variables = re.findall(r"^\| `(\w+)` \|", PLAYBOOKS, re.MULTILINE)
    assert (set(linked), set(with_variables)) == (there, there)


def test_playbook_page_names_variables_that_playbooks_read() -> None:
    for book, names in re.findall(r"^\| `(\w+)` \| (.*?) \|", PLAYBOOKS, re.MULTILINE):
        text = "".join(
            path.read_text()
            for folder in ("playbooks", "playbooks/tasks", "playbooks/vars")
            for path in (ROOT / folder).glob("*.yml")
        )
        assert [name for name in re.findall(r"`(\w+_\w+)`", names) if name.rstrip("_") not in text] == [], book


def test_index_links_every_page_of_a_kind() -> None:
    kinds = ("tutorials", "how-to", "reference", "explanation")
    pages = [page for kind in kinds for page in (ROOT / "docs" / kind).glob("*.md")]
    index = (ROOT / "docs/README.md").read_text()
    assert pages
    assert [str(page) for page in pages if f"({page.relative_to(ROOT / 'docs')}" not in index] == []


def test_readme_is_short_and_begins_with_what_to_try() -> None:
    readme = (ROOT / "README.md").read_text()
    lines = readme.splitlines()
    assert len(lines) <= 130
    assert max(lines.index(line) for line in lines if re.match(r"\$ make (demo|test)\b", line)) < 25
