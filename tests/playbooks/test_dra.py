# SPDX-License-Identifier: Apache-2.0
"""A node of mode dra is served by ResourceSlices, served again, goes over from and to a plugin, and is given back."""

from __future__ import annotations

import os
import signal
from collections.abc import Iterator

import pytest

from sim.cluster import NodeSpec, Spec
from sim.cluster.client import MERGE, Api, pod, until
from sim.cluster.kinds import Object
from sim.inventory import write_inventory

from .conftest import Playbooks, Run, Start, ended, state
from .test_uninstall import hosts, left, objects

pytestmark = pytest.mark.full
MODES = {"gpu-a": "dra", "gpu-b": "pgpu"}
GROUP = "/apis/resource.k8s.io/v1"
CLASS = f"{GROUP}/deviceclasses/gpu.kube-accel.io"
SLICES = f"{GROUP}/resourceslices"
CLAIMS = f"{GROUP}/namespaces/default/resourceclaims"
PODS = "/api/v1/namespaces/default/pods"
HELD = "kube-accel.io/served-by-another"


@pytest.fixture(scope="module")
def books(start: Start) -> Playbooks:
    """Bare hosts."""
    books = start(Spec("control", (NodeSpec("gpu-a", "8xh100"), NodeSpec("gpu-b", "t4"))))
    write_inventory(books.cluster.root, MODES)
    return books


@pytest.fixture(scope="module")
def before(books: Playbooks) -> set[str]:
    """What hosts and cluster had before the first run."""
    return hosts(books.cluster) | objects(books.cluster)


@pytest.fixture
def holder(api: Api) -> Iterator[str]:
    """The name of a pod of gpu-a with a claim."""
    claim: Object = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": "train"}}
    api.create(CLAIMS, claim | {"spec": {}})
    result = {"driver": "gpu.kube-accel.io", "pool": "gpu-a/kube-accel", "device": "gpu-00", "request": "gpu"}
    claim = api.get(f"{CLAIMS}/train") | {"status": {"allocation": {"devices": {"results": [result]}}}}
    assert api.call("PUT", f"{CLAIMS}/train/status", claim)[0] == 200
    spec = pod("train", "sleep", "1000", nodeSelector={"kubernetes.io/hostname": "gpu-a"})["spec"]
    spec |= {"resourceClaims": [{"name": "gpu", "resourceClaimName": "train"}]}
    api.create(PODS, {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "train"}, "spec": spec})
    until(lambda: api.get(f"{PODS}/train")["status"].get("phase") == "Running", "the pod with a claim to run")
    yield "default/train"
    for path in (f"{PODS}/train", f"{CLAIMS}/train"):
        api.call("DELETE", path)


def mode(api: Api, node: str = "gpu-a") -> tuple[str, bool, str]:
    """The node's mode, whether it is cordoned, and what is kept off it."""
    found = api.get(f"/api/v1/nodes/{node}")
    labels = found["metadata"]["labels"]
    return labels.get("nvidia-device-enable", ""), found["spec"].get("unschedulable", False), labels.get(HELD, "")


def served(api: Api, node: str = "gpu-a") -> tuple[int, str]:
    """How many devices of the node are in slices, and how many GPUs a plugin offers."""
    slices = [item["spec"] for item in api.get(SLICES)["items"] if item["spec"]["nodeName"] == node]
    offered = api.get(f"/api/v1/nodes/{node}")["status"]["allocatable"].get("nvidia.com/gpu", "0")
    return sum(len(each["devices"]) for each in slices), offered


def switch(books: Playbooks, to: str, *options: str, **variables: object) -> Run:
    given = {"gpu_mode": to, "gpu_plugins_drain": True, "gpu_plugins_drain_force": True} | variables
    return books.run("accel.kubernetes.switch_mode", "--limit", "gpu-a", *options, **given)


def test_node_serves_by_slices_once(books: Playbooks, api: Api, before: set[str]) -> None:
    done = books.run("accel.kubernetes.site")
    assert done.code == 0, done.output
    assert (served(api), served(api, "gpu-b")) == ((8, "0"), (0, "1"))
    # The simulated cluster is older than the first version that serves them so, and does not keep sizes of shares.
    assert "DRAConsumableCapacity is off" in done.output
    classes = {each["metadata"]["name"] for each in api.get(CLASS.rpartition("/")[0])["items"]}
    assert classes == {"gpu.kube-accel.io", "mig.kube-accel.io"}
    assert "extendedResourceName" not in api.get(CLASS)["spec"]

    again = books.run("accel.kubernetes.site")
    assert (again.code, again.changed) == (0, 0), again.output


def test_gpus_are_cut_into_fixed_shares(books: Playbooks, api: Api) -> None:
    done = books.run("accel.kubernetes.site", gpu_plugins_dra_fixed_shares=2)
    assert done.code == 0, done.output
    assert served(api) == (16, "0"), "it ends when all are cut"
    back = books.run("accel.kubernetes.site")
    assert back.code == 0, back.output
    assert served(api) == (8, "0")
    assert api.call("GET", f"{CLASS.rpartition('/')[0]}/fixed-share.kube-accel.io")[0] == 404
    again = books.run("accel.kubernetes.site")
    assert (again.code, again.changed) == (0, 0), again.output


