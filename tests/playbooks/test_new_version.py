# SPDX-License-Identifier: Apache-2.0
"""A daemon that is rolled out and does not start: the one before it goes on, and the run says so."""

from __future__ import annotations

import pytest

from sim.cluster import NodeSpec, Spec
from sim.cluster.client import Api

from .conftest import Playbooks, Start

pytestmark = pytest.mark.full


@pytest.fixture(scope="module")
def books(start: Start) -> Playbooks:
    """A node that serves."""
    books = start(Spec("control", (NodeSpec("gpu-a", "t4"),)))
    done = books.run("accel.kubernetes.site", scheduler_layout="none")
    assert done.code == 0, done.output
    return books


def test_a_plugin_that_does_not_start_is_no_success(books: Playbooks) -> None:
    tags = "--tags=gpu_plugins"
    failed = books.run(
        "accel.kubernetes.site",
        tags,
        scheduler_layout="none",
        gpu_plugins_runtime_class="none",
        gpu_plugins_ready_timeout=5,
    )
    assert failed.code != 0, failed.output
    assert "The plugin that was rolled out is not ready on the node, and the one before it goes on" in failed.messages
    assert "Failed to create pod sandbox" in failed.messages
    node = Api(books.cluster.kubeconfig).get("/api/v1/nodes/gpu-a")
    assert node["status"]["allocatable"]["nvidia.com/gpu"] == "1"

    mended = books.run("accel.kubernetes.site", tags, scheduler_layout="none")
    assert mended.code == 0, mended.output
    again = books.run("accel.kubernetes.site", scheduler_layout="none")
    assert (again.code, again.changed) == (0, 0), again.output
