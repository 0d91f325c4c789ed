# SPDX-License-Identifier: Apache-2.0
"""A GPU has room for a share, or not."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kube_accel.dra.portions import Portion, in_the_way

MEMORY = 80
PORTIONS = st.none() | st.builds(Portion, st.integers(1, 100), st.integers(1, MEMORY))


def test_whole_gpu_and_shares_keep_each_other_out() -> None:
    share = Portion(30, 8)
    assert in_the_way(None, [], MEMORY) == []
    assert in_the_way(None, [("a", share), ("b", share)], MEMORY) == ["a", "b"]
    assert in_the_way(share, [("a", None)], MEMORY) == ["a"]
    assert in_the_way(share, [("a", share), ("b", Portion(40, 64))], MEMORY) == []


def test_shares_that_leave_too_little_are_named() -> None:
    assert in_the_way(Portion(30, 1), [("a", Portion(71, 1))], MEMORY) == ["a"]
    assert in_the_way(Portion(1, 41), [("a", Portion(1, 20)), ("b", Portion(1, 20))], MEMORY) == ["a", "b"]


@given(st.lists(st.tuples(PORTIONS, st.booleans()), max_size=60))
def test_gpu_never_gives_more_than_it_has(steps: list[tuple[Portion | None, bool]]) -> None:
    held: list[tuple[int, Portion | None]] = []
    for number, (wanted, ends) in enumerate(steps):
        if ends and held:
            held.pop(number % len(held))
        owners = in_the_way(wanted, held, MEMORY)
        fits = wanted is not None and all(portion is not None for _, portion in held)
        shares = [portion for _, portion in held if portion is not None]
        if wanted is not None and fits:
            fits = sum(each.cores for each in shares) + wanted.cores <= 100
            fits &= sum(each.memory_bytes for each in shares) + wanted.memory_bytes <= MEMORY
        assert bool(owners) is not (fits or not held), "who fits gets it, and nobody else"
        if not owners:
            held.append((number, wanted))
        assert len(held) <= 1 or all(portion is not None for _, portion in held)
