# SPDX-License-Identifier: Apache-2.0
"""A tenant with the shipped interposer where the plugin mounts it: ways around it, its environment, misuse of its API.

Against whom it is no help, docs/explanation/isolation.md says: no test here loads the driver by its private path.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from attacks.conftest import Attacked, Tenant, needs_root

pytestmark = [pytest.mark.attack, needs_root]

TRIES = """
from ctypes import *
GIB = 1 << 30
def take(library, size=5 * GIB, name="cuMemAlloc_v2"):
    return getattr(library, name)(byref(c_uint64()), c_size_t(size))
def up(library):
    context = c_void_p()
    library.cuInit(0), library.cuDevicePrimaryCtxRetain(byref(context), 0), library.cuCtxSetCurrent(context)
    return library
def tries(library):
    up(library)
    print(take(library), take(library, GIB))
"""
OPENED = "tries(CDLL({!r}))"
PLAIN = TRIES + OPENED.format("libcuda.so.1")
LOADERS = {
    "by its name": OPENED.format("libcuda.so.1"),
    "without its version": OPENED.format("libcuda.so"),
    "by its path": OPENED.format(f"/usr/lib/{os.uname().machine}-linux-gnu/libcuda.so.1"),
    "by a path of another distribution": OPENED.format("/usr/lib64/libcuda.so"),
    "by a path with detours": OPENED.format("/proc/self/root/usr/lib64/../lib64/libcuda.so.1"),
    "by the driver's version": "import glob; tries(CDLL(glob.glob('/usr/lib64/libcuda.so.*.*')[0]))",
    "by a descriptor": "tries(CDLL(f'/proc/self/fd/{os.open(\"/usr/lib64/libcuda.so.1\", os.O_RDONLY)}'))",
    "by a link": "os.symlink('/usr/lib64/libcuda.so.1', 'driver.so'); tries(CDLL('./driver.so'))",
    "by a copy": (
        "import shutil; shutil.copyfile('/usr/lib64/libcuda.so.1', 'libcuda.so.580'); tries(CDLL('./libcuda.so.580'))"
    ),
    "bound to itself": "tries(CDLL('libcuda.so.1', mode=os.RTLD_NOW | os.RTLD_GLOBAL | os.RTLD_DEEPBIND))",
    "in a namespace of the loader": """
libc = CDLL(None)
libc.dlmopen.restype = c_void_p
handle = libc.dlmopen(c_long(-1), b"libcuda.so.1", os.RTLD_NOW)
assert handle, string_at(c_char_p(libc.dlerror()))
tries(CDLL("libcuda.so.1", handle=handle))
""",
    "twice": "up(CDLL('libcuda.so.1')); tries(CDLL('/usr/lib64/libcuda.so'))",
    "after a fork": "pid = os.fork() or tries(CDLL('libcuda.so.1')); pid and os.waitpid(pid, 0)",
    "in another program": (
        "up(CDLL('libcuda.so.1')); os.execv(sys.executable, [sys.executable, '-c', os.environ['AGAIN']])"
    ),
}
ENVIRONMENTS = {
    "none": {},
    "emptied": {"LD_PRELOAD": "", "LD_LIBRARY_PATH": ""},
    "library path": {"LD_LIBRARY_PATH": "/usr/lib/kube-accel:/usr/lib64:/nowhere"},
    "preloaded": {"LD_PRELOAD": "libcuda.so.1", "LD_BIND_NOW": "1"},
    "preloaded rubbish": {"LD_PRELOAD": "/nowhere/libcuda.so.1:/etc/passwd"},
    "audited": {"LD_AUDIT": "libcuda.so.1"},
    "its own switches": {
        "KUBE_ACCEL_POLICY": "/dev/null",
        "KUBE_ACCEL_STATE": "/dev/zero",
        "KUBE_ACCEL_DRIVER": "/nowhere",
    },
    "switches of others": {
        "CUDA_DISABLE_CONTROL": "true",
        "CUDA_DEVICE_MEMORY_LIMIT": "0",
        "CUDA_VISIBLE_DEVICES": "0",
        "NVIDIA_VISIBLE_DEVICES": "all",
    },
    "huge": {"KUBE_ACCEL_POLICY": "x" * 50_000, "LD_LIBRARY_PATH": "/x:" * 20_000},
}
RESOLVED = """
library, answers = up(CDLL("libcuda.so.1")), set()
assert take(library, 4 * GIB) == 0
for call in "cuGetProcAddress", "cuGetProcAddress_v2":
    for name in b"cuMemAlloc", b"cuMemAllocAsync", b"cuMemAllocManaged", b"cuMemAllocPitch":
        for version in 0, 3020, 11020, 12000, 13000, 2147483647, -1:
            for flags in 0, 1, 2, 3:
                found, pointer, pitch = c_void_p(), c_uint64(), c_size_t()
                last = [None] if call.endswith("v2") else []
                code = getattr(library, call)(name, byref(found), version, c_uint64(flags), *last)
                if code != 0 or not found.value:
                    continue
                arguments = [byref(pointer), c_size_t(GIB), c_uint64(name == b"cuMemAllocManaged")]
                if name == b"cuMemAllocPitch":
                    arguments = [byref(pointer), byref(pitch), c_size_t(1 << 12), c_size_t(1 << 12), c_uint(4)]
                answer = CFUNCTYPE(c_int)(found.value)(*arguments)
                answers.add(f"{name.decode()}={answer}")
