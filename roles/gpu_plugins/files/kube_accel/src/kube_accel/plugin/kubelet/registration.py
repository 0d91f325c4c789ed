# SPDX-License-Identifier: Apache-2.0
"""Being kubelet's plugin for a resource, and staying it.

Kubelet deletes all sockets in its directory when it starts. When the stream of one plugin of a resource ends, kubelets
up to 1.36 at least drop whichever plugin is registered for it, which during an upgrade is the newcomer. So three
things are watched: kubelet's socket, our own, and our stream. Both sides of an upgrade run this code; the one with the
newest socket registers, the other stands by, and hands its connections over when it ends (``handover``).

A socket's name ends in the process's id and the time since the machine started, which no clock that is set changes.
Releases that have six random digits in its place go by the files' times, and where one of them runs all do.
"""

from __future__ import annotations

import logging
import os
import re
import socket
import time
from collections.abc import Collection, Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from kube_accel.kube import deviceplugin
from kube_accel.plugin.kubelet.server import ListedPlugin, serve
from kube_accel.plugin.kubelet.watch import DirectoryWatch
from kube_accel.rpc.server import Server

_log = logging.getLogger(__name__)

_UNSETTLED, _SETTLED = 0.1, 3.0
"""Seconds from one look to the next if nothing happens: until kubelet reads our stream, and from then on."""
_STREAM_GRACE = 0.5
"""Seconds kubelet gets to open its stream after it registered us."""
_BACK_OFF = (0.1, 1.0)
"""First and longest pause after a refused registration, in seconds."""
_RELISTEN_GRACE = 10.0
"""Seconds without a socket before that counts as a failure of ours."""

_MADE = re.compile(r"-([0-9a-f]{10})\.sock\Z")
"""In a socket's name: milliseconds since the machine started, enough for 34 years."""
_FOREIGN = re.compile(r"nvidia|(vcore|vmemory|aliyungpushare)\.sock", re.IGNORECASE)

UNIX_PATH_LIMIT = 107
"""Bytes of a unix socket's path (sun_path)."""


class ForeignPluginError(Exception):
    """Another device plugin serves the resource; the message names its socket and the remedy."""


@dataclass(frozen=True, slots=True, order=True)
class _Age:
    """When a socket was made."""

    since_boot: int
    """Milliseconds; -1 where its name does not say."""
    file: int
    """By the file, in nanoseconds."""
    name: str


@dataclass(frozen=True, slots=True)
class Registration:
    """Where we stand with kubelet."""

    registered: bool
    detail: str
    """One sentence for a person; empty while registered."""


