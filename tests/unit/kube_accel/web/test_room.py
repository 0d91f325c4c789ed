# SPDX-License-Identifier: Apache-2.0
"""Memory for bodies and answers: never more than there is, and the largest that are slow give way."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from kube_accel.web.room import Place, Room
from waiting import wait


def ended(places: list[Place]) -> list[bool]:
    return [place.ended for place in places]


def placed(room: Room, count: int) -> list[Place]:
    return [room.place(lambda: None) for _ in range(count)]


def test_largest_place_that_is_slow_gives_way() -> None:
    room = Room(100, patience=60)
    small, large, new = places = placed(room, 3)
    assert small.take(30)
    assert large.take(60)
    with ThreadPoolExecutor(1) as pool:
        answer = pool.submit(new.take, 40)
        wait(lambda: any(ended(places)), "an end")
        assert ended(places) == [False, True, False]
        room.leave(large)
        assert answer.result() is True


def test_place_whose_client_has_sent_everything_stays() -> None:
    room = Room(100, patience=0)
    first, second = placed(room, 2)
    assert first.take(100)
    assert first.busy()
    assert not second.take(1)
    room.leave(first)
    assert second.take(100)


def test_place_that_was_ended_learns_of_it() -> None:
    room = Room(100, patience=0)
    first, second = placed(room, 2)
    assert first.take(100)
    assert not second.take(50)
    assert first.busy() is False


def test_answer_gets_room_at_once_and_others_give_way() -> None:
    room = Room(100, patience=0)
    first, second = placed(room, 2)
    assert first.take(80)
    second.answer(50)
    assert ended([first, second]) == [True, False]


def test_more_than_there_is_at_all_is_refused() -> None:
    (place,) = placed(room := Room(100, patience=0), 1)
    assert not place.take(101)
    assert place.take(100)
    room.leave(place)
    assert place.take(100)


class Turns(RuleBasedStateMachine):
    """Requests that come and go in any order."""

    def __init__(self) -> None:
        super().__init__()
        self.room = Room(100, patience=0)
        self.places: list[Place] = []

    @rule(size=st.integers(0, 120))
    def come(self, size: int) -> None:
        place = self.room.place(lambda: None)
        if place.take(size):
            self.places.append(place)
        else:
            self.room.leave(place)

    @rule(data=st.data())
    def be_busy(self, data: st.DataObject) -> None:
        if self.places:
            data.draw(st.sampled_from(self.places)).busy()

    @rule(data=st.data())
    def go(self, data: st.DataObject) -> None:
        if self.places:
            place = data.draw(st.sampled_from(self.places))
            self.places.remove(place)
            self.room.leave(place)

    @invariant()
    def no_more_is_taken_than_there_is(self) -> None:
        assert sum(place.size for place in self.places) <= 100

    def teardown(self) -> None:
        for place in self.places:
            self.room.leave(place)
        assert self.room.place(lambda: None).take(100)


Turns.TestCase.settings = settings(max_examples=100, stateful_step_count=30)
TestTurns = Turns.TestCase
