# SPDX-License-Identifier: Apache-2.0
"""However a program asks for a driver function, it gets the interposer's, and the driver's where there is none."""

from __future__ import annotations

import ctypes
import os
import subprocess
import sys
from pathlib import Path

import pytest

import sim.cuda
from kube_accel.enforce import elf
from native.conftest import ROOT, Container, marked

ASK = """
import sim.cuda
shim, real = CDLL("libcuda.so.1"), CDLL(os.environ["KUBE_ACCEL_DRIVER"] + "/libcuda.so.1")
def address(library, name):
    return cast(getattr(library, name), c_void_p).value
def ask(call, name, version, flags):
    found, status = c_void_p(), c_int(-1)
    last = [byref(status)] if call.endswith("v2") else []
    code = getattr(shim, call)(name.encode(), byref(found), version, c_uint64(flags), *last)
    return code, found.value, status.value
hooks = set(os.environ["HOOKS"].split())
"""


@pytest.mark.parametrize("call", ["cuGetProcAddress", "cuGetProcAddress_v2"])
def test_what_a_cuda_13_runtime_asks_for_at_start(container: Container, hooks: set[str], call: str) -> None:
    code = f"""
for request in sim.cuda.requests():
    wanted = address(shim if request.export in hooks else real, request.export)
    code, found, _ = ask({call!r}, request.name, request.version, request.flags)
    if (code, found) != (0, wanted):
        print(request.name, request.version, request.flags, code)
print(len(sim.cuda.requests()))
"""
    assert container.words(ASK + code, HOOKS=" ".join(hooks | marked())) == [str(len(sim.cuda.requests()))]
    assert len(sim.cuda.requests()) >= 439


@pytest.mark.attack
def test_an_address_that_is_no_export_is_swapped_by_its_name(container: Container, hooks: set[str]) -> None:
    code = """
kept = 0
for request in sim.cuda.requests():
    code, found, _ = ask("cuGetProcAddress_v2", request.name, request.version, request.flags)
    if request.export in hooks and found != address(shim, request.export):
        print(request.name, request.version, request.flags, request.export)
    kept += request.export not in hooks and found not in (address(shim, request.export), address(real, request.export))
print(kept)
"""
    wrapped = hooks | marked()
    kept = sum(request.export not in wrapped for request in sim.cuda.requests())
    assert container.words(ASK + code, HOOKS=" ".join(wrapped), GPUSIM_THUNKS="1") == [str(kept)]


def test_unknown_newer_version_is_reported_and_not_wrapped(container: Container, tmp_path: Path) -> None:
    """Its parameters may be others."""
    newer = tmp_path / "newer"
    newer.mkdir()
    source = tmp_path / "newer.c"
    source.write_text(
        "int cuMemAlloc_v2(void) { return 2; } int cuMemAlloc_v9(void) { return 9; }"
        "int cuGetProcAddress_v2(const char *name, void **function) { *function = cuMemAlloc_v9; return 0; }"
    )
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", newer / "libcuda.so.1", source], check=True)
    code = """
found = c_void_p()
d.ok("cuGetProcAddress_v2", b"cuMemAlloc", byref(found), 14000, c_uint64(0), None)
print(CFUNCTYPE(c_int)(found.value)())
"""
    out, err = container.both(code, KUBE_ACCEL_DRIVER=str(newer))
    assert out.split() == ["9"]
    assert err.startswith("kube-accel: cuMemAlloc_v9 is newer than this interposer, which does not limit it")


@pytest.mark.attack
def test_a_pointer_the_driver_gives_is_limited(container: Container) -> None:
    code = """
d.open()
def found(name, version, flags=0):
    return ask("cuGetProcAddress_v2", name, version, flags)[1]
resolve = CFUNCTYPE(c_int, c_char_p, c_void_p, c_int, c_uint64, c_void_p)(found("cuGetProcAddress", 12000))
again, p = c_void_p(), c_uint64()
print(resolve(b"cuMemAlloc", addressof(again), 3020, 0, None), again.value == address(shim, "cuMemAlloc_v2"))
print(CFUNCTYPE(c_int, c_void_p, c_size_t)(again.value)(addressof(p), 5 * GIB))
for flags in 0, 1, 2:
    on_stream = CFUNCTYPE(c_int, c_void_p, c_size_t, c_void_p)(found("cuMemAllocAsync", 11020, flags))
    print(on_stream(addressof(p), 5 * GIB, None))
print(found("cuMemAllocAsync", 11020, 0) != found("cuMemAllocAsync", 11020, 2))
"""
    assert container.words(ASK + code, HOOKS="") == ["0", "True", "2", "2", "2", "2", "True"]


