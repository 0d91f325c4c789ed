# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A file of our own that is written as a whole."""

from __future__ import annotations

import contextlib
import os
import tempfile


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
