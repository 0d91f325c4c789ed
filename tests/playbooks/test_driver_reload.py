# SPDX-License-Identifier: Apache-2.0
"""A node gets another driver without a reboot, under the device plugin that serves it."""

from __future__ import annotations

import pytest

from kube_accel.sharing import inventory_annotation
from sim.cluster import NodeSpec, Spec
from sim.cluster.client import Api, until

from .conftest import Playbooks, Run, Start
from .driver import NEW, OLD, loaded, runfile, user

pytestmark = pytest.mark.full
NODE = "gpu-a"


@pytest.fixture(scope="module")
def books(start: Start) -> Playbooks:
    """A node that serves its GPU with the old driver."""
    books = start(Spec("control", (NodeSpec(NODE, "t4"),), driver_versions=(OLD, NEW)))
    done = books.run("accel.kubernetes.site", scheduler_layout="none", driver_runfile=runfile(books, OLD))
    assert done.code == 0, done.output
    assert loaded(books, NODE) == OLD
    return books


def upgrade(books: Playbooks) -> Run:
    return books.run(
        "accel.kubernetes.site",
        "--tags=driver",
        scheduler_layout="none",
        driver_runfile=runfile(books, NEW),
        driver_reload=True,
        driver_reboot="never",
        driver_reload_plugin_socket=str(books.cluster.root / "gpu-a/var/lib/kube-accel/admin.sock"),
    )


def test_who_uses_a_gpu_keeps_the_driver_and_is_named(books: Playbooks) -> None:
    with user(books, NODE) as process:
        refused = upgrade(books)
    assert refused.code != 0
    assert f"gpu-a: the driver {NEW} is installed and {OLD} loaded: {process.pid} sleep use a GPU" in refused.messages
    assert loaded(books, NODE) == OLD


def test_the_driver_is_replaced_and_the_plugin_goes_on(books: Playbooks) -> None:
    api = Api(books.cluster.kubeconfig)
    done = upgrade(books)
    assert done.code == 0, done.output
    assert loaded(books, NODE) == NEW

    def told() -> bool:
        node = api.get("/api/v1/nodes/gpu-a")
        stated = inventory_annotation.decode(node["metadata"]["annotations"][inventory_annotation.ANNOTATION])
        return stated.inventory.driver_version == NEW and node["status"]["allocatable"]["nvidia.com/gpu"] == "1"

    until(told, "the plugin serves the GPU with the new driver")
    again = upgrade(books)
    assert (again.code, again.changed) == (0, 0), again.output
