# SPDX-License-Identifier: Apache-2.0
"""benchmark.yml has a GPU cut by MIG in turn, and cut as before in the end."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from sim.cluster import NodeSpec, Spec
from sim.cluster.client import Api
from sim.cluster.kinds import Object
from sim.inventory import write_inventory
from sim.nvml.topology import Topology

from .conftest import Playbooks, Start

pytestmark = pytest.mark.full
NODE = "/api/v1/nodes/gpu-a"
CUT: Object = {
    "halves": [{"devices": "all", "mig-enabled": True, "mig-devices": {"3g.20gb": 2}}],
    "mixed": [{"devices": "all", "mig-enabled": True, "mig-devices": {"4g.20gb": 1, "2g.10gb": 1, "1g.5gb": 1}}],
    "whole": [{"devices": "all", "mig-enabled": False}],
}
VARIABLES: Object = {
    "scheduler_layout": "none",
    "gpu_plugins_mig_strategy": "mixed",
    "gpu_plugins_mig_configs": {"version": "v1", "mig-configs": CUT},
    "gpu_plugins_mig_config": "whole",
}
# The simulated CUDA driver has no MIG devices.
WORK: Object = {
    "benchmark_image": "example.org/own:1",
    "benchmark_command": ["sh", "-c", "echo took 4.5 s on $NVIDIA_VISIBLE_DEVICES"],
    "benchmark_figure": "took (.*) s",
}


@pytest.fixture(scope="module")
def books(start: Start) -> Playbooks:
    """A node with a GPU that MIG can cut, and that is whole."""
    books = start(Spec("control", (NodeSpec("gpu-a", "a100"),)))
    write_inventory(books.cluster.root, **VARIABLES)
    done = books.run("accel.kubernetes.site")
    assert done.code == 0, done.output
    return books


def gpus(books: Playbooks) -> Topology:
    return Topology.load(books.cluster.root / "gpu-a/gpusim.conf")


def test_a_gpu_is_cut_in_turn_and_whole_in_the_end(books: Playbooks, api: Api, tmp_path: Path) -> None:
    report = tmp_path / "all.json"
    layouts: list[object] = [{"mode": "pgpu", "mig_config": name} for name in ("whole", "halves", "mixed")]
    done = books.run(
        "accel.kubernetes.benchmark",
        benchmark_node="gpu-a",
        benchmark_layouts=[*layouts, "vgpu"],
        benchmark_sharers="2",
        benchmark_json=str(report),
        **WORK,
    )
    assert done.code == 0, done.output
    rows = {row["layout"]: (row["pods"], round(row["share"], 3)) for row in json.loads(report.read_text())["rows"]}
    assert rows == {
        "whole": (1, 1),
        "MIG 3g.20gb": (2, 0.429),
        "MIG 1g.5gb": (1, 0.143),
        "MIG 2g.10gb": (1, 0.286),
        "MIG 4g.20gb": (1, 0.571),
        "vGPU x2": (2, 0.5),
    }
    node = api.get(NODE)
    assert node["metadata"]["labels"]["nvidia-device-enable"] == "pgpu"
    assert "kube-accel.io/benchmark" not in node["metadata"]["annotations"]
    offered = {name: amount for name, amount in node["status"]["allocatable"].items() if "/" in name and amount != "0"}
    assert (offered, node["spec"].get("unschedulable", False)) == ({"nvidia.com/gpu": "1"}, False)
    assert [gpu.mig for gpu in gpus(books).gpus] == [0]
