# SPDX-License-Identifier: Apache-2.0
"""A simulated host, a monitor on it, and a way to wait for what it should come to see."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

import sim.nvml
from kube_accel.model import Snapshot
from kube_accel.nvml.monitor import GpuMonitor
from kube_accel.nvml.options import MonitorOptions
from kube_accel.nvml.process import WorkerProcess, worker_command
from sim.nvml import profiles, sysfs
from sim.nvml.topology import Topology, edit
from waiting import wait

NODE = "node-a"
PATIENCE = 30.0
QUICK = MonitorOptions(
    poll_interval=0.02,
    deadline=PATIENCE,
    start_deadline=PATIENCE,
    retry_initial=0.02,
    retry_max=0.1,
    renew_interval=0.2,
)


@dataclass
class Host:
    """One simulated machine."""

    root: Path
    library: Path
    topology_file: Path

    def change(self) -> AbstractContextManager[Topology]:
        return edit(self.topology_file)

    @property
    def sysfs_root(self) -> Path:
        return self.root / "sys"


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return sim.nvml.build(tmp_path_factory.mktemp("simnvml"))


@pytest.fixture
def make_host(tmp_path: Path, library: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[str], Host]:
    def make(profile: str) -> Host:
        topology = profiles.PROFILES[profile](NODE)
        installed = tmp_path / "usr/lib" / sim.nvml.LIBRARY
        installed.parent.mkdir(parents=True)
        installed.symlink_to(library)
        topology.save(tmp_path / "gpusim.conf")
        sysfs.write(topology, tmp_path)
        sysfs.load_driver(topology, tmp_path)
        monkeypatch.setenv("LD_LIBRARY_PATH", str(installed.parent))
        monkeypatch.setenv("GPUSIM_FILE", str(tmp_path / "gpusim.conf"))
        return Host(tmp_path, installed, tmp_path / "gpusim.conf")

    return make


@pytest.fixture
def host(make_host: Callable[[str], Host]) -> Host:
    return make_host("8xh100")


class Spy(WorkerProcess):
    """A worker that counts the requests it was sent."""

    polls = 0

    def send(self, message: Mapping[str, Any]) -> None:
        self.polls += message["op"] == "poll"
        super().send(message)


@dataclass
class Watch:
    """A monitor, and the workers it has started."""

    host: Host
    options: MonitorOptions
    worker: type[Spy] = Spy
    workers: list[Spy] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.monitor = GpuMonitor(self.options, self.spawn)

    def spawn(self) -> WorkerProcess:
        self.workers.append(self.worker(worker_command(self.host.sysfs_root, self.host.root / "proc")))
        return self.workers[-1]

    def until(self, condition: Callable[[Snapshot], bool]) -> Snapshot:
        """The first snapshot for which the condition holds."""
        deadline, snapshot = time.monotonic() + PATIENCE, self.monitor.snapshot()
        while not condition(snapshot):
            assert time.monotonic() < deadline, f"still {snapshot}"
            snapshot = self.monitor.wait(snapshot.version, deadline - time.monotonic())
        return snapshot

    def polls(self, count: int) -> None:
        """Return when the current worker was polled so often more."""
        worker = self.workers[-1]
        enough = worker.polls + count
        wait(lambda: worker.polls >= enough)


@pytest.fixture
def watch() -> Iterator[Callable[..., Watch]]:
    watches: list[Watch] = []

    def start(host: Host, options: MonitorOptions = QUICK, worker: type[Spy] = Spy) -> Watch:
        watches.append(Watch(host, options, worker))
        watches[-1].monitor.start()
        return watches[-1]

    yield start
    for started in watches:
        started.monitor.stop()
        for worker in started.workers:
            assert worker.gone()
