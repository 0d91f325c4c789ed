# SPDX-License-Identifier: Apache-2.0
"""Tutorials and how-tos do what they say: their commands are typed at one playground, in their order."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import yaml

from demo.pages import PLAYED, Reader
from sim.cluster.client import Api
from sim.forks import forks
from tools.blocks import RUN_BY

ROOT = Path(__file__).parents[2]
LONG = r"ansible-playbook .*accel\.kubernetes\.(site|validate|report|uninstall|benchmark)( .*)?"
"""What `make test-ci` does not wait for: it runs the same playbooks elsewhere."""
QUICK = (
    "change-limits",
    "use-mig",
    "install-driver",
    "run-from-awx",
    "reset-gpu",
    "validate-shares",
)
NAMES = {"NODE": "gpu-2", "NAMESPACE/POD": "team-a/train-0"}
PODS = "/api/v1/namespaces/team-a/pods"
POD = {
    "apiVersion": "v1",
    "kind": "Pod",
    "metadata": {"name": "train-0"},
    "spec": {
        "containers": [
            {
                "name": "main",
                "image": "example.invalid/train:1",
                "command": ["sleep", "infinity"],
                "resources": {"limits": {"tencent.com/vcuda-core": 900, "tencent.com/vcuda-memory": 4}},
            }
        ]
    },
}
"""The pod that how-tos ask about; it asks for more GPUs than a node has, and is pending."""


@contextmanager
def playground(tmp_path_factory: pytest.TempPathFactory, *words: str) -> Iterator[Reader]:
    """Somebody at a playground, in a directory with its inventory."""
    place = tmp_path_factory.mktemp("pages")
    (place / ".build").mkdir()
    (place / "srv/reports").mkdir(parents=True)
    process = subprocess.Popen(
        [sys.executable, "-m", "demo.playground", *words],
        cwd=place,
        env=os.environ | {"PYTHONPATH": str(ROOT / "tests"), "PYTHONUNBUFFERED": "1"},
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
    )
    try:
        assert process.stdout
        assert any("Programs of pods run on this machine" in line for line in process.stdout)
        made = place / ".build/playground"
        (place / "inventory.yml").write_text((made / "inventory.yml").read_text())
        with forks(tmp_path_factory.mktemp("forks")):
            yield Reader(place, made / "kubeconfig", NAMES | {"/srv/reports": str(place / "srv/reports")})
        os.killpg(process.pid, signal.SIGINT)
        process.wait(60)
    finally:
        if process.poll() is None:
            os.killpg(process.pid, signal.SIGKILL)


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Reader]:
    """Somebody at a playground on which nothing is installed yet."""
    with playground(tmp_path_factory, "bare") as somebody:
        yield somebody


def have_teams(api: Api) -> None:
    """Makes the namespaces of the pages' teams, and the pod of one that they ask about, unless they are there."""
    spaces = {each["metadata"]["name"] for each in api.get("/api/v1/namespaces")["items"]}
    for name in {"team-a", "team-b"} - spaces:
        api.create("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}})
    if not api.get(PODS)["items"]:
        api.create(PODS, POD)


@pytest.mark.full
@pytest.mark.parametrize("name", PLAYED)
def test_page_does_what_it_says(reader: Reader, name: str) -> None:
    if name.startswith("docs/how-to"):
        have_teams(Api(reader.kubeconfig))
    typed = reader.read(ROOT / name, tuple(RUN_BY))
    assert typed


@pytest.mark.ci
def test_a_playground_that_serves_does_what_pages_say(tmp_path_factory: pytest.TempPathFactory) -> None:
    with playground(tmp_path_factory) as somebody:
        assert "kubectl -n team-a logs share" in somebody.read(ROOT / PLAYED[1], (*RUN_BY, LONG))
        have_teams(Api(somebody.kubeconfig))
        for name in QUICK:
            assert somebody.read(ROOT / f"docs/how-to/{name}.md", (*RUN_BY, LONG))


def test_a_reader_writes_variables_of_sections_that_are_tried(tmp_path: Path) -> None:
    hosts = {"gpu-1": {"gpu_mode": "pgpu"}, "gpu-2": {}}
    given = {"all": {"vars": {"a": 1}, "children": {"gpu_nodes": {"hosts": hosts}}}}
    (tmp_path / "inventory.yml").write_text(yaml.safe_dump(given))
    page = tmp_path / "page.md"
    tried = (
        "## Try\n\nIn `inventory.yml`, set:\n\n```yaml\ngpu-2: {gpu_mode: vgpu}\nb: 2\n```\n\n```console\n$ true\n```\n"
    )
    told = (
        "## Read\n\nIn the inventory:\n\n```yaml\nc: 3\n```\n\n<!-- not run here: no -->\n\n```console\n$ false\n```\n"
    )
    page.write_text(tried + told)
    assert Reader(tmp_path, tmp_path / "kubeconfig").read(page) == ["true"]
    made = yaml.safe_load((tmp_path / "inventory.yml").read_text())["all"]
    assert made["vars"] == {"a": 1, "b": 2}
    assert made["children"]["gpu_nodes"]["hosts"] == {"gpu-1": {"gpu_mode": "pgpu"}, "gpu-2": {"gpu_mode": "vgpu"}}
