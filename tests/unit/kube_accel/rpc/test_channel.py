# SPDX-License-Identifier: Apache-2.0
"""Our client, answered by gRPC's own library, by nobody, and by who knows no gRPC."""

from __future__ import annotations

import socket
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path

import grpc
import pytest
from google.protobuf.wrappers_pb2 import BytesValue
from hypothesis import given
from hypothesis import strategies as st

from http2_bytes import frame, read_out
from kube_accel.rpc.channel import Channel
from kube_accel.rpc.status import Code, RpcError

SECONDS = 30
Answer = Callable[[bytes, grpc.ServicerContext], bytes]


@contextmanager
def serving(path: Path, answer: Answer) -> Iterator[None]:
    handler = grpc.unary_unary_rpc_method_handler(
        lambda request, context: BytesValue(value=answer(request.value, context)),
        BytesValue.FromString,
        BytesValue.SerializeToString,
    )
    path.unlink(missing_ok=True)
    server = grpc.server(ThreadPoolExecutor(4), options=[("grpc.max_send_message_length", -1)])
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler("a.B", {"Ask": handler}),))
    server.add_insecure_port(f"unix:{path}")
    server.start()
    yield
    server.stop(None).wait()


@pytest.fixture
def path() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(dir="/tmp") as root:
        yield Path(root) / "s.sock"


def ask(channel: Channel, value: bytes = b"", method: str = "Ask", timeout: float = SECONDS) -> bytes:
    return channel.call(f"/a.B/{method}", BytesValue(value=value), BytesValue, timeout).value


def failing(channel: Channel, value: bytes = b"", **options: float) -> tuple[Code, str]:
    with pytest.raises(RpcError) as error:
        ask(channel, value, **options)
    return error.value.code, error.value.details


def test_answers_are_whole_and_one_connection_serves_many_calls(path: Path) -> None:
    peers = set()

    def answer(value: bytes, context: grpc.ServicerContext) -> bytes:
        peers.add(context.peer())
        return b"x" * int(value)

    with serving(path, answer), Channel(path, 64 << 20) as channel:
        for size in (0, 1, 16_379, 65_536, 40_000_000, 5):
            assert len(ask(channel, str(size).encode())) == size
    assert len(peers) == 1


def test_peers_error_is_reported_and_the_connection_goes_on(path: Path) -> None:
    def answer(value: bytes, context: grpc.ServicerContext) -> bytes:
        if value:
            context.abort(grpc.StatusCode.RESOURCE_EXHAUSTED, value.decode())
        return b"a"

    with serving(path, answer), Channel(path) as channel:
        for text in ("rejected by rate limit", "Größe: 100 %\nof all"):
            assert failing(channel, text.encode()) == (Code.RESOURCE_EXHAUSTED, text)
        assert ask(channel) == b"a"
        with pytest.raises(RpcError) as error:
            ask(channel, method="Nothing")
        assert error.value.code is Code.UNIMPLEMENTED


def test_who_does_not_answer_in_time_is_given_up(path: Path) -> None:
    goes_on, deadlines = threading.Event(), []

    def answer(value: bytes, context: grpc.ServicerContext) -> bytes:
        if value:
            deadlines.append(context.time_remaining())
            goes_on.wait(SECONDS)
        return b"a"

    with serving(path, answer), Channel(path) as channel:
        begin = time.monotonic()
        assert failing(channel, b"wait", timeout=0.3) == (Code.DEADLINE_EXCEEDED, "Deadline Exceeded")
        assert 0.3 <= time.monotonic() - begin < SECONDS
        assert ask(channel) == b"a"
        goes_on.set()
    assert 0 < deadlines[0] <= 0.3


def test_an_answer_that_is_not_wanted_any_more_is_not_waited_for(path: Path) -> None:
    goes_on = threading.Event()

    def answer(value: bytes, context: grpc.ServicerContext) -> bytes:
        goes_on.wait(SECONDS)
        return b"a"

    asked = iter([True, True, False])
    with serving(path, answer), Channel(path) as channel, pytest.raises(RpcError) as error:
        channel.call("/a.B/Ask", BytesValue(), BytesValue, SECONDS, lambda: next(asked))
    goes_on.set()
    assert error.value.code is Code.CANCELLED


def test_an_answer_that_is_too_long_is_not_taken(path: Path) -> None:
    with serving(path, lambda value, context: b"x" * int(value)), Channel(path, 1000) as channel:
        assert failing(channel, b"2000") == (Code.RESOURCE_EXHAUSTED, "the answer has more than 1000 bytes")
        assert len(ask(channel, b"900")) == 900


def test_a_request_that_does_not_fit_is_refused_here(path: Path) -> None:
    with serving(path, lambda value, context: value), Channel(path) as channel:
        code, said = failing(channel, b"x" * 100_000)
        assert (code, said) == (Code.RESOURCE_EXHAUSTED, "a request of 100009 bytes is too long")


def test_who_is_not_there_is_named_and_who_comes_back_is_asked(path: Path) -> None:
    with Channel(path) as channel:
        assert failing(channel) == (Code.UNAVAILABLE, f"failed to connect to {path}: No such file or directory")
        with serving(path, lambda value, context: b"first"):
            assert ask(channel) == b"first"
        code, _ = failing(channel)
        assert code is Code.UNAVAILABLE
        with serving(path, lambda value, context: b"second"):
            assert ask(channel) == b"second"


FRAMES = st.builds(
    frame,
    st.integers(0, 10),
    st.integers(0, 255),
    st.sampled_from((0, 1, 3)),
    st.binary(max_size=40),
)


@given(said=st.one_of(st.binary(max_size=200), st.lists(FRAMES, max_size=8).map(b"".join)))
def test_nonsense_is_an_error(said: bytes) -> None:
    with tempfile.TemporaryDirectory(dir="/tmp") as root, socket.socket(socket.AF_UNIX) as listener:
        path = Path(root) / "s.sock"
        listener.bind(str(path))
        listener.listen()

        def answer() -> None:
            accepted, _ = listener.accept()
            with accepted:
                accepted.sendall(said)
                accepted.shutdown(socket.SHUT_WR)
                read_out(accepted)

        with ThreadPoolExecutor(1) as pool, Channel(path) as channel:
            answered = pool.submit(answer)
            with pytest.raises(RpcError):
                ask(channel)
            channel.close()
            answered.result(SECONDS)
