# SPDX-License-Identifier: Apache-2.0
"""Collections as the archives that Galaxy hands out, the same bytes each time."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import subprocess
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

import ansible

Members = dict[str, tuple[tarfile.TarInfo, bytes]]


KUBERNETES = Path(ansible.__file__).parents[1] / "ansible_collections/kubernetes"
"""What the package ansible brings of this namespace. Importing it would settle where all collections are looked for."""


def build(source: Path, target: Path, epoch: int) -> Path:
    """Builds the collection whose checkout ``source`` is, and returns its archive in the directory ``target``.

    ``epoch`` is when all that is in it was changed, in seconds since 1970.
    Raises subprocess.CalledProcessError when `ansible-galaxy` refuses.
    """
    galaxy = Path(sys.executable).with_name("ansible-galaxy")
    with tempfile.TemporaryDirectory() as scratch:
        subprocess.run(
            [galaxy, "collection", "build", source, "--output-path", scratch], check=True, stdout=subprocess.DEVNULL
        )
        (built,) = Path(scratch).glob("*.tar.gz")
        with tarfile.open(built) as archive:
            members = {member.name: (member, _content(archive, member)) for member in archive}
    return _write(members, target, epoch)


def pack(installed: Path, target: Path, epoch: int) -> Path:
    """Makes the archive of a collection that is installed, and returns it. ``epoch`` as in ``build``.

    What the installation left out, as the package `ansible` does with tests and pages, is left out here.
    Raises ValueError when a file is not the one that was released.
    """
    files = json.loads((installed / "FILES.json").read_text())
    here = [entry for entry in files["files"] if (installed / entry["name"]).exists()]
    members: Members = {}
    for entry in here:
        path, member = installed / entry["name"], tarfile.TarInfo(entry["name"])
        if entry["ftype"] == "dir":
            member.type, member.mode = tarfile.DIRTYPE, 0o755
            members[member.name] = (member, b"")
            continue
        content = path.read_bytes()
        if hashlib.sha256(content).hexdigest() != entry["chksum_sha256"]:
            raise ValueError(f"{path} was changed after its release; install the package that brought it again")
        member.mode = 0o755 if path.stat().st_mode & 0o111 else 0o644
        members[member.name] = (member, content)
    for name, content in (
        ("MANIFEST.json", (installed / "MANIFEST.json").read_bytes()),
        ("FILES.json", json.dumps(files | {"files": here}).encode()),
    ):
        member = tarfile.TarInfo(name)
        member.mode = 0o644
        members[name] = (member, content)
    return _write(members, target, epoch)


def version(installed: Path) -> str:
    """That of a collection that is installed."""
    return str(json.loads((installed / "MANIFEST.json").read_text())["collection_info"]["version"])


def _content(archive: tarfile.TarFile, member: tarfile.TarInfo) -> bytes:
    file = archive.extractfile(member) if member.isfile() else None
    return file.read() if file else b""


def _write(members: Members, target: Path, epoch: int) -> Path:
    """The list of files is in the order in which a file system named them: sorted, its checksum is told anew."""
    files = json.loads(members["FILES.json"][1])
    files["files"].sort(key=lambda entry: entry["name"])
    listed = json.dumps(files, indent=1).encode()
    manifest = json.loads(members["MANIFEST.json"][1])
    manifest["file_manifest_file"]["chksum_sha256"] = hashlib.sha256(listed).hexdigest()
    members["FILES.json"] = (members["FILES.json"][0], listed)
    members["MANIFEST.json"] = (members["MANIFEST.json"][0], json.dumps(manifest, indent=1).encode())
    info: dict[str, Any] = manifest["collection_info"]
    path = target / f"{info['namespace']}-{info['name']}-{info['version']}.tar.gz"
    # ansible-galaxy wants these two first.
    order = ["MANIFEST.json", "FILES.json", *sorted(set(members) - {"MANIFEST.json", "FILES.json"})]
    with (
        path.open("wb") as raw,
        gzip.GzipFile("", "wb", mtime=epoch, fileobj=raw) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.GNU_FORMAT) as archive,
    ):
        for name in order:
            member, content = members[name]
            member.mtime, member.size = epoch, len(content)
            member.uid = member.gid = 0
            member.uname = member.gname = ""
            archive.addfile(member, io.BytesIO(content))
    return path
