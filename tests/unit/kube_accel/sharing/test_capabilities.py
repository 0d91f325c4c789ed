# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from kube_accel.sharing.capabilities import INTERFACES, LIMITED, Capability, node_wanted, parse, selected, unlimited
from kube_accel.sharing.cdi import DriverFiles
from kube_accel.sharing.interposition import Sources, interposed

VERSION = "580.95.05"
LIB = "/usr/lib/x86_64-linux-gnu"
BY_CAPABILITY = {
    Capability.COMPUTE: [
        *("libcuda", "libcudadebugger", "libnvidia-nvvm", "libnvidia-ptxjitcompiler", "libnvidia-gpucomp"),
        *("libnvidia-allocator", "libnvidia-pkcs11", "libnvidia-tileiras"),
    ],
    Capability.UTILITY: ["libnvidia-ml", "libnvidia-cfg", "libnvidia-nscq"],
    Capability.OPENCL: ["libnvidia-opencl"],
    Capability.VIDEO: ["libnvcuvid", "libnvidia-encode", "libnvidia-opticalflow", "libvdpau_nvidia"],
    Capability.NGX: ["libnvidia-ngx"],
    Capability.GRAPHICS: [
        *("libGLX_nvidia", "libEGL_nvidia", "libGLESv1_CM_nvidia", "libGLESv2_nvidia", "libnvoptix"),
        *("libnvidia-eglcore", "libnvidia-glcore", "libnvidia-glsi", "libnvidia-glvkspirv", "libnvidia-rtcore"),
        *("libnvidia-tls", "libnvidia-fbc", "libnvidia-vksc-core"),
    ],
}
DATA = {
    "/etc/OpenCL/vendors/nvidia.icd": Capability.OPENCL,
    "/usr/share/vulkan/icd.d/nvidia_icd.json": Capability.GRAPHICS,
    "/usr/share/glvnd/egl_vendor.d/10_nvidia.json": Capability.GRAPHICS,
    "/usr/share/nvidia/nvoptix.bin": Capability.GRAPHICS,
    f"{LIB}/gbm/nvidia-drm_gbm.so": Capability.GRAPHICS,
}
PROGRAMS = ("/usr/bin/nvidia-smi", f"/lib/firmware/nvidia/{VERSION}/gsp_ga10x.bin")
FILES = DriverFiles(
    (*(f"{LIB}/{stem}.so.{VERSION}" for stems in BY_CAPABILITY.values() for stem in stems), *PROGRAMS),
    ("/run/nvidia-persistenced/socket",),
    {f"{LIB}/{stem}.so.1": f"{LIB}/{stem}.so.{VERSION}" for stems in BY_CAPABILITY.values() for stem in stems},
    {path: path for path in DATA},
)


def stems(files: DriverFiles) -> set[str]:
    return {path.rpartition("/")[2].partition(".so")[0] for path in files.files if path.startswith(LIB)}


@pytest.mark.parametrize("asked", [*Capability, None])
def test_a_share_has_what_is_limited_and_what_is_asked_for(asked: Capability | None) -> None:
    wanted = LIMITED | ({asked} if asked else set())
    got = selected(FILES, wanted)
    expected = {stem for capability in wanted for stem in BY_CAPABILITY.get(capability, ())}
    assert stems(got) == expected
    assert {link.rpartition("/")[2].partition(".so")[0] for link in got.links} == expected
    assert set(got.data) == {path for path, capability in DATA.items() if capability in wanted}
    assert set(PROGRAMS) <= set(got.files)
    assert got.sockets == FILES.sockets


def test_names_are_those_of_nvidias_runtime() -> None:
    assert parse([]) == parse(["compute", "utility"]) == LIMITED
    assert parse(["video"]) == LIMITED | {Capability.VIDEO}
    assert parse(["all"]) == set(Capability)
    assert selected(FILES, parse(["all"])) == FILES
    with pytest.raises(ValueError, match="'compat32' is not one of all, compute, utility"):
        parse(["compat32"])


def test_what_nothing_limits_is_named() -> None:
    assert unlimited(LIMITED) == ""
    assert unlimited(parse(["video", "graphics"])) == "Vulkan, OpenGL and OptiX, NVENC and NVDEC"
    assert INTERFACES.keys() == set(Capability) - LIMITED


@pytest.mark.parametrize(
    ("name", "asking"),
    [
        ("nvidiactl", set(Capability)),
        ("nvidia-uvm", set(Capability)),
        ("nvidia-modeset", {Capability.GRAPHICS, Capability.DISPLAY}),
    ],
)
def test_the_device_node_of_displays_comes_with_what_uses_it(name: str, asking: set[Capability]) -> None:
    assert {one for one in Capability if node_wanted(name, {one})} == asking


def test_graphics_files_are_in_each_library_directory() -> None:
    aside = f"{LIB}/nvidia/current"
    files = DriverFiles(
        (f"{aside}/libcuda.so.{VERSION}", f"{aside}/libnvidia-ml.so.{VERSION}", f"{LIB}/libnvidia-egl-gbm.so.1.1.2"),
        links={f"{LIB}/libnvidia-egl-gbm.so.1": f"{LIB}/libnvidia-egl-gbm.so.1.1.2"},
        data={f"{LIB}/gbm/nvidia-drm_gbm.so": "/end", "/usr/share/vulkan/icd.d/nvidia_icd.json": "/icd"},
    )
    got = interposed(Sources(files, "/", VERSION, "/shim", "/hook", "x86_64"), "p", "s", ()).read_only
    for directory in (LIB, "/usr/lib64"):
        assert got[f"{directory}/gbm/nvidia-drm_gbm.so"] == "/end"
        assert got[f"{directory}/libnvidia-egl-gbm.so.1"] == f"{LIB}/libnvidia-egl-gbm.so.1.1.2"
    assert got["/usr/share/vulkan/icd.d/nvidia_icd.json"] == "/icd"
