# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
import posixpath

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils.oci import image as oci
from ansible_collections.accel.kubernetes.plugins.module_utils.oci.python_tree import (
    Python,
    find_python,
    freeze_byte_code,
    sources,
)
from hypothesis import given
from hypothesis import strategies as st

names = st.sampled_from(["a", "b", "c", "bin", "..", ".", ""])
paths = st.lists(names, min_size=1, max_size=5).map("/".join)
entries = st.one_of(
    st.just(oci.Entry(oci.FILE, 0o644)),
    st.just(oci.Entry(oci.DIRECTORY, 0o700)),
    st.builds(lambda target: oci.Entry(oci.SYMLINK, 0o777, target=target), paths | paths.map("/{}".format)),
)


def inside(path: str) -> bool:
    return path == posixpath.normpath(path) and not path.startswith("/") and path.split("/")[0] not in (".", "..")


@st.composite
def trees(draw: st.DrawFn) -> oci.Tree:
    """Trees as a base is read: clean paths, every parent a directory."""
    tree: oci.Tree = {}
    for path in draw(st.lists(paths, max_size=8)):
        try:
            clean = oci.clean(path, "test")
            tree = oci.with_parents({**tree, clean: draw(entries)}, "test") if clean else tree
        except oci.ImageError:
            continue
    return tree


@given(st.text(alphabet="a./\0", max_size=8))
def test_a_clean_path_never_leads_out(name: str) -> None:
    leads_out = name.startswith("/") or ".." in name.split("/") or "\0" in name
    with pytest.raises(oci.ImageError, match="leads out") if leads_out else contextlib.nullcontext():
        path = oci.clean(name, "test")
        assert path == "" or inside(path)


@given(trees(), paths, st.booleans())
def test_following_links_ends_inside_the_root(tree: oci.Tree, path: str, last: bool) -> None:
    try:
        real = oci.resolve(tree, path, last)
    except oci.ImageError:
        return
    assert real == "" or inside(real)
    assert all(tree[parent].kind != oci.SYMLINK for parent in oci.parents(real) if parent in tree)


@given(trees(), trees())
def test_a_layer_changes_nothing_of_the_base_but_what_it_was_to(base: oci.Tree, additions: oci.Tree) -> None:
    try:
        layer = oci.place(base, additions)
    except oci.ImageError:
        return
    for path, entry in layer.items():
        assert all((layer.get(parent) or base[parent]).kind == oci.DIRECTORY for parent in oci.parents(path))
        if path in base:
            # Neither a directory's mode nor what is below it.
            assert oci.DIRECTORY not in (entry.kind, base[path].kind)
    for path, entry in additions.items():
        real = oci.resolve(base, path, last=entry.kind == oci.DIRECTORY)
        assert real == "" or (layer.get(real) or base[real]).kind == entry.kind


@pytest.mark.parametrize(("target", "reason"), [("a", "/a, where it goes, is a file"), ("a/a", "below /a, which is")])
def test_additions_that_collide_through_a_link_are_refused(target: str, reason: str) -> None:
    file, directory = oci.Entry("file", 0o644), oci.Entry(oci.DIRECTORY, 0o755)
    with pytest.raises(oci.ImageError, match=reason):
        oci.place({"b": oci.Entry(oci.SYMLINK, 0o777, target=target)}, {"a": file, "b": directory, "b/a": file})


def test_circles_of_links_are_named() -> None:
    tree = {"a": oci.Entry(oci.SYMLINK, 0o777, target="b"), "b": oci.Entry(oci.SYMLINK, 0o777, target="/a")}

    with pytest.raises(oci.ImageError, match="on the way to /a/x go round in circles"):
        oci.resolve(tree, "a/x")


@pytest.mark.parametrize(
    ("text", "full"),
    [
        ("kube-accel", "docker.io/library/kube-accel:latest"),
        ("gpu/kube-accel:0.1.0", "docker.io/gpu/kube-accel:0.1.0"),
        ("docker.io/gpu/x:1", "docker.io/gpu/x:1"),
        ("localhost/x", "localhost/x:latest"),
        ("localhost:5000/x:2", "localhost:5000/x:2"),
        ("registry.example.com:443/a/b_c/d-e.f:V1", "registry.example.com:443/a/b_c/d-e.f:V1"),
    ],
)
def test_names_are_completed_as_docker_does(text: str, full: str) -> None:
    assert str(oci.parse_reference(text)) == full
    assert oci.parse_reference(full) == oci.parse_reference(text)


