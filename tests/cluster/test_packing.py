# SPDX-License-Identifier: Apache-2.0
"""Shares on a cluster of 100 nodes with 8 GPUs, placed by a real kube-scheduler: GPUs and nodes in use in the end."""

from __future__ import annotations

import pytest
import yaml
from ansible_collections.accel.kubernetes.plugins.module_utils.scheduler import config

from bench.measure import report
from bench.packing import BINPACK, CASES, PROFILES, packed, results
from cluster.control_plane import missing
from unit.plugins.scheduler_asked import DEFAULTS


@pytest.mark.skipif(bool(missing()), reason=missing() or "all there")
def test_shares_lie_close_together_and_spread_ones_apart() -> None:
    found = packed(CASES)
    report(results(found))
    assert [miss for each in found for miss in each.misses] == []


def test_the_profile_is_the_one_that_the_role_writes() -> None:
    assert DEFAULTS["scheduler_binpack_resources"] == [{"name": n, "weight": w} for n, w in BINPACK.items()]
    bare = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
    written = config.plan(bare, config.Wanted(binpack=BINPACK), config.Owned(), bare, "a file")
    assert yaml.safe_load(written)["profiles"] == PROFILES
