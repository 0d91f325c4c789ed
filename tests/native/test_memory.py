# SPDX-License-Identifier: Apache-2.0
"""What a container's programs may take of a GPU's memory, by each way there is to take it."""

from __future__ import annotations

import pytest

from kube_accel.enforce.policy import Limit
from native.conftest import GIB, MIB, Container

WAYS = {
    "cuMemAlloc_v2": ("p = get(c_uint64, 'cuMemAlloc_v2', n(1024))", "d('cuMemFree_v2', c_uint64(p))"),
    "cuMemAlloc": ("p = get(c_uint, 'cuMemAlloc', c_uint(1024 * MIB))", "d('cuMemFree', c_uint(p))"),
    "freed on a stream": ("p = get(c_uint64, 'cuMemAlloc_v2', n(1024))", "d('cuMemFreeAsync', c_uint64(p), None)"),
    "cuMemAllocPitch_v2": (
        "p = get(c_uint64, 'cuMemAllocPitch_v2', byref(c_size_t()), c_size_t(1000), c_size_t(MIB), c_uint(4))",
        "d('cuMemFree_v2', c_uint64(p))",
    ),
    "cuMemAllocPitch": (
        "p = get(c_uint, 'cuMemAllocPitch', byref(c_uint()), c_uint(1000), c_uint(MIB), c_uint(4))",
        "d('cuMemFree', c_uint(p))",
    ),
    "cuMemAllocManaged": (
        "p = get(c_uint64, 'cuMemAllocManaged', n(1024), c_uint(1))",
        "d('cuMemFree_v2', c_uint64(p))",
    ),
    "cuArrayCreate_v2": (
        "p = get(c_void_p, 'cuArrayCreate_v2', (c_uint64 * 3)(16384, 16384, 0x20 | 1 << 32))",
        "d('cuArrayDestroy', c_void_p(p))",
    ),
    "cuArrayCreate": (
        "p = get(c_void_p, 'cuArrayCreate', (c_uint * 4)(16384, 16384, 0x10, 2))",
        "d('cuArrayDestroy', c_void_p(p))",
    ),
    "cuArray3DCreate_v2": (
        "p = get(c_void_p, 'cuArray3DCreate_v2', (c_uint64 * 5)(1024, 1024, 256, 0x08 | 4 << 32, 0))",
        "d('cuArrayDestroy', c_void_p(p))",
    ),
    "cuArray3DCreate": (
        "p = get(c_void_p, 'cuArray3DCreate', (c_uint * 6)(1024, 1024, 256, 0x08, 4, 0))",
        "d('cuArrayDestroy', c_void_p(p))",
    ),
    "cuMemCreate": ("p = create(1024)", "d('cuMemRelease', c_uint64(p))"),
}


@pytest.mark.parametrize("way", WAYS)
def test_a_gibibyte_by_every_way(container: Container, way: str) -> None:
    take, give = WAYS[way]
    code = f"""
d.open()
{take}
p1 = p
before = used()
{take}
{take}
{take}
full, more = used(), refused("{take}")
p = p1
{give}
print(before, full, more, used())
"""
    assert container.words(code) == ["1024", "4096", "2", "3072"]
    assert container.account().denied_limit == 1


def test_three_of_four_gibibytes_are_given_and_six_are_not(container: Container) -> None:
    code = """
d.open()
p = d.alloc(3 * GIB)
print(used(), take(6 * GIB), take(GIB + 1), used())
d.free(p)
print(used(), take(4 * GIB), take(1))
"""
    assert container.words(code) == ["3072", "2", "2", "3072", "0", "0", "2"]
    assert container.account().denied_limit == 3


