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
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from kube_accel.enforce import policy as layouts
from kube_accel.enforce import selinux
from kube_accel.enforce.keptopen import KeptOpen
from kube_accel.enforce.policy import GENERATION_OFFSET, UNSEEN, Account, Policy
from kube_accel.files import replacing

_log = logging.getLogger(__name__)

_KEPT_SECONDS = 600.0
"""A directory that kubelet lists no container for stays so long: init containers are listed nowhere."""
_MOST_POLICY = 1 << 12
"""More bytes than a policy of any layout has."""
_MOST_OPEN = 256
"""Containers whose files are kept open: soft limits of 1024 descriptors are common."""


def key_of(ids: Iterable[str]) -> str:
    """The name of the directory for these devices."""
    return hashlib.sha256("\n".join(sorted(ids)).encode()).hexdigest()[:32]


class Containers:
    """All of them on a node; for any thread, and for the two daemons of an upgrade at a time."""

    def __init__(self, state_dir: Path, sysfs_root: Path) -> None:
        self._root = state_dir / "containers"
        self._base = str(self._root)
        self._known: dict[str, tuple[bytes, tuple[Policy, bool]]] = {}
        """What was read last, so that what has not changed need not be understood again."""
        self._lock = threading.Lock()
        self._policies = KeptOpen(f"{self._base}/{{}}/policy", os.O_RDWR, _MOST_OPEN)
        self._states = KeptOpen(f"{self._base}/{{}}/state", os.O_RDONLY, _MOST_OPEN)
        self._label = selinux.wanted(sysfs_root)

    def policy_path(self, key: str) -> Path:
        """The policy of a container."""
        return self._root / key / "policy"

    def state_path(self, key: str) -> Path:
        """The account that its processes keep."""
        return self._root / key / "state"

    def prepare(self, key: str, build: str) -> None:
        """Make room for a container that is going to use this build of the interposer, if known. Raises OSError."""
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
            _publish(directory / "policy", layouts.pack_policy(policy, 2), 0o644, self._label)
            head = layouts.fresh_state(len(policy.limits), policy.layout)
            # Any user of the container may be the one that runs CUDA programs.
            _publish(directory / "state", head, 0o666, self._label, layouts.state_size(policy.layout))
        self._forget([key])

    def policy(self, key: str) -> Policy | None:
        """What a container was told last; None when it has no policy, or one that no version of ours wrote."""
        found = self.read(key)
        return None if found is None else found[0]

    def read(self, key: str) -> tuple[Policy, bool] | None:
        """The same, and whether it is written to its end: a daemon may have been killed at it."""
        return self.read_all([key]).get(key)

    def read_all(self, keys: Iterable[str]) -> dict[str, tuple[Policy, bool]]:
        """``read`` for several, without those of which it says None."""
        found = {}
        with self._lock:
            for key in keys:
                try:
                    found[key] = self._understood(key, os.pread(self._policies.looked_at(key)[0], _MOST_POLICY, 0))
                except PermissionError:
                    if (only := self._only_read(key)) is not None:
                        found[key] = only
                except (OSError, ValueError):
                    continue
        return found

    def last_read(self, keys: Iterable[str]) -> dict[str, tuple[Policy, bool]]:
        """What ``read_all`` said, and ``update`` made of it, without a look at any file."""
        return {key: known[1] for key in keys if (known := self._known.get(key)) is not None}

    def _only_read(self, key: str) -> tuple[Policy, bool] | None:
        """For those who may not write it."""
        try:
            return self._understood(key, self.policy_path(key).read_bytes()[:_MOST_POLICY])
        except (OSError, ValueError):
            return None

    def _understood(self, key: str, data: bytes) -> tuple[Policy, bool]:
        known = self._known.get(key)
        if known is None or known[0] != data:
            policy, generation = layouts.read_policy(data)
            known = self._known[key] = data, (policy, not generation % 2)
        return known[1]

    def update(self, key: str, change: Callable[[Policy], Policy]) -> bool:
        """Tell a running container something else, in the layout that it started with; whether that was news.

        Raises OSError, and ValueError for a policy that cannot be read.
        """
        self.read(key)
        with self.updating() as update:
            return update(key, change)

    @contextmanager
    def updating(self) -> Iterator[Callable[[str, Callable[[Policy], Policy]], bool]]:
        """``update`` for several that were read lately; nobody else writes meanwhile. Raises OSError."""
        with self._writing():
            yield self._update

    def _update(self, key: str, change: Callable[[Policy], Policy]) -> bool:
        with self._lock:
            file = self._policies.descriptor(key)
            before = os.pread(file, _MOST_POLICY, 0)
            current, complete = self._understood(key, before)
            wanted = change(current)
            if wanted.layout != current.layout:
                wanted = replace(wanted, layout=current.layout)
            if wanted == current and complete:
                return False
            begin = GENERATION_OFFSET + 4
            odd = int.from_bytes(before[GENERATION_OFFSET:begin], "little") | 1
            if complete and wanted.feedback and wanted.limits == current.limits:
                data = layouts.with_feedback(before, wanted.feedback, wanted.feedback_at_ns)
            else:
                data = layouts.pack_policy(wanted, odd)
            even = ((odd + 1) % 2**32).to_bytes(4, "little")
            os.pwrite(file, odd.to_bytes(4, "little"), GENERATION_OFFSET)
            os.pwrite(file, data[begin:], begin)
            os.pwrite(file, even, GENERATION_OFFSET)
            if wanted.feedback and wanted.feedback == (UNSEEN,) * len(wanted.feedback):
                wanted = replace(wanted, feedback=())
            self._known[key] = data[:GENERATION_OFFSET] + even + data[begin:], (wanted, True)
            return True

    def account(self, key: str, policy: Policy) -> Account | None:
        """What a container's processes say of themselves; None when there is nothing that could be read."""
        with self._lock, suppress(OSError):
            self._states.looked_at(key)
            return self._account(key, policy)
        return None

    def accounts(self, policies: Mapping[str, Policy]) -> dict[str, Account]:
        """``account`` of several that ``trim`` saw lately, without those of which it says None."""
        with self._lock:
            told = [(key, self._account(key, policy)) for key, policy in policies.items()]
        return {key: account for key, account in told if account is not None}

    def _account(self, key: str, policy: Policy) -> Account | None:
        devices = len(policy.limits)
        try:
            head = os.pread(self._states.descriptor(key), layouts.state_head(policy.layout, devices), 0)
            return layouts.read_state(head, devices, policy.layout)
        except (OSError, ValueError):
            return None

    def trim(self, policies: Mapping[str, Policy]) -> dict[str, int]:
        """Give states the size they were made with; by how many bytes tenants had changed that, where they had."""
        found = {}
        with self._lock:
            for key, policy in policies.items():
                size = layouts.state_size(policy.layout)
                try:
                    status = self._states.looked_at(key)[1]
                    if status.st_size != size:
                        os.truncate(self.state_path(key), size)
                        found[key] = status.st_size - size
                except OSError:
                    continue
        return found

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
        self._forget(set(self._known) - set(held))
        for key in self.keys() - set(held):
            with suppress(OSError):
                newest = max(path.stat().st_mtime for path in (self._root / key, *(self._root / key).iterdir()))
                if moment - newest > _KEPT_SECONDS:
                    shutil.rmtree(self._root / key)
                    gone.append(key)
        if gone:
            _log.info("files of containers that ended are removed", extra={"containers": len(gone)})
        return gone

    def _forget(self, keys: Collection[str]) -> None:
        with self._lock:
            for key in keys:
                self._known.pop(key, None)
            self._policies.forget(keys)
            self._states.forget(keys)

    @contextmanager
    def _writing(self) -> Iterator[None]:
        # Not the policy itself is locked: a container could hold that lock, since it can open the file.
        with _opened(f"{self._base}/.lock", os.O_RDWR | os.O_CREAT) as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


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
