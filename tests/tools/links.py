# SPDX-License-Identifier: Apache-2.0
"""Checks the relative links of Markdown pages as GitHub resolves them: ``python tests/tools/links.py``.

A link is broken if its file is not in the repository, or if its anchor is neither a heading nor an HTML id there.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from urllib.parse import unquote

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[2]

_HTML = re.compile(r'<[a-z]+\b[^>]*?\b(id|name|href|src)="([^"]*)"', re.IGNORECASE)
_ABSOLUTE = re.compile(r"[a-z][a-z0-9+.-]*:|//", re.IGNORECASE)
_MENTION = re.compile(r"(?<!'s )(?<![\w/.-])docs/[\w/-]+\.md\b")
"""A page of this repository that a text names, not one of another project, such as "containerd's docs/man.md"."""


def files(root: Path = ROOT) -> list[Path]:
    """Return the files that are or could be committed."""
    command = ["git", "-C", str(root), "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    names = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split("\0")
    return sorted({root / name for name in names if name and (root / name).is_file()})


def complaints(paths: list[Path]) -> Iterator[str]:
    """Yield the broken links of those paths that are Markdown pages; a link to a file that is no path is broken."""
    known = {each.resolve() for path in paths for each in (path, *path.parents)}
    for page in (path for path in paths if path.suffix == ".md"):
        for link in links(page.read_text()):
            path, _, anchor = link.partition("#")
            target = (page.parent / unquote(path)).resolve() if path else page.resolve()
            if target not in known:
                yield f"{page}: {link}: no such file"
            elif anchor and target.suffix == ".md" and unquote(anchor) not in _anchors_of(target):
                yield f"{page}: {link}: no such heading"


def mentions(paths: list[Path], root: Path = ROOT) -> Iterator[str]:
    """Yield the pages of docs that comments, messages, and tests name, and that do not exist."""
    for path in paths:
        if path.suffix in {".md", ".png"} or "changelog" in path.name.lower():
            continue
        for name in sorted(set(_MENTION.findall(path.read_text(errors="replace")))):
            if not (root / name).is_file():
                yield f"{path}: {name}: no such page"


def links(text: str) -> Iterator[str]:
    """Yield the targets of the relative links and images of a page."""
    for token in _tokens(text):
        found = [token.attrGet(name) for name in ("href", "src")]
        found += [value for name, value in _html(token) if name in {"href", "src"}]
        yield from (str(target) for target in found if target and not _ABSOLUTE.match(str(target)))


def anchors(text: str) -> set[str]:
    """Return what a link to a page may name after ``#``."""
    found: set[str] = set()
    tokens = list(_tokens(text))
    for heading, inline in pairwise(tokens):
        if heading.type == "heading_open":
            found.add(_free(slug(inline), found))
    return found | {value for token in tokens for name, value in _html(token) if name in {"id", "name"}}


def slug(inline: Token) -> str:
    """Return the anchor that GitHub gives to a heading with this content."""
    text = "".join(child.content for child in inline.children or () if child.type in {"text", "code_inline"})
    return re.sub(r"[^\w\- ]", "", text.strip().lower()).replace(" ", "-")


def _free(name: str, taken: set[str]) -> str:
    """Return the name, with a number where an earlier heading has it."""
    numbered = (f"{name}-{number}" if number else name for number in range(len(taken) + 1))
    return next(each for each in numbered if each not in taken)


def _tokens(text: str) -> Iterator[Token]:
    """Yield the tokens of a page, each before its children."""
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        yield token
        yield from token.children or ()


def _html(token: Token) -> list[tuple[str, str]]:
    return _HTML.findall(token.content) if token.type in {"html_block", "html_inline"} else []


@cache
def _anchors_of(page: Path) -> set[str]:
    return anchors(page.read_text())


def main() -> int:
    """Print what is broken; return 1 where something is."""
    paths = files()
    broken = [*complaints(paths), *mentions(paths)]
    print(*broken, sep="\n", end="\n" if broken else "")
    return 1 if broken else 0


if __name__ == "__main__":
    sys.exit(main())
