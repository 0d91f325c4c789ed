# SPDX-License-Identifier: Apache-2.0
"""The shipped extender from outside: load, failures, leaders that take turns, quotas, certificates, hostile input."""

from __future__ import annotations

import json
import os
import random
import re
import signal
import socket
import ssl
import subprocess
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
import trustme

from bench.api_stub import node_name, shares
from unit.kube_accel.extender.outside import Outside, Running, Scheduler
from waiting import wait

pytestmark = pytest.mark.ci
HALF = shares(50, 80)
SLOTS = 16


@pytest.fixture
def outside(tmp_path: Path) -> Iterator[Outside]:
    """One node of eight GPUs: sixteen halves."""
    found = Outside(tmp_path, nodes=1)
    yield found
    found.api.stop()


def turns(scheduler: Scheduler, outside: Outside, binds: ThreadPoolExecutor, extender: Running) -> None:
    """Every waiting pod once, as kube-scheduler does it: nodes are chosen one after the other, binds go on beside."""

    def bind(item: dict[str, Any], node: str) -> None:
        mine = extender.scheduler()
        mine.bind(item, node)
        mine.close()

    under_way = []
    for item in outside.waiting():
        node = scheduler.best(item, outside.names)
        if node:
            under_way.append(binds.submit(bind, item, node))
    for one in under_way:
        one.result()


def test_fifty_pods_for_sixteen_slots_with_binds_that_fail(outside: Outside) -> None:
    outside.stub.fail = 0.2
    with outside.extender() as extender, ThreadPoolExecutor(8) as binds:
        for number in range(50):
            outside.create(f"p{number}", HALF)
        wait(lambda: extender.metric("accel_extender_pods") == 50, "50 pods known")
        assert extender.metric('accel_pending_gpu_pods{namespace="team",mode="vgpu"}') == 50
        scheduler = extender.scheduler()
        while True:
            turns(scheduler, outside, binds, extender)
            outside.never_twice()
            if len(outside.bound()) < SLOTS:
                continue
            if extender.metric('accel_extender_binds_total{outcome="failed"}') > 5:
                break
            for name in sorted(outside.bound())[:8]:
                outside.stub.delete(name)
                outside.create(f"{name}-again", HALF)
        assert len(outside.bound()) == SLOTS
        wait(lambda: extender.metric("accel_extender_reservations") == 0, "no reservation leaks")
        waiting = len(outside.waiting())
        assert extender.metric('accel_pending_gpu_pods{namespace="team",mode="vgpu"}') == waiting
        refused = scheduler.filter(outside.waiting()[0], outside.names)["FailedNodes"]
        assert "needs 50 percent and 20 GiB on one GPU; best has 0 percent" in refused[node_name(0)]
        outside.stub.delete(sorted(outside.bound())[0])
        while len(outside.bound()) < SLOTS:
            turns(scheduler, outside, binds, extender)
        outside.never_twice()


LEADER = "unit.kube_accel.extender.leader"


def test_a_pod_that_asks_for_none_is_bound(outside: Outside) -> None:
    with outside.extender() as extender:
        item = outside.create("none", {"tencent.com/vcuda-core": "0", "tencent.com/vcuda-memory": "0"})
        assert extender.scheduler().schedule(item, outside.names) == ""
        assert outside.bound() == {"none": node_name(0)}
        assert extender.metric('accel_extender_binds_total{outcome="bound"}') == 1
        assert extender.metric("accel_extender_pods") == 0


