# SPDX-License-Identifier: Apache-2.0
"""The execution environment as an image: a real dockerd builds it, ansible-runner runs jobs in it, as AWX does.

Its base is a Debian userland that mmdebstrap makes, in the place of the one of the definition, which takes a registry.
Collections come as files, in the place of Galaxy's.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from bundle import artifact
from servers import server
from sim.cluster import Cluster, NodeSpec, Spec
from yaml_files import document

pytestmark = pytest.mark.full

REPOSITORY = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
PYTHON = "/opt/python/bin/python3"
"""The Python of a virtual environment: Debian's own has no ensurepip."""
PACKAGES = "python3-venv,python3-dev,gcc,make,ca-certificates"
AUTHORITIES = "/etc/ssl/certs/ca-certificates.crt"
# Where a machine is a container itself, it has no more to give; jobs see the API server of the test.
CONTAINER = ("--network=host", "--cap-add=ALL", "--cap-drop=SYS_RESOURCE")
BASE, IMAGE = "debian:test", "accel-kubernetes-ee:test"


def call(command: list[str | Path], **more: Any) -> str:
    """What a command prints; an AssertionError with all of it when it fails."""
    done = subprocess.run(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False, **more)
    assert done.returncode == 0, done.stdout[-8000:]
    return done.stdout


@pytest.fixture(scope="module")
def work() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/tmp", prefix="ee") as directory:
        yield Path(directory)


@pytest.fixture(scope="module")
def environment(work: Path) -> Iterator[dict[str, str]]:
    """That of programs that are to talk to a dockerd of the test's."""
    if os.geteuid() or not all(shutil.which(program) for program in ("dockerd", "docker", "mmdebstrap")):
        pytest.skip("building the image takes root, dockerd, docker and mmdebstrap")
    socket = f"unix://{work}/d.sock"
    roots = ["--data-root", work / "data", "--exec-root", work / "exec", "--pidfile", work / "pid"]
    command = ["unshare", "--mount", "dockerd", *roots, "--host", socket, "--bridge=none", "--iptables=false"]
    # The builder of before needs no further program.
    found = os.environ | {"DOCKER_HOST": socket, "DOCKER_BUILDKIT": "0"}

    def answers() -> bool:
        return subprocess.run(["docker", "version"], env=found, capture_output=True, check=False).returncode == 0

    with server(command, work / "log", answers):
        yield found


def definition(collections: list[Path]) -> dict[str, Any]:
    """Ours with another base, and all collections as files."""
    found: dict[str, Any] = document(REPOSITORY / "execution-environment.yml")
    found["images"]["base_image"]["name"] = BASE
    found["dependencies"]["python_interpreter"] = {"python_path": PYTHON}
    found["dependencies"]["galaxy"]["collections"] = [
        {"name": f"collections/{path.name}", "type": "file"} for path in collections
    ]
    found["additional_build_files"] = [{"src": path.name, "dest": "collections"} for path in collections]
    found["options"] = {"package_manager_path": "/usr/bin/apt-get"}
    return found


@pytest.fixture(scope="module")
def image(work: Path, environment: dict[str, str]) -> str:
    hooks = [
        f"--customize-hook=copy-in {AUTHORITIES} {Path(AUTHORITIES).parent}",
        f'--customize-hook=chroot "$1" python3 -m venv {Path(PYTHON).parents[1]}',
    ]
    base = work / "base.tar"
    call(["mmdebstrap", "--variant=minbase", f"--include={PACKAGES}", *hooks, "bookworm", base])
    variables = {"PATH": f"{Path(PYTHON).parent}:/usr/sbin:/usr/bin:/sbin:/bin", "PIP_CERT": AUTHORITIES}
    changes = [f"--change=ENV {name}={value}" for name, value in variables.items()]
    call(["docker", "import", *changes, base, BASE], env=environment)
    base.unlink()
    build = work / "build"
    build.mkdir()
    ours = artifact.build(REPOSITORY, build, 0)
    collections = [artifact.pack(artifact.KUBERNETES / "core", build, 0), ours]
    (build / "execution-environment.yml").write_text(yaml.safe_dump(definition(collections)))
    command = [BIN / "ansible-builder", "build", "--container-runtime=docker", f"--tag={IMAGE}"]
    call([*command, "--extra-build-cli-args=--network=host"], cwd=build, env=environment)
    return IMAGE


def test_it_holds_the_collection_and_what_its_tasks_import(image: str, environment: dict[str, str]) -> None:
    inside: list[str | Path] = ["docker", "run", "--rm", *CONTAINER, image]
    listed = json.loads(call([*inside, "ansible-galaxy", "collection", "list", "--format=json"], env=environment))
    assert {"accel.kubernetes", "kubernetes.core"} <= {name for found in listed.values() for name in found}
    call([*inside, "python3", "-c", "import ansible_runner, jmespath, kubernetes, tomlkit"], env=environment)
    call([*inside, "ansible-playbook", "--syntax-check", "accel.kubernetes.site"], env=environment)


@pytest.fixture(scope="module")
def cluster(work: Path) -> Iterator[Cluster]:
    with Cluster(work / "c", Spec("control", (NodeSpec("gpu-a", "t4"),)), lambda line: None) as cluster:
        yield cluster


@pytest.mark.parametrize(("book", "result"), [("inspect", "gpu_inspection"), ("diagnose", "gpu_diagnosis")])
def test_a_job_runs_in_it(
    image: str, environment: dict[str, str], cluster: Cluster, tmp_path: Path, book: str, result: str
) -> None:
    shutil.copytree(REPOSITORY / "examples/awx/project", tmp_path / "project")
    for directory in ("env", "inventory"):
        (tmp_path / directory).mkdir()
    shutil.copyfile(cluster.kubeconfig, tmp_path / "env/kubeconfig")
    groups = {"gpu_nodes": {"hosts": {"gpu-a": {}}}, "kube_control_plane": {"hosts": {"control": {}}}}
    (tmp_path / "inventory/hosts.yml").write_text(yaml.safe_dump({"all": {"children": groups}}))
    variables = {"gpu_plugins_kubeconfig": "/runner/env/kubeconfig"}
    (tmp_path / "env/extravars").write_text(yaml.safe_dump(variables))
    isolation = ["--process-isolation", "--process-isolation-executable=docker", f"--container-image={image}"]
    options = [f"--container-option={option}" for option in CONTAINER]
    call(
        [BIN / "ansible-runner", "run", tmp_path, f"--playbook={book}.yml", "--ident=job", *isolation, *options],
        env=environment,
        stdin=subprocess.DEVNULL,
    )
    events = [json.loads(path.read_text()) for path in (tmp_path / "artifacts/job/job_events").glob("*.json")]
    (told,) = [event["event_data"] for event in events if event["event"] == "playbook_on_stats"]
    assert result in told["artifact_data"]
