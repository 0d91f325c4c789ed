# SPDX-License-Identifier: Apache-2.0
"""The files of containers that run under the interposer: ``<state-dir>/containers/<key>/``, one directory a share.

Everything is keyed by the device ids that kubelet handed out, which no two running containers share. Files of a start
are new ones: a container of before that still ends keeps those that it was started with.

A tenant may write its account, and lease or lock that and its policy. So both are opened before the container
starts and stay open for writing, they are opened again without waiting, and everything is done by descriptor.
"""

from __future__ import annotations

import errno
import fcntl
import hashlib
import logging
import os
import re
import shutil
import struct
import threading
import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Set
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path

from kube_accel.enforce import policy as layouts
from kube_accel.enforce import selinux
from kube_accel.enforce.accounts import Mender, Wrong
from kube_accel.enforce.fd_cache import FdCache, most_open
from kube_accel.enforce.policy import GENERATION_OFFSET, UNSEEN, Account, Policy, Use
from kube_accel.enforce.spares import Spare, Spares
from kube_accel.files import make_private, open_regular

_log = logging.getLogger(__name__)

_KEPT_SECONDS = 600.0
"""A directory that kubelet lists no container for stays so long: init containers are listed nowhere."""
_MOST_POLICY = 1 << 12
"""More bytes than a policy of any layout has."""
_KEY = re.compile("[0-9a-f]{32}")
_ROOM_SECONDS = 3.0
"""How long a start takes room back from tenants, who may take it again, once no spare files are left."""
_LOOK_SECONDS = 0.02
_LOCK = struct.Struct("hhqqi4x")
"""``struct flock`` of 64-bit Linux: l_type, l_whence, l_start, l_len, l_pid."""


def key_of(ids: Iterable[str]) -> str:
    """Return the name of the directory for these devices."""
    return hashlib.sha256("\n".join(sorted(ids)).encode()).hexdigest()[:32]


