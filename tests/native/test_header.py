# SPDX-License-Identifier: Apache-2.0
"""Everything NVIDIA's header declares was decided about: a newer header fails here until somebody decides."""

from __future__ import annotations

import functools
import importlib.metadata
import re
from pathlib import Path

import pytest

from native.conftest import NATIVE, Container, marked

VERSION = 13050
INVALID_VALUE = 1

PINNED, MANAGED = 1, 2
# By allocation type: what becomes of memory that is asked for at a place. `refused` is what no place is.
LOCATIONS = {
    "CU_MEM_LOCATION_TYPE_INVALID": (0, {PINNED: "refused", MANAGED: "charged"}),
    "CU_MEM_LOCATION_TYPE_NONE": (0, {PINNED: "refused", MANAGED: "charged"}),
    "CU_MEM_LOCATION_TYPE_DEVICE": (1, {PINNED: "charged", MANAGED: "charged"}),
    "CU_MEM_LOCATION_TYPE_HOST": (2, {PINNED: "free", MANAGED: "charged"}),
    "CU_MEM_LOCATION_TYPE_HOST_NUMA": (3, {PINNED: "free", MANAGED: "charged"}),
    "CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT": (4, {PINNED: "free", MANAGED: "charged"}),
    "CU_MEM_LOCATION_TYPE_INVISIBLE": (5, {PINNED: "refused", MANAGED: "refused"}),
    "CU_MEM_LOCATION_TYPE_DEVICE_LOCALITY_DOMAIN": (6, {PINNED: "charged", MANAGED: "charged"}),
    "CU_MEM_LOCATION_TYPE_MAX": (0x7FFFFFFF, {PINNED: "refused", MANAGED: "refused"}),
}
ALLOCATIONS = {"INVALID": 0, "PINNED": 1, "MANAGED": 2, "MAX": 0x7FFFFFFF}
HANDLES = {"NONE": 0, "POSIX_FILE_DESCRIPTOR": 1, "WIN32": 2, "WIN32_KMT": 4, "FABRIC": 8, "MAX": 0x7FFFFFFF}
CREATE_USAGES = {"TILE_POOL": 1, "HW_DECOMPRESS": 2, "GPU_DIRECT_RDMA_OVER_PCIE": 4}
POOL_USAGES = {"HW_DECOMPRESS": 2}
ARRAY_FLAGS = {"LAYERED": 1, "2DARRAY": 1, "SURFACE_LDST": 2, "CUBEMAP": 4, "TEXTURE_GATHER": 8, "DEPTH_TEXTURE": 0x10}
ARRAY_FLAGS |= {"COLOR_ATTACHMENT": 0x20, "SPARSE": 0x40, "DEFERRED_MAPPING": 0x80, "VIDEO_ENCODE_DECODE": 0x100}
FORMATS = [1, 2, 3, 8, 9, 0xA, 0x10, 0x20, *range(0x50, 0x5F), *range(0x91, 0xA0), *range(0xA1, 0xAA)]
FORMATS += [*range(0xB0, 0xB6), *range(0xC0, 0xCC)]
NODES = {0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 16, 17, 18}  # of these 10 alone takes memory

# Functions with a stream that neither give it work nor tell how far it is.
STREAM_ONLY = re.compile(
    r"cuStream(Get\w+|SetAttribute|CopyAttributes|IsCapturing|UpdateCaptureDependencies(_v2)?)(_ptsz)?$"
    r"|cuMem(Alloc(FromPool)?|Free)Async$"  # stream-ordered: there is nothing to wait for
)
# Functions that answer with what could be memory and take none of the GPU's: they look, lend, or it is the host's.
TAKES_NONE = re.compile(
    r"cuMem(AddressReserve|AllocHost|HostAlloc|HostGetDevicePointer|HostGetFlags|GetAddressRange"
    r"|ImportFromShareableHandle|PoolImportPointer|RangeGet\w+)(_v2)?$"
    r"|cuIpcOpenMemHandle(_v2)?$|cuMulticastCreate$"
    r"|cu(Module|Library)Get(Global|Managed)(_v2)?$|cuTexRefGet\w+$|cuSurfRefGetArray$"
    r"|cu(ExternalMemoryGetMapped(Buffer|MipmappedArray)|MipmappedArrayGetLevel|ArrayGetPlane)$"
    r"|cuGraphics(ResourceGetMapped(Pointer(_v2)?|MipmappedArray)|SubResourceGetMappedArray)$"
    r"|cuGraphMemFreeNodeGetParams$|cuMem(cpy|Discard|Prefetch|DiscardAndPrefetch)BatchAsync(_v2)?(_ptsz)?$"
)


