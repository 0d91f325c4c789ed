# SPDX-License-Identifier: Apache-2.0
"""A node gets another driver without a reboot, under the device plugin that serves it."""

from __future__ import annotations

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from kube_accel.sharing import inventory_annotation
from sim.cluster import NodeSpec, Spec
from sim.cluster.client import Api, until

from .conftest import Playbooks, Run, Start

pytestmark = pytest.mark.full
OLD, NEW = "570.195.03", "580.95.05"


@pytest.fixture(scope="module")
def books(start: Start) -> Playbooks:
    """A node that serves its GPU with the old driver."""
    books = start(Spec("control", (NodeSpec("gpu-a", "t4"),), driver_versions=(OLD, NEW)))
    done = books.run("accel.kubernetes.site", scheduler_layout="none", driver_runfile=runfile(books, OLD))
    assert done.code == 0, done.output
    assert version(books) == OLD
    return books


def runfile(books: Playbooks, version: str) -> str:
    (found,) = books.cluster.root.glob(f"NVIDIA-Linux-*-{version}.run")
    return str(found)


def version(books: Playbooks) -> str:
    """Of the loaded driver."""
    return (books.cluster.root / "gpu-a/sys/module/nvidia/version").read_text().strip()


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


@contextmanager
def user(books: Playbooks) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has the GPU's device file open."""
    with (books.cluster.root / "gpu-a/dev/nvidia0").open("rb") as file:
        process = subprocess.Popen(["sleep", "1000"], pass_fds=[file.fileno()])
    try:
        yield process
    finally:
        process.kill()
        process.wait()


def test_who_uses_a_gpu_keeps_the_driver_and_is_named(books: Playbooks) -> None:
    with user(books) as process:
        refused = upgrade(books)
    assert refused.code != 0
    assert f"gpu-a: the driver {NEW} is installed and {OLD} loaded: {process.pid} sleep use a GPU" in refused.messages
    assert version(books) == OLD


def test_the_driver_is_replaced_and_the_plugin_goes_on(books: Playbooks) -> None:
    api = Api(books.cluster.kubeconfig)
    done = upgrade(books)
    assert done.code == 0, done.output
    assert version(books) == NEW

    def told() -> bool:
        node = api.get("/api/v1/nodes/gpu-a")
        stated = inventory_annotation.decode(node["metadata"]["annotations"][inventory_annotation.ANNOTATION])
        return stated.inventory.driver_version == NEW and node["status"]["allocatable"]["nvidia.com/gpu"] == "1"

    until(told, "the plugin serves the GPU with the new driver")
    again = upgrade(books)
    assert (again.code, again.changed) == (0, 0), again.output