def test_pods_with_claims_are_named_before_a_switch(books: Playbooks, api: Api, holder: str) -> None:
    found = state(books.cluster)
    refused = switch(books, "pgpu", gpu_plugins_drain=False)
    assert refused.code != 0
    assert f"serves mode dra and these pods hold its GPUs: {holder}" in refused.messages
    dry = switch(books, "pgpu", "--check", "--diff")
    assert dry.code == 0, dry.output
    assert f"Would evict {holder}" in dry.output
    assert "gpu-a serves dra and would serve pgpu" in dry.output
    assert state(books.cluster) == found


def test_claim_that_stays_leaves_the_node_as_it_was(books: Playbooks, api: Api, holder: str) -> None:
    failed = switch(books, "pgpu", gpu_plugins_drain_timeout=3)
    assert failed.code != 0
    assert "goes on serving mode dra" in failed.messages
    assert f"these claims still have its GPUs, though no pod on the node does: {holder}" in failed.messages
    assert api.call("GET", f"{PODS}/train")[0] == 404
    assert (mode(api), served(api)) == (("dra", False, ""), (8, "0"))


def test_killed_switch_to_a_plugin_is_resumed(books: Playbooks, api: Api) -> None:
    wanted = {"gpu_mode": "pgpu", "gpu_plugins_drain": True}
    process = books.start("accel.kubernetes.switch_mode", "--limit", "gpu-a", **wanted)
    try:
        until(lambda: mode(api)[2], "the driver to be kept off")
    finally:
        os.killpg(process.pid, signal.SIGKILL)
        process.communicate()
    assert mode(api) == ("dra", True, "dra")
    done = switch(books, "pgpu")
    assert done.code == 0, done.output
    assert "gpu-a: dra, now pgpu" in done.output
    assert (mode(api), served(api)) == (("pgpu", False, ""), (0, "8"))
    again = switch(books, "pgpu")
    assert (again.code, again.changed) == (0, 0), again.output


def test_node_goes_over_from_a_plugin(books: Playbooks, api: Api) -> None:
    limits = {"limits": {"nvidia.com/gpu": "8"}}
    api.create(PODS, pod("all", container={"command": ["sleep", "1000"], "resources": limits}))
    until(lambda: api.get(f"{PODS}/all")["status"].get("phase") == "Running", "the pod with all GPUs to run")
    found = state(books.cluster)
    dry = switch(books, "dra", "--check", "--diff")
    assert (dry.code, state(books.cluster)) == (0, found), dry.output
    assert "Would evict default/all" in dry.output
    done = switch(books, "dra")
    assert done.code == 0, done.output
    assert api.call("GET", f"{PODS}/all")[0] == 404
    assert (mode(api), served(api)) == (("dra", False, ""), (8, "0"))
    # What the plugin told of the node, nobody keeps up to date.
    metadata = api.get("/api/v1/nodes/gpu-a")["metadata"]
    told = {*metadata["labels"], *metadata.get("annotations", {})}
    assert not told & {"kube-accel.io/inventory", "kube-accel.io/labels", "nvidia.com/gpu.product"}


def test_node_is_given_back(books: Playbooks, api: Api, before: set[str]) -> None:
    """By another inventory, after killed runs, and with the socket of a killed driver."""
    cordon = {"metadata": {"annotations": {"kube-accel.io/cordoned": "dra"}}, "spec": {"unschedulable": True}}
    assert api.call("PATCH", "/api/v1/nodes/gpu-a", cordon, MERGE)[0] == 200
    assert api.call("PATCH", "/api/v1/nodes/gpu-b", {"metadata": {"labels": {HELD: "pgpu"}}}, MERGE)[0] == 200
    api.create(CLASS.rpartition("/")[0], {**api.get(CLASS), "metadata": {"name": "share.kube-accel.io"}})
    registry = books.cluster.root / "gpu-a/var/lib/kubelet/plugins_registry"
    (registry / "gpu.kube-accel.io-1-reg.sock").touch()
    process = books.start("accel.kubernetes.uninstall", driver_uninstall=True, gpu_plugins_dra_shares=False)
    try:
        until(lambda: not mode(api)[1], "the node to be uncordoned", 300)
        # kube-scheduler would allocate what no driver prepares.
        assert served(api)[0] == 0
    finally:
        done = ended(process)
    assert done.code == 0, done.output
    assert not [*registry.glob("*.sock")]
    # Kubelet makes the directory for the pod, and others use it as well. The node was cordoned, and is no more.
    remains = {"gpu-a/var/run/cdi 0o40755", "node gpu-a spec unschedulable False"}
    rest = left(before, (hosts(books.cluster) | objects(books.cluster)) - remains)
    assert not rest, "\n".join(rest)
