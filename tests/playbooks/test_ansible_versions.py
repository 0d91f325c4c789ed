# SPDX-License-Identifier: Apache-2.0
"""The site by other versions of ansible-core, on hosts with other Pythons and the libraries of their distributions."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path

import pytest
import yaml

from sim.cluster import NodeSpec, Spec
from sim.inventory import write_inventory

from . import controller
from .conftest import Playbooks, Run, Start, state
from .controller import Controller

pytestmark = pytest.mark.full
MODES = {"gpu-a": "pgpu", "gpu-b": "vgpu"}
THEIRS = "from 'ansible.module_utils._text'"
"""What kubernetes.core is warned of."""


@dataclass(frozen=True)
class Versions:
    """The versions of ansible-core and its Python, of a host's Python, and of what editing files there takes."""

    core: str
    controller: str
    host: str
    libraries: tuple[str, ...]


VERSIONS = {
    "oldest": Versions("2.17.14", "3.10", "3.8", ("tomlkit==0.9.2", "ruamel.yaml==0.16.6")),
    "Ubuntu 22.04": Versions("2.18.19", "3.11", "3.10", ("tomlkit==0.9.2", "ruamel.yaml==0.17.16")),
    "RHEL 9": Versions("2.20.10", "3.12", "3.9", ("tomlkit==0.11.7", "ruamel.yaml==0.16.6")),
    "Ubuntu 24.04": Versions("2.21.5", "3.12", "3.12", ("tomlkit==0.12.4", "ruamel.yaml==0.17.21")),
    "Debian 13, newest": Versions("2.21.5", "3.13", "3.13", ("tomlkit==0.13.2", "ruamel.yaml==0.18.10")),
}


@pytest.fixture(scope="module")
def books(start: Start) -> Playbooks:
    books = start(Spec("control", tuple(NodeSpec(name, "t4") for name in MODES)))
    write_inventory(books.cluster.root, MODES)
    return books


def inventory(root: Path, python: Path) -> Path:
    """The cluster's, with that Python on every host, for Ansible alone."""
    hosts = yaml.safe_load((root / "inventory.yml").read_text())
    for group in hosts["all"]["children"].values():
        for name, variables in group["hosts"].items():
            simulated = root / name / "usr/bin/python3"
            wrapper = simulated.with_name("python3-of-ansible")
            variables["ansible_python_interpreter"] = str(wrapper)
            wrapper.write_text(simulated.read_text().replace(sys.executable, str(python)))
            wrapper.chmod(0o755)
    path = root / "other.yml"
    path.write_text(yaml.safe_dump(hosts))
    return path


def changed(by: Controller, hosts: Path, book: str, *options: str) -> int:
    """How many tasks of a playbook that ends well changed something."""
    done = by.call("ansible-playbook", f"accel.kubernetes.{book}", "-i", str(hosts), *options)
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr
    warnings = [line for line in done.stderr.splitlines() if "DEPRECATION" in line and THEIRS not in line]
    assert warnings == []
    return Run(done.returncode, done.stdout).changed


@pytest.mark.parametrize("versions", VERSIONS.values(), ids=VERSIONS)
def test_the_site_comes_stays_and_goes(
    versions: Versions, tarballs: list[Path], books: Playbooks, tmp_path: Path
) -> None:
    pythons = {version: controller.python(version) for version in (versions.controller, versions.host)}
    if missing := [version for version, path in pythons.items() if path is None]:
        pytest.skip(f"no Python {' or '.join(missing)} with venv on PATH or of pyenv")
    by = controller.install(tmp_path, tarballs, versions.core, str(pythons[versions.controller]))
    python = controller.environment(tmp_path / "host", str(pythons[versions.host]), *versions.libraries)
    hosts = inventory(books.cluster.root, python)

    before = state(books.cluster)
    assert changed(by, hosts, "site", "--check", "--diff") > 0
    assert state(books.cluster) == before
    assert changed(by, hosts, "site") > 0
    assert changed(by, hosts, "site") == 0
    for book in ("validate", "inspect", "diagnose", "report"):
        assert changed(by, hosts, book) == 0
    assert changed(by, hosts, "uninstall") > 0
    assert changed(by, hosts, "site", "--check") > 0
