# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import base64
import gzip
import hashlib
import io
import json
import lzma
import os
import py_compile
import re
import resource
import shutil
import signal
import ssl
import subprocess
import sys
import tarfile
import time
import zipfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import trustme

from unit.plugins.modules.registry import Registry

MINOR = sys.version_info.minor
PYTHON = f"usr/bin/python3.{MINOR}"
SITE = f"usr/local/lib/python3.{MINOR}/dist-packages"
TAG = f"cpython-3{MINOR}"
X86_ELF = b"\x7fELF\x02\x01\x01" + bytes(11) + (62).to_bytes(2, "little")
ARM_ELF = b"\x7fELF\x02\x01\x01" + bytes(11) + (183).to_bytes(2, "little")

Make = Callable[..., dict[str, Any]]
WheelFile = Callable[..., Path]


@pytest.fixture
def base(tmp_path: Path) -> Path:
    """A small root file system as Debian lays it out."""
    root = tmp_path / "root"
    for directory in (
        "usr/bin",
        "usr/lib/python3.0/x",
        f"usr/lib/python3.{MINOR}/__pycache__",
        "etc",
        "tmp",
        "var/log",
    ):
        (root / directory).mkdir(parents=True)
    (root / "tmp").chmod(0o1777)
    (root / PYTHON).write_bytes(X86_ELF)
    (root / PYTHON).chmod(0o755)
    os.link(root / PYTHON, root / "usr/bin/same-file")
    (root / "usr/bin/python3").symlink_to(f"python3.{MINOR}")
    (root / "bin").symlink_to("usr/bin")
    (root / "etc/debian_version").write_text("12.0\n")
    (root / "var/log/debootstrap.log").write_text("Monday")
    compiled, stale = root / f"usr/lib/python3.{MINOR}/os.py", root / f"usr/lib/python3.{MINOR}/stale.py"
    for source in (compiled, stale):
        source.write_text("x = 1\n")
        py_compile.compile(str(source), doraise=True)
    os.utime(stale, (1, 1))
    return root


@pytest.fixture
def wheel(tmp_path: Path) -> WheelFile:
    """Writes a wheel."""

    def write(
        name: str = "kube_accel",
        files: Mapping[str, str] | None = None,
        *,
        tags: str = "py3-none-any",
        metadata: str = "",
        record: Mapping[str, str] | None = None,
        scripts: str = "",
        extra: Mapping[str, str] | None = None,
    ) -> Path:
        info = f"{name}-1.0.dist-info"
        content = dict(files or {f"{name}/__init__.py": f"NAME = {name!r}\n\n\ndef main():\n    print(NAME)\n"})
        content[f"{info}/WHEEL"] = "Wheel-Version: 1.0\n"
        content[f"{info}/METADATA"] = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n{metadata}"
        if scripts:
            content[f"{info}/entry_points.txt"] = f"[console_scripts]\n{scripts}\n"
        lines = [f"{path},sha256={_record_digest(text)},{len(text)}" for path, text in content.items()]
        lines += [f"{path},{digest}," for path, digest in (record or {}).items()]
        path = tmp_path / "wheels" / f"{name}-1.0-{tags}.whl"
        path.parent.mkdir(exist_ok=True)
        with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
            for member, text in {**content, **(extra or {})}.items():
                archive.writestr(member, text)
            archive.writestr(f"{info}/RECORD", "\n".join([*lines, f"{info}/RECORD,,"]))
        return path

    return write


def _record_digest(text: str) -> str:
    return base64.urlsafe_b64encode(hashlib.sha256(text.encode()).digest()).rstrip(b"=").decode()


@pytest.fixture
def make(run_module: Make, tmp_path: Path, base: Path) -> Make:
    """Runs the module, into image.tar from the base unless options say otherwise."""

    def run(*, check: bool = False, **options: Any) -> dict[str, Any]:
        defaults = {"path": str(tmp_path / "image.tar"), "reference": "kube-accel:1", "base": str(base)}
        return run_module("oci_archive", {**defaults, **options}, check=check)

    return run


class Archive:
    """An image archive as an importer sees it: by index.json alone, every digest checked."""

    def __init__(self, path: Path) -> None:
        with tarfile.open(path) as tar:
            self.files = {m.name: tar.extractfile(m).read() for m in tar if m.isfile()}  # type: ignore[union-attr]
        index = json.loads(self.files["index.json"])
        (self.described,) = index["manifests"]
        self.manifest = json.loads(self.blob(self.described))
        self.config = json.loads(self.blob(self.manifest["config"]))
        self.layers: list[dict[str, tarfile.TarInfo]] = []
        self.data: dict[str, bytes] = {}
        for layer, diff_id in zip(self.manifest["layers"], self.config["rootfs"]["diff_ids"], strict=True):
            plain = gzip.decompress(self.blob(layer))
            assert "sha256:" + hashlib.sha256(plain).hexdigest() == diff_id
            with tarfile.open(fileobj=io.BytesIO(plain)) as tar:
                self.layers.append({member.name: member for member in tar})
                self.data |= {m.name: tar.extractfile(m).read() for m in tar if m.isfile()}  # type: ignore[union-attr]

    def blob(self, descriptor: dict[str, Any]) -> bytes:
        data = self.files["blobs/" + descriptor["digest"].replace(":", "/")]
        assert "sha256:" + hashlib.sha256(data).hexdigest() == descriptor["digest"]
        assert len(data) == descriptor["size"]
        return data


