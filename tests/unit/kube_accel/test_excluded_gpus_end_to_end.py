# SPDX-License-Identifier: Apache-2.0
"""GPUs that a person excludes, around the shipped commands."""

from __future__ import annotations

import json
import re
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kube_accel.model import Mode
from sim.nvml.topology import Topology
from unit.kube_accel.fraction_node import FractionNode
from unit.kube_accel.test_mig_label_end_to_end import LabelledHost
from unit.kube_accel.test_plugin_end_to_end import DEADLINE, RESOURCE, Host
from waiting import wait


def exclude(state: Path, *entries: object) -> None:
    state.mkdir(mode=0o700, exist_ok=True)
    (state / "excluded-gpus.json").write_text(json.dumps(entries))


@pytest.fixture
def root() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/tmp") as directory:
        yield Path(directory)


def wait_offered(host: Host, *indices: int) -> None:
    wanted = {host.uuids[index] for index in indices}
    host.kubelet.wait(lambda: set(host.kubelet.devices(RESOURCE)) == wanted, DEADLINE)


def test_excluded_gpus_are_not_offered_measured_or_missed(root: Path) -> None:
    with ExitStack() as stack:
        host = Host(root, stack)
        topology = Topology.load(host.conf)
        topology.gpus[7].model = "NVIDIA DGX Display"
        topology.save(host.conf)
        exclude(root / "state", 0, host.uuids[1], topology.gpus[2].pci)
        host.load_driver()
        stack.enter_context(host.kubelet)
        plugin = host.plugin("--metrics-interval", "1")
        wait_offered(host, 3, 4, 5, 6)
        measured = {host.uuids[index] for index in (3, 4, 5, 6)}
        wait(lambda: gpus_in(plugin.probe("/metrics")[1]) == measured, "metrics of the others alone")
        # A list that changes counts without a restart, and one that cannot be read stands for every GPU.
        exclude(root / "state", 0, 3)
        wait_offered(host, 1, 2, 4, 5, 6)
        said = host.run("validate").stdout
        assert "answers, 5 GPUs; left alone: GPU 0 (NVIDIA H100 80GB HBM3) by 0, GPU 3 (" in said
        assert "GPU 7 (NVIDIA DGX Display) by display card" in said
        assert "does not see" not in said
        (root / "state/excluded-gpus.json").write_text("[")
        wait_offered(host)
        assert "excluded-gpus.json cannot be used: " in host.run("validate").stdout
        (root / "state/excluded-gpus.json").unlink()
        wait_offered(host, *range(7))


def gpus_in(metrics: str) -> set[str]:
    return set(re.findall(r"GPU-[0-9a-f-]{36}", metrics))


@pytest.mark.parametrize("mode", [Mode.VGPU, Mode.CGPU])
def test_no_share_is_made_of_an_excluded_gpu(root: Path, mode: Mode) -> None:
    with ExitStack() as stack:
        node = FractionNode(root, stack, mode)
        exclude(root / "state", 0)
        node.start_api()
        node.start(wait_for=False)
        wait(lambda: node.healthy() == set(node.uuids[1:]), "shares of the others")
        wait(lambda: (told := node.annotation()) and told.inventory, "the annotation")
        told = node.annotation()
        assert told is not None
        assert [gpu.uuid for gpu in told.inventory.gpus] == node.uuids[1:]


def test_an_excluded_gpu_is_not_cut(root: Path) -> None:
    with ExitStack() as stack:
        host = LabelledHost(root, stack)
        exclude(root / "state", host.uuids[2])
        host.label("large")
        host.cutting()
        wait(lambda: [mig for mig in Topology.load(host.conf).migs if mig.gpu == 0], "GPU 0 to be cut")
        wait(lambda: len([mig for mig in Topology.load(host.conf).migs if mig.gpu == 0]) == 2, "its two devices")
        assert not [mig for mig in Topology.load(host.conf).migs if mig.gpu == 2]