class Containers:
    """The files of all containers of a node; for any thread, and for the two daemons of an upgrade at a time."""

    def __init__(self, state_dir: Path, sysfs_root: Path) -> None:
        self._root = state_dir / "containers"
        self._base = str(self._root)
        self._known: dict[str, tuple[bytes, tuple[Policy, bool]]] = {}
        """What was read last, so that what has not changed need not be understood again."""
        self._lock = threading.Lock()
        self._policies = FdCache(f"{self._base}/{{}}/policy", os.O_RDWR, most_open(2))
        self._states = FdCache(f"{self._base}/{{}}/state", os.O_RDWR, most_open(2))
        self.spares = Spares(self._root, selinux.wanted(sysfs_root))
        """Files for the next containers."""
        self._mender = Mender(self._states, self.state_path, self.spares.fill)
        self._untold: dict[str, frozenset[Wrong]] = {}
        """What was put right while room was made, for ``trim`` to report."""
        self.kept_from_us: Set[str] = frozenset()
        """Containers that kept their policy from being written by a file lease, at the last look."""

    def policy_path(self, key: str) -> Path:
        """Return the policy of a container."""
        return self._root / key / "policy"

    def state_path(self, key: str) -> Path:
        """Return the account that its processes keep."""
        return self._root / key / "state"

    def prepare(self, key: str, build: str) -> None:
        """Make room for a container that is going to use this build of the interposer, if known. Raises OSError."""
        directory = self._root / key
        with self._spare() as spare:
            spare.write("build", f"{build}\n".encode())
            if directory.is_dir():
                os.close(spare.give("build", directory))
            else:
                spare.directory.rename(directory)
                self._keep(key, spare)

    def build_of(self, key: str) -> str:
        """Return the build that a container uses; empty when it is not known."""
        try:
            return (self._root / key / "build").read_text().strip("\0\n ")
        except OSError:
            return ""

    def start(self, key: str, policy: Policy, build: str | None = None) -> None:
        """Write the limits of a container that is about to start, and an empty account. Raises OSError.

        One with a ``build`` of the interposer need not be prepared before.
        """
        directory = self._root / key
        with self._spare() as spare:
            spare.write("policy", layouts.pack_policy(policy, 2))
            spare.write("state", layouts.fresh_state(len(policy.limits), policy.layout))
            directory.mkdir(0o700, exist_ok=True)
            with _writing(self._base):
                if build is not None:
                    spare.write("build", f"{build}\n".encode())
                    os.close(spare.give("build", directory))
                given = Spare(directory, {name: spare.give(name, directory) for name in ("policy", "state")})
            self._keep(key, given)

    @contextmanager
    def _spare(self) -> Iterator[Spare]:
        """Yield the files for one container; any that was not given away is removed. Raises OSError."""
        try:
            spare = self.spares.take()
        except OSError as error:
            if error.errno not in (errno.ENOSPC, errno.EDQUOT):
                raise
            spare = self._spare_of_room_made()
        try:
            yield spare
        finally:
            spare.discard()

    def _spare_of_room_made(self) -> Spare:
        """Return files made in what tenants took beyond their accounts. Raises OSError."""
        policies = {key: policy for key, (policy, _) in self.read_all(self.keys()).items()}
        deadline = time.monotonic() + _ROOM_SECONDS
        while True:
            found = self._trimmed(policies)
            with self._lock:
                self._untold = _both(self._untold, found)
            try:
                return self.spares.take()
            except OSError:
                if time.monotonic() > deadline:
                    raise
            time.sleep(_LOOK_SECONDS)

    def _keep(self, key: str, given: Spare) -> None:
        """Use these open files of a container from now on, which are no longer the caller's to close."""
        with self._lock:
            self._known.pop(key, None)
            self._mender.forget([key])
            self._policies.keep(key, given.files.pop("policy"))
            self._states.keep(key, given.files.pop("state"))

    def policy(self, key: str) -> Policy | None:
        """Return what a container was last written; None without a policy, or for one that is not ours."""
        found = self.read_all([key]).get(key)
        return None if found is None else found[0]

    def read_all(self, keys: Collection[str]) -> dict[str, tuple[Policy, bool]]:
        """Return policies, and whether each is complete: a daemon may have been killed while it wrote.

        Containers without a policy, and those whose policy is not ours, are left out.
        """
        found, kept = {}, set()
        with self._lock:
            for key in keys:
                try:
                    found[key] = self._understood(key, os.pread(self._policies.looked_at(key)[0], _MOST_POLICY, 0))
                except (PermissionError, BlockingIOError) as error:
                    if isinstance(error, BlockingIOError):
                        kept.add(key)
                    with suppress(OSError, ValueError):
                        found[key] = self._understood(key, _read_only(self.policy_path(key)))
                except (OSError, ValueError):
                    continue
            self.kept_from_us = (self.kept_from_us - set(keys)) | kept
        return found

    def last_read(self, keys: Iterable[str]) -> dict[str, tuple[Policy, bool]]:
        """Return what ``read_all`` said, and ``update`` made of it, without a look at any file."""
        return {key: known[1] for key in keys if (known := self._known.get(key)) is not None}

    def _understood(self, key: str, data: bytes) -> tuple[Policy, bool]:
        known = self._known.get(key)
        if known is None or known[0] != data:
            policy, generation = layouts.read_policy(data)
            known = self._known[key] = data, (policy, not generation % 2)
        return known[1]

    def update(self, key: str, change: Callable[[Policy], Policy]) -> bool:
        """Give a running container another policy, in the layout that it started with; return whether it differed.

        Raises OSError, and ValueError for a policy that cannot be read.
        """
        self.read_all([key])
        with self.updating() as update:
            return update(key, change)

    @contextmanager
    def updating(self) -> Iterator[Callable[[str, Callable[[Policy], Policy]], bool]]:
        """Yield ``update`` for several that were read lately; no other process writes meanwhile. Raises OSError."""
        with _writing(self._base):
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
        """Return what a container's processes say of themselves; None when there is nothing that could be read."""
        with self._lock, suppress(OSError):
            self._states.looked_at(key)
            return _account(self._states.descriptor(key), policy)
        return None

    def accounts(self, policies: Mapping[str, Policy]) -> dict[str, Account]:
        """Return ``account`` of several that ``trim`` saw lately, without those for which it returns None."""
        found = {}
        with self._lock:
            for key, policy in policies.items():
                with suppress(OSError):
                    found[key] = _account(self._states.descriptor(key), policy)
        return {key: account for key, account in found.items() if account is not None}

    def uses(self, policies: Mapping[str, Policy]) -> dict[str, tuple[Use, ...]]:
        """Return what processes report to use, by key and GPU, without containers whose account cannot be read.

        A process that was killed may be in the account still. So memory is 0 where the kernel knows of no process that
        has a lock there: of those that use the account each has one for as long as it lives.
        """
        found = {}
        with self._lock:
            for key, policy in policies.items():
                with suppress(OSError, ValueError):
                    found[key] = _use(self._states.looked_at(key)[0], policy)
        return found

    def trim(self, policies: Mapping[str, Policy]) -> dict[str, frozenset[Wrong]]:
        """Have accounts repaired that tenants changed, and return what they did, by key.

        Policies that could not be opened for writing at the last look count too. What the kernel holds up is put right
        later, by another thread.
        """
        found = self._trimmed(policies)
        with self._lock:
            untold, self._untold = self._untold, {}
        return _both(untold, found)

    def _trimmed(self, policies: Mapping[str, Policy]) -> dict[str, frozenset[Wrong]]:
        with self._lock:
            found = self._mender.look({key: layouts.state_size(policy.layout) for key, policy in policies.items()})
        for key in self.kept_from_us & policies.keys():
            found[key] = found.get(key, frozenset()) | {Wrong.HELD}
        self._mender.wait(found)
        return found

    def keys(self) -> Set[str]:
        """Return the keys of all containers."""
        try:
            return {path.name for path in self._root.iterdir() if _KEY.fullmatch(path.name) and path.is_dir()}
        except OSError:
            return set()

    def prune(self, held: Collection[str], now: float | None = None) -> list[str]:
        """Remove the directories of containers that are not ``held`` and not new, and return their keys."""
        moment = time.time() if now is None else now
        gone = []
        with suppress(OSError):
            # The plugin of before that an upgrade runs beside this one opens it to others.
            make_private(self._root)
        self.spares.clean()
        self._forget(set(self._known) - set(held))
        for key in self.keys() - set(held):
            with suppress(OSError):
                place = self._root / key
                # Not of the account: a tenant sets its times.
                made = (place, *(path for path in place.iterdir() if path != self.state_path(key)))
                newest = max(path.stat().st_mtime for path in made)
                if moment - newest > _KEPT_SECONDS:
                    shutil.rmtree(self._root / key)
                    gone.append(key)
        if gone:
            self._forget(gone)
            _log.info("files of containers that ended are removed", extra={"containers": len(gone)})
        return gone

    def remove(self, keys: Iterable[str]) -> None:
        """Remove the files of containers that have ended. Raises OSError."""
        gone = set(keys)
        self._forget(gone)
        for key in gone:
            with suppress(FileNotFoundError):
                shutil.rmtree(self._root / key)

    def _forget(self, keys: Collection[str]) -> None:
        with self._lock:
            for key in keys:
                self._known.pop(key, None)
            self._policies.forget(keys)
            self._states.forget(keys)
            self._mender.forget(keys)
            self.kept_from_us -= set(keys)


