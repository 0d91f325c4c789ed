# SPDX-License-Identifier: Apache-2.0
"""Several configurations and a node label, around the shipped command."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest

from kube_accel.plugin.configuration.choice import LABEL
from sim.kubelet import AdmissionError, Container, PodSpec
from unit.kube_accel.api_host import NODE, ApiHost
from unit.kube_accel.fraction_node import smi
from unit.kube_accel.mps_daemons import MpsDaemons
from unit.kube_accel.test_plugin_end_to_end import DEADLINE, RESOURCE, Plugin
from waiting import wait

SHARED = "nvidia.com/gpu.shared"


def sliced(replicas: int, rename: bool = True) -> str:
    slicing = {"renameByDefault": rename, "resources": [{"name": RESOURCE, "replicas": replicas}]}
    return json.dumps({"version": "v1", "sharing": {"timeSlicing": slicing}})


CDI = json.dumps(
    {"version": "v1", "flags": {"nvidiaDriverRoot": "/nowhere", "plugin": {"deviceListStrategy": "cdi-cri"}}}
)


class ConfiguredHost(ApiHost):
    """A node, and an API server with a ConfigMap for it."""

    namespace = "gpu"

    def configs(self, **data: str) -> None:
        if self.store.edit("configmaps", "gpu", "configs", lambda item: item.update(data=data)) is None:
            metadata = {"name": "configs", "namespace": "gpu"}
            self.store.create(
                "configmaps", "gpu", {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": data}
            )

    def label(self, name: str | None) -> None:
        labels = {} if name is None else {LABEL: name}
        self.store.edit("nodes", "", NODE, lambda item: item["metadata"].update(labels=labels))

    def configured(self, *arguments: str) -> Plugin:
        return self.plugin("--config-map", "gpu/configs", *arguments)

    def offered(self, resource: str) -> int:
        return sum(device.healthy for device in self.kubelet.devices(resource).values())

    def wait_offered(self, resource: str, count: int) -> None:
        self.kubelet.wait(lambda: self.offered(resource) == count, DEADLINE)


@pytest.fixture
def host() -> Iterator[ConfiguredHost]:
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/tmp")))
        yield ConfiguredHost(root, stack)


def applied(plugin: Plugin) -> list[str]:
    """Configurations, first to last."""
    lines = plugin.log.read_text().splitlines(keepends=True)
    logged = [json.loads(line) for line in lines if line.endswith("\n")]
    return [line["configuration"] for line in logged if line["message"] == "configuration applied"]


def pod(name: str, resource: str, count: int = 1) -> PodSpec:
    return PodSpec("team", name, f"uid-{name}", (Container("main", {resource: count}),))


def test_the_label_picks_a_configuration_live(host: ConfiguredHost) -> None:
    host.start_api()
    host.configs(whole="version: v1", four=sliced(4), two=sliced(2, rename=False))
    plugin = host.configured("--default-config", "four")
    host.wait_offered(SHARED, 32)
    assert host.offered(RESOURCE) == 0
    plugin.wait_ready()
    host.label("two")
    host.wait_offered(RESOURCE, 16)
    host.wait_offered(SHARED, 0)
    host.label("whole")
    host.wait_offered(RESOURCE, 8)
    host.label(None)
    host.wait_offered(SHARED, 32)
    host.configs(four=sliced(3))
    host.wait_offered(SHARED, 24)
    assert plugin.process.poll() is None
    assert host.events() == []


def test_configuration_that_cannot_be_kept_is_applied(host: ConfiguredHost) -> None:
    (host.root / "state/configuration.json").mkdir(parents=True)
    host.start_api()
    host.configs(four=sliced(4), three=sliced(3))
    host.label("four")
    plugin = host.configured()
    host.wait_offered(SHARED, 32)
    host.label("three")
    host.wait_offered(SHARED, 24)
    assert plugin.process.poll() is None


def test_unusable_configuration_leaves_the_node_and_is_reported(host: ConfiguredHost) -> None:
    host.start_api()
    host.configs(good=sliced(4), bad="version: v1\nsharing: {timeSlicing: {resources: []}}")
    host.label("good")
    plugin = host.configured()
    host.wait_offered(SHARED, 32)
    host.label("gone")
    host.wait_event("ConfigurationMissing", "gone; there are: bad, good; the node stays with good")
    host.label("bad")
    host.wait_event("ConfigurationInvalid", "sharing.timeSlicing.resources: must be a list")
    assert host.offered(SHARED) == 32
    plugin.kill()
    host.wait_offered(SHARED, 0)
    host.configured()
    host.wait_offered(SHARED, 32)
    assert host.offered(RESOURCE) == 0


def test_what_means_nothing_here_is_told_and_the_rest_is_applied(host: ConfiguredHost) -> None:
    host.start_api()
    slices = "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 4}]}}"
    host.configs(theirs=f"flags: {{failRequestsGreaterThanOne: true, failOnInitError: false}}\n{slices}", empty="# all")
    host.label("theirs")
    host.configured()
    host.wait_offered(RESOURCE, 32)
    host.wait_event("ConfigurationNotWholly", "configuration theirs is applied, but flags.failRequestsGreaterThanOne")
    host.label("empty")
    host.wait_offered(RESOURCE, 8)


def test_more_replicas_than_kubelet_takes_are_refused(host: ConfiguredHost) -> None:
    host.start_api()
    host.configs(good=sliced(2), many=sliced(16384))
    host.label("good")
    host.configured()
    host.wait_offered(SHARED, 16)
    host.label("many")
    host.wait_event("ConfigurationRefused", "nvidia.com/gpu.shared would have 131072 devices, a list of ")
    assert host.offered(SHARED) == 16


def test_configuration_waits_for_pods_that_hold_devices(host: ConfiguredHost) -> None:
    host.start_api()
    host.configs(four=sliced(4), two=sliced(2))
    host.label("four")
    host.configured()
    host.wait_offered(SHARED, 32)
    mine = pod("train", SHARED, 32)
    host.kubelet.admit(mine)
    host.label("two")
    host.wait_event("ConfigurationRefused", "team/train (nvidia.com/gpu.shared); applied when they have ended")
    assert host.offered(SHARED) == 32
    host.kubelet.remove(mine)
    host.wait_offered(SHARED, 16)


def test_nothing_is_offered_before_it_is_known_what(host: ConfiguredHost) -> None:
    host.configs(four=sliced(4))
    plugin = host.configured("--default-config", "four")
    wait(lambda: "no configuration yet" in plugin.probe("/readyz")[1], "/readyz")
    assert host.kubelet.devices(RESOURCE) == {}
    host.start_api()
    host.wait_offered(SHARED, 32)
    plugin.wait_ready()
    assert plugin.terminate() == 0


def test_the_last_configuration_needs_no_api_server(host: ConfiguredHost) -> None:
    host.configs(four=sliced(4))
    host.start_api()
    first = host.configured("--default-config", "four")
    host.wait_offered(SHARED, 32)
    first.wait_ready()
    first.kill()
    host.wait_offered(SHARED, 0)
    host.api.stop()
    host.configured("--default-config", "four")
    host.wait_offered(SHARED, 32)


def test_before_there_is_a_good_configuration_gpus_are_whole(host: ConfiguredHost) -> None:
    host.start_api()
    host.label("gone")
    host.configured()
    host.wait_offered(RESOURCE, 8)
    host.wait_event("ConfigurationMissing", "there are: none; the node stays with whole GPUs")


def test_the_way_that_containers_are_told_changes_live_too(host: ConfiguredHost) -> None:
    host.start_api()
    plugin = {"deviceListStrategy": "envvar", "deviceIDStrategy": "index", "passDeviceSpecs": False}
    host.configs(index=json.dumps({"version": "v1", "flags": {"plugin": plugin}}), cdi=CDI)
    running = host.configured("--cdi-dir", str(host.root / "cdi"))
    host.wait_offered(RESOURCE, 8)
    assert host.kubelet.admit(pod("before", RESOURCE))["main"].mounts
    host.label("index")

    wait(lambda: "index" in applied(running), "the configuration")
    granted = host.kubelet.admit(pod("after", RESOURCE))["main"]
    assert granted.envs == {"NVIDIA_VISIBLE_DEVICES": str(host.uuids.index(granted.device_ids[RESOURCE][0]))}
    assert (granted.mounts, granted.devices) == ((), ())
    host.label("cdi")
    host.wait_event("ConfigurationRefused", "the CDI specification that it asks for cannot be written: no library of")


def test_mps_replicas_are_offered_where_the_daemon_answers(host: ConfiguredHost) -> None:
    daemons = MpsDaemons(host.root, host.uuids, host.stack)
    host.start_api()
    resources = [{"name": RESOURCE, "replicas": 4}]
    host.configs(mps=json.dumps({"version": "v1", "sharing": {"mps": {"resources": resources}}}), whole="version: v1")
    host.label("mps")
    plugin = host.configured(*daemons.arguments, "--mps-interval", "1")
    host.wait_offered(RESOURCE, 32)
    got = host.kubelet.admit(pod("first", RESOURCE))["main"]
    gpu = host.uuids.index(got.envs["NVIDIA_VISIBLE_DEVICES"])
    assert got.envs["CUDA_MPS_PIPE_DIRECTORY"] == str(daemons.client(gpu))
    assert (got.envs["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"], got.envs["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"][:2]) == (
        "25",
        "0=",
    )
    with pytest.raises(AdmissionError, match="failRequestsGreaterThanOne allows one; ask for 1"):
        host.kubelet.admit(pod("second", RESOURCE, 2))
    lines = host.run(
        "validate", *daemons.arguments, "--smi-command", str(smi(host.root, host.uuids, mode="Default"))
    ).stdout
    assert "ok    mps: the control daemons of all 8 GPUs answer" in lines
    assert "and GPUs that MPS shares Exclusive_Process; restart the unit kube-accel-mps@<uuid>" in lines
    gone = 7 if gpu != 7 else 6
    daemons.stop(gone)
    host.wait_offered(RESOURCE, 28)
    daemons.start(gone)
    host.wait_offered(RESOURCE, 32)
    host.kubelet.remove(pod("first", RESOURCE))
    host.label("whole")
    daemons.stop(gone)
    host.wait_offered(RESOURCE, 8)
    assert plugin.process.poll() is None