@pytest.mark.attack
@pytest.mark.parametrize("name", ["cuMemAlloc_v2", "", "cuNever", "x" * 5000])
def test_what_the_driver_does_not_know_is_passed_on(container: Container, name: str) -> None:
    code = f"""
print(*ask("cuGetProcAddress_v2", {name!r}, 13000, 0), d("cuGetProcAddress_v2", None, None, 0, c_uint64(0), None))
"""
    assert container.words(ASK + code, HOOKS="")[:3] == ["0", "None", "1"]


@pytest.mark.attack
def test_threads_that_ask_at_once_get_the_same(container: Container) -> None:
    code = """
import threading
start, got = threading.Barrier(8), []
def work():
    start.wait()
    got.append(tuple(ask("cuGetProcAddress_v2", r.name, r.version, r.flags)[1] for r in sim.cuda.requests()))
threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
print(len(got), len(set(got)))
"""
    assert container.words(ASK + code, HOOKS="") == ["8", "1"]


LOADER = """
#include <dlfcn.h>
#include <stdio.h>
int cuInit(unsigned), cuDevicePrimaryCtxRetain(void **, int), cuCtxSetCurrent(void *);
int cuMemAlloc_v2(unsigned long long *, unsigned long);
#ifdef LINKED
#define GET(name) name
#else
#define GET(name) ((__typeof__(&name))dlsym(library, #name))
#endif
int main(int argc, char **argv) {
    void *library = argc > 1 ? dlopen(argv[1], RTLD_NOW) : NULL, *context;
    unsigned long long pointer;
    if (argc > 1 && !library) return 9;
    GET(cuInit)(0);
    GET(cuDevicePrimaryCtxRetain)(&context, 0);
    GET(cuCtxSetCurrent)(context);
    int refused = GET(cuMemAlloc_v2)(&pointer, 5ul << 30);
    printf("%d %d\\n", refused, GET(cuMemAlloc_v2)(&pointer, 1ul << 30));
    return 0;
}
"""


@pytest.mark.attack
class TestLoading:
    def program(self, tmp_path: Path, *flags: str | Path) -> Path:
        source, binary = tmp_path / "program.c", tmp_path / "program"
        source.write_text(LOADER)
        subprocess.run(["gcc", "-o", binary, source, *flags, "-ldl"], check=True)
        return binary

    def answer(self, container: Container, *command: str | Path) -> str:
        return subprocess.run(command, env=container.environment, check=True, capture_output=True, text=True).stdout

    def test_by_its_name(self, container: Container, tmp_path: Path) -> None:
        assert self.answer(container, self.program(tmp_path), "libcuda.so.1") == "2 0\n"

    def test_by_the_name_without_version(self, container: Container, tmp_path: Path) -> None:
        assert self.answer(container, self.program(tmp_path), "libcuda.so") == "2 0\n"

    def test_by_its_path(self, container: Container, tmp_path: Path) -> None:
        assert self.answer(container, self.program(tmp_path), container.public / "libcuda.so.1") == "2 0\n"

    def test_as_a_library_the_program_was_linked_with(self, container: Container, tmp_path: Path) -> None:
        linked = self.program(tmp_path, "-DLINKED", container.public / "libcuda.so.1")
        assert "libcuda.so.1" in subprocess.run(["readelf", "-d", linked], capture_output=True, text=True).stdout
        assert self.answer(container, linked) == "2 0\n"

    def test_before_the_program_s_own_start(self, container: Container) -> None:
        code = "import ctypes; ctypes.CDLL('libcuda.so.1').cuInit(0); print('up')"
        environment = {
            **container.environment,
            "LD_BIND_NOW": "1",
            "LD_PRELOAD": str(container.public / "libcuda.so.1"),
        }
        shown = subprocess.run([sys.executable, "-S", "-c", code], env=environment, capture_output=True, text=True)
        assert (shown.stdout, shown.stderr) == ("up\n", "")


