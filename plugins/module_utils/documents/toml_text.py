# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Edit places of a TOML document and leave the rest of its text as it is. No I/O.

Source of the grammar: TOML 1.0. tomlkit makes the edits. It loses its way in some layouts, so the result is read and
compared. Its time grows with the square of the tables, so it gets only those that an edit touches.
"""

from __future__ import annotations

import re
import traceback
from typing import Any, Callable, Dict, Iterator, List, Mapping, Sequence, Tuple

from ansible_collections.accel.kubernetes.plugins.module_utils.documents import nested
from ansible_collections.accel.kubernetes.plugins.module_utils.documents.nested import Edit, Path

try:
    import tomlkit
    from tomlkit.exceptions import TOMLKitError

    TOMLKIT_TRACEBACK = ""
except ImportError:
    # The module says so before it plans TOML.
    tomlkit = None  # type: ignore[assignment]
    TOMLKitError = ValueError  # type: ignore[assignment,misc]
    TOMLKIT_TRACEBACK = traceback.format_exc()

try:
    import tomllib
except ImportError:
    try:
        # For Python before 3.11 the same reader has its own package.
        import tomli as tomllib  # type: ignore[no-redef]
    except ImportError:
        tomllib = None  # type: ignore[assignment]

_KEY = r"""(?:[A-Za-z0-9_-]+|"(?:[^"\\\r\n]|\\.)*"|'[^'\r\n]*')"""
_HEADER = re.compile(rf"[ \t]*(\[\[?)[ \t]*({_KEY}(?:[ \t]*\.[ \t]*{_KEY})*)[ \t]*\]\]?[ \t]*(?:#.*)?\r?\n?\Z")
_MARK = "# accel-kubernetes keeps what stood here: "


class MissingLibraryError(Exception):
    """tomlkit is not there. Without it TOML cannot be edited, nor read by a Python before 3.11 without tomli."""


class LayoutError(Exception):
    """No way was found to make an edit that leaves everything else as it is. ``place`` is where."""

    def __init__(self, place: Path) -> None:
        super().__init__(".".join(place))
        self.place = place


def parse(text: str) -> Dict[str, Any]:
    """Return the document as plain data. Raises ValueError that names the line, and MissingLibraryError."""
    if tomllib is not None:
        # Faster than what can edit.
        return tomllib.loads(text)
    if tomlkit is None:
        raise MissingLibraryError
    try:
        document = _plain(tomlkit.parse(text))
    except (TOMLKitError, AttributeError) as error:
        # It stumbles over some tables that come after those below them.
        raise ValueError(str(error)) from error
    return dict(document)


def edited(text: str, edits: Sequence[Edit]) -> str:
    """Return the document with the edits made. Raises LayoutError where that fails, and MissingLibraryError."""
    if tomlkit is None:
        raise MissingLibraryError
    data = parse(text)
    found = _edited(text, data, edits)
    if found is not None:
        return found
    raise LayoutError(next((edit for edit in edits if _edited(text, data, [edit]) is None), edits[0]).path[:-1])


def _edited(text: str, data: Mapping[str, Any], edits: Sequence[Edit]) -> str | None:
    """Return the document by the first way that makes the edits and nothing else, None when none does."""
    expected = nested.edited(data, edits)
    # By its lines a table goes without the comments below it, which are about the next.
    shorter, left = _without_tables(text, edits)
    for start, wanted in [(text, edits)] if shorter == text else [(shorter, left), (text, edits)]:
        for attempt, new_table in _WAYS:
            try:
                result = attempt(start, wanted, new_table) if wanted else start
                if parse(result) == expected:
                    return result
            except (AttributeError, LookupError, TOMLKitError, TypeError, ValueError):
                # Every version of tomlkit has some layout that it loses its way in.
                continue
    return None


def _without_tables(text: str, edits: Sequence[Edit]) -> Tuple[str, Sequence[Edit]]:
    """Return the document without the tables that go, where they have headers, and the edits that are left to make."""
    sections = list(_sections(text))
    gone = [
        edit.path
        for edit in edits
        if edit.value is None and any(_starts(header, edit.path) for header, unused in sections)
    ]
    kept = [
        (header, _remark(lines) if any(_starts(header, path) for path in gone) else lines) for header, lines in sections
    ]
    return _text(kept), [edit for edit in edits if edit.value is not None or edit.path not in gone]


