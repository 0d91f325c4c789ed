# SPDX-License-Identifier: Apache-2.0
"""Whether programs find the driver's libraries in containers that a real runtime makes by what the plugin answers.

The root file systems never knew of a driver. The plugin, its hook and runc are real; kubelet is not.
"""

from __future__ import annotations

import json
import os
import platform
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from kube_accel.model import Mode
from sim import native
from sim.kubelet import ContainerAllocation
from unit.kube_accel.fraction_node import FractionNode

DEBIAN = f"/usr/lib/{platform.machine()}-linux-gnu"
CDI = ["--device-list-strategy=cdi-cri"]
ANNOTATIONS = ["--device-list-strategy=cdi-annotations"]
MOUNTS: list[str] = []
WITH_HOOKS = ["--hooks-by-cdi"]
TRITON = "triton==3.9.0 --hash=sha256:1622118a038b0c6e16fa4a0305da62c8b3c15904ee1cc4d4e65846a25969e41e"
"""The wheel for Debian 12's Python on x86_64."""
SEARCH = "import triton.backends.nvidia.driver as driver; print(*driver.libcuda_dirs())"
PROGRAM = """
import ctypes, ctypes.util, json, os, shutil, subprocess, sys
path = os.environ["PATH"]
os.environ["PATH"] = "/nowhere"  # find_library is not to ask a compiler
found = {name: ctypes.util.find_library(name) for name in ("cuda", "nvidia-ml", "c")}
os.environ["PATH"] = path
loaded = []
for name in ("libcuda.so", "libcuda.so.1", "libnvidia-ml.so.1"):
    ctypes.CDLL(name)
paths = {line.split()[-1] for line in open("/proc/self/maps")}
maps = {os.path.basename(path).partition(".")[0] for path in paths if os.path.dirname(path).startswith("/usr/lib")}
listed = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, env={"LC_ALL": "C"})
dirs = [os.path.dirname(line.split()[-1]) for line in listed.stdout.splitlines() if "libcuda.so.1" in line]
named = os.environ.get("TRITON_LIBCUDA_PATH", "")
print(json.dumps({
    "found": found, "maps": sorted(maps), "listed": listed.returncode, "dirs": dirs, "uid": os.getuid(),
    "written": os.access("/etc", os.W_OK), "triton": os.path.exists(named + "/libcuda.so.1"),
}))
"""

pytestmark = [
    pytest.mark.ci,
    pytest.mark.skipif(os.geteuid() != 0, reason="NOT TESTED: a container by runc: it needs root"),
    pytest.mark.skipif(shutil.which("runc") is None, reason="NOT TESTED: a container by runc: runc is not installed"),
]


