# SPDX-License-Identifier: Apache-2.0
"""Saved images of every kind, and which of those in one archive is taken."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import shutil
import subprocess
import sys
import tarfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import IO, Any

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils.oci import compression
from ansible_collections.accel.kubernetes.plugins.module_utils.oci.image import ImageError
from ansible_collections.accel.kubernetes.plugins.module_utils.oci.python_tree import find_python
from ansible_collections.accel.kubernetes.plugins.module_utils.oci.store import Store

from image_layers import NAME, TAG, Blobs, archive, directory, index, layer, layout_files, manifest, put

ARM = {"platform": {"os": "linux", "architecture": "arm64", "variant": "v8"}}
AMD = {"platform": {"os": "linux", "architecture": "amd64"}}
Files = dict[str, bytes]


def taken(path: Path, architecture: str = "amd64") -> str:
    """The text in the image that is the base."""
    found = Store(str(path.parent)).base(str(path), architecture)
    assert found.image is not None
    return found.tree["text"].content.read().decode()


def of(blobs: Blobs, text: str, architecture: str = "amd64", **config: Any) -> dict[str, Any]:
    return manifest(blobs, [layer(("f", "text", text))], architecture, **config)


def changed(blobs: Blobs, described: dict[str, Any], change: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
    """The descriptor of another manifest."""
    document = json.loads(blobs[described["digest"]])
    change(document)
    return {**described, **put(blobs, json.dumps(document).encode())}


def attestation(blobs: Blobs, image: dict[str, Any]) -> dict[str, Any]:
    """As buildx adds one to each image, and lists it like an image."""
    made = changed(
        blobs, of(blobs, "attested"), lambda m: m["layers"][0].update(mediaType="application/vnd.in-toto+json")
    )
    note = {"vnd.docker.reference.type": "attestation-manifest", "vnd.docker.reference.digest": image["digest"]}
    return {**made, "platform": {"os": "unknown", "architecture": "unknown"}, "annotations": note}


def signature(blobs: Blobs) -> dict[str, Any]:
    """As cosign keeps one beside its image."""
    kind = "application/vnd.dev.cosign.simplesigning.v1+json"
    made = changed(blobs, of(blobs, "signed"), lambda m: m["layers"][0].update(mediaType=kind))
    return {**made, "annotations": {TAG: "sha256-12.sig"}}


def several(blobs: Blobs) -> Files:
    amd, arm = of(blobs, "amd"), of(blobs, "arm", "arm64")
    windows = {**of(blobs, "windows", os="windows"), "platform": {"os": "windows", "architecture": "amd64"}}
    below = index(blobs, windows, attestation(blobs, amd), {**amd, **AMD}, {**arm, **ARM}, attestation(blobs, arm))
    return layout_files(blobs, signature(blobs), {**index(blobs, below), "annotations": {TAG: "1"}})


@pytest.mark.parametrize("save", [archive, directory])
@pytest.mark.parametrize(("architecture", "text"), [("amd64", "amd"), ("arm64", "arm")])
def test_the_image_of_the_platform_is_taken(
    tmp_path: Path, save: Callable[[Path, Files], Path], architecture: str, text: str
) -> None:
    assert taken(save(tmp_path / "saved", several({})), architecture) == text


def test_a_platform_that_only_the_configuration_says_counts(tmp_path: Path) -> None:
    blobs: Blobs = {}
    files = layout_files(blobs, of(blobs, "arm", "aarch64"), of(blobs, "amd"), of(blobs, "windows", os="windows"))
    assert taken(archive(tmp_path / "a", files)) == "amd"
    assert taken(archive(tmp_path / "a", files), "arm64") == "arm"


def test_the_image_that_runs_on_the_oldest_processor_is_taken(tmp_path: Path) -> None:
    blobs: Blobs = {}
    new = {**of(blobs, "new"), "platform": {**AMD["platform"], "variant": "v3"}}
    old = {**of(blobs, "old"), **AMD}
    assert taken(archive(tmp_path / "a", layout_files(blobs, index(blobs, new, old)))) == "old"
    assert taken(archive(tmp_path / "a", layout_files(blobs, new, old))) == "old"
    assert taken(archive(tmp_path / "a", layout_files(blobs, index(blobs, new)))) == "new"


def test_one_image_of_several_names_is_one(tmp_path: Path) -> None:
    blobs: Blobs = {}
    image = of(blobs, "one")
    named = [{**image, "annotations": {NAME: f"localhost/x:{tag}"}} for tag in "12"]
    assert taken(archive(tmp_path / "a", layout_files(blobs, *named))) == "one"


def test_an_archive_without_the_other_platforms_serves_this_one(tmp_path: Path) -> None:
    blobs: Blobs = {}
    image = of(blobs, "amd")
    absent = {**of({}, "arm", "arm64"), **ARM}
    path = archive(tmp_path / "a", layout_files(blobs, index(blobs, absent, {**image, **AMD})))
    assert taken(path) == "amd"
    with pytest.raises(ImageError, match=f"lacks its blob {absent['digest']}; save the image again"):
        taken(path, "arm64")


@pytest.mark.parametrize("algorithm", ["sha384", "sha512"])
def test_other_digests_are_known(tmp_path: Path, algorithm: str) -> None:
    blobs: Blobs = {}
    described = manifest(blobs, [layer(("f", "text", "x"))], algorithm=algorithm)
    assert taken(directory(tmp_path / "a", layout_files(blobs, described))) == "x"


def zstd(data: bytes) -> bytes:
    """Two frames, after one that holds no data."""
    frames = (
        subprocess.run(["zstd", "-cq"], input=part, capture_output=True, check=True) for part in (data[:9], data[9:])
    )
    return b"\x50\x2a\x4d\x18\x02\0\0\0ab" + b"".join(frame.stdout for frame in frames)


def of_one_layer(path: Path, plain: bytes, packed: bytes) -> Path:
    """An image of docker save's, of one layer."""
    config = {"architecture": "amd64", "rootfs": {"diff_ids": [put({}, plain)["digest"]]}}
    listed = [{"Config": "c.json", "RepoTags": ["a:1"], "Layers": ["1/layer.tar"]}]
    files = {"c.json": json.dumps(config).encode(), "1/layer.tar": packed}
    return archive(path, {**files, "manifest.json": json.dumps(listed).encode()})


