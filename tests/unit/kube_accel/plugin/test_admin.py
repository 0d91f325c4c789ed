# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import socket
import stat
import threading
import time
from collections.abc import Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from kube_accel.plugin import admin
from kube_accel.plugin.admin import AdminError, AdminServer, call


def greet(request: Mapping[str, Any]) -> dict[str, Any]:
    if "name" not in request:
        raise AdminError("name is missing")
    return {"greeting": f"hello {request['name']}"}


@pytest.fixture
def state_dir(tmp_path: Path) -> Path:
    start(tmp_path)
    return tmp_path


def start(state_dir: Path, answer: str | None = None) -> None:
    server = AdminServer(state_dir, {"greet": (lambda request: {"greeting": answer}) if answer else greet})
    threading.Thread(target=server.run, daemon=True).start()


def test_a_command_is_answered(state_dir: Path) -> None:
    assert call(state_dir, "greet", 5, name="root") == {"greeting": "hello root"}


def test_a_refusal_and_an_unknown_command_are_errors(state_dir: Path) -> None:
    with pytest.raises(AdminError, match="name is missing"):
        call(state_dir, "greet", 5)
    with pytest.raises(AdminError, match="commands are greet"):
        call(state_dir, "shutdown", 5)


def test_only_the_owner_may_use_the_socket_and_it_is_cleaned(state_dir: Path) -> None:
    assert [path.name for path in state_dir.iterdir()] == ["admin.sock"]
    assert stat.S_IMODE((state_dir / "admin.sock").stat().st_mode) == 0o600


def test_a_second_daemon_takes_the_socket_over(state_dir: Path) -> None:
    start(state_dir, answer="from the second")
    assert call(state_dir, "greet", 5, name="x") == {"greeting": "from the second"}


def test_without_a_daemon_the_error_names_the_socket(tmp_path: Path) -> None:
    with pytest.raises(AdminError, match=rf"no daemon answers on {tmp_path}/admin.sock .*--state-dir"):
        call(tmp_path, "greet", 5)


@pytest.mark.attack
@pytest.mark.parametrize(
    "garbage", [b"", b"\n", b"[]\n", b'"x"\n', b"\xff\n", b'{"command": []}\n', b"x" * 10000, b"[" * 4096]
)
def test_garbage_does_not_end_the_server(state_dir: Path, garbage: bytes) -> None:
    with socket.socket(socket.AF_UNIX) as client:
        client.connect(str(state_dir / "admin.sock"))
        client.sendall(garbage)
        client.shutdown(socket.SHUT_WR)
        answer = client.makefile().readline()
        assert not answer or "commands are" in json.loads(answer)["error"]
    assert call(state_dir, "greet", 5, name="again")


@pytest.mark.attack
def test_client_that_never_ends_its_line_blocks_no_other(state_dir: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(admin, "_CLIENT_TIMEOUT", 0.3)
    with socket.socket(socket.AF_UNIX) as client, ThreadPoolExecutor(1) as pool:
        client.connect(str(state_dir / "admin.sock"))
        client.sendall(b"x")
        answer = pool.submit(call, state_dir, "greet", 60, name="other")
        with suppress(ConnectionError):
            while not answer.done():
                client.sendall(b"x")
                time.sleep(0.05)  # as slow as this client is
        assert answer.result() == {"greeting": "hello other"}