@functools.cache
def header() -> str:
    """The text of cuda.h without comments, from the package that requirements-dev.txt pins."""
    package = importlib.metadata.distribution("nvidia-cuda-runtime")
    text = Path(str(package.locate_file("nvidia/cu13/include/cuda.h"))).read_text()
    return re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL)


def functions() -> dict[str, list[str]]:
    """The parameters of each function, of each of its declarations."""
    found: dict[str, list[str]] = {}
    for name, parameters in re.findall(r"CUresult\s+CUDAAPI\s+(\w+)\s*\(([^;]*?)\)\s*;", header()):
        found.setdefault(name, []).append(" ".join(parameters.split()))
    return found


def values(enum: str, prefix: str) -> dict[str, int]:
    """The names (without prefix) and values of an enumeration's members."""
    [body] = re.findall(rf"typedef enum {enum}_enum\s*\{{(.*?)\}}\s*{enum};", header(), re.DOTALL)
    return {name: int(value, 0) for name, value in re.findall(rf"{prefix}(\w+)\s*=\s*(\w+)", body)}


def macros(prefix: str) -> dict[str, int]:
    found = re.findall(rf"#define {prefix}(\w+)\s+(0x\w+)", header())
    return {name: int(value, 16) for name, value in found}


def names() -> set[str]:
    lines = (NATIVE / "names/cuda.txt").read_text().splitlines()
    return {line.split()[0] for line in lines if not line.startswith("#")}


def exports(functions_: set[str]) -> set[str]:
    """All exports that are one of these functions, of each version and for each kind of default stream."""
    plain = {re.sub(r"_(ptsz|ptds)$", "", name) for name in functions_}
    plain = {re.sub(r"_v\d$", "", name) for name in plain}
    return {name for name in names() if re.sub(r"(_v\d)?(_ptsz|_ptds)?$", "", name) in plain}


def test_the_header_is_the_one_that_was_decided_about() -> None:
    assert re.findall(r"#define CUDA_VERSION (\d+)", header()) == [str(VERSION)]
    assert values("CUmemLocationType", "") == {name: value for name, (value, _) in LOCATIONS.items()}
    assert values("CUmemAllocationType", "CU_MEM_ALLOCATION_TYPE_") == ALLOCATIONS
    assert values("CUmemAllocationHandleType", "CU_MEM_HANDLE_TYPE_") == HANDLES
    assert macros("CU_MEM_CREATE_USAGE_") == CREATE_USAGES
    assert macros("CU_MEM_POOL_CREATE_USAGE_") == POOL_USAGES
    assert macros("CUDA_ARRAY3D_") == ARRAY_FLAGS
    assert sorted(values("CUarray_format", "CU_AD_FORMAT_").values()) == [*sorted(FORMATS), 0x7FFFFFFF]
    assert set(values("CUgraphNodeType", "CU_GRAPH_NODE_TYPE_").values()) == NODES


def test_every_function_of_the_header_has_a_name_here() -> None:
    assert len(functions()) > 500
    renamed = re.findall(r"#\s*define\s+cu\w+\s+(?:__CUDA_API_PT[DS][SZ]\()?(cu[A-Z]\w+)", header())
    assert len(renamed) > 100
    # The header defines it for programs with a default stream a thread; the driver has no such export.
    assert (set(functions()) | set(renamed)) - names() == {"cuGetProcAddress_v2_ptsz"}


def test_every_function_with_a_stream_is_classified(hooks: set[str]) -> None:
    of_streams = {
        name for name, all_ in functions().items() if any(re.search(r"\bCUstream\b(?!\s*\*)", p) for p in all_)
    }
    assert len(of_streams) > 80
    assert {name for name in exports(of_streams) - hooks - marked() if not STREAM_ONLY.match(name)} == set()