print(*sorted(answers))
"""
MISUSES = {
    "senseless sizes": """
for size in 0, 1 << 31, (1 << 32) - 1, 1 << 48, (1 << 63) - 1, 1 << 63, (1 << 64) - 1:
    for name in "cuMemAlloc_v2", "cuMemAllocAsync", "cuMemAllocManaged":
        last = {"cuMemAllocAsync": [None], "cuMemAllocManaged": [c_uint(1)]}.get(name, [])
        code = getattr(library, name)(byref(pointer), c_size_t(size), *last)
        assert size in (1 << 31, (1 << 32) - 1) or code != 0, (name, size)
        library.cuMemFree_v2(pointer) if code == 0 else None
        library.cuCtxSynchronize()
""",
    "sizes that overflow": """
for width in 1 << 31, 1 << 32, (1 << 63) + 1, (1 << 64) - 1:
    for height in 1 << 33, 1 << 63, (1 << 64) - 1:
        pitch = byref(c_size_t())
        assert library.cuMemAllocPitch_v2(byref(pointer), pitch, c_size_t(width), c_size_t(height), c_uint(4)) != 0
        sides = (c_uint64 * 5)(width, height, (1 << 64) - 1, 0x20 | 4 << 32, 0)
        assert library.cuArrayCreate_v2(byref(pointer), (c_uint64 * 3)(width, height, 0x20 | 4 << 32)) != 0
        assert library.cuArray3DCreate_v2(byref(pointer), sides) != 0
        assert library.cuMipmappedArrayCreate(byref(pointer), sides, c_uint((1 << 32) - 1)) != 0
""",
    "no place for an answer": """
assert library.cuMemAlloc_v2(None, c_size_t(GIB)) != 0
assert library.cuMemAllocAsync(None, c_size_t(GIB), None) != 0
assert library.cuMemAllocManaged(None, c_size_t(GIB), c_uint(1)) != 0
assert library.cuMemAllocPitch_v2(None, None, c_size_t(GIB), c_size_t(1), c_uint(4)) != 0
assert library.cuMemCreate(None, c_size_t(GIB), None, c_uint64(0)) != 0
assert library.cuArrayCreate_v2(None, None) != 0
assert library.cuGetProcAddress_v2(None, None, 0, c_uint64(0), None) != 0
assert library.cuDeviceTotalMem_v2(None, 0) != 0
""",
    "freed twice": """
for name, free in ("cuMemAlloc_v2", "cuMemFree_v2"), ("cuMemAllocManaged", "cuMemFree_v2"):
    assert getattr(library, name)(byref(pointer), c_size_t(GIB), c_uint(1)) == 0
    answers = [getattr(library, free)(pointer) for _ in range(4)]
    assert answers[0] == 0 and 0 not in answers[1:], answers
""",
    "freed elsewhere": """
assert library.cuMemAlloc_v2(byref(pointer), c_size_t(2 * GIB)) == 0
for wrong in pointer.value + 1, pointer.value + GIB, 1, (1 << 64) - 1:
    assert library.cuMemFree_v2(c_uint64(wrong)) != 0
assert take(library, 2 * GIB) == 2
library.cuMemFree_v2(pointer)
""",
    "handles that are none": """
