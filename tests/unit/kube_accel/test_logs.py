# SPDX-License-Identifier: Apache-2.0
"""Lines of the log: JSON whose texts are harmless, however they are made."""

from __future__ import annotations

import json
import logging

from hypothesis import given
from hypothesis import strategies as st

from kube_accel.logs import JsonFormatter
from kube_accel.shared.printable import document

VALUES = st.recursive(
    st.text(max_size=30) | st.integers() | st.none() | st.sampled_from(["plain", "\x7f", 'a"b', "x" * 5000, "é"]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=8,
)


@given(value=VALUES)
def test_texts_are_what_printable_makes_of_them(value: object) -> None:
    record = logging.makeLogRecord({"msg": "said", "levelname": "INFO", "name": "a", "created": 0.25, "found": value})
    shown = json.loads(JsonFormatter().format(record))
    assert shown == {
        "time": "1970-01-01T00:00:00.250+00:00",
        "level": "info",
        "logger": "a",
        "message": "said",
        "found": document(value, 4096),
    }
