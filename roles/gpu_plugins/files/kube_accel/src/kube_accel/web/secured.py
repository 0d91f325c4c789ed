# SPDX-License-Identifier: Apache-2.0
"""TLS that one thread reads while others write, which OpenSSL itself does not allow."""

from __future__ import annotations

import select
import socket
import ssl
import threading
import time


class Secured:
    """A connection whose handshake is over. Its lock is held only while nothing is waited for."""

    def __init__(self, stream: ssl.SSLSocket, seconds: float) -> None:
        """The other side has so many ``seconds`` to take what is sent at once."""
        stream.setblocking(False)
        self._stream = stream
        self._seconds = seconds
        self.until = time.monotonic() + seconds
        """Monotonic seconds; ``recv`` waits until then."""
        self._lock = threading.Lock()
        self._readable, self._writable = select.poll(), select.poll()
        self._readable.register(stream, select.POLLIN)
        self._writable.register(stream, select.POLLOUT)

    def recv(self, size: int, /) -> bytes:
        """Return what has come. Raises OSError, which TimeoutError is."""
        while True:
            with self._lock:
                waits = not self._stream.pending()
            if waits:
                _wait(self._readable, self.until - time.monotonic())
            with self._lock:
                try:
                    return self._stream.recv(size)
                except ssl.SSLWantReadError:
                    continue

    def sendall(self, data: bytes, /) -> None:
        """Send all of it; one thread at a time. Raises OSError, which TimeoutError is."""
        left = memoryview(data)
        while left:
            with self._lock:
                try:
                    left = left[self._stream.send(left) :]
                    continue
                except ssl.SSLWantWriteError:
                    pass
            _wait(self._writable, self._seconds)

    def shutdown(self, how: int, /) -> None:
        """End it, also for who waits. Raises OSError."""
        # Python's own makes of it a socket without TLS first, and another thread may be about to send.
        socket.socket.shutdown(self._stream, how)

    def close(self) -> None:
        """Free it."""
        self._stream.close()


def _wait(poll: select.poll, seconds: float) -> None:
    if not poll.poll(max(0.0, seconds) * 1000):
        raise TimeoutError("timed out")
