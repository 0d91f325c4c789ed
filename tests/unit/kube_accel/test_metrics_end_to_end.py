# SPDX-License-Identifier: Apache-2.0
"""What a scraper gets of the shipped command."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kube_accel.metrics import families
from sim.nvml.topology import edit
from unit.kube_accel.metrics.page import Page, promtool
from unit.kube_accel.test_plugin_end_to_end import RESOURCE, Host, Plugin, wait


@pytest.fixture
def host() -> Iterator[Host]:
    with tempfile.TemporaryDirectory(dir="/tmp") as name, ExitStack() as stack:
        made = Host(Path(name), stack)
        stack.enter_context(made.kubelet)
        made.load_driver()
        yield made


def scrape(plugin: Plugin) -> Page:
    status, text = plugin.probe("/metrics")
    assert status == 200
    return Page(text.encode())


def test_gpus_are_told_of_as_prometheus_likes_it(host: Host) -> None:
    with edit(host.conf) as topology:
        topology.set_load(0, 40, memutil=20, used=1 << 30)
        topology.gpus[7].temp = None
    plugin = host.plugin("--metrics-interval", "1")
    plugin.wait_ready()
    wait(lambda: scrape(plugin).values(families.GPU_BUSY, uuid=host.uuids[0]) > [0.4], "busy seconds")
    page = scrape(plugin)
    page.lint()
    assert promtool(page.text) == ""
    assert page.value(families.GPU_UTILIZATION, uuid=host.uuids[0]) == 0.4
    assert page.value(families.GPU_USED, uuid=host.uuids[0]) == 1 << 30
    assert page.value(families.PLUGIN_REGISTERED, resource=RESOURCE) == 1
    assert page.value(families.NODE_GPUS, state="visible") == 8
    assert not page.values(families.GPU_TEMPERATURE, uuid=host.uuids[7], sensor="core")


def test_a_driver_that_hangs_is_absent_and_counted_and_scrapes_go_on(host: Host) -> None:
    plugin = host.plugin("--metrics-interval", "1")
    plugin.wait_ready()
    wait(lambda: scrape(plugin).values(families.GPU_USED), "a collection")
    with edit(host.conf) as topology:
        topology.wedge("all")
        topology.raise_xid(2, 79)
    wait(lambda: not scrape(plugin).values(families.GPU_USED), "the end of what is not known")
    page = scrape(plugin)
    page.lint()
    assert page.value(families.COLLECTOR_SUCCESS, collector="nvml") == 0
    assert sum(page.values(families.COLLECTOR_FAILURES, collector="nvml")) >= 1
    assert page.value(families.NODE_GPUS, state="expected") == 8
    with edit(host.conf) as topology:
        topology.wedge(None)
    wait(lambda: scrape(plugin).values(families.GPU_USED), "a collection after the hang")


def test_metrics_can_be_turned_off(host: Host) -> None:
    plugin = host.plugin("--metrics-interval", "0")
    plugin.wait_ready()
    assert plugin.probe("/metrics")[0] == 404


def test_an_interval_out_of_bounds_is_refused(host: Host) -> None:
    done = host.run("plugin", "--metrics-interval", "0.5")
    assert done.returncode == 2
    assert "from 1 to 300" in done.stderr
