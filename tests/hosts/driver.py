# SPDX-License-Identifier: Apache-2.0
"""Hosts for the role driver: `python -m hosts.driver DIRECTORY` starts, `python -m hosts down DIRECTORY` ends them.

Debian with systemd, a GPU in a sysfs of its own, and as its archive a folder with what Debian has of NVIDIA's driver
and of its kernel's headers. That kernel does not run here, so nothing that is built for it can be loaded.
"""

from __future__ import annotations

import argparse
import hashlib
import shutil
import subprocess
import sys
from pathlib import Path

import yaml

from hosts import ssh
from hosts.__main__ import HERE, Host, HostError, boot, check, make
from hosts.packages import archive
from sim.nvml import sysfs
from sim.nvml.profiles import PROFILES

HOSTS = (Host("debian-12", "bookworm"), Host("debian-13", "trixie"))
COMPONENTS = ("main", "contrib", "non-free", "non-free-firmware")
INCLUDED = f"systemd,systemd-sysv,dbus,python3,python3-apt,iproute2,kmod,{ssh.PACKAGES}"
WANTED = (
    *("build-essential", "pkg-config", "dkms"),
    *("nvidia-kernel-dkms", "libcuda1", "libnvidia-ml1", "libnvidia-cfg1", "libnvidia-ptxjitcompiler1"),
    *("nvidia-smi", "nvidia-modprobe", "nvidia-cuda-mps"),
)
# $1 is the userland. The headers are those of the release's own kernel.
DOWNLOAD = rf"""
chroot "$1" sh -ec '
  newest=linux-headers-$(dpkg --print-architecture)
  headers=$(apt-cache depends $newest | sed -n "s/.*Depends: \(linux-headers-[0-9].*\)/\1/p")
  echo "${{headers#linux-headers-}}" >/srv/kernel
  apt-get install -qqy --no-install-recommends --download-only {" ".join(WANTED)} $headers >/dev/null
  mkdir -p /srv/debian/pool
  mv /var/cache/apt/archives/*.deb /srv/debian/pool'
"""


def base(cache: Path, suite: str) -> Path:
    """A userland without the driver, made once, with an archive that has it."""
    made = cache / f"{suite}-driver-{hashlib.sha256((INCLUDED + DOWNLOAD + ssh.ADD_USER).encode()).hexdigest()[:8]}"
    if not made.exists():
        unfinished = made.with_name(f"{made.name}.unfinished")
        shutil.rmtree(unfinished, ignore_errors=True)
        components = f"--components={','.join(COMPONENTS)}"
        hooks = [f"--customize-hook={hook}" for hook in (DOWNLOAD, ssh.ADD_USER)]
        make(["--variant=minbase", components, f"--include={INCLUDED}", *hooks, suite, str(unfinished)])
        archive(unfinished / "srv/debian", suite)
        unfinished.rename(made)
    return made


def furnish(host: Host, upper: Path) -> None:
    """Put the host's own files over its base: a GPU, package sources, and a dpkg that does not wait for the disk."""
    sysfs.write(PROFILES["t4"](host.name), upper / "srv/gpu")
    (upper / "etc/apt").mkdir(parents=True)
    (upper / "etc/apt/sources.list").write_text(
        f"deb [trusted=yes] file:/srv/debian {host.base} {' '.join(COMPONENTS)}\n"
    )
    (upper / "etc/dpkg/dpkg.cfg.d").mkdir(parents=True)
    (upper / "etc/dpkg/dpkg.cfg.d/unsafe-io").write_text("force-unsafe-io\n")


def up(directory: Path, cache: Path) -> None:
    """Start the hosts and write their inventory."""
    check()
    cache.mkdir(parents=True, exist_ok=True)
    inventory = {}
    for host in HOSTS:
        userland, own = base(cache, host.base), directory / host.name
        (own / "upper").mkdir(parents=True)
        furnish(host, own / "upper")
        key = ssh.admit(own / "upper", host.name)
        inventory[host.name] = {
            **ssh.variables(host.name, boot(host, userland, own), key),
            "kernel": (userland / "srv/kernel").read_text().strip(),
            "driver_sysfs_root": "/srv/gpu/sys",
        }
    text = yaml.safe_dump({"gpu_nodes": {"hosts": inventory}}, sort_keys=False)
    (directory / "inventory.yml").write_text(text)


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m hosts.driver", description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--cache", type=Path, default=HERE.parents[1] / ".cache" / "hosts")
    options = parser.parse_args()
    try:
        up(options.directory.resolve(), options.cache.resolve())
    except (HostError, subprocess.CalledProcessError) as error:
        sys.exit(f"hosts: {error}")


if __name__ == "__main__":
    main()
