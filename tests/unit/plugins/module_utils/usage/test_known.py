# SPDX-License-Identifier: Apache-2.0
"""For how much of its time the use of an account is known."""

from __future__ import annotations

from typing import Any

from ansible_collections.accel.kubernetes.plugins.module_utils.usage import (
    plugins as gpu_usage_plugins,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.usage import (
    prometheus as gpu_usage_prometheus,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.usage.counters import Account, window

from unit.plugins.usage_data import H100, T4, Node, Scrapes, share

START = 1_763_769_600
NEW, OLD = Account("team", "vgpu", H100.name), Account("team", "vgpu", T4.name)


def scraped() -> Scrapes:
    """One mode on two models, of which one does not tell."""
    scrapes = Scrapes()
    nodes = [Node("a", {"g": H100}), Node("b", {"t": T4}, uses_known=False)]
    for node, uuid in zip(nodes, "gt", strict=True):
        node.at(START, share(uuid, "team", "p", 0.5))
    for minute in range(3):
        scrapes.take(START + 60 * minute, nodes)
    return scrapes


def test_models_of_one_mode_are_told_apart_by_plugins() -> None:
    assert gpu_usage_plugins.used_known(scraped().samples()) == {NEW: 1.0, OLD: 0.0}


def test_models_of_one_mode_are_told_apart_by_prometheus() -> None:
    samples = scraped().samples()

    def ask(expression: str, at: float) -> list[dict[str, Any]]:
        assert at == START + 3600
        name = next(name for name in ("accel_gpu_info", "allocated_gpus", "utilization") if name in expression)
        found = [sample for sample in samples if name in sample.name]
        series = {tuple(sample.labels.items()) for sample in found}
        return [
            {"metric": dict(labels), "value": [at, str(sum(tuple(s.labels.items()) == labels for s in found))]}
            for labels in series
        ]

    assert gpu_usage_prometheus.used_known(ask, window(START, START + 3600), "") == {NEW: 1.0, OLD: 0.0}