@dataclass
class Host:
    """A node with a plugin, and a runtime that makes containers of what kubelet passes on."""

    node: FractionNode
    work: Path
    knows_cdi: bool = True

    def admitted(self, cores: int = 30) -> ContainerAllocation:
        name = f"p{cores}"
        pod = self.node.pod(name, {"main": (cores, 16 if cores < 100 else 0)}, assigned={"main": (2,)})
        got = self.node.kubelet.admit(pod)["main"]
        self.node.kubelet.run(pod)
        return got

    def devices(self, got: ContainerAllocation) -> list[dict[str, Any]]:
        """The edits of the CDI devices that are named."""
        names = {*got.cdi_devices, *got.annotations.values()} if self.knows_cdi else set()
        documents = [json.loads(path.read_text()) for path in (self.node.root / "cdi").glob("*.json")]
        found = {f"{each['kind']}={device['name']}": device for each in documents for device in each["devices"]}
        return [found[name]["containerEdits"] for name in names]

    def run(
        self,
        got: ContainerAllocation,
        lower: Path | str,
        *argv: str,
        user: int = 0,
        read_only: bool = False,
        **more: str,
    ) -> str:
        """What a program prints in a container of that image. Raises AssertionError with what runc says."""
        mounts: list[dict[str, Any]] = [
            {"destination": "/proc", "type": "proc", "source": "proc"},
            {"destination": "/dev", "type": "tmpfs", "source": "tmpfs", "options": ["mode=755"]},
        ]
        hooks: dict[str, list[dict[str, Any]]] = {}
        bind = ["rbind", "rprivate", "nosuid", "nodev"]
        for mount in got.mounts:
            options = [*bind, "ro" if mount.read_only else "rw"]
            target, source = mount.container_path, mount.host_path
            mounts.append({"destination": target, "type": "bind", "source": source, "options": options})
        for edits in self.devices(got):
            for each in edits.get("mounts", ()):
                target, source = each["containerPath"], each["hostPath"]
                mounts.append({"destination": target, "type": "bind", "source": source, "options": each["options"]})
            for hook in edits.get("hooks", ()):
                hooks.setdefault(hook["hookName"], []).append({"path": hook["path"], "args": hook["args"]})
        variables = {"PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "PYTHONPATH": "/opt/triton", **got.envs, **more}
        environment = [f"{name}={value}" for name, value in variables.items()]
        process = {
            "user": {"uid": user, "gid": user},
            "args": list(argv),
            "env": environment,
            "cwd": "/",
            "noNewPrivileges": True,
        }
        namespaces = [{"type": kind} for kind in ("pid", "mount", "ipc", "uts")]
        spec = {
            "ociVersion": "1.0.2",
            "process": process,
            "root": {"path": "rootfs", "readonly": read_only},
            "mounts": mounts,
            "hooks": hooks,
            "linux": {"namespaces": namespaces},
        }
        bundle = Path(tempfile.mkdtemp(dir=self.work))
        (bundle / "config.json").write_text(json.dumps(spec))
        script = """set -e
mount -t tmpfs none "$1"; cd "$1"; mkdir upper work; mkdir "$2/rootfs"
mount -t overlay overlay -o "lowerdir=$3,upperdir=upper,workdir=work" "$2/rootfs"
exec runc --root "$1/runc" run --bundle "$2" "box-$$"
"""
        layers = Path(tempfile.mkdtemp(dir=self.work))
        command = ["unshare", "--mount", "--propagation=private", "sh", "-c", script, "sh", layers, bundle, lower]
        done = subprocess.run(command, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL)
        assert done.returncode == 0, done.stderr + done.stdout
        return done.stdout


@pytest.fixture
def host(request: pytest.FixtureRequest) -> Iterator[Host]:
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/tmp")))
        node = FractionNode(root, stack, Mode.VGPU, gpus="4xa100-mig")
        node.interpose()
        for path in native.build().iterdir():
            shutil.copyfile(path, root / "native" / path.name)
        node.extra = [*request.param, "--cdi-dir", str(root / "cdi"), "--nvidia-driver-root", str(root)]
        node.start_api()
        node.start()
        node.seen()
        yield Host(node, Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/tmp"))))


def python(root: Path) -> str:
    return "/usr/bin/python3" if (root / "usr/bin/python3").exists() else sys.executable


def all_find_it(told: dict[str, Any], uid: int) -> None:
    assert told["found"] == {"cuda": "libcuda.so.1", "nvidia-ml": "libnvidia-ml.so.1", "c": "libc.so.6"}
    assert told["listed"] == 0
    assert len(told["dirs"]) == 1
    assert told["triton"]
    assert {"libcuda", "libnvidia-ml"} <= set(told["maps"])
    assert told["uid"] == uid


@pytest.mark.parametrize("host", [CDI, ANNOTATIONS, WITH_HOOKS], indirect=True, ids=["cdi", "annotations", "hooks"])
@pytest.mark.parametrize(("user", "read_only"), [(0, False), (65532, True)], ids=["root", "confined"])
def test_every_way_of_looking_finds_the_driver(host: Host, user: int, read_only: bool) -> None:
    here = Path("/")
    before = (here / "etc/ld.so.cache").read_bytes()
    for cores in (30, 100):
        program = (python(here), "-S", "-c", PROGRAM)
        told = json.loads(host.run(host.admitted(cores), here, *program, user=user, read_only=read_only))
        all_find_it(told, user)
    assert (here / "etc/ld.so.cache").read_bytes() == before, "the host's is nobody's business"
    assert not (here / "etc/.ld.so.cache.kube-accel").exists()


@pytest.mark.parametrize("host", [MOUNTS, WITH_HOOKS], indirect=True, ids=["mounts", "hooks"])
def test_where_the_runtime_has_no_cdi_loaders_and_triton_find_it(host: Host) -> None:
    host.knows_cdi = False
    here = Path("/")
    told = json.loads(host.run(host.admitted(), here, python(here), "-S", "-c", PROGRAM, user=65532, read_only=True))
    assert told["triton"]
    assert {"libcuda", "libnvidia-ml"} <= set(told["maps"])
    # The documented limit; once mounts alone do more, docs/explanation/interposer.md has to say so.
    assert (told["found"]["cuda"], told["dirs"]) == (None, [])


@pytest.mark.parametrize("host", [CDI, MOUNTS], indirect=True, ids=["cdi", "mounts"])
def test_an_image_without_ldconfig_or_libc_starts(host: Host, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    # Any static program will do.
    shutil.copy(native.build() / "ldcache", tmp_path / "bin/static")
    with pytest.raises(AssertionError, match="usage: ldcache"):
        host.run(host.admitted(), tmp_path, "/bin/static")


@pytest.fixture(scope="module")
def debian(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Debian's root file system, as its images have it."""
    if shutil.which("mmdebstrap") is None or platform.machine() != "x86_64":
        pytest.skip("NOT TESTED: Triton in an image of Debian's: it needs mmdebstrap on x86_64")
    root = tmp_path_factory.mktemp("debian") / "root"
    include = "--include=python3-minimal,libpython3-stdlib,libstdc++6"
    subprocess.run(["mmdebstrap", "--quiet", "--variant=essential", include, "bookworm", root], check=True)
    return root


@pytest.fixture(scope="module")
def red_hat(debian: Path) -> Path:
    """The same programs and libraries where RHEL's images have them: in /usr/lib64, known by the cache alone."""
    root = debian.with_name("red-hat")
    subprocess.run(["cp", "--archive", debian, root], check=True)
    (root / "usr/lib64/ld-linux-x86-64.so.2").unlink()
    for path in (root / "usr/lib/x86_64-linux-gnu").iterdir():
        path.rename(root / "usr/lib64" / path.name)
    (root / "usr/lib/x86_64-linux-gnu").rmdir()
    shutil.rmtree(root / "etc/ld.so.conf.d")
    (root / "etc/ld.so.conf").write_text("/lib64\n")
    subprocess.run(["chroot", root, "/sbin/ldconfig"], check=True)
    return root


@pytest.fixture(scope="module")
def triton(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Triton in a directory to lay over a root file system."""
    work = tmp_path_factory.mktemp("triton")
    (work / "requirements.txt").write_text(f"{TRITON}\n")
    target = ["--python-version=3.11", "--implementation=cp", "--platform=manylinux_2_28_x86_64"]
    target += [
        "--platform=manylinux_2_27_x86_64",
        "--only-binary=:all:",
        "--no-deps",
        "--no-compile",
        "--require-hashes",
    ]
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", work / "root/opt/triton", *target]
    subprocess.run([*pip, "--requirement", work / "requirements.txt"], check=True)
    return work / "root"


@pytest.mark.full
@pytest.mark.parametrize("image", ["debian", "red_hat"])
@pytest.mark.parametrize("host", [CDI, WITH_HOOKS, MOUNTS], indirect=True, ids=["cdi", "hooks", "mounts"])
def test_real_triton_finds_the_driver(
    host: Host, image: str, request: pytest.FixtureRequest, triton: Path, debian: Path
) -> None:
    root: Path = request.getfixturevalue(image)
    got = host.admitted()
    where = "/lib/x86_64-linux-gnu" if image == "debian" else "/lib64"
    search = ("/usr/bin/python3", "-c", SEARCH)
    named = host.run(got, f"{triton}:{root}", *search, user=65532, read_only=True)
    assert named == f"{DEBIAN}\n"
    if not host.devices(got):
        with pytest.raises(AssertionError, match=r"libcuda\.so cannot found"):
            host.run(got, f"{triton}:{root}", *search, TRITON_LIBCUDA_PATH="")
        return
    assert (
        host.run(got, f"{triton}:{root}", *search, user=65532, read_only=True, TRITON_LIBCUDA_PATH="") == f"{where}\n"
    )
    told = json.loads(host.run(got, root, "/usr/bin/python3", "-S", "-c", PROGRAM, user=65532, read_only=True))
    all_find_it(told, 65532)
    assert told["dirs"] == [where]