def test_mip_chain_costs_a_third_more_and_a_sparse_array_none(container: Container) -> None:
    code = """
d.open()
extent = (c_uint64 * 5)(16384, 16384, 0, 0x20 | 1 << 32, 0)
p = get(c_void_p, 'cuMipmappedArrayCreate', extent, c_uint(15))
print(used())
d('cuMipmappedArrayDestroy', c_void_p(p))
print(used())
extent = (c_uint64 * 5)(1 << 20, 1 << 20, 0, 0x20 | 1 << 32, 0x40)
print(d('cuArray3DCreate_v2', byref(c_void_p()), extent), used())
"""
    assert container.words(code) == ["1374", "0", "0", "0"]


@pytest.mark.attack
def test_an_unknown_pointer_is_the_drivers_to_refuse(container: Container) -> None:
    code = """
d.open()
d.alloc(GIB)
print(d('cuMemFree_v2', c_uint64(12345)), d('cuMemFree_v2', c_uint64(0)), d('cuArrayDestroy', c_void_p(99)), used())
"""
    assert container.words(code) == ["1", "0", "400", "1024"]


@pytest.mark.attack
def test_a_free_that_fails_keeps_its_charge(container: Container) -> None:
    code = """
context = d.open()
p = d.alloc(GIB)
d('cuCtxSetCurrent', None)
print(d('cuMemFree_v2', c_uint64(p)), used())
d('cuCtxSetCurrent', c_void_p(context))
print(d('cuMemFree_v2', c_uint64(p)), used())
"""
    assert container.words(code) == ["201", "1024", "0", "0"]


@pytest.mark.attack
def test_a_thread_without_context_gets_the_drivers_error(container: Container) -> None:
    code = """
d.ok('cuInit', 0)
print(take(GIB), d('cuMemAllocAsync', byref(c_uint64()), n(1), None), d('cuMemFree_v2', c_uint64(1)), used())
print(d('cuMemCreate', byref(c_uint64()), n(2), (c_int * 8)(1, 0, 1, 0), c_uint64(0)), used())
print(d('cuMemCreate', byref(c_uint64()), n(2), (c_int * 8)(1, 0, 1, 77), c_uint64(0)))
"""
    assert container.words(code) == ["201", "201", "201", "0", "0", "2", "101"]


def test_refusal_by_the_gpu_is_counted_and_not_charged(container: Container) -> None:
    gpu = container.topology.gpus[0]
    container.tell(Limit(gpu.uuid, 0, 100))
    code = f"d.open()\nprint(take({gpu.mem + GIB}), used(), take(GIB), used())"
    assert container.words(code) == ["2", "0", "0", "1024"]
    assert (container.account().denied_device, container.account().denied_limit) == (1, 0)


def test_small_pieces_share_a_page_and_large_ones_do_not(container: Container) -> None:
    code = "d.open()\nfor _ in range(4): d.alloc(1)\nprint(used_bytes())\nd.alloc(5 * MIB)\nprint(used())"
    assert container.words(code) == ["2048", "6"]


@pytest.mark.attack
def test_an_absurd_size_is_refused(container: Container) -> None:
    container.tell(Limit(container.topology.gpus[0].uuid, 0, 100))
    code = """
d.open()
print(*(take(size) for size in (2**64 - 1, 2**63, 2**48)))
huge = c_size_t(2**63)
print(d('cuMemAllocPitch_v2', byref(c_uint64()), byref(c_size_t()), huge, huge, c_uint(4)), used())
"""
    assert container.words(code) == ["2", "2", "2", "2", "0"]


