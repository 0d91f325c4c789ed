# Apache License 2.0 (see https://www.apache.org/licenses/LICENSE-2.0)
# SPDX-License-Identifier: Apache-2.0
"""Make text of a cluster, a tenant, or a driver harmless for where a person sees it. Pure: no I/O.

Everything that is printed passes one of these functions, which differ by medium: ``line`` and ``block`` for terminals,
messages, and logs, ``comma_separated`` for spreadsheets, ``html`` for documents and the charts in them, ``json_text``
for files, and ``document`` for results that Ansible prints.
"""

from __future__ import annotations

import csv
import io
import json
import re
import sys
from typing import Any, Dict, Iterable, List, Sequence

LONGEST = 1024
"""Characters of a line: Kubernetes cuts the messages of events there."""

_MARK = "\ufffd"
_CUT = "..."
# Letters and marks that take no room, of which str.isprintable knows nothing.
_INVISIBLE = re.compile(
    "[\u034f\u115f\u1160\u17b4\u17b5\u180b-\u180f\u2800\u3164\ufe00-\ufe0f\uffa0\U000e0100-\U000e01ef]",
)
_MARKS = "[\u0300-\u036f\u1ab0-\u1aff\u1dc0-\u1dff\u20d0-\u20ff\ufe20-\ufe2f]"
# No script puts more on a letter, and a terminal draws them over the lines above and below.
_STACKED = re.compile("(?<=" + _MARKS + "{4})" + _MARKS)
# Not html.escape, which would bring all of HTML's entities into every daemon.
_HTML = str.maketrans({"&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;", "'": "&#x27;"})
# Spreadsheets trim what comes before, some take the wide forms, and some divide lines at semicolons.
_FORMULA = re.compile("(^|;)(?=[\\s'\"]*[=+\\-@\uff1d\uff0b\uff0d\uff20])")


def line(text: object, most: int = LONGEST) -> str:
    """Return text as one line that a terminal only shows; what is longer than ``most`` characters ends in ``...``.

    Every kind of space becomes a space. Controls, what changes the direction of text, what takes no room, a fifth mark
    on a letter, and halves of characters become U+FFFD. Letters of all scripts stay.
    """
    words = _one_for_one(str(text)[: most + 1])
    return words if len(words) <= most else words[: most - len(_CUT)] + _CUT


def block(text: str, most: int = 1 << 16) -> str:
    """Return lines of text, each as ``line`` makes it; ``most`` are the characters of one."""
    return "\n".join(line(part.rstrip("\r"), most) for part in text.split("\n"))


def html(text: object) -> str:
    """Return text for an element or a quoted attribute of HTML or SVG."""
    return line(text).translate(_HTML)


def comma_separated(rows: Iterable[Sequence[object]]) -> str:
    """Return rows as CSV. No spreadsheet takes a text for a formula: one that begins as such has ``'`` before it."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    for row in rows:
        writer.writerow([_FORMULA.sub(r"\1'", line(value)) if isinstance(value, str) else value for value in row])
    return text.getvalue()


def json_text(value: object, indent: int = 1, sort_keys: bool = False) -> str:
    """Return JSON for people, and a newline. What ``line`` would replace is escaped, so that nothing is lost."""
    text = json.dumps(value, indent=indent, sort_keys=sort_keys, ensure_ascii=False)
    parts = (_STACKED.sub(lambda found: json.dumps(found[0])[1:-1], part) for part in text.split("\n"))
    return "\n".join(part if _harmless(part) else "".join(map(_escaped, part)) for part in parts) + "\n"


def document(value: Any, most: int = sys.maxsize) -> Any:  # noqa: ANN401 - as JSON is
    """Return JSON of which every name and text is what ``line`` makes of it; names that become equal get ``*``."""
    if isinstance(value, dict):
        shown: Dict[Any, Any] = {}
        for name, entry in value.items():
            key = document(name, most)
            while key in shown:
                key = f"{key}*"
            shown[key] = document(entry, most)
        return shown
    if isinstance(value, (list, tuple)):
        return [document(entry, most) for entry in value]
    return line(value, most) if isinstance(value, str) else value


def lines(texts: Iterable[object], most: int = LONGEST) -> List[str]:
    """Return what ``line`` makes of each."""
    return [line(text, most) for text in texts]


def _harmless(text: str) -> bool:
    # Nearly all text is ASCII, of which the rest finds nothing.
    return text.isprintable() and (
        text.isascii() or (_INVISIBLE.search(text) is None and _STACKED.search(text) is None)
    )


def _one_for_one(text: str) -> str:
    if _harmless(text):
        return text
    text = _STACKED.sub(_MARK, text)
    return "".join(letter if _harmless(letter) else " " if letter.isspace() else _MARK for letter in text)


def _escaped(letter: str) -> str:
    if _harmless(letter):
        return letter
    return json.dumps(letter)[1:-1] if ord(letter) > 0x7F else f"\\u{ord(letter):04x}"
