# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube_accel.metrics.claims import Claim, claims, divided
from kube_accel.metrics.tenancy import Account, Charged, Container

GIB = 1 << 30
CARD = "GPU-0"
A, B, C = (Container("team", name, "main") for name in "abc")
AMOUNTS = st.integers(-(2**60), 2**60)


def test_small_claims_are_met_and_the_rest_is_divided_evenly() -> None:
    assert divided({A: 1, B: 100, C: 4}, 9) == {A: 1, B: 4, C: 4}
    assert divided({A: 100, B: 100}, 9) == {A: 4, B: 5}
    assert divided({A: 2, B: 3}, 9) == {A: 2, B: 3}
    assert divided({}, 9) == {}


@given(st.dictionaries(st.sampled_from([A, B, C]), AMOUNTS), AMOUNTS)
def test_nobody_gets_more_than_it_claims_or_than_there_is(asked: dict[Container, int], spare: int) -> None:
    found = divided(asked, spare)
    assert found.keys() == asked.keys()
    assert all(0 <= found[each] <= max(0, asked[each]) for each in asked)
    assert sum(found.values()) == min(max(0, spare), sum(max(0, claim) for claim in asked.values()))


@pytest.mark.attack
@given(st.dictionaries(st.sampled_from([B, C]), AMOUNTS), st.integers(0, 2**60))
def test_claim_up_to_an_equal_part_is_met_in_full(others: dict[Container, int], spare: int) -> None:
    equal = spare // (len(others) + 1)
    assert divided({A: equal, **others}, spare)[A] == equal


def test_account_counts_up_to_its_limit_and_the_gpus_memory() -> None:
    now = {
        Account(A, CARD): Charged(2**53, 4 * GIB, 0),
        Account(B, CARD): Charged(2**53, 0, 0),
        Account(C, CARD): Charged(GIB, 2**60, 0),
        Account(A, "another"): Charged(GIB, GIB, 0),
    }
    found = claims({}, now, {CARD: 80 * GIB})
    assert found == {CARD: {A: Claim(4 * GIB), B: Claim(80 * GIB), C: Claim(GIB)}}


def test_gpu_time_is_what_an_account_grew_by() -> None:
    grown = [
        claims({Account(A, CARD): Charged(0, 0, before)}, {Account(A, CARD): Charged(0, 0, now)}, {CARD: GIB})[CARD][A]
        for before, now in ((10**9, 3 * 10**9), (10**9, 10**9), (10**9, 5))
    ]
    assert [claim.busy_seconds for claim in grown] == [2.0, 0.0, None], "one that is less than before began anew"
