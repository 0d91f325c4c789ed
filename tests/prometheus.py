# SPDX-License-Identifier: Apache-2.0
"""A real Prometheus for tests, from PATH or unpacked by tests/tools/setup.sh."""

from __future__ import annotations

import json
import shutil
import socket
import subprocess
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from servers import server

READY_SECONDS = 60.0
_UNPACKED = Path(__file__).parents[1] / ".cache/prometheus/usr/bin"


def find(program: str) -> str | None:
    """``prometheus`` or ``promtool``; None where there is none."""
    return shutil.which(program) or shutil.which(program, path=str(_UNPACKED))


def need(program: str) -> str:
    """The same; skips the test where there is none."""
    found = find(program)
    if found is None:
        pytest.skip(f"no {program} on PATH and none could be unpacked")
    return found


class Refused(Exception):  # noqa: N818
    """What the server has against a query."""


@dataclass(frozen=True, slots=True)
class Prometheus:
    """A server that answers at ``url``."""

    url: str

    def get(self, path: str, **parameters: str | float) -> Any:
        """``data`` of what the API answers below ``/api/v1``. Raises Refused with the server's words."""
        question = f"{self.url}/api/v1/{path}?{urllib.parse.urlencode(parameters)}"
        try:
            with urllib.request.urlopen(question, timeout=READY_SECONDS) as answer:
                return json.load(answer)["data"]
        except urllib.error.HTTPError as error:
            raise Refused(json.load(error).get("error", str(error))) from None

    def query(self, expression: str, at: float) -> list[dict[str, Any]]:
        """The series of an instant, ``metric`` and ``value``; ``at`` in seconds since 1970."""
        return self.get("query", query=expression, time=at)["result"]

    def query_range(self, expression: str, start: float, end: float, step: float) -> list[dict[str, Any]]:
        """The series of a time, ``metric`` and ``values``; all in seconds."""
        return self.get("query_range", query=expression, start=start, end=end, step=step)["result"]


@contextmanager
def serve(configuration: Path, data: Path, *flags: str) -> Iterator[Prometheus]:
    """A Prometheus with this configuration and data directory, which answers; ended afterwards.

    Keeps ten years unless ``flags`` say otherwise. Skips the test where there is no Prometheus.
    """
    program = need("prometheus")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    log = data.with_name(f"{data.name}.log")
    retention = () if any("retention" in flag for flag in flags) else ("--storage.tsdb.retention.time=10y",)
    command = [program, f"--config.file={configuration}", f"--storage.tsdb.path={data}", *retention, *flags]
    url = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        with suppress(OSError), urllib.request.urlopen(f"{url}/-/ready", timeout=1):
            return True
        return False

    with server([*command, f"--web.listen-address=127.0.0.1:{port}"], log, answers):
        yield Prometheus(url)


def backfill(samples: Path, data: Path) -> None:
    """Make blocks in a data directory of OpenMetrics text: samples with times in seconds, ending in ``# EOF``."""
    command = [need("promtool"), "tsdb", "create-blocks-from", "openmetrics", "--quiet", samples, data]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
