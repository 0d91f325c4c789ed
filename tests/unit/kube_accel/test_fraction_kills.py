# SPDX-License-Identifier: Apache-2.0
"""A plugin killed at any instant of allocations: what it wrote down and told is in the end what kubelet says."""

from __future__ import annotations

import random
import tempfile
from collections import Counter
from contextlib import ExitStack
from pathlib import Path
from threading import Timer

from kube_accel.model import Mode
from sim.kubelet import AdmissionError, ContainerStartError, PodSpec
from unit.kube_accel.fraction_node import FractionNode
from waiting import wait

ROUNDS, PODS = 3, 8


def kubelets_view(node: FractionNode) -> dict[tuple[str, str], tuple[int, int, int]]:
    """GPU index, cores and bytes by pod and container; every container is on one GPU."""
    found = {}
    for pod, containers in node.kubelet.held():
        for name, devices in containers.items():
            (gpu,) = {device.partition("::")[0] for ids in devices.values() for device in ids}
            memory = len(devices[node.memory]) * node.profile.memory_unit_bytes
            found[pod.name, name] = (node.uuids.index(gpu), len(devices[node.cores]), memory)
    return found


def agreed(node: FractionNode) -> bool:
    held = kubelets_view(node)
    ledger = {(pod, name): (gpu, cores) for pod, name, gpu, cores, ended in node.ledger() if not ended}
    return ledger == {key: got[:2] for key, got in held.items()} and node.held() == {
        key: [got] for key, got in held.items()
    }


def test_ledger_kubelet_and_annotation_agree_after_any_kill() -> None:
    rng = random.Random(0)
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/tmp")))
        node = FractionNode(root, stack, Mode.VGPU, gpus="4xa100-mig")
        node.start_api()
        node.start()
        pods: list[PodSpec] = []
        interrupted = 0
        for number in range(ROUNDS):
            killer = Timer(rng.uniform(0, 0.3), node.kill)
            killer.start()
            unstarted = []
            for each in range(PODS):
                amounts = {"main": (rng.choice((5, 10, 20)), rng.choice((4, 8, 16)))}
                pod = node.pod(f"p{number}{each}", amounts, assigned={"main": (rng.randrange(4),)})
                try:
                    node.kubelet.admit(pod)
                except AdmissionError:
                    # Its controller makes another.
                    interrupted += 1
                    node.end(pod)
                    continue
                except ContainerStartError:
                    interrupted += 1
                    unstarted.append(pod)
                pods.append(pod)
            killer.join()
            node.start()
            for pod in unstarted:
                node.kubelet.run(pod)
            wait(lambda: agreed(node), "agreement of ledger, kubelet and annotation")
            cores: Counter[int] = Counter()
            for gpu, taken, _ in kubelets_view(node).values():
                cores[gpu] += taken
            assert max(cores.values(), default=0) <= 100
            for pod in rng.sample(pods, len(pods) // 2):
                pods.remove(pod)
                node.end(pod)
        assert interrupted, "no kill came while there was anything to interrupt"
        wait(lambda: agreed(node), "agreement of ledger, kubelet and annotation")