def load(tmp_path: Path) -> Archive:
    return Archive(tmp_path / "image.tar")


def warnings(result: dict[str, Any]) -> list[str]:
    return [warning["event"]["msg"] for warning in result["warnings"]]


def tar_of(path: Path, members: Mapping[str, bytes | str]) -> Path:
    """A tar; a string value makes a symbolic link, one that begins with = a hard link."""
    with tarfile.open(path, "w") as tar:
        for name, value in members.items():
            info = tarfile.TarInfo(name)
            if isinstance(value, bytes):
                info.size = len(value)
                tar.addfile(info, io.BytesIO(value))
            else:
                info.type = tarfile.LNKTYPE if value.startswith("=") else tarfile.SYMTYPE
                info.linkname = value.removeprefix("=")
                tar.addfile(info)
    return path


def debian_tar(path: Path, **more: bytes | str) -> Path:
    return tar_of(path, {f"./{PYTHON}": X86_ELF, "./etc/debian_version": b"12", **more})


# --- what the image holds


def test_the_base_is_kept_as_it_is(make: Make, tmp_path: Path) -> None:
    result = make(base_exclude=["var/log/*"])

    (layer,) = load(tmp_path).layers
    assert result["layers"][0]["diff_id"] == load(tmp_path).config["rootfs"]["diff_ids"][0]
    assert layer["bin"].linkname == "usr/bin"
    assert layer["tmp"].mode == 0o1777
    assert layer[PYTHON].mode == 0o755
    assert layer["usr/bin/same-file"].islnk()
    assert layer["usr/bin/same-file"].linkname == PYTHON
    assert "var/log" in layer
    assert "var/log/debootstrap.log" not in layer
    assert {(m.uid, m.gid, m.mtime, m.uname) for m in layer.values()} == {(0, 0, 0, "")}
    assert list(layer) == sorted(layer)


def test_a_wheel_is_installed_where_the_image_s_python_looks(make: Make, wheel: WheelFile, tmp_path: Path) -> None:
    path = wheel(
        files={
            "kube_accel/__init__.py": "",
            "kube_accel-1.0.data/purelib/pure.py": "",
            "kube_accel-1.0.data/scripts/old-style": "#!python\nprint()\n",
            "kube_accel-1.0.data/data/share/x.txt": "x",
        },
        scripts="kube-accel = kube_accel.cli:app.main [extra]",
    )

    make(wheels=[str(path)], entrypoint=["kube-accel"])

    image = load(tmp_path)
    base_layer, layer = image.layers
    assert image.data[f"{SITE}/pure.py"] == b""
    assert image.data["usr/local/share/x.txt"] == b"x"
    assert image.data["usr/local/bin/old-style"].startswith(f"#!/{PYTHON}\n".encode())
    script = image.data["usr/local/bin/kube-accel"].decode()
    assert script.startswith(f"#!/{PYTHON}\n")
    assert "from kube_accel.cli import app\n" in script
    assert "sys.exit(app.main())" in script
    assert layer["usr/local/bin/kube-accel"].mode == layer["usr/local/bin/old-style"].mode == 0o755
    assert layer[f"{SITE}/kube_accel/__init__.py"].mode == 0o644
    # A directory the base has keeps the base's mode: it is not written again.
    assert not set(base_layer) & set(layer)
    assert image.config["config"]["Entrypoint"] == ["kube-accel"]
    assert any(
        variable.startswith("PATH=") and "/usr/local/bin" in variable for variable in image.config["config"]["Env"]
    )


def test_all_modules_get_byte_code_that_is_never_compared(make: Make, wheel: WheelFile, tmp_path: Path) -> None:
    result = make(wheels=[str(wheel(files={"kube_accel.py": "y = 2\n", "broken.py": "def\n"}))])

    image = load(tmp_path)
    lib = f"usr/lib/python3.{MINOR}/__pycache__"
    caches = [f"{lib}/os.{TAG}.pyc", f"{lib}/stale.{TAG}.pyc", f"{SITE}/__pycache__/kube_accel.{TAG}.pyc"]
    for cache in caches:
        assert image.data[cache][4:8] == b"\x01\0\0\0", cache
    assert result["compiled"] == 2  # stale.py and kube_accel.py
    assert not any("broken" in name and name.endswith(".pyc") for name in image.data)
    assert f"{lib}/stale.{TAG}.pyc" in image.layers[0]
    assert caches[2] in image.layers[1]
    # Python takes it, for the file it is in the image.
    unpacked = tmp_path / "unpacked"
    (unpacked / "__pycache__").mkdir(parents=True)
    (unpacked / "kube_accel.py").write_text("y = 3\n")
    (unpacked / f"__pycache__/kube_accel.{TAG}.pyc").write_bytes(image.data[caches[2]])
    code = "import kube_accel as k; print(k.y, k.__spec__.loader.get_code('kube_accel').co_filename)"
    done = subprocess.run([sys.executable, "-c", code], cwd=unpacked, capture_output=True, text=True, check=True)
    assert done.stdout.startswith("2 ")


