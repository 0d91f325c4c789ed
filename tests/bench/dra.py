# SPDX-License-Identifier: Apache-2.0
"""``make bench BENCH=dra``: the DRA driver, run and timed from outside.

The shipped command beside a simulated driver and an API server in this process, which is in the place of kubelet. A
sample is one claim of a share that kubelet has prepared and released while others stay prepared, and the reading of
that claim from the API server is part of it.
"""

from __future__ import annotations

import argparse
import itertools
import os
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from bench.measure import Result, Series, process_tree, pss_bytes, report
from bench.node import NAME, NAMESPACE, Node, end, simulated_node
from bench.plugin import calls, quantiles, say, spent, timed, wait
from bench.wire import Channel
from cluster.control_plane import free_port
from dra_command import Places, dra_command
from kube_accel.dra.slices import DRIVER
from kube_accel.dra.sockets import paths
from kube_accel.kube.proto import dra_pb2 as pb
from kube_accel.model import Mode
from kube_accel.shared.modes import DRA_SHARE_CLASS, dra_pool
from sim import native
from sim.nvml.topology import edit

PREPARED = 40
"""Shares that stay prepared meanwhile, five on each of eight GPUs."""
AMOUNTS = {"cores": "10", "memory": "8Gi"}
SERVICE = "/k8s.io.kubelet.pkg.apis.dra.v1.DRAPlugin"
REGISTRATION = "/pluginregistration.Registration"


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured; a tenth more of the claims comes first and does not count."""

    claims: int = 500
    failures: int = 10
    settling_seconds: float = 15
    """From the last claim to rest: the driver looks at its files once more."""
    idle_seconds: float = 20


class Claims:
    """Claims of a share, as kube-scheduler leaves them, and kubelet's calls for them."""

    def __init__(self, node: Node, channel: Channel) -> None:
        self._node = node
        self._numbers = itertools.count()
        self._prepare = _method(channel, "NodePrepareResources", pb.NodePrepareResourcesResponse)
        self._unprepare = _method(channel, "NodeUnprepareResources", pb.NodeUnprepareResourcesResponse)

    def prepared(self) -> tuple[pb.Claim, float]:
        """A claim that is prepared now, and the seconds that this took."""
        number = next(self._numbers)
        claim = self._create(f"claim-{number}", number % len(self._node.uuids))
        request = pb.NodePrepareResourcesRequest(claims=[claim])
        answers: list[Any] = []
        seconds = timed(lambda: answers.append(self._prepare(request)))
        if error := answers[0].claims[claim.uid].error:
            raise RuntimeError(f"{claim.name} is not prepared: {error}")
        return claim, seconds

    def release(self, claim: pb.Claim) -> float:
        """Have a claim released, and return the seconds that this took."""
        request = pb.NodeUnprepareResourcesRequest(claims=[claim])
        seconds = timed(lambda: self._unprepare(request))
        self._node.store.delete("resourceclaims", NAMESPACE, claim.name)
        return seconds

    def _create(self, name: str, gpu: int) -> pb.Claim:
        asked = {"deviceClassName": DRA_SHARE_CLASS, "capacity": {"requests": AMOUNTS}}
        spec = {"devices": {"requests": [{"name": "share", "exactly": asked}]}}
        body = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": {"name": name}, "spec": spec}
        result: dict[str, Any] = {
            "request": "share",
            "driver": DRIVER,
            "pool": dra_pool(NAME),
            "device": f"gpu-{gpu:02}",
        }
        result |= {"consumedCapacity": AMOUNTS, "shareID": f"share-{name}"}
        store, status = self._node.store, {"allocation": {"devices": {"results": [result]}}}
        made = store.create("resourceclaims", NAMESPACE, body)
        store.edit("resourceclaims", NAMESPACE, name, lambda claim: claim.update(status=status))
        return pb.Claim(namespace=NAMESPACE, name=name, uid=str(made["metadata"]["uid"]))


def _method(channel: Channel, name: str, reply: Any, service: str = SERVICE) -> Any:
    return channel.unary_unary(f"{service}/{name}", lambda request: request.SerializeToString(), reply.FromString)