def test_two_schedulers_take_turns_each_with_its_own_extender(outside: Outside, tmp_path: Path) -> None:
    """Processes, all of them. Leaders die in the middle of binds; pods come and go meanwhile."""
    outside.stub.fail = 0.1
    lease = tmp_path / "lease"
    lease.touch()
    rng = random.Random(0)

    def leader(port: int) -> subprocess.Popen[bytes]:
        flags = [f"--port={port}", f"--api={outside.api.server_port}", f"--root={tmp_path}", f"--lease={lease}"]
        with (tmp_path / "leader.log").open("ab") as log:
            return subprocess.Popen([sys.executable, "-m", LEADER, *flags, "--nodes=1"], stdout=log, stderr=log)

    with outside.extender(name="one") as one, outside.extender(name="two") as two:
        for number in range(40):
            outside.create(f"p{number}", HALF)
        schedulers = {port: leader(port) for port in (one.port, two.port)}
        try:
            terms: list[int] = []
            while len(terms) < 3:
                port = wait(lambda: int((lease.read_text().split() or ["0"])[-1]), "a leader")
                if not terms or terms[-1] != port:
                    terms.append(port)
                    # It dies with binds under way.
                    before = len(outside.stub.bind_seconds)
                    for name in rng.sample(sorted(outside.bound()), min(6, len(outside.bound()))):
                        outside.stub.delete(name)
                        outside.create(f"{name}-{len(terms)}", HALF)
                    wait(lambda before=before: len(outside.stub.bind_seconds) > before, "the leader binds")
                    schedulers[port].send_signal(signal.SIGKILL)
                    schedulers[port].wait()
                    outside.never_twice()
                    lease.write_text("")
                    schedulers[port] = leader(port)
            assert len(set(terms)) == 2, terms
            wait(lambda: len(outside.bound()) == SLOTS, "sixteen pods bound")
            outside.never_twice()
            assert [scheduler.poll() for scheduler in schedulers.values()] == [None, None], (
                tmp_path / "leader.log"
            ).read_text()[-2000:]
        finally:
            for scheduler in schedulers.values():
                scheduler.kill()
                scheduler.wait()
        for extender in (one, two):
            wait(lambda extender=extender: extender.metric("accel_extender_reservations") == 0, "no leak")
            full = extender.scheduler().filter(outside.create(f"late-{extender.port}", HALF), outside.names)
            assert full["NodeNames"] == []


def test_quota_with_a_typo_changes_nothing_and_sends_an_event(outside: Outside) -> None:
    def quota(cores: int) -> str:
        return json.dumps({"version": 1, "namespaces": {"team": {"limits": [{"cores": cores}]}}})

    def reason(scheduler: Scheduler, item: dict[str, Any]) -> str:
        answer = scheduler.filter(item, outside.names)
        return " ".join([*answer["FailedNodes"].values(), *answer["FailedAndUnresolvableNodes"].values()])

    outside.stub.set_quota(quota(50))
    with outside.extender() as extender:
        scheduler = extender.scheduler()
        first, second = (outside.create(name, HALF) for name in ("first", "second"))
        wait(lambda: extender.metric("accel_extender_pods") == 2, "both pods known")
        assert scheduler.schedule(first, outside.names) == ""
        assert "quota of namespace team" in reason(scheduler, second)
        outside.stub.set_quota("version: 1\nnamespaces: {team: {limits: [{core: 100}]}}\n")
        event = wait(lambda: outside.stub.events, "an event")[0]
        assert (event["reason"], event["involvedObject"]["name"]) == ("QuotaUnreadable", "kube-accel-quota")
        assert "line 2" in event["message"]
        assert "did you mean cores?" in event["message"]
        assert "quota of namespace team" in reason(scheduler, second), "the last good one stays"
        outside.stub.set_quota(quota(100))
        wait(lambda: second["metadata"]["annotations"].get("kube-accel.io/quota-changed"), "the pod is woken")
        assert scheduler.schedule(second, outside.names) == ""
        assert len(outside.stub.events) == 1


def test_pod_tried_too_early_is_tried_again(outside: Outside) -> None:
    with outside.extender() as extender:
        first, second = (outside.create(name, shares(800, 0)) for name in ("first", "second"))
        wait(lambda: extender.metric("accel_extender_pods") == 2, "both pods known")
        scheduler = extender.scheduler()
        assert scheduler.schedule(first, outside.names) == ""
        assert scheduler.filter(second, outside.names)["NodeNames"] == []
        outside.stub.delete("first")
        wait(lambda: second["metadata"]["annotations"].get("kube-accel.io/room-found"), "the pod is woken")
        assert scheduler.schedule(second, outside.names) == ""


def test_the_api_server_goes_and_comes_back(outside: Outside) -> None:
    with outside.extender() as extender:
        scheduler = extender.scheduler()
        first, second = (outside.create(name, HALF) for name in ("first", "second"))
        wait(lambda: extender.metric("accel_extender_pods") == 2, "both pods known")
        assert scheduler.schedule(first, outside.names) == ""
        port = outside.api.server_port
        outside.api.stop()
        wait(lambda: extender.metric('accel_extender_watch_up{kind="pods"}') == 0, "it notices")
        assert scheduler.filter(second, outside.names)["NodeNames"] == outside.names
        assert "not reached" in scheduler.bind(second, node_name(0))
        plain = {"metadata": {"name": "plain", "namespace": "team", "uid": "u"}, "spec": {"containers": []}}
        assert scheduler.filter(plain, ["elsewhere"])["NodeNames"] == ["elsewhere"]
        third = outside.create("third", HALF)
        outside.serve(port)
        wait(lambda: extender.metric("accel_extender_pods") == 3, "it has caught up")
        for item in (second, third):
            wait(lambda item=item: scheduler.schedule(item, outside.names) == "", "bound")
        wait(lambda: extender.metric("accel_extender_reservations") == 0, "no reservation leaks")
        outside.never_twice()


