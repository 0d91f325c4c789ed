# SPDX-License-Identifier: Apache-2.0
"""The execution environment, as far as it goes without a container engine: build context and what it installs."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest
import yaml

from bundle import artifact
from yaml_files import document

pytestmark = pytest.mark.ci

REPOSITORY = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
DEFINITION: dict[str, Any] = document(REPOSITORY / "execution-environment.yml")


def pins(name: str) -> set[str]:
    """The packages of a requirements file of ours that are pinned."""
    return set(re.findall(r"^[\w.-]+==\S+", (REPOSITORY / name).read_text(), re.MULTILINE))


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What ansible-builder hands to podman or docker."""
    work = tmp_path_factory.mktemp("environment")
    artifact.build(REPOSITORY, work, 0)
    shutil.copy(REPOSITORY / "execution-environment.yml", work)
    command = [BIN / "ansible-builder", "create", "--output-filename", "Containerfile"]
    done = subprocess.run(command, cwd=work, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return work / "context"


def test_ansible_is_what_the_tests_run_with(context: Path) -> None:
    asked = {DEFINITION["dependencies"][name]["package_pip"] for name in ("ansible_core", "ansible_runner")}
    assert asked <= pins("requirements-dev.txt")
    installed = re.search(r'^ARG ANSIBLE_INSTALL_REFS="(.*)"', (context / "Containerfile").read_text(), re.MULTILINE)
    assert installed
    assert set(installed[1].split()) == asked


def test_the_collection_is_in_the_context(context: Path) -> None:
    (asked,) = document(context / "_build/requirements.yml")["collections"]
    # The galaxy stage works in the copy of _build.
    with tarfile.open(context / "_build" / asked["name"]) as archive:
        assert "playbooks/site.yml" in archive.getnames()


@pytest.fixture(scope="module")
def asked(context: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """What the collections ask of Python and of the system, as the builder stage finds out."""
    root = tmp_path_factory.mktemp("collections")
    for namespace, source in (("accel", None), ("kubernetes", artifact.KUBERNETES)):
        place = root / "ansible_collections" / namespace
        place.parent.mkdir(exist_ok=True)
        if source:
            place.symlink_to(source)
            continue
        with tarfile.open(next((context / "_build/collections").iterdir())) as archive:
            archive.extractall(place / "kubernetes", filter="data")
    script = context / "_build/scripts/introspect.py"
    excluded = context / "_build/exclude-bindep.txt"
    done = subprocess.run(
        [sys.executable, script, "introspect", root, f"--exclude-bindep-reqs={excluded}"],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    found: dict[str, list[str]] = yaml.safe_load(done.stdout[done.stdout.index("---") :])
    return found


def test_python_gets_what_our_roles_ask_for_and_it_goes_together(asked: dict[str, list[str]]) -> None:
    packages = [line.split("#")[0].strip() for line in asked["python"]]
    asks = (REPOSITORY / "requirements.txt").read_text().splitlines()
    # ansible-builder leaves PyYAML to ansible-core, which brings it.
    ours = {line for line in asks if not line.startswith(("#", "PyYAML"))}
    assert len(ours) > 1
    assert ours <= set(packages)
    core = DEFINITION["dependencies"]["ansible_core"]["package_pip"]
    done = subprocess.run(
        [BIN / "uv", "pip", "compile", "--quiet", "--python-version", "3.12", "-"],
        input="\n".join([core, *packages]),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert "\npyyaml==" in done.stdout


def test_system_packages_are_only_those_named_there(asked: dict[str, list[str]]) -> None:
    assert [line for line in asked["system"] if not re.search(r"\[(compile|test)\b", line)] == []
    assert [line.split()[0] for line in DEFINITION["dependencies"]["system"]] == [
        *("openssl", "openssh-clients", "sshpass")
    ]
