# SPDX-License-Identifier: Apache-2.0
"""The shipped device plugin beside a DRA driver: one of them gives the node's GPUs away."""

from __future__ import annotations

import socket
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from unit.kube_accel.api_host import NODE, ApiHost
from unit.kube_accel.test_plugin_end_to_end import RESOURCE, Host, Plugin, pod
from unit.kube_accel.test_plugin_end_to_end import bare as bare
from unit.kube_accel.test_plugin_end_to_end import host as host
from waiting import wait

FLAG = "--watch-resource-slices"
DRIVERS = ("gpu.nvidia.com", "hami-core-gpu.project-hami.io", "gpu.kube-accel.io")


class DriverHost(ApiHost):
    """A node on which DRA drivers may publish slices."""

    def publish(self, driver: str, devices: tuple[str, ...] = ("gpu-0",), node: str = NODE) -> None:
        spec: dict[str, Any] = {"driver": driver, "nodeName": node, "devices": [{"name": name} for name in devices]}
        spec["pool"] = {"name": node, "generation": 1, "resourceSliceCount": 1}
        body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", "metadata": {"name": f"{node}-{driver}"}}
        self.store.create("resourceslices", "", body | {"spec": spec})

    def withdraw(self, driver: str) -> None:
        self.store.delete("resourceslices", "", f"{NODE}-{driver}")

    def wait_withheld(self, plugin: Plugin, driver: str) -> None:
        wait(lambda: f"no GPU is offered: DRA driver {driver}" in plugin.probe("/readyz")[1], "GPUs to be withheld")


@pytest.fixture
def node() -> Iterator[DriverHost]:
    with tempfile.TemporaryDirectory(dir="/tmp") as root, ExitStack() as stack:
        made = DriverHost(Path(root), stack)
        made.start_api()
        yield made


@pytest.mark.parametrize("driver", DRIVERS)
def test_plugin_begins_once_no_dra_driver_has_the_gpus(node: DriverHost, driver: str) -> None:
    node.publish(driver)
    plugin = node.plugin(FLAG)
    node.wait_withheld(plugin, driver)
    node.wait_event("GpuNotOffered", f"DRA driver {driver} gives away the GPUs of this node")
    assert node.kubelet.plugins() == {}
    node.withdraw(driver)
    plugin.wait_ready()
    node.wait_healthy(set(node.uuids))
    (said,) = (line["reason"] for line in plugin.logged() if line["message"] == "GPUs are withheld")
    assert "remove that driver from the node" in said


def test_driver_that_comes_later_gets_what_pods_do_not_have(node: DriverHost) -> None:
    plugin = node.plugin(FLAG)
    plugin.wait_ready()
    node.admit("early", 1)
    node.publish(DRIVERS[0])
    node.kubelet.wait(lambda: node.kubelet.devices(RESOURCE) == {}, 40)
    node.wait_withheld(plugin, DRIVERS[0])
    node.kubelet.run(pod("early", 1))
    node.kubelet.restart()
    node.kubelet.wait(lambda: RESOURCE in node.kubelet.plugins(), 40)
    assert node.kubelet.devices(RESOURCE) == {}
    node.withdraw(DRIVERS[0])
    plugin.wait_ready()
    node.wait_healthy(set(node.uuids))


def test_slices_without_gpus_of_the_node_are_of_no_matter(node: DriverHost) -> None:
    node.publish("compute-domain.nvidia.com", ("channel-0", "daemon-0"))
    node.publish(DRIVERS[0], ())
    node.publish(DRIVERS[1], node="node-2")
    node.plugin(FLAG).wait_ready()
    node.wait_healthy(set(node.uuids))


@pytest.mark.parametrize("status", [403, 404])
def test_cluster_without_slices_is_served(host: Host, status: int) -> None:
    host.api_server().status = status
    host.plugin(FLAG).wait_ready()
    host.wait_healthy(set(host.uuids))


def test_api_server_that_does_not_answer_is_waited_for_briefly(host: Host) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        host.api_server()
        host.use_api_server(silent.getsockname()[1])
        plugin = host.plugin(FLAG)
        wait(lambda: "the API server has not told yet" in plugin.probe("/readyz")[1], "the first look")
        plugin.wait_ready()
        host.wait_healthy(set(host.uuids))
    (said,) = (line["message"] for line in plugin.logged() if "may give them away too" in line["message"])
    assert said
