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


class Patient(Kept):
    """Takes nothing before this event."""

    def __init__(self, event: threading.Event) -> None:
        super().__init__()
        self._event = event

    def keep(self, item: dict[str, Any]) -> str | None:
        assert self._event.wait(10)
        return super().keep(item)


class Picky(Kept):
    """Does not look at what it takes."""

    def keep(self, item: dict[str, Any]) -> str | None:
        sum(item["spec"]["counts"])
        return super().keep(item)


class Told(Pages):
    """Then a watch that tells of these objects."""

    events: tuple[Any, ...] = ()

    @contextmanager
    def lines(self, *_: object) -> Iterator[Iterator[bytes]]:
        def told() -> Iterator[bytes]:
            for event in self.events:
                yield json.dumps(event).encode()
            self.stop.set()

        yield told()


def named(name: Any, counts: Any = (), **others: Any) -> dict[str, Any]:
    return {"metadata": {"name": name, "resourceVersion": "8", **others}, "spec": {"counts": counts}}


ODD = [
    named("wanted", 7),
    named("wanted", ["x"]),
    named("wanted", labels=["a"]),
    named("wanted", annotations={"a": 1}),
    named("wanted") | {"spec": None},
    named("wanted") | {"spec": []},
    named("wanted", uid={}),
]
NAMELESS = [None, 7, "x", [], {}, {"metadata": []}, named(["a"])]


@pytest.mark.attack
@pytest.mark.parametrize("odd", ODD + NAMELESS, ids=ascii)
def test_an_odd_object_costs_itself_alone(odd: Any, caplog: pytest.LogCaptureFixture) -> None:
    listed = {"metadata": {"resourceVersion": "7"}, "items": [named("a"), odd, named("b")]}
    told = Told(json.dumps(listed, separators=(",", ":")).encode())
    modified = [{"type": "MODIFIED", "object": odd}] * (odd in ODD)
    told.events = (*modified, {"type": "ADDED", "object": named("c")})
    sink = Picky()
    watch = Watch(cast(KubeClient, told), Watched("/api/v1/nodes"), sink)
    watch.run(told.stop)
    assert sink.offered == ["a", "b", "c"]
    # What was known of it stays, where a name says what that is.
    assert sorted(sink.lost) == (["gone"] if odd in ODD else ["gone", "wanted"])
    assert watch.synced.is_set()
    assert watch.failing() is None
    assert "passed over" in caplog.text


@pytest.mark.attack
@pytest.mark.parametrize(
    "body",
    [
        b'{"metadata":{},"items":[' + b"[" * 100_000,
        b'{"metadata":{},"items":[{"metadata":{"name":"a","generation":NaN}}]}',
        b'{"metadata":{},"items":[{"metadata":{"generation":1' + b"0" * 5000 + b"}}]}",
        b'{"metadata":[],"items":[]}',
        b'{"metadata":{},"items":7}',
        b"[" * 100_000,
        b"\xff\xfe",
    ],
    ids=lambda body: ascii(body[:40]),
)
def test_what_is_no_json_is_an_api_error(body: bytes) -> None:
    with pytest.raises(ApiUnreachableError):
        list(page(body)[1])


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
def test_list_resumes_at_the_page_that_was_refused(error: ApiError) -> None:
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


def test_the_next_page_is_asked_for_while_one_is_read() -> None:
    second = threading.Event()

    class Asked(Pages):
        def send(self, *arguments: object, query: Mapping[str, str], **others: object) -> bytes:
            if query.get("continue") == "x":
                second.set()
            return super().send(*arguments, query=query, **others)

    last = {"metadata": {"resourceVersion": "7"}, "items": [{"metadata": {"name": "c"}}]}
    asked, sink = Asked(json.dumps(LIST).encode(), json.dumps(last).encode()), Patient(second)
    watch = Watch(cast(KubeClient, asked), Watched("/api/v1/nodes"), sink)
    watch.run(asked.stop)
    assert sink.offered == ["a", "b", "c"]
    assert asked.asked == ["", "x"]
    assert watch.synced.is_set()