class TestDriver:
    def test_lacks_a_function(self, container: Container, tmp_path: Path) -> None:
        old = tmp_path / "old"
        old.mkdir()
        source = tmp_path / "old.c"
        source.write_text("int cuInit(unsigned flags) { return (int)flags; }")
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", old / "libcuda.so.1", source], check=True)
        code = "print(d('cuInit', 7), d('cuMemcpyBatchAsync'), take(1), d('cuMemGetInfo_v2', None, None))"
        assert container.words(code, KUBE_ACCEL_DRIVER=str(old)) == ["7", "801", "801", "801"]

    @pytest.mark.parametrize("style", ["gnu", "sysv", "both"])
    def test_lacks_a_function_whichever_way_programs_look_for_it(
        self, container: Container, tmp_path: Path, style: str
    ) -> None:
        """A driver of CUDA 11 has no cuGetProcAddress_v2: by that a runtime sees that it is too old, and says so."""
        old = tmp_path / "old"
        old.mkdir()
        shim = container.libraries.shim
        for library, functions in {
            "libcuda.so.1": ("cuInit", "cuGetProcAddress", "cuMemAlloc_v2"),
            "libnvidia-ml.so.1": ("nvmlInit_v2", "nvmlDeviceGetComputeRunningProcesses_v2"),
        }.items():
            source = tmp_path / f"{library}.c"
            source.write_text("".join(f"int {name}(int given) {{ return given; }}\n" for name in functions))
            flags = ["-shared", "-fPIC", f"-Wl,--hash-style={style}"]
            subprocess.run(["gcc", *flags, "-o", old / library, source], check=True)
            lacked = elf.exports((shim / library).read_bytes()) - elf.exports((old / library).read_bytes())
            fitted = elf.without((shim / library).read_bytes(), lacked)
            assert elf.exports(fitted) == set(functions)
            (container.public / library).unlink()
            (container.public / library).write_bytes(fitted)
        code = """
cuda, nvml = CDLL("libcuda.so.1"), CDLL("libnvidia-ml.so.1")
print(*(hasattr(cuda, name) for name in ("cuGetProcAddress_v2", "cuGetProcAddress", "cuMemCreate", "cuMemAlloc_v2")))
print(*(hasattr(nvml, f"nvmlDeviceGetComputeRunningProcesses{version}") for version in ("", "_v2", "_v3")))
print(cuda.cuInit(7), nvml.nvmlInit_v2(8))
"""
        wanted = ["False", "True", "False", "True", "False", "True", "False", "7", "8"]
        assert container.words(code, KUBE_ACCEL_DRIVER=str(old)) == wanted

    def test_is_not_there(self, container: Container, tmp_path: Path) -> None:
        out, err = container.both(
            "print(d('cuInit', 0), take(1), d('cuStreamCreate'))", KUBE_ACCEL_DRIVER=str(tmp_path)
        )
        assert out.split() == ["100", "100", "100"]
        assert err.startswith(f"kube-accel: the driver's library cannot be loaded: {tmp_path}/libcuda.so.1")
        assert err.count("\n") == 1

    @pytest.mark.attack
    def test_is_the_interposer_itself(self, container: Container) -> None:
        out, err = container.both("print(d('cuInit', 0))", KUBE_ACCEL_DRIVER=str(container.public))
        assert out.split() == ["100"]
        assert err == f"kube-accel: {container.public}/libcuda.so.1 is this library, not the driver's\n"

    def test_arguments_of_every_kind_arrive(self, container: Container, tmp_path: Path) -> None:
        """The first call of a function goes through the resolver, which has to keep them."""
        echo = tmp_path / "echo"
        echo.mkdir()
        source = tmp_path / "echo.c"
        source.write_text(
            "int cuProfilerStart(long a, long b, long c, long d, long e, long f, long g, double x, double y)"
            "{ return (int)(a + 2*b + 3*c + 4*d + 5*e + 6*f + 7*g + 1000*x + 10000*y); }"
        )
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", echo / "libcuda.so.1", source], check=True)
        arguments = "*(c_long(n) for n in range(1, 8)), c_double(1.0), c_double(2.0)"
        code = f"print(d('cuProfilerStart', {arguments}), d('cuProfilerStart', {arguments}))"
        assert container.words(code, KUBE_ACCEL_DRIVER=str(echo)) == ["21140", "21140"]


