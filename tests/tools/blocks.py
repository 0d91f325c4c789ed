# SPDX-License-Identifier: Apache-2.0
"""Code blocks of a page: the commands to type, what they print, and files to save.

A comment above a block of commands says what a reader cannot see: ``<!-- not run here: REASON -->`` where the simulated
cluster cannot run them, and ``<!-- fails: REASON -->`` where the last one is to fail.
"""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

RUN_BY = {
    r"make demo": "tests/demo/test_interrupt.py",
    r"make demo STORY=long": ".github/workflows/ci.yml",
    r"make playground": "tests/demo/test_playground.py",
    r"make playground START=bare": "tests/demo/test_pages.py",
    r"cp \.build/playground/inventory\.yml inventory\.yml": "tests/demo/test_pages.py",
    r"make test": ".ci/run",
    r"make image( BASE=\S+)?|pip wheel --wheel-dir \S+ \S+": "tests/bundle/test_bundle.py",
    r"\S+/native/build\.sh \S+": "tests/native/test_build.py",
    r"make bundle|.*/install\.sh /opt/accel-kubernetes": "tests/bundle/test_bundle.py",
    r"ansible-builder build --tag \S+": "tests/awx/test_environment_image.py",
    r"ansible-galaxy collection (build|install) --force( \S+)?": "tests/playbooks/test_tarball.py",
    r"ansible-galaxy collection install awx\.awx": "tests/awx/test_configure.py",
}
"""What a test runs, word for word or as the same steps."""

_FENCE = re.compile(r"^( *)```(\w*)\n(.*?)^\1```$", re.MULTILINE | re.DOTALL)
_MARK = re.compile(r"<!-- (not run here|fails): ((?:(?!-->).)+) -->\s*\Z", re.DOTALL)
_SAVED = re.compile(r"\b[Ss]ave (?:this|the)\b[^`]*`([\w.-]+)`")


@dataclass(frozen=True)
class Step:
    """A command as it is typed, and the lines that the page shows of its output."""

    command: str
    shown: tuple[str, ...] = ()


@dataclass(frozen=True)
class Block:
    """One fenced block."""

    line: int
    """Number of the line with the fence, from 1."""
    kind: str
    """The language after the fence, such as ``console``."""
    text: str
    section: str
    """The heading above."""
    before: str
    """The paragraph above, without comments, as one line."""
    not_run: str
    """Why the simulated cluster does not run it; empty if it does."""
    fails: str
    """Why its last command fails; empty if it does not."""

    @property
    def saved_as(self) -> str:
        """Return the name of the file that the reader saves this as; empty for none."""
        found = _SAVED.findall(self.before)
        return found[-1] if found else ""

    @property
    def steps(self) -> list[Step]:
        """Return the commands of a ``console`` block. Raises ValueError if it begins with output."""
        found: list[Step] = []
        for line in self.text.replace("\\\n", " ").splitlines():
            if line.startswith("$ "):
                found.append(Step(re.sub(r"\s+#\s.*", "", line[2:]).strip()))
            elif found:
                found[-1] = Step(found[-1].command, (*found[-1].shown, line))
            else:
                raise ValueError(f"line {self.line}: expected a command after '$ ', got {line!r}")
        return found


def blocks(page: Path) -> Iterator[Block]:
    """Yield the blocks of a Markdown page, from the top."""
    text = page.read_text()
    for found in _FENCE.finditer(text):
        above = text[: found.start()]
        section = ["", *re.findall(r"^#+ .*$", _FENCE.sub("", above), re.MULTILINE)][-1]
        mark = _MARK.search(above)
        reasons = {"not run here": "", "fails": ""}
        if mark:
            reasons[mark[1]] = " ".join(mark[2].split())
            above = above[: mark.start()]
        paragraph = re.split(r"\n\s*\n", above.rstrip())[-1]
        yield Block(
            text.count("\n", 0, found.start()) + 1,
            found[2],
            textwrap.dedent(found[3]),
            section,
            " ".join(paragraph.split()),
            reasons["not run here"],
            reasons["fails"],
        )


def marks(page: Path) -> int:
    """Return how many marks a page has, also those that stand above no block."""
    return len(re.findall(r"<!--\s*(?:not run|fails)", page.read_text()))
