# SPDX-License-Identifier: Apache-2.0
"""``kubectl inspect gpu`` on a control plane after the role scheduler, and without it again."""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from playbooks.scheduler import PLAY, UNINSTALL, add_node, changed, play
from prometheus import need
from sim.cluster import Cluster, Spec
from sim.inventory import write_inventory

TASK = "Write the commands kubectl inspect gpu and kubectl inspect cgpu"


@dataclass
class Plane:
    cluster: Cluster
    inventory: Path

    def run(self, book: str = PLAY, *options: str, **variables: object) -> str:
        return play(self.inventory, book, *options, **variables)  # type: ignore[arg-type]

    @property
    def directory(self) -> Path:
        return self.cluster.root / "control/usr/local/bin"

    def commands(self) -> list[str]:
        return sorted(path.name for path in self.directory.glob("kubectl-*"))


@pytest.fixture(scope="module")
def plane() -> Iterator[Plane]:
    with (
        tempfile.TemporaryDirectory(prefix="ac", ignore_cleanup_errors=True) as root,
        Cluster(Path(root), Spec("control", ())) as cluster,
    ):
        add_node(cluster, "gpus")
        yield Plane(cluster, write_inventory(cluster.root))


def test_command_is_there_after_the_role_once(plane: Plane) -> None:
    assert TASK in changed(plane.run(PLAY, "--check"))
    assert plane.commands() == []
    assert changed(plane.run()).count(TASK) == 1
    assert plane.commands() == ["kubectl-inspect-cgpu", "kubectl-inspect-gpu"]
    assert changed(plane.run()) == []


def test_kubectl_finds_the_command_and_asks_the_cluster(plane: Plane) -> None:
    kubectl = need("kubectl")
    environment = {"PATH": f"{plane.directory}:{os.environ['PATH']}", "KUBECONFIG": str(plane.cluster.kubeconfig)}
    command = [kubectl, "inspect", "gpu", "-o", "json"]
    shown = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, check=False)
    assert [node["name"] for node in json.loads(shown.stdout)["nodes"]] == ["gpus"], shown.stderr


def test_command_goes_where_it_is_not_wanted_and_with_the_role(plane: Plane) -> None:
    told = changed(plane.run(PLAY, "--check", scheduler_kubectl_plugin_enabled=False))
    assert told == ["Remove unwanted commands"]
    plane.run(UNINSTALL)
    assert plane.commands() == []


def test_file_of_somebody_else_is_told_of_and_stays(plane: Plane) -> None:
    theirs = plane.directory / "kubectl-inspect-gpu"
    theirs.write_text("#!/bin/sh\n")
    told = plane.run()
    assert f"{theirs} was not installed by this role, and stays" in told
    plane.run(UNINSTALL)
    assert plane.commands() == [theirs.name]
    assert theirs.read_text() == "#!/bin/sh\n"
    theirs.unlink()
