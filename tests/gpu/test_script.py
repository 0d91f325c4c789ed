# SPDX-License-Identifier: Apache-2.0
"""The script for machines with a GPU, on the simulated driver as far as that goes, so that it cannot rot."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

import sim.cuda
import sim.nvml
from sim.nvml import profiles

SCRIPT = Path(__file__).with_name("run.sh")
GOOD = {
    "cuGetProcAddress answers the export expected": "439 of 439",
    "cuGetProcAddress answers what is no export": "0",
    "with 4 GiB: total shown": "4 GiB",
    "with 4 GiB: 3 GiB by cuMemAlloc": "CUDA error 0",
    "with 4 GiB: 2 GiB more by cuMemAlloc": "CUDA error 2",
    "with 4 GiB: 2 GiB more by cuMemAllocAsync": "CUDA error 2",
    "with 4 GiB: 2 GiB more by cuMemCreate": "CUDA error 2",
    "charged for a process that holds 1 GiB": "1024 MiB",
}
MEASURED = {
    *("NVML sees of it beyond that", "a gated launch", "an allocation of 2 MiB", "share at 30 %"),
    *("plugin: devices offered", "plugin: devices in a container", "plugin: validate"),
    *("four processes in 40 %", "two tenants, 30 and 70 %", "GPU time without gate, kernels of 2 ms"),
}


@pytest.mark.ci
def test_runs_on_the_simulated_driver(tmp_path: Path) -> None:
    driver = sim.cuda.build(tmp_path / "driver/lib64").parent
    sim.nvml.build(driver)
    machine = profiles.h100("sim")
    machine.save(tmp_path / "gpusim.conf")
    for library in driver.glob("lib*.so.1"):
        versioned = library.rename(library.with_suffix(f".{machine.system.driver}"))
        library.symlink_to(versioned.name)
    environment = {
        **os.environ,
        "PYTHON": sys.executable,
        "KUBE_ACCEL_GPU_DRIVER": str(driver),
        "LD_LIBRARY_PATH": str(driver),
        "GPUSIM_FILE": str(tmp_path / "gpusim.conf"),
        "GPU_KERNEL": "blocks",
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
    }
    command = [SCRIPT, "--out", tmp_path / "out", "--seconds", "0.4"]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=300)
    assert done.stderr == ""
    rows = {row["check"]: row for row in json.loads((tmp_path / "out/results.json").read_text())["rows"]}
    assert {check: rows[check]["value"] for check in GOOD} == GOOD
    assert all(rows[check]["good"] for check in GOOD)
    assert rows.keys() >= MEASURED
    assert [check for check, row in rows.items() if row["value"].startswith("failed")] == []
    assert "not installed" in rows["mps"]["value"]
