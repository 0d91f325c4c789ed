# SPDX-License-Identifier: Apache-2.0
"""Mode pgpu by the collection's playbooks on a real node: whole GPUs, MIG devices, time slices, in each layout."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest

from cluster import rights
from cluster.matrix import Ran
from cluster.node import GpuNode, pod
from cluster.rig import NODE, PODS, Rig
from cluster.site import Site

WHOLE, SLICE, MIG = "nvidia.com/gpu", "nvidia.com/gpu.shared", "nvidia.com/mig-3g.20gb"
SLICES = {"timeSlicing": {"renameByDefault": True, "resources": [{"name": WHOLE, "replicas": 4}]}}
VARIABLES = {
    "gpu_mode": "pgpu",
    "gpu_plugins_mig_strategy": "mixed",
    "gpu_plugins_configs": {"whole": {"version": "v1"}, "sliced": {"version": "v1", "sharing": SLICES}},
    "gpu_plugins_default_config": "whole",
    "gpu_plugins_device_list_strategy": ["envvar"],
    "scheduler_manage_whole_gpus": True,
    "scheduler_binpack_resources": [],
}
pytestmark = pytest.mark.usefixtures("no_pods_left")


@pytest.fixture(scope="module")
def node(rig: Rig) -> Iterator[GpuNode]:
    """Two whole GPUs, and two that are cut."""
    with GpuNode(rig, "4xa100-mig", driver=False) as made:
        yield made


@pytest.fixture(scope="module")
def site(rig: Rig, node: GpuNode) -> Site:
    site = Site(rig)
    assert site.run("site", **VARIABLES) > 0
    return site


def given(rig: Rig, name: str, resource: str, count: int = 1, **spec: str) -> list[str]:
    """What a new pod sees of the GPUs, which is as much as it asked for."""
    rig.api.create(PODS, pod(name, {resource: str(count)}, runtimeClassName="nvidia", **spec))
    rig.wait_running(name)
    lines = dict(line.partition("=")[::2] for line in rig.kubectl("exec", name, "--", "env").splitlines())
    seen = lines["NVIDIA_VISIBLE_DEVICES"].split(",")
    assert len(set(seen)) == count
    return seen


@pytest.mark.parametrize("layout", ["local", "proxied", "secondary"])
def test_whole_gpus_mig_devices_and_time_slices(rig: Rig, node: GpuNode, site: Site, ran: Ran, layout: str) -> None:
    if layout != "local":
        site.run("site", tags="scheduler", **VARIABLES, scheduler_layout=layout)
    spec = {"schedulerName": "accel-scheduler"} if layout == "secondary" else {}
    node.wait_allocatable(2, WHOLE)
    whole = given(rig, "whole", WHOLE, 2, **spec)
    cut = given(rig, "cut", MIG, **spec)
    assert [name.partition("-")[0] for name in (*whole, *cut)] == ["GPU", "GPU", "MIG"]
    annotations = rig.api.get(f"{PODS}/whole")["metadata"]["annotations"]
    shares = json.loads(annotations["kube-accel.io/assignment"])["containers"]["c0"]
    assert {share["uuid"] for share in shares} == set(whole)
    ran("pgpu", layout, "whole GPUs, chosen by the extender")
    ran("pgpu", layout, "MIG devices, which the extender leaves to kubelet")

    rig.kubectl("delete", "pod", "--now", "--wait=true", "whole", "cut")
    label = f"node/{NODE}"
    rig.kubectl("label", label, "nvidia.com/device-plugin.config=sliced")
    node.wait_allocatable(8, SLICE)
    slices = [given(rig, f"slice-{number}", SLICE, **spec)[0] for number in range(8)]
    assert {uuid: slices.count(uuid) for uuid in slices} == dict.fromkeys(whole, 4)
    ran("pgpu", layout, "time slices, which the extender leaves to kubelet")
    rig.kubectl("delete", "pods", "--all", "--now", "--wait=true")
    rig.kubectl("label", label, "nvidia.com/device-plugin.config-")
    node.wait_allocatable(0, SLICE)


def test_the_account_may_do_what_it_does_and_no_more(rig: Rig, site: Site) -> None:
    found = rights.deeds(rig.plane.audit.read_text().splitlines(), "kube-accel")
    assert not found.refused
    # An event is of what goes wrong.
    assert rights.granted(rig, "kube-accel") - found.done <= {("events", "create")}
