# SPDX-License-Identifier: Apache-2.0
"""The bundle for a network without a way out: its bytes, its lists, a controller and a cluster made of nothing else."""

from __future__ import annotations

import hashlib
import json
import os
import platform
import re
import stat
import subprocess
import sys
import tarfile
from importlib.resources import files
from pathlib import Path
from typing import Any

import pytest
from jsonschema import Draft7Validator
from packaging.utils import canonicalize_name, parse_wheel_filename
from referencing import Registry, Resource

from bundle import wheels

pytestmark = pytest.mark.full
REPOSITORY = Path(__file__).parents[2]
MACHINE = {"x86_64": 62, "aarch64": 183}[platform.machine()]


def made(out: Path, base: Path) -> Path:
    """A bundle whose image has hardly a base."""
    out.mkdir()
    environment = os.environ | {"OUT": str(out), "BASE": str(base), "SOURCE_DATE_EPOCH": "1700000000"}
    for command in (["tests/tools/image.sh"], [sys.executable, "-m", "bundle"]):
        done = subprocess.run(command, cwd=REPOSITORY, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    (archive,) = out.glob("accel-kubernetes-*.tar")
    return archive


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A root file system with what oci_archive and the list of packages look for."""
    root = tmp_path_factory.mktemp("base")
    for name, content in {
        "usr/bin/python3.11": b"\x7fELF\x02\x01\x01" + bytes(11) + MACHINE.to_bytes(2, "little"),
        "var/lib/dpkg/status": b"Package: tzdata\nVersion: 2026b-0\nArchitecture: all\n",
    }.items():
        (root / name).parent.mkdir(parents=True)
        (root / name).write_bytes(content)
        (root / name).chmod(0o755)
    return root


@pytest.fixture(scope="module")
def archive(base: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made(tmp_path_factory.mktemp("one") / "out", base)


@pytest.fixture(scope="module")
def bundle(archive: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """It, unpacked."""
    target = tmp_path_factory.mktemp("unpacked")
    with tarfile.open(archive) as file:
        file.extractall(target, filter="data")
    (found,) = target.iterdir()
    assert found.name == archive.stem
    return found


def test_the_same_sources_make_the_same_bytes(archive: Path, base: Path, tmp_path: Path) -> None:
    again = made(tmp_path / "out", base)
    assert hashlib.sha256(again.read_bytes()).digest() == hashlib.sha256(archive.read_bytes()).digest()


def test_every_file_has_a_checksum(bundle: Path) -> None:
    lines = [line.split("  ") for line in (bundle / "SHA256SUMS").read_text().splitlines()]
    listed = {name: digest for digest, name in lines}
    found = {str(path.relative_to(bundle)): path for path in bundle.rglob("*") if path.is_file()}
    del found["SHA256SUMS"]
    assert listed == {name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in found.items()}


def test_the_list_of_parts_is_valid_and_names_each(bundle: Path) -> None:
    document = json.loads((bundle / "sbom.cdx.json").read_text())
    assert [error.message for error in validator().iter_errors(document)] == []
    names = {(canonicalize_name(part["name"]), part["version"]) for part in document["components"]}
    for path in bundle.rglob("*.whl"):
        name, version, *_ = parse_wheel_filename(path.name)
        assert (name, str(version)) in names
    for path in (bundle / "collections").iterdir():
        namespace, name, version = path.name.removesuffix(".tar.gz").split("-")
        assert (f"{namespace}-{name}", version) in names
    (image,) = [part for part in document["components"] if part["type"] == "container"]
    assert {"tzdata", "kube-accel", "hpack"} <= {part["name"] for part in image["components"]}


def validator() -> Draft7Validator:
    """That of CycloneDX 1.6, by the schemas that come with its library."""
    schemas = files("cyclonedx") / "schema/_res"
    read: dict[str, Any] = {
        name: json.loads((schemas / file).read_text())
        for name, file in {
            "bom-1.6.schema.json": "bom-1.6.SNAPSHOT.schema.json",
            "spdx.schema.json": "spdx.SNAPSHOT.schema.json",
            "jsf-0.82.schema.json": "jsf-0.82.SNAPSHOT.schema.json",
        }.items()
    }
    known = [(f"http://cyclonedx.org/schema/{name}", Resource.from_contents(schema)) for name, schema in read.items()]
    return Draft7Validator(read["bom-1.6.schema.json"], registry=Registry().with_resources(known))


def test_what_was_changed_on_the_way_is_not_installed(bundle: Path, tmp_path: Path) -> None:
    with (bundle / "requirements/3.11.txt").open("a") as file:
        file.write("\n")
    try:
        command = [bundle / "install.sh", tmp_path / "it"]
        done = subprocess.run(command, capture_output=True, text=True, check=False, umask=0o077)
    finally:
        (bundle / "requirements/3.11.txt").write_text((bundle / "requirements/3.11.txt").read_text()[:-1])
    assert done.returncode == 1
    assert "requirements/3.11.txt: FAILED" in done.stdout
    assert "bring it here again" in done.stderr
    assert list((tmp_path / "it").iterdir()) == []
    assert stat.S_IMODE((tmp_path / "it").stat().st_mode) == 0o755, "who runs playbooks is not who installs"


@pytest.mark.attack
def test_a_package_with_another_checksum_is_not_taken(tmp_path: Path) -> None:
    with pytest.raises(LookupError, match="DO NOT MATCH THE HASHES"):
        wheels.fetch(f"hpack==4.2.0 --hash=sha256:{'0' * 64}", "3.11", platform.machine(), tmp_path)
    assert list(tmp_path.iterdir()) == []


def test_bundle_serves_a_cluster_without_network(archive: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("a machine without network is made by root")
    command = ["tests/tools/machine.sh", "tests/bundle/offline.sh", str(archive), sys._base_executable]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    links = re.findall(r"^(\S+) +(?:UP|DOWN|UNKNOWN)\b", done.stdout, re.MULTILINE)
    assert links == ["lo"]
    first, second = done.stdout.split("the second run")
    assert "installed: " in first
    assert re.search(r"^gpu-a +: .* changed=[1-9]\d* .* failed=0 ", first, re.MULTILINE), first
    assert not re.search(r"changed=[1-9]", second), second
