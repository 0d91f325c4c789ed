# SPDX-License-Identifier: Apache-2.0
"""A GPU whose MIG mode changes with a reboot only: the role has the host rebooted, and cuts the GPU after it."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import sim.nvml
from programs import program
from sim.nvml.profiles import PROFILES
from sim.nvml.topology import Topology, edit

from .conftest import ROLES

CONNECTION = '''
from ansible.plugins.connection.local import Connection as Local

DOCUMENTATION = """
name: here
short_description: The local connection, but for its name, with which nothing is ever rebooted
description: []
options: {}
extends_documentation_fragment: [connection_pipelining]
"""


class Connection(Local):
    transport = "here"
'''
REBOOT = f"""#!{sys.executable}
import pathlib, sys
sys.path[:0] = {sys.path!r}
from sim.nvml.topology import edit

boot = pathlib.Path(__file__).with_name("boot")
with edit(boot.with_name("gpusim.conf")) as node:
    for gpu in node.gpus:
        if gpu.mig_pending is not None:
            gpu.mig, gpu.mig_pending = gpu.mig_pending, None
boot.write_text(boot.read_text() + "again")
"""


@pytest.fixture
def host(tmp_path: Path) -> Path:
    """The directory of a host with GPUs that a reboot resets, and nothing less."""
    topology = PROFILES["8xh200"]("n")
    topology.gpus[0].mig_reset = 1
    topology.save(tmp_path / "gpusim.conf")
    sim.nvml.build(tmp_path / "lib")
    (tmp_path / "connections").mkdir()
    (tmp_path / "connections/here.py").write_text(CONNECTION)
    (tmp_path / "reboot").write_text(REBOOT)
    (tmp_path / "reboot").chmod(0o755)
    (tmp_path / "boot").write_text("first")
    return tmp_path


def run(host: Path, reboot: bool, emptied: bool = False) -> subprocess.CompletedProcess[str]:
    """The role's part that cuts the GPUs, on a node that has been emptied, or was by who calls it."""
    # One that changes its mode is not emptied for MIG.
    served = "pgpu" if emptied else "vgpu"
    wanted = {"devices": [0], "mig-enabled": True, "mig-devices": {"1g.18gb": 7}}
    variables: dict[str, Any] = {
        "gpu_plugins_mig_config": "small",
        "gpu_plugins_mig_configs": {"version": "v1", "mig-configs": {"small": [wanted]}},
        "gpu_plugins_mig_services": [],
        "gpu_plugins_mig_reboot": reboot,
        "gpu_plugins_host_root": str(host),
        "__gpu_plugins_picked": {"resources": [{"metadata": {"labels": {"nvidia-device-enable": served}}}]},
        # Nobody monitors them.
        "__gpu_plugins_daemonsets": {"resources": []},
        "ansible_python_interpreter": sys.executable,
    }
    rebooting = {
        "reboot_command": str(host / "reboot"),
        "boot_time_command": f"cat {host}/boot",
        "reboot_timeout": 60,
    }
    environment = {"LD_LIBRARY_PATH": str(host / "lib"), "GPUSIM_FILE": str(host / "gpusim.conf")}
    play = {
        "hosts": "all",
        "gather_facts": False,
        "environment": environment,
        "module_defaults": {"ansible.builtin.reboot": rebooting},
        "tasks": [
            {
                "ansible.builtin.include_role": {"name": "accel.kubernetes.gpu_plugins", "tasks_from": "mig"},
                "vars": {"gpu_plugins_emptied": emptied},
            }
        ],
    }
    (host / "play.json").write_text(json.dumps([play]))
    command = [
        program("ansible-playbook"),
        "--inventory=node,",
        "--connection=here",
        f"--extra-vars={json.dumps(variables)}",
        str(host / "play.json"),
    ]
    known = {
        "ANSIBLE_CONNECTION_PLUGINS": str(host / "connections"),
        "ANSIBLE_COLLECTIONS_PATH": str(ROLES.parent / ".build/link"),
        "ANSIBLE_HOME": str(host / "ansible"),
    }
    return subprocess.run(command, env=os.environ | known, capture_output=True, text=True, check=False)


@pytest.mark.ci
def test_the_host_is_rebooted_and_its_gpus_are_cut_then(host: Path) -> None:
    done = run(host, reboot=True)
    assert done.returncode == 0, done.stdout + done.stderr
    assert (host / "boot").read_text() == "firstagain"
    migs = Topology.load(host / "gpusim.conf").migs
    assert [(mig.gpu, mig.profile) for mig in migs] == [(0, "1g.18gb")] * 7
    again = run(host, reboot=True)
    assert "changed=0" in again.stdout, again.stdout
    assert (host / "boot").read_text() == "firstagain"


@pytest.mark.ci
def test_nothing_is_rebooted_unasked(host: Path) -> None:
    done = run(host, reboot=False)
    assert done.returncode != 0
    gpu = Topology.load(host / "gpusim.conf").gpus[0]
    assert f"their next reset, {gpu.uuid}" in done.stdout
    assert "set gpu_plugins_mig_reboot=true" in done.stdout
    assert (host / "boot").read_text() == "first"
    with edit(host / "gpusim.conf") as node:
        assert (node.gpus[0].mig, node.gpus[0].mig_pending) == (0, 1)


@pytest.mark.ci
def test_failed_cut_keeps_a_node_that_was_drained_for_more(host: Path) -> None:
    with edit(host / "gpusim.conf") as node:
        node.add_process(0, 11, mem=0)
    # There is no cluster to ask.
    done = run(host, reboot=False, emptied=True)
    assert done.returncode != 0
    assert "were not cut by the MIG configuration small: in use: GPU 0" in done.stdout
