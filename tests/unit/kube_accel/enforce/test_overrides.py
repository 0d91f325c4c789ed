# SPDX-License-Identifier: Apache-2.0
from collections.abc import Iterable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube_accel.enforce.overrides import Override, Settled, Tenant, parse, settle
from kube_accel.enforce.policy import Limit

GIB = 1 << 30
CARD, OTHER = "GPU-0", "GPU-1"
UID = "3f2a7c1e-0b6d-4a55-9f10-6a1c2b3d4e5f"


def tenant(name: str, gib: int, cores: int, card: str = CARD, uid: str = "") -> Tenant:
    return Tenant(f"key-{name}", "team", name, "main", uid, Limit(card, gib * GIB, cores))


def settled(overrides: Iterable[Override], *tenants: Tenant, cores_limited: bool = True) -> Settled:
    return settle(overrides, tenants, {CARD: 80 * GIB, OTHER: 80 * GIB}, cores_limited)


def test_an_entry_names_a_container_or_a_pod() -> None:
    text = '{"memory": "6Gi", "cores": 20, "softCores": 60}'
    assert parse("team.web-1.example.main", text) == Override("team.web-1.example.main", 6 * GIB, 20, 60)
    assert parse(UID, '{"cores": 5}') == Override(UID, None, 5, None)


@pytest.mark.parametrize(
    ("key", "text", "message"),
    [
        ("team.main", '{"cores": 5}', "neither"),
        ("a.b.c", "6Gi", "not JSON"),
        ("a.b.c", "[" * 1000, "not JSON"),
        ("a.b.c", "{}", "an object with memory"),
        ("a.b.c", '{"core": 5}', "nothing else"),
        ("a.b.c", '{"cores": 0}', "cores is not a whole number from 1 to 100"),
        ("a.b.c", '{"cores": true}', "cores is not a whole number"),
        ("a.b.c", '{"softCores": 101}', "softCores is no"),
        ("a.b.c", '{"memory": "-1"}', "whole number"),
        ("a.b.c", '{"memory": 0}', "memory is 0"),
        ("a.b.c", " " * 2000, "not a short text"),
        ("a.b.c", 7, "not a short text"),
    ],
)
def test_an_entry_with_a_mistake_says_which(key: str, text: object, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        parse(key, text)


def test_less_always_goes() -> None:
    found = settled([Override("team.a.main", 2 * GIB, 10)], tenant("a", 8, 30), tenant("b", 72, 70))
    assert found == Settled({"key-a": Limit(CARD, 2 * GIB, 10)}, ())


def test_more_goes_as_far_as_the_card_has_it() -> None:
    wish = Override("team.a.main", 40 * GIB, 50)
    assert settled([wish], tenant("a", 8, 30), tenant("b", 40, 50)).limits == {"key-a": Limit(CARD, 40 * GIB, 50)}
    found = settled([wish], tenant("a", 8, 30), tenant("b", 40, 50), tenant("c", 8, 0))
    assert not found.limits
    assert found.refused[0][1] == (
        "override team.a.main is not applied: 40 GiB of its GPU, of which 32 GiB are left for it"
    )
    assert "50 % of its GPU, of which 40 %" in settled([wish], tenant("a", 8, 30), tenant("b", 8, 60)).refused[0][1]
    assert settled([wish], tenant("a", 8, 30), tenant("b", 80, 100, OTHER)).limits


def test_what_one_gives_up_another_may_have() -> None:
    wishes = [Override("team.a.main", 60 * GIB), Override("team.b.main", 20 * GIB)]
    found = settled(wishes, tenant("a", 40, 50), tenant("b", 40, 50))
    assert {key: limit.memory_bytes // GIB for key, limit in found.limits.items()} == {"key-a": 60, "key-b": 20}


def test_container_entry_goes_before_its_pods_uid() -> None:
    wishes = [Override(UID, 10 * GIB), Override("team.a.main", 2 * GIB)]
    found = settled(wishes, tenant("a", 8, 30, uid=UID), tenant("b", 8, 30, uid=UID), tenant("c", 8, 30))
    assert {key: limit.memory_bytes // GIB for key, limit in found.limits.items()} == {"key-a": 2, "key-b": 10}


def test_whole_gpus_and_what_mps_limits_stay_as_they_are() -> None:
    whole = Tenant("key", "team", "a", "main", "", Limit(CARD, 0, 100))
    assert "a whole GPU" in settled([Override("team.a.main", GIB)], whole).refused[0][1]
    found = settled([Override("team.a.main", None, 10)], tenant("a", 8, 0), cores_limited=False)
    assert "the limit of cores" in found.refused[0][1]
    assert settled([Override("team.a.main", GIB)], tenant("a", 8, 0), cores_limited=False).limits


def test_a_soft_limit_is_above_the_hard_one() -> None:
    assert "softCores 20 is less" in settled([Override("team.a.main", soft_cores=20)], tenant("a", 8, 30)).refused[0][1]
    found = settled([Override("team.a.main", soft_cores=80)], tenant("a", 8, 30))
    assert found.limits == {"key-a": Limit(CARD, 8 * GIB, 30, 80)}


amounts = st.integers(1, 30)


@given(
    st.lists(st.tuples(amounts, amounts), min_size=1, max_size=4),
    st.lists(st.tuples(st.integers(0, 3), st.none() | st.integers(1, 90), st.none() | st.integers(1, 100))),
)
def test_no_card_is_promised_twice(
    shares: list[tuple[int, int]], wishes: list[tuple[int, int | None, int | None]]
) -> None:
    tenants = [tenant(f"p{number}", gib // 2 + 1, min(cores, 25)) for number, (gib, cores) in enumerate(shares)]
    overrides = [
        Override(f"team.p{number}.main", None if gib is None else gib * GIB, cores) for number, gib, cores in wishes
    ]
    found = settled(overrides, *tenants)
    limits = [found.limits.get(entry.key, entry.limit) for entry in tenants]
    assert sum(limit.memory_bytes for limit in limits) <= 80 * GIB
    assert sum(limit.cores for limit in limits) <= 100
