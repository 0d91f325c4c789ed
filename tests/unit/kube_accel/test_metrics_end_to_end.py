# SPDX-License-Identifier: Apache-2.0
"""What a scraper gets of the shipped command."""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from kube_accel.metrics import families
from kube_accel.model import Mode
from kube_accel.plugin.allocation.ledger import running as allocations
from sim.nvml.topology import Topology, edit
from unit.kube_accel.fraction_node import FractionNode
from unit.kube_accel.metrics.page import Page, promtool
from unit.kube_accel.metrics.proc import cgroup, run
from unit.kube_accel.test_plugin_end_to_end import DEADLINE, RESOURCE, Host, Plugin
from unit.kube_accel.test_plugin_end_to_end import pod as whole_pod
from waiting import wait


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


def until(read: Callable[[], Page], condition: Callable[[Page], object], what: str) -> Page:
    """The first page for which the condition holds: the next one may be of a driver that took too long."""
    pages: list[Page] = []

    def holds() -> object:
        pages.append(read())
        return condition(pages[-1])

    wait(holds, what)
    return pages[-1]


def serving(host: Host, *flags: str) -> Plugin:
    """A plugin whose GPUs kubelet knows."""
    plugin = host.plugin("--metrics-interval", "1", *flags)
    plugin.wait_ready()
    host.kubelet.wait(lambda: len(host.healthy()) == 8, DEADLINE)
    return plugin


def test_gpus_are_told_of_as_prometheus_likes_it(host: Host) -> None:
    with edit(host.conf) as topology:
        topology.set_load(0, 40, memutil=20, used=1 << 30)
        topology.gpus[7].temp = None
    plugin = serving(host)
    page = until(
        lambda: scrape(plugin),
        lambda page: (
            page.values(families.GPU_UTILIZATION, uuid=host.uuids[0]) == [0.4]
            and page.values(families.GPU_BUSY, uuid=host.uuids[0]) > [0.4]
            and page.values(families.PLUGIN_REGISTERED, resource=RESOURCE) == [1]
        ),
        "GPUs at work",
    )
    page.lint()
    assert promtool(page.text) == ""
    assert page.value(families.GPU_USED, uuid=host.uuids[0]) == 1 << 30
    assert page.value(families.NODE_GPUS, state="visible") == 8
    assert not page.values(families.GPU_TEMPERATURE, uuid=host.uuids[7], sensor="core")


def test_hanging_driver_is_absent_and_counted_and_scrapes_go_on(host: Host) -> None:
    plugin = serving(host)
    wait(lambda: scrape(plugin).values(families.GPU_USED), "a collection")
    with edit(host.conf) as topology:
        topology.wedge("all")
        topology.raise_xid(2, 79)
    page = until(
        lambda: scrape(plugin), lambda page: not page.values(families.GPU_USED), "the end of what is not known"
    )
    page.lint()
    assert page.value(families.COLLECTOR_SUCCESS, collector="nvml") == 0
    assert sum(page.values(families.COLLECTOR_FAILURES, collector="nvml")) >= 1
    assert page.value(families.NODE_GPUS, state="expected") == 8
    with edit(host.conf) as topology:
        topology.wedge(None)
    wait(lambda: scrape(plugin).values(families.GPU_USED), "a collection after the hang")


def test_counters_of_gpus_that_have_them_are_read(host: Host) -> None:
    with edit(host.conf) as topology:
        topology.gpus[3].gpm = 30
    plugin = serving(host, "--metrics-profiling")
    page = until(lambda: scrape(plugin), lambda page: page.of(families.GPU_SM_ACTIVE), "counters")
    page.lint()
    assert promtool(page.text) == ""
    assert [labels["uuid"] for labels in page.of(families.GPU_SM_ACTIVE)] == [host.uuids[3]]
    assert page.value(families.GPU_PIPES, pipe="fp16") == pytest.approx(0.3013)
    assert page.value(families.COLLECTOR_FAILURES, collector="nvml", reason="profiling") >= 7


def test_metrics_can_be_turned_off(host: Host) -> None:
    plugin = host.plugin("--metrics-interval", "0")
    plugin.wait_ready()
    assert plugin.probe("/metrics")[0] == 404


def test_an_interval_out_of_bounds_is_refused(host: Host) -> None:
    done = host.run("plugin", "--metrics-interval", "0.5")
    assert done.returncode == 2
    assert "from 1 to 300" in done.stderr


