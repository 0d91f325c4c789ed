# SPDX-License-Identifier: Apache-2.0
"""The monitor and its real worker on a simulated host: what goes wrong is seen, said, and got over."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kube_accel.model import Ancestor, DriverState, GpuHealth, GpuLink, Health, Inventory, MigDevice, Snapshot
from kube_accel.nvml.monitor import QuiesceError
from sim.nvml import profiles, sysfs
from sim.nvml.topology import Topology
from waiting import wait

from .conftest import NODE, PATIENCE, QUICK, Host, Spy, Watch

Start = Callable[..., Watch]
HEALTHY = GpuHealth(Health.HEALTHY)
RARELY = replace(QUICK, poll_interval=PATIENCE * 10)


def ready(snapshot: Snapshot) -> bool:
    return snapshot.driver_state is DriverState.READY


def all_healthy(snapshot: Snapshot) -> bool:
    return ready(snapshot) and set(snapshot.health.values()) == {HEALTHY}


def inventory(snapshot: Snapshot) -> Inventory:
    assert snapshot.inventory is not None
    return snapshot.inventory


def uuid(snapshot: Snapshot, index: int) -> str:
    return inventory(snapshot).gpus[index].uuid


@pytest.mark.parametrize("profile", profiles.PROFILES)
def test_inventory_is_what_the_node_has(make_host: Callable[[str], Host], watch: Start, profile: str) -> None:
    node = watch(make_host(profile))
    snapshot = node.until(all_healthy)
    expected = profiles.PROFILES[profile](NODE)
    assert inventory(snapshot).driver_version == expected.system.driver
    assert inventory(snapshot).cuda_version == divmod(expected.system.cuda // 10, 100)
    assert [
        (gpu.index, gpu.uuid, gpu.model, gpu.memory_bytes, gpu.pci_address, gpu.numa_node, gpu.mig_enabled)
        for gpu in inventory(snapshot).gpus
    ] == [(gpu.index, gpu.uuid, gpu.model, gpu.mem, gpu.pci, gpu.numa, bool(gpu.mig)) for gpu in expected.gpus]
    assert [".".join(map(str, gpu.compute_capability)) for gpu in inventory(snapshot).gpus] == [
        gpu.cc for gpu in expected.gpus
    ]
    pairs = len(expected.gpus) * (len(expected.gpus) - 1) // 2
    assert len(inventory(snapshot).links) == pairs
    assert set(snapshot.health) == {gpu.uuid for gpu in expected.gpus}


def test_nvswitch_is_a_full_mesh_and_direct_links_are_counted(host: Host, watch: Start) -> None:
    with host.change() as node:
        node.switch_links = [links for links in node.switch_links if links.gpu not in (6, 7)]
    with host.change() as node:
        node.links.append(type(node).parse("system driver=1\nlink 6 7 nvlink=4").links[0])
    snapshot = watch(host).until(ready)
    links = inventory(snapshot).links

    def link(left: int, right: int) -> GpuLink:
        return links[frozenset((uuid(snapshot, left), uuid(snapshot, right)))]

    assert link(0, 1) == GpuLink(Ancestor.NODE, 18)
    assert link(0, 5) == GpuLink(Ancestor.SYSTEM, 18)
    assert link(6, 7) == GpuLink(Ancestor.NODE, 4)
    assert link(0, 7) == GpuLink(Ancestor.SYSTEM, 0)


def test_lost_gpu_is_unhealthy_alone_and_healthy_when_it_is_back(host: Host, watch: Start) -> None:
    node = watch(host)
    before = node.until(all_healthy)
    with host.change() as topology:
        topology.set_health(3, "lost")
    lost = node.until(lambda snapshot: snapshot.health[uuid(before, 3)].health is Health.UNHEALTHY)
    assert lost.health[uuid(before, 3)] == GpuHealth(Health.UNHEALTHY, "NVML: GPU is lost (15)")
    assert [gpu for gpu, found in lost.health.items() if found.health is Health.UNHEALTHY] == [uuid(before, 3)]
    assert lost.inventory == before.inventory
    with host.change() as topology:
        topology.set_health(3, "ok")
    assert node.until(all_healthy).inventory == before.inventory


def test_gpu_lost_before_the_start_is_listed_and_joins(host: Host, watch: Start) -> None:
    with host.change() as topology:
        topology.set_health(3, "lost")
    node = watch(host)
    snapshot = node.until(all_healthy)
    assert [gpu.index for gpu in inventory(snapshot).gpus] == [0, 1, 2, 4, 5, 6, 7]
    (unreadable,) = inventory(snapshot).unreadable
    assert (unreadable.index, unreadable.reason) == (3, "NVML: GPU is lost (15)")
    with host.change() as topology:
        topology.set_health(3, "ok")
    complete = inventory(node.until(lambda snapshot: len(snapshot.health) == 8))
    assert not complete.unreadable
    assert len(complete.links) == 28


def test_xid_is_seen_without_a_poll(host: Host, watch: Start) -> None:
    node = watch(host, RARELY)
    before = node.until(all_healthy)
    with host.change() as topology:
        topology.raise_xid(5, 31)  # a program's fault
        topology.raise_xid(2, 79)
    snapshot = node.until(lambda snapshot: HEALTHY not in {snapshot.health[uuid(before, 2)]})
    assert snapshot.health[uuid(before, 2)] == GpuHealth(Health.UNHEALTHY, "XID 79 (GPU has fallen off the bus)")
    assert [gpu for gpu, health in snapshot.health.items() if health != HEALTHY] == [uuid(before, 2)]


def test_lost_gpu_is_seen_without_waiting_for_the_poll(host: Host, watch: Start) -> None:
    node = watch(host, RARELY)
    before = node.until(all_healthy)
    with host.change() as topology:
        topology.set_health(3, "lost")
    node.until(lambda snapshot: snapshot.health[uuid(before, 3)] != HEALTHY)


def test_gpu_recovers_from_an_xid_in_time(host: Host, watch: Start) -> None:
    node = watch(host, replace(QUICK, xid_recovery_seconds=0.1))
    before = node.until(all_healthy)
    with host.change() as topology:
        topology.raise_xid(2, 48)
    node.until(lambda snapshot: snapshot.health[uuid(before, 2)] != HEALTHY)
    node.until(all_healthy)


def test_xid_outlasts_good_polls(host: Host, watch: Start) -> None:
    node = watch(host)
    before = node.until(all_healthy)
    with host.change() as topology:
        topology.raise_xid(2, 48)
    bad = node.until(lambda snapshot: snapshot.health[uuid(before, 2)] != HEALTHY)
    node.polls(10)
    assert node.monitor.snapshot() == bad


def test_memory_faults_make_a_gpu_unhealthy(host: Host, watch: Start) -> None:
    node = watch(host)
    before = node.until(all_healthy)
    with host.change() as topology:
        topology.gpus[1].ecc_uncorrected += 1
        topology.gpus[4].remap_failed = 1
    snapshot = node.until(lambda snapshot: [*snapshot.health.values()].count(HEALTHY) == 6)
    assert snapshot.health[uuid(before, 1)].reason == "new uncorrectable memory errors"
    assert "replace the GPU" in snapshot.health[uuid(before, 4)].reason


def test_row_that_waits_for_a_reset_leaves_the_gpu_healthy(host: Host, watch: Start) -> None:
    node = watch(host)
    before = node.until(all_healthy)
    with host.change() as topology:
        topology.gpus[4].remap_pending = 1
    advised = node.until(lambda snapshot: bool(snapshot.health[uuid(before, 4)].advice))
    assert {health.health for health in advised.health.values()} == {Health.HEALTHY}
    with host.change() as topology:
        topology.gpus[4].remap_pending = 0
    node.until(all_healthy)


def logged(host: Host, log: Path, gpu: int, xid: int) -> None:
    """The kernel's own words, as syslog writes them."""
    slot = Topology.load(host.topology_file).gpus[gpu].pci.rpartition(".")[0]
    with log.open("a") as file:
        file.write(f"Nov 21 18:29:19 node kernel: NVRM: Xid (PCI:{slot}): {xid}, pid=77, name=python, text\n")


