# SPDX-License-Identifier: Apache-2.0
"""Container runtimes that say of themselves what stands in their files: containerd over CRI, Docker by `docker info`.

`running.py docker FILE` prints what Docker would say that has read that daemon.json.
"""

from __future__ import annotations

import json
import sys
import tempfile
import tomllib
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import grpc


@contextmanager
def containerd(files: Callable[[], list[Path]]) -> Iterator[Path]:
    """Serve the CRI of a containerd that has read the files, each over those before, at the socket that is given."""
    # Paths of sockets are short.
    with tempfile.TemporaryDirectory() as directory:
        path = Path(directory) / "cri.sock"
        server = grpc.server(ThreadPoolExecutor(1))
        status = grpc.unary_unary_rpc_method_handler(lambda request, context: _response(_merged(files())))
        handler = grpc.method_handlers_generic_handler("runtime.v1.RuntimeService", {"Status": status})
        server.add_generic_rpc_handlers((handler,))
        server.add_insecure_port(f"unix://{path}")
        server.start()
        yield path
        server.stop(None)


def _merged(files: list[Path]) -> dict[str, Any]:
    """The CRI plugin's table."""
    found: dict[str, Any] = {}
    for file in files:
        text = file.read_bytes().decode("utf-8-sig") if file.exists() else ""
        plugins = tomllib.loads(text).get("plugins", {})
        for name in ("io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime"):
            found = _over(found, plugins.get(name, {}))
    return found


def _over(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    return one | {
        key: _over(one[key], value) if isinstance(value, dict) and isinstance(one.get(key), dict) else value
        for key, value in other.items()
    }


def _response(cri: dict[str, Any]) -> bytes:
    """StatusResponse, whose field 2 maps names to JSON."""
    part = cri.get("containerd", {})
    runtimes = {
        name: {"runtimeType": table.get("runtime_type", ""), "options": table.get("options")}
        for name, table in part.get("runtimes", {}).items()
    }
    config = {
        "containerd": {"defaultRuntimeName": part.get("default_runtime_name", "runc"), "runtimes": runtimes},
        "enableCDI": cri.get("enable_cdi", True),
        # Longer than a frame of HTTP/2, as registries make it.
        "registry": "x" * 40_000,
    }
    entry = _field(1, b"config") + _field(2, json.dumps(config).encode())
    return _field(1, b"") + _field(2, _field(1, b"golang") + _field(2, b'"go1.24"')) + _field(2, entry)


def _field(number: int, value: bytes) -> bytes:
    size, length = len(value), b""
    while size > 0x7F:
        length += bytes([size & 0x7F | 0x80])
        size >>= 7
    return bytes([number << 3 | 2]) + length + bytes([size]) + value


def docker(file: Path) -> dict[str, Any]:
    """What Docker says of itself that has read that daemon.json."""
    data = json.loads(file.read_text(encoding="utf-8-sig") if file.exists() else "{}") or {}
    return {
        "Runtimes": {"runc": {"path": "runc"}} | data.get("runtimes", {}),
        "DefaultRuntime": data.get("default-runtime", "runc"),
        "CDISpecDirs": ["/etc/cdi", "/var/run/cdi"] if data.get("features", {}).get("cdi") else [],
    }


if __name__ == "__main__":
    print(json.dumps(docker(Path(sys.argv[2]))))