def in_members(data: bytes) -> bytes:
    return gzip.compress(data[:99]) + gzip.compress(data[99:])


NEEDS_ZSTD = pytest.mark.skipif(shutil.which("zstd") is None, reason="zstd is not installed: apt-get install zstd")


@pytest.mark.parametrize(
    "compress",
    [bytes, gzip.compress, in_members, bz2.compress, lzma.compress, pytest.param(zstd, marks=NEEDS_ZSTD)],
)
def test_layers_of_every_compression_are_read(tmp_path: Path, compress: Callable[[bytes], bytes]) -> None:
    plain = layer(("f", "text", "x"))
    path = of_one_layer(tmp_path / "a", plain, compress(plain))
    assert taken(path) == "x"
    found = Store(str(tmp_path)).base(str(path), "amd64").image
    assert found is not None
    assert [gzip.decompress(each.blob.read()) for each in found.layers] == [plain], "containerd reads no xz or bzip2"


@pytest.mark.parametrize("name", ["compression.zstd", "zstandard"])
def test_a_module_of_python_reads_zstd_where_there_is_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    class Frames(io.BytesIO):
        def __init__(self, source: IO[bytes], read_across_frames: bool = True) -> None:
            assert read_across_frames
            super().__init__(source.read()[4:])

    unpacking = SimpleNamespace(stream_reader=Frames)
    for each in ("compression.zstd", "zstandard"):
        module = (
            SimpleNamespace(open=Frames, ZstdDecompressor=lambda: unpacking, ZstdError=KeyError)
            if each == name
            else None
        )
        monkeypatch.setitem(sys.modules, each, module)
    monkeypatch.setitem(sys.modules, "compression", SimpleNamespace(__path__=[]))
    monkeypatch.setenv("PATH", "")
    plain = layer(("f", "text", "x"))
    assert taken(of_one_layer(tmp_path / "a", plain, b"\x28\xb5\x2f\xfd" + plain)) == "x"


