# SPDX-License-Identifier: Apache-2.0
"""Files that others read while they are written."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO


@contextmanager
def replacing(path: Path, mode: int = 0o600) -> Iterator[BinaryIO]:
    """A new file that takes the place of whatever is at ``path`` when it is complete, and leaves it where that fails.

    Raises OSError.
    """
    # Both daemons of an upgrade may write at a time; container runtimes pass over what does not end in .json or .yaml.
    draft = path.with_name(f".{path.name}.{os.urandom(4).hex()}")
    try:
        with draft.open("xb") as file:
            os.fchmod(file.fileno(), mode)
            yield file
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def write_whole(path: Path, text: str, mode: int = 0o600, sync: bool = False) -> None:
    """Have a file at ``path`` with this text and nothing else, on disk when ``sync`` is set. Raises OSError."""
    with replacing(path, mode) as file:
        file.write(text.encode())
        if sync:
            file.flush()
            os.fsync(file.fileno())
