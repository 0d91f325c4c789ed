# SPDX-License-Identifier: Apache-2.0
"""Package repositories as folders: Debian's for what roles install, and one like NVIDIA's with a toolkit of scripts."""

from __future__ import annotations

import hashlib
import re
import shutil
import subprocess
import tempfile
from pathlib import Path

NAMES = (
    "libnvidia-container1",
    "libnvidia-container-tools",
    "nvidia-container-toolkit-base",
    "nvidia-container-toolkit",
)
VERSIONS = ("1.17.8-1", "1.18.1-1")
TOOLKIT = """\
#accept-nvidia-visible-devices-as-volume-mounts = false
#accept-nvidia-visible-devices-envvar-when-unprivileged = true
disable-require = false

[nvidia-container-cli]
load-kmods = true

[nvidia-container-runtime]
mode = "auto"
runtimes = ["runc", "crun"]
"""


def repositories(directory: Path, downloaded: Path) -> None:
    """Make `debian` of downloaded packages and a signed `nvidia`, as the toolkit's are laid out."""
    shutil.copytree(downloaded, directory / "debian")
    _index(directory / "debian")
    architecture = subprocess.run(["dpkg", "--print-architecture"], capture_output=True, text=True, check=True)
    flat = directory / "nvidia" / "deb" / architecture.stdout.strip()
    flat.mkdir(parents=True)
    for version in VERSIONS:
        for name in NAMES:
            _package(flat, name, version, architecture.stdout.strip())
    _index(flat)
    _sign(flat, directory / "nvidia" / "gpgkey")


def _package(directory: Path, name: str, version: str, architecture: str) -> None:
    with tempfile.TemporaryDirectory() as scratch:
        root = Path(scratch)
        control = root / "DEBIAN"
        control.mkdir()
        (control / "control").write_text(
            f"Package: {name}\nVersion: {version}\nArchitecture: {architecture}\n"
            "Maintainer: none <none@example.com>\nDescription: stands in for NVIDIA's\n"
        )
        if name == "nvidia-container-toolkit-base":
            program = root / "usr/bin/nvidia-container-runtime"
            program.parent.mkdir(parents=True)
            program.write_text('#!/bin/sh\nexec runc "$@"\n')
            program.chmod(0o755)
            config = root / "etc/nvidia-container-runtime/config.toml"
            config.parent.mkdir(parents=True)
            config.write_text(TOOLKIT)
            (control / "conffiles").write_text("/etc/nvidia-container-runtime/config.toml\n")
        root.chmod(0o755)
        target = str(directory / f"{name}_{version}.deb")
        subprocess.run(["dpkg-deb", "--root-owner-group", "--build", scratch, target], check=True, capture_output=True)


def archive(directory: Path, suite: str) -> None:
    """Index the packages in `pool`, each in the component that its section names, as Debian's archive is laid out."""
    found: dict[str, list[str]] = {}
    architecture = subprocess.run(["dpkg", "--print-architecture"], capture_output=True, text=True, check=True)
    for path in sorted((directory / "pool").glob("*.deb")):
        entry = _entry(path, f"pool/{path.name}")
        section = re.search(r"^Section: (.*)$", entry, re.MULTILINE)
        component = section[1].rpartition("/")[0] if section else ""
        found.setdefault(component or "main", []).append(entry)
    for component, entries in found.items():
        index = directory / "dists" / suite / component / f"binary-{architecture.stdout.strip()}" / "Packages"
        index.parent.mkdir(parents=True)
        index.write_text("\n".join(entries))


def _entry(path: Path, name: str) -> str:
    control = subprocess.run(["dpkg-deb", "--field", str(path)], capture_output=True, text=True, check=True).stdout
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    return f"{control}Filename: {name}\nSize: {path.stat().st_size}\nSHA256: {digest}\n"


def _index(directory: Path) -> None:
    entries = [_entry(path, f"./{path.name}") for path in sorted(directory.glob("*.deb"))]
    (directory / "Packages").write_text("\n".join(entries))


def _sign(directory: Path, key: Path) -> None:
    index = (directory / "Packages").read_bytes()
    release = f"Origin: accel tests\nSHA256:\n {hashlib.sha256(index).hexdigest()} {len(index)} Packages\n"
    with tempfile.TemporaryDirectory() as home:
        gpg = ["gpg", "--homedir", home, "--batch", "--yes", "--pinentry-mode", "loopback", "--passphrase", ""]
        subprocess.run([*gpg, "--quick-generate-key", "tests", "rsa2048"], check=True, capture_output=True)
        signed = ["--output", str(directory / "InRelease"), "--clearsign"]
        subprocess.run([*gpg, *signed], input=release.encode(), check=True, capture_output=True)
        subprocess.run([*gpg, "--armor", "--output", str(key), "--export", "tests"], check=True, capture_output=True)
        subprocess.run(["gpgconf", "--homedir", home, "--kill", "all"], check=False, capture_output=True)