def test_without_anything_that_reads_zstd_it_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compression, "_zstd_reader", lambda source: None)
    monkeypatch.setenv("PATH", "")
    plain = layer(("f", "text", "x"))
    with pytest.raises(ImageError, match=r"compressed with zstd.*install the program zstd, or use gzip or xz"):
        taken(of_one_layer(tmp_path / "a", plain, b"\x28\xb5\x2f\xfd" + plain))


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda data: gzip.compress(data) + bytes(512), "data after the end of what gzip packed"),
        (lambda data: gzip.compress(data) + b"junk", "data after the end of what gzip packed"),
        (lambda data: gzip.compress(data)[:-4], "breaks off before the end"),
        (lambda data: in_members(data)[:-4], "breaks off before the end"),
    ],
)
def test_what_gzip_packed_is_read_to_its_end(tmp_path: Path, damage: Callable[[bytes], bytes], reason: str) -> None:
    plain = layer(("f", "text", "x"))
    with pytest.raises(ImageError, match=reason):
        taken(of_one_layer(tmp_path / "a", plain, damage(plain)))


def member(name: str, kind: bytes, **more: Any) -> bytes:
    """A header of a tar, and nothing after it."""
    info = tarfile.TarInfo(name)
    info.type = kind
    for key, value in more.items():
        setattr(info, key, value)
    return info.tobuf(tarfile.PAX_FORMAT)


@pytest.mark.parametrize("kind", [tarfile.CONTTYPE, tarfile.GNUTYPE_SPARSE, b"D", b"V", b"M", b"A"])
def test_what_no_runtime_unpacks_of_a_layer_is_refused(tmp_path: Path, kind: bytes) -> None:
    plain = member("odd", kind) + layer(("f", "text", "x"))
    with pytest.raises(ImageError, match="has 'odd' in a layer"):
        taken(of_one_layer(tmp_path / "a", plain, plain))


def test_a_global_header_says_nothing_of_the_files(tmp_path: Path) -> None:
    """Go's tar, which runtimes use, hands it out and forgets it."""
    plain = tarfile.TarInfo.create_pax_global_header({"uid": "77", "path": "elsewhere"}) + layer(("f", "text", "x"))
    path = of_one_layer(tmp_path / "a", plain, plain)
    assert taken(path) == "x"
    assert Store(str(tmp_path)).base(str(path), "amd64").tree["text"].uid == 0


def test_a_file_after_one_empty_block_is_damage(tmp_path: Path) -> None:
    plain = layer(("f", "text", "x"))[:1024] + bytes(512) + layer(("f", "more", "y"))
    with pytest.raises(ImageError, match="breaks off after 1 entries"):
        taken(of_one_layer(tmp_path / "a", plain, plain))
    two = layer(("f", "text", "x")) + layer(("f", "text", "y"))
    assert taken(of_one_layer(tmp_path / "b", two, two)) == "x"


@pytest.mark.parametrize("data", [b"", bytes(1024), layer(("f", "text", "y"))[:1024]])
def test_layers_that_hold_nothing_or_have_no_end_are_read(tmp_path: Path, data: bytes) -> None:
    blobs: Blobs = {}
    described = manifest(blobs, [layer(("f", "text", "x")), data])
    assert taken(archive(tmp_path / "a", layout_files(blobs, described))) in "xy"


def saved_by_docker(*images: tuple[str, str, list[str]], **config: Any) -> Files:
    """What docker save wrote before version 25, of texts, architectures and names."""
    files, listed = {}, []
    for number, (text, architecture, names) in enumerate(images):
        data = layer(("f", "text", text))
        document = {"architecture": architecture, "rootfs": {"diff_ids": [put({}, data)["digest"]]}, **config}
        files |= {f"{number}/layer.tar": data, f"{number}.json": json.dumps(document).encode()}
        listed.append({"Config": f"{number}.json", "RepoTags": names, "Layers": [f"{number}/layer.tar"]})
    return {**files, "manifest.json": json.dumps(listed).encode(), "repositories": b"{}"}


