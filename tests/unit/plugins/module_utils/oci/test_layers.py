# SPDX-License-Identifier: Apache-2.0
"""Layers as container runtimes unpack them, and the same by umoci where it is installed."""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import tarfile
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils.oci import image as oci_image
from ansible_collections.accel.kubernetes.plugins.module_utils.oci.image import Entry, ImageError
from ansible_collections.accel.kubernetes.plugins.module_utils.oci.store import Store
from hypothesis import given, settings
from hypothesis import strategies as st

import image_layers
from sim.cluster.client import until

EXAMPLES = int(os.environ.get("KUBE_ACCEL_EXAMPLES", "15"))
Entries = Sequence[tuple[str, ...]]


def unpacked(*layers: Entries) -> dict[str, str]:
    """What the base has at each path when it is an image of these layers."""
    with tempfile.TemporaryDirectory() as directory:
        path = image_layers.image(Path(directory, "image"), *(image_layers.layer(*entries) for entries in layers))
        tree = Store(directory).base(str(path), "amd64").tree
        return {name: described(entry) for name, entry in tree.items()}


def described(entry: Entry) -> str:
    if entry.kind == oci_image.FILE:
        return f"f {entry.content.read().decode()}"
    return f"l {entry.target}" if entry.kind == oci_image.SYMLINK else entry.kind[:3]


def on_disk(root: Path) -> dict[str, str]:
    """The same of a directory."""
    found = {}
    for path in root.rglob("*"):
        mode = path.lstat().st_mode
        what = "dir" if stat.S_ISDIR(mode) else "dev"
        if stat.S_ISREG(mode):
            what = f"f {path.read_text()}"
        elif stat.S_ISLNK(mode):
            what = f"l {path.readlink()}"
        found[str(path.relative_to(root))] = what
    return found


LOWER = (("d", "a"), ("f", "a/x", "1"), ("f", "a/y", "2"), ("d", "usr"), ("d", "usr/lib"), ("l", "lib", "usr/lib"))
USR = {"usr": "dir", "usr/lib": "dir", "lib": "l usr/lib"}
A = {"a": "dir", "a/x": "f 1", "a/y": "f 2"}


@pytest.mark.parametrize(
    ("upper", "a", "usr"),
    [
        pytest.param([("f", "a/.wh.x")], {"a": "dir", "a/y": "f 2"}, USR, id="whiteout of a file"),
        pytest.param([("f", ".wh.a")], {}, USR, id="whiteout of a directory"),
        pytest.param([("f", "./a/.wh.x/")], {"a": "dir", "a/y": "f 2"}, USR, id="another spelling"),
        pytest.param([("d", "a"), ("f", "a/.wh..wh..opq"), ("f", "a/z", "3")], {"a": "dir", "a/z": "f 3"}, USR,
                     id="opaque directory"),
        pytest.param([("f", "a/z", "3"), ("f", "a/.wh..wh..opq")], {"a": "dir", "a/z": "f 3"}, USR,
                     id="opaque directory said last"),
        pytest.param([("f", "a/x", "3"), ("f", "a/.wh.x")], {**A, "a/x": "f 3"}, USR, id="what the layer itself has"),
        pytest.param([("l", "a", "usr")], {"a": "l usr"}, USR, id="directory becomes a link"),
        pytest.param([("f", "a", "3")], {"a": "f 3"}, USR, id="directory becomes a file"),
        pytest.param([("p", "a")], {"a": "dev"}, USR, id="directory becomes a pipe"),
        pytest.param([("d", "a/x"), ("f", "a/x/z", "3")], {**A, "a/x": "dir", "a/x/z": "f 3"}, USR,
                     id="file becomes a directory"),
        pytest.param([("f", "a/x/z", "3")], {**A, "a/x": "dir", "a/x/z": "f 3"}, USR, id="by what is in it"),
        pytest.param([("d", "lib"), ("f", "lib/z", "3")], A, {**USR, "lib": "dir", "lib/z": "f 3"},
                     id="link becomes a directory"),
        pytest.param([("f", "lib/z", "3")], A, {**USR, "usr/lib/z": "f 3"}, id="below a link"),
        pytest.param([("l", "b", "/lib/none"), ("f", "b/z", "3")], A,
                     {**USR, "b": "l /lib/none", "usr/lib/none": "dir", "usr/lib/none/z": "f 3"},
                     id="below a dead link"),
        pytest.param([("f", "/lib/../lib/z", "3")], A, {**USR, "usr/lib/z": "f 3"}, id="absolute path"),
        pytest.param([("f", "../../z", "3")], A, {**USR, "z": "f 3"}, id="no path leads out"),
        pytest.param([("f", "b/.wh.x"), ("f", "a/x/.wh.y")], A, USR, id="whiteout of nothing"),
        pytest.param([("h", "z", "/a/x")], A, {**USR, "z": "f 1"}, id="absolute hard link"),
        pytest.param([("h", "z", "b"), ("h", "b", "c"), ("f", "c", "3")], A,
                     {**USR, "z": "f 3", "b": "f 3", "c": "f 3"}, id="hard links before their file"),
        pytest.param([("h", "z", "lib/b"), ("f", "usr/lib/b", "3")], A, {**USR, "z": "f 3", "usr/lib/b": "f 3"},
                     id="hard link by way of a link"),
        pytest.param([("h", "z", "lib")], A, {**USR, "z": "l usr/lib"}, id="hard link to a link"),
    ],
)  # fmt: skip
def test_an_upper_layer_is_read_as_runtimes_do(upper: Entries, a: dict[str, str], usr: dict[str, str]) -> None:
    assert unpacked(LOWER, upper) == {**a, **usr}


