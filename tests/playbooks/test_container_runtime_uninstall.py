# SPDX-License-Identifier: Apache-2.0
"""Taking the runtime from a host that it was never brought to, or that could no longer be brought to it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from .conftest import Run, ended, start_play

BOOK = """
- hosts: localhost
  connection: local
  gather_facts: false
  tasks:
    - ansible.builtin.include_role: {name: accel.kubernetes.container_runtime, tasks_from: "{{ part }}"}
"""


def play(tmp_path: Path, collections: Path, part: str) -> Run:
    (tmp_path / "book.yml").write_text(BOOK)
    options = ["-i", "localhost,", "-e", "ansible_python_interpreter={{ ansible_playbook_python }}"]
    variables = {
        "part": part,
        "container_runtime_host_root": str(tmp_path),
        "container_runtime_backup_dir": str(tmp_path / "backups"),
        "container_runtime_toolkit_install": False,
    }
    return ended(start_play(collections, str(tmp_path / "book.yml"), *options, **variables))


@pytest.mark.parametrize(
    ("file", "text", "refusal"),
    [
        (None, None, "No container runtime found"),
        ("etc/containerd/config.toml", "version = 1\n", "nvidia-container-runtime does not exist"),
        ("run/docker.sock", "", "Docker needs a restart"),
    ],
)
def test_nothing_is_taken_from_a_host_that_would_be_refused(
    tmp_path: Path,
    collections: Path,
    monkeypatch: pytest.MonkeyPatch,
    file: str | None,
    text: str | None,
    refusal: str,
) -> None:
    docker = tmp_path / "bin" / "docker"
    docker.parent.mkdir()
    docker.write_text("#!/bin/sh\necho false 3\n")
    docker.chmod(0o755)
    monkeypatch.setenv("PATH", f"{docker.parent}:{os.environ['PATH']}")
    if file is not None and text is not None:
        (tmp_path / file).parent.mkdir(parents=True)
        (tmp_path / file).write_text(text)
    if file == "run/docker.sock":
        (tmp_path / "usr/bin").mkdir(parents=True)
        (tmp_path / "usr/bin/nvidia-container-runtime").touch()

    refused = play(tmp_path, collections, "preflight")
    taken = play(tmp_path, collections, "uninstall")

    assert refused.code != 0
    assert refusal in refused.output
    assert taken.code == 0, taken.output
    assert taken.changed == 0
