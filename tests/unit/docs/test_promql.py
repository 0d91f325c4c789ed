# SPDX-License-Identifier: Apache-2.0
"""What the docs would have Prometheus asked, on nodes whose GPUs are shared too."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import yaml

from prometheus import need

DOCS = Path(__file__).parents[3] / "docs"
SHOWN = "".join((DOCS / page).read_text() for page in ("reference/metrics.md", "reference/monitoring.md"))


def asked(begin: str) -> str:
    """The expression that begins so, in one line."""
    (found,) = re.findall(rf"(?:`|promql\n)({re.escape(begin)}[^`]*)`", SHOWN)
    return " ".join(found.split())


def check(directory: Path, series: dict[str, float], expression: str, found: dict[str, float]) -> None:
    question = {"expr": expression, "eval_time": "1m"}
    question["exp_samples"] = [{"labels": labels, "value": value} for labels, value in found.items()]
    inputs = [{"series": name, "values": f"{value}+0x4"} for name, value in series.items()]
    test = {"evaluation_interval": "1m", "tests": [{"input_series": inputs, "promql_expr_test": [question]}]}
    path = directory / "test.yml"
    path.write_text(yaml.safe_dump(test))
    done = subprocess.run([need("promtool"), "test", "rules", path], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr


def test_whose_the_counters_of_an_exporter_are(tmp_path: Path) -> None:
    of = 'namespace="a", container="c", node="n", mode'
    series = {
        'DCGM_FI_PROF_SM_ACTIVE{UUID="GPU-1"}': 0.5,
        'DCGM_FI_PROF_SM_ACTIVE{UUID="GPU-2"}': 0.25,
        f'accel_container_gpu_allocated_gpus{{uuid="GPU-1", pod="whole", {of}="pgpu", plugin="before"}}': 1.0,
        f'accel_container_gpu_allocated_gpus{{uuid="GPU-1", pod="whole", {of}="pgpu", plugin="after"}}': 1.0,
        f'accel_container_gpu_allocated_gpus{{uuid="GPU-2", pod="one", {of}="vgpu"}}': 0.5,
        f'accel_container_gpu_allocated_gpus{{uuid="GPU-2", pod="other", {of}="vgpu"}}': 0.5,
    }
    found = {'{UUID="GPU-1", namespace="a", pod="whole"}': 0.5}
    check(tmp_path, series, asked("DCGM_FI_PROF_SM_ACTIVE * on (UUID)"), found)


def test_what_a_gpu_is_by_its_identity(tmp_path: Path) -> None:
    series = {
        'accel_gpu_power_watts{node="n", uuid="GPU-1"}': 300.0,
        'accel_gpu_info{node="n", uuid="GPU-1", index="0", model="T4", plugin="before"}': 1.0,
        'accel_gpu_info{node="n", uuid="GPU-1", index="0", model="T4", plugin="after"}': 1.0,
    }
    found = {'{node="n", uuid="GPU-1", model="T4"}': 300.0}
    check(tmp_path, series, asked("accel_gpu_power_watts * on"), found)
