# SPDX-License-Identifier: Apache-2.0
"""The tmpfs of the accounts: when it is mounted, remounted and unmounted, and whether the plugin would see it."""

from __future__ import annotations

import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jinja2
import pytest

from kube_accel.shared.modes import BY_MODE
from sim.cluster import NodeSpec
from sim.cluster.host import create
from yaml_files import document

from .conftest import ROLES, Evaluate, simulated_play
from .test_gpu_plugins_node import NODE, Cluster

PLANNED = {
    "unit": "srv-50%-containers.mount",
    "where": "/srv/50%/containers",
    "source": "kube-accel-accounts",
    "options": "nosuid,nodev,noexec,size=256m,nr_inodes=16384,mode=0700",
    "action": "start",
}


def test_plugins_of_all_modes_that_share_are_asked(evaluate: Evaluate) -> None:
    tasks = document(ROLES / "gpu_plugins/tasks/accounts.yml")
    (asked,) = [task["kubernetes.core.k8s_info"] for task in tasks if "kubernetes.core.k8s_info" in task]
    (selector,) = asked["label_selectors"]
    modes = evaluate("gpu_plugins", "__gpu_plugins_modes", {})
    names = [modes[name]["daemonset"] for name in (*BY_MODE, "dra")]
    assert selector == f"app.kubernetes.io/name in ({','.join(names)})"


def test_the_unit_is_one_that_systemd_takes(tmp_path: Path) -> None:
    analyze = shutil.which("systemd-analyze")
    if analyze is None:
        pytest.skip("systemd-analyze is missing: install systemd")
    accounts = PLANNED | {"unit": r"srv-50\x25-containers.mount"}
    unit = tmp_path / accounts["unit"]
    template = (ROLES / "gpu_plugins/templates/accounts.mount.j2").read_text()
    unit.write_text(jinja2.Template(template).render(__gpu_plugins_accounts=accounts))
    done = subprocess.run([analyze, "verify", unit], capture_output=True, text=True)
    assert (done.returncode, unit.name in done.stderr) == (0, False), done.stderr


class Host:
    """A simulated one without a GPU, in a cluster."""

    def __init__(self, root: Path, cluster: Cluster) -> None:
        self.tree = create(root, NodeSpec("gpu-a"))
        self.containers = self.tree / "var/lib/kube-accel/containers"
        self._cluster = cluster
        self._root = root

    def run(self, *options: str, **variables: Any) -> tuple[int, str]:
        """Play the part; how many tasks changed something, and what it said."""
        words = {
            "gpu_plugins_host_root": str(self.tree),
            "gpu_plugins_kubeconfig": str(self._cluster.root / "kubeconfig"),
            "gpu_plugins_node_name": NODE,
            "ansible_python_interpreter": str(self.tree / "usr/bin/python3"),
        }
        role = {"name": "accel.kubernetes.gpu_plugins", "tasks_from": "accounts"}
        command, environment = simulated_play(self._root, [{"ansible.builtin.include_role": role}], words | variables)
        done = subprocess.run([*command, *options], env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout
        return int(done.stdout.rpartition("changed=")[2].split()[0]), done.stdout

    @property
    def size(self) -> str:
        """The size of the tmpfs; empty where none is mounted."""
        return self.mounts.partition("size=")[2].partition(",")[0]

    @property
    def mounts(self) -> str:
        return (self.tree / "proc/self/mountinfo").read_text()

    @mounts.setter
    def mounts(self, text: str) -> None:
        (self.tree / "proc/self/mountinfo").write_text(text)

    @property
    def unit(self) -> str:
        """Text of the unit; empty where there is none."""
        return "".join(path.read_text() for path in (self.tree / "etc/systemd/system").glob("*.mount"))

    @property
    def enabled(self) -> bool:
        (found,) = (self.tree / "var/lib/sim-systemd").glob("*.mount.json")
        return bool(json.loads(found.read_text())["enabled"])

    def account(self) -> Path:
        """A container has its account."""
        state = self.containers / ("0123456789abcdef" * 2) / "state"
        state.parent.mkdir(parents=True)
        state.write_bytes(b"x" * 4096)
        return state


@pytest.fixture
def host(tmp_path: Path) -> Iterator[Host]:
    (tmp_path / "cluster").mkdir()
    cluster = Cluster(tmp_path / "cluster")
    yield Host(tmp_path, cluster)
    cluster.stop()


@pytest.mark.ci
def test_dry_run_mounts_nothing_and_second_run_is_idle(host: Host) -> None:
    changed, said = host.run("--check", "--diff")
    assert "+Options=nosuid,nodev,noexec,size=256m" in said
    assert ".mount would be enabled and started." in said
    assert (host.unit, host.size) == ("", "")
    foretold, (changed, said) = changed, host.run()
    assert (foretold, changed, host.size, host.enabled) == (2, 2, "262144k", True)
    assert "WARNING" not in said
    assert host.run()[0] == 0


@pytest.mark.full
def test_another_size_is_a_remount(host: Host) -> None:
    host.run()
    host.account()
    assert host.run("--check", gpu_plugins_accounts_mib=64)[0] == 2
    assert host.run(gpu_plugins_accounts_mib=64)[0] == 2
    assert (host.size, "size=64m" in host.unit) == ("65536k", True)
    assert host.run(gpu_plugins_accounts_mib=64)[0] == 0


@pytest.mark.full
def test_accounts_of_containers_are_neither_hidden_nor_lost(host: Host) -> None:
    state = host.account()
    foretold, said = host.run("--check")
    assert ".mount would be enabled." in said
    changed, said = host.run()
    assert "WARNING: 1 container has its account in" in said
    assert (foretold, changed, host.size, host.enabled) == (2, 2, "", True)
    assert host.run()[0] == 0
    shutil.rmtree(state.parent)
    assert (host.run()[0], host.size) == (1, "262144k")
    host.account()
    _, said = host.run(gpu_plugins_accounts_mib=0)
    assert "It goes with the next restart of the host" in said
    assert (host.size, host.enabled) == ("262144k", False)
    changed, said = host.run(gpu_plugins_accounts_mib=0)
    assert changed == 0
    changed, said = host.run(__gpu_plugins_accounts_wanted="absent")
    assert "Those that still run keep it, and its memory, until they end." in said
    assert (changed, host.size, host.unit) == (2, "", "")


@pytest.mark.full
def test_what_is_not_wanted_any_more_goes(host: Host) -> None:
    host.run()
    assert host.run("--check", gpu_plugins_accounts_mib=0)[0] == 2
    assert host.size
    assert host.run(gpu_plugins_accounts_mib=0)[0] == 2
    assert (host.size, host.unit) == ("", "")
    assert host.run(gpu_plugins_accounts_mib=0)[0] == 0


@pytest.mark.full
def test_foreign_mounts_and_hosts_without_systemd_stay(host: Host) -> None:
    host.mounts = f"1 0 0:7 / {host.containers} rw - ext4 /dev/sdb1 rw\n"
    changed, said = host.run()
    assert (changed, host.unit, "WARNING" in said) == (0, "", False)
    host.mounts = ""
    (host.tree / "run/systemd/system").rmdir()
    changed, said = host.run()
    assert (changed, host.unit) == (0, "")
    assert "WARNING: The host runs no systemd; mount a tmpfs with a size at" in said
