# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The file tree that the layers of an image make together, as container runtimes unpack them. Pure: no I/O.

Rules: OCI image specification 1.1, "Image Layer Filesystem Changeset", and where it is silent, containerd's.
"""

from __future__ import annotations

import posixpath
from dataclasses import dataclass
from typing import Dict, Iterable, List, Set

from ansible_collections.accel.kubernetes.plugins.module_utils.oci.image import (
    DIRECTORY,
    SYMLINK,
    Entry,
    ImageError,
    Tree,
    clean,
    parents,
    resolve,
)

WHITEOUT = ".wh."
OPAQUE = ".wh..wh..opq"
MAX_PATH = 4096


@dataclass(frozen=True)
class Member:
    """One entry of a tar: what is at the path, or the path of a file that this is a hard link to."""

    name: str
    entry: Entry | None
    link: str = ""


class Layers:
    """Unpacks layers one upon the other.

    Paths are read inside the root, as runtimes do. ``strict`` refuses what leads out of it or goes through a link.
    """

    def __init__(self, origin: str, strict: bool = False) -> None:
        self.tree: Tree = {}
        self.across: Dict[str, str] = {}
        """Links of a lower layer, and of each the first path below that a layer has without a directory for it."""
        self.below: Dict[str, str] = {}
        """Hard links to a file of a lower layer, and the path of that as each has it."""
        self._origin, self._strict = origin, strict
        self._children: Dict[str, Set[str]] = {}
        self._mine: Set[str] = set()
        """Paths that the layer at hand brought: its own whiteouts leave them alone."""

    def unpack(self, members: Iterable[Member]) -> None:
        """Unpack a layer. Raises ImageError where no container runtime could."""
        self._mine = set()
        early = [member for member in members if not self._add(member)]
        while early:
            # A link may come before the file that it names, or before another link to it.
            left = [member for member in early if not self._add(member)]
            if len(left) == len(early):
                raise ImageError(
                    f"{self._origin} is damaged: {left[0].name} is a hard link to {left[0].link}, which is not in it"
                )
            early = left

    def _add(self, member: Member) -> bool:
        """Unpack an entry; False where it is a hard link to a file that is not there."""
        if len(member.name) > MAX_PATH:
            raise ImageError(f"{self._origin} holds a path of {len(member.name)} characters; {MAX_PATH} are the most")
        path = clean(member.name, self._origin) if self._strict else posixpath.normpath(f"//{member.name}").lstrip("/")
        if not path:
            return True
        above, name = posixpath.split(path)
        if name.startswith(WHITEOUT):
            self._white_out(resolve(self.tree, above, last=True), name, path)
            return True
        directory = self._directory(above, path)
        entry = member.entry or self._linked(member)
        if entry is None:
            return False
        place = posixpath.join(directory, name)
        below = self.tree.get(place)
        if below is not None and not below.kind == entry.kind == DIRECTORY:
            self._remove(place)
        self._put(place, entry)
        return True

    def _white_out(self, directory: str, name: str, member: str) -> None:
        """Hide one file of the lower layers, or all that they have in the directory."""
        hidden = name[len(WHITEOUT) :]
        if hidden in ("", ".", ".."):
            raise ImageError(f"{self._origin} is damaged: the whiteout {member!r} names no file")
        for child in list(self._children.get(directory, ())) if name == OPAQUE else [hidden]:
            self._hide(posixpath.join(directory, child))

    def _directory(self, path: str, member: str) -> str:
        """Return a directory's path with links followed.

        What is missing is made, also in place of a lower layer's file.
        """
        real: str = resolve(self.tree, path, last=True)
        if real != path:
            link = next(link for link in [*parents(path), path] if self._is_link(link))
            if self._strict:
                raise ImageError(f"{self._origin} holds {member!r} below {link!r}, which is a symlink")
            if link not in self._mine:
                self.across.setdefault(link, member)
        for parent in [*parents(real), real] if real else []:
            found = self.tree.get(parent)
            if found is not None and found.kind == DIRECTORY:
                self._mine.add(parent)
                continue
            if found is not None and (parent in self._mine or real != path):
                raise ImageError(f"{self._origin} holds {member!r} below {parent!r}, which is a {found.kind}")
            self._put(parent, Entry(DIRECTORY, 0o755))
        return real

    def _is_link(self, path: str) -> bool:
        found = self.tree.get(path)
        return found is not None and found.kind == SYMLINK

    def _linked(self, member: Member) -> Entry | None:
        """Return the file that a hard link names."""
        target = member.link
        if self._strict:
            target = clean(target.lstrip("/"), self._origin)
        real = resolve(self.tree, target)
        found = self.tree.get(real)
        if found is not None and found.kind == DIRECTORY:
            raise ImageError(f"{self._origin} is damaged: {member.name} is a hard link to the directory {member.link}")
        if found is not None and real not in self._mine:
            self.below.setdefault(member.name, member.link)
        return found

    def _put(self, path: str, entry: Entry) -> None:
        self.tree[path] = entry
        self._mine.add(path)
        above, name = posixpath.split(path)
        self._children.setdefault(above, set()).add(name)

    def _remove(self, path: str) -> None:
        for found in reversed(self._subtree(path)):
            self._forget(found)

    def _hide(self, path: str) -> None:
        """Remove what lower layers have of a path."""
        for found in reversed(self._subtree(path)):
            if found not in self._mine and not self._children.get(found):
                self._forget(found)

    def _subtree(self, path: str) -> List[str]:
        """Return a path and what is below it, a directory before its content."""
        found: List[str] = []
        todo = [path] if path in self.tree else []
        while todo:
            found.append(todo.pop())
            todo += [f"{found[-1]}/{child}" for child in self._children.get(found[-1], ())]
        return found

    def _forget(self, path: str) -> None:
        del self.tree[path]
        self._mine.discard(path)
        self._children.pop(path, None)
        above, name = posixpath.split(path)
        self._children[above].discard(name)
