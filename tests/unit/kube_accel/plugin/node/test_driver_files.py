# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import NoReturn

import pytest

from kube_accel.plugin.node.driver_files import DriverFinder
from kube_accel.sharing.cdi import DriverFiles, HostNodes, specification
from kube_accel.sharing.interposition import missing
from kube_accel.sharing.whole import whole
from unit.kube_accel.enforce.test_held_open import leasable
from unit.kube_accel.plugin.fakes import inventory
from unit.kube_accel.plugin.node.test_cdi_writer import VERSION, install

WHERE = "usr/lib/x86_64-linux-gnu"


def test_libraries_links_and_programs_are_found(tmp_path: Path) -> None:
    install(tmp_path)
    libraries = tmp_path / "usr/lib/x86_64-linux-gnu"
    (libraries / "libcuda.so.535.1").touch()
    (libraries / "libc.so.6").touch()
    (libraries / "loop.so").symlink_to("pool.so")
    (libraries / "pool.so").symlink_to("loop.so")
    (tmp_path / "lib").symlink_to("usr/lib")
    (tmp_path / "usr/bin").mkdir()
    (tmp_path / "usr/bin/nvidia-smi").touch()
    firmware = tmp_path / f"usr/lib/firmware/nvidia/{VERSION}"
    firmware.mkdir(parents=True)
    (firmware / "gsp_ga10x.bin").touch()
    (tmp_path / "run/nvidia-persistenced").mkdir(parents=True)
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(tmp_path / "run/nvidia-persistenced/socket"))
    found = DriverFinder().find(tmp_path, VERSION)
    where = "/usr/lib/x86_64-linux-gnu"
    assert found.files == (
        f"{where}/libcuda.so.{VERSION}",
        f"{where}/libnvidia-ml.so.{VERSION}",
        "/usr/bin/nvidia-smi",
        f"/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin",
    )
    assert found.sockets == ("/run/nvidia-persistenced/socket",)
    assert found.links == {
        f"{where}/libcuda.so": f"{where}/libcuda.so.{VERSION}",
        f"{where}/libcuda.so.1": f"{where}/libcuda.so.{VERSION}",
        f"{where}/libnvidia-ml.so.1": f"{where}/libnvidia-ml.so.{VERSION}",
    }


def test_files_that_name_graphics_and_opencl_libraries_are_found(tmp_path: Path) -> None:
    install(tmp_path)
    libraries = tmp_path / WHERE
    for name in (f"libnvidia-allocator.so.{VERSION}", f"libnvidia-eglcore.so.{VERSION}", "libnvidia-egl-gbm.so.1.1.2"):
        (libraries / name).touch()
    (libraries / "libnvidia-egl-gbm.so.1").symlink_to("libnvidia-egl-gbm.so.1.1.2")
    (libraries / "gbm").mkdir()
    (libraries / "gbm/nvidia-drm_gbm.so").symlink_to(f"../libnvidia-allocator.so.{VERSION}")
    here = ["etc/OpenCL/vendors/nvidia.icd", "usr/share/nvidia/nvoptix.bin"]
    here += [f"usr/share/{name}" for name in ("glvnd/egl_vendor.d/10_nvidia.json", "vulkan/icd.d/nvidia_icd.json")]
    others = ["usr/share/vulkan/icd.d/lvp_icd.json", "usr/share/glvnd/egl_vendor.d/50_mesa.json"]
    for name in (*here, *others, "usr/lib/nvidia/current/nvidia_layers.json"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).touch()
    # As Debian has it, by way of alternatives; and one that leads nowhere, which would keep containers from starting.
    layers = tmp_path / "etc/vulkan/implicit_layer.d"
    layers.mkdir(parents=True)
    (layers / "nvidia_layers.json").symlink_to("/etc/alternatives/nvidia--layers")
    (tmp_path / "etc/alternatives").mkdir()
    (tmp_path / "etc/alternatives/nvidia--layers").symlink_to("/usr/lib/nvidia/current/nvidia_layers.json")
    (layers / "nvidia_gone.json").symlink_to("/etc/alternatives/nvidia--gone")
    (layers / "nvidia_loop.json").symlink_to("nvidia_loop.json")
    found = DriverFinder().find(tmp_path, VERSION)
    assert found.data == {
        **{f"/{name}": f"/{name}" for name in here},
        "/etc/vulkan/implicit_layer.d/nvidia_layers.json": "/usr/lib/nvidia/current/nvidia_layers.json",
        f"/{WHERE}/gbm/nvidia-drm_gbm.so": f"/{WHERE}/libnvidia-allocator.so.{VERSION}",
    }
    assert f"/{WHERE}/libnvidia-egl-gbm.so.1.1.2" in found.files
    assert found.links[f"/{WHERE}/libnvidia-egl-gbm.so.1"] == f"/{WHERE}/libnvidia-egl-gbm.so.1.1.2"
    document = specification([whole(inventory(1).gpus[0])], found, "/driver", HostNodes(lambda name: True))
    assert document is not None
    mounted = {mount["containerPath"]: mount["hostPath"] for mount in document["containerEdits"]["mounts"]}
    assert mounted.items() >= {path: f"/driver{source}" for path, source in found.data.items()}.items()