def test_xid_that_only_the_kernel_logs_is_seen(host: Host, watch: Start, tmp_path: Path) -> None:
    log = tmp_path / "kern.log"
    log.touch()
    logged(host, log, 1, 119)  # before the start: over
    node = watch(host, replace(QUICK, kernel_logs=(tmp_path / "absent", log)))
    before = node.until(all_healthy)
    logged(host, log, 5, 31)  # a program's fault
    logged(host, log, 6, 119)
    snapshot = node.until(lambda snapshot: snapshot.health[uuid(before, 6)] != HEALTHY)
    assert snapshot.health[uuid(before, 6)].reason == "XID 119 (GSP firmware timeout)"
    assert [gpu for gpu, health in snapshot.health.items() if health != HEALTHY] == [uuid(before, 6)]


def test_xid_of_both_tellers_counts_once(
    host: Host, watch: Start, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = tmp_path / "kern.log"
    log.touch()
    node = watch(host, replace(QUICK, kernel_logs=(log,)))
    before = node.until(all_healthy)
    with host.change() as topology:
        topology.raise_xid(2, 48)
    node.until(lambda snapshot: snapshot.health[uuid(before, 2)] != HEALTHY)
    logged(host, log, 2, 48)
    logged(host, log, 3, 48)
    node.until(lambda snapshot: snapshot.health[uuid(before, 3)] != HEALTHY)
    told = [record.__dict__["by"] for record in caplog.records if record.getMessage() == "XID reported"]
    assert told == ["NVML", "kernel log"]


def test_what_was_logged_before_the_gpus_were_let_go_of_is_over(host: Host, watch: Start, tmp_path: Path) -> None:
    log = tmp_path / "kern.log"
    log.touch()
    node = watch(host, replace(QUICK, kernel_logs=(log,)))
    before = node.until(all_healthy)
    node.monitor.quiesce(PATIENCE * 10)
    logged(host, log, 2, 48)  # what an administrator did meanwhile
    logged(host, log, 2, 119)
    node.monitor.resume()
    node.until(all_healthy)
    logged(host, log, 3, 119)
    snapshot = node.until(lambda snapshot: snapshot.health[uuid(before, 3)] != HEALTHY)
    assert snapshot.health[uuid(before, 2)] == HEALTHY


def test_restart_does_not_forget_an_xid(host: Host, watch: Start, tmp_path: Path) -> None:
    options = replace(QUICK, memory=tmp_path / "health.json")
    node = watch(host, options)
    before = node.until(all_healthy)
    with host.change() as topology:
        topology.raise_xid(2, 48)
    bad = node.until(lambda snapshot: snapshot.health[uuid(before, 2)] != HEALTHY)
    node.monitor.stop()
    again = watch(host, options).until(ready)
    assert again.health == bad.health


def test_gpu_lost_while_unobserved_is_good_when_back(host: Host, watch: Start, tmp_path: Path) -> None:
    options = replace(QUICK, memory=tmp_path / "health.json", xid_recovery_seconds=PATIENCE * 10)
    node = watch(host, options)
    bad = uuid(node.until(all_healthy), 2)
    with host.change() as topology:
        topology.raise_xid(2, 79)
    node.until(lambda snapshot: snapshot.health[bad] != HEALTHY)
    node.monitor.stop()
    with host.change() as topology:
        topology.set_health(2, "lost")
    successor = watch(host, options)
    successor.until(lambda snapshot: ready(snapshot) and bad not in snapshot.health)
    with host.change() as topology:
        topology.set_health(2, "ok")
    successor.until(lambda snapshot: bad in snapshot.health and all_healthy(snapshot))


def test_restart_keeps_counts_and_expected_gpus(host: Host, watch: Start, tmp_path: Path) -> None:
    options = replace(QUICK, memory=tmp_path / "health.json")
    node = watch(host, options)
    before = node.until(all_healthy)
    with host.change() as topology:
        topology.raise_xid(2, 48)
    node.until(lambda snapshot: snapshot.health[uuid(before, 2)] != HEALTHY)
    (counted,) = node.monitor.xids().items()
    assert (counted[0], counted[1][0]) == ((uuid(before, 2), 48), 1)
    node.monitor.stop()
    with host.change() as topology:
        lost = topology.gpus.pop().uuid
        topology.switch_links.pop()
    successor = watch(host, options)
    after = successor.until(ready)
    assert after.inventory is not None
    assert lost not in {gpu.uuid for gpu in after.inventory.gpus}
    assert set(successor.monitor.seen()) == set(before.health)
    assert dict([counted]) == successor.monitor.xids()
    with host.change() as topology:
        topology.raise_xid(2, 48)
    wait(lambda: successor.monitor.xids()[uuid(before, 2), 48][0] == 2)


def test_restart_does_not_forget_memory_errors(host: Host, watch: Start, tmp_path: Path) -> None:
    options = replace(QUICK, memory=tmp_path / "health.json")
    with host.change() as topology:
        topology.gpus[1].ecc_uncorrected = 7
    node = watch(host, replace(options, xid_recovery_seconds=0.0))
    node.until(ready)
    node.until(all_healthy)
    node.monitor.stop()
    assert watch(host, options).until(ready).health == node.monitor.snapshot().health
    with host.change() as topology:
        topology.gpus[1].ecc_uncorrected = 8
    snapshot = watch(host, options).until(lambda snapshot: ready(snapshot) and HEALTHY in snapshot.health.values())
    assert [health.reason for health in snapshot.health.values() if health != HEALTHY] == [
        "new uncorrectable memory errors"
    ]


def test_nothing_new_is_no_new_version(host: Host, watch: Start) -> None:
    node = watch(host)
    snapshot = node.until(ready)
    node.polls(5)
    assert node.monitor.snapshot() is snapshot
    assert node.monitor.wait(snapshot.version, 0.01) is snapshot


def test_wedged_driver_leaves_the_inventory_and_is_got_over(host: Host, watch: Start) -> None:
    node = watch(host, replace(QUICK, deadline=0.5))
    before = node.until(all_healthy)
    with host.change() as topology:
        topology.wedge("nvmlDeviceGetMemoryInfo")
    wedged = node.until(lambda snapshot: snapshot.driver_state is DriverState.WEDGED)
    assert "did not answer within 0.5 s" in wedged.detail
    assert wedged.inventory == before.inventory
    assert set(wedged.health.values()) == {GpuHealth(Health.UNKNOWN, wedged.detail)}
    with host.change() as topology:
        topology.wedge(None)
    assert node.until(all_healthy).inventory == before.inventory
    assert all(worker.gone() for worker in node.workers[:-1])


def test_gpu_known_to_be_bad_stays_so_while_the_driver_is_wedged(host: Host, watch: Start) -> None:
    node = watch(host, replace(QUICK, deadline=0.5))
    before = node.until(all_healthy)
    with host.change() as topology:
        topology.raise_xid(2, 48)
    bad = node.until(lambda snapshot: snapshot.health[uuid(before, 2)] != HEALTHY)
    with host.change() as topology:
        topology.wedge("all")
    wedged = node.until(lambda snapshot: snapshot.driver_state is DriverState.WEDGED)
    assert wedged.health[uuid(before, 2)] == bad.health[uuid(before, 2)]
    assert wedged.health[uuid(before, 1)].health is Health.UNKNOWN


class Undying(Spy):
    """A worker that the kernel does not let die, until told to."""

    may_die = False

    def kill(self) -> None:
        if self.may_die:
            super().kill()

    def gone(self) -> bool:
        self.kill()
        return super().gone()


def test_workers_that_cannot_die_do_not_pile_up(host: Host, watch: Start) -> None:
    with host.change() as topology:
        topology.wedge("all")
    node = watch(host, replace(QUICK, deadline=0.5, start_deadline=0.5), Undying)
    stuck = node.until(lambda snapshot: "cannot be ended" in snapshot.detail)
    assert stuck.driver_state is DriverState.WEDGED
    undying = list(node.workers)
    assert len(undying) == 2
    assert all(str(worker.pid) in stuck.detail for worker in undying)
    with pytest.raises(QuiesceError, match="hangs in the kernel driver"):
        node.monitor.quiesce(PATIENCE * 10)
    node.monitor.resume()
    node.worker = Spy
    with host.change() as topology:
        topology.wedge(None)
    for worker in undying:
        assert isinstance(worker, Undying)
        worker.may_die = True
    node.until(all_healthy)


def test_worker_that_dies_is_replaced_unnoticed(host: Host, watch: Start) -> None:
    node = watch(host)
    before = node.until(ready)
    os.kill(node.workers[0].pid, signal.SIGKILL)
    wait(lambda: len(node.workers) == 2 and node.workers[1].polls > 2)
    assert node.monitor.snapshot() is before


class Crashing(Spy):
    """Dies at its first poll, as a library with a fault would have it."""

    def send(self, message: Mapping[str, Any]) -> None:
        if message["op"] == "poll":
            self._process.kill()
        super().send(message)


def test_worker_that_always_dies_makes_health_unknown(host: Host, watch: Start) -> None:
    node = watch(host, worker=Crashing)
    node.until(all_healthy)
    snapshot = node.until(lambda snapshot: not ready(snapshot))
    assert snapshot.driver_state is DriverState.UNAVAILABLE
    assert set(snapshot.health.values()) == {GpuHealth(Health.UNKNOWN, "the NVML worker was killed by signal 9")}
    wait(lambda: len(node.workers) > 4)
    assert node.monitor.snapshot() is snapshot


def test_driver_that_is_not_loaded_yet(host: Host, watch: Start) -> None:
    with host.change() as topology:
        driver, topology.system.driver = topology.system.driver, "none"
    node = watch(host)
    snapshot = node.until(lambda snapshot: snapshot.driver_state is DriverState.UNAVAILABLE)
    assert "driver is not loaded" in snapshot.detail
    assert "modprobe nvidia" in snapshot.detail
    assert snapshot.inventory is None
    with host.change() as topology:
        topology.system.driver = driver
    node.until(all_healthy)


def test_driver_library_that_is_not_there_yet(host: Host, watch: Start) -> None:
    library = host.library.rename(host.library.with_name("elsewhere"))
    node = watch(host)
    snapshot = node.until(lambda snapshot: snapshot.driver_state is DriverState.UNAVAILABLE)
    assert "libnvidia-ml.so.1 was not found" in snapshot.detail
    shutil.move(library, host.library)
    node.until(all_healthy)


def test_driver_upgrade(host: Host, watch: Start) -> None:
    node = watch(host)
    before = node.until(all_healthy)
    with host.change() as topology:
        topology.raise_xid(2, 48)
    node.until(lambda snapshot: snapshot.health[uuid(before, 2)] != HEALTHY)
    with host.change() as topology:
        topology.system.driver = "none"
    gone = node.until(lambda snapshot: snapshot.driver_state is DriverState.UNAVAILABLE)
    assert gone.inventory == before.inventory
    assert {health.health for health in gone.health.values()} == {Health.UNHEALTHY}
    assert "not loaded" in gone.health[uuid(before, 0)].reason
    with host.change() as topology:
        topology.system.driver = "999.1"
    after = node.until(all_healthy)
    assert inventory(after).driver_version == "999.1"


def test_gpu_that_vanishes_stays_known(host: Host, watch: Start) -> None:
    node = watch(host)
    before = node.until(all_healthy)
    with host.change() as topology:
        vanished, links = topology.gpus.pop(), topology.switch_links.pop()
    missing = GpuHealth(Health.UNHEALTHY, "not enumerated by the driver")
    # It may vanish amid a poll, which then has faults of single values.
    node.until(lambda snapshot: replace(snapshot.health[vanished.uuid], faults=()) == missing)
    wait(lambda: len(node.workers) > 2)  # workers are renewed while it is missing
    assert node.monitor.snapshot().inventory == before.inventory
    with host.change() as topology:
        topology.gpus.append(vanished)
        topology.switch_links.append(links)
    assert node.until(all_healthy).inventory == before.inventory


def test_gpu_that_appears_joins(host: Host, watch: Start) -> None:
    with host.change() as topology:
        late, links = topology.gpus.pop(), topology.switch_links.pop()
    node = watch(host)
    assert len(node.until(all_healthy).health) == 7
    with host.change() as topology:
        topology.gpus.append(late)
        topology.switch_links.append(links)
    snapshot = node.until(lambda snapshot: late.uuid in snapshot.health)
    assert all_healthy(snapshot)


def test_mig_mode_is_followed(host: Host, watch: Start) -> None:
    node = watch(host)
    node.until(all_healthy)
    with host.change() as topology:
        topology.gpus[4].mig = 1
    node.until(lambda snapshot: [gpu.mig_enabled for gpu in inventory(snapshot).gpus] == [n == 4 for n in range(8)])


def test_mig_devices_are_told_and_followed(make_host: Callable[[str], Host], watch: Start) -> None:
    host = make_host("4xa100-mig")
    with host.change() as topology:
        sysfs.write_capabilities(topology, host.root)
    node = watch(host)
    gpus = inventory(node.until(all_healthy)).gpus
    assert [[mig.profile for mig in gpu.mig_devices] for gpu in gpus] == [
        ["1g.5gb"] * 7,
        ["3g.20gb", "2g.10gb", "1g.5gb"],
        [],
        [],
    ]
    expected = [mig for mig in topology.migs if mig.gpu == 1]
    attributes = dict(gpus[1].mig_devices[1].attributes)
    assert (attributes["multiprocessors"], attributes["slices.gi"], attributes["slices.ci"]) == (28, 2, 2)
    assert tuple(replace(mig, attributes=()) for mig in gpus[1].mig_devices) == tuple(
        MigDevice(mig.uuid, mig.slot or 0, mig.profile, mig.mem, (138 + mig.gi * 9, 139 + mig.gi * 9))
        for mig in expected
    )
    with host.change() as topology:
        topology.migs = [mig for mig in topology.migs if mig.gpu == 1]
    node.until(lambda snapshot: not inventory(snapshot).gpus[0].mig_devices)


def test_mig_devices_whose_files_the_driver_does_not_tell(make_host: Callable[[str], Host], watch: Start) -> None:
    gpus = inventory(watch(make_host("4xa100-mig")).until(all_healthy)).gpus
    assert {mig.capabilities for gpu in gpus for mig in gpu.mig_devices} == {()}


def test_hot_plug_renews_the_worker(host: Host, watch: Start) -> None:
    """Real NVML keeps its count until it is initialised anew; only the kernel's list tells."""
    node = watch(host)
    node.until(ready)
    (host.sysfs_root / "bus/pci/drivers/nvidia/0000:ff:00.0").mkdir()
    wait(lambda: len(node.workers) == 2 and node.workers[1].polls > 2)
    assert len(node.workers) == 2


def test_quiesce_lets_go_and_resumes(host: Host, watch: Start) -> None:
    node = watch(host)
    before = node.until(all_healthy)
    with host.change() as topology:
        topology.raise_xid(2, 48)
    node.until(lambda snapshot: snapshot.health[uuid(before, 2)] != HEALTHY)
    node.monitor.quiesce(PATIENCE * 10)
    quiesced = node.monitor.snapshot()
    assert node.workers[-1].gone()
    assert quiesced.driver_state is DriverState.QUIESCED
    assert quiesced.inventory == before.inventory
    assert quiesced.health[uuid(before, 0)] == GpuHealth(Health.UNHEALTHY, quiesced.detail)
    assert {health.health for health in quiesced.health.values()} == {Health.UNHEALTHY}
    node.monitor.resume()
    node.until(all_healthy)  # the GPU with the XID too: it could have been reset meanwhile


def test_quiesce_lasts_until_all_who_asked_for_it_resume(host: Host, watch: Start) -> None:
    node = watch(host)
    node.until(all_healthy)
    node.monitor.quiesce(PATIENCE * 10, "one")
    node.monitor.quiesce(PATIENCE * 10, "other")
    node.monitor.resume("one")
    node.monitor.resume("nobody")
    version = node.monitor.snapshot().version
    assert node.monitor.wait(version, 0.3).driver_state is DriverState.QUIESCED
    assert node.workers[-1].gone()
    node.monitor.resume("other")
    node.until(all_healthy)


def test_quiesce_ends_by_itself(host: Host, watch: Start) -> None:
    node = watch(host, replace(QUICK, deadline=1.0))
    node.until(all_healthy)
    node.monitor.quiesce(0.01)
    assert node.workers[-1].gone()
    node.until(all_healthy)
    node.monitor.resume()
    assert all_healthy(node.monitor.snapshot())


def test_quiesce_ends_a_wedged_worker(host: Host, watch: Start) -> None:
    with host.change() as topology:
        topology.wedge("all")
    node = watch(host)
    wait(lambda: bool(node.workers))
    node.monitor.quiesce(PATIENCE * 10)
    assert node.monitor.snapshot().driver_state is DriverState.QUIESCED
    assert node.workers[-1].gone()


PARENT = """
import sys, time
from pathlib import Path
from kube_accel.nvml.process import WorkerProcess, worker_command
worker = WorkerProcess(worker_command(Path(sys.argv[1])))
worker.send({"id": 1, "op": "inventory"})
while not worker.receive()[0]:
    time.sleep(0.005)
print(worker.pid, flush=True)
input()
worker.send({"id": 2, "op": "poll"})
print("sent", flush=True)
input()
"""


@pytest.mark.parametrize("wedge", [None, "all"])
def test_worker_dies_with_its_parent(host: Host, wedge: str | None) -> None:
    command = [sys.executable, "-c", PARENT, str(host.sysfs_root)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as parent:
        assert parent.stdin is not None
        assert parent.stdout is not None
        worker = Path("/proc", parent.stdout.readline().strip())
        assert worker.exists()
        with host.change() as topology:
            topology.wedge(wedge)
        parent.stdin.write("\n")
        parent.stdin.flush()
        assert parent.stdout.readline() == "sent\n"
        parent.kill()
        wait(lambda: not worker.exists() or "(zombie)" in (worker / "status").read_text())
