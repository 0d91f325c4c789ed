# SPDX-License-Identifier: Apache-2.0
"""When a GPU becomes unhealthy and when it is healthy again."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube_accel.model import GpuHealth, Health
from kube_accel.nvml.health import Condition, Observation, Poll, Reset, Rules, Silence, Xid, observe
from kube_accel.nvml.switches import Switches

RULES = Rules(recovery_polls=3, incident_seconds=100.0)
GOOD = Poll()
LOST = Poll("GPU is lost", lost=True)
HEALTHY = GpuHealth(Health.HEALTHY)
SINCE_LOADED = "uncorrectable memory errors since the driver was loaded"


def after(*observations: Observation, seconds_between: float = 1.0, condition: Condition | None = None) -> Condition:
    condition = condition or Condition()
    for number, observation in enumerate(observations, start=1):
        condition = observe(condition, observation, 1000.0 + number * seconds_between, RULES)
    return condition


def unhealthy(reason: str) -> GpuHealth:
    return GpuHealth(Health.UNHEALTHY, reason)


@pytest.mark.parametrize(
    ("observations", "health"),
    [
        pytest.param([GOOD], HEALTHY, id="good from the start"),
        pytest.param([LOST], unhealthy("GPU is lost"), id="lost"),
        pytest.param([LOST, GOOD, GOOD], unhealthy("GPU is lost"), id="two good polls are not enough"),
        pytest.param([LOST, GOOD, GOOD, GOOD], HEALTHY, id="three are"),
        pytest.param([LOST, GOOD, GOOD, LOST, GOOD], unhealthy("GPU is lost"), id="a flapping GPU stays out"),
        pytest.param([LOST, GOOD, GOOD, Silence(), GOOD], unhealthy("GPU is lost"), id="silence is not a good poll"),
        pytest.param([Silence()], HEALTHY, id="silence is not a fault of the GPU"),
        pytest.param([Xid(31)], HEALTHY, id="a program's XID"),
        pytest.param([Xid(48)], unhealthy("XID 48 (double-bit ECC error)"), id="critical XID"),
        pytest.param([Xid(999)], unhealthy("XID 999"), id="XID without a name is critical"),
        pytest.param([Xid(48), *[GOOD] * 10], unhealthy("XID 48 (double-bit ECC error)"), id="good polls alone"),
        pytest.param([Xid(48), *[GOOD] * 101], HEALTHY, id="until it has aged"),
        pytest.param([Xid(48), *[GOOD] * 60, Xid(48), *[GOOD] * 60], unhealthy("XID 48 (double-bit ECC error)")),
        pytest.param(
            [Xid(999), Xid(48), Xid(999), LOST],
            unhealthy("XID 48 (double-bit ECC error); XID 999; GPU is lost"),
            id="every reason once",
        ),
        pytest.param([Xid(48), LOST, GOOD, GOOD, GOOD], HEALTHY, id="lost after the XID: only a reset brings it back"),
        pytest.param([LOST, Xid(48), GOOD, GOOD, GOOD], HEALTHY, id="and after an XID that came while it was lost"),
        pytest.param([LOST, GOOD, Xid(48), *[GOOD] * 9], unhealthy("XID 48 (double-bit ECC error); GPU is lost")),
        pytest.param([Xid(48), Reset(), GOOD, GOOD, GOOD], HEALTHY, id="an administrator had it"),
        pytest.param([Xid(48), Reset(), Xid(48), GOOD, GOOD, GOOD], unhealthy("XID 48 (double-bit ECC error)")),
        pytest.param([Poll(ecc=0), Poll(ecc=0)], HEALTHY, id="no memory errors"),
        pytest.param([Poll(ecc=1)], unhealthy(SINCE_LOADED), id="memory errors before the first poll"),
        pytest.param([Poll(ecc=1), *[Poll(ecc=1)] * 101], HEALTHY, id="until they have aged"),
        pytest.param([Poll(ecc=None), Poll(ecc=1)], unhealthy(SINCE_LOADED), id="memory errors at the first reading"),
        pytest.param([Poll(ecc=0), Poll(ecc=1)], unhealthy("new uncorrectable memory errors"), id="new memory errors"),
        pytest.param([Poll(ecc=0), Poll(ecc=None), Poll(ecc=0)], HEALTHY, id="errors unread for once"),
        pytest.param([Poll(ecc=0), Poll(ecc=None), Poll(ecc=8)], unhealthy("new uncorrectable memory errors")),
    ],
)
def test_sequence(observations: Sequence[Observation], health: GpuHealth) -> None:
    assert after(*observations).health == health


@pytest.mark.parametrize(
    ("observation", "health"),
    [
        pytest.param(Poll("the driver asks for a GPU reset"), Health.HEALTHY, id="the driver's word"),
        pytest.param(Poll(ecc=8), Health.HEALTHY, id="memory errors"),
        pytest.param(Xid(48), Health.HEALTHY, id="XID"),
        pytest.param(Poll("GPU is lost", lost=True, answered=False), Health.UNHEALTHY, id="no answer"),
        pytest.param(Xid(95), Health.UNHEALTHY, id="XID that was enabled"),
    ],
)
def test_with_checks_switched_off(observation: Observation, health: Health) -> None:
    rules = replace(RULES, switches=Switches(all_xids=False, counted=frozenset({95}), driver_word=False))
    assert observe(Condition(ecc=7), observation, 1000.0, rules).health.health is health


@pytest.mark.parametrize("known", [7, 8])
def test_memory_errors_from_before_a_restart_do_not_count_again(known: int) -> None:
    assert after(Poll(ecc=7), condition=Condition(ecc=known)).health == HEALTHY


def test_advice_is_given_while_the_gpu_is_handed_out() -> None:
    advised = after(Poll(advice="reset it"))
    assert advised.health == GpuHealth(Health.HEALTHY, advice="reset it")
    assert after(GOOD, condition=advised).health == HEALTHY
    assert after(Xid(48), Reset(), *[Poll(advice="reset it")] * 3).health == GpuHealth(
        Health.HEALTHY, advice="reset it"
    )


def test_bad_poll_restarts_the_wait_after_an_xid() -> None:
    unknown = Poll("NVML: Unknown Error (999)")
    assert after(Xid(48), *[GOOD] * 90, unknown, *[GOOD] * 99).health.health is Health.UNHEALTHY
    assert after(Xid(48), *[GOOD] * 90, unknown, *[GOOD] * 100).health == HEALTHY


polls = st.builds(Poll, st.sampled_from(["", "", "complaint"]), st.booleans(), st.none() | st.integers(0, 3))
observations = polls | st.builds(Xid, st.integers(1, 200)) | st.builds(Silence) | st.builds(Reset)
histories = st.lists(st.tuples(st.floats(0.0, 200.0), observations), max_size=40)


def replay(history: Sequence[tuple[float, Observation]]) -> tuple[float, list[Condition]]:
    now, conditions = 0.0, [Condition()]
    for seconds, observation in history:
        now += seconds
        conditions.append(observe(conditions[-1], observation, now, RULES))
    return now, conditions


@given(histories)
def test_only_good_polls_in_a_row_make_a_gpu_healthy_again(history: list[tuple[float, Observation]]) -> None:
    _, conditions = replay(history)
    for step, (before, now) in enumerate(pairwise(conditions)):
        if before.health.health is Health.UNHEALTHY and now.health.health is Health.HEALTHY:
            last = [observation for _, observation in history[step + 1 - RULES.recovery_polls : step + 1]]
            good = [
                observation
                for observation in last
                if (isinstance(observation, Poll) and not observation.complaint)
                or (isinstance(observation, Xid) and not RULES.switches.counts(observation.number))
            ]
            assert len(good) == len(last)


@given(histories)
def test_no_history_keeps_a_good_gpu_out_for_ever(history: list[tuple[float, Observation]]) -> None:
    now, conditions = replay(history)
    condition = conditions[-1]
    for number in range(RULES.recovery_polls):
        condition = observe(condition, GOOD, now + RULES.incident_seconds + number, RULES)
    assert condition.health == HEALTHY


@given(histories, st.booleans(), st.integers(200, 300))
def test_bad_news_counts_at_once(history: list[tuple[float, Observation]], lost: bool, xid: int) -> None:
    now, conditions = replay(history)
    assert observe(conditions[-1], Poll("complaint", lost), now, RULES).health.reason.endswith("complaint")
    assert f"XID {xid}" in observe(conditions[-1], Xid(xid), now, RULES).health.reason
