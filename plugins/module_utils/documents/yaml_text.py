# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Read a YAML document as Kubernetes does. No I/O.

What a plain scalar stands for is what go-yaml v2 makes of it, by which Kubernetes and k3s read: ``yes`` and ``on`` are
true, ``010`` is 8, a date is text.
"""

from __future__ import annotations

import functools
import re
import traceback
from dataclasses import dataclass, field
from typing import Any, Dict, Iterator, List, Tuple

from ansible_collections.accel.kubernetes.plugins.module_utils.shared.api_json import ODD

try:
    from ruamel.yaml import YAML
    from ruamel.yaml.error import YAMLError

    RUAMEL_TRACEBACK = ""
except ImportError:
    # The module says so before it reads YAML.
    YAMLError = ValueError  # type: ignore[assignment, misc, unused-ignore]
    RUAMEL_TRACEBACK = traceback.format_exc()
# By the C library, of either package, it is read ten times as fast.
_FAST: Any = None
_ERRORS: Tuple[Any, ...] = (YAMLError,)
try:
    from _ruamel_yaml import CParser as _FAST  # type: ignore[import-not-found, no-redef, unused-ignore]
except ImportError:
    try:
        from yaml import YAMLError as OtherError
        from yaml.cyaml import CParser as _FAST  # type: ignore[attr-defined, no-redef, unused-ignore]

        _ERRORS = (YAMLError, OtherError)
    except ImportError:
        pass  # ruamel.yaml alone does.

CAN_READ = _FAST is not None or not RUAMEL_TRACEBACK
"""Whether there is a library to read with; editing needs ruamel.yaml."""
_MOST_VALUES = 1_000_000
"""Values of a document once its aliases are followed: a few lines of them can stand for more than fits in memory."""
_TRUE = frozenset(("y", "Y", "yes", "Yes", "YES", "true", "True", "TRUE", "on", "On", "ON"))
_FALSE = frozenset(("n", "N", "no", "No", "NO", "false", "False", "FALSE", "off", "Off", "OFF"))
_NULL = frozenset(("", "~", "null", "Null", "NULL"))
_WHOLE = re.compile(r"([-+]?)(?:0b([01]+)|0o?([0-7]+)|0x([0-9a-f]+)|([1-9][0-9]*|0))", re.IGNORECASE)
_FRACTION = re.compile(r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?")
_ENDLESS = {".inf": "inf", "+.inf": "inf", "-.inf": "-inf", ".nan": "nan"}
_TAG = "tag:yaml.org,2002:"
MERGE = "<<"


class YamlError(Exception):
    """The text is not one YAML mapping, or cannot be edited. Says where and why."""


@dataclass(eq=False)
class Node:
    """A value and where it is in the text. The end of one in block style is that of the last scalar in it."""

    kind: str
    """scalar, mapping, sequence or alias."""
    start: int
    end: int = 0
    flow: bool = False
    value: Any = None
    """The value of a scalar."""
    items: List[Node] = field(default_factory=list)
    """The items of a sequence; of a mapping, by turns key and value."""
    target: Node | None = None
    """What an alias stands for."""
    named: bool = False
    """Whether an alias could stand for it."""

    def real(self) -> Node:
        """Return the value itself, behind an alias."""
        return self if self.target is None else self.target

    def pairs(self) -> Iterator[Tuple[Node, Node]]:
        """Keys and values of a mapping."""
        return zip(self.items[::2], self.items[1::2])  # noqa: B905 - without strict: Python 3.9


def load(text: str, path: str, strict: bool = False) -> Dict[str, Any]:
    """Return the document's mapping in Python's own types. Raises YamlError naming the line.

    A strict reader, as kube-scheduler is of its configuration, refuses a key that a merge brings a second time. For
    others the later one counts.
    """
    try:
        data: Dict[str, Any] = Values(strict).of(parsed(text))
    except YamlError as error:
        raise YamlError(f"{path} {error}") from None
    except RecursionError:
        raise YamlError(
            f"{path} is not YAML that can be read: an anchor holds itself, or it is nested too deeply"
        ) from None
    return data


@functools.lru_cache(maxsize=16)
def parsed(text: str) -> Node:
    """Return the document's mapping. Raises YamlError."""
    try:
        roots = _composed(text)
    except (*_ERRORS, *ODD) as error:
        mark = getattr(error, "problem_mark", None)
        line = f", line {mark.line + 1}" if mark else ""
        raise YamlError(f"is not YAML{line}: {getattr(error, 'problem', None) or error}") from error
    # One that holds nothing is all that a line of three dashes at the end begins.
    filled = roots[:1] + [root for root in roots[1:] if root.kind != "scalar" or root.value is not None]
    if len(filled) > 1:
        raise YamlError(
            f"is not a single YAML mapping but {len(filled)} documents, of which the first alone would be read: "
            "leave that one in it"
        )
    if not filled or filled[0].kind != "mapping":
        raise YamlError("is not a single YAML mapping: write it as keys and values")
    return filled[0]


def _events(text: str) -> Iterator[Any]:
    if _FAST is None:
        yield from YAML(typ="safe", pure=True).parse(text)
        return
    parser = _FAST(text)
    while parser.check_event():
        yield parser.get_event()