def test_without_the_image_s_python_here_nothing_is_compiled(make: Make, wheel: WheelFile, tmp_path: Path) -> None:
    other = tar_of(tmp_path / "b.tar", {"usr/bin/python3.99": X86_ELF, "etc/debian_version": b""})

    result = make(base=str(other), wheels=[str(wheel())])

    assert result["compiled"] is None
    assert "Python 3.99" in warnings(result)[0]
    assert "usr/local/lib/python3.99/dist-packages/kube_accel/__init__.py" in load(tmp_path).data


def test_settings_of_a_container(make: Make, tmp_path: Path) -> None:
    make(command=["a"], env={"N": 1, "PATH": "/x"}, labels={"l": "v"}, user="65532:65532")

    config = load(tmp_path).config["config"]
    assert config == {"Cmd": ["a"], "Env": ["N=1", "PATH=/x"], "Labels": {"l": "v"}, "User": "65532:65532"}


def test_files_go_where_the_base_s_links_lead(make: Make, tmp_path: Path) -> None:
    shim = tmp_path / "shim"
    (shim / "d").mkdir(parents=True)
    (shim / "d/program").write_text("#!")
    (shim / "d/program").chmod(0o700)
    (shim / "link").symlink_to("d/program")

    make(
        files=[
            {"src": str(shim), "dest": "/opt/shim"},
            {"src": str(shim / "d/program"), "dest": "/bin/tool", "mode": "0555"},
        ]
    )

    layer = load(tmp_path).layers[1]
    assert layer["usr/bin/tool"].mode == 0o555
    assert "bin" not in layer  # as a directory it would replace the base's link
    assert layer["opt/shim/d/program"].mode == 0o755
    assert layer["opt/shim/link"].linkname == "d/program"
    assert {member.uid for member in layer.values()} == {0}


def test_the_archive_names_the_image_for_containerd_and_docker(make: Make, tmp_path: Path) -> None:
    result = make(reference="kube-accel:1")

    image = load(tmp_path)
    assert result["reference"] == "docker.io/library/kube-accel:1"
    assert result["image"] == f"docker.io/library/kube-accel@{image.described['digest']}"
    assert image.described["annotations"]["io.containerd.image.name"] == result["reference"]
    assert json.loads(image.files["oci-layout"]) == {"imageLayoutVersion": "1.0.0"}
    (docker,) = json.loads(image.files["manifest.json"])
    assert docker["RepoTags"] == [result["reference"]]
    assert json.loads(image.files[docker["Config"]]) == image.config
    assert [image.files[name] for name in docker["Layers"]] == [image.blob(layer) for layer in image.manifest["layers"]]


# --- the same again


def test_two_builds_are_the_same_bytes(make: Make, wheel: WheelFile, base: Path, tmp_path: Path) -> None:
    wheels = [str(wheel()), str(wheel("other"))]
    make(wheels=wheels, env={"A": "1", "B": "2"})
    again = tmp_path / "copy-of-root"
    shutil.copytree(base, again, symlinks=True)  # other times, another order on disk
    (again / "usr/bin/same-file").unlink()
    os.link(again / PYTHON, again / "usr/bin/same-file")

    make(path=str(tmp_path / "b.tar"), base=str(again), wheels=wheels[::-1], env={"B": "2", "A": "1"})

    assert (tmp_path / "b.tar").read_bytes() == (tmp_path / "image.tar").read_bytes()


def test_second_run_changes_nothing(make: Make, wheel: WheelFile, tmp_path: Path) -> None:
    options = {"wheels": [str(wheel())]}
    first = make(check=True, **options)
    assert not (tmp_path / "image.tar").exists()
    done = make(**options)
    written = (tmp_path / "image.tar").stat().st_ino
    second, third = make(**options), make(check=True, **options)

    assert [run["changed"] for run in (first, done, second, third)] == [True, True, False, False]
    assert first["digest"] == done["digest"] == second["digest"]
    assert first["diff"]["before"] == ""
    assert second["diff"]["before"] == second["diff"]["after"] == done["diff"]["after"]
    assert (tmp_path / "image.tar").stat().st_ino == written


def test_the_diff_shows_configuration_and_layers(make: Make, wheel: WheelFile) -> None:
    make(wheels=[str(wheel())])

    result = make(wheels=[str(wheel())], user="1", check=True)

    before, after = (json.loads(result["diff"][side]) for side in ("before", "after"))
    assert before["layers"] == after["layers"]
    assert before["digest"] != after["digest"]
    assert "User" not in before["config"]["config"]
    assert after["config"]["config"]["User"] == "1"


def test_a_new_wheel_leaves_the_base_s_layer_alone(make: Make, wheel: WheelFile) -> None:
    first = make(wheels=[str(wheel())])
    second = make(wheels=[str(wheel(files={"kube_accel/__init__.py": "new = 1\n"}))])

    assert first["layers"][0] == second["layers"][0]
    assert first["layers"][1] != second["layers"][1]


