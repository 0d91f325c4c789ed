# SPDX-License-Identifier: Apache-2.0
"""A node of mode dra gets another driver, and a trial pod: pods with claims hold its GPUs."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from sim.cluster import NodeSpec, Spec
from sim.cluster.client import Api, pod, until

from .conftest import Playbooks, Run, Start
from .driver import NEW, OLD, loaded, runfile
from .test_dra import PODS, SLICES

pytestmark = pytest.mark.full
TRIAL = "kube-accel-validate-gpu-a"
SYSTEM = "/api/v1/namespaces/kube-system/pods"


@pytest.fixture(scope="module")
def books(start: Start) -> Playbooks:
    """A node that serves by claims with the old driver."""
    books = start(Spec("control", (NodeSpec("gpu-a", "t4"),), driver_versions=(OLD, NEW)))
    done = run(books, "site", OLD)
    assert (done.code, loaded(books, "gpu-a")) == (0, OLD), done.output
    return books


@pytest.fixture
def holder(api: Api) -> Iterator[str]:
    """The name of a pod with a claim."""
    body = pod("train", "sleep", "1000")
    body["spec"]["resourceClaims"] = [{"name": "gpu", "resourceClaimName": "train"}]
    api.create(PODS, body)
    until(lambda: api.get(f"{PODS}/train")["status"].get("phase") == "Running", "the pod with a claim to run")
    yield "default/train"
    api.call("DELETE", f"{PODS}/train")


def run(books: Playbooks, name: str, driver: str, **variables: object) -> Run:
    return books.run(
        f"accel.kubernetes.{name}",
        scheduler_layout="none",
        gpu_mode="dra",
        driver_runfile=runfile(books, driver),
        driver_reload_plugin_socket=str(books.cluster.root) + "/{{ inventory_hostname }}/var/lib/kube-accel/admin.sock",
        **variables,
    )


def versions(api: Api) -> set[str]:
    """What the devices of the node's slices tell of the driver."""
    devices = [device for item in api.get(SLICES)["items"] for device in item["spec"]["devices"]]
    return {device["attributes"]["driverVersion"]["version"] for device in devices}


def test_trial_pod_has_a_claim_and_goes(books: Playbooks, api: Api) -> None:
    """Nobody allocates claims on the simulated cluster, so that the pod finds no GPU."""
    done = run(books, "validate", OLD, validate_pod=True, gpu_plugins_ready_timeout=30)
    assert "A pod with 1 gpu.kube-accel.io is" in done.output, done.output
    assert api.call("GET", f"{SYSTEM}/{TRIAL}")[0] == 404
    assert [item["metadata"]["name"] for item in api.get("/apis/resource.k8s.io/v1/resourceclaims")["items"]] == []


def test_driver_is_replaced_once_pods_with_claims_are_gone(books: Playbooks, api: Api, holder: str) -> None:
    refused = run(books, "site", NEW)
    assert refused.code != 0
    assert f"and these pods hold its GPUs: {holder}" in refused.messages
    assert (refused.changed, versions(api)) == (0, {semantic(OLD)})
    done = run(books, "upgrade_driver", NEW, gpu_plugins_drain_force=True)
    assert done.code == 0, done.output
    assert api.call("GET", f"{PODS}/train")[0] == 404
    assert (loaded(books, "gpu-a"), versions(api)) == (NEW, {semantic(NEW)})
    assert not api.get("/api/v1/nodes/gpu-a")["spec"].get("unschedulable", False)


def semantic(version: str) -> str:
    return ".".join(str(int(part)) for part in version.split("."))
