# SPDX-License-Identifier: Apache-2.0
"""Tests of the calls that hang: how long a worker leaves them out, and when the driver hangs rather than a GPU."""

import pytest

from kube_accel.nvml.hung_calls import HungCalls

CALL = (0, "nvmlDeviceGetTemperature")


def test_each_hang_doubles_the_pause_up_to_half_an_hour() -> None:
    """A call that hangs each time it is tried is tried less and less, but never given up."""
    calls, now, pauses = HungCalls(60), 0.0, []
    while len(pauses) < 8:
        calls.add(CALL, now)
        assert calls.avoided(now) == (CALL,)
        begin, step = now, 15
        while calls.avoided(now):
            assert not calls.any_due((CALL,), now)
            now += step
        assert calls.any_due((CALL,), now)
        pauses.append(now - begin)
    assert pauses == [60, 120, 240, 480, 960, 1800, 1800, 1800]


def test_call_that_hung_long_ago_counts_as_new() -> None:
    """The pause begins again where a call went well for as long as it had been left out."""
    calls = HungCalls(60)
    assert calls.add(CALL, 0)
    assert not calls.add(CALL, 60)
    assert not calls.avoided(60 + 2 * 120)
    assert not calls
    assert calls.add(CALL, 300)


@pytest.mark.parametrize(
    ("gpus", "hanging", "few"), [(1, 1, True), (2, 1, True), (2, 2, False), (8, 4, True), (8, 5, False)]
)
def test_more_than_half_of_the_gpus_hang_with_the_driver(gpus: int, hanging: int, few: bool) -> None:
    """Functions of one GPU count once, and calls that are tried again do not count."""
    calls = HungCalls(60)
    calls.add((7, "nvmlDeviceGetTemperature"), -60)
    for index in range(hanging - 1):
        calls.add((index, "nvmlDeviceGetTemperature"), 0)
        calls.add((index, "nvmlDeviceGetPowerUsage"), 0)
    assert calls.few_with(hanging - 1, gpus, 0) is few
