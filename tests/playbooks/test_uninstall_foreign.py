# SPDX-License-Identifier: Apache-2.0
"""uninstall.yml takes nothing that is not ours."""

from __future__ import annotations

import pytest

from sim.cluster import NodeSpec, Spec
from sim.cluster.client import Api

from .conftest import Start

pytestmark = pytest.mark.full
DAEMONSETS = "/apis/apps/v1/namespaces/kube-system/daemonsets"


def test_a_daemonset_of_others_with_the_name_of_ours_stays(start: Start) -> None:
    books = start(Spec("control", (NodeSpec("gpu-a", "t4"),)))
    api, labels = Api(books.cluster.kubeconfig), {"name": "gpu-manager-ds"}
    template = {"metadata": {"labels": labels}, "spec": {"containers": [{"name": "gpu-manager", "image": "i"}]}}
    head = {"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": {"name": "gpu-manager-daemonset"}}
    api.create(DAEMONSETS, head | {"spec": {"selector": {"matchLabels": labels}, "template": template}})
    done = books.run("accel.kubernetes.uninstall")
    assert done.code == 0, done.output
    assert [item["metadata"]["name"] for item in api.get(DAEMONSETS)["items"]] == ["gpu-manager-daemonset"]
