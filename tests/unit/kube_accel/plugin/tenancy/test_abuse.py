# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from kube_accel.enforce.accounts import Wrong
from kube_accel.model import OnAbuse
from kube_accel.plugin.kubelet.holdings import Holder
from kube_accel.plugin.tenancy.abuse import OFFENCES, SECONDS, Offences, sentence

ONE, OTHER = Holder("ns", "one", "main"), Holder("ns", "other", "main")


def test_several_offences_within_a_minute_are_abuse() -> None:
    now = [0.0]
    offences = Offences(lambda: now[0])
    for _ in range(OFFENCES - 1):
        assert not offences.count(ONE)
        assert not offences.count(OTHER)
    assert offences.count(ONE)


def test_offences_far_apart_are_no_abuse() -> None:
    now = [0.0]
    offences = Offences(lambda: now[0])
    for _ in range(3 * OFFENCES):
        now[0] += SECONDS / (OFFENCES - 2)
        assert not offences.count(ONE)


def test_a_container_that_ended_leaves_nothing() -> None:
    offences = Offences(lambda: 0.0)
    for _ in range(OFFENCES - 1):
        offences.count(ONE)
    offences.keep({OTHER})
    assert not offences.count(ONE)


@pytest.mark.parametrize(
    ("on_abuse", "static", "remedy"),
    [
        (OnAbuse.DELETE, False, "the pod is deleted"),
        (OnAbuse.EVENT, False, "delete the pod"),
        (OnAbuse.DELETE, True, "remove its file from the node"),
    ],
)
def test_what_is_said_ends_with_what_becomes_of_the_pod(on_abuse: OnAbuse, static: bool, remedy: str) -> None:
    said = sentence({Wrong.GROWN}, on_abuse, static)
    assert "was grown" in said
    assert remedy in said
