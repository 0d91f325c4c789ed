# SPDX-License-Identifier: Apache-2.0
"""Nodes that NVIDIA's plugin serves become ours in turn, and NVIDIA's again.

What is refused is tried with a device plugin that stands for NVIDIA's, where its own is not here.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from sim.cluster import NodeSpec, Spec
from sim.cluster.client import MERGE, Api, until
from sim.cluster.kinds import Object

from .conftest import Playbooks, Run, Start, state
from .controller import REPOSITORY
from .test_dra import SLICES
from .train import running, train

BINARY = Path(os.environ.get("KUBEBUILDER_ASSETS", "/usr/local/kubebuilder/bin"), "nvidia-device-plugin")
OWN = BINARY.is_file() and os.geteuid() == 0
"""Whether NVIDIA's own is run: its namespace of mounts needs root."""
pytestmark = pytest.mark.full
needs_own = pytest.mark.skipif(not OWN, reason=f"NVIDIA's plugin is not here: no {BINARY}, or no root")
NODES = ("gpu-a", "gpu-b")
NAMESPACE = "/apis/apps/v1/namespaces/default"
NAME, GPU = "nvdp-nvidia-device-plugin", "nvidia.com/gpu"
DAEMONSET = f"{NAMESPACE}/daemonsets/{NAME}"
PODS = "/api/v1/namespaces/default/pods"
MARK = "kube-accel.io/migrated-from"
# Kubelet's directory, /sys and /dev are built into it: in its namespace they are the node's.
MOUNTS = (
    "mount -t tmpfs tmpfs /var/lib && mkdir -p /var/lib/kubelet/device-plugins && "
    'mount --bind "$1" /var/lib/kubelet/device-plugins && mount --bind "$2" /sys/bus/pci && mount --bind "$3" /dev && '
    'shift 3 && exec "$@" --kubelet-socket=/var/lib/kubelet/device-plugins/kubelet.sock'
)
# containerd has no handler for the runtime class of our plugin's pods.
BROKEN = {"gpu_plugins_runtime_class": "none", "gpu_plugins_ready_timeout": 5}
VARIABLES = {"scheduler_layout": "none", "gpu_plugins_drain_timeout": 30}


def command(resource: str) -> list[str]:
    """What serves a resource from kubelet's directory: NVIDIA's own where it is here."""
    if not OWN or resource != GPU:
        return ["python3", str(REPOSITORY / "tests/playbooks/peer.py"), "/host/device-plugins", resource, "1"]
    words = ["unshare", "--mount", "sh", "-c", MOUNTS, "sh", "/host/device-plugins", "/host/sys/bus/pci", "/host/dev"]
    return [*words, str(BINARY), "--pass-device-specs", "--device-discovery-strategy=nvml"]


def serving(name: str, image: str, resource: str, **spec: Any) -> Object:
    """A DaemonSet whose pods serve a resource."""
    paths = {"plugins": "/var/lib/kubelet/device-plugins", "sys": "/sys", "dev": "/dev"}
    mounts = {"plugins": "/host/device-plugins", "sys": "/host/sys", "dev": "/host/dev"}
    tests = {"name": "PYTHONPATH", "value": str(REPOSITORY / "tests")}
    container = {
        "name": "nvidia-device-plugin-ctr",
        "image": image,
        "command": command(resource),
        "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}, tests],
        "volumeMounts": [{"name": volume, "mountPath": path} for volume, path in mounts.items()],
    }
    volumes = [{"name": volume, "hostPath": {"path": path}} for volume, path in paths.items()]
    labels = {"app.kubernetes.io/name": name}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": name},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [container], "runtimeClassName": "nvidia", "volumes": volumes, **spec},
            },
            "updateStrategy": {"type": "RollingUpdate", "rollingUpdate": {"maxUnavailable": 1}},
        },
    }


