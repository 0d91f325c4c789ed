# SPDX-License-Identifier: Apache-2.0
"""Which versions are too old, and what is said of them."""

from __future__ import annotations

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.minimums import (
    MINIMUMS,
    Versions,
    too_old,
    version_in,
    versions_of,
)
from hypothesis import given
from hypothesis import strategies as st

VERSIONS = st.lists(st.integers(0, 999), min_size=1, max_size=4).map(tuple)


@given(VERSIONS)
def test_a_version_is_refused_below_its_minimum_alone(version: tuple[int, ...]) -> None:
    text = ".".join(map(str, version))
    for each in MINIMUMS:
        assert each.refuses(text) == (version < each.version)
        assert text in each.complaint(text)
        assert each.words in each.complaint(text)


@pytest.mark.parametrize(
    ("runtime", "said"),
    [
        ("containerd://1.5.9", "containerd is 1.5.9; 1.6 or newer"),
        ("containerd://1.7.27-k3s1", ""),
        ("docker://19.3.1", "Docker is 19.3.1; 20.10 or newer"),
        ("cri-o://1.24.6", "CRI-O is 1.24.6; 1.25 or newer"),
        ("containerd://Unknown", ""),
        ("other://0.1", ""),
        ("", ""),
    ],
)
def test_a_container_runtime_is_known_as_kubelet_names_it(runtime: str, said: str) -> None:
    found = too_old(Versions(kubernetes="v1.33.0", runtime=runtime))
    assert [said in finding.found for finding in found] == [True] * bool(said)


def test_what_cannot_be_read_is_not_too_old() -> None:
    for node in ({}, {"status": None}, {"status": {"nodeInfo": {"kubeletVersion": 7}}}):
        assert too_old(versions_of(node, None, "unknown")) == []
    assert version_in("v1.33.2-eks-1") == (1, 33, 2)
    assert version_in("simulated") == ()
