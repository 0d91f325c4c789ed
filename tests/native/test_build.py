# SPDX-License-Identifier: Apache-2.0
"""Properties of the built libraries that decide in which images they load and what they do there by being loaded."""

from __future__ import annotations

import hashlib
import os
import platform
import re
import shutil
import subprocess
from dataclasses import dataclass
from pathlib import Path

import pytest

import sim.cuda
from kube_accel.enforce.shim import FILES
from native.conftest import NATIVE, Libraries

LIBRARIES = {"libcuda.so.1": "cuda", "libnvidia-ml.so.1": "nvml"}
OLDEST = {"x86_64": "GLIBC_2.2.5", "aarch64": "GLIBC_2.17"}
pytestmark = pytest.mark.skipif("sanitize" in os.environ.get("NATIVE_CFLAGS", ""), reason="a sanitizer adds its own")


@dataclass(frozen=True)
class Built:
    arch: str
    directory: Path


def read(*command: str | Path) -> str:
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout


def exports(library: Path) -> set[str]:
    return {line.split()[2] for line in read("nm", "-D", "--defined-only", library).splitlines()}


def names(table: str) -> set[str]:
    lines = (NATIVE / "names" / f"{table}.txt").read_text().splitlines()
    return {line.split()[0] for line in lines if not line.startswith("#")}


def test_two_builds_are_the_same(libraries: Libraries, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(NATIVE, tmp_path / "elsewhere"))
    subprocess.run([copy / "build.sh", tmp_path / "again"], check=True)
    for name in FILES:
        one, two = (hashlib.sha256((at / name).read_bytes()).hexdigest() for at in (libraries.shim, tmp_path / "again"))
        assert one == two


@pytest.fixture(scope="module", params=OLDEST)
def built(request: pytest.FixtureRequest, libraries: Libraries, tmp_path_factory: pytest.TempPathFactory) -> Built:
    if request.param == platform.machine():
        return Built(request.param, libraries.shim)
    if not shutil.which(f"{request.param}-linux-gnu-gcc"):
        pytest.skip(f"NOT TESTED: the interposer for {request.param}: {request.param}-linux-gnu-gcc is not installed")
    out = tmp_path_factory.mktemp(request.param)
    subprocess.run([NATIVE / "build.sh", out, request.param], check=True)
    return Built(request.param, out)


@pytest.mark.parametrize("library", LIBRARIES)
class TestEach:
    def test_needs_no_libc_newer_than_the_oldest(self, built: Built, library: str) -> None:
        symbols = read("readelf", "--dyn-syms", "-W", built.directory / library)
        assert set(re.findall(r" UND \w+@(\S+)", symbols)) == {OLDEST[built.arch]}
        assert re.findall(r"\w+_chk\b", symbols) == []
        needed = re.findall(r"NEEDED.*\[(.+)\]", read("readelf", "-dW", built.directory / library))
        assert set(needed) == {"libdl.so.2", "libc.so.6"}

    def test_runs_nothing_when_it_is_loaded(self, built: Built, library: str) -> None:
        dynamic = read("readelf", "-dW", built.directory / library)
        assert re.findall(r"\((INIT|FINI|INIT_ARRAY|FINI_ARRAY|PREINIT_ARRAY|TEXTREL|RPATH|RUNPATH)\)", dynamic) == []
        assert f"soname: [{library}]" in dynamic

    def test_exports_what_the_driver_does_and_nothing_else(self, built: Built, library: str) -> None:
        assert exports(built.directory / library) == names(LIBRARIES[library])

    def test_has_no_executable_stack(self, built: Built, library: str) -> None:
        assert re.findall(r"GNU_STACK.* (RW) ", read("readelf", "-lW", built.directory / library)) == ["RW"]


def test_the_hook_loads_nothing(built: Built) -> None:
    assert "INTERP" not in read("readelf", "-lW", built.directory / "ldcache")
    assert "NEEDED" not in read("readelf", "-dW", built.directory / "ldcache")


def test_every_export_of_the_simulated_driver_is_there(libraries: Libraries) -> None:
    assert exports(libraries.driver / "libcuda.so.1") <= exports(libraries.shim / "libcuda.so.1")
    assert exports(libraries.driver / "libnvidia-ml.so.1") <= exports(libraries.shim / "libnvidia-ml.so.1")
    functions, _ = sim.cuda.exports()
    assert {request.export for request in sim.cuda.requests()} <= set(functions)