@pytest.mark.attack
def test_an_archive_that_holds_more_than_the_image_is_made_again(make: Make, tmp_path: Path) -> None:
    make()
    good = (tmp_path / "image.tar").read_bytes()
    with tarfile.open(tmp_path / "image.tar", "a") as archive:
        archive.addfile(tarfile.TarInfo("repositories"))
    again = make()
    assert again["changed"]
    assert (tmp_path / "image.tar").read_bytes() == good


@pytest.mark.attack
def test_an_archive_is_not_written_through_a_link_at_its_draft(make: Make, tmp_path: Path) -> None:
    (tmp_path / "victim").write_bytes(b"mine")
    (tmp_path / ".accel-image.tar.tmp").symlink_to("victim")
    assert make()["changed"]
    assert (tmp_path / "victim").read_bytes() == b"mine"
    assert not (tmp_path / "image.tar").is_symlink()


@pytest.mark.parametrize(
    "damage", [lambda data: data[:-4000], lambda data: data.replace(b"\x1f\x8b", b"\x1f\x8c"), lambda _: b""]
)
def test_a_damaged_archive_is_made_again(make: Make, tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    make()
    good = (tmp_path / "image.tar").read_bytes()
    (tmp_path / "image.tar").write_bytes(damage(good))

    assert make()["changed"]
    assert (tmp_path / "image.tar").read_bytes() == good


# --- other bases


@pytest.mark.parametrize("compress", [bytes, gzip.compress, lzma.compress])
def test_a_tar_is_the_same_base_as_its_directory(
    make: Make, base: Path, tmp_path: Path, compress: Callable[[bytes], bytes]
) -> None:
    plain = tmp_path / "plain.tar"
    with tarfile.open(plain, "w") as tar:
        tar.add(base, ".")
    packed = tmp_path / "packed"
    packed.write_bytes(compress(plain.read_bytes()))
    directory = make(check=True)

    result = make(base=str(packed), check=True)

    assert result["layers"] == directory["layers"]


def test_an_image_archive_is_a_base(make: Make, wheel: WheelFile, tmp_path: Path) -> None:
    below = make(path=str(tmp_path / "below.tar"), env={"A": "1", "B": "1"}, command=["sh"], labels={"a": "1"})
    (tmp_path / "below.tar.gz").write_bytes(gzip.compress((tmp_path / "below.tar").read_bytes()))

    result = make(
        base=str(tmp_path / "below.tar.gz"), wheels=[str(wheel())], env={"B": "2"}, labels={"b": "2"}, entrypoint=["k"]
    )

    image = load(tmp_path)
    assert result["layers"][0] == below["layers"][0]
    assert f"{SITE}/kube_accel/__init__.py" in image.layers[1]
    assert {"A=1", "B=2"} < set(image.config["config"]["Env"])
    assert image.config["config"]["Labels"] == {"a": "1", "b": "2"}
    assert "Cmd" not in image.config["config"]
    # What the base's own modules lack comes on top of its layers.
    assert f"usr/lib/python3.{MINOR}/__pycache__/stale.{TAG}.pyc" in image.layers[1]


def test_archive_with_a_changed_configuration_is_no_base(make: Make, tmp_path: Path) -> None:
    make(path=str(tmp_path / "below.tar"))
    data = (tmp_path / "below.tar").read_bytes()
    (tmp_path / "below.tar").write_bytes(data.replace(b'"created":"1970', b'"created":"1971'))

    result = make(base=str(tmp_path / "below.tar"))

    assert "below.tar is damaged: its blob sha256:" in result["msg"]
    assert not (tmp_path / "image.tar").exists()


def docker_archive(path: Path, layers: list[Path], architecture: str = "amd64") -> Path:
    """As docker save wrote it for years: plain layers, one of them a link to another, no OCI index."""
    digests = ["sha256:" + hashlib.sha256(layer.read_bytes()).hexdigest() for layer in layers]
    config = {"architecture": architecture, "rootfs": {"diff_ids": digests}, "config": {"Env": ["X=1"]}}
    names = [f"{number}/layer.tar" for number in range(len(layers))]
    members: dict[str, bytes | str] = {
        "c.json": json.dumps(config).encode(),
        "manifest.json": json.dumps([{"Config": "c.json", "RepoTags": None, "Layers": names}]).encode(),
        **{name: layer.read_bytes() for name, layer in zip(names, layers, strict=True)},
    }
    if len(layers) > 1 and digests[0] == digests[-1]:
        members[names[-1]] = "../0/layer.tar"
    return tar_of(path, members)


def test_an_archive_of_docker_save_is_a_base(make: Make, wheel: WheelFile, tmp_path: Path) -> None:
    lower = debian_tar(tmp_path / "lower.tar")
    upper = tar_of(tmp_path / "upper.tar", {"etc/x": b"x", "etc/link": f"={PYTHON}", "etc/.wh.gone": b""})
    saved = docker_archive(tmp_path / "docker.tar", [lower, upper, lower])

    make(base=str(saved), wheels=[str(wheel())])

    image = load(tmp_path)
    assert len(image.layers) == 4
    assert "X=1" in image.config["config"]["Env"]
    assert "etc/.wh.gone" in image.layers[1]


def test_the_right_image_of_several_architectures_is_taken(make: Make, tmp_path: Path) -> None:
    make(path=str(tmp_path / "one.tar"))
    with tarfile.open(tmp_path / "one.tar") as tar:
        files = {m.name: tar.extractfile(m).read() for m in tar if m.isfile()}  # type: ignore[union-attr]
    index = json.loads(files["index.json"])
    other = {**index["manifests"][0], "digest": "sha256:" + "0" * 64, "platform": {"architecture": "arm64"}}
    inner = json.dumps({"manifests": [other, *index["manifests"]]}).encode()
    digest = hashlib.sha256(inner).hexdigest()
    nested = {"mediaType": "application/vnd.oci.image.index.v1+json", "digest": f"sha256:{digest}", "size": len(inner)}
    files |= {"index.json": json.dumps({"manifests": [nested]}).encode(), f"blobs/sha256/{digest}": inner}
    several = tar_of(tmp_path / "several.tar", {k: v for k, v in files.items() if k != "manifest.json"})

    assert make(base=str(several), check=True)["changed"]
    assert "lacks its blob sha256:0000" in make(base=str(several), architecture="arm64", check=True)["msg"]


# --- refusals: nothing is written


Spoil = Callable[[Path, WheelFile, Path], dict[str, Any]]
REFUSED: dict[str, tuple[Spoil, list[str]]] = {
    "no base": (lambda tmp, wheel, base: {"base": str(tmp / "none")}, ["none", "No such file"]),
    "no directory": (lambda tmp, wheel, base: {"path": str(tmp / "a/b.tar")}, ["path", "a/b.tar", "directory"]),
    "reference": (lambda tmp, wheel, base: {"reference": "Kube Accel"}, ["'Kube Accel'", "lower case"]),
    "not an archive": (lambda tmp, wheel, base: {"base": _file(tmp / "b.tar", b"what" * 999)}, ["b.tar", "neither"]),
    "zstd": (lambda tmp, wheel, base: {"base": _file(tmp / "b.tar", b"\x28\xb5\x2f\xfd")}, ["b.tar", "zstd"]),
    "truncated gzip": (
        lambda tmp, wheel, base: {"base": _file(tmp / "b", gzip.compress(debian_tar(tmp / "t").read_bytes())[:-20])},
        ["base", "neither a directory nor a whole tar"],
    ),
    "truncated at a header": (
        lambda tmp, wheel, base: {"base": _file(tmp / "b", debian_tar(tmp / "t").read_bytes()[:1124])},
        ["damaged", "breaks off after 1 entries"],
    ),
    "a path out of a tar": (
        lambda tmp, wheel, base: {"base": str(debian_tar(tmp / "b.tar", **{"a/../../etc/passwd": b"x"}))},
        ["b.tar", "a/../../etc/passwd", "leads out"],
    ),
    "an absolute path in a tar": (
        lambda tmp, wheel, base: {"base": str(debian_tar(tmp / "b.tar", **{"/etc/passwd": b"x"}))},
        ["b.tar", "/etc/passwd", "leads out"],
    ),
    "a hard link out of a tar": (
        lambda tmp, wheel, base: {"base": str(debian_tar(tmp / "b.tar", x="=../../etc/shadow"))},
        ["b.tar", "../../etc/shadow", "leads out"],
    ),
    "a file below a link": (
        lambda tmp, wheel, base: {"base": str(debian_tar(tmp / "b.tar", x="/etc", **{"x/passwd": b"x"}))},
        ["x/passwd", "'x', which is a symlink"],
    ),
    "a wrong architecture": (
        lambda tmp, wheel, base: {"architecture": "arm64", "wheels": [str(wheel())]},
        [PYTHON, "built for amd64, not for arm64", "architecture"],
    ),
    "an image of another architecture": (
        lambda tmp, wheel, base: {"base": str(docker_archive(tmp / "d", [debian_tar(tmp / "l")], "arm64"))},
        ["image for arm64, not for amd64"],
    ),
    "a damaged layer": (
        lambda tmp, wheel, base: {
            "base": _file(
                tmp / "d2", docker_archive(tmp / "d", [debian_tar(tmp / "l")]).read_bytes().replace(b"12\0", b"13\0")
            )
        },
        ["damaged", "layer", "another digest"],
    ),
    "exclusion from an image": (
        lambda tmp, wheel, base: {
            "base": str(docker_archive(tmp / "d", [debian_tar(tmp / "l")])), "base_exclude": ["x"]
        },
        ["base_exclude", "kept whole"],
    ),
    "no python": (
        lambda tmp, wheel, base: {"base": str(tar_of(tmp / "b", {"etc/x": b""})), "wheels": [str(wheel())]},
        ["no /usr/bin/python3.N", "--include=python3"],
    ),
    "a wheel for another machine": (
        lambda tmp, wheel, base: {"wheels": [str(wheel("w", tags="py3-none-manylinux2014_aarch64"))]},
        ["w-1.0", "manylinux2014_aarch64", "amd64", "--platform manylinux2014_x86_64"],
    ),
    "a wheel for musl": (
        lambda tmp, wheel, base: {"wheels": [str(wheel("w", tags="py3-none-musllinux_1_2_x86_64"))]},
        ["w-1.0", "musllinux_1_2_x86_64", "--platform manylinux2014_x86_64"],
    ),
    "a wheel for glibc": (
        lambda tmp, wheel, base: {
            "base": str(tar_of(tmp / "b", {PYTHON: X86_ELF + b"/lib/ld-musl-x86_64.so.1\0"})),
            "wheels": [str(wheel("w", tags="py3-none-manylinux_2_17_x86_64.manylinux2014_x86_64"))],
        },
        ["w-1.0", "manylinux2014_x86_64", "--platform musllinux_1_2_x86_64"],
    ),
    "a wheel for another python": (
        lambda tmp, wheel, base: {"wheels": [str(wheel("w", tags="cp36-cp36m-any"))]},
        ["cp36", f"3.{MINOR}", "--python-version"],
    ),
    "a wheel for a newer python": (
        lambda tmp, wheel, base: {"wheels": [str(wheel(metadata="Requires-Python: >=3.99\n"))]},
        ["needs Python >=3.99", "newer base"],
    ),
    "no wheel": (
        lambda tmp, wheel, base: {"wheels": [_file(tmp / "w-1.0-py3-none-any.whl", b"PK")]},
        ["w-1.0-py3-none-any.whl", "damaged"],
    ),
    "a file name": (lambda tmp, wheel, base: {"wheels": [_file(tmp / "w.whl", b"")]}, ["w.whl", "not named as"]),
    "a path out of a wheel": (
        lambda tmp, wheel, base: {"wheels": [str(wheel(extra={"../../../../etc/cron.d/x": "x"}))]},
        ["kube_accel-1.0", "../../../../etc/cron.d/x", "leads out"],
    ),
    "a path out of a wheel's data": (
        lambda tmp, wheel, base: {"wheels": [str(wheel(files={"kube_accel-1.0.data/scripts/../../x": "x"}))]},
        ["leads out"],
    ),
    "an unknown scheme": (
        lambda tmp, wheel, base: {"wheels": [str(wheel(files={"kube_accel-1.0.data/etc/x": "x"}))]},
        ["kube_accel-1.0.data/etc/x", "scheme"],
    ),
    "a file not in the record": (
        lambda tmp, wheel, base: {"wheels": [str(wheel(extra={"added.py": "evil"}))]},
        ["added.py", "not what its RECORD says"],
    ),
    "a file other than recorded": (
        lambda tmp, wheel, base: {"wheels": [str(wheel(extra={"a.py": "evil"}, record={"a.py": "sha256=AAAA"}))]},
        ["a.py", "not what its RECORD says"],
    ),
    "a hostile script name": (
        lambda tmp, wheel, base: {"wheels": [str(wheel(scripts="../../sbin/init = a:b"))]},
        ["../../sbin/init", "unusable"],
    ),
    "a hostile script target": (
        lambda tmp, wheel, base: {"wheels": [str(wheel(scripts="x = os:system('id')"))]}, ["unusable console script"]
    ),
    "two wheels at odds": (
        lambda tmp, wheel, base: {
            "wheels": [str(wheel("a", {"same.py": "1"})), str(wheel("b", {"same.py": "2"}))]
        },
        ["a-1.0", "b-1.0", "both bring", "same.py"],
    ),
    "a relative dest": (
        lambda tmp, wheel, base: {"files": [{"src": str(base / PYTHON), "dest": "x"}]}, ["files[0]", "absolute 'dest'"]
    ),
    "a dest out of the image": (
        lambda tmp, wheel, base: {"files": [{"src": str(base / PYTHON), "dest": "/../x"}]}, ["files[0]", "leads out"]
    ),
    "a bad mode": (
        lambda tmp, wheel, base: {"files": [{"src": str(base / PYTHON), "dest": "/x", "mode": "rwx"}]}, ["rwx", "octal"]
    ),
    "a file over a directory": (
        lambda tmp, wheel, base: {"files": [{"src": str(base / PYTHON), "dest": "/etc"}]}, ["/etc", "a directory"]
    ),
    "a directory over a file": (
        lambda tmp, wheel, base: {"files": [{"src": str(base / "etc"), "dest": "/etc/debian_version"}]},
        ["/etc/debian_version", "it is a file"],
    ),
}  # fmt: skip


def _file(path: Path, data: bytes) -> str:
    path.write_bytes(data)
    return str(path)


HOSTILE = re.compile(r"out of|absolute path|below a link|scheme|record|hostile|damaged|file name|truncated|path out")


@pytest.mark.parametrize(
    "case", [pytest.param(case, marks=pytest.mark.attack) if HOSTILE.search(case) else case for case in REFUSED]
)
def test_what_cannot_be_right_is_refused(make: Make, wheel: WheelFile, base: Path, tmp_path: Path, case: str) -> None:
    spoil, words = REFUSED[case]
    options = spoil(tmp_path, wheel, base)
    (tmp_path / "image.tar").write_bytes(b"old")

    result = make(**options)

    assert result.get("failed"), result
    for word in words:
        assert word in result["msg"]
    assert (tmp_path / "image.tar").read_bytes() == b"old"


def test_a_missing_dependency_is_said(make: Make, wheel: WheelFile, base: Path) -> None:
    (base / "usr/lib/python3/dist-packages/PyYAML-6.0.egg-info").mkdir(parents=True)
    needs = "Requires-Dist: gRPC.io>=1\nRequires-Dist: pyyaml (>=5)\nRequires-Dist: x ; extra == 'y'\n"

    result = make(wheels=[str(wheel(metadata=needs))])

    assert warnings(result) == ["The wheels need grpc-io, which neither they nor the base bring."]


def test_a_full_disk_leaves_the_old_archive(make: Make, tmp_path: Path) -> None:
    make()
    good = (tmp_path / "image.tar").read_bytes()
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (len(good) - 1000, hard))
    try:
        result = make(user="1")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))

    assert "File too large" in result["msg"]
    assert (tmp_path / "image.tar").read_bytes() == good
    assert not list(tmp_path.glob(".accel-*"))


