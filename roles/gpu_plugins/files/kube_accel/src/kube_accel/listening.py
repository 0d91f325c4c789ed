# SPDX-License-Identifier: Apache-2.0
"""Where servers listen."""

from __future__ import annotations

import socket

_ANYWHERE = ("", "0.0.0.0", "::")  # noqa: S104 - what all of them mean here


def listener(address: tuple[str, int], backlog: int) -> socket.socket:
    """Return a socket that listens on an address, an unspecified one for all that the host has: those of IPv6 too.

    Raises OSError.
    """
    host, port = address
    if host not in _ANYWHERE:
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server(address, family=family, backlog=backlog)
    if socket.has_dualstack_ipv6():
        return socket.create_server(("::", port), family=socket.AF_INET6, backlog=backlog, dualstack_ipv6=True)
    return socket.create_server(("", port), backlog=backlog)
