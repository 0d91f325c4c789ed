# SPDX-License-Identifier: Apache-2.0
import os
import struct
import subprocess
from contextlib import suppress
from pathlib import Path

import pytest

from kube_accel.enforce import elf
from kube_accel.enforce.shim import FILES, Builds, ShimError
from unit.kube_accel.enforce.test_held_open import leasable, leased


def library(machine: int = 62, more: bytes = b"") -> bytes:
    return b"\x7fELF\x02\x01\x01".ljust(18, b"\0") + struct.pack("<H", machine) + more


@pytest.fixture
def source(tmp_path: Path) -> Path:
    directory = tmp_path / "image"
    directory.mkdir()
    for name in FILES:
        (directory / name).write_bytes(library())
    return directory


def builds(source: Path, machine: str = "x86_64") -> Builds:
    return Builds(source, source.parent / "state", source.parent / "sys", machine)


def test_a_build_is_copied_once_and_never_changes(source: Path) -> None:
    made = builds(source)
    first = made.install()
    inode = (made.path(first) / "libcuda.so.1").stat().st_ino
    assert made.install() == first
    assert (made.path(first) / "libcuda.so.1").stat().st_ino == inode
    assert (made.path(first) / "libcuda.so.1").stat().st_mode & 0o7777 == 0o555
    (source / "libcuda.so.1").write_bytes(library(more=b"newer"))
    second = made.install()
    assert second != first
    assert (made.path(first) / "libcuda.so.1").read_bytes() == library()
    assert {path.name for path in made.path(first).parent.iterdir()} == {first, second}


def test_a_build_that_did_not_change_is_not_read_again(source: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made = builds(source)
    digest = made.install()
    with monkeypatch.context() as patch:
        patch.delattr(Path, "read_bytes")
        assert made.install() == digest
    (made.path(digest) / "libcuda.so.1").unlink()
    assert made.install() == digest
    assert (made.path(digest) / "libcuda.so.1").read_bytes() == library()


def test_a_damaged_build_is_made_anew(source: Path) -> None:
    made = builds(source)
    digest = made.install()
    broken = made.path(digest) / "libcuda.so.1"
    broken.chmod(0o755)
    broken.write_bytes(b"cut")
    assert made.install() == digest
    assert broken.read_bytes() == library()
    assert [path.name for path in made.path(digest).parent.iterdir()] == [digest]


@pytest.mark.attack
def test_no_build_can_be_leased_once_it_is_installed(source: Path) -> None:
    made = builds(source)
    paths = [made.path(made.install()) / name for name in FILES]
    assert not any(map(leasable, paths))
    (source / "libcuda.so.1").write_bytes(library(more=b"newer"))
    paths += [made.path(made.install()) / name for name in FILES]
    assert not any(map(leasable, paths))


@pytest.mark.attack
def test_a_build_that_was_leased_before_a_restart_is_made_anew(source: Path) -> None:
    path = builds(source).path(builds(source).install()) / "libcuda.so.1"
    with leased(path):
        made = builds(source)
        made.install()
        assert path.read_bytes() == library()
        assert not leasable(path)


@pytest.mark.parametrize("name", FILES)
def test_an_image_without_interposer_is_named(source: Path, name: str) -> None:
    (source / name).unlink()
    with pytest.raises(ShimError, match=f"no interposer .*{name}.*--shim-dir"):
        builds(source).install()


@pytest.mark.parametrize(
    ("data", "message"),
    [(library(183), "is for aarch64, and this node is x86_64"), (b"text", "no 64-bit ELF"), (library(3), "machine 3")],
)
def test_a_build_for_another_machine_is_refused(source: Path, data: bytes, message: str) -> None:
    (source / "libcuda.so.1").write_bytes(data)
    with pytest.raises(ShimError, match=message):
        builds(source).install()


def test_a_state_directory_that_takes_nothing_is_named(source: Path) -> None:
    (source.parent / "state").write_text("a file")
    with pytest.raises(ShimError, match="cannot be copied to"):
        builds(source).install()


def test_builds_go_when_no_container_uses_them(source: Path) -> None:
    made = builds(source)
    old = made.install()
    (source / "libcuda.so.1").write_bytes(library(more=b"newer"))
    new = made.install()
    now = made.path(old).stat().st_mtime
    made.prune({old, new}, now + 1e7)
    made.prune({new}, now + 60)
    assert made.path(old).is_dir()
    made.prune({new}, now + 1e7)
    assert not made.path(old).exists()
    assert made.path(new).is_dir()


def small(path: Path, *functions: str) -> Path:
    """A library with these functions."""
    code = path.with_suffix(".c")
    code.write_text("".join(f"int {name}(void) {{ return 0; }}\n" for name in functions))
    subprocess.run(["gcc", "-shared", "-fPIC", "-nostdlib", "-o", path, code], check=True)
    return path


class TestFitting:
    @pytest.fixture
    def machine(self) -> str:
        return os.uname().machine

    def test_a_build_lacks_what_the_driver_lacks(self, source: Path, tmp_path: Path, machine: str) -> None:
        for name in FILES:
            small(source / name, "cuInit", "cuGetProcAddress", "cuGetProcAddress_v2")
        driver = small(tmp_path / "libcuda.so.470", "cuInit", "cuGetProcAddress", "cuOther")
        made = builds(source, machine)
        plain = made.install()
        digest = made.install({"libcuda.so.1": driver})
        assert digest != plain
        assert elf.exports((made.path(digest) / "libcuda.so.1").read_bytes()) == {"cuInit", "cuGetProcAddress"}
        assert len(elf.exports((made.path(digest) / "libnvidia-ml.so.1").read_bytes())) == 3
        assert made.install({"libcuda.so.1": driver}) == digest

    def test_a_newer_driver_gets_a_build_of_its_own(self, source: Path, tmp_path: Path, machine: str) -> None:
        for name in FILES:
            small(source / name, "cuInit", "cuGetProcAddress_v2")
        driver, made = small(tmp_path / "libcuda.so.1", "cuInit"), builds(source, machine)
        old = made.install({"libcuda.so.1": driver})
        small(driver, "cuInit", "cuGetProcAddress_v2")
        new = made.install({"libcuda.so.1": driver})
        assert old != new
        assert elf.exports((made.path(old) / "libcuda.so.1").read_bytes()) == {"cuInit"}

    @pytest.mark.parametrize("content", [b"", b"text", b"\x7fELF\x02\x01\x01" + b"\xff" * 200, None])
    def test_a_driver_that_cannot_be_read_hides_nothing(
        self, source: Path, tmp_path: Path, machine: str, content: bytes | None
    ) -> None:
        for name in FILES:
            small(source / name, "cuInit")
        driver, made = tmp_path / "libcuda.so.1", builds(source, machine)
        if content is not None:
            driver.write_bytes(content)
        assert made.install({"libcuda.so.1": driver}) == made.install()


def test_library_cut_to_any_length_is_an_error_and_no_crash(tmp_path: Path) -> None:
    whole = small(tmp_path / "whole.so", "cuInit", "cuMemAlloc_v2").read_bytes()
    assert elf.exports(whole) == {"cuInit", "cuMemAlloc_v2"}
    for length in range(0, len(whole), 97):
        with suppress(ValueError):
            elf.exports(whole[:length])
