# SPDX-License-Identifier: Apache-2.0
"""A dry run tells of the start of the driver's services, also where their units are not there yet."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from sim.cluster import NodeSpec
from sim.cluster.host import create

from .conftest import simulated_play

pytestmark = pytest.mark.ci
Run = Callable[..., tuple[int, str]]
PERSISTENCE, FABRIC = "nvidia-persistenced", "nvidia-fabricmanager"
FABRIC_PLAN = {"start": True, "service": "started", "install": True}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    made = create(tmp_path, NodeSpec("gpu-a"))
    (made / "dev/nvidia-uvm").parent.mkdir(exist_ok=True)
    (made / "dev/nvidia-uvm").touch()
    return made


@pytest.fixture
def run(tmp_path: Path, tree: Path) -> Run:
    """Play what configures the driver with this plan; how many tasks changed something, and what it said."""

    def play(*options: str, persistence: bool = False, **fabric: Any) -> tuple[int, str]:
        reboot = {"reload": False, "now": False, "needed": False}
        observed = {"boot_modules": "", "device_files": True}
        fabric = {"start": False, "install": False} | fabric
        plan = {"offline": False, "observed": observed, "reboot": reboot, "fabric": fabric}
        words = {
            "__driver_plan": plan,
            "driver_persistence": persistence,
            "driver_etc_dir": str(tree / "etc"),
            "driver_dev_root": str(tree / "dev"),
            "ansible_python_interpreter": str(tree / "usr/bin/python3"),
        }
        role = {"name": "accel.kubernetes.driver", "tasks_from": "configure"}
        command, environment = simulated_play(tmp_path, [{"ansible.builtin.include_role": role}], words)
        done = subprocess.run([*command, *options], env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout
        return int(done.stdout.rpartition("changed=")[2].split()[0]), done.stdout

    return play


def starts(tree: Path, unit: str) -> int:
    """How often a unit was started."""
    return int(json.loads((tree / f"var/lib/sim-systemd/{unit}.json").read_text())["starts"])


def state(tree: Path, unit: str) -> tuple[str, bool]:
    """Whether a unit is active, and enabled."""
    found = json.loads((tree / f"var/lib/sim-systemd/{unit}.json").read_text())
    return found["active"], found["enabled"]


def test_dry_run_tells_of_the_persistence_daemon(run: Run, tree: Path) -> None:
    run()
    foretold, said = run("--check", persistence=True)
    assert "nvidia-persistenced.service would be enabled and started." in said
    assert (run(persistence=True)[0], foretold) == (2, 2)
    assert state(tree, PERSISTENCE) == ("active", True)
    assert (run("--check", persistence=True)[0], run(persistence=True)[0]) == (0, 0)
    (tree / f"etc/systemd/system/{PERSISTENCE}.service").write_text("of a package")
    assert (run("--check", persistence=True)[0], run(persistence=True)[0]) == (2, 2)


def test_a_package_daemon_ends_whichever_run_wrote_our_unit(run: Run, tree: Path) -> None:
    """A run that is stopped before it starts the daemon leaves that to the next."""
    unit = tree / f"etc/systemd/system/{PERSISTENCE}.service"
    unit.write_text("of a package\n")
    systemctl = tree / "usr/bin/systemctl"
    subprocess.run([systemctl, "start", PERSISTENCE], check=True)
    before = starts(tree, PERSISTENCE)
    kept = systemctl.with_name("kept")
    systemctl.rename(kept)
    systemctl.write_text(f'#!/bin/sh\ncase $1 in daemon-reload | restart | start) exit 1 ;; esac\nexec {kept} "$@"\n')
    systemctl.chmod(0o755)
    with pytest.raises(AssertionError, match="failed=1"):
        run(persistence=True)
    assert "accel.kubernetes.driver" in unit.read_text()
    kept.replace(systemctl)
    run(persistence=True)
    assert (starts(tree, PERSISTENCE), state(tree, PERSISTENCE)) == (before + 1, ("active", True))
    assert run(persistence=True)[0] == 0


def test_dry_run_tells_of_the_fabric_manager(run: Run, tree: Path) -> None:
    run()
    foretold, said = run("--check", **FABRIC_PLAN)
    assert (foretold, "nvidia-fabricmanager.service would be enabled and started." in said) == (1, True)
    unit = tree / f"usr/lib/systemd/system/{FABRIC}.service"
    unit.parent.mkdir(parents=True, exist_ok=True)
    unit.write_text("[Service]\nExecStart=true\n")
    installed = FABRIC_PLAN | {"install": False}
    assert (run("--check", **installed)[0], run(**installed)[0]) == (1, 1)
    assert state(tree, FABRIC) == ("active", True)
    assert (run("--check", **installed)[0], run(**installed)[0]) == (0, 0)
