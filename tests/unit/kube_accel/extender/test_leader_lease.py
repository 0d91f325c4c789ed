# SPDX-License-Identifier: Apache-2.0
"""Binds that wait for the Lease. What may be bound under it is in ``test_under_load``."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

from kube_accel.extender.cache import Cluster
from kube_accel.extender.leader_lease import LeaderLease
from kube_accel.extender.pods import Version
from sim.cluster.client import until
from unit.kube_accel.extender.world import Api, Extender, pod_object, share

BINDS = 8
MANY = 20 * BINDS


class Waiting:
    """A pod whose version is looked at by who waits to bind it."""

    looks = 0

    def __init__(self, cluster: Cluster, often: threading.Event) -> None:
        self._version = "1", cluster.moment()
        self._often = often

    @property
    def version(self) -> Version:
        self.looks += 1
        if self.looks > MANY:
            self._often.set()
        return self._version


def holder() -> tuple[LeaderLease, Cluster]:
    """Who holds the Lease, and has bound before."""
    extender = Extender(Api())
    extender.api.create(pod_object("p", share(10, 1)))
    extender.listen()
    lease = LeaderLease(extender.api, extender.cluster, pause=lambda: extender.listen(1))
    lease.called()
    lease.step()
    return lease, extender.cluster


def test_binds_that_wait_for_an_answer_sleep_until_it_is_there() -> None:
    lease, cluster = holder()
    often = threading.Event()
    pods = [Waiting(cluster, often) for _ in range(BINDS)]
    with ThreadPoolExecutor(BINDS) as pool:
        versions = [pool.submit(lease.wait, pod) for pod in pods]
        until(lambda: all(pod.looks for pod in pods), "all to wait")
        assert not often.wait(0.5), "they wake each other"
        lease.step()
        assert [version.result() for version in versions] == ["1"] * BINDS


def test_a_bind_that_came_too_late_for_an_answer_gets_the_next() -> None:
    lease, cluster = holder()
    stop = threading.Event()
    thread = threading.Thread(target=lease.run, args=(stop,))
    thread.start()
    try:
        for _ in range(3):
            with ThreadPoolExecutor(BINDS) as pool:
                pods = [Waiting(cluster, threading.Event()) for _ in range(BINDS)]
                assert list(pool.map(lease.wait, pods)) == ["1"] * BINDS
    finally:
        stop.set()
        thread.join()
