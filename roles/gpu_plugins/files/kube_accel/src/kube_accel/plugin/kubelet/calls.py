# SPDX-License-Identifier: Apache-2.0
"""Counts and times what kubelet calls."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import TypeVar

from kube_accel.kube import deviceplugin
from kube_accel.kube.proto import deviceplugin_pb2 as pb
from kube_accel.metrics.service import Call, Outcome
from kube_accel.rpc.server import Context
from kube_accel.rpc.status import RpcError

_Request = TypeVar("_Request")
_Reply = TypeVar("_Reply")

ALLOCATE, PREFERRED, PRESTART = "allocate", "preferred", "prestart"


class Calls:
    """The calls of one resource, for any thread. They outlive the servers that they come to."""

    def __init__(self, names: Iterable[str] = (ALLOCATE, PREFERRED, PRESTART)) -> None:
        self._lock = threading.Lock()
        self._counts: Mapping[str, Call] = {name: Call() for name in names}

    @property
    def counts(self) -> Mapping[str, Call]:
        """Return the calls until now, by name. Never waits."""
        return self._counts

    def add(self, name: str, outcome: Outcome, seconds: float) -> None:
        """Count one more call."""
        with self._lock:
            call = self._counts[name]
            outcomes = {**call.outcomes, outcome: call.outcomes[outcome] + 1}
            self._counts = {**self._counts, name: replace(call, outcomes=outcomes, seconds=call.seconds + seconds)}


class Counted:
    """A plugin whose calls are counted."""

    def __init__(self, plugin: deviceplugin.DevicePlugin, calls: Calls) -> None:
        self._plugin = plugin
        self._calls = calls

    def get_options(self, request: pb.Empty, context: Context) -> pb.DevicePluginOptions:
        """Return the plugin's options, uncounted."""
        return self._plugin.get_options(request, context)

    def list_and_watch(self, request: pb.Empty, context: Context) -> Iterator[pb.ListAndWatchResponse]:
        """Yield the plugin's lists, uncounted."""
        return self._plugin.list_and_watch(request, context)

    def get_preferred_allocation(
        self, request: pb.PreferredAllocationRequest, context: Context
    ) -> pb.PreferredAllocationResponse:
        """Count the call."""
        return self._count(PREFERRED, self._plugin.get_preferred_allocation, request, context)

    def allocate(self, request: pb.AllocateRequest, context: Context) -> pb.AllocateResponse:
        """Count the call."""
        return self._count(ALLOCATE, self._plugin.allocate, request, context)

    def pre_start_container(
        self, request: pb.PreStartContainerRequest, context: Context
    ) -> pb.PreStartContainerResponse:
        """Count the call."""
        return self._count(PRESTART, self._plugin.pre_start_container, request, context)

    def _count(
        self,
        name: str,
        method: Callable[[_Request, Context], _Reply],
        request: _Request,
        context: Context,
    ) -> _Reply:
        begin, outcome = time.perf_counter(), Outcome.OK
        try:
            return method(request, context)
        except RpcError:
            outcome = Outcome.REFUSED
            raise
        except Exception:
            outcome = Outcome.FAILED
            raise
        finally:
            self._calls.add(name, outcome, time.perf_counter() - begin)
