# SPDX-License-Identifier: Apache-2.0
"""The files of containers that run under the interposer: ``<state-dir>/containers/<key>/``, one directory a share.

Everything is keyed by the device ids that kubelet handed out, which no two running containers share. Files of a start
are new ones: a container of before that still ends keeps those that it was started with.
"""

from __future__ import annotations

import fcntl
import hashlib
import logging
import os
import shutil
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Set
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from kube_accel.enforce import policy as layouts
from kube_accel.enforce import selinux
from kube_accel.enforce.policy import GENERATION_OFFSET, Account, Policy
from kube_accel.files import replacing

_log = logging.getLogger(__name__)

_KEPT_SECONDS = 600.0
"""A directory that kubelet lists no container for stays so long: init containers are listed nowhere."""
_MOST_POLICY = 1 << 16
"""More bytes than a policy of any layout has."""


def key_of(ids: Iterable[str]) -> str:
    """The name of the directory for these devices."""
    return hashlib.sha256("\n".join(sorted(ids)).encode()).hexdigest()[:32]


class Containers:
    """All of them on a node; for any thread, and for the two daemons of an upgrade at a time."""

    def __init__(self, state_dir: Path, sysfs_root: Path) -> None:
        self._root = state_dir / "containers"
        self._base = str(self._root)
        self._known: dict[str, tuple[bytes, Policy, bool]] = {}
        """What was read last, so that what has not changed need not be understood again."""
        self._label = selinux.wanted(sysfs_root)

    def policy_path(self, key: str) -> Path:
        """The policy of a container."""
        return self._root / key / "policy"

    def state_path(self, key: str) -> Path:
        """The account that its processes keep."""
        return self._root / key / "state"

    def prepare(self, key: str, build: str) -> None:
        """Make room for a container that is going to use this build of the interposer. Raises OSError."""
        directory = self._root / key
        directory.mkdir(parents=True, exist_ok=True)
        for path in (self._root, directory):
            path.chmod(0o755)
        _publish(directory / "build", build.encode(), 0o444, label=False)

    def build_of(self, key: str) -> str:
        """The build that a container uses; empty when it is not known."""
        try:
            return (self._root / key / "build").read_text().strip()
        except OSError:
            return ""

    def start(self, key: str, policy: Policy) -> None:
        """A container is about to start: its limits, and an account that nothing was charged to. Raises OSError."""
        directory = self._root / key
        directory.mkdir(parents=True, exist_ok=True)
        with self._writing():
            _publish(directory / "policy", layouts.pack_policy(policy, 2), 0o444, self._label)
            head = layouts.fresh_state(len(policy.limits), policy.layout)
            # Any user of the container may be the one that runs CUDA programs.
            _publish(directory / "state", head, 0o666, self._label, layouts.state_size(policy.layout))

    def policy(self, key: str) -> Policy | None:
        """What a container was told last; None when it has no policy, or one that no version of ours wrote."""
        found = self.read(key)
        return None if found is None else found[0]

    def read(self, key: str) -> tuple[Policy, bool] | None:
        """The same, and whether it is written to its end: a daemon may have been killed at it."""
        try:
            data = _head(self._name(key, "policy"), _MOST_POLICY)
            known = self._known.get(key)
            if known is None or known[0] != data:
                policy, generation = layouts.read_policy(data)
                known = self._known[key] = data, policy, not generation % 2
            return known[1:]
        except (OSError, ValueError):
            return None

    def update(self, key: str, change: Callable[[Policy], Policy]) -> bool:
        """Tell a running container something else, in the layout that it started with; whether that was news.

        Raises OSError, and ValueError for a policy that cannot be read.
        """
        with self._writing(), _opened(self._name(key, "policy"), os.O_RDWR) as file:
            current, generation = layouts.read_policy(os.pread(file, _MOST_POLICY, 0))
            wanted = replace(change(current), layout=current.layout)
            if wanted == current and not generation % 2:
                return False
            odd = generation | 1
            data = layouts.pack_policy(wanted, odd)
            begin = GENERATION_OFFSET + 4
            os.pwrite(file, data[GENERATION_OFFSET:begin], GENERATION_OFFSET)
            os.pwrite(file, data[begin:], begin)
            os.pwrite(file, ((odd + 1) % 2**32).to_bytes(4, "little"), GENERATION_OFFSET)
            return True

    def account(self, key: str, policy: Policy) -> Account | None:
        """What a container's processes say of themselves; None when there is nothing that could be read."""
        try:
            head = _head(self._name(key, "state"), layouts.state_head(policy.layout))
            return layouts.read_state(head, len(policy.limits), policy.layout)
        except (OSError, ValueError):
            return None

    def trim(self, key: str, policy: Policy) -> int:
        """Give a state the size it was made with; by how many bytes a tenant had changed that, 0 mostly."""
        size = layouts.state_size(policy.layout)
        try:
            found = os.stat(self._name(key, "state")).st_size  # noqa: PTH116
            if found != size:
                os.truncate(self._name(key, "state"), size)
        except OSError:
            return 0
        return found - size

    def _name(self, key: str, file: str) -> str:
        # A path without pathlib, which takes longer than the reading: this is done for every container every second.
        return f"{self._base}/{key}/{file}"

    def keys(self) -> Set[str]:
        """All there are."""
        try:
            return {path.name for path in self._root.iterdir() if path.is_dir()}
        except OSError:
            return set()

    def prune(self, held: Collection[str], now: float | None = None) -> list[str]:
        """Remove the directories of containers that are not ``held`` and were made a while ago; their keys."""
        moment = time.time() if now is None else now
        gone = []
        for key in set(self._known) - set(held):
            self._known.pop(key, None)
        for key in self.keys() - set(held):
            with suppress(OSError):
                newest = max(path.stat().st_mtime for path in (self._root / key, *(self._root / key).iterdir()))
                if moment - newest > _KEPT_SECONDS:
                    shutil.rmtree(self._root / key)
                    gone.append(key)
        if gone:
            _log.info("files of containers that ended are removed", extra={"containers": len(gone)})
        return gone

    @contextmanager
    def _writing(self) -> Iterator[None]:
        # Not the policy itself is locked: a container could hold that lock, since it can open the file.
        with _opened(f"{self._base}/.lock", os.O_RDWR | os.O_CREAT) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def _head(path: str, size: int) -> bytes:
    """At most so many bytes of the beginning of a file."""
    file = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        return os.pread(file, size, 0)
    finally:
        os.close(file)


@contextmanager
def _opened(path: str, flags: int) -> Iterator[int]:
    file = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        yield file
    finally:
        os.close(file)


def _publish(path: Path, data: bytes, mode: int, label: bool, size: int | None = None) -> None:
    """A new file in the place of whatever was there; ``size`` where it is to be longer than ``data``."""
    with replacing(path, mode) as file:
        file.write(data)
        if size is not None:
            file.truncate(size)
        selinux.share(Path(file.name), label)