def test_killed_while_writing_leaves_the_old_archive(
    make: Make, start_module: Callable[..., subprocess.Popen[str]], base: Path, tmp_path: Path
) -> None:
    make()
    good = (tmp_path / "image.tar").read_bytes()
    (base / "big").write_bytes(os.urandom(48 << 20))
    options = {"path": str(tmp_path / "image.tar"), "reference": "kube-accel:1", "base": str(base)}
    process = start_module("oci_archive", options)
    partial = tmp_path / ".accel-image.tar.tmp"
    deadline = time.monotonic() + 60
    while not partial.exists():
        assert time.monotonic() < deadline
        assert process.poll() is None
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()

    assert partial.exists()
    assert (tmp_path / "image.tar").read_bytes() == good
    assert make()["changed"]
    assert not partial.exists()
    assert "big" in load(tmp_path).layers[0]


# --- push


@pytest.mark.parametrize("auth", ["", "basic", "bearer"])
def test_push_sends_what_is_missing_once(make: Make, wheel: WheelFile, auth: str) -> None:
    with Registry(auth=auth) as registry:
        options = {
            "reference": f"{registry.name}/gpu/kube-accel:1", "push": True, "insecure": True, "wheels": [str(wheel())],
            "username": "robot", "password": "pass word",
        }  # fmt: skip
        would = make(check=True, **options)
        assert would["changed"]
        assert registry.sent() == []

        first = make(**options)
        assert len(first["pushed"]) == 3
        assert set(first["pushed"]) == set(registry.blobs)
        pinned = "sha256:" + hashlib.sha256(registry.manifests["1"]).hexdigest()
        assert first["image"] == f"{registry.name}/gpu/kube-accel@{pinned}"
        assert registry.sent()[-1] == "PUT /v2/gpu/kube-accel/manifests/1"

        registry.requests.clear()
        assert not make(**options)["changed"]
        assert registry.sent() == []

        second = make(**{**options, "wheels": [str(wheel(files={"kube_accel/__init__.py": "new"}))]})
        assert second["changed"]
        assert len(second["pushed"]) == 2  # layer and configuration; the base is there
        assert not set(second["pushed"]) & set(first["pushed"])


