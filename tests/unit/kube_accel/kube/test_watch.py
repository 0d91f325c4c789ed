# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import json
import re
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any, cast

import pytest

from kube_accel.kube.api import ApiError, ApiRefusedError, ApiUnreachableError
from kube_accel.kube.client import KubeClient
from kube_accel.kube.watch import Watch, Watched, page

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


class Pages:
    """An API server with a list in pages; a watch of it ends the test."""

    def __init__(self, *pages: bytes | ApiError) -> None:
        self.pages = iter(pages)
        self.stop = threading.Event()
        self.asked: list[str] = []

    def send(self, *_: object, query: Mapping[str, str], **__: object) -> bytes:
        self.asked.append(query.get("continue", ""))
        found = next(self.pages)
        if isinstance(found, ApiError):
            raise found
        return found

    @contextmanager
    def lines(self, *_: object) -> Iterator[Iterator[bytes]]:
        self.stop.set()
        yield iter([b""])


class Kept:
    def __init__(self) -> None:
        self.offered: list[str] = []
        self.lost: list[str] = []

    def keep(self, item: dict[str, Any]) -> str | None:
        name = str(item["metadata"]["name"])
        self.offered.append(name)
        return name

    def drop(self, item: dict[str, Any]) -> None:
        """Nothing is deleted."""

    def keys(self) -> set[str]:
        return {"gone", "wanted"}

    def lose(self, key: str) -> None:
        self.lost.append(key)


def written(metadata: dict[str, str], *names: str) -> bytes:
    items = [{"metadata": {"name": name}} for name in names]
    return json.dumps({"metadata": metadata, "items": items}, separators=(",", ":")).encode()


def test_pages_without_anything_of_interest_are_not_read() -> None:
    pages = Pages(
        written({"continue": "x"}, "wanted", "beside"), written({"continue": "y"}, "other"), written({}, "wanted too")
    )
    sink = Kept()
    watch = Watch(cast(KubeClient, pages), Watched("/", interesting=re.compile(b'"wanted')), sink)
    watch.run(pages.stop)
    assert sink.offered == ["wanted", "beside", "wanted too"]
    assert sink.lost == ["gone"]
    assert watch.synced.is_set()


@pytest.mark.parametrize("error", [ApiRefusedError(429, "too many requests"), ApiUnreachableError("timed out")])
def test_a_list_goes_on_with_the_page_that_a_busy_api_server_refused(error: ApiError) -> None:
    pages = Pages(error, written({"continue": "x"}, "a"), error, error, written({"continue": "y"}, "b"), written({}))
    sink = Kept()
    watch = Watch(cast(KubeClient, pages), Watched("/"), sink)
    watch.run(pages.stop)
    assert pages.asked == ["", "", "x", "x", "x", "y"]
    assert sink.offered == ["a", "b"]
    assert watch.failing() is None


@pytest.mark.parametrize("status", [403, 410])
def test_a_list_that_cannot_go_on_begins_anew(status: int) -> None:
    pages = Pages(written({"continue": "x"}, "a"), ApiRefusedError(status, "no"), written({}, "a"))
    watch = Watch(cast(KubeClient, pages), Watched("/"), Kept())
    watch.run(pages.stop)
    assert pages.asked == ["", "x", ""]