def daemonset() -> Object:
    """The plugin as NVIDIA's chart rolls it out, with what it takes to run it here."""
    present = {"key": "nvidia.com/gpu.present", "operator": "In", "values": ["true"]}
    required = {"nodeSelectorTerms": [{"matchExpressions": [present]}]}
    affinity = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
    found = serving(NAME, "nvcr.io/nvidia/k8s-device-plugin:v0.20.0", GPU, affinity=affinity)
    helm = {"meta.helm.sh/release-name": "nvdp", "meta.helm.sh/release-namespace": "default"}
    found["metadata"]["annotations"] = helm
    return found


@pytest.fixture(scope="module")
def books(start: Start) -> Playbooks:
    """Two nodes with a driver and a configured runtime, which NVIDIA's plugin serves."""
    books = start(Spec("control", tuple(NodeSpec(name, "t4") for name in NODES)))
    done = books.run("accel.kubernetes.site", "--tags", "driver,container_runtime", **VARIABLES)
    assert done.code == 0, done.output
    api = Api(books.cluster.kubeconfig)
    runtime = {
        "apiVersion": "node.k8s.io/v1",
        "kind": "RuntimeClass",
        "metadata": {"name": "nvidia"},
        "handler": "nvidia",
    }
    api.create("/apis/node.k8s.io/v1/runtimeclasses", runtime)
    for name in NODES:
        api.call("PATCH", f"/api/v1/nodes/{name}", {"metadata": {"labels": {"nvidia.com/gpu.present": "true"}}}, MERGE)
    api.create(f"{NAMESPACE}/daemonsets", daemonset())
    until(lambda: offered(api) == ["1", "1"], "NVIDIA's plugin serves both")
    return books


@pytest.fixture(scope="module")
def training(api: Api) -> Iterator[None]:
    with train(api):
        yield


def offered(api: Api, resource: str = GPU) -> list[str]:
    """How much of a resource each node offers."""
    return [api.get(f"/api/v1/nodes/{name}")["status"]["allocatable"].get(resource, "0") for name in NODES]


def theirs(api: Api) -> dict[str, str]:
    """Pods of NVIDIA's plugin by node."""
    pods = api.get(f"{PODS}?labelSelector=app.kubernetes.io%2Fname%3D{NAME}")["items"]
    return {item["spec"]["nodeName"]: item["metadata"]["uid"] for item in pods}


def marks(api: Api) -> list[tuple[str, str, bool]]:
    """Returns for each node from whom it was taken over, what it serves, and whether it is cordoned."""
    nodes = [api.get(f"/api/v1/nodes/{name}") for name in NODES]
    labels = [node["metadata"]["labels"] for node in nodes]
    return [
        (label.get(MARK, ""), label.get("nvidia-device-enable", ""), node["spec"].get("unschedulable", False))
        for label, node in zip(labels, nodes, strict=True)
    ]


def migrate(books: Playbooks, *options: str, **variables: object) -> Run:
    return books.run("accel.kubernetes.migrate", *options, **VARIABLES | variables)


@pytest.mark.usefixtures("training")
def test_a_dry_run_shows_the_plan_and_changes_nothing(books: Playbooks, api: Api) -> None:
    before = state(books.cluster)
    done = migrate(books, "--check", gpu_plugins_drain=True)
    assert done.code == 0, done.output
    assert state(books.cluster) == before
    for name in NODES:
        assert f"{name}: label nvidia-device-enable: none becomes pgpu" in done.output
        assert f"{name}: 1 nvidia.com/gpu becomes the same" in done.output
        assert f"{name}: served by another plugin, from NVIDIA's device plugin, and would be migrated" in done.output
    refused = migrate(books)
    assert refused.code != 0
    assert "is served by another plugin and these pods hold its GPUs: default/train-" in refused.messages
    assert "before the node is taken over from NVIDIA's device plugin" in refused.messages
    assert (refused.changed, state(books.cluster)) == (0, before)


@contextmanager
def beside(api: Api, resource: str) -> Iterator[None]:
    """A plugin that is not known here serves the second node too."""
    name = resource.partition(".")[0] + "-device-plugin"
    item = serving(name, "registry.example/plugin:1", resource, nodeSelector={"kubernetes.io/hostname": NODES[1]})
    api.create(f"{NAMESPACE}/daemonsets", item)
    until(lambda: offered(api, resource) == ["0", "1"], "the other plugin serves")
    yield
    api.call("DELETE", f"{NAMESPACE}/daemonsets/{name}")
    until(lambda: offered(api, resource) == ["0", "0"], "the other plugin has left")