def test_names_are_in_the_order_in_which_they_are_looked_for() -> None:
    rows = [line.split() for line in (NATIVE / "names/cuda.txt").read_text().splitlines() if line[0] != "#"]
    functions = [row[0] for row in rows if row[1:2] != ["data"]]
    assert functions == sorted(functions)


def test_a_wrapper_of_no_known_export_does_not_build(tmp_path: Path) -> None:
    copy = Path(shutil.copytree(NATIVE, tmp_path / "native"))
    with (copy / "arrays.c").open("a") as source:
        source.write("\nHOOK(cuMemAlloc_v9)(void) { return 0; }\n")
    built = subprocess.run([copy / "build.sh", tmp_path / "out"], capture_output=True, text=True)
    assert built.returncode != 0
    assert "names/cuda.txt lacks what the sources wrap: cuMemAlloc_v9" in built.stderr


def test_a_compiler_that_is_missing_is_named(tmp_path: Path) -> None:
    environment = {**os.environ, "CC": "no-such-gcc -O2"}
    built = subprocess.run([NATIVE / "build.sh", tmp_path], env=environment, capture_output=True, text=True)
    assert built.returncode == 1
    assert "no-such-gcc -O2 is not installed" in built.stderr


@pytest.mark.parametrize("arch", ["x86_64", "aarch64"])
def test_each_architecture_has_a_jump_for_every_export(arch: str, tmp_path: Path, hooks: set[str]) -> None:
    sources = sorted(path.name for path in NATIVE.glob("*.c") if path.name != "nvml.c")
    subprocess.run(
        ["python3", NATIVE / "generate.py", "names/cuda.txt", arch, tmp_path, *sources], cwd=NATIVE, check=True
    )
    text = (tmp_path / "stubs.S").read_text()
    stubs = set(re.findall(r"\.globl (cu\w+)", text))
    assert stubs | hooks == names("cuda")
    assert stubs & hooks == set()


@pytest.mark.parametrize("arch", OLDEST)
def test_arguments_survive_lookup_and_flush_of_a_function(arch: str, tmp_path: Path) -> None:
    foreign = arch != platform.machine()
    compiler, runner = (f"{arch}-linux-gnu-gcc", [f"qemu-{arch}"]) if foreign else ("gcc", [])
    if lacking := [each for each in (compiler, *runner) if not shutil.which(each)]:
        pytest.skip(f"NOT TESTED: the assembly for {arch}: {', '.join(lacking)} not installed")
    (tmp_path / "names").write_text("cuMemcpy tells\n")
    source = Path(__file__).with_name("stubs.c")
    subprocess.run(["python3", NATIVE / "generate.py", tmp_path / "names", arch, tmp_path], check=True)
    built = [compiler, "-O2", "-static", "-o", tmp_path / "stubs", source, tmp_path / "stubs.S"]
    subprocess.run(built, check=True)
    arrived = str(1 + 4 + 9 + 16 + 25 + 36 + 49 + 64 + 81 + 1000 + 20000)
    shown = read(*runner, tmp_path / "stubs").splitlines()
    assert shown == ["found 0 2.5", arrived, "told 2", arrived, "told 3", arrived, arrived]


def test_the_cuda_library_does_not_know_nvml(libraries: Libraries) -> None:
    assert "nvml" not in read("strings", libraries.shim / "libcuda.so.1").lower()


WRAPPED = re.compile(
    r"cu(GetProcAddress|DeviceTotalMem|MemGetInfo"
    r"|Mem(Alloc|Free)(?!Host)|Mem(Create|Release|Map|Unmap|RetainAllocationHandle)(?!Array)"
    r"|MemPool(Create|Destroy|TrimTo|SetAttribute)|(Mipmapped)?Array(3D)?(Create|Destroy)"
    r"|GraphAdd(MemAlloc)?Node|Graph(Upload|Launch|InstantiateWithParams)|DeviceGraphMemTrim|Launch(?!HostFunc)"
    r"|(Green|GL|VDPAU)?Ctx(Create|Destroy|Attach|Detach)|DevicePrimaryCtx(Retain|Release|Reset))(?![a-z])"
)


def test_every_version_of_memory_and_launch_calls_is_wrapped(hooks: set[str]) -> None:
    """A new driver's names fail here where one of them is a new version of these."""
    assert {name for name in names("cuda") if WRAPPED.match(name)} - hooks == set()
