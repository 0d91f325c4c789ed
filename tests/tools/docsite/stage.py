# SPDX-License-Identifier: Apache-2.0
"""Lays out all Markdown pages for Sphinx: ``python tests/tools/docsite/stage.py DIRECTORY``.

Pages keep their places, so that their links hold. The first page gets the navigation.
"""

from __future__ import annotations

import re
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

from tools import links

HERE = Path(__file__).parent
SECTIONS = {
    "Start": ["docs/README.md", "docs/tutorials/demo.md", "docs/tutorials/first-whole-*.md", "docs/tutorials/*.md"],
    "How-to guides": ["docs/how-to/*.md"],
    "Reference": ["docs/reference/*.md", "docs/*.md"],
    "Modules and filters": ["modules/*_module.rst", "modules/*_filter.rst"],
    "Explanation": ["docs/explanation/*.md"],
    "Roles": ["roles/*/README.md"],
    "Variables of roles": ["modules/*_role.rst"],
    "Runbooks": ["docs/runbooks/README.md", "docs/runbooks/*.md"],
    "Measurements": ["docs/measurements/*.md"],
    "Project": ["CHANGELOG.rst", "CONTRIBUTING.md", "SECURITY.md", "roles/*/files/*/*/README.md"],
}
"""The navigation, by patterns of pages; a page is in the first section that has it."""
IMAGES = "docs/images"
"""Folder of the pictures, which HTML in pages names by its place."""
_LIST = "index.md"
"""Name of a page that lists the files of a folder."""
_LINK = re.compile(r"(?<=\]\()([^)\s#:]+)(?=[)#])")


def stage(target: Path, root: Path = links.ROOT) -> None:
    """Lay all pages and what they link to out in ``target``, which may have pages of modules already."""
    pages = [page for page in links.files(root) if page.suffix == ".md" and "tests" not in page.relative_to(root).parts]
    for page in pages:
        _write(target / page.relative_to(root), _linked(page, target, root))
    with (target / "README.md").open("a") as first:
        first.write("".join(_tree(caption, found) for caption, found in navigation(target).items()))
    shutil.copytree(HERE / "_static", target / "_static")
    shutil.copytree(root / IMAGES, target / "extra" / IMAGES)
    shutil.copy(HERE / "conf.py", target)


def navigation(target: Path) -> dict[str, list[str]]:
    """Return the pages of each section, by their paths in ``target`` without what kind of file they are."""
    seen = {"README"}
    found: dict[str, list[str]] = {}
    for caption, patterns in SECTIONS.items():
        paths = [path for each in patterns for path in sorted(target.glob(each)) if path.name != _LIST]
        names = [str(path.relative_to(target).with_suffix("")) for path in paths]
        found[caption] = [name for name in dict.fromkeys(names) if name not in seen]
        seen.update(found[caption])
    return {caption: names for caption, names in found.items() if names}


def _tree(caption: str, names: list[str]) -> str:
    return "\n".join(["", "```{toctree}", ":hidden:", f":caption: {caption}", "", *names, "```", ""])


def _linked(page: Path, target: Path, root: Path) -> str:
    """Return the text of a page whose links to folders lead to lists of their files, and lay other files out."""

    def link(match: re.Match[str]) -> str:
        place = (page.parent / match[1]).resolve()
        if not place.is_relative_to(root) or not place.exists() or place.suffix == ".md":
            return match[1]
        copy = target / place.relative_to(root)
        if place.is_file():
            copy.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(place, copy)
            return match[1]
        if (place / "README.md").exists():
            return f"{match[1].rstrip('/')}/README.md"
        _write(copy / _LIST, "".join(_list(place, copy, root)))
        return f"{match[1].rstrip('/')}/{_LIST}"

    return _LINK.sub(link, page.read_text())


def _list(folder: Path, copy: Path, root: Path) -> Iterator[str]:
    """Yield the lines of a page that lists a folder's files, and lay them out."""
    yield f"---\norphan: true\n---\n\n# {folder.relative_to(root)}\n\n"
    for path in (each for each in links.files(root) if each.is_relative_to(folder)):
        name = str(path.relative_to(folder))
        if path.suffix != ".md":
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(path, copy / name)
        yield f"- [{name}]({name})\n"


def _write(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)


if __name__ == "__main__":
    stage(Path(sys.argv[1]))