class TestViews:
    def test_show_the_share(self, container: Container) -> None:
        code = """
d.open()
d.alloc(GIB)
print(*(n // MIB for n in d.mem_info()), d.value(c_size_t, 'cuDeviceTotalMem_v2', 0) // MIB)
print(d.value(c_uint, 'cuDeviceTotalMem', 0) // MIB)
free, total = c_uint(), c_uint()
d.ok('cuMemGetInfo', byref(free), byref(total))
print(free.value // MIB)
"""
        container.tell(Limit(container.topology.gpus[0].uuid, 3 * GIB, 30))
        assert container.words(code) == ["2048", "3072", "3072", "3072", "2048"]

    def test_are_the_drivers_own_where_there_is_no_limit(self, container: Container) -> None:
        gpu = container.topology.gpus[0]
        container.tell(Limit(gpu.uuid, 0, 100))
        code = "d.open()\nprint(d.mem_info()[1], d.value(c_size_t, 'cuDeviceTotalMem_v2', 0))"
        assert container.words(code) == [str(gpu.mem)] * 2

    def test_never_promise_more_than_the_gpu_has_left(self, container: Container) -> None:
        gpu = container.topology.gpus[0]
        container.tell(Limit(gpu.uuid, gpu.mem * 2, 30))
        free, total = (int(word) for word in container.words("d.open()\nprint(*d.mem_info())"))
        assert total == gpu.mem
        assert 0 < free < gpu.mem

    def test_show_nothing_free_below_the_use_after_a_cut(self, container: Container) -> None:
        process = container.start(
            "d.open()\nd.alloc(3 * GIB)\nprint(1, flush=True)\ninput()\nprint(*d.mem_info(), take(1))"
        )
        assert process.stdout is not None
        assert process.stdout.readline() == "1\n"
        container.tell(Limit(container.topology.gpus[0].uuid, 2 * GIB, 30))
        assert process.communicate("\n", timeout=60)[0].split() == ["0", str(2 * GIB), "2"]


class TestContexts:
    def test_cost_their_overhead_once_a_process_and_device(self, container: Container) -> None:
        container.tell(Limit(container.topology.gpus[0].uuid, GIB, 30, 0, 300 * MIB))
        code = """
d.open()
print(used())
c = d.value(c_void_p, 'cuCtxCreate_v2', c_uint(0), 0)
d.alloc(100 * MIB)
print(used(), d('cuDevicePrimaryCtxReset_v2', 0), used())
print(d('cuCtxDestroy_v2', c_void_p(c)), used())
"""
        assert container.words(code) == ["300", "400", "0", "400", "0", "0"]

    def test_are_refused_where_the_overhead_does_not_fit(self, container: Container) -> None:
        container.tell(Limit(container.topology.gpus[0].uuid, GIB, 30, 0, 600 * MIB))
        other = container.start("d.open()\nprint(1, flush=True)\ninput()")
        assert other.stdout is not None
        assert other.stdout.readline() == "1\n"
        code = "d.ok('cuInit', 0)\nprint(d('cuCtxCreate_v2', byref(c_void_p()), c_uint(0), 0))"
        assert container.words(code) == ["2"]
        other.communicate("\n", timeout=60)
        assert container.words(code) == ["0"]

    def test_take_their_memory_along(self, container: Container) -> None:
        code = """
d.ok('cuInit', 0)
c = d.value(c_void_p, 'cuCtxCreate_v2', c_uint(0), 0)
d.alloc(3 * GIB)
handle = create(100)
print(d('cuCtxDestroy_v2', c_void_p(c)), used())
d.open()
d.alloc(2 * GIB)
print(used(), d('cuDevicePrimaryCtxRelease_v2', 0), used())
"""
        assert container.words(code) == ["0", "100", "2148", "0", "100"]

    @pytest.mark.parametrize("name", ["cuGLCtxCreate", "cuGLCtxCreate_v2", "cuVDPAUCtxCreate", "cuVDPAUCtxCreate_v2"])
    def test_for_graphics_cost_their_overhead(self, container: Container, name: str) -> None:
        container.tell(Limit(container.topology.gpus[0].uuid, GIB, 30, 0, 300 * MIB))
        more = ", c_uint(0), None" if "VDPAU" in name else ""
        code = f"""
d.ok('cuInit', 0)
c = d.value(c_void_p, '{name}', c_uint(0), 0{more})
print(used(), take(800 * MIB), take(700 * MIB), d('cuCtxDestroy_v2', c_void_p(c)), used())
"""
        assert container.words(code) == ["300", "2", "0", "0", "0"]

    @pytest.mark.parametrize("attached", [0, 1, 3])
    def test_end_with_their_last_detachment(self, container: Container, attached: int) -> None:
        container.tell(Limit(container.topology.gpus[0].uuid, 4 * GIB, 30, 0, 300 * MIB))
        code = f"""
d.ok('cuInit', 0)
c = d.value(c_void_p, 'cuCtxCreate_v2', c_uint(0), 0)
d.alloc(GIB)
assert all(d.value(c_void_p, 'cuCtxAttach', c_uint(0)) == c for _ in range({attached}))
for _ in range({attached} + 1):
    print(used(), d('cuCtxDetach', c_void_p(c)))
print(used(), d('cuCtxDetach', c_void_p(c)), used())
d.open()
print(used(), d('cuCtxAttach', byref(c_void_p()), c_uint(7)), take(3 * GIB))
"""
        held = ["1324", "0"] * (attached + 1)
        assert container.words(code) == [*held, "0", "201", "0", "300", "1", "0"]


