# SPDX-License-Identifier: Apache-2.0
"""Measures the sentences and lines of Markdown pages: ``python tests/tools/prose.py PAGE...``, a part of ``make lint``.

Text in code, in tables, and in links' targets is not prose.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

ROOT = Path(__file__).parents[2]
LONGEST_LINE = 120
"""Characters."""
LONGEST_SENTENCE = 30
"""Words."""
MEAN_SENTENCE = 16
"""Words, over all sentences of a page."""

MESSAGE_SENTENCES = 3
"""Sentences of a message."""
_OLD = re.compile(
    r"\b(anew|for ever|whoever|let go of|is to be|are to be|has to be had|would do|where it|mostly)\b", re.IGNORECASE
)
"""Words that no message needs, since plain ones say the same."""
_PRONOUNS = re.compile(r"\b(anew|whoever|whyever|somebody|nobody|ours|theirs|let go of)\b(?!\))", re.IGNORECASE)
"""Words for which a description has a name: another program, no pod, the role's own."""

_END = re.compile(r"(?<=[.!?:])[\"')*]*\s+(?=[\"'(*]*[A-Z0-9\u0001])")
_ONE_LINK = re.compile(r"[-\s]*!?\[[^]]*\]\(\S+\)\W*")
_CODE = "\u0001"
"""What stands for code in a sentence, a word of it."""


def pages(root: Path = ROOT) -> list[Path]:
    """Return the pages that a user reads."""
    found = [*root.glob("*.md"), *(root / "docs").rglob("*.md"), *root.glob("roles/*/README.md")]
    return sorted(found)


def complaints(text: str) -> Iterator[str]:
    """Yield what is too long in a page, each with where it is."""
    spared = _lines_of_tables_and_code(text)
    for number, line in enumerate(text.splitlines()):
        if len(line) > LONGEST_LINE and number not in spared and not _ONE_LINK.fullmatch(line):
            yield f"line {number + 1}: {len(line)} characters, and at most {LONGEST_LINE} are read with ease"
    said = [(number, len(sentence.split())) for number, sentence in sentences(text)]
    for number, words in said:
        if words > LONGEST_SENTENCE:
            yield f"line {number}: a sentence of {words} words; divide what has more than {LONGEST_SENTENCE}"
    if said and sum(words for _, words in said) > MEAN_SENTENCE * len(said):
        mean = sum(words for _, words in said) / len(said)
        yield f"sentences have {mean:.1f} words in the mean; {MEAN_SENTENCE} are enough"


def sentences(text: str) -> Iterator[tuple[int, str]]:
    """Yield each sentence with the line, from 1, at which its paragraph begins."""
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    inside = ""
    for token in tokens:
        if token.type in ("table_open", "heading_open"):
            inside = token.type
        elif token.type in ("table_close", "heading_close"):
            inside = ""
        elif token.type == "inline" and not inside and token.map:
            yield from ((token.map[0] + 1, part) for part in _END.split(_plain(token)) if part.strip())


def complaints_of_message(text: str) -> Iterator[str]:
    """Yield what keeps a message from being plain: its length, what joins its sentences, and old words."""
    parts = [part for part in _END.split(text) if part.strip()]
    if len(parts) > MESSAGE_SENTENCES:
        yield f"{len(parts)} sentences; {MESSAGE_SENTENCES} are enough: {text}"
    yield from (
        f"a sentence of {len(part.split())} words: {part}" for part in parts if len(part.split()) > LONGEST_SENTENCE
    )
    if "; " in text:
        yield f"a semicolon joins two sentences: {text}"
    yield from (f"{word!r} has a plain word: {text}" for word in _OLD.findall(text))


def complaints_of_description(text: str) -> Iterator[str]:
    """Yield what keeps the description of a variable, an option, or a value from being plain."""
    parts = [part for part in _END.split(text) if part.strip()]
    yield from (
        f"a sentence of {len(part.split())} words: {part}" for part in parts if len(part.split()) > LONGEST_SENTENCE
    )
    yield from (f"{word!r} has a plain word: {text}" for word in _PRONOUNS.findall(text))


def _plain(token: Token) -> str:
    words = {"code_inline": _CODE, "softbreak": " ", "hardbreak": " "}
    return "".join(words.get(child.type, child.content) for child in token.children or ())


def _lines_of_tables_and_code(text: str) -> set[int]:
    spared: set[int] = set()
    for token in MarkdownIt("commonmark").enable("table").parse(text):
        if token.type in ("table_open", "fence", "code_block", "html_block") and token.map:
            spared.update(range(*token.map))
    return spared


def main(paths: list[str]) -> int:
    """Print what is too long in pages, all of them where none is named; return 1 where there is something."""
    found = 0
    for page in map(Path, paths) if paths else pages():
        for complaint in complaints(page.read_text()):
            print(f"{page}: {complaint}")
            found = 1
    return found


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
