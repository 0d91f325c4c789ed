# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""A command whose input is too large for memory, which is all that AnsibleModule.run_command can take one from."""

from __future__ import annotations

import contextlib
import subprocess
import tempfile
from typing import IO, Iterable, Mapping, Sequence, Tuple, cast


def run(argv: Sequence[str], data: Iterable[bytes], environment: Mapping[str, str], directory: str) -> Tuple[int, str]:
    """Run a command with ``data`` as its input and return its status and what it said.

    ``directory`` is a private one for what it says. Whatever ``data`` raises is raised, and the command is killed.
    Raises OSError where the command cannot be run.
    """
    with tempfile.TemporaryFile(dir=directory) as said:
        process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=said, stderr=said, env=environment, bufsize=0)
        pipe = cast(IO[bytes], process.stdin)
        try:
            for chunk in data:
                _write(pipe, chunk)
        except BrokenPipeError:
            pass  # Its status and output say why.
        except BaseException:
            process.kill()
            process.wait()
            raise
        with contextlib.suppress(BrokenPipeError):
            pipe.close()
        code = process.wait()
        said.seek(0)
        return code, said.read().decode(errors="replace")


def _write(pipe: IO[bytes], data: bytes) -> None:
    """Write all of it: a write to a pipe without a buffer may take less."""
    view = memoryview(data)
    while view:
        view = view[pipe.write(view) :]
