# SPDX-License-Identifier: Apache-2.0
from collections.abc import Iterator

import pytest

from cluster.node import GpuNode
from cluster.rig import Rig, missing


@pytest.fixture(scope="module")
def rig() -> Iterator[Rig]:
    if lacks := missing():
        pytest.skip("no real cluster here; missing: " + ", ".join(lacks))
    with Rig() as cluster:
        yield cluster


@pytest.fixture(scope="module")
def node(rig: Rig) -> Iterator[GpuNode]:
    with GpuNode(rig, "8xh100") as made:
        yield made
