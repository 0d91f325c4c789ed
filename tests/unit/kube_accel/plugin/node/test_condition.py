# SPDX-License-Identifier: Apache-2.0
"""What a cluster is reported of a node's GPUs, and how often."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube_accel.model import DriverState, GpuHealth, Health, Snapshot, UnreadableGpu
from kube_accel.plugin.node.condition import News, NodeCondition, condition, news
from unit.kube_accel.plugin.fakes import HEALTHY, LOST, STARTING, UNAVAILABLE, UNKNOWN, ready, uuid

SILENT = GpuHealth(Health.HEALTHY, faults=("nvmlX: odd; reset it",))
ADVISED = GpuHealth(Health.HEALTHY, advice="reset it")
FIRST, SECOND = f"GPU 0 ({uuid(0)})", f"GPU 1 ({uuid(1)})"
WEDGED = replace(ready(2, {0: UNKNOWN, 1: LOST}), driver_state=DriverState.WEDGED, detail="it hangs")
QUIESCED = replace(ready(2, {0: LOST, 1: LOST}), driver_state=DriverState.QUIESCED, detail="let go")


@pytest.mark.parametrize(
    ("snapshot", "expected"),
    [
        (STARTING, None),
        (UNAVAILABLE, NodeCondition("Unknown", "DriverNotAnswering", "no driver is loaded")),
        (WEDGED, NodeCondition("Unknown", "DriverNotAnswering", "it hangs")),
        (QUIESCED, NodeCondition("Unknown", "DriverReleased", "let go")),
        (ready(2), NodeCondition("True", "GpusHealthy", "every GPU can be allocated")),
        (ready(2, {1: SILENT}), NodeCondition("True", "GpusHealthy", f"{SECOND}: nvmlX: odd; reset it")),
        (ready(2, {1: ADVISED}), NodeCondition("True", "GpusHealthy", f"{SECOND}: reset it")),
        (ready(2, {1: LOST}), NodeCondition("False", "GpuUnhealthy", f"{SECOND}: the GPU is lost")),
        (
            ready(2, {0: ADVISED, 1: LOST}),
            NodeCondition("False", "GpuUnhealthy", f"{SECOND}: the GPU is lost; {FIRST}: reset it"),
        ),
    ],
)
def test_condition(snapshot: Snapshot, expected: NodeCondition | None) -> None:
    assert condition(snapshot) == expected


def test_a_gpu_that_was_never_readable_counts() -> None:
    snapshot = ready(1)
    assert snapshot.inventory is not None
    dark = replace(snapshot, inventory=replace(snapshot.inventory, unreadable=(UnreadableGpu(1, None, "is lost"),)))
    assert condition(dark) == NodeCondition("False", "GpuUnhealthy", "GPU 1: is lost")
    (reported,) = news(dark, {})
    assert reported == News("Warning", "GpuUnhealthy", "GPU 1 is not allocated: is lost", {"index:1": "GPU 1"})


def test_a_gpu_is_known_with_and_without_its_uuid() -> None:
    whole, part = ready(2, {1: LOST}), ready(1)
    assert part.inventory is not None
    dark = replace(part, inventory=replace(part.inventory, unreadable=(UnreadableGpu(1, None, "is lost"),)))
    for first, second in ((whole, dark), (dark, whole)):
        reasons, reported = tell(first, {})
        assert reasons == ["GpuUnhealthy"]
        assert tell(second, reported) == ([], reported)
        assert tell(ready(2), reported) == (["GpuHealthy"], {})


def tell(snapshot: Snapshot, reported: dict[str, str]) -> tuple[list[str], dict[str, str]]:
    """Reasons and what is reported by then."""
    reasons = []
    while (latest := next(news(snapshot, reported), None)) is not None:
        reasons.append(latest.reason)
        reported = dict(latest.bad)
    return reasons, reported


def test_each_change_is_told_once() -> None:
    reported: dict[str, str] = {}
    for snapshot, expected in (
        (STARTING, []),
        (ready(2), []),
        (ready(2, {1: LOST}), ["GpuUnhealthy"]),
        (ready(2, {1: replace(LOST, reason="something else")}), []),
        (WEDGED, ["GpuDriverNotAnswering"]),
        (UNAVAILABLE, []),
        (QUIESCED, []),
        (ready(2, {0: UNKNOWN, 1: LOST}), ["GpuDriverAnswers"]),
        (ready(2, {0: LOST}), ["GpuUnhealthy", "GpuHealthy"]),
        (ready(2), ["GpuHealthy"]),
    ):
        reasons, reported = tell(snapshot, reported)
        assert reasons == expected, snapshot
    assert reported == {}


states = st.sampled_from([DriverState.READY, DriverState.READY, DriverState.WEDGED, DriverState.QUIESCED])
healths = st.lists(st.sampled_from([HEALTHY, LOST, UNKNOWN]), min_size=3, max_size=3)


@given(st.lists(st.tuples(states, healths), max_size=20))
def test_events_of_a_gpu_alternate(history: list[tuple[DriverState, list[GpuHealth]]]) -> None:
    reported: dict[str, str] = {}
    said: dict[str, list[str]] = {}
    for state, health in history:
        snapshot = replace(ready(3, dict(enumerate(health))), driver_state=state, detail="why")
        while (latest := next(news(snapshot, reported), None)) is not None:
            reported = dict(latest.bad)
            said.setdefault(latest.message.split(" is ")[0], []).append(latest.reason)
        if state is DriverState.READY:
            bad = {uuid(index) for index, found in enumerate(health) if found is LOST}
            good = {uuid(index) for index, found in enumerate(health) if found is HEALTHY}
            assert bad <= reported.keys()
            assert not good & reported.keys()
    for name, reasons in said.items():
        if name.startswith("GPU"):
            assert reasons[::2] == ["GpuUnhealthy"] * len(reasons[::2])
            assert reasons[1::2] == ["GpuHealthy"] * len(reasons[1::2])
