# SPDX-License-Identifier: Apache-2.0
"""Files below a directory: made, listed as a role lists them, and what stays when some are removed."""

from __future__ import annotations

from pathlib import Path


def put(tree: Path, *names: str) -> None:
    """Write empty files with their directories."""
    for name in names:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        (tree / name).write_text("")


def listed(tree: Path, depth: int = 9) -> list[str]:
    """Return the paths that ``find`` gives of so many levels."""
    return [str(path) for path in tree.rglob("*") if len(path.relative_to(tree).parts) <= depth]


def left(tree: Path, removed: list[str]) -> set[str]:
    """Return the files that stay; what is removed is removed with all below it."""
    gone = [Path(tree, name) for name in removed]
    kept = [path for path in tree.rglob("*") if not {path, *path.parents} & {*gone}]
    return {str(path.relative_to(tree)) for path in kept if not path.is_dir()}
