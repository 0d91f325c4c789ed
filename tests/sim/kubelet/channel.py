# SPDX-License-Identifier: Apache-2.0
"""gRPC channels to the unix sockets of kubelet and of device plugins."""

from __future__ import annotations

from pathlib import Path

import grpc

OPTIONS: tuple[tuple[str, str | int], ...] = (
    # The socket's path as authority, which is gRPC's default, is refused by strict HTTP/2 servers.
    ("grpc.default_authority", "localhost"),
    ("grpc.enable_http_proxy", 0),
    # A shared subchannel would hand the back-off of an earlier failure to a new attempt.
    ("grpc.use_local_subchannel_pool", 1),
)


def open_channel(socket: Path, receive_limit: int | None = None) -> grpc.Channel:
    """A channel to ``socket``, opened at the first call; ``receive_limit`` in bytes, gRPC's 4 MiB when None."""
    limit = () if receive_limit is None else (("grpc.max_receive_message_length", receive_limit),)
    return grpc.insecure_channel(f"unix:{socket}", options=(*OPTIONS, *limit))
