# SPDX-License-Identifier: Apache-2.0
"""What the image is built of: every file has a checksum, and is of the version that the daemons ask for."""

from __future__ import annotations

import re
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