@pytest.fixture
def vgpu() -> Iterator[FractionNode]:
    with tempfile.TemporaryDirectory(dir="/tmp") as name, ExitStack() as stack:
        node = FractionNode(Path(name), stack, Mode.VGPU)
        node.start_api()
        node.extra = ["--metrics-interval", "1", "--proc-root", str(node.root / "proc")]
        yield node


def shared(node: FractionNode) -> Page:
    status, text = node.probe("/metrics")
    assert status == 200
    return Page(text.encode())


def runs(node: FractionNode, name: str, container: str) -> None:
    """The API server tells of the pod's container."""

    def change(pod: dict[str, Any]) -> None:
        pod["status"] |= {
            "phase": "Running",
            "containerStatuses": [{"name": "main", "containerID": f"containerd://{container}"}],
        }

    node.store.edit("pods", "team", name, change)


def test_every_sharer_of_a_gpu_has_figures_of_its_own(vgpu: FractionNode) -> None:
    vgpu.start()
    pods = {name: vgpu.pod(name, {"main": (25, 16)}, assigned={"main": (0,)}) for name in ("a", "b", "c")}
    vgpu.seen()
    for pid, (name, pod) in enumerate(pods.items(), 100):
        vgpu.kubelet.admit(pod)
        identity = f"{pid:064x}"
        runs(vgpu, name, identity)
        run(vgpu.root / "proc", pid, cgroup(pod.uid, identity))
    run(vgpu.root / "proc", 200, "0::/system.slice/x.service\n")

    def work(topology: Topology) -> None:
        topology.set_load(0, 40)
        topology.add_process(0, 100, mem=2 << 30, sm=10)
        topology.add_process(0, 101, mem=3 << 30, sm=30)
        topology.add_process(0, 200, mem=1 << 30)

    vgpu.edit(work)
    page = until(
        lambda: shared(vgpu),
        lambda page: (
            page.values(families.CONTAINER_UTILIZATION, pod="b") == [0.3]
            and len(page.of(families.CONTAINER_USED)) == len(pods)
        ),
        "pods at work",
    )
    page.lint()
    assert promtool(page.text) == ""
    uuid = vgpu.uuids[0]
    labels = {"uuid": uuid, "namespace": "team", "container": "main", "mode": "vgpu", "node": "node-1"}
    used = {name: page.value(families.CONTAINER_USED, pod=name, **labels) for name in pods}
    assert used == {"a": 2 << 30, "b": 3 << 30, "c": 0}
    assert page.value(families.CONTAINER_UTILIZATION, pod="a") == pytest.approx(0.1)
    assert page.value(families.CONTAINER_UTILIZATION, pod="c") == 0
    assert page.value(families.CONTAINER_CORES, pod="c") == 0.25
    assert page.value(families.CONTAINER_REQUEST, pod="c") == 4 << 30
    assert page.value(families.GPU_UNATTRIBUTED, uuid=uuid, reason="host") == 1 << 30
    assert page.value(families.GPU_UNATTRIBUTED, uuid=uuid, reason="unknown") == 0
    assert page.value(families.GPU_ALLOCATED, uuid=uuid) == 12 << 30

    vgpu.end(pods["a"])
    wait(lambda: not shared(vgpu).values(families.CONTAINER_ALLOCATED, pod="a"), "the end of pod a")
    # Its process lives on, and belongs to nobody who has the GPU.
    page = until(
        lambda: shared(vgpu),
        lambda page: page.values(families.GPU_UNATTRIBUTED, uuid=uuid, reason="unknown") == [2 << 30],
        "its memory",
    )
    assert not page.values(families.CONTAINER_USED, pod="c")


def test_metrics_ask_neither_api_server_nor_kubelet(vgpu: FractionNode) -> None:
    vgpu.start()
    pod = vgpu.pod("a", {"main": (25, 16)}, assigned={"main": (0,)})
    vgpu.seen()
    vgpu.kubelet.admit(pod)
    runs(vgpu, "a", f"{1:064x}")
    until(lambda: shared(vgpu), lambda page: page.values(families.CONTAINER_USED, pod="a") == [0], "the pod")
    vgpu.api.stop()
    vgpu.kubelet.stop()
    run(vgpu.root / "proc", 100, cgroup(pod.uid, f"{1:064x}"))
    vgpu.edit(lambda topology: topology.add_process(0, 100, mem=2 << 30))
    page = until(
        lambda: shared(vgpu), lambda page: page.values(families.CONTAINER_USED, pod="a") == [2 << 30], "its process"
    )
    assert page.value(families.COLLECTOR_SUCCESS, collector="containers") == 1
    until(lambda: shared(vgpu), lambda page: 0 in page.values(families.PLUGIN_REGISTERED), "news of kubelet's end")