def _as_a_whole(text: str, edits: Sequence[Edit], new_table: Callable[[Mapping[str, Any]], Any]) -> str:
    document = tomlkit.parse(text)
    for edit in edits:
        _apply(document, edit, new_table)
    return str(tomlkit.dumps(document))


def _in_short(text: str, edits: Sequence[Edit], new_table: Callable[[Mapping[str, Any]], Any]) -> str:
    """Edit the document without the tables that no edit touches, each run of them but for its first line."""
    if _MARK in text:
        raise ValueError
    short: List[str] = []
    kept: List[str] = []
    for touched, lines in _runs(text, edits):
        blank = next((place for place, line in enumerate(reversed(lines)) if line.strip()), 0)
        body = lines[1 : len(lines) - blank]
        if touched or not body:
            short += lines
            continue
        ending = body[-1][len(body[-1].rstrip("\r\n")) :]
        short += [lines[0], f"{_MARK}{len(kept)}.{ending}", *lines[len(lines) - blank :]]
        kept.append("".join(body))
    result = _as_a_whole("".join(short), edits, new_table)
    for number, body_text in enumerate(kept):
        mark = re.compile(rf"^[ \t]*{re.escape(_MARK)}{number}\.\r?(?:\n|\Z)", re.MULTILINE)
        before, after = mark.split(result)
        result = before + body_text + after
    return result


def _by_lines(text: str, edits: Sequence[Edit], new_table: Callable[[Mapping[str, Any]], Any]) -> str:
    """Edit one table at a time; those that go are taken out by their lines, new ones end the document."""
    shorter, left = _without_tables(text, edits)
    sections = list(_sections(shorter))
    new = tomlkit.document()
    for edit in edits:
        if edit not in left:
            if nested.get(parse(shorter), edit.path[:-1]) is None:
                _apply(new, Edit(edit.path[:-1], {}), new_table)
        elif isinstance(edit.value, dict):
            _apply(new, edit, new_table)
        else:
            place = [header for header, unused in sections].index(edit.path[:-1])
            alone = _as_a_whole("".join(sections[place][1]), [edit], new_table)
            sections[place] = (edit.path[:-1], [alone])
    return _text(sections) + str(tomlkit.dumps(new))


def _with_headers(text: str, edits: Sequence[Edit], new_table: Callable[[Mapping[str, Any]], Any]) -> str:
    """Edit by lines, once the tables that only those below them have made end the document with their own headers."""
    known = {header for header, unused in _sections(text)}
    missing = {edit.path[:-1]: None for edit in edits if edit.path[:-1] not in known}
    headers = (".".join(tomlkit.key(key).as_string() for key in table) for table in missing)
    return _by_lines(text + "".join(f"\n[{header}]\n" for header in headers), edits, new_table)


def _text(sections: Sequence[Tuple[Path, List[str]]]) -> str:
    return "".join(line for unused, lines in sections for line in lines)


def _remark(lines: List[str]) -> List[str]:
    """Return the comments below the last value of a table."""
    last = max(place for place, line in enumerate(lines) if line.strip()[:1] not in ("", "#"))
    below = lines[last + 1 :]
    return below if any(line.strip() for line in below) else []


def _runs(text: str, edits: Sequence[Edit]) -> Iterator[Tuple[bool, List[str]]]:
    """Yield the lines of a table that an edit touches, which is True, or of tables in a row that none does."""
    group: List[str] = []
    kind: Tuple[int, ...] = ()
    for header, lines in _sections(text):
        touched = any(_starts(edit.path, header) or _starts(header, edit.path) for edit in edits)
        # Those near an edit stay apart from those far away: a new table goes beside the former.
        next_kind = () if touched else tuple(_common(header, edit.path) for edit in edits)
        if group and (touched or next_kind != kind):
            yield kind == (), group
            group = []
        group, kind = group + lines, next_kind
    yield kind == (), group