class TestDevices:
    def test_are_known_by_uuid_whatever_the_order(self, container: Container) -> None:
        gpus = container.topology.gpus
        container.tell(Limit(gpus[3].uuid, GIB, 30), Limit(gpus[0].uuid, 2 * GIB, 30))
        code = """
d.ok('cuInit', 0)
for device in range(2):
    d.open(device)
    print(d.mem_info()[1] // MIB)
d.alloc(MIB)
"""
        visible = f"{gpus[0].uuid},{gpus[3].uuid}"
        assert container.words(code, GPUSIM_VISIBLE=visible) == ["2048", "1024"]
        assert (container.account(0).used_bytes, container.account(1).used_bytes) == (MIB, 0)

    @pytest.mark.attack
    def test_the_policy_does_not_name_have_no_memory(self, container: Container) -> None:
        code = "d.open(1)\nprint(take(1), d('cuMemAllocAsync', byref(c_uint64()), n(1), None), d.mem_info()[0])"
        assert container.words(code) == ["2", "2", "0"]
        assert container.whole_account().denied_policy == 2

    def test_of_a_handle_are_those_it_asks_for(self, container: Container) -> None:
        gpus = container.topology.gpus
        container.tell(Limit(gpus[0].uuid, GIB, 30), Limit(gpus[1].uuid, GIB, 30))
        assert container.words("d.open(0)\ncreate(512, 1)\nprint(used(0), used(1))") == ["0", "512"]


class TestHandles:
    def test_live_while_they_are_mapped(self, container: Container) -> None:
        code = """
d.open()
address = d.value(c_uint64, 'cuMemAddressReserve', n(64), n(0), c_uint64(0), c_uint64(0))
a, b = create(32), create(32)
d.ok('cuMemMap', c_uint64(address), n(32), n(0), c_uint64(a), c_uint64(0))
d.ok('cuMemMap', c_uint64(address + 32 * MIB), n(32), n(0), c_uint64(b), c_uint64(0))
d.ok('cuMemRelease', c_uint64(a))
d.ok('cuMemRelease', c_uint64(b))
print(used())
again = d.value(c_uint64, 'cuMemRetainAllocationHandle', c_void_p(address))
d.ok('cuMemUnmap', c_uint64(address), n(64))
print(used())
d.ok('cuMemRelease', c_uint64(again))
print(used())
"""
        assert container.words(code) == ["64", "32", "0"]

    def test_unmapped_before_they_are_released(self, container: Container) -> None:
        code = """
d.open()
address = d.value(c_uint64, 'cuMemAddressReserve', n(64), n(0), c_uint64(0), c_uint64(0))
a = create(64)
d.ok('cuMemMap', c_uint64(address), n(64), n(0), c_uint64(a), c_uint64(0))
d.ok('cuMemUnmap', c_uint64(address), n(64))
print(used(), d('cuMemRelease', c_uint64(a)), used(), d('cuMemRelease', c_uint64(a)), used())
"""
        words = container.words(code)
        assert words[:3] == ["64", "0", "0"]
        assert words[3] != "0"
        assert words[4] == "0"

    def test_of_host_memory_are_free(self, container: Container) -> None:
        code = """
d.open()
d('cuMemCreate', byref(c_uint64()), n(8192), (c_int * 8)(1, 0, 2, 0), c_uint64(0))
print(used())
"""
        assert container.words(code) == ["0"]
        assert container.account().denied_limit == 0


