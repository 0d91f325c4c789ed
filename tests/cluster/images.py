# SPDX-License-Identifier: Apache-2.0
"""The images the rig's containers run, made here: there is no registry."""

from __future__ import annotations

import hashlib
import io
import json
import platform
import re
import shutil
import subprocess
import tarfile
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from cluster.control_plane import BINARIES

PAUSE, BUSYBOX, CUDA, MISUSE = (f"docker.io/rig/{name}:1" for name in ("pause", "busybox", "cuda", "misuse"))
HERE = Path(__file__).resolve().parent
DAEMONS = HERE.parents[1] / ".build/kube-accel.tar"
"""What ``make image`` makes."""
COMMANDS = ("sh", "sleep", "cat", "ls", "env", "id", "true", "stat", "touch", "grep")
LINKS = {f"bin/{name}": "busybox" for name in COMMANDS}
FOREVER = ["/bin/sleep", "2147483647"]


def load(archive: bytes) -> None:
    """Import an image archive. Raises RuntimeError with what ctr says."""
    with tempfile.NamedTemporaryFile(suffix=".tar") as file:
        file.write(archive)
        file.flush()
        ctr("images", "import", file.name)


def ctr(*arguments: str) -> str:
    """What ctr prints about the images and containers of kubelet. Raises RuntimeError with what it complains of."""
    done = subprocess.run(["ctr", "--namespace", "k8s.io", *arguments], check=False, capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"ctr {' '.join(arguments)}: {done.stderr}")
    return done.stdout


def busybox() -> bytes:
    """A static busybox that sleeps, and nothing else. Stands for the pause image too."""
    return _archive((PAUSE, BUSYBOX), {"bin/busybox": _busybox()}, LINKS, FOREVER)


def cuda() -> bytes:
    """Busybox, libc, ldconfig, and ``take MIB...``, which says what becomes of allocating so much GPU memory."""
    with tempfile.TemporaryDirectory() as work:
        found = _with_libraries(Path(work), "take.c", "take")
    return _archive((CUDA,), found, LINKS, FOREVER)


def smi(tag: str, topology: bytes) -> bytes:
    """What a tutorial's pod needs of an image of NVIDIA's: nvidia-smi, of the simulated GPUs of this topology."""
    with tempfile.TemporaryDirectory() as work:
        found = _with_libraries(Path(work), "smi.c", "nvidia-smi")
    return _archive((tag,), found | {"gpusim.conf": topology}, LINKS, FOREVER, "GPUSIM_FILE=/gpusim.conf")


def _with_libraries(work: Path, source: str, name: str) -> dict[str, bytes]:
    """A program with what it needs beside."""
    program = work / name
    link = ("-Wl,--no-as-needed", "-l:libdl.so.2")
    subprocess.run(["gcc", "-O2", "-Wall", "-Werror", "-o", program, HERE / source, *link], check=True)
    listed = subprocess.run(["ldd", program], check=True, capture_output=True, text=True).stdout
    found = {path.lstrip("/"): Path(path).read_bytes() for path in re.findall(r"(/\S+) \(0x", listed)}
    found |= {f"bin/{name}": program.read_bytes(), "bin/busybox": _busybox()}
    return found | {"sbin/ldconfig": Path("/sbin/ldconfig").read_bytes()}


def misuse() -> bytes:
    """Busybox and ``misuse DEED FILE``, which does to a file what a hostile tenant would."""
    with tempfile.TemporaryDirectory() as work:
        program = Path(work) / "misuse"
        subprocess.run(["gcc", "-static", "-O2", "-Wall", "-Werror", "-o", program, HERE / "misuse.c"], check=True)
        found = {"bin/misuse": program.read_bytes(), "bin/busybox": _busybox()}
    return _archive((MISUSE,), found, LINKS, FOREVER)


def scheduler(version: str) -> bytes:
    """kube-scheduler under the names of this version's image and of the one a simulated control plane names."""
    tags = [f"registry.k8s.io/kube-scheduler:{tag}" for tag in (version.partition("+")[0].partition("-")[0], "v1.34.0")]
    return _archive(tags, {"bin/kube-scheduler": (BINARIES / "kube-scheduler").read_bytes()}, {}, ["kube-scheduler"])


def _busybox() -> bytes:
    return Path(str(shutil.which("busybox"))).read_bytes()


def _archive(
    tags: Sequence[str], files: Mapping[str, bytes], links: Mapping[str, str], command: list[str], *env: str
) -> bytes:
    layer = _tar(files, links)
    config = {
        "architecture": {"aarch64": "arm64"}.get(platform.machine(), "amd64"),
        "os": "linux",
        "config": {"Cmd": command, "Env": ["PATH=/bin", *env]},
        "rootfs": {"type": "layers", "diff_ids": [f"sha256:{hashlib.sha256(layer).hexdigest()}"]},
    }
    encoded = json.dumps(config).encode()
    name = f"{hashlib.sha256(encoded).hexdigest()}.json"
    manifest = [{"Config": name, "RepoTags": list(tags), "Layers": ["layer.tar"]}]
    return _tar({name: encoded, "layer.tar": layer, "manifest.json": json.dumps(manifest).encode()}, {})


def _tar(files: Mapping[str, bytes], links: Mapping[str, str]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in files.items():
            info = tarfile.TarInfo(name)
            info.size, info.mode = len(content), 0o755
            archive.addfile(info, io.BytesIO(content))
        for name, target in links.items():
            info = tarfile.TarInfo(name)
            info.type, info.linkname = tarfile.SYMTYPE, target
            archive.addfile(info)
    return buffer.getvalue()
