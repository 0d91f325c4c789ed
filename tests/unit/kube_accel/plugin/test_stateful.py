# SPDX-License-Identifier: Apache-2.0
"""Whatever happens to GPUs, kubelet and plugin: at rest exactly the good GPUs are offered, and none has two pods."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from kube_accel.model import Health
from sim.kubelet import AdmissionError, Container, FakeKubelet, PodSpec
from unit.kube_accel.plugin import scripted_daemon
from unit.kube_accel.plugin.fakes import uuid

RESOURCE = "nvidia.com/gpu"
GPUS = 4
DEADLINE = 20.0
TESTS = Path(__file__).parents[3]


class Node(RuleBasedStateMachine):
    def __init__(self) -> None:
        super().__init__()
        self.directory = tempfile.TemporaryDirectory(dir="/tmp")
        self.root = Path(self.directory.name)
        self.health = [Health.HEALTHY] * GPUS
        self.write_health()
        self.kubelet = FakeKubelet(self.root)
        self.plugins: list[subprocess.Popen[bytes]] = []
        self.good = {uuid(i) for i in range(GPUS)}
        """What the newest plugin process knows to be good."""
        self.pods: dict[str, tuple[PodSpec, frozenset[str]]] = {}
        self.created = 0

    @initialize(seed=st.integers(0, 1 << 32))
    def begin(self, seed: int) -> None:
        self.kubelet = FakeKubelet(self.root, random.Random(seed))
        self.kubelet.start()
        self.start_plugin()

    def write_health(self) -> None:
        candidate = self.root / "health.new"
        candidate.write_text(json.dumps([health.value for health in self.health]))
        candidate.replace(self.root / scripted_daemon.HEALTH)

    def start_plugin(self) -> None:
        command = [sys.executable, "-m", scripted_daemon.__name__, str(self.root)]
        environment = os.environ | {"PYTHONPATH": os.pathsep.join([str(TESTS), *sys.path])}
        plugin = subprocess.Popen(command, env=environment)
        self.plugins.append(plugin)
        # Once it is followed it has read the GPUs: what it then knows to be good is what they are now.
        self.kubelet.wait(lambda: any(f"-{plugin.pid}-" in name for name in self.kubelet.following()), DEADLINE)
        self.good = {uuid(i) for i in range(GPUS) if self.health[i] is Health.HEALTHY}

    def healthy(self) -> set[str]:
        return {name for name, device in self.kubelet.devices(RESOURCE).items() if device.healthy}

    @rule(gpu=st.integers(0, GPUS - 1), health=st.sampled_from(Health))
    def a_gpu_changes(self, gpu: int, health: Health) -> None:
        self.health[gpu] = health
        self.write_health()
        if health is Health.HEALTHY:
            self.good.add(uuid(gpu))
        elif health is Health.UNHEALTHY:
            self.good.discard(uuid(gpu))

    @rule()
    def kubelet_restarts(self) -> None:
        self.kubelet.restart()

    @rule()
    def the_plugin_is_killed(self) -> None:
        while self.plugins:
            self.end(self.plugins.pop())
        self.start_plugin()

    @precondition(lambda self: len(self.plugins) == 1)
    @rule()
    def an_upgrade_begins(self) -> None:
        self.start_plugin()

    @precondition(lambda self: len(self.plugins) == 2)
    @rule()
    def an_upgrade_ends(self) -> None:
        self.end(self.plugins.pop(0))

    @rule(count=st.integers(1, GPUS))
    def a_pod_comes(self, count: int) -> None:
        self.created += 1
        pod = PodSpec("ns", f"pod-{self.created}", f"uid-{self.created}", (Container("main", {RESOURCE: count}),))
        free = self.good - self.held()
        if count > len(free):
            with pytest.raises(AdmissionError):
                self.kubelet.admit(pod)
            return
        given = frozenset(self.kubelet.admit(pod)["main"].device_ids[RESOURCE])
        assert len(given) == count
        assert given <= free
        self.pods[pod.uid] = (pod, given)

    @precondition(lambda self: self.pods)
    @rule(data=st.data())
    def a_pod_ends(self, data: st.DataObject) -> None:
        pod, _ = self.pods.pop(data.draw(st.sampled_from(sorted(self.pods))))
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
    stateful_step_count=12,
    deadline=None,
    suppress_health_check=[HealthCheck.too_slow],
)
