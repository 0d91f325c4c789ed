# SPDX-License-Identifier: Apache-2.0
"""site.yml on a node whose offer the API server writes with a suffix."""

from __future__ import annotations

import pytest

from sim.cluster import NodeSpec, Spec
from sim.cluster.client import Api

from .conftest import Start

# No pod is to come, so nobody has to choose among the GPUs.
VARIABLES = {"gpu_mode": "vgpu", "scheduler_layout": "none", "gpu_plugins_extender_required": False}


@pytest.mark.full
def test_a_thousand_shares_are_found_to_be_offered(start: Start) -> None:
    books = start(Spec("control", (NodeSpec("gpu-a", "10xt4"),)))
    done = books.run("accel.kubernetes.site", gpu_plugins_ready_timeout=60, **VARIABLES)
    assert done.code == 0, done.output
    node = Api(books.cluster.kubeconfig).get("/api/v1/nodes/gpu-a")
    assert node["status"]["allocatable"]["tencent.com/vcuda-core"] == "1k"
