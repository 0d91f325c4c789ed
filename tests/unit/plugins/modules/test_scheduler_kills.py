# SPDX-License-Identifier: Apache-2.0
"""scheduler_extender, killed before each thing it does to the host, one run a step."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

from unit.plugins.conftest import COLLECTIONS
from unit.plugins.modules import killed_module
from unit.plugins.modules.control_plane import BINPACK, EXTENDER, ControlPlane

CHANGE = {"extenders": [EXTENDER], "binpack_resources": BINPACK}
UNDO = {"state": "absent"}


def killed(node: ControlPlane, step: int | str, options: dict[str, Any]) -> str:
    """The act before which the run died; empty when it lived."""
    wire = {"ANSIBLE_MODULE_ARGS": node.arguments(**options) | {"_ansible_remote_tmp": str(node.root.parent)}}
    done = subprocess.run(
        [sys.executable, killed_module.__file__, str(step), "scheduler_extender", str(COLLECTIONS)],
        input=json.dumps(wire),
        capture_output=True,
        text=True,
        timeout=180,
        check=False,
    )
    if done.returncode == 0:
        assert json.loads(done.stdout)["changed"], done.stdout
        return ""
    assert done.returncode < 0, done.stdout + done.stderr
    return done.stderr.splitlines()[-1]


def timer(backups: Path) -> bool:
    """What the host's timer would run; whether one was set."""
    armed = list(backups.rglob("armed"))
    for path in armed:
        script = path.with_name("restore.sh")
        if script.exists():
            subprocess.run(["/bin/sh", script, path.read_text()], check=True, timeout=30)
    return bool(armed)


def has_a_scheduler(node: ControlPlane, allowed: list[dict[str, bytes]]) -> None:
    """One manifest, which is whole, and with the configuration it names."""
    assert node.kubelet.seen == {"kube-scheduler.yaml"}
    command = node.pod()["spec"]["containers"][0]["command"]
    if any(word.startswith("--config=") for word in command):
        assert yaml.safe_load(node.config.read_text())["kind"] == "KubeSchedulerConfiguration"
    assert node.manifest.read_bytes() in [files["etc/kubernetes/manifests/kube-scheduler.yaml"] for files in allowed]


def test_kill_before_the_manifest_is_undone_and_done_again(node: ControlPlane) -> None:
    assert killed(node, f"write {node.manifest}", CHANGE)
    assert node.config.exists()

    result = node.run(**CHANGE, timeout=8)

    assert result["recovered"] == "restored", result
    assert "--config=/etc/kubernetes/kube-accel/scheduler.yaml" in node.pod()["spec"]["containers"][0]["command"]


@pytest.mark.full
@pytest.mark.parametrize("by_timer", [False, True], ids=["next run", "timer"])
@pytest.mark.parametrize("options", [CHANGE, UNDO], ids=["present", "absent"])
def test_kill_before_any_act_leaves_the_change_to_the_next_run(
    node: ControlPlane, options: dict[str, Any], by_timer: bool
) -> None:
    original = node.files()
    node.run(**CHANGE)
    changed = node.files()
    before, after = (original, changed) if options is CHANGE else (changed, original)
    acts = []
    timers = 0
    for step in range(1, 100):
        node.run(**(UNDO if options is CHANGE else CHANGE))
        assert node.files() == before
        act = killed(node, step, options)
        has_a_scheduler(node, [before, after])
        if not act:
            break
        acts.append(act)
        if by_timer and timer(node.root.parent / "backups"):
            timers += 1
            has_a_scheduler(node, [before])
        result = node.run(**options)
        assert not result.get("failed"), f"{act}: {result['msg']}"
        assert node.files() == after, act
        assert not node.run(**options)["changed"], act
    assert node.files() == after
    assert len(acts) > 10, acts
    assert any(act.startswith("write") and act.endswith("kube-scheduler.yaml") for act in acts), acts
    assert (timers > 3) is by_timer