def test_variables_a_debugger_looks_for_are_there(container: Container) -> None:
    names = sim.cuda.exports()[1]
    assert len(names) > 20
    library = ctypes.CDLL(str(container.public / "libcuda.so.1"))
    for name in names:
        assert ctypes.c_uint64.in_dll(library, name).value == 0


PUBLIC = """
set -e
root=$1; shift
mount --make-rprivate /
mkdir -p $root/lib/kube-accel/driver $root/etc/kube-accel
cp $DRIVER/libcuda.so.1 $DRIVER/libnvidia-ml.so.1 $root/lib/kube-accel/driver/
cp $DRIVER/libcuda.so.1 $root/lib/libcuda.so.580.95; cp $DRIVER/libnvidia-ml.so.1 $root/lib/
for name in libcuda.so libcuda.so.1; do cp $DRIVER/libcuda.so.1 $root/lib/$name; done
cp $KUBE_ACCEL_POLICY $root/etc/kube-accel/policy
mount -t overlay overlay -o lowerdir=$root/lib:/usr/lib /usr/lib
mount -t overlay overlay -o lowerdir=$root/etc:/etc /etc
mount -t tmpfs tmpfs /run
mkdir /run/kube-accel
touch /run/kube-accel/state
mount --bind $KUBE_ACCEL_STATE /run/kube-accel/state
for name in libcuda.so libcuda.so.1 libcuda.so.580.95; do mount --bind $SHIM/libcuda.so.1 /usr/lib/$name; done
mount --bind $SHIM/libnvidia-ml.so.1 /usr/lib/libnvidia-ml.so.1
exec "$@"
"""


class TestPublicNames:
    """The files mounted where a container has them, fixed paths and all, in a mount namespace."""

    @pytest.fixture
    def inside(self, container: Container, tmp_path: Path) -> list[str]:
        """The command before a command that runs it there, with GPUSIM_FILE as its only environment."""
        mounted = tmp_path / "mounted"
        mounted.mkdir()
        start = ["unshare", *([] if os.getuid() == 0 else ["--map-root-user"]), "--mount", "sh", "-c", PUBLIC, "sh"]
        own = [f"SHIM={container.libraries.shim}", f"DRIVER={container.libraries.driver}"]
        own += [f"KUBE_ACCEL_POLICY={container.policy}", f"KUBE_ACCEL_STATE={container.state}"]
        command = ["env", *own, *start, str(mounted), "env", "-i", f"GPUSIM_FILE={container.gpus}"]
        probe = subprocess.run([*command, "/bin/true"], capture_output=True, text=True)
        if probe.returncode != 0:
            pytest.skip(f"NOT TESTED: the interposer at its public paths: no mounts here: {probe.stderr.strip()}")
        return command

    @pytest.mark.attack
    @pytest.mark.parametrize(
        "environment",
        [
            [],
            ["LD_PRELOAD=", "LD_LIBRARY_PATH=/usr/lib"],
            ["KUBE_ACCEL_POLICY=/dev/null", "KUBE_ACCEL_STATE=/dev/null"],
            ["KUBE_ACCEL_DRIVER=/nowhere"],
            ["CUDA_VISIBLE_DEVICES=0", "CUDA_DISABLE_CONTROL=true", "NVIDIA_VISIBLE_DEVICES=all"],
        ],
        ids=["env -i", "library path", "other files", "other driver", "switches of others"],
    )
    @pytest.mark.parametrize(
        "library", ["libcuda.so.1", "libcuda.so", "/usr/lib/libcuda.so.1", "/usr/lib/libcuda.so.580.95"]
    )
    def test_no_environment_and_no_name_gets_around_the_limit(
        self, inside: list[str], tmp_path: Path, library: str, environment: list[str]
    ) -> None:
        program = TestLoading().program(tmp_path)
        shown = subprocess.run([*inside, *environment, program, library], capture_output=True, text=True)
        assert (shown.stdout, shown.stderr) == ("2 0\n", "")

    def test_nvidia_smi_shows_the_share(self, inside: list[str]) -> None:
        smi = [sys.executable, "-m", "sim.nvml.nvidia_smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
        shown = subprocess.run([*inside, f"PYTHONPATH={ROOT / 'tests'}", *smi], capture_output=True, text=True)
        assert shown.stdout.splitlines()[0] == "4096", shown.stderr
