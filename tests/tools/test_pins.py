# SPDX-License-Identifier: Apache-2.0
"""What the image is built of: every file has a checksum, and is of the version that the daemons ask for."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

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
ON_HOSTS = ("tomlkit", "ruamel")
"""What modules import on hosts, whose packages the roles install there."""


def requirements(name: str) -> list[Requirement]:
    """What a file of ours asks of Python."""
    lines = (REPOSITORY / name).read_text().splitlines()
    return [Requirement(line) for line in lines if line and not line.startswith(("#", "-r"))]


def test_a_controller_is_asked_for_ranges_of_what_plugins_import() -> None:
    sources = "\n".join(path.read_text() for path in (REPOSITORY / "plugins").rglob("*.py"))
    for each in requirements("requirements.txt"):
        assert [bound.operator for bound in each.specifier] == [">="], each
        assert re.search(rf"^ *(import|from) {MODULES.get(each.name, each.name)}\b", sources, re.MULTILINE), each


def test_a_range_has_what_the_tests_run_with() -> None:
    tested = {each.name: each.specifier for each in requirements("requirements-dev.txt")}
    for each in requirements("requirements.txt"):
        (pin,) = tested[each.name]
        assert pin.operator == "=="
        assert each.specifier.contains(pin.version)


def test_a_controller_filters_without_what_hosts_need() -> None:
    filters = sorted(path.stem for path in (REPOSITORY / "plugins/filter").glob("*.py"))
    blocked = f"import sys\nsys.modules.update(dict.fromkeys({(*ON_HOSTS, 'pynvml')!r}))\n"
    package = "ansible_collections.accel.kubernetes.plugins.filter"
    script = blocked + "import collection\n" + "\n".join(f"import {package}.{name}" for name in filters)
    done = subprocess.run(
        [sys.executable, "-c", script], cwd=REPOSITORY / "tests", capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