@pytest.mark.parametrize(
    ("upper", "reason"),
    [
        ([("f", "b", "1"), ("f", "b/c", "1")], "'b/c' below 'b', which is a file"),
        ([("l", "b", "a/x"), ("f", "b/c", "1")], "'b/c' below 'a/x', which is a file"),
        ([("h", "b", "a/none")], "b is a hard link to a/none, which is not in it"),
        ([("h", "b", "c"), ("h", "c", "b")], "b is a hard link to c, which is not in it"),
        ([("h", "b", "a")], "b is a hard link to the directory a"),
        ([("l", "b", "c"), ("l", "c", "b"), ("f", "b/x", "")], "go round in circles"),
        ([("f", "a/.wh.")], "whiteout 'a/.wh.' names no file"),
        ([("f", "a/" * 3000)], "path of 5999 characters"),
    ],
)
def test_a_layer_that_no_runtime_unpacks_is_refused(upper: Entries, reason: str) -> None:
    with pytest.raises(ImageError, match=reason):
        unpacked(LOWER, upper)


@pytest.mark.parametrize(
    ("upper", "doubts"),
    [
        ([("f", "lib/z", "3"), ("f", "lib/y", "3")], 1),
        ([("f", "usr/lib/z", "3")], 0),
        ([("d", "lib"), ("f", "lib/z", "3")], 0),
        ([("l", "own", "usr"), ("f", "own/z", "3")], 0),
    ],
)
def test_where_runtimes_differ_about_a_link_there_is_a_warning(upper: Entries, doubts: int, tmp_path: Path) -> None:
    path = image_layers.image(tmp_path / "image", image_layers.layer(*LOWER), image_layers.layer(*upper))

    found = Store(str(tmp_path)).base(str(path), "amd64").doubts

    assert len(found) == doubts
    assert all("/lib/z" in doubt and "the link /lib." in doubt for doubt in found)


@pytest.mark.parametrize(
    ("upper", "doubts"),
    [
        ([("h", "z", "a/x")], ["'z' as a hard link to 'a/x'"]),
        ([("h", "z", "/a/x"), ("h", "y", "z")], ["'z' as a hard link to '/a/x'"]),
        ([("f", "a/x", "3"), ("h", "z", "a/x")], []),
        ([("f", "b", "3"), ("h", "z", "b")], []),
    ],
)
def test_a_hard_link_to_a_lower_layer_is_warned_of(upper: Entries, doubts: list[str], tmp_path: Path) -> None:
    path = image_layers.image(tmp_path / "image", image_layers.layer(*LOWER), image_layers.layer(*upper))
    found = Store(str(tmp_path)).base(str(path), "amd64").doubts
    assert len(found) == len(doubts)
    assert all(doubt in told for doubt, told in zip(doubts, found, strict=True))


