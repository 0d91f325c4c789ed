# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Iterable, Sequence
from pathlib import Path

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils.oci.node_images import (
    Containerd,
    Docker,
    NodeImageError,
    Plan,
    Stored,
    carry_out,
    parse_ctr,
    parse_docker,
    plan_absent,
    plan_present,
)

import image_archives

REPOSITORY = "localhost/kube-accel"
GOOD, OTHER, ID = ("sha256:" + digit * 64 for digit in "123")
NEW, OLD = f"{REPOSITORY}:new", f"{REPOSITORY}:old"
# As ctr 1.6.20 prints it.
TABLE = f"""\
REF                  TYPE                                       DIGEST {" " * 64} SIZE     PLATFORMS   LABELS
{NEW} application/vnd.oci.image.manifest.v1+json {GOOD} 819.0 B  linux/amd64 io.cri-containerd.image=managed,\
io.cri-containerd.pinned=pinned
{OLD} application/vnd.oci.image.manifest.v1+json {OTHER} 61.2 MiB linux/amd64,linux/arm64 -
{ID} application/vnd.oci.image.manifest.v1+json {OTHER} 61.2 MiB linux/amd64,linux/arm64 io.cri-containerd.image=managed
"""


def test_what_ctr_prints_is_understood() -> None:
    assert parse_ctr(TABLE) == [Stored(NEW, GOOD, True), Stored(OLD, OTHER, False), Stored(ID, OTHER, False)]
    assert parse_ctr("REF TYPE DIGEST SIZE PLATFORMS LABELS\n") == []


@pytest.mark.parametrize(
    ("shown", "name"),
    [
        ("kube-accel:1", "docker.io/library/kube-accel:1"),
        ("gpu/kube-accel:1", "docker.io/gpu/kube-accel:1"),
        ("localhost/kube-accel:1", "localhost/kube-accel:1"),
        ("localhost:5000/a:1", "localhost:5000/a:1"),
        ("registry.example.com/a/b:1", "registry.example.com/a/b:1"),
    ],
)
def test_docker_s_short_names_are_the_full_ones(shown: str, name: str) -> None:
    assert parse_docker(f"{shown} {ID}\n<none>:<none> {OTHER}\n") == [Stored(name, ID, True)]


@pytest.mark.parametrize(
    ("images", "plan"),
    [
        ([], Plan(load=True, pin=True, unpin=[])),
        ([Stored(NEW, GOOD, True)], Plan(unpin=[])),
        ([Stored(NEW, ID, True)], Plan(unpin=[])),
        ([Stored(NEW, GOOD)], Plan(pin=True, unpin=[])),
        ([Stored(NEW, OTHER, True)], Plan(load=True, pin=True, unpin=[])),
        ([Stored(NEW, GOOD, True), Stored(OLD, OTHER, True)], Plan(unpin=[OLD])),
        ([Stored(NEW, GOOD, True), Stored(OLD, OTHER), Stored(f"{REPOSITORY}-more:1", OTHER, True)], Plan(unpin=[])),
    ],
)
def test_only_what_is_missing_is_planned(images: list[Stored], plan: Plan) -> None:
    assert plan_present(images, REPOSITORY, "new", [GOOD, ID]) == plan
    assert plan.empty == (not plan.load and not plan.pin and not plan.unpin)


def test_another_repository_is_never_removed() -> None:
    images = [Stored(NEW, GOOD), Stored(f"{REPOSITORY}-more:1", OTHER), Stored("docker.io/library/kube-accel:1", GOOD)]
    assert plan_absent(images, REPOSITORY) == Plan(remove=[NEW])


class Shell:
    """Answers the listing and remembers everything else."""

    def __init__(self, *listings: str) -> None:
        self.listings, self.calls, self.fed = list(listings), list[str](), b""

    def __call__(self, command: Sequence[str], data: Iterable[bytes] = ()) -> str:
        if "ls" in command:
            return self.listings.pop(0) if len(self.listings) > 1 else self.listings[0]
        self.calls.append(" ".join(command))
        self.fed += b"".join(data)
        return ""


def test_cri_name_of_an_image_goes_with_its_last_name() -> None:
    shell = Shell(TABLE)
    carry_out(Plan(remove=[OLD]), Containerd(shell, ["ctr"]), "", REPOSITORY, "", [])
    assert shell.calls == [f"ctr --namespace k8s.io images rm {OLD} {ID}"]

    shared = TABLE + f"docker.io/library/other:1 type {OTHER} 1 B linux/amd64 -\n"
    shell = Shell(shared)
    carry_out(Plan(remove=[OLD]), Containerd(shell, ["ctr"]), "", REPOSITORY, "", [])
    assert shell.calls == [f"ctr --namespace k8s.io images rm {OLD}"]


def test_an_archive_is_loaded_under_the_wanted_name_alone(tmp_path: Path) -> None:
    made = image_archives.image()
    archive = image_archives.Archive.of(made).write(tmp_path / "a.tar")
    identity = made.config_blob.digest
    shell = Shell(f"kube-accel:1 {OTHER}\n{NEW} {identity}\n")
    plan = plan_present([], REPOSITORY, "new", [made.manifest.digest, identity])
    carry_out(plan, Docker(shell, ["docker"]), str(archive), REPOSITORY, "new", [made.manifest.digest, identity])
    assert shell.calls == ["docker image load --quiet"]

    with tarfile.open(fileobj=io.BytesIO(shell.fed)) as tar, tarfile.open(archive) as given:
        fed = {member.name: tar.extractfile(member).read() for member in tar}  # type: ignore[union-attr]
        assert {name for name in fed if name.startswith("blobs/")} == set(given.getnames()) - {
            "index.json",
            "manifest.json",
            "oci-layout",
        }
    assert json.loads(fed["manifest.json"])[0]["RepoTags"] == [NEW]
    (entry,) = json.loads(fed["index.json"])["manifests"]
    assert entry["annotations"]["io.containerd.image.name"] == NEW


def test_an_import_that_leaves_another_image_is_an_error(tmp_path: Path) -> None:
    made = image_archives.image()
    archive = image_archives.Archive.of(made).write(tmp_path / "a.tar")
    shell = Shell(f"{NEW} {OTHER}\n")
    with pytest.raises(NodeImageError, match=f"has {OTHER} as {NEW}, and {made.manifest.digest} is expected"):
        carry_out(Plan(load=True), Docker(shell, ["docker"]), str(archive), REPOSITORY, "new", [made.manifest.digest])
