# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import pytest

from kube_accel.kube.podresources import PodDevices
from kube_accel.plugin.configuration.choice import NONE, NotChosenError, choose
from kube_accel.plugin.configuration.file import Configuration
from kube_accel.plugin.whole_runtime import WholeGpus
from kube_accel.shared.offers import Replication
from unit.kube_accel.plugin.fakes import inventory, uuid

SLICED = "version: v1\nsharing: {timeSlicing: {resources: [{name: gpu, replicas: 2}]}}\n"
CONFIGS = {"whole": "version: v1\n", "sliced": SLICED, "wrong": "version: v1\nflags: []\n"}


def sliced(replicas: int, name: str = "nvidia.com/gpu") -> Configuration:
    return Configuration(replications=(Replication("nvidia.com/gpu", name, replicas),))


@pytest.mark.parametrize(("label", "default", "name"), [("sliced", "whole", "sliced"), (None, "whole", "whole")])
def test_the_label_comes_before_the_default(label: str | None, default: str, name: str) -> None:
    assert choose(CONFIGS, label, default).name == name


def test_without_label_and_default_there_is_none() -> None:
    assert choose(CONFIGS, None, "") == NONE
    assert choose({}, "", "") == NONE


@pytest.mark.parametrize(
    ("label", "default", "reason", "message"),
    [
        (
            "gone",
            "whole",
            "ConfigurationMissing",
            "label nvidia.com/device-plugin.config=gone names configuration gone; there are: sliced, whole, wrong",
        ),
        (None, "gone", "ConfigurationMissing", "the default of the plugin names configuration gone; there are: "),
        ("wrong", "", "ConfigurationInvalid", "configuration wrong: flags: is "),
    ],
)
def test_what_cannot_be_had_is_named(label: str | None, default: str, reason: str, message: str) -> None:
    with pytest.raises(NotChosenError, match=message) as caught:
        choose(CONFIGS, label, default)
    assert caught.value.reason == reason


def held(*ids: str, resource: str = "nvidia.com/gpu") -> tuple[PodDevices, ...]:
    return tuple(PodDevices("team", f"p{number}", "main", resource, (name,)) for number, name in enumerate(ids))


@pytest.mark.parametrize(
    ("listed", "wanted"),
    [
        ((), sliced(4)),
        (held(uuid(0)), Configuration(one_replica_each=True)),
        (held(f"{uuid(0)}::1"), sliced(2)),
        (held("0000:3b:00.0", resource="nvidia.com/hostdev"), sliced(2)),
        (held(f"{uuid(0)}::c1", resource="tencent.com/vcuda-core"), sliced(2)),
        (held("GPU-of-another-day"), sliced(2)),
    ],
)
def test_what_leaves_pods_what_they_have_is_possible(listed: tuple[PodDevices, ...], wanted: Configuration) -> None:
    assert WholeGpus().try_on(wanted, inventory(2), listed) is None


@pytest.mark.parametrize(
    ("listed", "wanted"),
    [
        (held(uuid(0)), sliced(4)),
        (held(f"{uuid(0)}::1"), Configuration()),
        (held(f"{uuid(0)}::3"), sliced(3)),
        (held(f"{uuid(0)}::1"), sliced(2, "nvidia.com/gpu.shared")),
    ],
)
def test_what_takes_a_device_from_a_pod_is_refused_by_its_name(
    listed: tuple[PodDevices, ...], wanted: Configuration
) -> None:
    problem = WholeGpus().try_on(wanted, inventory(2), listed)
    assert problem is not None
    assert problem.reason == "ConfigurationRefused"
    assert "team/p0 (nvidia.com/gpu); applied when they have ended" in str(problem)


def test_a_refusal_of_many_pods_stays_short() -> None:
    listed = held(*(f"{uuid(gpu)}::{number}" for gpu in range(8) for number in range(10)))
    problem = WholeGpus().try_on(Configuration(), inventory(8), listed)
    assert "and 75 more" in str(problem)
