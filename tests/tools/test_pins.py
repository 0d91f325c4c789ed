# SPDX-License-Identifier: Apache-2.0
"""What the image is built of: every file has a checksum, and is of the version that the daemons ask for."""

from __future__ import annotations

import ast
import importlib.metadata
import re
import subprocess
import sys
import tomllib
from pathlib import Path

import yaml
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

REPOSITORY = Path(__file__).parents[2]
KUBE_ACCEL = REPOSITORY / "roles/gpu_plugins/files/kube_accel"


def pins(path: Path) -> dict[str, str]:
    """Versions by name. Every requirement is one version, with at least one SHA-256."""
    lines = [line for line in path.read_text().splitlines() if not line.startswith("#")]
    entries = "\n".join(lines).replace("\\\n", "").splitlines()
    found = {}
    for entry in entries:
        requirement, *hashes = entry.split(" --hash=")
        assert hashes, entry
        assert all(re.fullmatch("sha256:[0-9a-f]{64}", each.strip()) for each in hashes), entry
        parsed = Requirement(requirement.strip())
        (specifier,) = parsed.specifier
        assert specifier.operator == "=="
        found[canonicalize_name(parsed.name)] = specifier.version
    return found


def test_the_daemons_packages_are_those_with_checksums() -> None:
    project = tomllib.loads((KUBE_ACCEL / "pyproject.toml").read_text())["project"]
    asked = {canonicalize_name(Requirement(each).name): each.split("==")[1] for each in project["dependencies"]}
    assert asked == pins(KUBE_ACCEL / "requirements.txt")


def test_what_builds_the_wheel_has_checksums() -> None:
    build = tomllib.loads((KUBE_ACCEL / "pyproject.toml").read_text())["build-system"]["requires"]
    found = pins(REPOSITORY / "tests/tools/build-constraints.txt")
    for each in map(Requirement, build):
        assert found[canonicalize_name(each.name)] in each.specifier


MODULES = {"PyYAML": "yaml"}
"""Names to import by, where they are others than the package's."""
ON_HOSTS = {"tomli", "tomlkit", "ruamel", "_ruamel_yaml"}
"""What modules import on hosts, whose packages the roles install there."""
ANSIBLES_OWN = {"ansible", "ansible_collections", "jinja2", "packaging"}
"""What ansible-core is, or brings to every controller."""
BROUGHT = {"urllib3": "kubernetes"}
"""What is imported beside a package that depends on it."""


def requirements(name: str) -> list[Requirement]:
    """What a file of ours asks of Python."""
    lines = (REPOSITORY / name).read_text().splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith(("#", "-r"))]


def imported(path: Path) -> set[str]:
    """Packages that a file imports, wherever in it, but for its own collection's and those of Python itself."""
    nodes = list(ast.walk(ast.parse(path.read_text())))
    names = {alias.name for node in nodes if isinstance(node, ast.Import) for alias in node.names}
    names |= {node.module or "" for node in nodes if isinstance(node, ast.ImportFrom) and not node.level}
    return {name.split(".")[0] for name in names} - sys.stdlib_module_names - {"__future__"}


def of_plugins() -> set[str]:
    """What all that Ansible loads from the collection imports of others."""
    return set().union(*map(imported, (REPOSITORY / "plugins").rglob("*.py")))


def test_a_controller_is_asked_for_what_plugins_import() -> None:
    asked = {MODULES.get(each.name, each.name) for each in requirements("requirements.txt")}
    assert of_plugins() - ANSIBLES_OWN - ON_HOSTS - {*BROUGHT} == asked
    for name, package in BROUGHT.items():
        assert name in {Requirement(each).name for each in importlib.metadata.requires(package) or ()}


def test_a_controller_is_asked_for_ranges() -> None:
    for each in requirements("requirements.txt"):
        assert [bound.operator for bound in each.specifier] == [">="], each


def test_execution_environments_are_asked_for_the_same() -> None:
    document = yaml.safe_load((REPOSITORY / "meta/execution-environment.yml").read_text())
    assert document["dependencies"]["python"] == "requirements.txt"
    (collection,) = yaml.safe_load((REPOSITORY / "requirements.yml").read_text())["collections"]
    asked = yaml.safe_load((REPOSITORY / "galaxy.yml").read_text())["dependencies"]
    assert asked == {collection["name"]: collection["version"]}


def test_a_range_has_what_the_tests_run_with() -> None:
    tested = {each.name: each.specifier for each in requirements("requirements-dev.txt")}
    for each in requirements("requirements.txt"):
        (pin,) = tested[each.name]
        assert pin.operator == "=="
        assert each.specifier.contains(pin.version)


def test_a_controller_filters_without_what_hosts_need() -> None:
    filters = sorted(path.stem for path in (REPOSITORY / "plugins/filter").glob("*.py"))
    blocked = f"import sys\nsys.modules.update(dict.fromkeys({sorted(ON_HOSTS | {'pynvml'})!r}))\n"
    package = "ansible_collections.accel.kubernetes.plugins.filter"
    script = blocked + "import collection\n" + "\n".join(f"import {package}.{name}" for name in filters)
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=REPOSITORY / "tests", capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
