# SPDX-License-Identifier: Apache-2.0
"""A node of a cluster may have addresses of IPv4, of IPv6 or of both."""

from __future__ import annotations

import socket

import pytest

from kube_accel.listening import listener


def reached(server: socket.socket, host: str) -> bool:
    try:
        with socket.create_connection((host, server.getsockname()[1]), timeout=5):
            return True
    except OSError:
        return False


@pytest.mark.parametrize(
    ("host", "reachable"),
    [
        ("0.0.0.0", {"127.0.0.1", "::1"}),
        ("::", {"127.0.0.1", "::1"}),
        ("", {"127.0.0.1", "::1"}),
        ("127.0.0.1", {"127.0.0.1"}),
        ("::1", {"::1"}),
    ],
)
def test_an_unspecified_address_is_every_address(host: str, reachable: set[str]) -> None:
    with listener((host, 0), 1) as server:
        assert {at for at in ("127.0.0.1", "::1") if reached(server, at)} == reachable


def test_a_kernel_without_ipv6_listens_on_ipv4(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(socket, "has_dualstack_ipv6", lambda: False)
    with listener(("::", 0), 1) as server:
        assert server.family == socket.AF_INET
        assert reached(server, "127.0.0.1")


def test_a_port_that_is_taken_is_said() -> None:
    with listener(("0.0.0.0", 0), 1) as server, pytest.raises(OSError, match="in use"):
        listener(("::", server.getsockname()[1]), 1)
