# SPDX-License-Identifier: Apache-2.0
"""What the driver role reads of a host, on trees as the kernel shows them."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest

from sim.nvml import sysfs
from sim.nvml.profiles import PROFILES

SCRIPT = Path(__file__).parents[3] / "roles/driver/files/observe.sh"


def _observe(root: Path, *, modinfo: str = "exit 1") -> dict[str, Any]:
    binaries = root / "bin"
    binaries.mkdir(exist_ok=True)
    (binaries / "modinfo").write_text(f"#!/bin/sh\n{modinfo}\n")
    (binaries / "modinfo").chmod(0o755)
    command = ["sh", "-s", str(root / "sys"), str(root / "etc"), str(root / "run"), "6.1.0"]
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
