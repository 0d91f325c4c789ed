# SPDX-License-Identifier: Apache-2.0
"""A small Kubernetes cluster in one process, without root: API server, controllers, scheduler, nodes."""

from sim.cluster.cluster import Cluster, Spec
from sim.cluster.host import NodeSpec

__all__ = ["Cluster", "NodeSpec", "Spec"]
