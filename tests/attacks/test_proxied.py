# SPDX-License-Identifier: Apache-2.0
"""A stranger at the port of ``kube-accel extender`` in the layout proxied, where nobody shows who asks."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest

from attacks.stranger import FLOODS, GOOD, MALFORMED, Memory, flooded, is_refused, limit_of, probe_through, until_closed
from bench.api_stub import shares
from kube_accel.extender.service import MAX_STRANGERS_BODY, Layout
from unit.kube_accel.extender.outside import Outside, Running, Scheduler
from waiting import wait

pytestmark = pytest.mark.attack

WHOLE_NODE = shares(800, 0)
"""Eight GPUs."""


@pytest.fixture(scope="module")
def extender(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One extender for all attacks. Whatever they do, it serves and has logged no fault in the end."""
    outside = Outside(tmp_path_factory.mktemp("proxied"), nodes=3)
    with outside.extender(layout=Layout.PROXIED) as running:
        yield running
        assert running.ready()
        assert "a request failed" not in (outside.root / "extender.log").read_text()
    outside.api.stop()


def healthy(extender: Running, seconds: float) -> bool:
    """Whether a probe of kubelet's is answered in so many seconds."""
    scheduler = Scheduler(extender.port, None, seconds)
    try:
        return scheduler.send("GET", "/healthz")[0] == 200
    finally:
        scheduler.close()


def asked(extender: Running, body: bytes) -> tuple[int, bytes]:
    """Status and text of the answer to ``predicates``."""
    scheduler = extender.scheduler()
    try:
        return scheduler.send("POST", "/scheduler/predicates", body)
    finally:
        scheduler.close()


def sent(extender: Running, item: Mapping[str, Any], names: list[str]) -> dict[str, Any]:
    """The answer to a call that names this pod and these nodes."""
    scheduler = extender.scheduler()
    try:
        return scheduler.filter(item, names)
    finally:
        scheduler.close()


def withdraw(extender: Running, *items: Mapping[str, Any]) -> None:
    """Delete pods, so that the next attack finds all GPUs free."""
    for item in items:
        extender.outside.stub.delete(item["metadata"]["name"])
    wait(lambda: extender.metric("accel_extender_reservations") == 0, "all GPUs free")


@pytest.mark.parametrize("data", [pytest.param(data, id=name) for name, data in MALFORMED.items()])
def test_a_malformed_request_ends_the_connection(extender: Running, data: bytes) -> None:
    with extender.plain() as stream:
        stream.sendall(data + GOOD)
        answer = until_closed(stream)
    assert is_refused(answer), answer


def test_a_body_that_is_too_large_is_not_read(extender: Running) -> None:
    with extender.plain() as stream:
        stream.sendall(
            b"POST /scheduler/predicates HTTP/1.1\r\nHost: a\r\nContent-Length: %d\r\n\r\n" % (MAX_STRANGERS_BODY + 1)
        )
        assert until_closed(stream).startswith(b"HTTP/1.1 413 ")


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
def test_a_page_takes_no_body(extender: Running, path: str) -> None:
    with extender.plain() as stream:
        stream.sendall(f"GET {path} HTTP/1.1\r\nHost: a\r\nContent-Length: 1\r\n\r\n".encode())
        assert until_closed(stream).startswith(b"HTTP/1.1 413 ")


def test_node_objects_are_refused(extender: Running) -> None:
    item = extender.outside.create("full", shares(10, 1))
    nodes = {"items": [{"metadata": {"name": name}} for name in extender.outside.names]}
    status, text = asked(extender, json.dumps({"Pod": item, "Nodes": nodes, "NodeNames": None}).encode())
    assert (status, b"nodeCacheCapable: true" in text) == (400, True)


def test_largest_pod_and_5000_node_names_are_taken(extender: Running) -> None:
    item = extender.outside.create("large", shares(10, 1))
    item["metadata"]["annotations"]["large"] = "x" * (3 << 19)
    names = [*extender.outside.names, *(f"ip-10-0-{number:05}.eu-central-1.compute.internal" for number in range(5000))]
    status, text = asked(extender, json.dumps({"Pod": item, "NodeNames": names}).encode())
    assert status == 200, text
    assert json.loads(text)["NodeNames"], text[:500]
    withdraw(extender, item)