class TestPools:
    def test_are_charged_what_they_hold(self, container: Container) -> None:
        code = """
d.open()
pool = d.value(c_void_p, 'cuDeviceGetDefaultMemPool', 0)
d.ok('cuMemPoolSetAttribute', c_void_p(pool), 4, byref(c_uint64(2**64 - 1)))
a = get(c_uint64, 'cuMemAllocAsync', n(3072), None)
print(used())
d.ok('cuMemFreeAsync', c_uint64(a), None)
print(used(), take(2 * GIB))
b = get(c_uint64, 'cuMemAllocAsync_ptsz', n(3072), None)
print(used(), refused("get(c_uint64, 'cuMemAllocAsync', n(1025), None)"))
d.ok('cuMemFree_v2', c_uint64(b))
d.ok('cuMemPoolTrimTo', c_void_p(pool), n(0))
print(used(), take(4 * GIB))
"""
        assert container.words(code) == ["3072", "3072", "2", "3072", "2", "0", "0"]

    def test_pools_shrink_at_a_synchronisation_before_a_refusal(self, container: Container) -> None:
        code = """
d.open()
a = get(c_uint64, 'cuMemAllocAsync', n(3072), None)
d.ok('cuMemFreeAsync', c_uint64(a), None)
d.synchronize()
print(take(4 * GIB), used())
"""
        assert container.words(code) == ["0", "4096"]

    def test_of_their_own_go_with_what_is_left_in_them(self, container: Container) -> None:
        code = """
d.open()
stream = c_void_p(d.stream())
pool = get(c_void_p, 'cuMemPoolCreate', (c_int * 22)(1, 0, 1, 0))
a = get(c_uint64, 'cuMemAllocFromPoolAsync', n(1024), c_void_p(pool), stream)
b = get(c_uint64, 'cuMemAllocFromPoolAsync_ptsz', n(512), c_void_p(pool), stream)
print(used(), refused("get(c_uint64, 'cuMemAllocFromPoolAsync', n(3072), c_void_p(pool), stream)"))
d.ok('cuMemFreeAsync_ptsz', c_uint64(b), stream)
d.ok('cuMemPoolDestroy', c_void_p(pool))
print(used())
d.ok('cuMemFreeAsync', c_uint64(a), stream)
print(used())
"""
        assert container.words(code) == ["1536", "2", "1024", "0"]

    def test_stay_charged_when_the_driver_does_not_answer_any_more(self, container: Container) -> None:
        code = """
import os
d.open()
get(c_uint64, 'cuMemAllocAsync', n(1024), None)
os.environ['GPUSIM_FAULTED'] = '1'
print(used(), refused("get(c_uint64, 'cuMemAlloc_v2', n(4000))"), used())
del os.environ['GPUSIM_FAULTED']
print(get(c_uint64, 'cuMemAllocAsync', n(64), None) > 0, used())
"""
        assert container.words(code) == ["1024", "2", "1024", "True", "1088"]

    def test_are_asked_for_after_a_reset_only_when_they_are_used(self, container: Container) -> None:
        code = """
d.open()
get(c_uint64, 'cuMemAllocAsync', n(1024), None)
pool = get(c_void_p, 'cuMemPoolCreate', (c_int * 22)(1, 0, 1, 0))
get(c_uint64, 'cuMemAllocFromPoolAsync', n(512), c_void_p(pool), None)
print(used(), d('cuDevicePrimaryCtxReset_v2', 0), used())
d.open()
get(c_uint64, 'cuMemAllocAsync', n(64), None)
print(used(), d('cuMemPoolDestroy', c_void_p(pool)), used())
"""
        assert container.words(code) == ["1536", "0", "0", "1088", "0", "1088"]

    def test_of_host_memory_are_free(self, container: Container) -> None:
        code = """
d.open()
pool = get(c_void_p, 'cuMemPoolCreate', (c_int * 22)(1, 0, 2, 0))
get(c_uint64, 'cuMemAllocFromPoolAsync', n(8192), c_void_p(pool), None)
print(used())
"""
        assert container.words(code) == ["0"]


