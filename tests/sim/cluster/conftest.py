# SPDX-License-Identifier: Apache-2.0
"""A running cluster."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from sim.cluster import Cluster, NodeSpec, Spec
from sim.cluster.client import Api


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    nodes = (NodeSpec("n1", "8xh100"), NodeSpec("n2", "t4", containerd="2.1.4"))
    with tempfile.TemporaryDirectory(prefix="kc") as root, Cluster(Path(root), Spec("cp", nodes)) as running:
        yield running


@pytest.fixture(scope="module")
def api(cluster: Cluster) -> Api:
    return Api(cluster.kubeconfig)
