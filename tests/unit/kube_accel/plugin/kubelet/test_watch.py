# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest

from kube_accel.plugin.kubelet.watch import DirectoryWatch

LONG = 60.0


def descriptors() -> int:
    return len(list(Path("/proc/self/fd").iterdir()))


def waits(watch: DirectoryWatch, change: Callable[[], object]) -> float:
    """Seconds from ``change``, made by another thread, to the end of the wait."""
    changed_at: list[float] = []

    def act() -> None:
        changed_at.append(time.monotonic())
        change()

    timer = threading.Timer(0.05, act)
    timer.start()
    watch.wait(LONG)
    timer.join()
    return time.monotonic() - changed_at[0]


@pytest.mark.parametrize(
    "change",
    [
        lambda path: (path / "new").touch(),
        lambda path: (path / "old").unlink(),
        lambda path: (path / "old").rename(path / "other"),
    ],
    ids=["created", "deleted", "renamed"],
)
def test_a_change_of_entries_ends_the_wait(tmp_path: Path, change: Callable[[Path], object]) -> None:
    (tmp_path / "old").touch()
    assert waits(DirectoryWatch(tmp_path), lambda: change(tmp_path)) < LONG / 2


def test_a_wake_ends_the_wait_and_is_not_lost(tmp_path: Path) -> None:
    watch = DirectoryWatch(tmp_path)
    assert waits(watch, watch.wake) < LONG / 2
    watch.wake()
    begin = time.monotonic()
    watch.wait(LONG)
    watch.wait(0)
    assert time.monotonic() - begin < LONG / 2


def test_closed_watch_holds_nothing_and_wakes_no_other(tmp_path: Path) -> None:
    before = descriptors()
    watch = DirectoryWatch(tmp_path)
    watch.close()
    assert descriptors() == before
    # It gets the number that the watch was woken by.
    others = [os.eventfd(0, os.EFD_NONBLOCK) for _ in range(3)]
    watch.wake()
    watch.close()
    for other in others:
        with pytest.raises(BlockingIOError):
            os.eventfd_read(other)
        os.close(other)


def test_without_inotify_waits_are_short(tmp_path: Path) -> None:
    begin = time.monotonic()
    DirectoryWatch(tmp_path / "absent").wait(LONG)
    assert time.monotonic() - begin < LONG / 2
