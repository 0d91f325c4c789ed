# SPDX-License-Identifier: Apache-2.0
"""Runs playbooks of the collection against a simulated cluster."""

from __future__ import annotations

import hashlib
import json
import os
import re
import subprocess
import tempfile
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

from programs import program
from sim.cluster import Cluster, Spec
from sim.cluster.client import Api
from sim.cluster.kinds import KINDS
from sim.forks import forks
from sim.inventory import write_inventory

from .controller import REPOSITORY, build

INVENTORY = "kube-accel.io/inventory"
"""Annotation in which a node's plugin tells of its GPUs and who holds them."""


@pytest.fixture(scope="session", autouse=True)
def _forks() -> Iterator[None]:
    """Playbooks ask the cluster a hundred times, each time by a module that would import the client anew."""
    with tempfile.TemporaryDirectory(prefix="accel-") as room, forks(Path(room)):
        yield


@dataclass(frozen=True)
class Run:
    """What a playbook said."""

    code: int
    output: str

    @property
    def messages(self) -> str:
        """Those of the failed tasks and of debug."""
        return " ".join(re.findall(r'"msg": "(.*?)"[,}\n]', self.output))

    @property
    def changed(self) -> int:
        """Tasks that changed something, of all hosts."""
        return sum(counted["changed"] for counted in self.recap.values())

    @property
    def recap(self) -> dict[str, dict[str, int]]:
        """By host, how many tasks were ok, changed, skipped and so on."""
        lines = re.findall(r"^(\S+) +: (ok=.*)$", self.output, re.MULTILINE)
        return {host: {key: int(number) for key, number in re.findall(r"(\w+)=(\d+)", line)} for host, line in lines}


@dataclass(frozen=True)
class Playbooks:
    """Runs them on the hosts of a cluster, unless told otherwise with its inventory as it was written."""

    cluster: Cluster
    collections: Path

    def start(self, book: str, *options: str, inventory: Path | None = None, **variables: Any) -> subprocess.Popen[str]:
        """A process group of its own."""
        hosts = str(inventory or self.cluster.root / "inventory.yml")
        return start_play(self.collections, book, "-i", hosts, *options, **variables)

    def run(self, book: str, *options: str, inventory: Path | None = None, **variables: Any) -> Run:
        """Run one to its end."""
        return ended(self.start(book, *options, inventory=inventory, **variables))


def start_play(collections: Path, book: str, *options: str, **variables: Any) -> subprocess.Popen[str]:
    command = [program("ansible-playbook"), book, *options]
    command += ["-e", yaml.safe_dump(variables, default_flow_style=True, width=10_000)] if variables else []
    environment = os.environ | {"ANSIBLE_COLLECTIONS_PATH": str(collections), "ANSIBLE_NOCOLOR": "1"}
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, start_new_session=True
    )


def ended(process: subprocess.Popen[str]) -> Run:
    """What a started one said in the end."""
    output, _ = process.communicate()
    return Run(process.returncode, output)


def play(collections: Path, book: str, *options: str, **variables: Any) -> Run:
    """Run a playbook to its end."""
    return ended(start_play(collections, book, *options, **variables))


def state(cluster: Cluster) -> dict[str, str]:
    """Digest of every file on the hosts, and every object but for what the cluster itself and daemons keep writing."""
    written = ("var/lib/kubelet", "var/lib/kube-accel", "var/log", "run", "gpusim.conf.cuda")
    digests = {}
    for tree in (path for path in cluster.root.iterdir() if path.is_dir()):
        for path in tree.rglob("*"):
            if path.is_file() and not str(path.relative_to(tree)).startswith(written):
                digests[str(path)] = hashlib.sha256(path.read_bytes()).hexdigest()
    return digests | {
        f"{kind}/{item['metadata'].get('namespace', '')}/{item['metadata']['name']}": _kept(item)
        for kind in set(KINDS) - {"events", "leases"}
        for item in cluster.store.all(kind)
    }


def _kept(item: dict[str, Any]) -> str:
    metadata = item["metadata"]
    annotations = {key: value for key, value in (metadata.get("annotations") or {}).items() if key != INVENTORY}
    others = (metadata.get(key) for key in ("labels", "generation", "deletionTimestamp"))
    return json.dumps([item.get("data"), item.get("spec"), annotations, *others], sort_keys=True)


@pytest.fixture(scope="session")
def collections(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where Ansible finds this checkout as the collection it is."""
    path = tmp_path_factory.mktemp("collections")
    (path / "ansible_collections/accel").mkdir(parents=True)
    (path / "ansible_collections/accel/kubernetes").symlink_to(REPOSITORY)
    return path


@pytest.fixture(scope="session")
def tarballs(tmp_path_factory: pytest.TempPathFactory) -> list[Path]:
    """The collection's and that of what it depends on, as users get them."""
    return build(tmp_path_factory.mktemp("tarballs"))


Start = Callable[[Spec], Playbooks]


@pytest.fixture(scope="module")
def start(collections: Path) -> Iterator[Start]:
    """``start(spec)``: a running cluster with its inventory, to run playbooks on."""
    running: list[Cluster] = []
    with tempfile.TemporaryDirectory(prefix="accel-", ignore_cleanup_errors=True) as root:

        def begin(spec: Spec) -> Playbooks:
            cluster = Cluster(Path(root), spec)
            running.append(cluster)
            cluster.start()
            write_inventory(cluster.root)
            return Playbooks(cluster, collections)

        yield begin
        for cluster in running:
            cluster.stop()


@pytest.fixture(scope="module")
def api(books: Playbooks) -> Api:
    """The API server of the module's own ``books``."""
    return Api(books.cluster.kubeconfig)
