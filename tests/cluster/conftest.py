# SPDX-License-Identifier: Apache-2.0
from collections.abc import Iterator

import pytest

from cluster import rig as real
from cluster.node import GpuNode
from cluster.rig import Rig


@pytest.fixture(scope="session")
def bare_rig() -> Iterator[Rig]:
    """The cluster without a scheduler."""
    if lacks := real.missing():
        pytest.skip("no real cluster here; missing: " + ", ".join(lacks))
    with real.start() as cluster:
        yield cluster


@pytest.fixture
def no_pods_left(bare_rig: Rig) -> Iterator[None]:
    yield
    bare_rig.kubectl("delete", "pods", "--all", "--now", "--wait=true")


@pytest.fixture(scope="module")
def h100(bare_rig: Rig) -> Iterator[GpuNode]:
    """The node with eight H100."""
    with GpuNode(bare_rig, "8xh100") as node:
        yield node