def test_extender_killed_while_binding_goes_on(outside: Outside) -> None:
    for number in range(30):
        outside.create(f"p{number}", HALF)
    with outside.extender(dies=True) as extender:
        port = extender.port
        pool = ThreadPoolExecutor(8)
        try:
            names = outside.names
            for item in outside.waiting():
                pool.submit(lambda item=item: extender.scheduler().schedule(item, names))
            wait(lambda: len(outside.bound()) >= 4, "some are bound")
            os.kill(extender.process.pid, signal.SIGKILL)
            extender.process.wait()
        finally:
            pool.shutdown(cancel_futures=True)
        with outside.extender(port, "successor") as successor:
            scheduler = successor.scheduler()
            for item in outside.waiting():
                scheduler.schedule(item, outside.names)
            assert len(outside.bound()) == SLOTS
            outside.never_twice()


def replace_file(path: Path, text: bytes) -> None:
    """At once, as kubelet and certificate tools do it."""
    fresh = path.with_suffix(".new")
    fresh.write_bytes(text)
    fresh.rename(path)


def test_renewed_certificates_are_used_without_a_restart(outside: Outside) -> None:
    root, successor = outside.root, trustme.CA()
    with outside.extender() as extender:
        kept = extender.scheduler()
        assert kept.send("POST", "/scheduler/bind", "{}")[0] == 400
        outside.certify(successor, "next-server", "127.0.0.1")
        outside.certify(successor, "next-client", "scheduler")
        successor.cert_pem.write_to_path(root / "next-ca.crt")

        def works(certificate: str) -> bool:
            scheduler = extender.scheduler(certificate, "both.crt")
            try:
                return scheduler.send("POST", "/scheduler/bind", "{}")[0] == 400
            except OSError:
                return False
            finally:
                scheduler.close()

        (root / "both.crt").write_bytes((root / "ca.crt").read_bytes() + (root / "next-ca.crt").read_bytes())
        assert works("client")
        assert not works("next-client")
        replace_file(root / "server.pem", b"not a certificate")
        wait(lambda: "certificates are not renewed" in (root / "extender.log").read_text(), "it says so")
        assert works("client"), "what it has stays in use"
        replace_file(root / "server.pem", (root / "next-server.pem").read_bytes())
        replace_file(root / "ca.crt", (root / "next-ca.crt").read_bytes())
        wait(lambda: works("next-client"), "the next CA's client is known")
        assert not works("client"), "the CA before is trusted no more"
        assert kept.send("POST", "/scheduler/bind", "{}")[0] == 400, "a connection that was open goes on"
        extender.scheduler("", "next-ca.crt").send("GET", "/healthz")


SHARE = {"tencent.com/vcuda-core": "10", "tencent.com/vcuda-memory": "1"}


def asking(limits: object, annotations: object = None) -> bytes:
    container = {"name": "c", "resources": {"limits": limits}}
    metadata = {"uid": "u", "namespace": "n", "name": "p", "annotations": annotations}
    pod = {"metadata": metadata, "spec": {"containers": [None, 5, container]}}
    return json.dumps({"Pod": pod, "NodeNames": ["a"]}).encode()


HOSTILE = {
    "nested deeply": b"[" * 200_000,
    "nested objects": b'{"Pod": ' + b'{"a":' * 50_000 + b"1" + b"}" * 50_001,
    "not UTF-8": b"\xff\xfe\x00",
    "nothing": b"",
    "not numbers": b'{"Pod": NaN, "NodeNames": [Infinity]}',
    "a pod that is none": b'{"pod": {"metadata": [], "spec": 1}, "nodenames": ["a"]}',
    "wrong types": b'{"POD": {"metadata": {"uid": 1}, "spec": {"containers": "x"}}, "NODENAMES": []}',
    "long names": json.dumps({"Pod": {}, "NodeNames": ["x" * 300] * 10_000}).encode(),
    "a path": json.dumps({"PodName": "../../x", "PodNamespace": "..", "PodUID": "", "Node": "n" * 9999}).encode(),
    "victims that are none": b'{"Pod": {}, "NodeNameToVictims": {"a": {"Pods": [1]}}}',
    "containers that are none": asking("x"),
    "a huge annotation": asking(SHARE, {"kube-accel.io/use-gpu-model": "x," * 100_000}),
    "a huge assignment": asking(SHARE, {"kube-accel.io/assignment": "[" * 200_000}),
    "annotations that are none": asking(SHARE, [1]),
    "a huge number": asking({**SHARE, "tencent.com/vcuda-core": "9" * 5000}),
    "a negative number": asking({**SHARE, "tencent.com/vcuda-core": "-10"}),
}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    """One extender for all that must not harm it."""
    outside = Outside(tmp_path_factory.mktemp("shared"), nodes=2)
    with outside.extender() as extender:
        yield extender
        assert "a request failed" not in (outside.root / "extender.log").read_text()
    outside.api.stop()


