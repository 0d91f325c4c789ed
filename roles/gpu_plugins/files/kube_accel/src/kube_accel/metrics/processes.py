# SPDX-License-Identifier: Apache-2.0
"""Whose a process is, by ``/proc``: its cgroups are read once in its life."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable
from pathlib import Path

from kube_accel.kube.cgroups import Place, place
from kube_accel.metrics.attribute import Outcome, Owner
from kube_accel.metrics.tenancy import Container

_MPS_SERVER = "nvidia-cuda-mps"
"""The kernel keeps 15 characters of nvidia-cuda-mps-server."""
_LIMIT = 64 << 10


class Processes:
    """Finds the owners of processes. For one thread. Forgets processes that were not asked about twice in a row."""

    def __init__(self, proc_root: Path, owner: Callable[[Place], Container | None]) -> None:
        """``owner`` returns the owner of a place, as far as it is known."""
        self._root = str(proc_root)
        self._owner = owner
        self._known: dict[int, tuple[str, Place | Outcome]] = {}

    def visible(self) -> bool:
        """Return whether processes of the host are seen here, by this process's number in the host's ``/proc``."""
        try:
            return os.readlink(f"{self._root}/self") == str(os.getpid())  # noqa: PTH115
        except OSError:
            return True  # no procfs: the caller that named it knows what it shows

    def owners(self, pids: Iterable[int]) -> dict[int, Owner]:
        """Return the owner of each process."""
        found: dict[int, tuple[str, Place | Outcome]] = {}
        for pid in pids:
            if pid not in found:
                found[pid] = self._look(pid)
        self._known = found
        return {pid: self._named(where) for pid, (_, where) in found.items()}

    def _look(self, pid: int) -> tuple[str, Place | Outcome]:
        started, command = self._stat(pid)
        known = self._known.get(pid)
        # One that has ended since is still the one that was there; a number that was reused is not.
        if known is not None and started in ("", known[0]):
            return known
        if not started:
            return "", Outcome.GONE
        text = self._read(pid, "cgroup")
        if text is None:
            return started, Outcome.GONE
        where = place(text)
        if where is not None:
            return started, where
        return started, Outcome.MPS_SERVER if command == _MPS_SERVER else Outcome.HOST

    def _named(self, where: Place | Outcome) -> Owner:
        if isinstance(where, Outcome):
            return Owner(where)
        # Asked each time: the API server may report a pod later than it starts.
        container = self._owner(where)
        return Owner(Outcome.NO_POD) if container is None else Owner(Outcome.CONTAINER, container)

    def _stat(self, pid: int) -> tuple[str, str]:
        """Return the start, in ticks since the machine's, and the command; empty when the process has gone."""
        text = self._read(pid, "stat")
        if text is None:
            return "", ""
        # The command may hold blanks and brackets: proc(5).
        before, _, after = text.rpartition(")")
        fields = after.split()
        return (fields[19] if len(fields) > 19 else "?"), before.partition("(")[2]

    def _read(self, pid: int, name: str) -> str | None:
        try:
            with open(f"{self._root}/{pid}/{name}", encoding="utf-8", errors="replace") as file:  # noqa: PTH123
                return file.read(_LIMIT)
        except OSError:
            return None
