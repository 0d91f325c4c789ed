# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""The options of the module ``gpu_benchmark``, and the file of an earlier report that they may name."""

from __future__ import annotations

import shlex
from typing import Any, Dict, List, Mapping, Tuple

from ..host.replaced_file import misplaced
from . import report
from .wish import Wish

FILES = ("text_file", "csv_file", "json_file")
"""Options that name files to write."""


class Refused(Exception):
    """Nothing was started. Says why."""


def wish(params: Mapping[str, Any]) -> Wish:
    """Return what the options ask for. Raises Refused."""
    sharers = params["sharers"]
    return Wish(
        node=params["node"].strip(),
        sharers=None if sharers is None else tuple(sharers),
        leave_out=params["leave_out"],
        repeats=params["repeats"],
        image=params["image"].strip(),
        command=_words(params["command"]),
        figure=params["figure"],
        launches=params["launches"],
        start_timeout=params["start_timeout"],
        timeout=params["timeout"],
    )


def _words(command: Any) -> Tuple[str, ...]:  # noqa: ANN401 - as a person wrote it
    """Return a command that is a list or a text. Raises Refused."""
    try:
        found = shlex.split(command) if isinstance(command, str) else list(command or [])
    except (TypeError, ValueError) as error:
        raise Refused(f"command is {command!r}, which is not a command ({error}); write a list of words") from error
    if not all(isinstance(word, (str, int, float)) for word in found):
        raise Refused(f"command is {command!r}, which has entries that are not text; write a list of words")
    return tuple(map(str, found))


def misplaced_files(params: Mapping[str, Any]) -> List[str]:
    """Return which files cannot be written, a sentence each: what, why, and what to do."""
    return [text for option in FILES if (text := misplaced(option, params[option]))]


def earlier(value: object) -> List[Dict[str, Any]]:
    """Return the rows of an earlier report. Raises Refused."""
    if not value:
        return []
    where, found = "earlier", value
    if isinstance(value, str):
        where = f"earlier: {value}"
        try:
            with open(value, encoding="utf-8") as file:
                found = file.read()
        except (OSError, ValueError) as error:
            raise Refused(f"{where}: {error}; name a file that json_file wrote") from error
    try:
        return report.read_earlier(found)
    except report.EarlierError as error:
        raise Refused(f"{where}: {error}; name a file that json_file wrote") from error
