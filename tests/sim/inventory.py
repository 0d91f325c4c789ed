# SPDX-License-Identifier: Apache-2.0
"""Writes the Ansible inventory of a simulated cluster: where everything is that the roles would look for at /."""

from __future__ import annotations

import socket
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

MANIFEST = "etc/kubernetes/manifests/kube-scheduler.yaml"
TOPOLOGY = "gpusim.conf"
RUNFILES = "NVIDIA-Linux-*.run"


def write_inventory(root: Path, modes: Mapping[str, str] | None = None, **variables: Any) -> Path:
    """Writes ``<root>/inventory.yml`` for the hosts whose trees are in ``root`` and returns its path.

    A tree with a topology file is a GPU node, one with kube-scheduler's manifest a control plane. ``modes`` is gpu_mode
    by host, pgpu for the others. ``variables`` are set for all hosts and win over what is written here.
    """
    trees = sorted(path for path in root.iterdir() if path.is_dir())
    groups = {
        "gpu_nodes": [tree for tree in trees if (tree / TOPOLOGY).exists()],
        "kube_control_plane": [tree for tree in trees if (tree / MANIFEST).exists()],
    }
    inventory = {
        "all": {
            "vars": {
                "ansible_connection": "local",
                "ansible_become": False,
                "gpu_mode": "pgpu",
                **_cluster(root),
                **variables,
            },
            "children": {
                group: {"hosts": {tree.name: _host(tree, modes or {}) for tree in members}}
                for group, members in groups.items()
            },
        }
    }
    path = root / "inventory.yml"
    path.write_text(yaml.safe_dump(inventory, sort_keys=False))
    return path


def _cluster(root: Path) -> dict[str, Any]:
    """What is the same on every host. No role may install packages: they would go to the machine the test runs on."""
    return {
        "driver_method": "runfile",
        "driver_runfile": str(next(root.glob(RUNFILES), "")),
        "driver_dkms": False,
        "driver_prerequisite_packages": [],
        "driver_repository_packages": [],
        "driver_fabricmanager": "never",
        "container_runtime_toolkit_install": False,
        "container_runtime_python_packages": [],
        "scheduler_python_packages": [],
        "scheduler_pki_packages": [],
        "scheduler_timeout": 30,
        # The control plane's loopback is this machine's, where other clusters may run.
        "scheduler_extender_port": _free_port(),
        "gpu_plugins_kubeconfig": str(root / "admin.conf"),
        "gpu_plugins_image": "kube-accel.invalid/kube-accel:simulated",
        "gpu_plugins_ready_timeout": 60,
    }


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def _host(tree: Path, modes: Mapping[str, str]) -> dict[str, Any]:
    containerd = str(tree / "etc/containerd/config.toml")
    backups = str(tree / "var/lib/accel-kubernetes/backups")
    return {
        "ansible_python_interpreter": str(tree / "usr/bin/python3"),
        "driver_sysfs_root": str(tree / "sys"),
        "driver_dev_root": str(tree / "dev"),
        "driver_etc_dir": str(tree / "etc"),
        "driver_run_dir": str(tree / "run"),
        "driver_runfile_dir": str(tree / "var/lib/accel-kubernetes/driver"),
        "driver_runfile_log": str(tree / "var/log/nvidia-installer.log"),
        "driver_nvml_library": str(tree / "usr/lib/libnvidia-ml.so.1"),
        "container_runtime_host_root": str(tree),
        "container_runtime_ready_command": ["systemctl", "is-active", "containerd"],
        "container_runtime_verify_command": ["containerd", "--config", containerd, "config", "dump"],
        "container_runtime_backup_dir": backups,
        "scheduler_host_root": str(tree),
        "scheduler_backup_dir": backups,
        "gpu_plugins_host_root": str(tree),
        **({"gpu_mode": modes[tree.name]} if tree.name in modes else {}),
    }


if __name__ == "__main__":
    # ROOT [HOST=MODE]...
    print(write_inventory(Path(sys.argv[1]).absolute(), dict(word.split("=", 1) for word in sys.argv[2:])))