@pytest.mark.parametrize("verb", ["Synchronize", "Query$", "Wait", "Memcpy", "Memset", "Unload", "Unmap", "Unregister"])
def test_every_function_whose_name_says_that_it_waits_tells(verb: str) -> None:
    saying = {name for name in functions() if re.search(verb, name)}
    assert saying
    not_of_work = re.compile(
        r"cuGraph(Add|Exec|Event|External|Mem(cpy|set))|cuEvent(Query|Synchronize)$"  # a recording has ended it all
        r"|cuLogicalEndpointQuery|cuDeviceUnregisterAsyncNotification|cuLogsUnregisterCallback"
    )
    assert {name for name in exports(saying) - marked() if not not_of_work.match(name)} == set()


def test_every_function_that_gives_out_memory_is_wrapped(hooks: set[str]) -> None:
    kinds = r"\b(CUdeviceptr(_v1)?|CUmemGenericAllocationHandle|CUmemoryPool|CUarray|CUmipmappedArray)\s*\*"
    giving = {
        name
        for name, all_ in functions().items()
        for parameters in all_
        if any(re.search(kinds, part) and "const" not in part for part in parameters.split(","))
    }
    assert len(giving) > 30
    assert {name for name in exports(giving) - hooks if not TAKES_NONE.match(name)} == set()


CREATE = """
d.open()
for kind, where in {asked}:
    properties = (c_int * 8)(kind, 0, where, 0)
    handle = c_uint64()
    before = used()
    code = d('cuMemCreate', byref(handle), n(1024), properties, c_uint64(0))
    print('charged' if used() - before == 1024 else 'refused' if code else 'free')
    if code == 0:
        d('cuMemRelease', handle)
"""
POOL = """
d.open()
for kind, where in {asked}:
    properties, pool, pointer = (c_int * 22)(kind, 0, where, 0), c_void_p(), c_uint64()
    before = used()
    code = d('cuMemPoolCreate', byref(pool), properties)
    code = code or d('cuMemAllocFromPoolAsync', byref(pointer), n(1024), pool, None)
    print('charged' if used() - before == 1024 else 'refused' if code else 'free')
    if code == 0:
        d('cuMemFreeAsync', pointer, None)
        d('cuMemPoolDestroy', pool)
"""
UNKNOWN = [7, 8, 99, -1, 0x7FFFFFFF]


def asked() -> dict[tuple[int, int], str]:
    """What becomes of memory, by allocation type and place."""
    known = {(kind, value): fate[kind] for value, fate in LOCATIONS.values() for kind in (PINNED, MANAGED)}
    return known | {(kind, where): "refused" for kind in (PINNED, MANAGED) for where in UNKNOWN}


@pytest.mark.attack
def test_memory_of_every_location_is_charged_or_refused(container: Container) -> None:
    told = container.words(CREATE.format(asked=list(asked())))
    # The driver has managed memory by pools alone, and none of such a handle where it is not on a device.
    wanted = {key: "refused" if key[0] == MANAGED and key[1] == 0 else fate for key, fate in asked().items()}
    assert {key: fate for key, fate in zip(wanted, told, strict=True) if key[0] == PINNED} == {
        key: fate for key, fate in wanted.items() if key[0] == PINNED
    }
    assert all(fate != "free" for (kind, _), fate in zip(wanted, told, strict=True) if kind == MANAGED)


@pytest.mark.attack
def test_pool_of_every_location_is_charged_or_refused(container: Container) -> None:
    told = dict(zip(asked(), container.words(POOL.format(asked=list(asked()))), strict=True))
    no_pool = {(PINNED, 4), (MANAGED, 4)}  # the driver has none of the current thread's node
    assert told == {key: "refused" if key in no_pool else fate for key, fate in asked().items()}


@pytest.mark.attack
def test_memory_of_unknown_kind_or_flag_is_refused(container: Container) -> None:
    code = """
d.open()
def ask(kind=1, handles=0, usage=0, flags=0):
    properties = (c_int * 8)(kind, handles, 1, 0, 0, 0, usage << 16)
    return d('cuMemCreate', byref(c_uint64()), n(2), properties, c_uint64(flags))
def pool(kind=1, handles=0, usage=0):
    return d('cuMemPoolCreate', byref(c_void_p()), (c_int * 22)(kind, handles, 1, 0, 0, 0, 0, 0, usage))
def array(format=0x20, flags=0):
    return d('cuArray3DCreate_v2', byref(c_void_p()), (c_uint64 * 5)(64, 64, 0, format | 1 << 32, flags))
print(ask(), ask(handles=9), ask(usage=7), *(ask(kind=kind) for kind in (0, 3, 99)))
print(ask(handles=16), ask(usage=8), ask(flags=1))
print(pool(), pool(usage=2), pool(kind=3), pool(handles=16), pool(usage=1))
print(array(), array(flags=2), array(format=0x21), array(format=0xcc), array(flags=0x200), used())
"""
    ok, bad = "0", str(INVALID_VALUE)
    wanted = [ok] * 3 + [bad] * 6 + [ok] * 2 + [bad] * 3 + [ok] * 2 + [bad] * 3
    assert container.words(code)[:-1] == wanted


