# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import contextlib
import os
from pathlib import Path

import pytest

from kube_accel.enforce.fd_cache import FdCache


def opened(directory: Path) -> int:
    """How many files of a directory this process has open, whatever other tests left."""
    found = 0
    for descriptor in Path("/proc/self/fd").iterdir():
        with contextlib.suppress(FileNotFoundError):
            found += descriptor.readlink().is_relative_to(directory)
    return found


def read(files: FdCache, path: Path) -> bytes:
    return os.pread(files.looked_at(str(path))[0], 100, 0)


def test_a_file_is_opened_once(tmp_path: Path) -> None:
    path, files = tmp_path / "a", FdCache("{}", os.O_RDONLY, 10)
    path.write_bytes(b"first")
    (first, found), (second, _) = files.looked_at(str(path)), files.looked_at(str(path))
    assert (first, found.st_size) == (second, 5)
    assert files.descriptor(str(path)) == first


def test_one_that_was_replaced_or_removed_is_let_go_of(tmp_path: Path) -> None:
    path, files = tmp_path / "a", FdCache("{}", os.O_RDONLY, 10)
    path.write_bytes(b"first")
    assert read(files, path) == b"first"
    before = opened(tmp_path)
    (tmp_path / "new").write_bytes(b"second")
    (tmp_path / "new").rename(path)
    assert read(files, path) == b"second"
    assert opened(tmp_path) == before
    path.unlink()
    with pytest.raises(FileNotFoundError):
        read(files, path)
    assert opened(tmp_path) == before - 1


def test_no_more_are_open_than_may_be(tmp_path: Path) -> None:
    before, files = opened(tmp_path), FdCache("{}", os.O_RDONLY, 3)
    paths = [tmp_path / str(number) for number in range(8)]
    for path in paths:
        path.write_text(path.name)
    for path in paths * 2:
        assert read(files, path) == path.name.encode()
    assert opened(tmp_path) == before + 3
    files.forget(map(str, paths))
    assert opened(tmp_path) == before


@pytest.mark.attack
def test_what_a_tenant_put_in_its_place_is_not_followed(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "a").symlink_to("secret")
    with pytest.raises(OSError, match="symbolic links"):
        read(FdCache("{}", os.O_RDONLY, 3), tmp_path / "a")
