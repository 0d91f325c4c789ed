# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json

import pytest

from kube_accel.kube.api import ApiUnreachableError
from kube_accel.kube.watch import page

ITEMS = [{"metadata": {"name": "a", "text": 'said "items":[ and ] \u00e9'}}, {"metadata": {"name": "b"}}]
LIST = {"kind": "PodList", "metadata": {"resourceVersion": "7", "continue": "x"}, "items": ITEMS}


@pytest.mark.parametrize("separators", [(",", ":"), (", ", ": ")])
@pytest.mark.parametrize("keys", [("kind", "metadata", "items"), ("items", "metadata")])
def test_items_are_read_however_the_list_is_written(separators: tuple[str, str], keys: tuple[str, ...]) -> None:
    body = json.dumps({key: LIST[key] for key in keys}, separators=separators).encode()
    metadata, items = page(body)
    assert metadata == LIST["metadata"]
    assert list(items) == ITEMS


@pytest.mark.parametrize("items", ["[]", "null"])
def test_a_list_may_be_empty(items: str) -> None:
    metadata, found = page(f'{{"metadata":{{"resourceVersion":"7"}},"items":{items}}}\n'.encode())
    assert metadata["resourceVersion"] == "7"
    assert list(found) == []


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"metadata":{},"items":[{]}', b'{"metadata":{},"items":[{}'])
def test_what_is_no_list_is_said(body: bytes) -> None:
    with pytest.raises(ApiUnreachableError):
        list(page(body)[1])