def test_an_index_gathers_the_architectures_one_after_the_other(make: Make, base: Path) -> None:
    with Registry() as registry:
        options = {"reference": f"{registry.name}/gpu/kube-accel:1", "push": True, "insecure": True}

        def push(architecture: str, index: bool = True, check: bool = False) -> dict[str, Any]:
            return make(architecture=architecture, index=index, check=check, **options)

        def named() -> dict[str, str]:
            listed = json.loads(registry.manifests["1"])["manifests"]
            return {one["platform"]["architecture"]: one["digest"] for one in listed}

        # What is there without an index is not taken over: it does not say what it is for.
        assert push("arm64", index=False)["published"]
        alone = push("amd64")
        assert named() == {"amd64": alone["digest"]}
        other = push("arm64")
        assert named() == {"amd64": alone["digest"], "arm64": other["digest"]}
        assert other["image"].endswith("@sha256:" + hashlib.sha256(registry.manifests["1"]).hexdigest())
        for architecture in ("amd64", "arm64"):
            again = push(architecture)
            assert (again["published"], again["pushed"], again["image"]) == (False, [], other["image"])

        (base / "new").write_text("")
        writes = registry.sent()
        dry = push("amd64", check=True)
        assert dry["published"]
        assert registry.sent() == writes
        changed = push("amd64")
        assert (changed["image"], named()) == (dry["image"], {"amd64": changed["digest"], "arm64": other["digest"]})


