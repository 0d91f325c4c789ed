# SPDX-License-Identifier: Apache-2.0
"""Debian hosts with systemd as their first process, without a container engine: `python -m hosts up|down DIRECTORY`.

`containerd` puts the programs of Debian's newest containerd and its runc into DIRECTORY instead.

A host is a Debian userland by mmdebstrap, overlaid, in namespaces of its own, with no network. `up` leaves
DIRECTORY/inventory.yml for Ansible; DIRECTORY/<host>/pid names the process whose end is the host's end.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from hosts import packages, ssh

HERE = Path(__file__).parent
PACKAGES = f"systemd,systemd-sysv,e2fsprogs,dbus,python3,python3-apt,python3-grpcio,iproute2,{ssh.PACKAGES}"
RUNTIMES = f"{PACKAGES},containerd,docker.io"
BASES = {
    "bookworm": RUNTIMES,
    "trixie": f"{RUNTIMES},docker-cli",
}
BOOT = r"""
set -e
base=$1 own=$2 name=$3
mount --make-rprivate /
mkdir -p "$own/upper" "$own/work" "$own/root"
mount -t overlay -o "lowerdir=$base,upperdir=$own/upper,workdir=$own/work" overlay "$own/root"
cd "$own/root"
mount -t proc proc proc
mount -t sysfs sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs tmpfs tmp
mount -t tmpfs -o mode=755 tmpfs dev
for node in null zero full random urandom tty; do : >"dev/$node"; mount --bind "/dev/$node" "dev/$node"; done
mkdir dev/pts dev/shm
mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
mount -t tmpfs tmpfs dev/shm
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
ip link set lo up
echo "$name" >etc/hostname
pivot_root . mnt
exec chroot . /bin/sh -c 'umount -l /mnt; exec env -i container=other PATH=/usr/sbin:/usr/bin:/sbin:/bin /sbin/init'
"""


class HostError(Exception):
    """Hosts cannot be made here. Says what is missing."""


@dataclass(frozen=True)
class Host:
    """A machine to make."""

    name: str
    base: str
    masked: Sequence[str] = ("docker.service", "docker.socket")
    newest_containerd: bool = False
    k3s: bool = False
    variables: dict[str, Any] = field(default_factory=dict)


HOSTS = (
    Host("containerd-1-6", "bookworm"),
    Host("containerd-1-7", "trixie"),
    Host("containerd-2", "trixie", newest_containerd=True),
    Host("docker-20", "bookworm", masked=(), variables={"container_runtime_name": "docker"}),
    Host("docker-26", "trixie", masked=(), variables={"container_runtime_name": "docker"}),
    Host(
        "k3s",
        "trixie",
        masked=("docker.service", "docker.socket", "containerd.service"),
        newest_containerd=True,
        k3s=True,
    ),
)


def check() -> None:
    """Raise HostError unless this machine can make hosts."""
    if os.geteuid() != 0:
        raise HostError("hosts with systemd need root; run as root")
    for command, package in (
        ("unshare", "util-linux"),
        ("mmdebstrap", "mmdebstrap"),
        ("gpg", "gnupg"),
        ("ip", "iproute2"),
        ("ssh-keygen", "openssh-client"),
    ):
        if shutil.which(command) is None:
            raise HostError(f"'{command}' is missing. Install it, for example: apt-get install {package}")


def base(cache: Path, name: str) -> Path:
    """A Debian userland, made once, with the packages a role will ask for beside it."""
    made = cache / f"{name}-{hashlib.sha256((BASES[name] + ssh.ADD_USER).encode()).hexdigest()[:8]}"
    if not made.exists():
        unfinished = cache / f"{name}.unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        download = 'chroot "$1" sh -c "mkdir -p /srv/debian && cd /srv/debian && apt-get download python3-tomlkit"'
        hooks = [f"--customize-hook={hook}" for hook in (download, ssh.ADD_USER)]
        make(["--variant=minbase", f"--include={BASES[name]}", *hooks, name, str(unfinished)])
        unfinished.rename(made)
    return made


def newest_containerd(cache: Path) -> Path:
    """The programs of Debian's newest containerd, made once."""
    made = cache / "containerd"
    if not made.exists():
        unfinished = cache / "containerd.unfinished"
        shutil.rmtree(unfinished, ignore_errors=True)
        cache.mkdir(parents=True, exist_ok=True)
        # A mirror may lag behind the days for which sid's index is good.
        stale = '--aptopt=Acquire::Check-Valid-Until "false"'
        make(["--variant=extract", stale, "--include=containerd,runc", "sid", str(unfinished)])
        unfinished.rename(made)
    return made


