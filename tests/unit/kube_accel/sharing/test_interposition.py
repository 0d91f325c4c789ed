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
        *(
            f"{LIB}/{stem}.so.{VERSION}"
            for stem in ("libcuda", "libnvidia-eglcore", "libnvidia-ml", "libnvidia-ptxjitcompiler")
        ),
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
HOOK = "/var/lib/kube-accel/shim/newest/ldcache"
SOURCES = Sources(FILES, "/", VERSION, SHIM, HOOK, "x86_64")
DIRECTORIES = (LIB, "/usr/lib/x86_64-linux-gnu")
GOT = interposed(SOURCES, "/host/policy", "/host/state", ("nvidia3", "nvidiactl"))
ENVIRONMENT = {"NVIDIA_VISIBLE_DEVICES": "void", "TRITON_LIBCUDA_PATH": "/usr/lib/x86_64-linux-gnu"}
BY_CDI = [Delivery((Strategy.CDI_CRI,)), Delivery((Strategy.CDI_ANNOTATIONS,))]


@pytest.mark.parametrize("directory", DIRECTORIES)
@pytest.mark.parametrize("stem", ["libcuda", "libnvidia-ml"])
@pytest.mark.parametrize("ending", ["", ".1", f".{VERSION}"])
def test_every_public_name_of_the_driver_is_the_interposer(directory: str, stem: str, ending: str) -> None:
    assert GOT.read_only[f"{directory}/{stem}.so{ending}"] == f"{SHIM}/{stem}.so.1"


def test_drivers_own_library_has_one_private_name() -> None:
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
    got = interposed(Sources(FILES, "/run/nvidia/driver", VERSION, SHIM, HOOK, "x86_64"), "p", "s", ())
    assert got.read_only["/usr/lib/kube-accel/driver/libcuda.so.1"] == f"/run/nvidia/driver{LIB}/libcuda.so.{VERSION}"
    assert got.read_only["/usr/bin/nvidia-smi"] == "/run/nvidia/driver/usr/bin/nvidia-smi"


def test_by_mounts_kubelet_is_told_everything() -> None:
    told = grant(GOT, "key", Delivery())
    assert told.environment == ENVIRONMENT
    assert not told.annotations
    assert not told.cdi_devices
    assert told.device_nodes == ("nvidia3", "nvidiactl")
    assert told.read_only_mounts == GOT.read_only
    assert told.mounts == GOT.writable


@pytest.mark.parametrize("delivery", BY_CDI)
def test_by_cdi_kubelet_is_told_a_name(delivery: Delivery) -> None:
    told = grant(GOT, "key", delivery)
    assert told.environment == ENVIRONMENT
    assert not told.mounts
    assert not told.read_only_mounts
    assert not told.device_nodes
    assert [*told.cdi_devices, *told.annotations.values()] == ["kube-accel.io/share=key"]


def test_mounts_can_come_with_a_device_of_the_hook_alone() -> None:
    delivery = Delivery(hooks_by_cdi=True)
    told, mounts = grant(GOT, "key", delivery), grant(GOT, "key", Delivery())
    assert (told.mounts, told.read_only_mounts, told.device_nodes) == (
        mounts.mounts,
        mounts.read_only_mounts,
        mounts.device_nodes,
    )
    assert [*told.cdi_devices, *told.annotations.values()] == ["kube-accel.io/share=key"] * 2
    (device,) = specification(GOT, "key", delivery)["devices"]
    assert list(device["containerEdits"]) == ["hooks"]


@pytest.mark.parametrize("delivery", [*BY_CDI, Delivery(hooks_by_cdi=True)])
def test_the_hook_is_told_every_name_by_which_programs_look(delivery: Delivery) -> None:
    (device,) = specification(GOT, "key", delivery)["devices"]
    (hook,) = device["containerEdits"]["hooks"]
    # The runtime's namespaces: where the container's root is, no volume of the pod is mounted over its files.
    assert (hook["hookName"], hook["path"]) == ("createRuntime", HOOK)
    program, *directories = hook["args"][: hook["args"].index("--")]
    assert (program, *directories) == ("ldcache", *DIRECTORIES)
    assert hook["args"][hook["args"].index("--") + 1 :] == [
        "libcuda.so",
        "libcuda.so.1",
        "libnvidia-eglcore.so.580.95.05",
        "libnvidia-ml.so",
        "libnvidia-ml.so.1",
        "libnvidia-ptxjitcompiler.so.1",
    ]


def test_the_specification_holds_what_mounts_would() -> None:
    document = specification(GOT, "key", BY_CDI[0])
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
