# SPDX-License-Identifier: Apache-2.0
"""Reports of generated histories by a real Prometheus, and the same from what was scraped, by Python alone."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from random import Random
from typing import Any

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils.usage import (
    prometheus as gpu_usage_prometheus,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.usage import (
    text as gpu_usage_text,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.usage.accounting import Usage, usage

import prometheus
from unit.plugins.module_utils.usage.test_bound import reported
from unit.plugins.module_utils.usage.test_histories import PERIOD, check
from unit.plugins.usage_histories import EVENTS, History

NUMBERS = range(29)


@functools.cache
def history_of(number: int) -> History:
    """One that others are not."""
    return History(Random(number))


@pytest.fixture(scope="module")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[prometheus.Prometheus]:
    """Has all histories, each as a cluster of its own."""
    path = tmp_path_factory.mktemp("prometheus")
    for number in NUMBERS:
        file = history_of(number).scrapes.open_metrics(path / f"{number}.txt")
        file.write_text(file.read_text().replace('job="', f'cluster="{number}",job="'))
        prometheus.backfill(file, path / "data")
    (path / "prometheus.yml").write_text("{}\n")
    with prometheus.serve(path / "prometheus.yml", path / "data") as found:
        yield found


def document(found: Usage) -> dict[str, Any]:
    """The part of the report that does not name Prometheus' labels."""
    told = gpu_usage_text.document(gpu_usage_text.Report(found, "Prometheus", problems=found.problems))
    kept = ("rows", "free", "unknown", "totals", "parts", "nodes", "complete")
    return {name: [{**node, "remark": ""} for node in told[name]] if name == "nodes" else told[name] for name in kept}


def test_histories_have_each_event() -> None:
    happened = {event.split()[0] for number in NUMBERS for event in history_of(number).events}
    assert happened == set(EVENTS)


@pytest.mark.ci
@pytest.mark.parametrize("number", NUMBERS)
def test_a_real_prometheus_gives_what_python_computes(server: prometheus.Prometheus, number: int) -> None:
    history, selector = history_of(number), f'cluster="{number}"'
    pages = gpu_usage_prometheus.gather(server.query, PERIOD, selector)
    older = gpu_usage_prometheus.older(server.query, pages, PERIOD, selector)
    found = usage(pages, PERIOD, False, older)
    check(history, found)
    assert document(found) == document(reported(history.scrapes, PERIOD))


@pytest.mark.parametrize("number", NUMBERS[:3])
def test_the_module_reports_the_same(
    server: prometheus.Prometheus, run_module: Callable[..., dict[str, Any]], number: int
) -> None:
    options = {
        "prometheus_url": server.url,
        "prometheus_selector": f'cluster="{number}"',
        "start": "2025-11-22",
        "end": "2025-11-22T03:00:00Z",
    }
    done = run_module("gpu_usage_report", options)
    expected = document(reported(history_of(number).scrapes, PERIOD))
    assert (done["report"]["unknown"], done["complete"]) == (expected["unknown"], expected["complete"])
    amounts = [{name: row[name] for name in ("namespace", "allocated_gpu_hours")} for row in done["report"]["rows"]]
    assert amounts == [{name: row[name] for name in ("namespace", "allocated_gpu_hours")} for row in expected["rows"]]
