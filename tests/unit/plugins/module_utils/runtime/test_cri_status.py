# SPDX-License-Identifier: Apache-2.0
"""A container runtime is asked over CRI: a gRPC server of another library, and a real containerd."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils.runtime import cri_status
from ansible_collections.accel.kubernetes.plugins.module_utils.runtime import effect as runtime_effect
from ansible_collections.accel.kubernetes.plugins.module_utils.runtime.config import Wanted
from ansible_collections.accel.kubernetes.plugins.module_utils.runtime.cri_status import StatusError

import real_runtimes
import running as stand_in

BINARY = "/usr/bin/nvidia-container-runtime"
CONFIG = """\
version = 2
root = "{root}/root"
state = "{root}/state"
[grpc]
address = "{root}/cri.sock"
[plugins."io.containerd.grpc.v1.cri"]
enable_cdi = true
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.{base}]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia]
runtime_type = "io.containerd.runc.v2"
[plugins."io.containerd.grpc.v1.cri".containerd.runtimes.nvidia.options]
BinaryName = "{binary}"
"""


def config_of(path: Path) -> Any:
    return json.loads(cri_status.info(str(path))["config"])


def test_a_status_longer_than_a_frame_is_read_whole(tmp_path: Path) -> None:
    (tmp_path / "config.toml").write_text(CONFIG.format(root=tmp_path, base="runc", binary=BINARY))
    with stand_in.containerd(lambda: [tmp_path / "config.toml"]) as path:
        found = config_of(path)
        assert cri_status.info(str(path))["golang"] == '"go1.24"'
    assert len(found["registry"]) == 40_000
    assert runtime_effect.unmet("containerd", runtime_effect.said_by_containerd(found), Wanted("nvidia", BINARY)) == ""


@pytest.mark.skipif(os.getuid() != 0, reason="containerd starts as root alone")
@pytest.mark.parametrize("containerd", real_runtimes.containerds())
@pytest.mark.parametrize("base", ["runc", "other"])
def test_a_real_containerd_says_what_it_has(
    tmp_path_factory: pytest.TempPathFactory, containerd: Path, base: str
) -> None:
    root = tmp_path_factory.mktemp("c")
    (root / "config.toml").write_text(CONFIG.format(root=root, base=base, binary=BINARY))
    with (root / "log").open("w") as log:
        running = subprocess.Popen([containerd, "--config", root / "config.toml"], stdout=log, stderr=log)
    try:
        while "successfully booted" not in (root / "log").read_text():
            assert running.poll() is None, (root / "log").read_text()
        if base == "other" and "failed to load plugin" in (root / "log").read_text():
            # Before 2.0 its default is not among its runtimes then, so it runs without its CRI plugin.
            with pytest.raises(StatusError, match=r"does not know CRI's runtime\.v1"):
                cri_status.info(str(root / "cri.sock"))
            return
        said = runtime_effect.said_by_containerd(config_of(root / "cri.sock"))
        assert runtime_effect.unmet("containerd", said, Wanted("nvidia", BINARY, cdi=True)) == ""
        wrong = runtime_effect.unmet("containerd", said, Wanted("nvidia", BINARY, default=True))
        assert wrong == "the default runtime is 'runc' instead of 'nvidia'"
        assert "there is no runtime gpu" in runtime_effect.unmet("containerd", said, Wanted("gpu", BINARY))
    finally:
        running.terminate()
        running.wait()


@contextmanager
def serving(path: Path, answer: bytes) -> Iterator[None]:
    """A socket that says that to whoever comes, and closes."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as server:
        server.bind(str(path))
        server.listen(1)

        def serve() -> None:
            connection = server.accept()[0]
            with connection:
                connection.recv(65536)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        yield
        thread.join()


GO_AWAY = b"\0\0\x08\x07\0\0\0\0\0" + bytes(8)
DATA = b"\0\0%c\0\x01\0\0\0\x01"


@pytest.mark.parametrize(
    "answer",
    [
        b"",
        b"HTTP/1.1 400 Bad Request\r\n\r\n",
        GO_AWAY,
        DATA % 5 + b"\0\0\0\0\x7f",
        DATA % 9 + b"\0\0\0\0\x04\x12\x7f\x0a\x01",
        DATA % 9 + b"\0\0\0\0\x04\x12\x04\x0a\x02\xff\xff",
        DATA % 7 + b"\0\0\0\0\x02\xff\xff",
    ],
)
def test_what_is_no_status_is_refused_with_the_socket(tmp_path: Path, answer: bytes) -> None:
    path = Path(os.path.relpath(tmp_path / "s"))
    with serving(path, answer):
        try:
            found = cri_status.info(str(path), timeout=5)
        except StatusError as error:
            assert f"does not answer at {path}: " in str(error)  # noqa: PT017
        else:
            assert found == {} or set(found) == {""}


def test_no_socket_is_named(tmp_path: Path) -> None:
    with pytest.raises(StatusError, match=f"does not answer at {tmp_path}/no: .*No such file"):
        cri_status.info(f"{tmp_path}/no")
