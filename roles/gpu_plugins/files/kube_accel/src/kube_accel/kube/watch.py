# SPDX-License-Identifier: Apache-2.0
"""List and watch: one kind of object, kept current in a sink for ever."""

from __future__ import annotations

import logging
import random
import re
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import Any, Protocol

from kube_accel.kube.api import ApiError, ApiRefusedError, ApiUnreachableError
from kube_accel.kube.client import JSON, KubeClient
from kube_accel.shared.api_json import ODD, ApiJsonError, checked, named, read_at, read_object
from kube_accel.shared.printable import line

_log = logging.getLogger(__name__)

PAGE = 500
_WATCH_SECONDS = 300
_SILENCE = 100.0
"""Seconds without an event after which a watch is opened again; the API server sends a bookmark every minute."""
_BACK_OFF = (0.2, 10.0)
_BURST = 10
"""Objects of a list read at once."""
_GONE = 410
_BUSY = (429, 500, 502, 503, 504)
_REMEDY = "see it with kubectl get --output=yaml, and correct or delete it"
_NOT_AN_OBJECT = re.compile(rb'"type"\s*:\s*"(?:BOOKMARK|ERROR)"')


class Sink(Protocol):
    """What objects are kept in. Called from the watch's thread."""

    def keep(self, item: dict[str, Any]) -> str | None:
        """Take an object that exists, new or changed, and return its key; None when it is of no interest."""

    def drop(self, item: dict[str, Any]) -> None:
        """Forget an object that is gone, or no longer selected."""

    def keys(self) -> set[str]:
        """Return the keys of all objects that are kept."""

    def lose(self, key: str) -> None:
        """Forget an object that was kept when a list began, and that the list does not have."""


@dataclass(frozen=True, slots=True)
class Watched:
    """What is listed and watched."""

    path: str
    query: Mapping[str, str] = field(default_factory=dict)
    """Selectors."""
    metadata_only: bool = False
    """Labels and annotations are enough; more may come all the same."""
    interesting: re.Pattern[bytes] | None = None
    """Watch events and pages of a list whose JSON it does not match are dropped unread; must match every object the
    sink keeps."""
    odd: Callable[[object, str], set[str]] = lambda item, reason: _identities(item)
    """Is called with an object that cannot be read, and why, besides the log; the keys that the sink may have it by."""

    def accept(self, kind: str) -> str:
        """Return the Accept header for a ``PartialObjectMetadata`` or ``PartialObjectMetadataList``."""
        return f"{JSON};as={kind};g=meta.k8s.io;v=v1,{JSON}" if self.metadata_only else JSON


class _GoneError(Exception):
    """The resource version is too old to go on from."""


