# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import fcntl
import gc
import os
import signal
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from kube_accel.enforce.held_open import HeldOpen
from unit.kube_accel.enforce.test_fd_cache import opened
from waiting import wait


@pytest.fixture
def path(tmp_path: Path) -> Path:
    (tmp_path / "library").write_bytes(b"code")
    return tmp_path / "library"


def leasable(path: Path) -> bool:
    """Whether the owner of a file gets a write lease on it."""
    file = os.open(path, os.O_RDONLY)
    try:
        return lease(file)
    finally:
        os.close(file)


def lease(file: int) -> bool:
    try:
        fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_WRLCK)
    except BlockingIOError:
        return False
    return True


@contextmanager
def leased(path: Path) -> Iterator[int]:
    before = signal.signal(signal.SIGIO, signal.SIG_IGN)
    file = os.open(path, os.O_RDONLY)
    try:
        assert lease(file)
        yield file
    finally:
        os.close(file)
        signal.signal(signal.SIGIO, before)


@pytest.mark.attack
def test_nobody_leases_a_file_that_is_held(path: Path) -> None:
    assert leasable(path)
    held = HeldOpen()
    held.hold([path])
    assert not leasable(path)
    held.hold([])
    assert leasable(path)


@pytest.mark.attack
def test_a_leased_file_is_held_as_soon_as_the_lease_goes(path: Path, caplog: pytest.LogCaptureFixture) -> None:
    held = HeldOpen()
    with leased(path) as file:
        for _ in range(3):
            held.hold([path])
        assert [record.message for record in caplog.records] == [
            "a tenant keeps a file that containers share, by a file lease"
        ]

        def leased_anew() -> bool:
            fcntl.fcntl(file, fcntl.F_SETLEASE, fcntl.F_UNLCK)
            return lease(file)

        wait(lambda: not leased_anew(), "the thread that waits to open it")
    wait(lambda: not held._awaited, "the lease to end")
    assert not leasable(path)


def test_a_leased_file_that_is_no_longer_wanted_is_let_go(path: Path) -> None:
    held, before = HeldOpen(), opened(path.parent)
    with leased(path):
        held.hold([path])
        held.hold([])
    wait(lambda: not held._awaited, "the lease to end")
    assert opened(path.parent) == before


def test_a_file_that_was_replaced_is_opened_anew(path: Path) -> None:
    held, before = HeldOpen(), opened(path.parent)
    held.hold([path])
    (path.parent / "new").write_bytes(b"newer")
    (path.parent / "new").rename(path)
    assert leasable(path)
    held.hold([path])
    held.hold([path])
    assert not leasable(path)
    assert opened(path.parent) == before + 1
    del held
    gc.collect()
    assert opened(path.parent) == before


@pytest.mark.parametrize("kind", ["absent", "directory", "pipe", "removed"])
def test_what_cannot_be_held_is_left_out(path: Path, kind: str) -> None:
    held, other = HeldOpen(), path.parent / "other"
    if kind == "directory":
        other.mkdir()
    elif kind == "pipe":
        os.mkfifo(other)
    elif kind == "removed":
        other.touch()
        held.hold([other])
        other.unlink()
    held.hold([other, path])
    assert not leasable(path)


def test_the_file_behind_a_link_is_held(path: Path) -> None:
    held = HeldOpen()
    (path.parent / "link").symlink_to(path.name)
    held.hold([path.parent / "link"])
    assert not leasable(path)
