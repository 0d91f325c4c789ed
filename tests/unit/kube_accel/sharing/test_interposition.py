# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from kube_accel.sharing.cdi import DriverFiles
from kube_accel.sharing.delivery import Delivery, Strategy
from kube_accel.sharing.interposition import Sources, grant, interposed, missing, specification

VERSION = "580.95.05"
LIB = "/usr/lib64"
FILES = DriverFiles(
    (
        *(f"{LIB}/{stem}.so.{VERSION}" for stem in ("libcuda", "libnvidia-ml", "libnvidia-ptxjitcompiler")),
        f"/usr/lib/libcuda.so.{VERSION}",
        "/usr/bin/nvidia-smi",
    ),
    ("/run/nvidia-persistenced/socket",),
    {
        f"{LIB}/libcuda.so.1": f"{LIB}/libcuda.so.{VERSION}",
        f"{LIB}/libnvidia-ml.so.1": f"{LIB}/libnvidia-ml.so.{VERSION}",
        f"{LIB}/libnvidia-ptxjitcompiler.so.1": f"{LIB}/libnvidia-ptxjitcompiler.so.{VERSION}",
    },
)
SHIM = "/var/lib/kube-accel/shim/abc"
SOURCES = Sources(FILES, "/", VERSION, SHIM, "x86_64")
DIRECTORIES = (LIB, "/usr/lib/x86_64-linux-gnu")
GOT = interposed(SOURCES, "/host/policy", "/host/state", ("nvidia3", "nvidiactl"))


@pytest.mark.parametrize("directory", DIRECTORIES)
@pytest.mark.parametrize("stem", ["libcuda", "libnvidia-ml"])
@pytest.mark.parametrize("ending", ["", ".1", f".{VERSION}"])
def test_every_public_name_of_the_driver_is_the_interposer(directory: str, stem: str, ending: str) -> None:
    assert GOT.read_only[f"{directory}/{stem}.so{ending}"] == f"{SHIM}/{stem}.so.1"


def test_the_drivers_own_library_has_one_private_name_and_no_other() -> None:
    for stem in ("libcuda", "libnvidia-ml"):
        targets = [target for target, source in GOT.read_only.items() if source == f"{LIB}/{stem}.so.{VERSION}"]
        assert targets == [f"/usr/lib/kube-accel/driver/{stem}.so.1"]


def test_everything_else_is_where_loaders_look() -> None:
    for directory in DIRECTORIES:
        for ending in (f".{VERSION}", ".1"):
            path = f"{directory}/libnvidia-ptxjitcompiler.so{ending}"
            assert GOT.read_only[path] == f"{LIB}/libnvidia-ptxjitcompiler.so.{VERSION}"
    assert GOT.read_only["/usr/bin/nvidia-smi"] == "/usr/bin/nvidia-smi"
    assert not [target for target in GOT.read_only if target.startswith("/usr/lib/lib")]


@pytest.mark.attack
def test_only_the_account_can_be_written() -> None:
    assert GOT.read_only["/etc/kube-accel/policy"] == "/host/policy"
    socket = "/run/nvidia-persistenced/socket"
    assert GOT.read_only[socket] == socket
    assert GOT.writable == {"/run/kube-accel/state": "/host/state"}


def test_the_driver_may_be_below_a_directory_of_the_host() -> None:
    got = interposed(Sources(FILES, "/run/nvidia/driver", VERSION, SHIM, "x86_64"), "p", "s", ())
    assert got.read_only["/usr/lib/kube-accel/driver/libcuda.so.1"] == f"/run/nvidia/driver{LIB}/libcuda.so.{VERSION}"
    assert got.read_only["/usr/bin/nvidia-smi"] == "/run/nvidia/driver/usr/bin/nvidia-smi"


def test_by_mounts_kubelet_is_told_everything() -> None:
    told = grant(GOT, "key", Delivery())
    assert told.environment == {"NVIDIA_VISIBLE_DEVICES": "void"}
    assert told.device_nodes == ("nvidia3", "nvidiactl")
    assert told.read_only_mounts == GOT.read_only
    assert told.mounts == GOT.writable


@pytest.mark.parametrize("strategy", [Strategy.CDI_CRI, Strategy.CDI_ANNOTATIONS])
def test_by_cdi_kubelet_is_told_a_name(strategy: Strategy) -> None:
    told = grant(GOT, "key", Delivery((strategy,)))
    assert not told.mounts
    assert not told.read_only_mounts
    assert not told.device_nodes
    assert [*told.cdi_devices, *told.annotations.values()] == ["kube-accel.io/share=key"]


def test_the_specification_holds_what_mounts_would() -> None:
    document = specification(GOT, "key")
    assert (document["cdiVersion"], document["kind"]) == ("0.5.0", "kube-accel.io/share")
    (device,) = document["devices"]
    edits = device["containerEdits"]
    by_access = {
        access: {
            mount["containerPath"]: mount["hostPath"] for mount in edits["mounts"] if mount["options"][0] == access
        }
        for access in ("ro", "rw")
    }
    assert by_access == {"ro": GOT.read_only, "rw": GOT.writable}
    assert [node["path"] for node in edits["deviceNodes"]] == ["/dev/nvidia3", "/dev/nvidiactl"]
    assert edits["env"] == ["NVIDIA_VISIBLE_DEVICES=void"]


def test_a_driver_without_one_of_the_libraries_is_told_by_name() -> None:
    assert missing(FILES, VERSION) == ""
    assert missing(FILES, "1.2") == "libcuda.so.1.2"
    assert missing(DriverFiles((f"{LIB}/libcuda.so.{VERSION}",)), VERSION) == f"libnvidia-ml.so.{VERSION}"