def copy_containerd(cache: Path, directory: Path) -> None:
    """Put the programs of Debian's newest containerd into a directory."""
    directory.mkdir(parents=True, exist_ok=True)
    for program in ("containerd", "containerd-shim-runc-v2", "ctr"):
        shutil.copy(newest_containerd(cache) / "usr/bin" / program, directory / program)


# The mounts are its own and end with it.
RUNC = """#!/bin/sh
exec unshare --mount --propagation private sh -c '
  mount -t overlay -o lowerdir={beside}/lib:{libraries} libc {libraries} && exec {beside}/runc "$@"' runc "$@"
"""


def copy_runc(cache: Path, directory: Path) -> None:
    """Put the runc of that containerd into a directory. It runs with the libc that it was built for."""
    made, beside = newest_containerd(cache), directory / "runc.d"
    beside.mkdir(parents=True, exist_ok=True)
    shutil.copy(made / "usr/sbin/runc", beside / "runc")
    (libraries,) = made.glob("usr/lib/*-linux-gnu")
    (beside / "lib").mkdir(exist_ok=True)
    for pattern in ("ld-linux*.so.*", "libc.so.6", "libseccomp.so.2"):
        for library in libraries.glob(pattern):
            shutil.copy(library, beside / "lib" / library.name)
    (directory / "runc").write_text(RUNC.format(beside=beside.resolve(), libraries=f"/{libraries.relative_to(made)}"))
    (directory / "runc").chmod(0o755)


def make(arguments: Sequence[str]) -> None:
    """Run mmdebstrap. Raises HostError."""
    made = subprocess.run(["mmdebstrap", "--quiet", *arguments], capture_output=True, text=True, check=False)
    if made.returncode != 0:
        raise HostError(f"mmdebstrap {' '.join(arguments)} failed; it needs a Debian mirror: {made.stderr[-500:]}")


def furnish(host: Host, upper: Path, cache: Path, repositories: Path) -> None:
    """Put the host's own files over its base."""
    for unit in host.masked:
        (upper / "etc/systemd/system").mkdir(parents=True, exist_ok=True)
        (upper / "etc/systemd/system" / unit).symlink_to("/dev/null")
    shutil.copytree(repositories / host.base, upper / "srv", dirs_exist_ok=True)
    (upper / "etc/apt").mkdir(parents=True, exist_ok=True)
    (upper / "etc/apt/sources.list").write_text("deb [trusted=yes] file:/srv/debian ./\n")
    (upper / "usr/local/bin").mkdir(parents=True, exist_ok=True)
    shutil.copy(HERE / "crictl.py", upper / "usr/local/bin/crictl")
    if host.newest_containerd:
        copy_containerd(cache, upper / "usr/bin")
    if host.k3s:
        shutil.copy(HERE / "rancher.py", upper / "usr/local/bin/k3s")
        wants = upper / "etc/systemd/system/multi-user.target.wants"
        wants.mkdir(parents=True)
        shutil.copy(HERE / "k3s-agent.service", upper / "etc/systemd/system/k3s-agent.service")
        (wants / "k3s-agent.service").symlink_to("/etc/systemd/system/k3s-agent.service")


