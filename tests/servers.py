# SPDX-License-Identifier: Apache-2.0
"""Real servers that tests ask for the truth."""

from __future__ import annotations

import contextlib
import subprocess
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path


@contextlib.contextmanager
def server(
    command: Sequence[str | Path], log: Path, answers: Callable[[], bool], env: Mapping[str, str] | None = None
) -> Iterator[None]:
    """A process, once it answers; ended afterwards. An AssertionError with its log where it does not."""
    with log.open("w") as output:
        process = subprocess.Popen(command, env=env, stdout=output, stderr=output)
    try:
        deadline = time.monotonic() + 60
        while not answers():
            assert process.poll() is None, log.read_text()
            assert time.monotonic() < deadline, log.read_text()
            time.sleep(0.05)
        yield
    finally:
        process.terminate()
        process.wait(30)