def _composed(text: str) -> List[Node]:
    roots: List[Node] = []
    anchors: Dict[str, Node] = {}
    open_nodes: List[Node] = []
    for event in _events(text):
        kind = event.__class__.__name__
        if kind in ("MappingEndEvent", "SequenceEndEvent"):
            node = open_nodes.pop()
            ends = node.flow or not node.items
            node.end = event.end_mark.index if ends else max(item.end for item in node.items[-2:])
            continue
        if kind == "AliasEvent":
            if event.anchor not in anchors:
                raise YamlError(f"is not YAML, line {event.start_mark.line + 1}: no anchor &{event.anchor}")
            node = Node("alias", event.start_mark.index, event.end_mark.index, target=anchors[event.anchor])
        elif kind == "ScalarEvent":
            node = Node("scalar", event.start_mark.index, event.end_mark.index, value=_scalar(event))
            if event.style in ("|", ">"):
                node.end = node.start + len(text[node.start : node.end].rstrip())
            elif node.start == node.end and open_nodes[-1:] and len(open_nodes[-1].items) % 2 == 1:
                node.start = node.end = _beside(text, open_nodes[-1], node.start)
        elif kind in ("MappingStartEvent", "SequenceStartEvent"):
            flow = bool(event.flow_style)
            node = Node(kind[:-10].lower(), event.start_mark.index, flow=flow)
        else:
            continue
        if kind != "AliasEvent" and event.anchor:
            anchors[event.anchor] = node
            node.named = True
        (open_nodes[-1].items if open_nodes else roots).append(node)
        if kind in ("MappingStartEvent", "SequenceStartEvent"):
            open_nodes.append(node)
    return roots


def _beside(text: str, mapping: Node, place: int) -> int:
    """Return where a value that is left out would begin: the parsers differ in where a comment belongs."""
    return text.index(":", mapping.items[-1].end) + 1 if mapping.kind == "mapping" else place


def _scalar(event: Any) -> Any:  # noqa: ANN401
    """Return what a scalar stands for."""
    text = str(event.value)
    tag = str(event.tag or "")
    if tag in ("", "!"):
        return resolved(text) if not tag and event.style in (None, "") else text
    kind = {"str": str, "int": int, "float": float, "bool": bool, "null": type(None)}.get(tag[len(_TAG) :])
    value = text if kind is str else resolved(text)
    if kind is None or not tag.startswith(_TAG) or not isinstance(value, (int, float) if kind is float else kind):
        raise YamlError(f"is not YAML, line {event.start_mark.line + 1}: {text!r} is tagged {tag}; take the tag out")
    return value


def resolved(text: str) -> Any:  # noqa: ANN401
    """Return what an unquoted text stands for."""
    if text in _NULL:
        return None
    if text in _TRUE or text in _FALSE:
        return text in _TRUE
    if text.lower() in _ENDLESS:
        return float(_ENDLESS[text.lower()])
    if text[0] not in "0123456789+-.":
        return text
    bare = text.replace("_", "")
    match = _WHOLE.fullmatch(bare)
    if match:
        sign, *digits = match.groups()
        found = next((int(part, base) for part, base in zip(digits, (2, 8, 16, 10)) if part), 0)  # noqa: B905
        return -found if sign == "-" else found
    if _FRACTION.fullmatch(bare):
        number = float(bare)
        return int(number) if number.is_integer() and abs(number) < 1e15 else number
    return text


class Values:
    """Makes values of nodes, each use of an alias one of its own."""

    def __init__(self, strict: bool = False) -> None:
        self.made = 0
        self.strict = strict

    def of(self, node: Node) -> Any:  # noqa: ANN401
        """Return what a node stands for. Raises YamlError."""
        self.made += 1
        if self.made > _MOST_VALUES:
            raise YamlError(f"stands for more than {_MOST_VALUES} values by its aliases")
        node = node.real()
        if node.kind == "scalar":
            return node.value
        if node.kind == "sequence":
            return [self.of(item) for item in node.items]
        found: Dict[str, Any] = {}
        own = set()
        for key, item in node.pairs():
            name = key_of(key)
            if name == MERGE:
                # Of several the first counts, and is read last (go-yaml v2, merge).
                for mapping in reversed(_merged(item)):
                    self._take(found, self.of(mapping))
            elif name in own:
                raise YamlError(f"is not YAML: it has {name} twice in one mapping; remove one of them")
            else:
                own.add(name)
                self._take(found, {name: self.of(item)})
        return found

    def _take(self, found: Dict[str, Any], more: Dict[str, Any]) -> None:
        twice = sorted(set(found).intersection(more)) if self.strict else []
        if twice:
            raise YamlError(
                f"has {twice[0]} twice in one mapping, by a merge (<<), and kube-scheduler does not start with that: "
                "leave it in one place"
            )
        found.update(more)


def key_of(node: Node) -> str:
    """Return the name that a key stands for, as in JSON."""
    value = node.real().value
    if node.real().kind != "scalar" or value is None:
        raise YamlError("has a key that is no text; correct it")
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _merged(node: Node) -> List[Node]:
    """Return the mappings that << takes in, those that win first."""
    found = node.real().items if node.real().kind == "sequence" else [node]
    if any(item.real().kind != "mapping" for item in found):
        raise YamlError("merges with << what is no mapping; correct it")
    return found