def boot(host: Host, userland: Path, own: Path) -> int:
    """Start the host; returns the process id of its systemd."""
    namespaces = ["--pid", "--mount", "--uts", "--ipc", "--net", "--cgroup"]
    log = (own / "console.log").open("wb")
    process = subprocess.Popen(
        [
            "unshare",
            "--fork",
            "--kill-child",
            *namespaces,
            "sh",
            "-c",
            BOOT,
            "boot",
            str(userland),
            str(own),
            host.name,
        ],
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=log,
        start_new_session=True,
    )
    (own / "pid").write_text(str(process.pid))
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
    deadline = time.monotonic() + 120
    while time.monotonic() < deadline and process.poll() is None:
        found = children.read_text().split() if children.exists() else []
        if found:
            state = inside(int(found[0]), ["systemctl", "is-system-running"])
            if state.stdout.strip() in ("running", "degraded"):
                return int(found[0])
        time.sleep(0.2)
    said = (own / "console.log").read_text(errors="replace")[-2000:]
    raise HostError(f"{host.name} did not start; systemd needs a cgroup2 it can mount and CAP_SYS_ADMIN: {said}")


def inside(pid: int, argv: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a command in the host whose systemd is that process."""
    return subprocess.run([*ssh.entry(pid), *argv], capture_output=True, text=True, check=False)


def up(directory: Path, cache: Path, names: Sequence[str]) -> None:
    """Start the hosts and write their inventory."""
    check()
    cache.mkdir(parents=True, exist_ok=True)
    chosen = [host for host in HOSTS if not names or host.name in names]
    for name in {host.base for host in chosen}:
        packages.repositories(directory / "repositories" / name, base(cache, name) / "srv/debian")
    inventory = {}
    for host in chosen:
        own = directory / host.name
        (own / "upper").mkdir(parents=True)
        furnish(host, own / "upper", cache, directory / "repositories")
        key = ssh.admit(own / "upper", host.name)
        toolkit_key = (directory / "repositories" / host.base / "nvidia/gpgkey").read_bytes()
        inventory[host.name] = {
            **ssh.variables(host.name, boot(host, base(cache, host.base), own), key),
            "container_runtime_toolkit_repo_url": "file:///srv/nvidia",
            "container_runtime_toolkit_repo_key": "file:///srv/nvidia/gpgkey",
            "container_runtime_toolkit_repo_key_sha256": hashlib.sha256(toolkit_key).hexdigest(),
            **host.variables,
        }
    text = yaml.safe_dump({"gpu_nodes": {"hosts": inventory}}, sort_keys=False)
    (directory / "inventory.yml").write_text(text)


def down(directory: Path) -> None:
    """End the hosts and delete what they wrote."""
    for own in directory.iterdir() if directory.is_dir() else ():
        if (own / "pid").is_file():
            pid = int((own / "pid").read_text())
            try:
                started = b"unshare" in Path(f"/proc/{pid}/cmdline").read_bytes()
            except FileNotFoundError:
                started = False
            if started:
                os.kill(pid, signal.SIGKILL)
            shutil.rmtree(own)
    shutil.rmtree(directory / "repositories", ignore_errors=True)
    (directory / "inventory.yml").unlink(missing_ok=True)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m hosts", description=__doc__)
    parser.add_argument("action", choices=["up", "down", "containerd"])
    parser.add_argument("directory", type=Path)
    parser.add_argument("names", nargs="*", help="hosts to start, by default all")
    parser.add_argument("--cache", type=Path, default=HERE.parents[1] / ".cache" / "hosts")
    options = parser.parse_args()
    try:
        if options.action == "up":
            up(options.directory.resolve(), options.cache.resolve(), options.names)
        elif options.action == "down":
            down(options.directory.resolve())
        else:
            check()
            copy_containerd(options.cache.resolve(), options.directory)
            copy_runc(options.cache.resolve(), options.directory)
    except HostError as error:
        sys.exit(f"hosts: {error}")


if __name__ == "__main__":
    main()
