# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import suppress

import pytest
import urllib3

from kube_accel.plugin.probes import probe_server
from kube_accel.web.server import Limits
from waiting import wait

MOST = Limits().received


class Probes:
    def __init__(self) -> None:
        self.reason = ""
        self.server = probe_server(("127.0.0.1", 0), {"/readyz": lambda: self.reason}, {"/metrics": lambda: b"a 1\n"})
        self.port = self.server.port

    def request(self, method: str, path: str) -> tuple[int, str]:
        response = urllib3.request(method, f"http://127.0.0.1:{self.port}{path}", timeout=5, retries=False)
        return response.status, response.data.decode()

    def connect(self) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port))

    def answers(self) -> bool:
        with suppress(urllib3.exceptions.HTTPError):
            return self.request("GET", "/readyz")[0] == 200
        return False


@pytest.fixture
def probes() -> Iterator[Probes]:
    probes = Probes()
    thread = threading.Thread(target=probes.server.run)
    thread.start()
    yield probes
    probes.server.stop()
    thread.join()


def test_a_probe_says_ok_or_why_not(probes: Probes) -> None:
    assert probes.request("GET", "/readyz") == (200, "ok\n")
    probes.reason = "kubelet is not there"
    assert probes.request("GET", "/readyz?verbose") == (503, "kubelet is not there\n")


def test_a_page_is_served_as_it_is(probes: Probes) -> None:
    probes.reason = "kubelet is not there"
    assert probes.request("GET", "/metrics") == (200, "a 1\n")
    assert probes.request("POST", "/metrics")[0] == 405
    response = urllib3.request("GET", f"http://127.0.0.1:{probes.port}/metrics?x=y", timeout=5)
    assert response.headers["Content-Type"] == "text/plain; version=0.0.4; charset=utf-8"


@pytest.mark.attack
def test_nothing_else_is_served(probes: Probes) -> None:
    assert probes.request("GET", "/")[0] == 404
    assert probes.request("POST", "/readyz")[0] == 405
    assert probes.request("DELETE", "/readyz")[0] == 405


def test_clients_that_say_nothing_do_not_hold_up_a_probe(probes: Probes) -> None:
    idle = [probes.connect() for _ in range(4)]
    assert probes.request("GET", "/readyz")[0] == 200
    for connection in idle:
        connection.close()


@pytest.mark.attack
def test_clients_that_speak_slowly_keep_no_probe_out(probes: Probes) -> None:
    """Any pod may connect, and a plugin whose probes fail is started anew."""
    slow = [probes.connect() for _ in range(8)]
    for connection in slow:
        connection.sendall(b"GET /readyz HTTP/1.1\r\nHost: a\r\nX: ")
    for _ in range(3):
        for connection in slow:
            with suppress(OSError):  # ended to make room
                connection.sendall(b"x")
        assert probes.request("GET", "/readyz") == (200, "ok\n")
    for connection in slow:
        connection.close()


@pytest.mark.attack
def test_of_a_crowd_the_first_give_way_and_all_are_forgotten(probes: Probes) -> None:
    others = set(threading.enumerate())
    crowd = [probes.connect() for _ in range(MOST + 40)]
    assert [connection.recv(1) for connection in crowd[:40]] == [b""] * 40
    with pytest.raises(BlockingIOError):
        crowd[-1].recv(1, socket.MSG_DONTWAIT)
    for connection in crowd:
        connection.close()
    wait(probes.answers)
    wait(lambda: set(threading.enumerate()) <= others)