@pytest.mark.parametrize("save", [archive, directory])
def test_an_image_of_docker_is_chosen_by_its_platform(tmp_path: Path, save: Callable[[Path, Files], Path]) -> None:
    path = save(tmp_path / "saved", saved_by_docker(("arm", "arm64", ["x:1"]), ("amd", "amd64", ["x:1", "x:2"])))
    assert taken(path) == "amd"


def test_an_image_that_does_not_say_its_platform_is_taken(tmp_path: Path) -> None:
    assert taken(archive(tmp_path / "a", saved_by_docker(("x", "", [])))) == "x"


def refused_index(blobs: Blobs) -> Files:
    return layout_files(blobs, {**of(blobs, "a"), "annotations": {NAME: "a:1"}},
                        {**of(blobs, "b"), "annotations": {NAME: "b:1"}})  # fmt: skip


def nested(blobs: Blobs) -> Files:
    described = of(blobs, "x")
    for _ in range(20):
        described = index(blobs, described)
    return layout_files(blobs, described)


def with_layer(**change: Any) -> Callable[[Blobs], Files]:
    def files(blobs: Blobs) -> Files:
        image = of(blobs, "x")
        lost = json.loads(blobs[image["digest"]])["layers"][0]["digest"]
        described = changed(blobs, image, lambda m: m["layers"][0].update(change))
        del blobs[lost]
        return layout_files(blobs, described)

    return files


def chart(blobs: Blobs) -> Files:
    kind = "application/vnd.cncf.helm.config.v1+json"
    return layout_files(blobs, changed(blobs, of(blobs, "x"), lambda m: m["config"].update(mediaType=kind)))


