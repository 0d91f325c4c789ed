# SPDX-License-Identifier: Apache-2.0
"""Connections pass from a plugin to its successor, and from there on only kubelet can end them."""

from __future__ import annotations

import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from kube_accel.plugin.kubelet.handover import Keeper

PATIENCE = 10.0
Make = Callable[..., Keeper]


@pytest.fixture
def root() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        yield Path(name)


@pytest.fixture
def keeper(root: Path) -> Make:
    """``keeper(*resources)``: one that runs and is registered for these."""

    def make(*registered: str) -> Keeper:
        made = Keeper(root, lambda resource: resource in registered)
        threading.Thread(target=made.run, daemon=True).start()
        return made

    return make


class Connection:
    """Kubelet's end and the plugin's of a connection to a plugin."""

    def __init__(self, path: Path) -> None:
        with socket.socket(socket.AF_UNIX) as listener:
            listener.bind(str(path))
            listener.listen()
            self.path = path
            self.kubelet = socket.socket(socket.AF_UNIX)
            self.kubelet.connect(str(path))
            self.kubelet.settimeout(PATIENCE)
            self.plugin, _ = listener.accept()

    def ended(self) -> bool:
        """Whether kubelet sees the end of it."""
        self.kubelet.setblocking(False)
        try:
            return self.kubelet.recv(1) == b""
        except BlockingIOError:
            return False
        finally:
            self.kubelet.settimeout(PATIENCE)


def test_a_connection_outlives_its_plugin(root: Path, keeper: Make) -> None:
    connection, other = Connection(root / "a.sock"), Connection(root / "other.sock")
    old, new = keeper(), keeper("a/gpu", "a/mig")
    assert old.hand_over({"a/gpu": connection.path, "a/mig": root / "b.sock"})
    assert new.kept == 1
    connection.plugin.close()
    other.plugin.close()
    assert not connection.ended()
    assert other.ended(), "it was not of that plugin"

    newest = keeper("a/gpu")
    assert new.hand_over({"a/gpu": root / "c.sock"})
    assert newest.kept == 1
    assert not connection.ended()


def test_what_kubelet_ended_is_kept_no_longer(root: Path, keeper: Make) -> None:
    connection = Connection(root / "a.sock")
    old, new = keeper(), keeper("a/gpu")
    assert old.hand_over({"a/gpu": connection.path})
    connection.plugin.close()
    connection.kubelet.close()
    again = Connection(root / "again.sock")
    assert old.hand_over({"a/gpu": again.path})
    assert new.kept <= 2  # the one that ended, kept by the old one too, and this
    new._alive()
    assert new.kept == 1


@pytest.mark.parametrize("registered", [(), ("a/gpu",)])
def test_a_successor_that_kubelet_does_not_know_takes_nothing(root: Path, keeper: Make, registered: list[str]) -> None:
    connection = Connection(root / "a.sock")
    old, new = keeper(), keeper(*registered)
    assert not old.hand_over({"a/gpu": connection.path, "a/mig": root / "b.sock"})
    assert new.kept == 0
    connection.plugin.close()
    assert connection.kubelet.recv(1) == b""


def test_the_last_one_has_nobody_to_hand_over_to(root: Path, keeper: Make) -> None:
    connection = Connection(root / "a.sock")
    assert not keeper("a/gpu").hand_over({"a/gpu": connection.path})


def test_whoever_talks_nonsense_gets_nothing(root: Path, keeper: Make) -> None:
    kept = keeper("a/gpu")
    for words in (b"\xff", b"", b"a/gpu\n"):
        with socket.socket(socket.AF_UNIX) as client:
            client.settimeout(PATIENCE)
            client.connect(str(root / "handover.sock"))
            client.sendall(words)
            client.shutdown(socket.SHUT_WR)
            assert client.recv(1) == b""
    assert kept.kept == 0
    connection = Connection(root / "a.sock")
    successor = keeper("a/gpu")
    assert kept.hand_over({"a/gpu": connection.path})
    assert successor.kept == 1
