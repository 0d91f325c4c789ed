# SPDX-License-Identifier: Apache-2.0
"""Classes of ``kube_accel.records`` are what the standard library makes of the same text."""

from __future__ import annotations

import copy
import dataclasses
import inspect
import pickle
import subprocess
import sys
from typing import ClassVar

import pytest

from kube_accel import records
from kube_accel.model import Gpu

MAKERS = [records.dataclass, dataclasses.dataclass]


def point(make, **options):
    @make(**options)
    class Point:
        """A point."""

        across: int
        up: int = 2
        tags: list[str] = records.field(default_factory=list)

    return Point


def odd(make):
    @make(frozen=True)
    class Base:
        """With what is unusual."""

        kinds: ClassVar[int] = 3
        name: str
        note: str = records.field(default="n", compare=False)

    @make(frozen=True)
    class Odd(Base):
        """Inherits."""

        size: int = 0

        def __post_init__(self):
            object.__setattr__(self, "size", self.size + 1)

    return Odd


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("options", [{}, {"slots": True}, {"frozen": True}, {"frozen": True, "slots": True}])
def test_record_has_the_ways_of_a_dataclass(make, options):
    made = point(make, **options)
    one, same, other = made(1, tags=["a"]), made(1, 2, ["a"]), made(across=1, up=3)
    assert one == same
    assert one != other
    assert one != (1, 2, ["a"])
    assert repr(one) == "point.<locals>.Point(across=1, up=2, tags=['a'])"
    assert made(1).tags is not made(1).tags
    assert dataclasses.replace(one, up=5) == made(1, 5, ["a"])
    assert dataclasses.asdict(one) == {"across": 1, "up": 2, "tags": ["a"]}
    assert copy.deepcopy(one) == one
    assert made.__match_args__ == ("across", "up", "tags")
    assert str(inspect.signature(made)).startswith("(across: 'int', up: 'int' = 2, tags: 'list[str]' =")
    assert hasattr(one, "__dict__") is ("slots" not in options)
    with pytest.raises(TypeError):
        made()
    with pytest.raises(TypeError):
        made(1, 2, [], 4)


@pytest.mark.parametrize("make", MAKERS)
@pytest.mark.parametrize("slots", [False, True])
def test_frozen_record_cannot_be_changed(make, slots):
    one = point(make, frozen=True, slots=slots)(1, 2, ())
    for change in (lambda: setattr(one, "up", 3), lambda: delattr(one, "up"), lambda: setattr(one, "new", 1)):
        with pytest.raises((dataclasses.FrozenInstanceError, TypeError)):
            change()
    assert hash(one) == hash(point(make, frozen=True)(1, 2, ()))
    assert one.up == 2


@pytest.mark.parametrize("make", MAKERS)
def test_changeable_record_has_no_hash(make):
    one = point(make, slots=True)(1)
    one.up = 9
    assert one.up == 9
    with pytest.raises(TypeError):
        hash(one)


@pytest.mark.parametrize("make", MAKERS)
def test_unusual_record_is_the_standard_librarys(make):
    made = odd(make)
    assert made("a", size=2) == made("a", "other", 2)
    assert made("a").size == 1
    assert made.kinds == 3
    assert [field.name for field in dataclasses.fields(made)] == ["name", "note", "size"]


def test_records_of_the_daemon_can_be_pickled():
    gpu = Gpu("GPU-1", 0, 0, "H100", 1 << 30, (9, 0), "0000:1a:00.0", None, False)
    assert pickle.loads(pickle.dumps(gpu)) == gpu


def test_daemon_starts_without_the_parser_of_python():
    code = "import sys, kube_accel.cli.main, kube_accel.plugin.daemon; print({'ast', 'inspect'} & sys.modules.keys())"
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert ran.stdout == "set()\n"
