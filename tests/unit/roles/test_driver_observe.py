# SPDX-License-Identifier: Apache-2.0
"""What the driver role reads of a host, on trees as the kernel shows them."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils.driver.observation import Observation

from sim.nvml import sysfs
from sim.nvml.profiles import PROFILES

SCRIPT = Path(__file__).parents[3] / "roles/driver/files/observe.sh"


def _observe(root: Path, *, modinfo: str = "exit 1", **programs: str) -> dict[str, Any]:
    binaries = root / "bin"
    binaries.mkdir(exist_ok=True)
    nothing = dict.fromkeys(("dpkg-query", "rpm", "nv-fabricmanager"), "exit 1")
    for name, text in (nothing | {"modinfo": modinfo} | programs).items():
        (binaries / name.replace("_", "-")).write_text(f"#!/bin/sh\n{text}\n")
        (binaries / name.replace("_", "-")).chmod(0o755)
    command = ["sh", "-s", str(root / "sys"), str(root / "etc"), str(root / "run"), "6.1.0", str(root / "dev")]
    environment = os.environ | {"PATH": f"{binaries}:{os.environ['PATH']}"}
    with SCRIPT.open() as script:
        done = subprocess.run(command, stdin=script, capture_output=True, text=True, check=True, env=environment)
    assert done.stderr == ""
    seen: dict[str, Any] = json.loads(done.stdout)
    return seen


@pytest.fixture
def eight(tmp_path: Path) -> Path:
    sysfs.write(PROFILES["8xh100"]("node"), tmp_path)
    return tmp_path


def test_the_role_reads_all_that_is_printed_and_nothing_else(tmp_path: Path) -> None:
    assert set(_observe(tmp_path)) == {field.name for field in fields(Observation)}


def test_persistence_unit_is_ours_or_a_packages(tmp_path: Path) -> None:
    unit = tmp_path / "etc/systemd/system/nvidia-persistenced.service"
    unit.parent.mkdir(parents=True)
    unit.write_text("[Unit]\n")
    assert _observe(tmp_path)["persistence_unit"] is False
    unit.write_text("# Written by accel.kubernetes.driver\n[Unit]\n")
    assert _observe(tmp_path)["persistence_unit"] is True


def test_content_and_mode_of_the_modules_to_load_are_seen(tmp_path: Path) -> None:
    path = tmp_path / "etc/modules-load.d/accel-nvidia.conf"
    path.parent.mkdir(parents=True)
    assert _observe(tmp_path)["boot_modules"] == ""
    path.write_text("nvidia\n")
    path.chmod(0o600)
    assert _observe(tmp_path)["boot_modules"] == "600 " + hashlib.sha256(b"nvidia\n").hexdigest()
    path.rename(tmp_path / "elsewhere")
    path.symlink_to(tmp_path / "elsewhere")
    assert not _observe(tmp_path)["boot_modules"].startswith("6")


def test_device_files_are_seen(tmp_path: Path) -> None:
    assert _observe(tmp_path)["device_files"] is False
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidia-uvm").touch()
    assert _observe(tmp_path)["device_files"] is True


def test_a_host_without_gpus(tmp_path: Path) -> None:
    (tmp_path / "sys/bus/pci/devices").mkdir(parents=True)
    assert _observe(tmp_path)["gpus"] == []


def test_gpus_are_counted_and_nothing_else_of_the_board(eight: Path) -> None:
    gpus = _observe(eight)["gpus"]
    assert len(gpus) == 8  # the tree also holds NVSwitches and the board's own display
    assert {gpu["device"] for gpu in gpus} == {"0x2330"}
    assert {gpu["driver"] for gpu in gpus} == {""}


def test_a_virtual_function_is_not_counted_twice(eight: Path) -> None:
    devices = eight / "sys/bus/pci/devices"
    first = _observe(eight)["gpus"][0]["address"]
    (devices / first / "physfn").symlink_to("../0000:00:00.0")
    assert len(_observe(eight)["gpus"]) == 7


def test_the_bound_driver_is_named(eight: Path) -> None:
    first = _observe(eight)["gpus"][0]["address"]
    (eight / "sys/bus/pci/devices" / first / "driver").symlink_to("../../drivers/vfio-pci")
    assert _observe(eight)["gpus"][0]["driver"] == "vfio-pci"


def test_loaded_and_installed_driver_are_told_apart(eight: Path) -> None:
    topology = PROFILES["8xh100"]("node")
    sysfs.load_driver(topology, eight)
    seen = _observe(eight, modinfo='[ "$2 $4" = "6.1.0 version" ] && echo 590.1.2 || echo NVIDIA')
    assert (seen["loaded"], seen["installed"], seen["license"]) == (topology.system.driver, "590.1.2", "NVIDIA")


def test_what_the_role_must_respect_is_seen(eight: Path) -> None:
    for path in ("etc/dgx-release", "run/nvidia/driver/usr/lib", "sys/module/nouveau/version"):
        (eight / path).parent.mkdir(parents=True, exist_ok=True)
        (eight / path).touch()
    efi = eight / "sys/firmware/efi/efivars"
    efi.mkdir(parents=True)
    (efi / "SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c").write_bytes(b"\x06\0\0\0\x01")
    sources = eight / "etc/apt/sources.list.d/debian.sources"
    sources.parent.mkdir(parents=True)
    sources.write_text("Types: deb\nComponents: main contrib non-free non-free-firmware\n")
    stream = eight / "etc/dnf/modules.d/nvidia-driver.module"
    stream.parent.mkdir(parents=True)
    stream.write_text("[nvidia-driver]\nname=nvidia-driver\nstream=580-open\nstate=enabled\n")
    seen = _observe(eight)
    flags = ("dgx", "operator", "nouveau", "secure_boot", "non_free")
    assert {name: seen[name] for name in flags} == dict.fromkeys(flags, True)
    assert seen["stream"] == "580-open"


def test_a_host_with_nothing_special_says_so(eight: Path) -> None:
    sources = eight / "etc/apt/sources.list"
    sources.parent.mkdir(parents=True)
    sources.write_text("deb http://mirror.example/debian bookworm main non-free-firmware\n")
    efi = eight / "sys/firmware/efi/efivars"
    efi.mkdir(parents=True)
    (efi / "SecureBoot-8be4df61-93ca-11d2-aa0d-00e098032b8c").write_bytes(b"\x06\0\0\0\0")
    seen = _observe(eight)
    assert not any(
        seen[name] for name in ("dgx", "operator", "nouveau", "secure_boot", "non_free", "stream", "runfile")
    )


DEBIAN = """\
install installed libcuda1 535.309.01-0+deb12u1 Debian NVIDIA Maintainers <pkg-nvidia-devel@lists.alioth.debian.org>
hold installed nvidia-smi 535.309.01-0+deb12u1 Debian NVIDIA Maintainers <pkg-nvidia-devel@lists.alioth.debian.org>
install config-files nvidia-persistenced 535.1 Debian NVIDIA Maintainers <pkg-nvidia-devel@lists.alioth.debian.org>
install installed nvidia-container-toolkit 1.18.1-1 NVIDIA CORPORATION <cudatools@nvidia.com>
install installed nvidia-cuda-toolkit 11.8.89~11.8.0-5~deb12u1 Debian NVIDIA Maintainers <pkg-nvidia-devel@lists.alioth>
install installed nvidia-kernel-common 20220217+3~deb12u1 Debian NVIDIA Maintainers <pkg-nvidia-devel@lists.alioth>
"""
NVIDIA = """\
install installed nvidia-open 580.95.05-1 NVIDIA CORPORATION <cudatools@nvidia.com>
install installed nvidia-driver-pinning-580 580-1 NVIDIA CORPORATION <cudatools@nvidia.com>"""


def test_packages_are_told_apart_by_who_built_them(eight: Path) -> None:
    seen = _observe(eight, dpkg_query=f"cat <<'EOF'\n{DEBIAN}EOF")
    assert seen["packages"] == ["libcuda1", "nvidia-smi"]
    assert (seen["vendor"], seen["held"]) == ("distribution", ["nvidia-smi"])
    seen = _observe(eight, dpkg_query=f"echo '{NVIDIA}'")
    assert (seen["packages"], seen["vendor"], seen["held"]) == (["nvidia-open"], "nvidia", [])
    assert seen["pinning"] == ["nvidia-driver-pinning-580"]


UBUNTU = """\
install installed linux-modules-nvidia-580-server-open-6.8.0-90-generic 6.8.0-90.91 Canonical <kernel@ubuntu.com>
install installed linux-objects-nvidia-580-server-open-6.8.0-90-generic 6.8.0-90.91 Canonical <kernel@ubuntu.com>
install installed nvidia-utils-580-server 580.95.05-0ubuntu0.24.04.3 Ubuntu <ubuntu-devel@lists.ubuntu.com>
"""


def test_modules_that_came_built_belong_to_the_driver(eight: Path) -> None:
    seen = _observe(eight, dpkg_query=f"cat <<'EOF'\n{UBUNTU}EOF")
    assert [name.split("-nvidia-")[0] for name in seen["packages"]] == [
        "linux-modules",
        "linux-objects",
        "nvidia-utils-580-server",
    ]


def test_packages_of_an_rpm_system(eight: Path) -> None:
    lock = eight / "etc/dnf/plugins/versionlock.list"
    lock.parent.mkdir(parents=True)
    lock.write_text("# Added lock\nnvidia-driver-cuda-3:580.95.05-1.el9.*\nnvidia-container-toolkit-0:1.18.1-1.*\n")
    seen = _observe(eight, rpm="echo 'install nvidia-driver-cuda 580.95.05 NVIDIA'")
    assert (seen["packages"], seen["vendor"]) == (["nvidia-driver-cuda"], "nvidia")
    assert seen["held"] == ["nvidia-driver-cuda"]
    lock.write_text("nvidia-container-toolkit-0:1.18.1-1.*\n")
    assert _observe(eight, rpm="echo 'install nvidia-driver-cuda 580.95.05 NVIDIA'")["held"] == []


@pytest.mark.parametrize(
    ("vendor", "seen"), [("(none)", "nvidia"), ("NVIDIA Corporation", "nvidia"), ("RPM Fusion", "distribution")]
)
def test_rpms_that_name_no_vendor_are_nvidias(eight: Path, vendor: str, seen: str) -> None:
    assert _observe(eight, rpm=f"echo 'install nvidia-driver-cuda 580.95.05 {vendor}'")["vendor"] == seen


def test_a_host_without_packages(eight: Path) -> None:
    seen = _observe(eight)
    assert (seen["packages"], seen["vendor"], seen["held"], seen["pinning"]) == ([], "", [], [])


def test_a_module_of_debian_has_a_name_of_its_own(eight: Path) -> None:
    seen = _observe(eight, modinfo='[ "$5" = nvidia-current ] && echo "$4 of Debian"')
    found = (seen["installed"], seen["license"], seen["vermagic"])
    assert found == ("version of Debian", "license of Debian", "vermagic of Debian")


def test_switches_and_their_manager_are_found(eight: Path) -> None:
    seen = _observe(eight, nv_fabricmanager='echo "Fabric Manager version is : 580.95.05"')
    assert (seen["nvswitch"], seen["fabric_manager"]) == (True, "580.95.05")


def test_one_card_has_no_switch(tmp_path: Path) -> None:
    sysfs.write(PROFILES["t4"]("node"), tmp_path)
    seen = _observe(tmp_path)
    assert (len(seen["gpus"]), seen["nvswitch"], seen["fabric_manager"]) == (1, False, "")


def test_free_space_names_its_file_system(eight: Path) -> None:
    answer = 'echo "Filesystem 1024-blocks Used Available Capacity Mounted on\n/dev/sda1 9 9 2097152 1% $mount"'
    seen = _observe(eight, df=f"mount=/; [ $2 != /boot ] || mount=/boot; {answer}")
    assert seen["free"]["/usr"] == {"mount": "/", "mib": 2048}
    assert seen["free"]["/boot"]["mount"] == "/boot"


def test_a_blacklisted_nouveau_is_seen(eight: Path) -> None:
    file = eight / "etc/modprobe.d/accel-nouveau.conf"
    file.parent.mkdir(parents=True)
    file.write_text("# ours\nblacklist nouveau\n")
    assert _observe(eight)["blacklisted"] is True


def test_configured_dkms_signing_key_counts(eight: Path) -> None:
    key = eight / "site.der"
    key.touch()
    file = eight / "etc/dkms/framework.conf.d/site.conf"
    file.parent.mkdir(parents=True)
    file.write_text(f'# mok_certificate=/none\nmok_certificate="{key}"\n')
    assert _observe(eight, mokutil=f'[ "$2" = {key} ] && echo "$2 is already enrolled"')["key_enrolled"] is True
    assert _observe(eight, mokutil='echo "$2 is not enrolled"')["key_enrolled"] is False