for handle in 0, 1, (1 << 64) - 1:
    assert library.cuMemRelease(c_uint64(handle)) != 0
    assert library.cuMemMap(c_uint64(1 << 40), c_size_t(GIB), c_size_t(0), c_uint64(handle), c_uint64(0)) != 0
    assert library.cuMemUnmap(c_uint64(handle), c_size_t(GIB)) != 0
""",
    "a handle released twice": """
handle, wishes = c_uint64(), (c_int * 8)(1, 0, 1, 0)
assert library.cuMemCreate(byref(handle), c_size_t(3 * GIB), wishes, c_uint64(0)) == 0
assert library.cuMemRelease(handle) == 0
assert library.cuMemRelease(handle) != 0
for wrong in (0, 0, 0, 0), (1, 0, 1, 77), (1, 0, 1, -1), (-1, -1, -1, -1):
    code = library.cuMemCreate(byref(handle), c_size_t(5 * GIB), (c_int * 8)(*wrong), c_uint64(0))
    assert code != 0, wrong
""",
    "contexts let go too often": """
for _ in range(8):
    library.cuDevicePrimaryCtxRelease_v2(0)
library.cuDevicePrimaryCtxReset_v2(0)
assert take(up(library), GIB) == 0
""",
    "ordinals that are none": """
for ordinal in -1, 1, 77, 2147483647, -2147483648:
    assert library.cuDeviceTotalMem_v2(byref(pointer), ordinal) != 0
    assert library.cuDevicePrimaryCtxRetain(byref(pointer), ordinal) != 0
    assert library.cuDeviceGet(byref(c_int()), ordinal) != 0
""",
    "many threads that end in the middle": """
import threading
context = c_void_p()
library.cuCtxGetCurrent(byref(context))
def work():
    library.cuCtxSetCurrent(context)
    for _ in range(200):
        mine = c_uint64()
        if library.cuMemAlloc_v2(byref(mine), c_size_t(GIB)) == 0:
            library.cuMemFree_v2(mine)
            library.cuMemFree_v2(mine)
threads = [threading.Thread(target=work) for _ in range(8)]
for thread in threads: thread.start()
for thread in threads: thread.join()
""",
    "a child that was forked meanwhile": """
for _ in range(20):
    if os.fork() == 0:
        library.cuMemAlloc_v2(byref(pointer), c_size_t(GIB))
        os._exit(0)
    os.wait()
""",
}
HOLDS = "library, pointer = up(CDLL('libcuda.so.1')), c_uint64()\nassert take(library, GIB) == 0\n"
LEFT = "print(take(library, 5 * GIB), take(library, 3 * GIB), take(library, GIB))"


@pytest.fixture(scope="module")
def tenant(node: Attacked) -> Tenant:
    """A tenant with 4 GiB of a GPU."""
    return node.start("tenant", cores=30, gib=4)


@pytest.mark.parametrize("code", LOADERS.values(), ids=LOADERS)
def test_no_way_to_load_the_driver_gets_around_a_limit(tenant: Tenant, tmp_path: Path, code: str) -> None:
    assert tenant.run("os.chdir(sys.argv[1])\n" + TRIES + code, tmp_path, AGAIN=PLAIN) == "2 0\n"


@pytest.mark.parametrize("environment", ENVIRONMENTS.values(), ids=ENVIRONMENTS)
def test_no_environment_gets_around_a_limit(tenant: Tenant, environment: dict[str, str]) -> None:
    code = """
gpus = {name: value for name, value in os.environ.items() if name.startswith("GPUSIM_")}
done = subprocess.run([sys.executable, "-c", sys.argv[1]], env=gpus | json.loads(sys.argv[2]), capture_output=True)
print(done.stdout.decode() if done.returncode == 0 else "does not start")
"""
    ends = ["2 0"]
    if "LD_AUDIT" in environment:
        ends.append("does not start")  # glibc ends it: the library is none for auditors
    assert tenant.run(code, PLAIN, json.dumps(environment)).strip() in ends


def test_no_question_for_a_function_gets_around_a_limit(tenant: Tenant) -> None:
    names = ("cuMemAlloc", "cuMemAllocAsync", "cuMemAllocManaged", "cuMemAllocPitch")
    assert tenant.run(TRIES + RESOLVED).split() == [f"{name}=2" for name in names]


@pytest.mark.parametrize("code", MISUSES.values(), ids=MISUSES)
def test_no_misuse_gives_more_or_ends_a_program(tenant: Tenant, code: str) -> None:
    assert tenant.run(TRIES + HOLDS + code + LEFT) == "2 0 2\n"