def test_a_plugin_that_is_not_known_keeps_all_nodes_as_they_are(books: Playbooks, api: Api) -> None:
    with beside(api, "nvshare.com/gpu"):
        before = state(books.cluster)
        refused = migrate(books, gpu_plugins_drain=True)
        assert refused.code != 0
        assert "Node 'gpu-b': it offers 1 nvshare.com/gpu by a plugin that is not known here" in refused.messages
        assert "it may be DaemonSet default/nvshare-device-plugin" in refused.messages
        assert (refused.changed, state(books.cluster)) == (0, before)


@needs_own
@pytest.mark.usefixtures("training")
def test_first_failure_stops_and_next_run_resumes_there(books: Playbooks, api: Api) -> None:
    pods = theirs(api)
    failed = migrate(books, gpu_plugins_drain=True, **BROKEN)
    assert failed.code != 0, failed.output
    assert "Node 'gpu-a' was not taken over" in failed.messages
    assert "migrate_back=true with --limit gpu-a" in failed.messages
    assert marks(api) == [("nvidia", "pgpu", True), ("", "", False)]
    # The other node's plugin was not even restarted, although its DaemonSet is another.
    assert theirs(api) == {"gpu-b": pods["gpu-b"]}

    done = migrate(books, gpu_plugins_drain=True)
    assert done.code == 0, done.output
    assert marks(api) == [("nvidia", "pgpu", False), ("nvidia", "pgpu", False)]
    assert theirs(api) == {}
    assert offered(api) == ["1", "1"]
    until(lambda: len(running(api)) == 2, "both pods are back")
    assert (
        "NVIDIA's device plugin is on no node any more; to remove it: helm uninstall nvdp --namespace default"
        in done.output
    )
    again = migrate(books)
    assert (again.code, again.changed) == (0, 0), again.output
    # The site goes on with what was taken over, while NVIDIA's DaemonSet is still there.
    site = books.run("accel.kubernetes.site", "--check", "--tags", "gpu_plugins", **VARIABLES)
    assert (site.code, site.changed) == (0, 0), site.output


@needs_own
@pytest.mark.usefixtures("training")
def test_what_was_taken_over_can_be_given_back_as_it_was(books: Playbooks, api: Api) -> None:
    done = migrate(books, migrate_back=True, gpu_plugins_drain=True)
    assert done.code == 0, done.output
    assert marks(api) == [("", "", False), ("", "", False)]
    until(lambda: offered(api) == ["1", "1"] and sorted(theirs(api)) == sorted(NODES), "NVIDIA's plugin serves again")
    until(lambda: len(running(api)) == 2, "both pods are back")
    found, expected = api.get(DAEMONSET), daemonset()
    assert found["spec"]["updateStrategy"] == expected["spec"]["updateStrategy"]
    assert found["spec"]["template"]["spec"] == expected["spec"]["template"]["spec"]
    assert found["metadata"]["annotations"] == expected["metadata"]["annotations"]
    names = [item["metadata"]["name"] for item in api.get("/apis/apps/v1/namespaces/kube-system/daemonsets")["items"]]
    assert names == []
    annotations = api.get("/api/v1/nodes/gpu-a")["metadata"].get("annotations") or {}
    assert not [name for name in annotations if "kube-accel" in name], yaml.safe_dump(annotations)


def test_node_of_a_device_plugin_goes_over_to_claims(books: Playbooks, api: Api) -> None:
    """Our driver has slices only once NVIDIA's plugin offers nothing."""
    done = migrate(books, "--limit", NODES[1], gpu_mode="dra", gpu_plugins_drain=True, migrate_strand=True)
    assert done.code == 0, done.output
    assert marks(api)[1] == ("nvidia", "dra", False)
    assert offered(api) == ["1", "0"]
    assert {item["spec"]["nodeName"] for item in api.get(SLICES)["items"]} == {NODES[1]}
    assert set(theirs(api)) == {NODES[0]}
