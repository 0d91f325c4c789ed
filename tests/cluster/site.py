# SPDX-License-Identifier: Apache-2.0
"""The collection's own playbooks on the rig's node."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from typing import Any

import yaml

from cluster import toolkit
from cluster.node import DRIVER, TOPOLOGY
from cluster.rig import CONTAINERD_PID, NODE, Rig, programs_path
from programs import program
from sim.cluster.host import write_installer

IMAGE = "docker.io/library/kube-accel:0.1.0"


class Site:
    """An inventory of one host that is control plane and GPU node."""

    def __init__(self, rig: Rig) -> None:
        toolkit.install(CONTAINERD_PID)
        self.log = rig.plane.root / "site.log"
        self._inventory = rig.plane.root / "inventory.yml"
        # Nothing is fetched: packages and images are there or stood in for.
        variables = {
            "ansible_connection": "local",
            "ansible_become": False,
            "ansible_python_interpreter": sys.executable,
            "driver_method": "runfile",
            "driver_runfile": str(write_installer(rig.plane.root, DRIVER)),
            "driver_dkms": False,
            "driver_prerequisite_packages": [],
            "driver_repository_packages": [],
            "driver_fabricmanager": "never",
            "container_runtime_toolkit_install": False,
            "container_runtime_python_packages": [],
            "container_runtime_verify_command": ["containerd", "config", "dump"],
            "scheduler_python_packages": [],
            "scheduler_pki_packages": [],
            "gpu_plugins_kubeconfig": str(rig.plane.root / "admin.conf"),
            "gpu_plugins_image": IMAGE,
            "gpu_plugins_ready_timeout": 90,
            "scheduler_timeout": 60,
        }
        groups = {name: {"hosts": {NODE: {}}} for name in ("gpu_nodes", "kube_control_plane")}
        self._inventory.write_text(yaml.safe_dump({"all": {"vars": variables, "children": groups}}))

    def run(self, playbook: str, tags: str = "all", **variables: Any) -> int:
        """Run a playbook of ours; how many tasks changed something. Raises AssertionError with what it said."""
        code, text = self.attempt(playbook, tags, **variables)
        assert code == 0, text[-6000:]
        return sum(int(count) for count in re.findall(r"changed=(\d+)", text))

    def attempt(self, playbook: str, tags: str = "all", **variables: Any) -> tuple[int, str]:
        """Exit code and output of a playbook of ours."""
        command = [program("ansible-playbook"), f"--inventory={self._inventory}"]
        command += [
            f"accel.kubernetes.{playbook}",
            f"--tags={tags}",
            "--extra-vars",
            yaml.safe_dump(variables, default_flow_style=True),
        ]
        environment = os.environ | {"ANSIBLE_FORCE_COLOR": "false", "ANSIBLE_NOCOLOR": "true"}
        environment |= {"SIMHOST_ROOT": "/", "GPUSIM_FILE": str(TOPOLOGY), "PATH": programs_path()}
        with self.log.open("w") as log:
            done = subprocess.run(command, stdout=log, stderr=log, env=environment)
        return done.returncode, self.log.read_text()
