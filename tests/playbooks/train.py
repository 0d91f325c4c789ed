# SPDX-License-Identifier: Apache-2.0
"""A deployment whose two pods hold a GPU of a node each, and what spares such pods."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from sim.cluster.client import Api, pod, until
from sim.cluster.kinds import Object

DEPLOYMENTS = "/apis/apps/v1/namespaces/default/deployments"
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
GPU: Object = {"image": "none", "command": ["sleep", "1000"], "resources": {"limits": {"nvidia.com/gpu": "1"}}}


@contextmanager
def train(api: Api) -> Iterator[None]:
    """Both pods run; they go in the end."""
    template = {"metadata": {"labels": {"app": "train"}}, "spec": pod("train", container=GPU)["spec"]}
    spec = {"replicas": 2, "selector": {"matchLabels": {"app": "train"}}, "template": template}
    head = {"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "train"}}
    api.create(DEPLOYMENTS, head | {"spec": spec})
    until(lambda: len(running(api)) == 2, "both pods run")
    yield
    api.call("DELETE", f"{DEPLOYMENTS}/train")


def running(api: Api) -> dict[str, str]:
    """The names of the pods that run, by node."""
    pods = api.get("/api/v1/namespaces/default/pods?labelSelector=app%3Dtrain")["items"]
    return {item["spec"]["nodeName"]: item["metadata"]["name"] for item in pods if item["status"]["phase"] == "Running"}


@contextmanager
def spared(api: Api, least: int) -> Iterator[str]:
    """A budget that leaves none of so many pods to be evicted; its path."""
    spec = {"minAvailable": least, "selector": {"matchLabels": {"app": "train"}}}
    head = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget", "metadata": {"name": "train"}}
    api.create(BUDGETS, head | {"spec": spec})
    yield f"{BUDGETS}/train"
    api.call("DELETE", f"{BUDGETS}/train")
