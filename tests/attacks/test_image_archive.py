# SPDX-License-Identifier: Apache-2.0
"""Image archives as hostile input: nothing but the image that is expected gets into a container runtime."""

from __future__ import annotations

import dataclasses
import gzip
import json
import os
import tarfile
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils.host.trusted_path import UntrustedError
from ansible_collections.accel.kubernetes.plugins.module_utils.oci import archive as image_archive
from ansible_collections.accel.kubernetes.plugins.module_utils.oci.image import (
    NAME_ANNOTATION,
    Blob,
    Image,
    ImageError,
    blob_path,
    encode,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.oci.node_images import Containerd, Plan, carry_out

import image_archives
from image_archives import REFERENCE, REPOSITORY, Archive

from .conftest import NOBODY, needs_root

pytestmark = pytest.mark.attack

PAUSE = "registry.k8s.io/pause:3.10"
OURS = image_archives.image()
OTHER = image_archives.image(PAUSE, b"not ours\n")
DIGESTS = [OURS.manifest.digest, OURS.config_blob.digest]
Hostile = Callable[[Archive], object]


class Runtime:
    """Notes every command that a container runtime would get."""

    def __init__(self) -> None:
        self.commands: list[str] = []

    def __call__(self, command: Sequence[str], data: Iterable[bytes] = ()) -> str:
        self.commands.append(" ".join(command))
        list(data)
        return ""


def load(path: Path) -> Runtime:
    """Import an archive as the role does. Raises what the module reports; then the runtime was asked for nothing."""
    runtime = Runtime()
    try:
        carry_out(Plan(load=True, pin=True), Containerd(runtime, ["ctr"]), str(path), REPOSITORY, "1", DIGESTS)
    except (ImageError, UntrustedError):
        assert runtime.commands == []
        raise
    return runtime


def edit(archive: Archive, name: str, change: Callable[[Any], object]) -> None:
    document = json.loads(archive.files[name])
    changed = change(document)
    archive.files[name] = encode(document if changed is None else changed)


def entry(image: Image, name: str) -> dict[str, Any]:
    kind = "application/vnd.oci.image.manifest.v1+json"
    named = {"annotations": {NAME_ANNOTATION: name}} if name else {}
    return {"mediaType": kind, "digest": image.manifest.digest, "size": image.manifest.size, **named}


def with_other(archive: Archive, name: str = PAUSE) -> None:
    """Another image, whole, and an entry of the index that names it."""
    archive.files = {**Archive.of(OTHER).files, **archive.files}
    edit(archive, "index.json", lambda index: index["manifests"].append(entry(OTHER, name)))


def with_nested(archive: Archive) -> None:
    """The index leads to an index that leads to our image and another."""
    inner = Blob.of(encode({"schemaVersion": 2, "manifests": [entry(OURS, REFERENCE), entry(OTHER, PAUSE)]}))
    archive.files = {
        **Archive.of(OTHER).files,
        **archive.files,
        f"blobs/{inner.digest.replace(':', '/')}": inner.read(),
    }
    kind = "application/vnd.oci.image.index.v1+json"
    outer = {"mediaType": kind, "digest": inner.digest, "size": inner.size, "annotations": {NAME_ANNOTATION: REFERENCE}}
    edit(archive, "index.json", lambda index: index.update(manifests=[outer]))


def replace(name: str, data: bytes) -> Hostile:
    return lambda archive: archive.files.update({name: data})


def annotated(name: str, value: object) -> Hostile:
    return lambda archive: edit(
        archive, "index.json", lambda index: index["manifests"][0]["annotations"].update({name: value})
    )


def repo_tags(tags: object) -> Hostile:
    return lambda archive: edit(archive, "manifest.json", lambda listed: listed[0].update(RepoTags=tags))


def damaged(which: str) -> Hostile:
    """A part of the image with another byte and the same name."""

    def change(archive: Archive) -> None:
        digest = {"manifest": OURS.manifest, "config": OURS.config_blob, "layer": OURS.layers[0].blob}[which].digest
        name = blob_path(digest)
        archive.files[name] = archive.files[name][:-1] + b"x"

    return change


def swapped(archive: Archive) -> None:
    """Another image under our name, with digests of its own that fit."""
    archive.files = Archive.of(image_archives.image(REFERENCE, b"not ours\n")).files


def other_layers(archive: Archive) -> None:
    """Our configuration with a layer of another image, in a manifest that fits it."""
    layers = image_archives.image(REFERENCE, b"not ours\n").layers
    made = dataclasses.replace(OURS, layers=layers)
    manifest = json.loads(OURS.manifest.read())
    manifest["layers"][0].update(digest=layers[0].blob.digest, size=layers[0].blob.size)
    archive.files = Archive.of(dataclasses.replace(made, manifest=Blob.of(encode(manifest)))).files


def saved_by_docker(archive: Archive) -> None:
    """As ``docker save`` wrote it before it knew image layouts, with two images."""
    layer = {"Config": "c.json", "RepoTags": [REFERENCE], "Layers": ["1/layer.tar"]}
    listed = [layer, layer | {"RepoTags": [PAUSE]}]
    archive.files = {"manifest.json": encode(listed), "c.json": OURS.config_blob.read(), "1/layer.tar": b"x"}


def huge(name: str) -> Hostile:
    """A file that says it has 8 GiB less a byte, and has none."""
    return lambda archive: archive.sizes.update({name: 8 * 2**30 - 1})


def docker_alone(archive: Archive) -> None:
    """The index tells of our image, and the list that Docker reads of another."""
    archive.files = {**Archive.of(OTHER).files, **archive.files}
    archive.files["manifest.json"] = (
        Archive.of(OTHER).files["manifest.json"].replace(PAUSE.encode(), REFERENCE.encode())
    )


def without(name: str) -> Hostile:
    return lambda archive: archive.files.pop(name)


LAYER = blob_path(OURS.layers[0].blob.digest)
HOSTILE: dict[str, tuple[Hostile, str]] = {
    "another image in the index": (with_other, "registry.k8s.io/pause:3.10"),
    "another image without a name": (lambda archive: with_other(archive, ""), "other names, ''"),
    "another image under a second name of ours": (lambda a: with_other(a, f"{REPOSITORY}:2"), "one is expected"),
    "our image under another's name": (annotated(NAME_ANNOTATION, PAUSE), "registry.k8s.io/pause:3.10"),
    "another name as the tag": (annotated("org.opencontainers.image.ref.name", PAUSE), "registry.k8s.io/pause:3.10"),
    "a name that only begins with ours": (annotated(NAME_ANNOTATION, f"{REPOSITORY}:1/../../pause"), "pause"),
    "a name with a line end": (annotated(NAME_ANNOTATION, f"{REPOSITORY}:1\nx"), "other names"),
    "a name that is a number": (annotated(NAME_ANNOTATION, 7), "annotations"),
    "an unknown annotation": (annotated("io.containerd.import.name", PAUSE), "annotations"),
    "another name for Docker": (repo_tags([REFERENCE, PAUSE]), "registry.k8s.io/pause:3.10"),
    "no name for Docker": (repo_tags(None), "other names, 'None'"),
    "another image for Docker": (docker_alone, "tells Docker of another image"),
    "a second list for Docker": (
        lambda archive: edit(archive, "manifest.json", lambda listed: listed * 2),
        "not the list of 1",
    ),
    "Docker's file of names": (
        lambda archive: archive.add("repositories", json.dumps({"pause": {"3.10": "1" * 64}}).encode()),
        "'repositories'",
    ),
    "a nested index": (with_nested, "in place of an image's manifest"),
    "an empty index": (
        lambda archive: edit(archive, "index.json", lambda index: index.update(manifests=[])),
        "not the list of 1",
    ),
    "another image under our name": (swapped, "is expected"),
    "our configuration with other layers": (other_layers, "the manifest sha256:"),
    "an archive of docker save": (saved_by_docker, "no image of this collection"),
    "an archive without an image layout": (without("oci-layout"), "lacks oci-layout"),
    "a huge layer": (huge(LAYER), f"breaks off in '{LAYER}'"),
    "a huge list for Docker": (huge("manifest.json"), "breaks off in 'manifest.json'"),
    "a damaged manifest": (damaged("manifest"), "has another digest"),
    "a damaged configuration": (damaged("config"), "has another digest"),
    "a damaged layer": (damaged("layer"), "has another digest"),
    "a layer that is missing": (without(LAYER), "lacks the layer"),
    "a layer that is shorter": (replace(LAYER, b"short"), "another number of bytes"),
    "a blob that nothing names": (lambda a: a.add("blobs/sha256/" + "0" * 64, b"x"), "no use for"),
    "the index twice": (lambda archive: archive.add("index.json", archive.files["index.json"]), "twice"),
    "the index twice, spelt otherwise": (
        lambda a: a.add("./index.json", a.files["index.json"]),
        "no image of this collection",
    ),
    "a key twice": (replace("index.json", b'{"manifests":[],"manifests":[]}'), "a key twice"),
    "a key twice, spelt otherwise": (replace("index.json", b'{"manifests":[],"Manifests":[]}'), "a key twice"),
    "an unknown key": (lambda a: edit(a, "index.json", lambda index: index.update(subject={})), "subject"),
    "an index that is a list": (replace("index.json", b"[]"), "no JSON object"),
    "an index that is not JSON": (replace("index.json", b"\xff{"), "no JSON document"),
    "a very deep index": (replace("index.json", b"[" * 1_000_000), "no JSON document"),
    "a huge index": (replace("index.json", b" " * (5 << 20)), "are the most"),
    "a huge number": (replace("index.json", b'{"schemaVersion":' + b"9" * 1_000_000 + b"}"), "unusual index.json"),
    "digests that lead out": (
        lambda a: edit(a, "index.json", lambda index: index["manifests"][0].update(digest="sha256:../../etc/shadow")),
        "no SHA-256 digest",
    ),
    "a path that leads out": (lambda a: a.add("../../etc/cron.d/x", b"x"), "no image of this collection"),
    "an absolute path": (lambda a: a.add("/etc/cron.d/x", b"x"), "no image of this collection"),
    "a symbolic link as a blob": (
        lambda a: a.add(LAYER, type=tarfile.SYMTYPE, linkname="/etc/shadow"),
        "type '2'",
    ),
    "a hard link as a blob": (lambda a: a.add(LAYER, type=tarfile.LNKTYPE, linkname="index.json"), "type '1'"),
    "a device": (lambda a: a.add("blobs/sha256/" + "1" * 64, type=tarfile.CHRTYPE, devmajor=1, devminor=1), "type '3'"),
    "a FIFO": (lambda a: a.add("index.json", type=tarfile.FIFOTYPE), "type '6'"),
    "a GNU sparse file": (lambda a: a.add("blobs/sha256/" + "2" * 64, type=tarfile.GNUTYPE_SPARSE), "type 'S'"),
    "a PAX header that changes a size": (
        lambda a: a.add("index.json", b"x", pax_headers={"size": "7", "comment": "x" * 9000}),
        "type 'x'",
    ),
    "very many files": (
        lambda a: [a.add(f"blobs/sha256/{number:064x}") for number in range(2000)],
        "more than 1024",
    ),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_archive_is_refused_before_the_runtime_reads_it(name: str, tmp_path: Path) -> None:
    change, words = HOSTILE[name]
    archive = Archive.of(OURS)
    change(archive)
    path = archive.write(tmp_path / "a.tar")
    with pytest.raises(ImageError) as refused:
        load(path)
    assert words in str(refused.value)
    assert str(refused.value).startswith(str(path))
    assert "oci_archive" in str(refused.value)


def test_an_archive_that_breaks_off_anywhere_is_refused(tmp_path: Path) -> None:
    whole = Archive.of(OURS).write(tmp_path / "a.tar").read_bytes()
    end = len(whole.rstrip(b"\0")) + 512
    for length in range(0, end - 512, 97):
        (tmp_path / "a.tar").write_bytes(whole[:length])
        with pytest.raises(ImageError):
            load(tmp_path / "a.tar")


@pytest.mark.parametrize("offset", [0, 100, 124, 148, 156, 257, 345])
def test_a_header_with_other_bytes_is_refused(offset: int, tmp_path: Path) -> None:
    path = Archive.of(OURS).write(tmp_path / "a.tar")
    data = bytearray(path.read_bytes())
    data[offset : offset + 4] = b"\x80\xff\xff\xff"
    path.write_bytes(data)
    with pytest.raises(ImageError):
        load(path)


def test_a_layer_that_changes_after_the_check_ends_the_import(tmp_path: Path) -> None:
    path = Archive.of(OURS).write(tmp_path / "a.tar")
    with path.open("rb") as file:
        checked = image_archive.check(file, str(path), REPOSITORY, DIGESTS)
        stream = image_archive.rewritten(file, str(path), checked, f"{REPOSITORY}:1")
        place = dict(checked.layers)[OURS.layers[0].blob.digest]
        with path.open("r+b") as writer:
            writer.seek(place.offset + 12)
            writer.write(b"\0\0")
        sent = []
        with pytest.raises(ImageError, match="changed while it was read"):
            sent.extend(stream)
    # What gives it a name was not among it.
    assert b"index.json" not in b"".join(sent)


def test_a_compressed_archive_is_refused_by_its_form(tmp_path: Path) -> None:
    path = Archive.of(OURS).write(tmp_path / "a.tar")
    path.write_bytes(gzip.compress(path.read_bytes()))
    with pytest.raises(ImageError, match=r"a\.tar is no uncompressed tar archive"):
        load(path)


def test_an_archive_that_is_a_link_is_refused(tmp_path: Path) -> None:
    Archive.of(OURS).write(tmp_path / "a.tar")
    (tmp_path / "link.tar").symlink_to("a.tar")
    with pytest.raises(UntrustedError, match="symbolic link"):
        load(tmp_path / "link.tar")


def test_an_archive_that_is_a_fifo_keeps_nobody_waiting(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "a.tar", 0o600)
    with pytest.raises(UntrustedError, match="not a regular file"):
        load(tmp_path / "a.tar")


@pytest.mark.parametrize("mode", [0o622, 0o602, 0o666])
def test_an_archive_that_others_may_write_is_refused(mode: int, tmp_path: Path) -> None:
    path = Archive.of(OURS).write(tmp_path / "a.tar")
    path.chmod(mode)
    with pytest.raises(UntrustedError, match="can be written by others"):
        load(path)


@needs_root
def test_an_archive_of_a_local_user_is_refused(tmp_path: Path) -> None:
    path = Archive.of(OURS).write(tmp_path / "a.tar")
    os.chown(path, NOBODY, NOBODY)
    with pytest.raises(UntrustedError, match=f"belongs to the user {NOBODY}"):
        load(path)