@pytest.mark.parametrize("kind", [None, "application/vnd.docker.distribution.manifest.list.v2+json"])
def test_an_index_of_others_keeps_its_architectures(make: Make, kind: str | None) -> None:
    """OCI's index need not say what it is, and Docker has a name of its own for it."""
    with Registry() as registry:
        options = {"reference": f"{registry.name}/gpu/kube-accel:1", "push": True, "insecure": True, "index": True}
        make(architecture="arm64", **options)
        index = json.loads(registry.manifests["1"])
        index.pop("mediaType")
        registry.manifests["1"] = json.dumps(index | ({"mediaType": kind} if kind else {})).encode()
        make(architecture="amd64", **options)
        listed = json.loads(registry.manifests["1"])["manifests"]
        assert [one["platform"]["architecture"] for one in listed] == ["amd64", "arm64"]


def test_push_again_when_only_the_registry_lost_it(make: Make) -> None:
    with Registry(digest_header=False) as registry:
        options = {"reference": f"{registry.name}/gpu/kube-accel:1", "push": True, "insecure": True}
        make(**options)
        assert not make(**options)["changed"]
        registry.manifests.clear()

        assert make(check=True, **options)["changed"]
        result = make(**options)

    assert result["changed"]
    assert result["pushed"] == []
    assert registry.manifests


