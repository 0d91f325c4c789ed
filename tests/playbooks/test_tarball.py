# SPDX-License-Identifier: Apache-2.0
"""The collection as users get it: built, installed where nothing else is, and run from there."""

from __future__ import annotations

import os
import shutil
import subprocess
import tarfile
from pathlib import Path

import pytest

from bundle import artifact
from sim.cluster import NodeSpec, Spec

from . import controller
from .conftest import REPOSITORY, Playbooks, Start, state
from .controller import Controller

OURS = {"changelogs", "docs", "examples", "meta", "playbooks", "plugins", "roles"}
OURS |= {"CHANGELOG.rst", "CONTRIBUTING.md", "LICENSE", "README.md", "SECURITY.md"}
OURS |= {"bindep.txt", "execution-environment.yml", "requirements.txt", "requirements.yml"}
MADE = {"MANIFEST.json", "FILES.json"}


@pytest.fixture(scope="module")
def installed(tarballs: list[Path], tmp_path_factory: pytest.TempPathFactory) -> Controller:
    return controller.install(tmp_path_factory.mktemp("home"), tarballs)


@pytest.fixture(scope="module")
def books(start: Start) -> Playbooks:
    return start(Spec("control", (NodeSpec("gpu-a", "t4"),)))


def test_it_holds_every_file_of_ours_and_no_other(tarballs: list[Path]) -> None:
    command = ["git", "-C", REPOSITORY, "ls-files", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout.splitlines()
    files = {name for name in listed if name.split("/")[0] in OURS and os.path.lexists(REPOSITORY / name)}
    with tarfile.open(tarballs[0]) as archive:
        held = {member.name for member in archive}
    assert held - MADE == files | {str(parent) for name in files for parent in Path(name).parents[:-1]}


def test_what_a_user_keeps_beside_it_stays_out(tmp_path: Path) -> None:
    copy = tmp_path / "clone"
    command = ["git", "clone", "--quiet", "--depth=1", f"file://{REPOSITORY}", copy]
    subprocess.run(command, check=True)
    shutil.copy(REPOSITORY / "galaxy.yml", copy)
    kept = ("inventory.yml", "hosts", "group_vars/all/vault.yml", "host_vars/gpu-a.yml", "kubeconfig", "admin.key")
    for name in (*kept, "NVIDIA-Linux.run", "image.tar", "context/Containerfile", "inventory/prod.yml"):
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_text("ours alone")
    with tarfile.open(artifact.build(copy, tmp_path, 0)) as archive:
        held = {member.name.split("/")[0] for member in archive}
    assert held == {name.split("/")[0] for name in OURS} | MADE


def test_links_lead_somewhere_where_it_is_installed(installed: Controller) -> None:
    files = installed.home / ".ansible/collections/ansible_collections/accel/kubernetes"
    links = [path for path in files.rglob("*") if path.is_symlink()]
    assert links
    assert [path for path in links if not path.exists()] == []


@pytest.mark.parametrize("book", ["inspect", pytest.param("site", marks=pytest.mark.full)])
def test_it_runs_from_there(installed: Controller, books: Playbooks, book: str) -> None:
    before = state(books.cluster)
    words = ["-i", f"{books.cluster.root}/inventory.yml", "--check", "-e", "scheduler_layout=none"]
    done = installed.call("ansible-playbook", f"accel.kubernetes.{book}", *words)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "failed=0" in done.stdout
    assert state(books.cluster) == before
