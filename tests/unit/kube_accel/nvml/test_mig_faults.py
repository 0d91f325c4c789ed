# SPDX-License-Identifier: Apache-2.0
"""Whatever a function of NVML answers while GPUs are to be cut, nothing is cut, and the GPU and function are named."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest

from kube_accel.shared import mig_nvml, nvml_library
from sim.nvml import profiles
from sim.nvml.conftest import Node, loaded, node  # noqa: F401
from sim.nvml.topology import Topology

KINDS = ("Compute", "Graphics", "MPSCompute")
OF_THE_DRIVER = {"nvmlInit_v2", "nvmlDeviceGetCount_v2"}
CHANGES = {
    "nvmlDeviceSetMigMode",
    "nvmlDeviceCreateGpuInstanceWithPlacement",
    "nvmlGpuInstanceCreateComputeInstance",
    "nvmlGpuInstanceDestroy",
    "nvmlComputeInstanceDestroy",
}
DOCUMENT = {
    "version": "v1",
    "mig-configs": {"seven": [{"devices": "all", "mig-enabled": True, "mig-devices": {"1g.5gb": 7}}]},
}


def used() -> set[str]:
    """The functions that the modules call, which they name by text."""
    found: set[str] = set()
    for module in (mig_nvml, nvml_library):
        words = list(ast.walk(ast.parse(Path(str(module.__file__)).read_text())))
        composed = [word for word in words if isinstance(word, ast.JoinedStr)]
        parts = {id(part) for word in composed for part in word.values}
        for word in composed:
            text = "".join(str(part.value) if isinstance(part, ast.Constant) else "{}" for part in word.values)
            found |= {text.replace("{}", kind) for kind in KINDS}
        found |= {
            word.value
            for word in words
            if isinstance(word, ast.Constant) and isinstance(word.value, str) and id(word) not in parts
        }
    return {name for name in found if name.startswith("nvml") and name.isidentifier()}


OF_ONE_GPU = sorted(used() - OF_THE_DRIVER - CHANGES)


def machine() -> Topology:
    return profiles.PROFILES["4xa100-mig"]("n")


def planned(library: Path) -> dict[str, Any]:
    return mig_nvml.carry_out(str(library), DOCUMENT, "seven", check=True)


def test_each_function_is_of_one_gpu_of_the_driver_or_a_change() -> None:
    assert used() >= OF_THE_DRIVER | CHANGES
    assert len(OF_ONE_GPU) > 15


@pytest.mark.parametrize("answer", ["999", "4242", "7", "nothing", "garbage"])
@pytest.mark.parametrize("function", OF_ONE_GPU)
def test_a_fault_is_refused_with_gpu_and_function(node: Node, library: Path, function: str, answer: str) -> None:  # noqa: F811
    machine().save(node.path)
    assert planned(library)["changed"] is True
    ill = machine()
    ill.fail(0, function, answer)
    ill.save(node.path)
    found = planned(library)
    if answer in ("999", "4242"):
        assert found["refused"].startswith(f"GPU 0 cannot be read: {function} failed")
    else:
        # An answer may pass for a true one; then it is planned with it.
        assert "GPU 0" in found.get("refused", "GPU 0")
