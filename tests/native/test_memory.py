# SPDX-License-Identifier: Apache-2.0
"""What a container's programs may take of a GPU's memory, by each way there is to take it."""

from __future__ import annotations

from native.conftest import Container

USED = """
def used():
    import struct
    with open(os.environ["KUBE_ACCEL_STATE"], "rb") as state:
        return struct.unpack_from("<Q", state.read(72), 64)[0] // MIB
def take(size):
    return d("cuMemAlloc_v2", byref(c_uint64()), c_size_t(size))
"""


def words(container: Container, code: str) -> str:
    return " ".join(container.words(USED + code))


def test_three_of_four_gibibytes_are_given_and_six_are_not(container: Container) -> None:
    code = """
d.open()
p = d.alloc(3 * GIB)
print(used(), take(6 * GIB), take(GIB + 1), used())
d.free(p)
print(used(), take(4 * GIB))
"""
    assert words(container, code) == "3072 2 2 3072 0 0"
    assert container.account().denied_limit == 2
