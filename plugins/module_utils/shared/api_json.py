# Apache License 2.0 (see https://www.apache.org/licenses/LICENSE-2.0)
# SPDX-License-Identifier: Apache-2.0
"""Read JSON of the API server strictly, at the speed of a decoder in C: a cluster has 100,000 objects. Pure.

What is not JSON ends in ApiJsonError. An object of which a part is of a kind that it never is costs itself alone:
``checked`` and whatever reads on raise one of ``ODD``, and ``of_each`` goes on. Of a name given twice the last value
counts, as in Go.
"""

from __future__ import annotations

import json
from typing import Any, Callable, Dict, Iterable, Iterator, List, Tuple, TypeVar

from .printable import line
from .reading import NUMBERS

Found = TypeVar("Found")

ODD = (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)
"""What comes of an object of which a part is of a kind that it never is."""

ANY = "*"
"""In a shape, every key that it does not name."""

_DECODER = json.JSONDecoder(**NUMBERS)
_TEXTS = ("name", "namespace", "uid", "resourceVersion")
_MAPS = ("labels", "annotations")
_TEXT = {str}
_LONGEST_NAME = 512
"""Characters: a namespace has up to 63, a name 253."""


class ApiJsonError(ValueError):
    """What came is not what the API server sends. Says what, in one harmless line."""

    def __init__(self, message: str) -> None:
        super().__init__(line(message))


def read_at(text: str, position: int) -> Tuple[Any, int]:
    """Return the value that begins at a position, and where it ends. Raises ApiJsonError."""
    try:
        return _DECODER.raw_decode(text, position)
    except RecursionError:
        raise ApiJsonError("nested too deeply") from None
    except ValueError as error:
        raise ApiJsonError(f"not JSON: {error}") from None


def read_object(text: "str | bytes") -> Dict[str, Any]:
    """Return the object that is all of a text. Raises ApiJsonError."""
    shown = text if isinstance(text, str) else text.decode(errors="replace")
    try:
        document = _DECODER.decode(shown)
    except RecursionError:
        raise ApiJsonError("nested too deeply") from None
    except ValueError as error:
        raise ApiJsonError(f"not JSON: {error}") from None
    if not isinstance(document, dict):
        raise ApiJsonError("not a JSON object")
    return document


def checked(item: object) -> Dict[str, Any]:
    """Return an object of which every part is what it always is. Raises ApiJsonError, which names the object."""
    if not isinstance(item, dict) or not isinstance(item.get("metadata"), dict):
        raise ApiJsonError("an object without metadata")
    metadata = item["metadata"]
    for key in _TEXTS:
        if not is_text(metadata.get(key, "")):
            raise ApiJsonError(f"{named(item)}: metadata.{key} is no text")
    for key in _MAPS:
        found = metadata.get(key)
        if found is not None and not (isinstance(found, dict) and set(map(type, found.values())) <= _TEXT):
            raise ApiJsonError(f"{named(item)}: metadata.{key} has more than texts by name")
    for key in ("spec", "status", "data"):
        if not isinstance(item.get(key), (dict, type(None))):
            raise ApiJsonError(f"{named(item)}: {key} is no JSON object")
    return item


def shaped(item: object, shape: Any) -> Dict[str, Any]:  # noqa: ANN401 - see Shape
    """Return an object of which also the parts that a shape names are what it says, or not there.

    A shape is ``str``, ``bool`` or ``int``; a list of one shape, for a list of such; a dict of shapes by key, for an
    object, with ``ANY`` as the key of all others; or a function that raises ValueError. A key that ends in ``!`` has to
    be there. Raises ApiJsonError, which names the object and the part.
    """
    found = checked(item)
    fit(found, shape, named(found))
    return found


def fit(value: Any, shape: Any, name: str, at: Tuple[Any, ...] = ()) -> None:  # noqa: ANN401
    """Raise ApiJsonError, which names the part of what is called ``name``, where a value is not of a shape."""
    if isinstance(shape, dict):
        if not isinstance(value, dict):
            raise _misfit(name, at, "is no JSON object")
        for key, child in value.items():
            inner = shape.get(key, shape.get(f"{key}!", shape.get(ANY)))
            if inner is not None and child is not None:
                fit(child, inner, name, (*at, key))
        for key in shape:
            if key.endswith("!") and value.get(key[:-1]) in (None, ""):
                raise _misfit(name, (*at, key[:-1]), "is missing")
    elif isinstance(shape, list):
        if not isinstance(value, list):
            raise _misfit(name, at, "is no list")
        for place, child in enumerate(value):
            fit(child, shape[0], name, (*at, place))
    else:
        wrong = _wrong(value, shape)
        if wrong:
            raise _misfit(name, at, wrong)


def _wrong(value: object, shape: Any) -> str:  # noqa: ANN401
    """Return what a value without parts is not that its shape says, empty where it is."""
    if shape is str:
        return "" if is_text(value) else "is no text"
    if shape is bool:
        return "" if isinstance(value, bool) else "is neither true nor false"
    if shape is int:
        return "" if isinstance(value, int) and not isinstance(value, bool) else "is no whole number"
    try:
        shape(value)
    except ValueError as error:
        return f"cannot be used: {error}"
    return ""


def _misfit(name: str, at: Tuple[Any, ...], what: str) -> ApiJsonError:
    path = "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in at).lstrip(".")
    return ApiJsonError(f"{name}: {path} {what}")


def entries(value: object) -> None:
    """Check a shape: a list, of which each entry is checked where it is read. Raises ValueError."""
    if not isinstance(value, list):
        raise ValueError("no list")


def is_text(value: object) -> bool:
    """Return whether it is a text that can be sent back: JSON can also write halves of characters."""
    if not isinstance(value, str):
        return False
    # As good as all are, which takes no copy to see.
    if value.isascii():
        return True
    try:
        value.encode()
    except UnicodeEncodeError:
        return False
    return True


def of_each(kind: str, read: Callable[[Any], Found], items: Iterable[Any], problems: List[str]) -> Iterator[Found]:
    """Yield what is read of each object. One that cannot be read becomes a problem, which names it and its kind."""
    for item in items:
        try:
            found = read(item)
        except ODD as error:
            problems.append(f"{kind} {named(item)} {unreadable(error)}; see kubectl get {kind} --output=yaml")
        else:
            yield found


def unreadable(error: Exception) -> str:
    """Say what is wrong with an object of which a part is of a kind that it never is; ``error`` is one of ``ODD``."""
    return f"cannot be read: {line(error if isinstance(error, ApiJsonError) else repr(error))}"


def named(item: object) -> str:
    """Return namespace and name of an object for a person, whatever they are."""
    metadata = item.get("metadata") if isinstance(item, dict) else None
    if not isinstance(metadata, dict):
        return "an object without metadata"
    names = (metadata.get(key) for key in ("namespace", "name"))
    return line("/".join(str(name) for name in names if name), _LONGEST_NAME) or "an object without a name"