def works(extender: Running) -> None:
    """A request as usual is answered as usual, now."""
    item = {"metadata": {"name": "p", "namespace": "team", "uid": "u"}, "spec": {"containers": [
        {"name": "main", "resources": {"limits": HALF}}]}}  # fmt: skip
    scheduler = extender.scheduler()
    assert scheduler.filter(item, extender.outside.names)["NodeNames"] == extender.outside.names
    scheduler.close()


@pytest.mark.attack
@pytest.mark.parametrize("body", [pytest.param(body, id=name) for name, body in HOSTILE.items()])
@pytest.mark.parametrize("verb", ["predicates", "priorities", "preemption", "bind"])
def test_hostile_bodies_are_answered_and_harm_nothing(shared: Running, verb: str, body: bytes) -> None:
    scheduler = shared.scheduler()
    assert scheduler.send("POST", f"/scheduler/{verb}", body)[0] in (200, 400)
    scheduler.close()
    works(shared)


@pytest.mark.attack
@pytest.mark.parametrize("verb", ["predicates", "priorities", "preemption", "bind"])
def test_without_a_certificate_nothing_is_answered(shared: Running, verb: str) -> None:
    scheduler = shared.scheduler("")
    status, body = scheduler.send("POST", f"/scheduler/{verb}", "{}")
    assert (status, b"client certificate" in body) == (403, True)
    scheduler.close()
    with secured(shared, "") as stream:
        stream.sendall(b"POST /scheduler/%s HTTP/1.1\r\nHost: a\r\nContent-Length: 2000000\r\n\r\n" % verb.encode())
        assert until_closed(stream).startswith(b"HTTP/1.1 403 "), "before any of it is read"


def secured(extender: Running, certificate: str = "client") -> ssl.SSLSocket:
    return extender.outside.client(certificate).wrap_socket(extender.plain(), server_hostname="127.0.0.1")


def until_closed(stream: socket.socket) -> bytes:
    found = b""
    try:
        while data := stream.recv(1 << 16):
            found += data
    except (ConnectionError, ssl.SSLError):
        pass
    return found


@pytest.mark.parametrize(
    ("data", "answers"),
    [
        pytest.param(
            b"GET /healthz HTTP/1.1\r\nHost: a\r\n\r\n" * 50 + b"\x00\r\n\r\n", [200] * 50 + [400], id="garbage"
        ),
        pytest.param(
            b"POST /scheduler/bind HTTP/1.1\r\nHost: a\r\nContent-Length: 2\r\n\r\n{}GET /healthz HTTP/1.0\r\n\r\n",
            [400, 200],
            id="a body and the next request",
        ),
        pytest.param(
            b"POST / HTTP/1.1\r\nHost:\r\nContent-Length: 2\r\ncontent-length: 40\r\n\r\n{}GET / HTTP/1.0\r\n\r\n",
            [400],
            id="two lengths",
        ),
        pytest.param(b"\r\n\r\n\r\n\r\n", [400], id="empty lines"),
    ],
)
def test_pipelined_requests_are_answered_until_one_is_invalid(shared: Running, data: bytes, answers: list[int]) -> None:
    with secured(shared) as stream:
        stream.sendall(data)
        found = until_closed(stream)
    assert [int(status) for status in re.findall(rb"HTTP/1\.1 ([0-9]+)", found)] == answers
    works(shared)


@pytest.mark.attack
def test_slow_clients_keep_nobody_waiting(shared: Running) -> None:
    """Strangers that say a byte and no more, with TLS and without; a known client that leaves in the middle."""
    slow: list[socket.socket] = []
    for number in range(100):
        stream = shared.plain()
        slow.append(stream)
        if number % 2:
            stream.sendall(b"\x16\x03\x01")
    stream = secured(shared)
    stream.sendall(b"POST /scheduler/predicates HTTP/1.1\r\nHost: a\r\nContent-Length: 1000000\r\n\r\n{")
    works(shared)
    stream.close()
    works(shared)
    for stream in slow:
        stream.close()
