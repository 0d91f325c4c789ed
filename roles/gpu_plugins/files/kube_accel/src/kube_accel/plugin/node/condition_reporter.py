# SPDX-License-Identifier: Apache-2.0
"""Tells the API server what ``condition`` says, from a thread of its own; an absent API server only delays it.

What was reported is kept in a file, so that neither a restart nor the second plugin of an upgrade reports it again.
"""

from __future__ import annotations

import fcntl
import json
import logging
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kube_accel.model import Snapshot
from kube_accel.plugin.node.condition import TYPE, News, NodeCondition, Reported, condition, news
from kube_accel.plugin.node.reconcile import reconcile_loop

if TYPE_CHECKING:
    from kube_accel.kube.api import ApiClient

_log = logging.getLogger(__name__)

_HEARTBEAT = 300.0
"""Seconds after which an unchanged condition is reported again."""
_BACK_OFF = (1.0, 30.0)
_REMEMBERED = 100
"""Warnings that were reported and are not reported again."""
_BURST, _EVERY = 10, 30.0
"""Events at once, and seconds from one to the next after these: what changes meanwhile is reported as it is then."""


class ConditionReporter:
    """Keeps the node's condition and its events true. Raises OSError where ``state_dir`` cannot hold its files."""

    def __init__(self, node: str, service_account_dir: Path, state_dir: Path, snapshot: Callable[[], Snapshot]) -> None:
        self._node = node
        self._service_account_dir = service_account_dir
        self._file = state_dir / "reported.json"
        self._snapshot = snapshot
        self._wake = threading.Event()
        self._api: ApiClient | None = None
        # Held for as long as this process lives: who can have it alone is the last one.
        self._presence = os.open(state_dir / "tellers", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        fcntl.flock(self._presence, fcntl.LOCK_SH)
        self._ended = False
        self._notes: deque[tuple[str, str]] = deque()
        self._said: dict[tuple[str, str], None] = {}

    def wake(self) -> None:
        """Compare the condition again: the GPUs may have changed. Returns at once."""
        self._wake.set()

    def warn(self, reason: str, message: str) -> None:
        """Send another warning about the node, once. Returns at once."""
        if (reason, message) not in self._said:
            if len(self._said) >= _REMEMBERED:
                self._said.clear()
            self._said[reason, message] = None
            self._notes.append((reason, message))
            self.wake()

    def run(self) -> None:
        """Report for ever; returns where there is no API server."""
        # Loaded here: TLS and HTTP are not needed to serve kubelet, which is waited for.
        from kube_accel.kube.api import ApiError, in_cluster
        from kube_accel.kube.events import of_node
        from kube_accel.plugin.node.pod_reporter import TokenBucket

        api = in_cluster(self._service_account_dir)
        if api is None:
            return
        self._api = api
        bucket = TokenBucket(_BURST, _EVERY)

        def report() -> bool:
            self._report_condition(api)
            while self._next_news() is not None:
                bucket.take()
                self._report_news(api)
            while self._notes:
                bucket.take()
                api.create_event("default", of_node(self._node, "Warning", *self._notes[0]))
                self._notes.popleft()
            return True

        reconcile_loop(report, self._wake, _HEARTBEAT, _BACK_OFF, (ApiError, OSError), self._failed)

    def _failed(self, reason: str) -> None:
        _log.warning("the GPUs' health is not reported", extra={"node": self._node, "reason": reason})

    def withdraw(self) -> None:
        """Remove the node's condition, unless another plugin on it goes on reporting. For the end of a daemon."""
        from kube_accel.kube.api import ApiError

        if self._api is None:
            return
        try:
            fcntl.flock(self._presence, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return
        try:
            with self._reported() as (reported, keep):
                self._ended = True
                if reported.condition is not None:
                    self._api.patch_node_status(self._node, {"conditions": [{"type": TYPE, "$patch": "delete"}]})
                    keep(replace(reported, condition=None, heartbeat=0.0))
        except (ApiError, OSError) as error:
            _log.warning("the node's condition stays", extra={"condition": TYPE, "reason": str(error)})

    def _report_condition(self, api: ApiClient) -> None:
        from kube_accel.kube.events import timestamp

        with self._reported() as (reported, keep):
            found = condition(self._snapshot())
            if (
                self._ended
                or found is None
                or (found == reported.condition and 0 <= time.time() - reported.heartbeat < _HEARTBEAT - 1)
            ):
                return
            now = timestamp()
            same = reported.condition is not None and reported.condition.status == found.status
            since = reported.since if same else now
            times = {"lastHeartbeatTime": now, "lastTransitionTime": since}
            api.patch_node_status(self._node, {"conditions": [{"type": TYPE, **asdict(found), **times}]})
            keep(replace(reported, condition=found, since=since, heartbeat=time.time()))
            if found != reported.condition:
                _log.info("the node's condition is reported", extra={"condition": TYPE, **_extra(found)})

    def _next_news(self) -> News | None:
        with self._reported() as (reported, _):
            return next(news(self._snapshot(), reported.bad), None)

    def _report_news(self, api: ApiClient) -> None:
        from kube_accel.kube.events import of_node

        with self._reported() as (reported, keep):
            latest = next(news(self._snapshot(), reported.bad), None)
            if latest is None:
                return
            api.create_event("default", of_node(self._node, latest.kind, latest.reason, latest.message))
            keep(replace(reported, bad=latest.bad))

    @contextmanager
    def _reported(self) -> Iterator[tuple[Reported, Callable[[Reported], None]]]:
        """Yield what was reported, and a function that keeps what is reported now. Locked. Raises OSError."""
        with os.fdopen(
            os.open(self._file, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), "r+", errors="replace"
        ) as file:
            fcntl.flock(file, fcntl.LOCK_EX)

            def keep(reported: Reported) -> None:
                file.seek(0)
                file.truncate()
                json.dump(asdict(reported), file)
                file.flush()

            yield _read(file.read()), keep


def _read(text: str) -> Reported:
    """Return what the file says; nothing where it was cut off."""
    try:
        document: dict[str, Any] = json.loads(text)
        known = document.pop("condition")
        return Reported(**document, condition=None if known is None else NodeCondition(**known))
    except (ValueError, TypeError, KeyError, AttributeError, RecursionError):
        return Reported()


def _extra(found: NodeCondition) -> dict[str, str]:
    return {"status": found.status, "reason": found.reason, "detail": found.message}