@pytest.mark.parametrize(
    "text",
    ["", ":1", "a:", "A/b", "a//b", "a/../b", "x@sha256:" + "0" * 64, "a b", "r.io/", "a:b:c", "-a", "r.io:x/a", "a\n"],
)
def test_other_names_are_refused(text: str) -> None:
    with pytest.raises(oci.ImageError, match="is not the name of an image"):
        oci.parse_reference(text)


@pytest.mark.parametrize(
    ("files", "interpreter", "site"),
    [
        (["usr/bin/python3.11", "etc/debian_version"], "usr/bin/python3.11", "usr/local/lib/python3.11/dist-packages"),
        (["usr/bin/python3.9", "usr/bin/python3.12"], "usr/bin/python3.12", "usr/lib/python3.12/site-packages"),
        (
            ["usr/bin/python3.11", "usr/local/bin/python3.11", "etc/debian_version"],
            "usr/local/bin/python3.11",
            "usr/local/lib/python3.11/site-packages",
        ),
    ],
)
def test_the_newest_python_is_found_and_where_it_looks(files: list[str], interpreter: str, site: str) -> None:
    python = find_python(dict.fromkeys(files, oci.Entry(oci.FILE, 0o755)))

    assert (python.path, python.site) == (interpreter, site)


@pytest.mark.parametrize(
    ("links", "interpreter"),
    [
        ({"usr/bin/python3.12": "gone"}, "usr/bin/python3.9"),
        ({"usr/bin/python3.12": "python3.12"}, "usr/bin/python3.9"),
        ({"usr/bin/python3.12": "../../opt/py/python3.12"}, "usr/bin/python3.12"),
        ({"usr/local/bin": "/opt/py"}, "usr/local/bin/python3.12"),
        ({"usr/local": "/opt", "opt/bin": "py"}, "usr/local/bin/python3.12"),
    ],
)
def test_a_python_is_one_that_is_there_wherever_links_lead(links: dict[str, str], interpreter: str) -> None:
    file = oci.Entry(oci.FILE, 0o755)
    tree = {path: oci.Entry(oci.SYMLINK, 0o777, target=target) for path, target in links.items()}
    assert find_python({"usr/bin/python3.9": file, "opt/py/python3.12": file, **tree}).path == interpreter


def cache(flags: int, mtime: int, size: int) -> oci.Entry:
    header = b"MAGI" + b"".join(number.to_bytes(4, "little") for number in (flags, mtime, size))
    return oci.Entry(oci.FILE, 0o644, content=oci.Content.of(header + b"code"))


@pytest.mark.parametrize(
    ("byte_code", "current"),
    [
        (cache(0, 100, 5), True),
        (cache(0, 101, 5), False),
        (cache(0, 100, 6), False),
        (cache(1, 0, 0), True),
        (cache(3, 0, 0), False),
        (oci.Entry(oci.FILE, 0o644, content=oci.Content.of(b"MAGI")), False),
    ],
)
def test_byte_code_counts_when_python_would_load_it_as_it_is(byte_code: oci.Entry, current: bool) -> None:
    source = oci.Entry(oci.FILE, 0o644, content=oci.Content.of(b"x = 1"), mtime=100)
    tree = {"usr/lib/python3.11/x.py": source, "usr/lib/python3.11/__pycache__/x.cpython-311.pyc": byte_code}
    python = Python(11, "usr/bin/python3.11", "usr", "")

    assert sources(tree, python) == ([] if current else ["usr/lib/python3.11/x.py"])
    frozen = freeze_byte_code(tree)
    assert set(tree) - set(frozen) == (set() if current else {"usr/lib/python3.11/__pycache__/x.cpython-311.pyc"})
    assert sources(frozen, python) == sources(tree, python)
    if current:
        data = frozen["usr/lib/python3.11/__pycache__/x.cpython-311.pyc"].content.read()
        assert data == b"MAGI\x01\0\0\0" + bytes(8) + b"code"


def test_exclusion_takes_what_is_below_too() -> None:
    tree = dict.fromkeys(
        ["usr", "usr/share", "usr/share/doc", "usr/share/doc/a", "usr/share/docs"], oci.Entry("file", 0)
    )

    assert list(oci.exclude(tree, ["/usr/share/doc"])) == ["usr", "usr/share", "usr/share/docs"]
    assert list(oci.exclude(tree, ["usr/*/doc/*"])) == ["usr", "usr/share", "usr/share/doc", "usr/share/docs"]
