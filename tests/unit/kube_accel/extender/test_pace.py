# SPDX-License-Identifier: Apache-2.0
"""What keeps requests from waiting for work that can wait."""

from __future__ import annotations

import gc
import threading
from collections.abc import Iterator

import pytest

from kube_accel.extender import heap
from kube_accel.extender import traffic as traffic_module
from kube_accel.extender.heap import Heap
from kube_accel.extender.traffic import Traffic


def passes(traffic: Traffic) -> threading.Event:
    """Set once a thread that lets requests pass has gone on."""
    done = threading.Event()
    threading.Thread(target=lambda: (traffic.let_pass(), done.set()), daemon=True).start()
    return done


def test_requests_go_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(traffic_module, "_COURTESY_SECONDS", 60)
    traffic = Traffic()
    assert passes(traffic).wait(10)
    with traffic.request(), traffic.request():
        waiting = passes(traffic)
        with traffic.aside():
            assert not waiting.wait(0.05), "one of two is still under way"
        with traffic.aside(), traffic.aside():
            assert waiting.wait(10), "both wait for somebody else"
        waiting = passes(traffic)
        assert not waiting.wait(0.05)
    assert waiting.wait(10)


def test_no_request_holds_others_up_for_long() -> None:
    traffic = Traffic()
    with traffic.request():
        assert passes(traffic).wait(10)


@pytest.fixture
def collector() -> Iterator[None]:
    before = gc.get_threshold()
    gc.collect()  # what others left would be missed after a collection
    yield
    gc.unfreeze()
    gc.set_threshold(*before)
    gc.enable()


@pytest.mark.usefixtures("collector")
def test_settled_heap_is_not_scanned_until_tidied() -> None:
    now = [0.0]
    found = Heap(lambda: now[0])
    assert not gc.isenabled()
    found.tidy()
    assert not gc.isenabled(), "nothing is known yet"
    found.settle()
    assert gc.isenabled()
    frozen = gc.get_freeze_count()
    assert frozen > 0
    kept = [[number] for number in range(1000)]
    found.tidy()
    assert gc.get_freeze_count() <= frozen, "not due"
    now[0] += heap._TIDY_SECONDS + 1
    found.tidy()
    assert gc.get_freeze_count() > frozen
    assert len(kept) == 1000
    found.release()
    assert gc.get_freeze_count() == 0
