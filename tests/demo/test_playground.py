# SPDX-License-Identifier: Apache-2.0
"""The playground as a user has it: it serves GPUs until Ctrl-C, which leaves nothing behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from programs import program
from sim.cluster.client import Api, until

from .test_interrupt import processes_about

ROOT = Path(__file__).parents[2]
PODS = "/api/v1/namespaces/default/pods"


@pytest.mark.full
def test_playground_serves_gpus_until_ctrl_c(tmp_path: Path) -> None:
    (tmp_path / ".build").mkdir()
    playground = subprocess.Popen(
        [sys.executable, "-m", "demo.playground"],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1]), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert playground.stdout
        assert any("Programs of pods run on this machine" in line for line in playground.stdout)
        kubeconfig = tmp_path / ".build/playground/kubeconfig"
        root = str(kubeconfig.resolve().parent)
        api = Api(kubeconfig)
        for name in ("one_gpu", "gpu_share"):
            api.create(PODS, yaml.safe_load((ROOT / f"examples/kubernetes/{name}.yml").read_text()))
        for name in ("one-gpu", "gpu-share"):
            until(lambda name=name: api.get(f"{PODS}/{name}")["status"]["phase"] == "Succeeded", f"{name} to end")
        command = [program("kubectl-inspect-gpu"), "--kubeconfig", str(kubeconfig)]
        shown = subprocess.run(command, check=True, capture_output=True, text=True).stdout
        assert "gpu-1" in shown
        os.killpg(playground.pid, signal.SIGINT)
        _, errors = playground.communicate(timeout=60)
    finally:
        if playground.poll() is None:
            os.killpg(playground.pid, signal.SIGKILL)
    assert playground.returncode == 0, errors
    assert not Path(root).exists()
    assert not [*(tmp_path / ".build/playground").glob("k*")]
    assert not processes_about(root)