REFUSED: dict[str, tuple[Callable[[Blobs], Files], str, list[str]]] = {
    "another platform of several": (
        lambda blobs: layout_files(blobs, index(blobs, {**of(blobs, "w", os="windows")}, {**of(blobs, "a", "arm64")})),
        "amd64", ["no image for amd64, but for arm64, windows/amd64; see 'architecture'"],
    ),
    "Windows": (
        lambda blobs: layout_files(blobs, of(blobs, "w", os="windows")), "amd64",
        ["is an image for windows/amd64, not for amd64"],
    ),
    "an index that is wrong about it": (
        lambda blobs: layout_files(blobs, {**of(blobs, "a", "arm64"), **AMD}), "amd64",
        ["names an image for amd64 that is for arm64"],
    ),
    "several images": (refused_index, "amd64", ["2 images for amd64: a:1, b:1", "save one of them alone"]),
    "several images of Docker": (
        lambda _: saved_by_docker(("a", "amd64", ["a:1"]), ("b", "amd64", ["b:1", "b:2"])), "amd64",
        ["2 images for amd64: a:1, b:1, b:2"],
    ),
    "no image": (lambda blobs: layout_files(blobs, signature(blobs)), "amd64", ["no image that a container runtime"]),
    "a chart": (chart, "amd64", ["no image that a container runtime"]),
    "nothing": (lambda blobs: layout_files(blobs), "amd64", ["no image that a container runtime"]),
    "an encrypted layer": (
        with_layer(mediaType="application/vnd.oci.image.layer.v1.tar+gzip+encrypted"), "amd64",
        ["layer of the type application/vnd.oci.image.layer.v1.tar+gzip+encrypted", "plain layers"],
    ),
    "a layer elsewhere": (
        with_layer(urls=["https://example.com/layer"]), "amd64", ["fetched from elsewhere", "with all its layers"],
    ),
    "a layer that is missing": (with_layer(), "amd64", ["lacks its blob sha256:", "save the image again"]),
    "indexes without end": (nested, "amd64", ["more than 8 indexes"]),
    "skopeo's directory": (
        lambda _: {"manifest.json": b"{}", "version": b"Directory Transport Version: 1.1\n", "ab" * 32: b""}, "amd64",
        ["skopeo copy ... dir:", "'oci:'"],
    ),
    "Docker before 1.10": (
        lambda _: {"repositories": b"{}", "ab/layer.tar": b"", "ab/json": b"{}"}, "amd64", ["Docker before 1.10"],
    ),
    "no JSON": (lambda _: {"index.json": b"x", "oci-layout": b"{}"}, "amd64", ["no JSON document"]),
    "deep JSON": (lambda _: {"index.json": b"[" * 99999, "oci-layout": b"{}"}, "amd64", ["no JSON document"]),
    "a list": (lambda _: {"index.json": b"[]", "oci-layout": b"{}"}, "amd64", ["no JSON object"]),
    "an index of text": (
        lambda _: {"index.json": b'{"manifests": ["x"]}', "oci-layout": b"{}"}, "amd64", ["manifests is no list of"],
    ),
    "settings of another form": (
        lambda blobs: layout_files(blobs, of(blobs, "x", config={"Env": "A=1"})), "amd64", ["no configuration of an"],
    ),
    "labels of another form": (
        lambda blobs: layout_files(blobs, of(blobs, "x", config={"Labels": [""]})), "amd64", ["no configuration of an"],
    ),
    "a configuration without layers": (
        lambda blobs: layout_files(blobs, of(blobs, "x", rootfs={})), "amd64", ["no configuration of an image"],
    ),
    "an unknown digest": (
        lambda _: layout_files({"md5:00": b"{}"}, {"mediaType": "x.image.manifest.v1+json", "digest": "md5:00"}),
        "amd64", ["names its blobs by md5"],
    ),
    "a path for a digest": (
        lambda _: layout_files({}, {"mediaType": "x.image.manifest.v1+json", "digest": "sha256:../../x"}),
        "amd64", ["lacks its blob"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("save", [archive, directory])
@pytest.mark.parametrize("case", REFUSED)
def test_what_is_not_the_image_is_refused(tmp_path: Path, save: Callable[[Path, Files], Path], case: str) -> None:
    make, architecture, words = REFUSED[case]
    with pytest.raises(ImageError) as refused:
        taken(save(tmp_path / "saved", make({})), architecture)
    for word in ["saved", *words]:
        assert word in str(refused.value)


def test_the_python_of_the_final_layers_gets_the_wheels(tmp_path: Path) -> None:
    lower = layer(("f", "usr/bin/python3.11", "x"), ("l", "usr/bin/python3", "python3.11"))
    upper = layer(("f", "usr/bin/.wh.python3.11"), ("f", "usr/bin/.wh.python3"), ("f", "usr/local/bin/python3.9", "x"))
    gone = layer(("d", "usr/bin"), ("f", "usr/bin/.wh..wh..opq"))
    blobs: Blobs = {}
    replaced = archive(tmp_path / "a", layout_files(blobs, manifest(blobs, [lower, upper])))
    removed = archive(tmp_path / "b", layout_files(blobs, manifest(blobs, [lower, gone])))
    store = Store(str(tmp_path))
    assert find_python(store.base(str(replaced), "amd64").tree).path == "usr/local/bin/python3.9"
    with pytest.raises(ImageError, match="wheels cannot be added"):
        find_python(store.base(str(removed), "amd64").tree)


@pytest.mark.parametrize("save", [archive, directory])
@pytest.mark.parametrize(
    ("files", "reason"),
    [
        ({"image/oci-layout": b"{}", "image/index.json": b"{}"}, "a saved image in its directory image; name that"),
        ({"config.json": b"{}", "rootfs/etc/os-release": b""}, "file system of a container in its directory rootfs"),
    ],
)
def test_an_image_one_directory_below_is_named(
    tmp_path: Path, save: Callable[[Path, Files], Path], files: Files, reason: str
) -> None:
    with pytest.raises(ImageError, match=reason):
        taken(save(tmp_path / "saved", files))


def test_a_root_file_system_with_files_of_such_names_is_one(tmp_path: Path) -> None:
    files = {"manifest.json": b"{}", "version": b"1", "etc/os-release": b""}
    for save in (archive, directory):
        assert Store(str(tmp_path)).base(str(save(tmp_path / save.__name__, files)), "amd64").image is None
