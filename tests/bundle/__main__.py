# SPDX-License-Identifier: Apache-2.0
"""``python -m bundle``: all that a network without a way out needs, in one archive.

Comes after tests/tools/image.sh, with its OUT and ARCH. SOURCE_DATE_EPOCH is when all of it was made, by default
the last commit.
"""

from __future__ import annotations

import hashlib
import io
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
from pathlib import Path
from string import Template

from bundle import artifact, sbom, wheels

REPOSITORY = Path(__file__).resolve().parents[2]
HERE = Path(__file__).parent
PYTHONS = ("3.11", "3.12", "3.13")
"""The Pythons of controllers: what the ansible-core of the bundle runs on."""
MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}


def main() -> int:
    build = Path(os.environ.get("OUT") or REPOSITORY / ".build")
    here = {machine: name for name, machine in MACHINES.items()}[os.uname().machine]
    architecture = os.environ.get("ARCH") or here
    epoch = int(os.environ.get("SOURCE_DATE_EPOCH") or _last_commit())
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        version = fill(root, build, architecture, epoch)
        archive = write(root, build / f"accel-kubernetes-{version}-{architecture}.tar", epoch)
    print(f"bundle: {archive.stat().st_size / 2**20:.0f} MiB in {archive}, sha256 {_digest(archive)}")
    return 0


def fill(root: Path, build: Path, architecture: str, epoch: int) -> str:
    """Lays out the bundle in ``root`` from what image.sh left in ``build``, and returns the collection's version."""
    for directory in ("collections", "wheels", "requirements"):
        (root / directory).mkdir()
    _say("building the collection")
    ours = artifact.build(REPOSITORY, root / "collections", epoch)
    version = ours.name.removesuffix(".tar.gz").rpartition("-")[2]
    artifact.pack(artifact.KUBERNETES / "core", root / "collections", epoch)
    asked = controller_packages()
    for python in PYTHONS:
        _say(f"fetching a controller's packages for Python {python} on {architecture}")
        resolved = wheels.resolve(asked, python, MACHINES[architecture])
        (root / f"requirements/{python}.txt").write_text(resolved)
        wheels.fetch(resolved, python, MACHINES[architecture], root / "wheels")
    image = root / "image" / architecture
    shutil.copytree(build / "image" / architecture, image)
    shutil.copyfile(HERE / "install.sh", root / "install.sh")
    (root / "install.sh").chmod(0o755)
    readme = Template((HERE / "README.md").read_text())
    (root / "README.md").write_text(readme.substitute(version=version, architecture=architecture))
    _say("listing what is in it")
    parts = [sbom.collection(path) for path in sorted((root / "collections").iterdir())]
    parts += [sbom.wheel(path) for path in sorted(root.rglob("*.whl"))]
    parts += [sbom.image(image / "kube-accel.tar")]
    sums = _sums(root)
    digest = hashlib.sha256(sums.encode()).hexdigest()
    (root / "sbom.cdx.json").write_text(sbom.render("accel-kubernetes", version, parts, epoch, digest))
    (root / "SHA256SUMS").write_text(_sums(root))
    return version


def controller_packages() -> list[str]:
    """A controller's packages, in the versions that the tests run with."""
    asked = re.findall(r"^[\w.-]+", (REPOSITORY / "requirements.txt").read_text(), re.MULTILINE)
    pins = re.findall(r"^([\w.-]+)==(\S+)", (REPOSITORY / "requirements-dev.txt").read_text(), re.MULTILINE)
    tested = {name: f"{name}=={version}" for name, version in pins}
    return [tested[name] for name in ("ansible-core", *asked)]


def write(root: Path, archive: Path, epoch: int) -> Path:
    """Writes everything in ``root`` as an archive of one directory, which has its name."""
    with tarfile.open(archive, "w", format=tarfile.GNU_FORMAT) as file:
        for path in (root, *sorted(root.rglob("*"))):
            member = file.gettarinfo(path, str(Path(archive.stem) / path.relative_to(root)))
            member.mtime, member.uid, member.gid, member.uname, member.gname = epoch, 0, 0, "", ""
            member.mode = 0o755 if path.is_dir() or path.stat().st_mode & 0o100 else 0o644
            file.addfile(member, io.BytesIO(path.read_bytes() if path.is_file() else b""))
    return archive


def _sums(root: Path) -> str:
    """What sha256sum would say of all files."""
    files = sorted(path for path in root.rglob("*") if path.is_file())
    return "".join(f"{_digest(path)}  {path.relative_to(root)}\n" for path in files)


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _last_commit() -> str:
    command = ["git", "-C", str(REPOSITORY), "log", "-1", "--format=%ct"]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def _say(text: str) -> None:
    print(f"bundle: {text}", flush=True)


if __name__ == "__main__":
    raise SystemExit(main())