def test_a_whole_gpu_is_its_containers(host: Host) -> None:
    plugin = serving(host)
    allocation = host.admit("train", 1)
    ((uuid,),) = allocation.device_ids.values()
    with edit(host.conf) as topology:
        topology.set_load(host.uuids.index(uuid), 50, used=3 << 30)
    page = until(
        lambda: scrape(plugin),
        lambda page: page.values(families.CONTAINER_UTILIZATION, pod="train") == [0.5],
        "the pod at work",
    )
    page.lint()
    assert page.value(families.CONTAINER_USED, pod="train", uuid=uuid, mode="pgpu") == 3 << 30
    assert page.value(families.CONTAINER_ALLOCATED, pod="train") == 1
    assert page.value(families.ALLOCATE_REQUESTS, resource=RESOURCE, outcome="ok") == 1
    assert page.value(families.PLUGIN_HEALTHY_AT, resource=RESOURCE) > 0
    assert page.value(families.GPU_UNALLOCATED, uuid=uuid) == 0
    with edit(host.conf) as topology:
        topology.set_load(host.uuids.index(uuid), 50, used=1 << 30)
    plugin.kill()
    successor = serving(host)
    page = until(lambda: scrape(successor), lambda page: page.of(families.CONTAINER_USED), "the pod")
    assert page.value(families.CONTAINER_USED, pod="train") == 1 << 30
    assert page.value(families.CONTAINER_PEAK, pod="train") == 3 << 30


def test_what_is_charged_outlives_pods_and_daemons(host: Host) -> None:
    plugin = serving(host)
    host.admit("short", 2)

    def paid(found: Plugin) -> float:
        return sum(scrape(found).values(families.NAMESPACE_GPU, namespace="team", mode="pgpu"))

    wait(lambda: paid(plugin) > 0, "a charge")
    host.kubelet.remove(whole_pod("short", 2))
    wait(lambda: not scrape(plugin).values(families.CONTAINER_ALLOCATED, pod="short"), "the end of the pod")
    charged = paid(plugin)
    page = scrape(plugin)
    assert charged < sum(page.values(families.NODE_SECONDS))
    (ledger,) = page.of(families.LEDGER_INFO)
    rows = allocations(host.root / "state")
    assert [(row.holder.pod, row.share.cores) for row in rows] == []
    with edit(host.conf) as topology:
        topology.raise_xid(1, 31)
    wait(lambda: scrape(plugin).values(families.GPU_XIDS, uuid=host.uuids[1], xid="31") == [1], "the XID")
    plugin.kill()
    successor = serving(host)
    assert paid(successor) == charged
    assert scrape(successor).of(families.LEDGER_INFO) == [ledger]
    assert scrape(successor).values(families.GPU_XIDS, uuid=host.uuids[1], xid="31") == [1]
    host.admit("next", 1)
    wait(lambda: paid(successor) > charged, "more of it")
    assert [(row.holder.pod, row.share.cores) for row in allocations(host.root / "state")] == [("next", 100)]


def test_dashboards_of_other_exporters_find_their_names(host: Host) -> None:
    plugin = serving(host, "--metrics-aliases")

    def page(path: str) -> Page:
        return Page(plugin.probe(path)[1].encode())

    def temperatures() -> list[tuple[dict[str, str], float]]:
        return page("/metrics/dcgm").families.get("DCGM_FI_DEV_GPU_TEMP", [])

    wait(lambda: len(temperatures()) == 8, "a row a GPU")
    labels, value = temperatures()[0]
    assert (labels["gpu"], labels["Hostname"], labels["hostname"], value) == ("0", "node-1", "node-1", 32)
    host.admit("train", 1)
    requests = "container_request_gpu_memory"
    wait(lambda: len(page("/metrics/gpu-manager").families.get(requests, [])) == 1, "the pod")
