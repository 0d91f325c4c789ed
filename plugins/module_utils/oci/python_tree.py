# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The Python in an image's file tree: which it is, for which machine, and whether its byte code is current. Pure."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import List

from .image import FILE, Content, Entry, ImageError, Tree, resolve

MACHINES = {"amd64": 62, "arm64": 183}
"""``e_machine`` of an ELF header."""
_ELF_HEAD = 4096
PYC_HEADER = 16


@dataclass(frozen=True)
class Python:
    """The interpreter of an image, and where it looks for packages. Paths without leading slash."""

    minor: int
    path: str
    prefix: str
    site: str
    musl: bool = False
    """Whether its C library is musl, and not glibc."""

    @property
    def tag(self) -> str:
        """Tag of its byte code."""
        return f"cpython-3{self.minor}"


def find_python(tree: Tree) -> Python:
    """Return the newest Python in an image. Raises ImageError when it has none."""
    programs = {resolve(tree, f"{prefix}/bin", last=True): prefix for prefix in ("usr", "usr/local")}
    found = []
    for path in tree:
        directory, _slash, name = path.rpartition("/")
        match = re.fullmatch(r"python3\.(\d{1,4})", name)
        if match and directory in programs and _is_file(tree, path):
            prefix = programs[directory]
            found.append((int(match.group(1)), prefix == "usr/local", f"{prefix}/bin/{name}"))
    if not found:
        raise ImageError(
            "the base has no /usr/bin/python3.N and no /usr/local/bin/python3.N, so wheels cannot be added; "
            "install python3 into it (debootstrap: --include=python3)"
        )
    minor, local, path = max(found)
    prefix, packages = ("usr/local" if local else "usr"), "site-packages"
    if not local and "etc/debian_version" in tree:
        # Debian's own Python looks for what others install in a place of its own.
        prefix, packages = "usr/local", "dist-packages"
    return Python(minor, path, prefix, f"{prefix}/lib/python3.{minor}/{packages}", _needs_musl(tree, path))


def _is_file(tree: Tree, path: str) -> bool:
    try:
        entry = tree.get(resolve(tree, path, last=True))
    except ImageError:
        return False
    return entry is not None and entry.kind == FILE


def _needs_musl(tree: Tree, path: str) -> bool:
    """Return whether a program names musl's loader, as ELF has it after the headers: an image may have both."""
    entry = tree.get(resolve(tree, path, last=True))
    if entry is None or entry.kind != FILE:
        return False
    with entry.content.open() as handle:
        return b"/ld-musl-" in handle.read(_ELF_HEAD)


def check_machine(tree: Tree, path: str, architecture: str) -> None:
    """Raises ImageError when the program at a path was built for another architecture."""
    entry = tree.get(resolve(tree, path, last=True))
    if entry is None or entry.kind != FILE:
        raise ImageError(f"/{path} in the base leads to no file; the base is incomplete")
    with entry.content.open() as handle:
        header = handle.read(20)
    machine = int.from_bytes(header[18:20], "little")
    if header[:4] == b"\x7fELF" and machine != MACHINES[architecture]:
        others = [name for name, number in MACHINES.items() if number == machine]
        really = others[0] if others else f"ELF machine {machine}"
        raise ImageError(f"/{path} in the base was built for {really}, not for {architecture}; see 'architecture'")


def sources(tree: Tree, python: Python) -> List[str]:
    """Modules of an interpreter that have no byte code it would accept, sorted."""
    pattern = re.compile(rf"usr/(local/)?lib(64)?/python3(\.{python.minor})?/")
    return [
        path
        for path, entry in sorted(tree.items())
        if entry.kind == FILE
        and path.endswith(".py")
        and pattern.match(path)
        and not _is_current(tree.get(cache_path(path, python.tag)), entry)
    ]


def cache_path(source: str, tag: str) -> str:
    """Return where the byte code of a module is."""
    directory, _slash, name = source.rpartition("/")
    return f"{directory}/__pycache__/{name[: -len('.py')]}.{tag}.pyc"


def _is_current(cache: Entry | None, source: Entry) -> bool:
    """Return whether Python would load the byte code unchecked, by importlib's rules for each kind of header."""
    if cache is None or cache.kind != FILE or cache.content.size < PYC_HEADER:
        return False
    with cache.content.open() as handle:
        header = handle.read(PYC_HEADER)
    flags, mtime, size = (int.from_bytes(header[start : start + 4], "little") for start in (4, 8, 12))
    if flags & 1:
        return flags == 1
    return mtime == source.mtime & 0xFFFFFFFF and size == source.content.size & 0xFFFFFFFF


def freeze_byte_code(tree: Tree) -> Tree:
    """Return the tree with byte code that does not depend on its source's time: unconditionally current, or gone."""
    frozen: Tree = {}
    for path, entry in tree.items():
        match = re.fullmatch(r"(.*/)__pycache__/([^/]+)\.cpython-\d+(\.opt-\d)?\.pyc", path)
        source = tree.get(f"{match.group(1)}{match.group(2)}.py") if match else None
        if source is not None:
            if not _is_current(entry, source):
                continue
            data = entry.content.read()
            # Unchecked hash: Python neither computes nor compares it.
            data = data[:4] + (1).to_bytes(4, "little") + bytes(8) + data[PYC_HEADER:]
            entry = Entry(FILE, entry.mode, entry.uid, entry.gid, content=Content.of(data))
        frozen[path] = entry
    return frozen