def _both(one: Mapping[str, frozenset[Wrong]], other: Mapping[str, frozenset[Wrong]]) -> dict[str, frozenset[Wrong]]:
    return {key: one.get(key, frozenset()) | other.get(key, frozenset()) for key in one.keys() | other.keys()}


def _read_only(policy: Path) -> bytes:
    """Read a policy that may not be written. Raises OSError."""
    file = open_regular(policy, os.O_RDONLY)
    try:
        return os.pread(file, _MOST_POLICY, 0)
    finally:
        os.close(file)


def _account(file: int, policy: Policy) -> Account | None:
    devices = len(policy.limits)
    try:
        head = os.pread(file, layouts.state_head(policy.layout, devices), 0)
        return layouts.read_state(head, devices, policy.layout)
    except (OSError, ValueError):
        return None


def _use(file: int, policy: Policy) -> tuple[Use, ...]:
    devices = len(policy.limits)
    head = os.pread(file, layouts.state_head(policy.layout, devices), 0)
    use = layouts.read_use(head, devices, policy.layout)
    first, size = layouts.slots(policy.layout)
    asked = _LOCK.pack(fcntl.F_WRLCK, os.SEEK_SET, first, size, 0)
    if _LOCK.unpack(fcntl.fcntl(file, fcntl.F_GETLK, asked))[0] != fcntl.F_UNLCK:
        return use
    return tuple(one._replace(used_bytes=0) for one in use)


@contextmanager
def _writing(base: str) -> Iterator[None]:
    # Not the policy itself is locked: a container could hold that lock, since it can open the file.
    with _opened(f"{base}/.lock", os.O_RDWR | os.O_CREAT) as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@contextmanager
def _opened(path: str, flags: int) -> Iterator[int]:
    file = os.open(path, flags | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
    try:
        yield file
    finally:
        os.close(file)