def _sections(text: str) -> Iterator[Tuple[Path, List[str]]]:
    """Yield what stands before the first header, and each table by its header.

    A text of several lines may look like one.
    """
    header: Path = ()
    lines: List[str] = []
    for line in text.splitlines(keepends=True):
        match = _HEADER.match(line)
        found = _keys(match.group(2)) if match else ()
        if found:
            yield header, lines
            header, lines = found, []
        lines.append(line)
    yield header, lines


def _keys(dotted: str) -> Path:
    """Return the keys of a header; none where an escape is none of TOML's, which a line of a text may have."""
    try:
        return tuple(_unquoted(key) for key in re.findall(_KEY, dotted))
    except ValueError:
        return ()


def _unquoted(key: str) -> str:
    if "\\" in key:
        return next(iter(parse(f"{key} = 0")))
    return key[1:-1] if key[0] in "\"'" else key


def _starts(path: Path, start: Path) -> bool:
    return bool(path[: len(start)] == start)


def _common(one: Path, other: Path) -> int:
    return next((depth for depth in range(len(other), 0, -1) if one[:depth] == other[:depth]), 0)


def _apply(document: Any, edit: Edit, new_table: Callable[[Mapping[str, Any]], Any]) -> None:  # noqa: ANN401
    node = document
    for key in edit.path[:-1]:
        if key not in node:
            node[key] = tomlkit.inline_table() if new_table is _inline_table else tomlkit.table(True)
        node = node[key]
    last = edit.path[-1]
    if edit.value is None:
        del node[last]
    elif isinstance(edit.value, dict):
        siblings = [item for item in node.values() if isinstance(item, tomlkit.items.Table)]
        table = new_table(edit.value)
        node[last] = table
        if isinstance(table, tomlkit.items.Table):
            _indent(table, siblings[0].trivia.indent if siblings else "")
    else:
        added = last not in node
        node[last] = _quoted_as(node.get(last), edit.value)
        if added and isinstance(node, tomlkit.items.Table):
            _align(node, last)


def _align(table: tomlkit.items.Table, added: str) -> None:
    """Indent a new value as those beside it."""
    values = {
        key.key: item for key, item in table.value.body if key is not None and not isinstance(item, tomlkit.items.Table)
    }
    new = values.pop(added)
    beside = next(iter(values.values()), None)
    if beside is not None:
        new.trivia.indent = beside.trivia.indent


def _quoted_as(old: object, value: object) -> object:
    """Return a string in the kind of quotes of the one it replaces."""
    literal = isinstance(old, tomlkit.items.String) and old.as_string().startswith("'")
    return tomlkit.value(f"'{value}'") if literal and isinstance(value, str) and "'" not in value else value


def _table(value: Mapping[str, Any]) -> tomlkit.items.Table:
    """Return a TOML table: its values, a blank line, its tables."""
    table = tomlkit.table()
    for key, item in value.items():
        if not isinstance(item, dict):
            table.add(key, item)
    table.add(tomlkit.nl())
    for key, item in value.items():
        if isinstance(item, dict):
            table.add(key, _table(item))
    return table


def _inline_table(value: Mapping[str, Any]) -> tomlkit.items.InlineTable:
    """Return a TOML table on one line, for where dotted keys or another such table keep headers out."""
    table = tomlkit.inline_table()
    for key, item in value.items():
        table[key] = _inline_table(item) if isinstance(item, dict) else item
    return table


def _indent(table: tomlkit.items.Table, indent: str) -> None:
    """Indent a table as containerd writes its own: each level two deeper, or nothing at all."""
    table.trivia.indent = indent
    for key, item in table.value.body:
        if isinstance(item, tomlkit.items.Table):
            _indent(item, indent and indent + "  ")
        elif key is not None:
            item.trivia.indent = indent and indent + "  "


def _plain(value: object) -> Any:  # noqa: ANN401
    """Return tomlkit's values as Python's own."""
    if isinstance(value, dict):
        return {str(key): _plain(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_plain(item) for item in value]
    for kind in (bool, int, float, str):
        if isinstance(value, kind):
            return kind(value)
    return value


_WAYS = (
    *((attempt, new_table) for new_table in (_table, _inline_table) for attempt in (_in_short, _as_a_whole, _by_lines)),
    (_with_headers, _table),
)
"""Each makes the edits in a layout that those before it may lose their way in."""