class Watch:
    """Fills a sink from a list in pages, then from a watch that goes on where it was when it breaks."""

    def __init__(
        self,
        client: KubeClient,
        watched: Watched,
        sink: Sink,
        pause: Callable[[], None] = lambda: None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """``pause`` is called before work on an object, to let more urgent threads go first."""
        self._client = client
        self._watched = watched
        self._sink = sink
        self._pause = pause
        self._clock = clock
        self._version: str | None = None
        self._failure = ""
        self._failing_since: float | None = clock()
        self.synced = threading.Event()
        """Set once the first list is complete."""
        self.lists = 0
        """Complete lists so far."""
        self.list_seconds = 0.0
        """What the last one took."""

    def failing(self) -> tuple[float, str] | None:
        """Return for how many seconds the API server has not been heard, and why; None while all is well."""
        since = self._failing_since
        return None if since is None else (self._clock() - since, self._failure or "not heard yet")

    def following(self) -> bool:
        """Return whether everything up to the last event is in the sink; not so while a list is read."""
        return self._version is not None

    def run(self, stop: threading.Event) -> None:
        """Keep the sink current until ``stop`` is set."""
        pause = _BACK_OFF[0]
        while not stop.is_set():
            try:
                if self._version is None:
                    self._list(stop)
                    pause = _BACK_OFF[0]
                self._follow(stop)
                pause = _BACK_OFF[0]
                continue
            except _GoneError:
                _log.info("a watch is too old to go on, listing again", extra={"path": self._watched.path})
                self._version = None
            except ApiError as error:
                self._failed(str(error))
            stop.wait(pause * random.uniform(0.5, 1))  # noqa: S311 - spreads clients
            pause = min(pause * 2, _BACK_OFF[1])

    def _failed(self, reason: str) -> None:
        if self._failing_since is None or not self._failure:
            _log.warning("the API server is not heard", extra={"path": self._watched.path, "reason": reason})
        if self._failing_since is None:
            self._failing_since = self._clock()
        self._failure = reason

    def _heard(self) -> None:
        if self._failing_since is not None:
            self._failing_since, self._failure = None, ""

    def _list(self, stop: threading.Event) -> None:
        begin = self._clock()
        query = {**self._watched.query, "limit": str(PAGE)}
        # What is learned from elsewhere while the list is read may be younger than the list.
        before, keys = self._sink.keys(), set[str]()
        pause = _BACK_OFF[0]
        answer: Callable[[], bytes] = partial(self._get, query)
        while not stop.is_set():
            try:
                body = answer()
            except ApiError as error:
                if "continue" not in query or (isinstance(error, ApiRefusedError) and error.status not in _BUSY):
                    raise
                # Of hundreds of pages one is refused each time while the API server is busy: this list goes on.
                self._failed(str(error))
                stop.wait(pause * random.uniform(0.5, 1))  # noqa: S311 - spreads clients
                pause, answer = min(pause * 2, _BACK_OFF[1]), partial(self._get, query)
                continue
            pause = _BACK_OFF[0]
            metadata, items = page(body)
            if metadata.get("continue"):
                query = query | {"continue": str(metadata["continue"])}
                answer = _meanwhile(partial(self._get, query))
            if self._watched.interesting and not self._watched.interesting.search(body):
                items = iter(())
            for number, item in enumerate(items):
                if not number % _BURST:
                    self._pause()
                keys |= self._keep(item)
            if not metadata.get("continue"):
                break
        else:
            return
        for key in before - keys:
            self._sink.lose(key)
        self._version = str(metadata.get("resourceVersion") or "0")
        self.lists += 1
        self.list_seconds = self._clock() - begin
        self._heard()
        self.synced.set()
        extra = {"path": self._watched.path, "kept": len(keys), "seconds": round(self.list_seconds, 3)}
        _log.info("listed", extra=extra)

    def _get(self, query: Mapping[str, str]) -> bytes:
        try:
            accept = self._watched.accept("PartialObjectMetadataList")
            return self._client.send("GET", self._watched.path, query=query, accept=accept)
        except ApiRefusedError as error:
            if error.status == _GONE:
                raise _GoneError from error
            raise

    def _follow(self, stop: threading.Event) -> None:
        """Watch from where the last watch ended until the server ends it."""
        assert self._version is not None
        query = {
            **self._watched.query,
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": self._version,
            "timeoutSeconds": str(_WATCH_SECONDS + random.randrange(60)),  # noqa: S311
        }
        begin = self._clock()
        accept = self._watched.accept("PartialObjectMetadata")
        try:
            with self._client.lines(self._watched.path, query, _SILENCE, accept) as lines:
                self._heard()
                for text in lines:
                    if stop.is_set():
                        return
                    self._event(text)
        except ApiRefusedError as error:
            if error.status == _GONE:
                raise _GoneError from error
            raise
        if self._clock() - begin < _BACK_OFF[0]:
            # A server that ends every watch at once must not be asked in a loop.
            stop.wait(_BACK_OFF[0])

    def _event(self, text: bytes) -> None:
        interesting = self._watched.interesting
        if not text or (interesting and not interesting.search(text) and not _NOT_AN_OBJECT.search(text, 0, 64)):
            return
        self._pause()
        try:
            event = read_object(text)
            kind, item = event["type"], event["object"]
            if kind == "ERROR":
                if item.get("code") == _GONE:
                    raise _GoneError
                raise ApiRefusedError(int(item.get("code") or 500), str(item.get("message")))
            version = item["metadata"]["resourceVersion"]
        except (ValueError, LookupError, TypeError, AttributeError) as error:
            raise ApiUnreachableError(f"not a watch event: {error!r}") from error
        if kind == "DELETED":
            self._drop(item)
        elif kind != "BOOKMARK":
            self._keep(item)
        self._version = str(version)

    def _keep(self, item: object) -> set[str]:
        """Have an object kept, and return the keys that the sink may have it by."""
        try:
            key = self._sink.keep(checked(item))
        except ODD as error:
            _log_unreadable(item, self._watched.path, error)
            return self._watched.odd(item, line(error if isinstance(error, ApiJsonError) else repr(error)))
        return set() if key is None else {key}

    def _drop(self, item: object) -> None:
        try:
            self._sink.drop(checked(item))
        except ODD as error:
            # It is gone, however odd it was in the end.
            for key in self._sink.keys() & self._watched.odd(item, line(repr(error))):
                self._sink.lose(key)


@contextmanager
def passing_over(item: object, path: str) -> Iterator[None]:
    """Have an object that cannot be read cost itself alone: what was known of it stays, and the log names it."""
    try:
        yield
    except ODD as error:
        _log_unreadable(item, path, error)


def _log_unreadable(item: object, path: str, error: Exception) -> None:
    extra = {"path": path, "object": named(item), "reason": line(repr(error)), "remedy": _REMEDY}
    _log.warning("an object cannot be read, and is passed over until it changes", extra=extra)


def _identities(item: object) -> set[str]:
    """Return the keys that a sink may have an object by."""
    metadata = item.get("metadata") if isinstance(item, dict) else None
    found = (metadata.get(key) for key in ("uid", "name")) if isinstance(metadata, dict) else ()
    return {key for key in found if isinstance(key, str)}


def _meanwhile(ask: Callable[[], bytes]) -> Callable[[], bytes]:
    """Have something asked in a thread of its own, and return what waits for the answer, or raises what asking did."""
    answers: SimpleQueue[bytes | Exception] = SimpleQueue()

    def run() -> None:
        try:
            answers.put(ask())
        except Exception as error:
            answers.put(error)

    def answer() -> bytes:
        found = answers.get()
        if isinstance(found, Exception):
            raise found
        return found

    threading.Thread(target=run, name="next page", daemon=True).start()
    return answer


def page(body: bytes) -> tuple[dict[str, Any], Iterator[Any]]:
    """Return the metadata of a list and its items, parsed one at a time: other threads get their turn in between.

    Raises ApiUnreachableError for what is not a list of the API server.
    """
    text = body.decode(errors="replace")
    head, found, _ = text.partition('"items":[')
    if found:
        # The API server writes a list's metadata before its items.
        with suppress(ValueError, LookupError):
            return _metadata(read_object(head.rstrip(", \n") + "}")), _items(text, len(head) + len(found))
    try:
        document = read_object(text)
        return _metadata(document), iter(document["items"] or ())
    except (ValueError, LookupError, TypeError) as error:
        raise ApiUnreachableError(f"not a list: {error!r}") from error


def _metadata(document: dict[str, Any]) -> dict[str, Any]:
    found = document["metadata"]
    if not isinstance(found, dict):
        raise ApiJsonError("metadata is no JSON object")
    return found


_WHITE = re.compile(r"[\s,]*")


def _items(text: str, position: int) -> Iterator[Any]:
    while True:
        match = _WHITE.match(text, position)
        position = match.end() if match else position
        if text[position : position + 1] == "]":
            return
        try:
            item, position = read_at(text, position)
        except ApiJsonError as error:
            raise ApiUnreachableError(f"not a list: {error}") from error
        yield item
