# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A Python wheel as the files an installer would make of it (binary distribution format 1.0)."""

from __future__ import annotations

import base64
import configparser
import csv
import email
import hashlib
import os
import re
import stat
import struct
import zipfile
import zlib
from dataclasses import dataclass
from typing import Dict, FrozenSet, List, Sequence

from ansible_collections.accel.kubernetes.plugins.module_utils.oci.image import (
    FILE,
    SYMLINK,
    WHEEL_MACHINES,
    Content,
    Entry,
    ImageError,
    Tree,
    clean,
    with_parents,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.oci.python_tree import Python

MAX_SIZE = 1 << 30
MAX_FILES = 50_000
_DAMAGED = (
    zipfile.BadZipFile,
    zlib.error,
    struct.error,
    EOFError,
    NotImplementedError,
    OSError,
    OverflowError,
    RuntimeError,
    ValueError,
)
"""What zipfile raises for an archive that is none."""


@dataclass(frozen=True)
class Wheel:
    """One wheel, checked."""

    origin: str
    name: str
    """Normalised."""
    files: Dict[str, bytes]
    executables: FrozenSet[str]
    dist_info: str
    requires: FrozenSet[str]
    """Normalised names of the distributions it needs everywhere."""


def read(path: str, python: Python, architecture: str) -> Wheel:
    """Read a wheel meant for an interpreter. Raises ImageError when it is damaged, hostile or for another one."""
    origin = f"wheel {os.path.basename(path)}"
    _check_tags(origin, os.path.basename(path), python, architecture)
    files: Dict[str, bytes] = {}
    executables = set()
    try:
        with zipfile.ZipFile(path) as archive:
            _check_size(origin, archive.infolist())
            for info in archive.infolist():
                name = clean(info.filename, origin)
                if info.is_dir():
                    continue
                _check_entry(origin, info)
                if name in files:
                    raise ImageError(f"{origin} holds {name} twice; do not use it")
                with archive.open(info) as member:
                    # To its end: by no other call does zipfile stop at the size that the entry says.
                    files[name] = member.read(info.file_size + 1)
                if (info.external_attr >> 16) & 0o111:
                    executables.add(name)
    except _DAMAGED as error:
        raise ImageError(f"{origin} is damaged ({error}); fetch it again") from error
    directories = {name.split("/")[0] for name in files if re.fullmatch(r"[^/]+\.dist-info/WHEEL", name)}
    if len(directories) != 1:
        raise ImageError(f"{origin} is not a wheel: it holds {len(directories)} files *.dist-info/WHEEL, not one")
    dist_info = directories.pop()
    _check_name(origin, os.path.basename(path), dist_info)
    _check_record(origin, files, dist_info)
    metadata = email.message_from_string(files.get(f"{dist_info}/METADATA", b"").decode(errors="replace"))
    _check_requires_python(origin, metadata.get("Requires-Python", ""), python)
    requires = {
        normalise(re.split(r"[^A-Za-z0-9._-]", requirement.strip(), maxsplit=1)[0])
        for requirement in metadata.get_all("Requires-Dist", [])
        if ";" not in requirement
    }
    name = metadata.get("Name", dist_info.split("-")[0])
    if normalise(name) != normalise(dist_info.split("-")[0]):
        raise ImageError(f"{origin} says that its name is {name!r}; do not use it")
    return Wheel(origin, normalise(name), files, frozenset(executables), dist_info, frozenset(requires))


def install(wheel: Wheel, python: Python) -> Tree:
    """Return the files of a wheel where the interpreter looks for them, with its console scripts."""
    tree: Tree = {}
    data = wheel.dist_info[: -len("dist-info")] + "data"
    schemes = {
        "purelib": python.site,
        "platlib": python.site,
        "scripts": f"{python.prefix}/bin",
        "data": python.prefix,
        "headers": f"{python.prefix}/include/python3.{python.minor}/{wheel.name}",
    }
    for name, content in wheel.files.items():
        mode = 0o755 if name in wheel.executables else 0o644
        where = f"{python.site}/{name}"
        if name.startswith(data + "/"):
            scheme, _slash, rest = name[len(data) + 1 :].partition("/")
            if scheme not in schemes or not rest:
                raise ImageError(f"{wheel.origin} holds {name}, and there is no such installation scheme")
            where = f"{schemes[scheme]}/{rest}"
            if scheme == "scripts":
                mode = 0o755
                content = re.sub(rb"^#!pythonw?(?=\s)", f"#!/{python.path}".encode(), content)
        tree[where] = Entry(FILE, mode, content=Content.of(content))
    for name, script in _console_scripts(wheel, python).items():
        tree[f"{python.prefix}/bin/{name}"] = Entry(FILE, 0o755, content=Content.of(script.encode()))
    for path in tree:
        if re.fullmatch(rf"{re.escape(python.prefix)}/bin/python[\d.]*", path):
            raise ImageError(f"{wheel.origin} brings /{path}, the name of the interpreter; do not use it")
    return with_parents(tree, wheel.origin)


def missing(wheels: Sequence[Wheel], tree: Tree) -> List[str]:
    """Distributions some wheel needs everywhere that neither the wheels nor the image have, sorted."""
    present = {wheel.name for wheel in wheels}
    for path, entry in tree.items():
        match = re.search(r"/([^/]+?)(-[^/]*)?\.(dist|egg)-info$", path)
        if match and entry.kind != SYMLINK:
            present.add(normalise(match.group(1)))
    return sorted({name for wheel in wheels for name in wheel.requires} - present)


def normalise(name: str) -> str:
    """Return a distribution's name in the one spelling that is compared."""
    return re.sub(r"[-_.]+", "-", name).lower()


def _check_tags(origin: str, filename: str, python: Python, architecture: str) -> None:
    match = re.fullmatch(r"[^-]+-[^-]+(?:-\d[^-]*)?-([^-]+)-([^-]+)-([^-]+)\.whl", filename)
    if match is None:
        raise ImageError(f"{origin} is not named as a wheel is: name-version-python-abi-platform.whl")
    interpreters, abis, platforms = (part.split(".") for part in match.groups())
    ours = f"cp3{python.minor}"
    fits = any(tag in ("py3", ours, f"py3{python.minor}") for tag in interpreters)
    if "abi3" in abis:
        fits = any(re.fullmatch(r"cp3\d+", tag) and int(tag[3:]) <= python.minor for tag in interpreters)
    if not fits or not any(abi in ("none", "abi3", ours) for abi in abis):
        raise ImageError(
            f"{origin} is for Python {'.'.join(interpreters)}, and the image has 3.{python.minor}; "
            f"fetch it with: pip download --only-binary :all: --python-version 3.{python.minor}"
        )
    machine = WHEEL_MACHINES[architecture]
    library, platform = ("musl", "musllinux_1_2") if python.musl else ("glibc", "manylinux2014")
    ours_begin = ("linux_", "musllinux_" if python.musl else "manylinux")
    if not any(tag == "any" or (tag.startswith(ours_begin) and tag.endswith(machine)) for tag in platforms):
        raise ImageError(
            f"{origin} is for {'.'.join(platforms)}, and the image is for {architecture} with {library}; "
            f"fetch it with: pip download --only-binary :all: --platform {platform}_{machine}"
        )


def _check_size(origin: str, entries: Sequence[zipfile.ZipInfo]) -> None:
    if len(entries) > MAX_FILES:
        raise ImageError(f"{origin} holds {len(entries)} files; at most {MAX_FILES} are taken")
    if sum(entry.file_size for entry in entries) > MAX_SIZE:
        raise ImageError(f"{origin} unpacks to more than {MAX_SIZE >> 20} MiB; the daemons need no wheel of that size")


def _check_entry(origin: str, entry: zipfile.ZipInfo) -> None:
    """Refuse all but regular files, as installers do. zipfile bounds what it unpacks by deflate alone."""
    if stat.S_IFMT(entry.external_attr >> 16) not in (0, stat.S_IFREG):
        raise ImageError(f"{origin} holds {entry.filename}, which is no regular file; do not use it")
    if entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
        raise ImageError(f"{origin} holds {entry.filename}, which is not by deflate compressed; do not use it")


def _check_name(origin: str, filename: str, dist_info: str) -> None:
    inside = dist_info[: -len(".dist-info")]
    if normalise(inside) != normalise("-".join(filename.split("-")[:2])):
        raise ImageError(f"{origin} is of {inside!r}, which its file name does not say; do not use it")


def _check_requires_python(origin: str, specifier: str, python: Python) -> None:
    for clause in specifier.split(","):
        match = re.match(r"\s*>=\s*3\.(\d{1,9})", clause)
        if match and int(match.group(1)) > python.minor:
            raise ImageError(
                f"{origin} needs Python {clause.strip()}, and the image has 3.{python.minor}; take a newer base"
            )


def _check_record(origin: str, files: Dict[str, bytes], dist_info: str) -> None:
    """Raise unless every file has the digest that the wheel's own list gives it."""
    record = files.get(f"{dist_info}/RECORD")
    if record is None:
        raise ImageError(f"{origin} is not a wheel: it has no {dist_info}/RECORD")
    try:
        listed = {row[0]: row[1] for row in csv.reader(record.decode(errors="replace").splitlines()) if len(row) == 3}
    except csv.Error as error:
        raise ImageError(f"{origin} is damaged: its RECORD cannot be read ({error}); fetch it again") from error
    for name, data in files.items():
        if name in (f"{dist_info}/RECORD", f"{dist_info}/RECORD.jws", f"{dist_info}/RECORD.p7s"):
            continue
        digest = base64.urlsafe_b64encode(hashlib.sha256(data).digest()).rstrip(b"=").decode()
        algorithm, _equals, value = listed.get(name, "").partition("=")
        if algorithm != "sha256" or value.rstrip("=") != digest:
            raise ImageError(f"{origin} is damaged: {name} is not what its RECORD says; fetch it again")


def _console_scripts(wheel: Wheel, python: Python) -> Dict[str, str]:
    parser = configparser.ConfigParser(delimiters=("=",), interpolation=None, strict=False)
    parser.optionxform = str  # type: ignore[assignment,method-assign]
    try:
        parser.read_string(wheel.files.get(f"{wheel.dist_info}/entry_points.txt", b"").decode())
    except (configparser.Error, UnicodeDecodeError) as error:
        raise ImageError(f"{wheel.origin} has an unreadable entry_points.txt: {error}") from error
    if not parser.has_section("console_scripts"):
        return {}
    scripts = {}
    for name, target in parser.items("console_scripts"):
        match = re.fullmatch(r"([\w.]+)\s*:\s*([\w.]+)\s*(\[.*\])?", target)
        if match is None or not re.fullmatch(r"[\w.-]+", name) or name in (".", ".."):
            raise ImageError(f"{wheel.origin} has the unusable console script {name!r} = {target!r}")
        module, attribute = match.group(1), match.group(2)
        scripts[name] = (
            f"#!/{python.path}\nimport sys\n\nfrom {module} import {attribute.split('.')[0]}\n\n"
            f'if __name__ == "__main__":\n    sys.exit({attribute}())\n'
        )
    return scripts
