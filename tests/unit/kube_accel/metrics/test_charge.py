# SPDX-License-Identifier: Apache-2.0
"""What is charged: all of it, nothing twice, and only ever more."""

from __future__ import annotations

from collections.abc import Mapping

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube_accel.metrics import families
from kube_accel.metrics.charge import Charge, Meter, Model, Payer, State, charge_families, charged
from kube_accel.metrics.exposition import Writer
from kube_accel.metrics.meterstate import decode, encode
from kube_accel.metrics.tenancy import Container, Holding
from unit.kube_accel.metrics.page import Page

GIB = 1 << 30
H100 = Model("H100", 80 * GIB)
GPUS = {"GPU-0": H100, "GPU-1": Model("T4", 16 * GIB)}
TEAM = Payer("team", "vgpu", "H100")
ALL = Payer("", "", "H100")


def holding(name: str, share: float = 0.25, uuid: str = "GPU-0", namespace: str = "team") -> Holding:
    return Holding(Container(namespace, name, "main"), uuid, share, share, int(share * GPUS[uuid].memory_bytes))


def state(at: float, *holdings: Holding, boot: str = "boot", gpus: Mapping[str, Model] = GPUS) -> State:
    held: dict[str, tuple[Holding, ...]] = {}
    for each in holdings:
        held[each.uuid] = (*held.get(each.uuid, ()), each)
    return State(boot, at, gpus, held)


def meter(*states: State, before: State | None = None, charges: Mapping[Payer, Charge] | None = None) -> Meter:
    made = Meter("vgpu", before, charges or {})
    for each in states:
        made.see(each)
    return made


def test_four_quarters_for_an_hour_are_an_hour_of_a_gpu() -> None:
    pods = [holding(name) for name in "abcd"]
    found = meter(state(0, *pods), *(state(at, *pods) for at in range(10, 3601, 10))).charges
    assert found[TEAM].gpu_seconds / 3600 == pytest.approx(1.0, abs=1e-9)
    assert found[TEAM].gpu_seconds == pytest.approx(found[ALL].gpu_seconds)
    assert found[TEAM].memory_byte_seconds == pytest.approx(3600 * 80 * GIB)
    whole = meter(state(0, holding("a", 1.0)), state(3600)).charges
    assert whole[TEAM].gpu_seconds == 3600


def test_a_pod_of_five_seconds_is_charged_five_seconds() -> None:
    assert meter(state(0), state(2.5, holding("a", 1.0)), state(7.5), state(10)).charges[TEAM].gpu_seconds == 5.0


def test_parts_that_come_to_more_than_the_gpu_are_scaled() -> None:
    """80 % of the cores and 20 % of the memory, and the other way round."""
    found = meter(state(0, holding("a", 0.8), holding("b", 0.8, namespace="other")), state(100)).charges
    assert found[TEAM].gpu_seconds == pytest.approx(50)
    assert found[Payer("other", "vgpu", "H100")].gpu_seconds == pytest.approx(50)


def test_models_are_charged_apart() -> None:
    found = meter(state(0, holding("a", 0.5), holding("b", 1.0, "GPU-1")), state(10)).charges
    assert (found[TEAM].gpu_seconds, found[Payer("team", "vgpu", "T4")].gpu_seconds) == (5, 10)
    assert found[Payer("", "", "T4")].gpu_seconds == 10


def test_unobserved_time_is_paid_by_holders_before_and_after() -> None:
    before = state(100, holding("stayed"), holding("went"))
    found = meter(state(160, holding("stayed"), holding("came")), before=before, charges={TEAM: Charge(7.0)}).charges
    assert found[TEAM].gpu_seconds == 7 + 0.25 * 60
    assert found[ALL].gpu_seconds == 60


def test_a_machine_that_was_off_is_charged_to_nobody() -> None:
    before = state(10_000, holding("a"))
    made = meter(state(5, holding("a"), boot="next"), before=before)
    assert made.charges == {}
    made.see(state(9, holding("a"), boot="next"))
    assert made.charges[TEAM].gpu_seconds == 1.0


def test_news_that_are_late_change_nothing() -> None:
    made = meter(state(10, holding("a")), state(20, holding("a")), state(15))
    assert made.charges[TEAM].gpu_seconds == 2.5
    assert made.state == state(20, holding("a"))


def test_time_busy_is_the_namespaces() -> None:
    made = meter(state(0, holding("a")))
    made.busy("GPU-0", Container("team", "a", "main"), 1.5)
    made.busy("GPU-unknown", Container("team", "a", "main"), 1.5)
    assert made.charges == {TEAM: Charge(busy_seconds=1.5)}


SHARES = st.lists(
    st.tuples(st.sampled_from("abcdef"), st.floats(0, 1), st.sampled_from(list(GPUS)), st.sampled_from(["x", "y"])),
    max_size=8,
)


@given(st.lists(st.tuples(st.floats(0.001, 1000), SHARES), min_size=1, max_size=20))
def test_what_is_charged_and_what_is_free_come_to_what_there_is(
    steps: list[tuple[float, list[tuple[str, float, str, str]]]],
) -> None:
    made, now, free = Meter("vgpu", None, {}), 0.0, 0.0
    last: State | None = None
    before: dict[Payer, float] = {}
    for seconds, shares in steps:
        current = state(now, *(holding(n, share, uuid, space) for n, share, uuid, space in shares))
        made.see(current)
        for held in current.holdings.values():
            assert sum(charged(held).values()) <= 1 + 1e-9
        totals = {key: charge.gpu_seconds for key, charge in made.charges.items()}
        assert all(totals[key] >= value for key, value in before.items())
        before, last, now = totals, current, now + seconds
        free += sum(1 - sum(charged(current.holdings.get(uuid, ())).values()) for uuid in GPUS) * seconds
    assert last is not None
    made.see(State(last.boot, now, last.gpus, last.holdings))
    paid = sum(charge.gpu_seconds for key, charge in made.charges.items() if key.namespace)
    capacity = sum(charge.gpu_seconds for key, charge in made.charges.items() if not key.namespace)
    assert capacity == pytest.approx(len(GPUS) * now)
    assert paid + free == pytest.approx(capacity, abs=1e-6)


@given(SHARES, st.floats(0, 1e9))
def test_a_state_comes_back_as_it_was_kept(shares: list[tuple[str, float, str, str]], at: float) -> None:
    kept = state(at, *(holding(n, share, uuid, space) for n, share, uuid, space in shares))
    found = decode(encode(kept))
    assert found is not None
    assert (found.boot, found.at, found.gpus) == (kept.boot, kept.at, kept.gpus)
    after = State(kept.boot, kept.at + 10, kept.gpus, kept.holdings)
    assert meter(after, before=found).charges == meter(after, before=kept).charges


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '{"version":2}', '{"version":1,"boot":"b","at":"x"}'])
def test_what_nobody_wrote_is_no_state(text: str) -> None:
    assert decode(text) is None


def test_counters_are_told_by_namespace_and_model() -> None:
    found = meter(state(0, holding("a", 0.5)), state(10)).charges
    page = Page(Writer().page(charge_families("n", found)))
    page.lint()
    assert page.value(families.NAMESPACE_GPU, namespace="team", mode="vgpu", model="H100") == 5
    assert page.value(families.NAMESPACE_MEMORY, namespace="team") == 400 * GIB
    assert page.value(families.NAMESPACE_BUSY, namespace="team") == 0
    assert page.value(families.NODE_SECONDS, model="T4") == 10