@pytest.fixture
def authority() -> trustme.CA:
    return trustme.CA()


@pytest.fixture
def tls(authority: trustme.CA) -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.issue_cert("localhost").configure_cert(context)
    return context


def test_https_is_verified(make: Make, authority: trustme.CA, tls: ssl.SSLContext, tmp_path: Path) -> None:
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    with Registry(auth="bearer", tls=tls) as registry:
        options = {"reference": f"{registry.name}/gpu/kube-accel:1", "push": True}
        options |= {"username": "robot", "password": "pass word"}
        refused = make(**options)
        assert registry.requests == []
        done = make(**options, ca_path=str(tmp_path / "ca.pem"))

    assert "CERTIFICATE_VERIFY_FAILED" in refused["msg"]
    assert "ca_path" in refused["msg"]
    assert done["pushed"]


def test_plain_http_is_not_spoken_unless_said(make: Make) -> None:
    with Registry() as registry:
        result = make(reference=f"{registry.name}/gpu/kube-accel:1", push=True)

    assert "insecure" in result["msg"]
    assert registry.requests == []


def test_credentials_are_sent_over_https_only(
    make: Make, authority: trustme.CA, tls: ssl.SSLContext, tmp_path: Path
) -> None:
    authority.cert_pem.write_to_path(tmp_path / "ca.pem")
    with Registry() as thief, Registry(auth="bearer", tls=tls, realm=f"http://{thief.name}/token") as registry:
        result = make(
            reference=f"{registry.name}/gpu/kube-accel:1", push=True, username="robot", password="pass word",
            ca_path=str(tmp_path / "ca.pem"),
        )  # fmt: skip

    assert "not HTTPS" in result["msg"]
    assert thief.requests == []


def test_an_upload_elsewhere_gets_no_credentials(make: Make) -> None:
    with Registry() as storage, Registry(auth="basic") as registry:
        registry.upload = f"http://{storage.name}/elsewhere/blob/1?_state=a/b"
        credentials = {"username": "robot", "password": "pass word"}
        make(reference=f"{registry.name}/gpu/kube-accel:1", push=True, insecure=True, **credentials)

    assert storage.blobs
    assert {authorization for _, _, authorization in storage.requests} == {""}


@pytest.mark.parametrize(
    ("registry", "options", "words"),
    [
        (Registry(auth="basic"), {}, ["status 401", "give 'username' and 'password'"]),
        (Registry(auth="basic"), {"username": "robot", "password": "hunter2"}, ["401", "did not accept 'username'"]),
        (
            Registry(auth="bearer"),
            {"username": "robot", "password": "hunter2"},
            ["/token", "did not accept 'username'"],
        ),
        (Registry(auth="bearer"), {"token": "hunter2"}, ["401", "did not accept 'token'"]),
        (Registry(fail={"POST": 403}), {}, ["POST", "status 403", "DENIED: quota is used up"]),
        (Registry(fail={"PUT": 500}), {}, ["PUT", "status 500"]),
    ],
)
def test_a_registry_that_refuses_is_quoted(
    make: Make, registry: Registry, options: dict[str, str], words: list[str]
) -> None:
    with registry:
        result = make(reference=f"{registry.name}/gpu/kube-accel:1", push=True, insecure=True, **options)

    for word in words:
        assert word in result["msg"]
    assert "hunter2" not in json.dumps(result)


def test_a_token_at_hand_is_used(make: Make) -> None:
    with Registry(auth="bearer") as registry:
        result = make(reference=f"{registry.name}/gpu/kube-accel:1", push=True, insecure=True, token="fresh")

    assert result["pushed"]
    assert not any(path == "/token" for _, path, _ in registry.requests)


def test_no_registry_there(make: Make) -> None:
    with Registry() as registry:
        name = registry.name

    result = make(reference=f"{name}/gpu/kube-accel:1", push=True, insecure=True, timeout=5)

    assert f"http://{name}/v2/gpu/kube-accel/manifests/1 failed" in result["msg"]
    assert "refused" in result["msg"]