@pytest.mark.parametrize("kind", FLOODS)
def test_a_flood_keeps_no_probe_out_and_stays_below_the_limit(extender: Running, kind: str) -> None:
    memory = Memory(extender.process.pid)
    memory.forget_peak()
    with flooded(kind, extender.port, secure=False) as flood:
        probe_through(flood, lambda seconds: healthy(extender, seconds))
    assert memory.peak < limit_of("scheduler", "scheduler_extender_resources") // 2, "the cluster takes the other half"
    assert memory.threads < 150


def test_gated_pods_keep_no_gpus_from_others(extender: Running) -> None:
    outside, gates = extender.outside, [{"name": "example.com/never"}]
    gated = [outside.create(f"gated-{number}", WHOLE_NODE, schedulingGates=gates) for number in range(3)]
    victim = outside.create("beside-gated", shares(30, 8))
    for item in gated:
        claimed = json.loads(json.dumps(item))
        del claimed["spec"]["schedulingGates"]  # what a call says of a pod counts for nothing
        for said in (item, claimed):
            assert "not known to wait" in sent(extender, said, outside.names)["Error"]
    assert sent(extender, victim, outside.names)["NodeNames"]
    withdraw(extender, *gated, victim)


def test_calls_about_a_victim_do_not_drop_what_is_kept_for_it(extender: Running) -> None:
    outside = extender.outside
    victim, rival = outside.create("victim", WHOLE_NODE), outside.create("rival", WHOLE_NODE)
    (node,) = sent(extender, victim, outside.names)["NodeNames"]
    for names in ([], [name for name in outside.names if name != node], ["no-such-node"]):
        assert "are reserved for" in sent(extender, victim, names)["Error"]
        assert sent(extender, rival, [node])["NodeNames"] == []
    assert sent(extender, victim, outside.names)["NodeNames"] == [node]
    withdraw(extender, victim, rival)


@pytest.mark.full
def test_asking_again_and_again_does_not_keep_gpus_for_ever(extender: Running) -> None:
    """A minute and some seconds after the first call a neighbour has room, though the others never stop asking."""
    outside = extender.outside
    greedy = [outside.create(f"greedy-{number}", WHOLE_NODE) for number in range(outside.nodes)]
    neighbour = outside.create("neighbour", shares(30, 8))

    def ask() -> list[str]:
        for item in greedy:
            sent(extender, item, outside.names)
        return list(sent(extender, neighbour, outside.names)["NodeNames"] or ())

    assert ask() == []
    wait(ask, "room for the neighbour", seconds=90)
    withdraw(extender, *greedy, neighbour)


def test_many_large_bodies_at_once_stay_below_the_limit(extender: Running) -> None:
    """Just below what is taken, more at once than there is room for, of what takes the most memory."""
    body = b'{"Pod":{"x":[' + b'"xy",' * 199_000 + b"1]}," + b'"NodeNames":[' + b'"' + b"n" * (3 << 20) + b'"]}'
    assert len(body) < MAX_STRANGERS_BODY
    memory = Memory(extender.process.pid)
    memory.forget_peak()

    def send(_: int) -> int:
        try:
            return asked(extender, body)[0]
        except OSError:
            return 0  # ended to make room

    with ThreadPoolExecutor(8) as pool:
        found = list(pool.map(send, range(8)))
    assert set(found) <= {0, 200, 400, 503}
    assert {200, 400} & set(found), "some were read"
    assert healthy(extender, 10)
    assert memory.peak < limit_of("scheduler", "scheduler_extender_resources") // 2


def test_kube_scheduler_is_served_while_bodies_are_announced(extender: Running) -> None:
    """Who needs little is not ended for those who want much."""
    item = extender.outside.create("served", shares(10, 1))
    call = json.dumps({"Pod": item, "NodeNames": extender.outside.names}).encode()
    with flooded("announced bodies", extender.port, secure=False) as flood:
        answers: list[Any] = []
        while flood.poll() is None:
            try:
                answers.append(json.loads(asked(extender, call)[1])["NodeNames"])
            except OSError:
                answers.append(None)
    assert answers.count(None) <= len(answers) // 4, answers
    withdraw(extender, item)