@pytest.mark.attack
def test_nobody_leases_what_was_found(tmp_path: Path) -> None:
    install(tmp_path)
    finder = DriverFinder()
    paths = [tmp_path / path.lstrip("/") for path in finder.find(tmp_path, VERSION).files]
    assert not any(map(leasable, paths))
    finder.find(tmp_path, "another version")
    assert all(map(leasable, paths))


def test_what_debian_keeps_aside_is_where_a_container_looks(tmp_path: Path) -> None:
    """As libcuda1, libnvidia-ml1 and nvidia-smi of Debian lay it out: links by way of /etc/alternatives."""
    install(tmp_path, directory=f"{WHERE}/nvidia/current")
    (tmp_path / WHERE / "libcuda.so.1").symlink_to("/etc/alternatives/nvidia--libcuda.so.1-x86_64-linux-gnu")
    (tmp_path / "usr/lib/nvidia/current").mkdir(parents=True)
    (tmp_path / "usr/lib/nvidia/current/nvidia-smi").touch()
    (tmp_path / "usr/bin").mkdir()
    (tmp_path / "usr/bin/nvidia-smi").symlink_to("/etc/alternatives/nvidia--nvidia-smi")
    found = DriverFinder().find(tmp_path, VERSION)
    assert missing(found, VERSION) == ""
    document = specification([whole(inventory(1).gpus[0])], found, "/driver", HostNodes(lambda name: True))
    assert document is not None
    aside = f"/driver/{WHERE}/nvidia/current"
    assert {mount["containerPath"]: mount["hostPath"] for mount in document["containerEdits"]["mounts"]} == {
        f"/{WHERE}/libcuda.so": f"{aside}/libcuda.so.{VERSION}",
        f"/{WHERE}/libcuda.so.1": f"{aside}/libcuda.so.{VERSION}",
        f"/{WHERE}/libcuda.so.{VERSION}": f"{aside}/libcuda.so.{VERSION}",
        f"/{WHERE}/libnvidia-ml.so.1": f"{aside}/libnvidia-ml.so.{VERSION}",
        f"/{WHERE}/libnvidia-ml.so.{VERSION}": f"{aside}/libnvidia-ml.so.{VERSION}",
        "/usr/bin/nvidia-smi": "/driver/usr/lib/nvidia/current/nvidia-smi",
    }
    document = specification(
        [whole(inventory(1).gpus[0])], found, "/", HostNodes(lambda name: True), hook="/usr/bin/nvidia-ctk"
    )
    assert document is not None
    links, cache = (hook["args"] for hook in document["containerEdits"]["hooks"])
    assert f"libcuda.so.{VERSION}::/{WHERE}/libcuda.so.1" in links
    assert cache[-1] == f"/{WHERE}"


def test_a_directory_that_did_not_change_is_not_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path)
    for name in (WHERE, "usr/lib"):
        os.utime(tmp_path / name, (1, 1))
    finder = DriverFinder()
    found = finder.find(tmp_path, VERSION)
    monkeypatch.delattr(os, "scandir")
    assert finder.find(tmp_path, VERSION) == found


def test_change_right_after_a_look_is_seen(tmp_path: Path) -> None:
    install(tmp_path)
    finder = DriverFinder()
    assert f"/{WHERE}/libcuda.so.{VERSION}" in finder.find(tmp_path, VERSION).files
    before = (tmp_path / WHERE).stat()
    (tmp_path / WHERE / f"libcuda.so.{VERSION}").unlink()
    os.utime(tmp_path / WHERE, ns=(before.st_atime_ns, before.st_mtime_ns))
    found = finder.find(tmp_path, VERSION)
    assert f"/{WHERE}/libcuda.so.{VERSION}" not in found.files
    assert f"/{WHERE}/libcuda.so" not in found.links
    os.utime(tmp_path / WHERE, (1, 1))
    assert finder.find(tmp_path, VERSION) == found
    install(tmp_path)
    assert f"/{WHERE}/libcuda.so.{VERSION}" in finder.find(tmp_path, VERSION).files


def test_another_driver_in_the_same_directory_is_looked_for(tmp_path: Path) -> None:
    install(tmp_path)
    os.utime(tmp_path / WHERE, (1, 1))
    finder = DriverFinder()
    assert finder.find(tmp_path, VERSION).links
    assert not finder.find(tmp_path, "535.1").links
    install(tmp_path, "535.1")
    assert finder.find(tmp_path, "535.1").links[f"/{WHERE}/libcuda.so"] == f"/{WHERE}/libcuda.so.535.1"


def test_links_that_vanish_while_they_are_read_are_not_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path)
    readlink = Path.readlink

    def removed(path: Path) -> Path:
        if path.name == "libcuda.so.1":
            path.unlink()
        return readlink(path)

    monkeypatch.setattr(Path, "readlink", removed)
    links = DriverFinder().find(tmp_path, VERSION).links
    assert links == {f"/{WHERE}/libnvidia-ml.so.1": f"/{WHERE}/libnvidia-ml.so.{VERSION}"}


def test_directory_that_vanishes_while_read_is_absent(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path)

    def removed(path: Path) -> NoReturn:
        raise FileNotFoundError(path)

    monkeypatch.setattr(os, "scandir", removed)
    assert DriverFinder().find(tmp_path, VERSION) == DriverFiles()
