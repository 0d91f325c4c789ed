# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A file of our own that is written as a whole."""

from __future__ import annotations

import contextlib
import os
import tempfile
from typing import Dict, List, Optional

_READABLE = 0o644


def misplaced(option: str, path: Optional[str]) -> str:
    """Return why no file can be written where an option says; empty where one can, or none is asked for."""
    directory = os.path.dirname(path or "") or "."
    if path and (not os.path.isdir(directory) or os.path.isdir(path)):
        return f"{option}: {path}: {directory} has to be a directory, and {path} none"
    return ""


def written(path: str, text: str, check_mode: bool) -> List[Dict[str, str]]:
    """Write a file that everybody may read where it differs, and return the difference. Raises OSError."""
    before, mode = "", None
    if os.path.isfile(path):
        mode = os.stat(path).st_mode & 0o7777
        with open(path, encoding="utf-8", errors="replace") as file:
            before = file.read()
    if before == text and mode == _READABLE:
        return []
    if not check_mode:
        replace_file(path, text.encode(), _READABLE)
    return [{"before_header": path, "after_header": path, "before": before, "after": text}]


def replace_file(path: str, data: bytes, mode: int) -> None:
    """Write all of it with these permission bits, or nothing: readers see the old or the new. Raises OSError."""
    descriptor, candidate = tempfile.mkstemp(prefix=".accel-", dir=os.path.dirname(path) or ".")
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(candidate, mode)
        os.replace(candidate, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(candidate)
        raise
