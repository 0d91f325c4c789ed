# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read a YAML document so that it can be edited and written back with its comments, order, quotes and indentation."""

from __future__ import annotations

import difflib
import io
import operator
import re
import traceback
from typing import Any, Callable, Dict

from ansible_collections.accel.kubernetes.plugins.module_utils.api_json import ODD

try:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError
    from ruamel.yaml.representer import RoundTripRepresenter

    class _Representer(RoundTripRepresenter):  # type: ignore[misc, unused-ignore]
        """Writes null where there was null; the round trip would leave the value out."""

    _Representer.add_representer(
        type(None), lambda representer, _value: representer.represent_scalar("tag:yaml.org,2002:null", "null")
    )
    RUAMEL_TRACEBACK = ""
except ImportError:
    # The module says so before it reads YAML.
    YAMLError = ValueError  # type: ignore[assignment, misc, unused-ignore]
    RUAMEL_TRACEBACK = traceback.format_exc()


class YamlError(Exception):
    """The text is not one YAML mapping. Says where and why."""


def load(text: str, path: str) -> Dict[str, Any]:
    """The document's mapping, to be edited in place. Raises YamlError naming the line."""
    try:
        documents = list(_yaml(text).load_all(text))
    except (YAMLError, *ODD) as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise YamlError(f"{path} is not YAML{line}: {getattr(error, 'problem', None) or error}") from error
    if len(documents) != 1 or not isinstance(documents[0], dict):
        raise YamlError(f"{path} is not a single YAML mapping")
    data: Dict[str, Any] = documents[0]
    return data


def dump(data: Dict[str, Any], like: str) -> str:
    """The document as text, laid out as the text it came from, whose lines of comment stay."""
    out = io.StringIO()
    _yaml(like).dump(data, out)
    return _with_comments(out.getvalue(), like)


def in_block(items: list[Any]) -> None:
    """Have what is added to an empty list stand below it: beside a comment after [] it would be no YAML."""
    if not items and hasattr(items, "fa"):
        items.fa.set_block_style()


def discard(items: list[Any], unwanted: Callable[[Any], bool]) -> None:
    """Delete entries one by one: comments of the others stay with them."""
    for position in reversed(range(len(items))):
        if unwanted(items[position]):
            del items[position]
    if not items and hasattr(items, "fa"):
        # [] stands before a comment beside the key; below it, it would be no YAML.
        items.fa.set_flow_style()


def plain(value: object) -> Any:  # noqa: ANN401
    """A loaded value as Python's own types."""
    if isinstance(value, dict):
        return {str(key): plain(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)
    return value


def _with_comments(text: str, like: str) -> str:
    """The text with lines of comment of another that it lost: to the parser they belong to the entry before them."""
    if "#" not in like:
        return text
    before, after = like.splitlines(keepends=True), text.splitlines(keepends=True)
    # An edit changes few lines, and the search takes the square of their number.
    head = _alike(before, after)
    tail = _alike(before[head:][::-1], after[head:][::-1])
    before, found, rest = before[head : len(before) - tail], after[:head], after[len(after) - tail :]
    after = after[head : len(after) - tail]
    for tag, first, last, start, end in difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes():
        lost = before[first:last] if tag in ("delete", "replace") else []
        found += after[start:end]
        found += [line for line in lost if line.lstrip().startswith("#") and line not in after[start:end]]
    return "".join(found + rest)


def _alike(one: list[str], other: list[str]) -> int:
    """How many lines both begin with."""
    same = map(operator.eq, one, other)
    return next((place for place, equal in enumerate(same) if not equal), min(len(one), len(other)))


def _yaml(text: str) -> YAML:
    yaml = YAML(typ="rt")
    yaml.Representer = _Representer
    yaml.preserve_quotes = True
    yaml.width = 4096
    yaml.explicit_start = text.startswith("---")
    match = re.search(r"^( *)[^\s#-][^\n]*:[ \t]*\n( *)- ", text, re.MULTILINE)
    offset = max(0, len(match.group(2)) - len(match.group(1))) if match else 0
    yaml.indent(mapping=2, sequence=offset + 2, offset=offset)
    return yaml
