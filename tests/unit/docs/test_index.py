# SPDX-License-Identifier: Apache-2.0
"""A reader finds every page of docs from its index, in at most two steps."""

from __future__ import annotations

from pathlib import Path

from tools import links

DOCS = Path(__file__).parents[3] / "docs"


def linked(page: Path) -> set[Path]:
    """The pages that a page links to."""
    targets = (link.partition("#")[0] for link in links.links(page.read_text()))
    return {(page.parent / target).resolve() for target in targets if target.endswith(".md")}


def test_every_page_is_linked_from_the_index_or_a_page_of_it() -> None:
    near = linked(DOCS / "README.md")
    found = near.union(*(linked(page) for page in near if page.is_relative_to(DOCS)))
    pages = {page for page in DOCS.rglob("*.md") if page != DOCS / "README.md"}
    assert len(pages) > 30
    assert sorted(str(page.relative_to(DOCS)) for page in pages - found) == []


def test_the_readme_links_to_the_index() -> None:
    assert DOCS / "README.md" in linked(DOCS.parent / "README.md")