class TestGraphs:
    NODE = """
def node(size):
    graph = d.value(c_void_p, 'cuGraphCreate', c_uint(0))
    parameters = (c_uint64 * 15)(1, 1, 0, 0)
    parameters[13] = size
    refused = d('cuGraphAddMemAllocNode', byref(c_void_p()), c_void_p(graph), None, c_size_t(0), parameters)
    d('cuGraphAddMemFreeNode', byref(c_void_p()), c_void_p(graph), None, c_size_t(0), c_uint64(parameters[14]))
    return graph, refused
"""

    @pytest.mark.attack
    def test_that_could_never_run_are_refused_when_made(self, container: Container) -> None:
        code = self.NODE + "d.open()\nprint(node(5 * GIB)[1], node(3 * GIB)[1], used())"
        assert container.words(code) == ["2", "0", "0"]

    def test_are_charged_when_they_have_run_and_given_back_by_a_trim(self, container: Container) -> None:
        code = """
d.open()
graph, _ = node(3 * GIB)
run = d.value(c_void_p, 'cuGraphInstantiateWithFlags', c_void_p(graph), c_uint64(0))
print(d('cuGraphLaunch', c_void_p(run), None), used(), d.mem_info()[0] // MIB, take(2 * GIB))
d.synchronize()
print(d('cuGraphExecDestroy', c_void_p(run)), d('cuDeviceGraphMemTrim', 0), used())
"""
        assert container.words(self.NODE + code) == ["0", "3072", "1024", "2", "0", "0", "0"]

    @pytest.mark.attack
    @pytest.mark.parametrize("version", [12030, 13040])
    def test_by_nodes_of_any_type_are_refused_and_charged_as_well(self, container: Container, version: int) -> None:
        code = f"""
d.open()
found = c_void_p()
d.ok('cuGetProcAddress_v2', b'cuGraphAddNode', byref(found), {version}, c_uint64(0), None)
add = CFUNCTYPE(c_int, c_void_p, c_void_p, c_void_p, c_void_p, c_size_t, c_void_p)(found.value)
graph = d.value(c_void_p, 'cuGraphCreate', c_uint(0))
parameters = (c_uint64 * 32)(10, 0, 1, 1)
for parameters[15] in 5 * GIB, 3 * GIB:
    print(add(addressof(c_uint64()), graph, None, None, 0, addressof(parameters)))
run = d.value(c_void_p, 'cuGraphInstantiateWithFlags', c_void_p(graph), c_uint64(0))
print(d('cuGraphLaunch', c_void_p(run), None), used())
"""
        assert container.words(code) == ["2", "0", "0", "3072"]

    def test_captured_allocations_are_the_graphs(self, container: Container) -> None:
        code = """
d.open()
stream = c_void_p(d.stream())
d.ok('cuStreamBeginCapture_v2', stream, 0)
for size in 5120, 1024:
    print(d('cuMemAllocAsync', byref(c_uint64()), n(size), stream))
graph = c_void_p()
d.ok('cuStreamEndCapture', stream, byref(graph))
run = d.value(c_void_p, 'cuGraphInstantiateWithFlags', graph, c_uint64(0))
print(used(), d('cuGraphLaunch', c_void_p(run), stream), used())
"""
        assert container.words(code) == ["2", "0", "0", "0", "1024"]