@pytest.fixture(scope="module")
def containerd(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The socket of a containerd of its own."""
    if os.geteuid() or None in map(shutil.which, ("containerd", "ctr")):
        pytest.skip("no containerd and ctr, or no root")
    root = tmp_path_factory.mktemp("containerd")
    places = f'root = "{root}/root"\nstate = "{root}/state"\ndisabled_plugins = ["io.containerd.grpc.v1.cri"]\n'
    sockets = f'[grpc]\naddress = "{root}/grpc.sock"\n[ttrpc]\naddress = "{root}/ttrpc.sock"\n'
    (root / "config.toml").write_text(f"version = 2\n{places}{sockets}")
    command = ["containerd", "--config", str(root / "config.toml")]
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as program:
        try:
            until(lambda: ctr(root / "grpc.sock", "version").returncode == 0, "containerd answers")
            yield root / "grpc.sock"
        finally:
            program.terminate()


def ctr(socket: Path, *words: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(["ctr", "--address", str(socket), *words], capture_output=True, text=True)


@pytest.mark.parametrize(
    "upper",
    [
        [("h", "z", "a/x")],
        [("h", "z", "/a/x")],
        [("f", "a/x", "3"), ("h", "z", "a/x")],
        [("f", "b", "3"), ("h", "z", "/b")],
    ],
)
def test_containerd_on_overlayfs_refuses_warned_hard_links(containerd: Path, upper: Entries, tmp_path: Path) -> None:
    path = image_layers.image(tmp_path / "image", image_layers.layer(*LOWER), image_layers.layer(*upper))
    with tarfile.open(tmp_path / "image.tar", "w") as tar:
        tar.add(path, ".")
    words = ("--base-name", "registry.example/base", "--digests", str(tmp_path / "image.tar"))
    overlay, native = (
        ctr(containerd, "image", "import", "--snapshotter", name, *words) for name in ("overlayfs", "native")
    )
    assert native.returncode == 0, native.stderr
    doubts = Store(str(tmp_path)).base(str(path), "amd64").doubts
    assert ("no such file or directory" in overlay.stderr) == bool(doubts), overlay.stderr


def test_many_whiteouts_in_a_big_image_take_no_time() -> None:
    """Quadratic, this would be minutes."""
    files = [("f", f"{number % 100}/{number}", "") for number in range(10_000)]
    whiteouts = [("f", f"{number % 100}/.wh.{number}") for number in range(10_000)]
    assert set(unpacked(files, whiteouts).values()) == {"dir"}


PATHS = st.lists(st.sampled_from("abc"), min_size=1, max_size=3).map("/".join)
TARGETS = PATHS | PATHS.map("/{}".format) | PATHS.map("../{}".format)
ENTRIES = st.one_of(
    st.tuples(st.just("f"), PATHS, st.sampled_from("12")),
    st.tuples(st.just("d"), PATHS),
    st.tuples(st.just("l"), PATHS, TARGETS),
    st.tuples(st.just("h"), PATHS, PATHS | PATHS.map("/{}".format)),
    st.tuples(st.just("p"), PATHS),
    st.tuples(st.just("f"), st.sampled_from("abc").map(".wh.{}".format)),
    st.builds(lambda above, name: ("f", f"{above}/.wh.{name}"), PATHS, st.sampled_from(["a", "b", ".wh..opq"])),
)


@pytest.mark.skipif(shutil.which("umoci") is None, reason="umoci is not installed: apt-get install umoci")
@settings(max_examples=EXAMPLES, deadline=None)
@given(st.lists(st.lists(ENTRIES, min_size=1, max_size=6), min_size=1, max_size=3))
def test_generated_layers_are_read_as_umoci_unpacks_them(layers: list[list[tuple[str, ...]]]) -> None:
    with tempfile.TemporaryDirectory() as directory:
        path = image_layers.image(Path(directory, "image"), *(image_layers.layer(*entries) for entries in layers))
        command = ["umoci", "raw", "unpack", *(["--rootless"] if os.geteuid() else []), "--image", f"{path}:latest"]
        done = subprocess.run([*command, f"{directory}/root"], capture_output=True, text=True)
        if not done.returncode:
            assert unpacked(*layers) == on_disk(Path(directory, "root"))
