# SPDX-License-Identifier: Apache-2.0
"""Whatever happens to GPUs, driver, kubelet and plugin: at rest exactly the good GPUs are offered, none to two pods.

The plugin, its NVML worker and their sockets are real; NVML, the kernel's log and kubelet are simulated. ``make soak``
takes ten thousand steps.
"""

from __future__ import annotations

import os
import random
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import HealthCheck, Phase, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from sim.kubelet import AdmissionError, Container, FakeKubelet, PodSpec
from sim.nvml import build, sysfs
from sim.nvml.profiles import PROFILES
from sim.nvml.topology import edit
from unit.kube_accel.plugin import quick_daemon
from waiting import wait

pytestmark = pytest.mark.ci
RESOURCE = "nvidia.com/gpu"
GPUS = 4
DEADLINE = 30.0
TESTS = Path(__file__).parents[3]
APPLICATION_XID, CRITICAL_XID = 31, 48
NOT_YET = ("has become unhealthy", "is none of this node's GPUs")
"""What a plugin says of a GPU that it has not seen good again, or never saw because that was lost when it began."""

gpus = st.integers(0, GPUS - 1)


class Node(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory(dir="/tmp")
        self.root = Path(self.directory.name)
        self.topology = PROFILES["8xh100"]("node")
        del self.topology.gpus[GPUS:], self.topology.switch_links[GPUS:]
        self.conf = self.root / "gpusim.conf"
        self.topology.save(self.conf)
        sysfs.write(self.topology, self.root)
        sysfs.load_driver(self.topology, self.root)
        build(self.root / "lib")
        self.kernel_log = self.root / quick_daemon.KERNEL_LOG
        self.kernel_log.touch()
        self.uuids = [gpu.uuid for gpu in self.topology.gpus]
        self.kubelet = FakeKubelet(self.root)
        self.plugins: list[subprocess.Popen[bytes]] = []
        self.lost: set[int] = set()
        self.incident: set[int] = set()
        """GPUs of which an XID was told that no reset has ended; it would age for longer than a test takes."""
        self.hangs = False
        self.agreed = True
        """Each plugin has seen all there was: kubelet believes the first of two, the other may be a poll behind."""
        self.pods: dict[str, tuple[PodSpec, frozenset[str]]] = {}
        self.created = 0

    @initialize(seed=st.integers(0, 1 << 32))
    def begin(self, seed: int) -> None:
        self.kubelet = FakeKubelet(self.root, random.Random(seed))
        self.kubelet.start()
        self.start_plugin()

    def start_plugin(self) -> None:
        command = [sys.executable, "-m", quick_daemon.__name__, str(self.root)]
        environment = os.environ | {
            "PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path]),
            "LD_LIBRARY_PATH": str(self.root / "lib"),
            "GPUSIM_FILE": str(self.conf),
        }
        plugin = subprocess.Popen(command, env=environment, stderr=subprocess.DEVNULL)
        self.plugins.append(plugin)
        self.agreed = True
        self.kubelet.wait(lambda: any(f"-{plugin.pid}-" in name for name in self.kubelet.following()), DEADLINE)

    def has_read_the_kernel_log(self, plugin: subprocess.Popen[bytes]) -> bool:
        process = Path(f"/proc/{plugin.pid}")
        for file in (process / "fd").iterdir():
            with suppress(FileNotFoundError):  # other files come and go
                if file.readlink() == self.kernel_log:
                    position = int((process / "fdinfo" / file.name).read_text().split()[1])
                    return position == self.kernel_log.stat().st_size
        return False

    @property
    def good(self) -> set[str]:
        return {uuid for index, uuid in enumerate(self.uuids) if index not in self.lost | self.incident}

    def healthy(self) -> set[str]:
        return {name for name, device in self.kubelet.devices(RESOURCE).items() if device.healthy}

    @precondition(lambda self: not self.hangs)
    @rule(gpu=gpus)
    def a_gpu_is_lost(self, gpu: int) -> None:
        with edit(self.conf) as node:
            node.set_health(gpu, "lost")
        self.lost.add(gpu)
        self.agreed = len(self.plugins) < 2

    # One that was unhealthy before may be back before a plugin saw it lost, and then its XID goes on to count.
    @precondition(lambda self: self.lost - self.incident and not self.hangs)
    @rule(data=st.data())
    def a_gpu_is_back(self, data: st.DataObject) -> None:
        gpu = data.draw(st.sampled_from(sorted(self.lost - self.incident)))
        # An XID that is heard of when the GPU is back counts.
        wait(lambda: all(self.has_read_the_kernel_log(plugin) for plugin in self.plugins))
        with edit(self.conf) as node:
            node.set_health(gpu, "ok")
        self.lost.discard(gpu)
        self.agreed = len(self.plugins) < 2

    @precondition(lambda self: not self.hangs)
    @rule(gpu=gpus, xid=st.sampled_from([APPLICATION_XID, CRITICAL_XID]), by_nvml=st.booleans())
    def an_xid_comes(self, gpu: int, xid: int, by_nvml: bool) -> None:
        if gpu in self.lost and not self.agreed:
            return  # to a plugin that has not seen it lost the XID goes on to count when it is back
        if by_nvml:
            with edit(self.conf) as node:
                node.raise_xid(gpu, xid)
        slot = self.topology.gpus[gpu].pci.rpartition(".")[0]
        with self.kernel_log.open("a") as log:
            log.write(f"Nov 21 18:29:19 node kernel: NVRM: Xid (PCI:{slot}): {xid}, pid=77, name=python\n")
        # A lost GPU will have been reset when it is back.
        if xid == CRITICAL_XID and gpu not in self.lost:
            self.incident.add(gpu)
        self.agreed = len(self.plugins) < 2

    @precondition(lambda self: self.agreed and not self.hangs)
    @rule()
    def the_driver_hangs(self) -> None:
        with edit(self.conf) as node:
            node.wedge("all")
        self.hangs = True

    @precondition(lambda self: self.hangs)
    @rule()
    def the_driver_answers_again(self) -> None:
        with edit(self.conf) as node:
            node.wedge(None)
        self.hangs = False

    @rule()
    def kubelet_restarts(self) -> None:
        self.kubelet.restart()

    # A plugin that starts while the driver hangs has nothing to offer: it was never seen good.
    @precondition(lambda self: not self.hangs)
    @rule()
    def the_plugin_is_killed(self) -> None:
        while self.plugins:
            self.end(self.plugins.pop())
        self.start_plugin()

    @precondition(lambda self: len(self.plugins) == 1 and not self.hangs)
    @rule()
    def an_upgrade_begins(self) -> None:
        self.start_plugin()

    @precondition(lambda self: len(self.plugins) == 2)
    @rule()
    def an_upgrade_ends(self) -> None:
        self.end(self.plugins.pop(0))
        self.agreed = True

    @rule(count=st.integers(1, GPUS))
    def a_pod_comes(self, count: int) -> None:
        self.created += 1
        pod = PodSpec("ns", f"pod-{self.created}", f"uid-{self.created}", (Container("main", {RESOURCE: count}),))
        free = self.good - self.held()
        if count > len(free):
            with pytest.raises(AdmissionError):
                self.kubelet.admit(pod)
            return
        given = self.admit(pod)
        assert len(given) == count
        assert given <= free
        self.pods[pod.uid] = (pod, given)

    def admit(self, pod: PodSpec) -> frozenset[str]:
        """What it is given.

        While two plugins run, each sees at a poll of its own that a GPU is good again; kubelet believes either, and
        asks the newer one, which may refuse for a moment.
        """
        deadline = time.monotonic() + DEADLINE
        while True:
            try:
                return frozenset(self.kubelet.admit(pod)["main"].device_ids[RESOURCE])
            except AdmissionError as error:
                waits = len(self.plugins) == 2 and any(reason in str(error) for reason in NOT_YET)
                if not waits or time.monotonic() > deadline:
                    raise

    # Which pods there are hangs on who was given which GPU, which differs when the same steps are taken again. What is
    # drawn must not.
    @rule(number=st.integers(0, GPUS - 1))
    def a_pod_ends(self, number: int) -> None:
        if self.pods:
            pod, _ = self.pods.pop(sorted(self.pods)[number % len(self.pods)])
            self.kubelet.remove(pod)

    def held(self) -> set[str]:
        return {device for _, devices in self.pods.values() for device in devices}

    @invariant()
    def the_good_gpus_are_offered_and_no_others(self) -> None:
        if self.plugins:
            self.kubelet.wait(lambda: self.healthy() == self.good, DEADLINE)

    def end(self, plugin: subprocess.Popen[bytes]) -> None:
        """Kill it, and wait until kubelet noticed: until then it believes the last list, and may admit a pod on it."""
        plugin.kill()
        plugin.wait()
        self.kubelet.wait(lambda: not any(f"-{plugin.pid}-" in name for name in self.kubelet.following()), DEADLINE)

    def teardown(self) -> None:
        for plugin in self.plugins:
            self.end(plugin)
        self.kubelet.stop()
        self.directory.cleanup()


TestNode = Node.TestCase
TestNode.settings = settings(
    max_examples=int(os.environ.get("KUBE_ACCEL_EXAMPLES", "6")),
    stateful_step_count=40,
    phases=(Phase.explicit, Phase.reuse, Phase.generate),  # each step takes real time: shrinking would take hours
    suppress_health_check=[HealthCheck.too_slow],
)