class Registrar:
    """Keeps a plugin served and registered, from a thread of its own."""

    def __init__(self, directory: Path, name: str, resource: str, takeover: bool) -> None:
        """``directory`` is kubelet's for device plugins, ``name`` what our sockets are known by.

        ``takeover`` registers even where another plugin serves.
        """
        self._directory = directory
        self._kubelet = directory / deviceplugin.KUBELET_SOCKET
        self._prefix = f"kube-accel-{name}-"
        self._own = re.compile(rf"{re.escape(self._prefix)}\d+-[0-9a-f]+\.sock")
        self.resource = resource
        self._takeover = takeover
        self._watch = DirectoryWatch(directory)
        self._stopping = False
        self._server: Server | None = None
        self._keep_connections = False
        self._siblings: frozenset[str] = frozenset()
        self._socket: Path | None = None
        self._listening_since = time.monotonic()
        self._registered_at: float | None = None
        self._streams_before = 0
        self._not_before = 0.0
        self._pause = _BACK_OFF[0]
        self._state = Registration(False, "starting")

    @property
    def state(self) -> Registration:
        """Return where we stand with kubelet."""
        return self._state

    def wake(self) -> None:
        """Look at once: something may have changed."""
        self._watch.wake()

    def failure(self) -> str:
        """Return why kubelet cannot reach us through our own fault, or an empty string."""
        if self._socket is not None and _accepts(self._socket):
            return ""
        if time.monotonic() - self._listening_since < _RELISTEN_GRACE:
            return ""
        return f"no gRPC server answers in {self._directory}"

    def run(self, plugin: ListedPlugin) -> None:
        """Serve and register until ``stop``. Raises ForeignPluginError."""
        try:
            while not self._stopping:
                try:
                    self._step(plugin)
                except (OSError, deviceplugin.RegistrationError) as error:
                    self._not_registered(str(error))
                    self._back_off()
                self._watch.wait(_SETTLED if self._state.registered and plugin.newest_stream[1] else _UNSETTLED)
        finally:
            self._close(plugin)
            self._watch.close()

    @property
    def socket(self) -> Path | None:
        """Return what the plugin is served on now."""
        return self._socket

    def idle(self, plugin: ListedPlugin) -> bool:
        """Return whether no call waits for an answer."""
        return self._server is None or self._server.busy <= plugin.streams

    def stop(self, keep_connections: bool = False) -> None:
        """End ``run``: end streams, remove the socket, register no more.

        ``keep_connections``: for a process that has handed the connections over and ends now.
        """
        self._keep_connections = keep_connections
        self._stopping = True
        self._watch.wake()

    def _step(self, plugin: ListedPlugin) -> None:
        if self._socket is None or not self._socket.exists():
            self._listen(plugin)
        if not self._kubelet.is_socket():
            self._registered_at = None
            self._not_registered(f"kubelet is not there: no socket {self._kubelet}")
        elif not plugin.has_list:
            self._not_registered("there is no list of GPUs yet")
        elif self._socket is not None:
            self._stand_with_siblings(plugin, self._socket)

    def _stand_with_siblings(self, plugin: ListedPlugin, own: Path) -> None:
        """Be registered if no instance of ours is newer."""
        siblings = self._live_siblings(own)
        if not self._siblings <= siblings.keys():
            # Who ended may have been the last to register, where both found a new kubelet in the same moment: then
            # kubelet drops the resource, and leaves our stream as it is.
            self._registered_at = None
        self._siblings = frozenset(siblings)
        newest = _newest([_age(own), *siblings.values()])
        if newest != own.name:
            self._registered_at = None
            self._not_registered(f"a newer instance serves {self.resource} on {newest}")
        elif not self._holds(plugin) and time.monotonic() >= self._not_before:
            self._register(plugin, own)

    def _holds(self, plugin: ListedPlugin) -> bool:
        if self._registered_at is None:
            return False
        stream, is_open = plugin.newest_stream
        if stream > self._streams_before:
            # Kubelet came, and went if it is not there any more: an older stream that is open keeps nothing alive.
            return is_open
        return time.monotonic() - self._registered_at < _STREAM_GRACE

    def _register(self, plugin: ListedPlugin, path: Path) -> None:
        self._refuse_foreign()
        if self._stopping:
            return
        self._streams_before, _ = plugin.newest_stream
        deviceplugin.register(
            self._kubelet,
            path.name,
            self.resource,
            plugin.options,
            serving=lambda: not self._stopping and path.exists(),
        )
        self._registered_at = time.monotonic()
        self._pause = _BACK_OFF[0]
        self._state = Registration(True, "")
        _log.info("registered with kubelet", extra={"resource": self.resource, "socket": str(path)})

    def _back_off(self) -> None:
        self._registered_at = None
        self._not_before = time.monotonic() + self._pause
        self._pause = min(self._pause * 2, _BACK_OFF[1])

    def _listen(self, plugin: ListedPlugin) -> None:
        # A name never used before: a server that stops removes its path, and pods of one node share process ids.
        made = time.clock_gettime_ns(time.CLOCK_BOOTTIME) // 1_000_000
        path = self._directory / f"{self._prefix}{os.getpid()}-{made:010x}.sock"
        if len(os.fsencode(path)) > UNIX_PATH_LIMIT:
            raise OSError(f"{path} is too long for a unix socket; choose a shorter --kubelet-device-plugin-dir")
        old, self._server, self._socket = self._server, None, None
        # A kubelet that starts is what removes sockets: it is to be asked at once.
        self._registered_at, self._not_before, self._pause = None, 0.0, _BACK_OFF[0]
        if old is not None:
            old.stop()
        self._server = serve(plugin, path)
        self._socket = path
        self._listening_since = time.monotonic()

    def _close(self, plugin: ListedPlugin) -> None:
        self._state = Registration(False, "stopped")
        if self._keep_connections:
            if self._socket is not None:
                self._socket.unlink(missing_ok=True)
            return
        plugin.close()
        if self._server is not None:
            self._server.stop(grace=0.5)

    def _live_siblings(self, own: Path) -> dict[str, _Age]:
        """Return how old each live socket of other instances of ours is, by name; dead ones are removed."""
        siblings = {}
        for path in self._sockets():
            if not self._own.fullmatch(path.name) or path == own:
                continue
            with suppress(FileNotFoundError):
                age = _age(path)
                if _accepts(path):
                    siblings[path.name] = age
                else:
                    path.unlink()
        return siblings

    def _refuse_foreign(self) -> None:
        """Raise ForeignPluginError when a plugin that is not ours serves NVIDIA GPUs here.

        Nothing on a node tells a socket's resource without side effects, its name does: NVIDIA's plugin and those
        derived from it use ``nvidia-<resource>.sock``, ``nvidia.sock`` and the like; gpu-manager and Alibaba Cloud's
        GPU sharing have names of their own.
        """
        for path in self._sockets():
            foreign = _FOREIGN.match(path.name)
            if not foreign or not _accepts(path) or not deviceplugin.serves(path):
                continue
            if not self._takeover:
                raise ForeignPluginError(
                    f"another device plugin serves NVIDIA GPUs on {path}; remove it, or start with --takeover "
                    f"to register {self.resource} in its place"
                )
            _log.warning("another device plugin is being replaced", extra={"socket": str(path)})

    def _sockets(self) -> Iterator[Path]:
        with os.scandir(self._directory) as entries:
            for entry in entries:
                if entry.name.endswith(".sock") and entry.name != deviceplugin.KUBELET_SOCKET:
                    yield Path(entry.path)

    def _not_registered(self, reason: str) -> None:
        state = Registration(False, reason)
        if state != self._state:
            self._state = state
            _log.warning("not registered with kubelet", extra={"resource": self.resource, "reason": reason})


def _age(path: Path) -> _Age:
    """Return when the socket was made. Raises FileNotFoundError."""
    made = _MADE.search(path.name)
    return _Age(int(made[1], 16) if made else -1, path.stat().st_mtime_ns, path.name)


def _newest(ages: Collection[_Age]) -> str:
    """Return the name of the newest socket, the same one for every caller. Pure."""
    if any(age.since_boot < 0 for age in ages):
        return max(ages, key=lambda age: (age.file, age.name)).name
    return max(ages).name


def _accepts(path: Path) -> bool:
    """Return whether a process listens on this socket."""
    with socket.socket(socket.AF_UNIX) as probe:
        probe.settimeout(1)
        try:
            probe.connect(str(path))
        except OSError:
            return False
    return True