@pytest.mark.attack
@pytest.mark.parametrize("where", [6, 0x106, 5, 7])
def test_graph_memory_of_a_part_of_a_device_is_the_devices(container: Container, where: int) -> None:
    code = f"""
d.open()
graph = d.value(c_void_p, 'cuGraphCreate', c_uint(0))
for size in 5 * GIB, GIB:
    parameters = (c_uint64 * 15)(1, {where})
    parameters[13] = size
    print(d('cuGraphAddMemAllocNode', byref(c_void_p()), c_void_p(graph), None, c_size_t(0), parameters))
"""
    assert container.words(code) == {6: ["2", "0"]}.get(where, [str(INVALID_VALUE)] * 2)


def test_a_locality_domain_is_the_device_it_is_of(container: Container) -> None:
    """Its number is in the byte after the device's."""
    code = """
d.open()
for where in 0, 1, 77:
    properties = (c_int * 8)(1, 0, 6, where)
    print(d('cuMemCreate', byref(c_uint64()), n(8192), properties, c_uint64(0)), used())
print(d('cuMemCreate', byref(c_uint64()), n(1024), (c_int * 8)(1, 0, 6, 0), c_uint64(0)), used())
"""
    assert container.words(code) == ["2", "0", "2", "0", "101", "0", "0", "1024"]
    assert (container.account().denied_limit, container.whole_account().denied_policy) == (1, 1)


@pytest.mark.attack
@pytest.mark.parametrize("name", ["cuMemGetDefaultMemPool", "cuMemGetMemPool"])
@pytest.mark.parametrize(
    ("kind", "where", "charged"), [(1, 1, 1024), (2, 1, 1024), (2, 0, 1024), (2, 2, 1024), (1, 2, 0)]
)
def test_driver_pools_are_charged_like_a_programs_own(
    container: Container, name: str, kind: int, where: int, charged: int
) -> None:
    code = f"""
d.open()
pool, pointer = c_void_p(), c_uint64()
d.ok('{name}', byref(pool), (c_int * 2)({where}, 0), {kind})
print(d('cuMemAllocFromPoolAsync', byref(pointer), n(1024), pool, None), used())
print(d('cuMemAllocFromPoolAsync', byref(pointer), n(8192), pool, None))
"""
    assert container.words(code) == ["0", str(charged), "2" if charged else "0"]


@pytest.mark.attack
def test_a_pool_that_nobody_gave_out_is_refused(container: Container) -> None:
    code = "d.open()\nprint(d('cuMemAllocFromPoolAsync', byref(c_uint64()), n(2), c_void_p(12345), None), used())"
    assert container.words(code) == [str(INVALID_VALUE), "0"]


@pytest.mark.parametrize("channels", [1, 2, 4])
def test_arrays_of_every_format_are_charged_at_least_their_size(container: Container, channels: int) -> None:
    """A program that fills the share by arrays of one format has no more of the GPU than its share."""
    code = f"""
d.open()
def taken():
    real = CDLL(os.environ["KUBE_ACCEL_DRIVER"] + "/libcuda.so.1")
    free, total = c_size_t(), c_size_t()
    real.cuMemGetInfo_v2(byref(free), byref(total))
    return total.value - free.value
for format in {FORMATS}:
    array, before, charged = c_void_p(), taken(), used_bytes()
    d.ok('cuArrayCreate_v2', byref(array), (c_uint64 * 3)(4096, 4096, format | {channels} << 32))
    size, charged = taken() - before, used_bytes() - charged
    if not size <= charged <= 2 * size:
        print(hex(format), size, charged)
    d.ok('cuArrayDestroy', array)
"""
    assert container.words(code) == []