class Driver:
    """The shipped command on a node, registered as kubelet does."""

    def __init__(self, node: Node) -> None:
        self._node = node
        self._plugins, self._registry = node.root / "plugins", node.root / "registry"
        self._url = f"http://127.0.0.1:{(port := free_port())}"
        root = node.root
        places = Places(
            self._plugins,
            self._registry,
            root / "state",
            root / "serviceaccount",
            root / "cdi",
            sysfs_root=root / "sys",
            dev_root=root / "dev",
            proc_root=root / "proc",
            container_driver_root=root,
            shim_dir=native.build(),
        )
        self._command = dra_command(port, places, f"--node-name={NAME}", "--shares")

    @contextmanager
    def running(self) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
        """The process and the socket that kubelet calls, once it is ready. Raises RuntimeError with its log."""
        for directory in (self._plugins, self._registry):
            directory.mkdir(exist_ok=True)
        self._node.store.keeps_shares = True
        log, where = self._node.root / "dra.log", paths(self._plugins, self._registry, "")
        with log.open("wb") as output:
            process = subprocess.Popen(
                self._command, env=self._node.environment, stdout=output, stderr=subprocess.STDOUT
            )
        try:
            wait(where.registration.exists, "the socket of the driver's registration", 60)
            with Channel(where.registration) as channel:
                told = pb.RegistrationStatus(plugin_registered=True)
                _method(channel, "NotifyRegistrationStatus", pb.RegistrationStatusResponse, REGISTRATION)(told)
            wait(self._ready, "the driver to be ready", 60)
            yield process, where.service
        except Exception as error:
            error.add_note(log.read_text()[-3000:])
            raise
        finally:
            end(process)

    def _ready(self) -> bool:
        try:
            with urllib.request.urlopen(f"{self._url}/readyz", timeout=10):
                return True
        except OSError:
            return False


def tainted(node: Node) -> list[str]:
    """The devices that are offered with a taint."""
    slices = node.store.all("resourceslices")
    return [device["name"] for each in slices for device in each["spec"]["devices"] if "taints" in device]


def failure(node: Node) -> float:
    """Seconds from a GPU's failure until the API server has the taint of its device; the GPU is well again after."""
    with edit(node.root / "gpusim.conf") as topology:
        topology.set_health(3, "lost")
    seconds = timed(lambda: wait(lambda: tainted(node) == ["gpu-03"], "the taint", 60))
    with edit(node.root / "gpusim.conf") as topology:
        topology.set_health(3, "ok")
    wait(lambda: not tainted(node), "the taint to go", 60)
    return seconds


def measure(effort: Effort) -> list[Result]:
    """All figures of the driver on a node with eight GPUs."""
    results: list[Result] = []
    with simulated_node("8xh100", Mode.PGPU) as node, Driver(node).running() as (process, socket):

        def add(metric: str, value: float, note: str) -> None:
            results.append(Result("dra", metric, value, {"gpus": len(node.uuids), "prepared": PREPARED}, note))

        with Channel(socket) as channel:
            claims = Claims(node, channel)
            for _ in range(PREPARED):
                claims.prepared()
            spent(process.pid, effort.settling_seconds)
            say(f"dra: idle for {effort.idle_seconds:g} s")
            idle = spent(process.pid, effort.idle_seconds)
            add(
                "idle_cpu_ratio",
                idle,
                f"of one core, over {effort.idle_seconds:g} s, nothing was asked for {effort.settling_seconds:g} s",
            )
            say(f"dra: {effort.claims} claims")
            released: list[float] = []

            def once() -> float:
                claim, seconds = claims.prepared()
                released.append(claims.release(claim))
                return seconds

            found = calls(once, effort.claims)
            add("prepare_p99_seconds", found.quantile(0.99), quantiles(found))
            unprepared = Series(tuple(sorted(released)), 0)
            add("unprepare_p99_seconds", unprepared.quantile(0.99), quantiles(unprepared))
        say(f"dra: {effort.failures} failures of a GPU")
        lost = Series(tuple(sorted(failure(node) for _ in range(effort.failures))), 0)
        add("taint_seconds", lost.samples[-1], f"worst from a GPU's failure to its taint; {quantiles(lost)}")
        add("pss_bytes", pss_bytes(process.pid), f"{len(process_tree(process.pid))} processes, after all of the above")
    return results


def main() -> None:
    parser = argparse.ArgumentParser(prog="bench.dra", description="Measure kube-accel dra from outside.")
    parser.add_argument("--claims", type=int, default=Effort().claims)
    arguments = parser.parse_args()
    results = measure(Effort(claims=arguments.claims))
    print(f"{os.cpu_count()} processors, load {os.getloadavg()[0]:.1f}", file=sys.stderr)
    report(results)


if __name__ == "__main__":
    main()
