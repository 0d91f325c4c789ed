# SPDX-License-Identifier: Apache-2.0
"""``ExtenderArgs`` of kube-scheduler: what it says a second time is not read again."""

from __future__ import annotations

import json
from typing import Any, Final

from kube_accel.extender.wire import (
    Arguments,
    Body,
    Filtered,
    are_names,
    read_arguments,
    write_filtered,
    write_filtered_names,
    write_names,
)

_BEGIN: Final = b'{"Pod":'
_MIDDLE: Final = b',"Nodes":null,"NodeNames":'


class ArgumentReader:
    """Reads arguments and writes answers to filters. Threads may share it.

    kube-scheduler asks for points right after it has filtered: about the same pod, and the nodes that were answered.
    Both come as the bytes that they were before.
    """

    def __init__(self) -> None:
        self._pod: tuple[bytes, dict[str, Any]] = b"{}", {}
        self._names: tuple[bytes, list[str]] = b"[]", []

    def read(self, body: Body) -> Arguments:
        """Read ``ExtenderArgs``. Raises WireError."""
        middle = body.rfind(_MIDDLE)
        if middle < 0 or not body.startswith(_BEGIN) or not body.endswith(b"]}"):
            return read_arguments(body)
        said, listed = bytes(body[len(_BEGIN) : middle]), bytes(body[middle + len(_MIDDLE) : -1])
        known, answered = self._pod, self._names
        # Each is JSON by itself, so all of it is what ``read_arguments`` would find.
        try:
            pod = known[1] if said == known[0] else json.loads(said)
            names = answered[1] if listed == answered[0] else json.loads(listed)
        except (ValueError, RecursionError):
            return read_arguments(body)
        if not isinstance(pod, dict) or not isinstance(names, list) or not are_names(names):
            return read_arguments(body)
        self._pod = said, pod
        return Arguments(pod, names, None, listed)

    def write(self, answer: Filtered, asked: Arguments) -> bytes:
        """Write ``ExtenderFilterResult``: names or the node objects, as they came."""
        if asked.nodes is not None:
            return write_filtered(answer, asked.nodes)
        every = bool(asked.written) and answer.passed == asked.names
        text = asked.written if every else write_names(answer.passed)
        self._names = text, answer.passed
        return write_filtered_names(text, answer)
