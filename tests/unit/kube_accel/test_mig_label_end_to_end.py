# SPDX-License-Identifier: Apache-2.0
"""The shipped daemon cuts its node's GPUs as a label says, between a driver, a kubelet and an API server."""

from __future__ import annotations

import json
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from types import MappingProxyType
from typing import Any

import pytest

from kube_accel.plugin.mig.affected import CORDON, LABEL, STATE_LABEL, TEXT, checksum
from sim.cluster.kinds import Object
from sim.kubelet import Container, PodSpec
from sim.nvml.topology import Topology
from unit.kube_accel.api_host import NODE, ApiHost
from unit.kube_accel.test_mig_end_to_end import MigHost, empty
from unit.kube_accel.test_plugin_end_to_end import Plugin
from waiting import wait

EXPORTER = "nvidia.com/gpu.deploy.dcgm-exporter"
CONFIGS: dict[str, Any] = {
    "version": "v1",
    "mig-configs": {
        "large": [{"devices": [0, 2], "mig-enabled": True, "mig-devices": {"3g.20gb": 2}}],
        "smaller": [{"devices": [1], "mig-enabled": True, "mig-devices": {"1g.5gb": 1, "3g.20gb": 1}}],
        "too-much": [{"devices": [0], "mig-enabled": True, "mig-devices": {"3g.20gb": 3}}],
    },
}
FIRST = {"gpu": 2, "mig-1g_5gb": 8, "mig-2g_10gb": 1, "mig-3g_20gb": 1}
LARGE = {"gpu": 1, "mig-1g_5gb": 1, "mig-2g_10gb": 1, "mig-3g_20gb": 5}


class LabelledHost(ApiHost, MigHost):
    """Four A100, of which the first two are cut, and an API server."""

    labels = MappingProxyType({"zone": "a", EXPORTER: "true"})

    def __init__(self, root: Path, stack: ExitStack) -> None:
        super().__init__(root, stack)
        self.start_api()
        self.configs = root / "mig-configs.yaml"
        self.configure(CONFIGS)
        self.boot("first")

    def boot(self, name: str) -> None:
        path = self.root / "proc/sys/kernel/random/boot_id"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{name}\n")

    def cutting(self, *arguments: str) -> Plugin:
        proc = ["--proc-root", str(self.root / "proc")]
        return self.plugin("--mig-strategy", "mixed", "--mig-configs", str(self.configs), *proc, *arguments)

    def label(self, name: str | None) -> None:
        def edit(node: Object) -> None:
            node["metadata"]["labels"].pop(LABEL, None)
            node["metadata"]["labels"] |= {} if name is None else {LABEL: name}

        self.store.edit("nodes", "", NODE, edit)

    def configure(self, configs: Object) -> None:
        """Replace the file at once, as kubelet does with a mounted ConfigMap's."""
        fresh = self.configs.with_suffix(".new")
        fresh.write_text(json.dumps(configs))
        fresh.rename(self.configs)

    def take_back(self) -> None:
        """Say pending, as the role does."""
        self.store.edit("nodes", "", NODE, lambda node: node["metadata"]["labels"].update({STATE_LABEL: "pending"}))

    @property
    def node(self) -> Object:
        return self.store.get("nodes", "", NODE)

    @property
    def state(self) -> str | None:
        found: str | None = self.node["metadata"]["labels"].get(STATE_LABEL)
        return found

    def wait_state(self, state: str | None) -> None:
        wait(lambda: self.state == state, f"state {state}, which is {self.state}")

    @property
    def free(self) -> bool:
        """Whether the node is as nobody has touched it."""
        node = self.node
        cordoned = node.get("spec", {}).get("unschedulable") or CORDON in node["metadata"].get("annotations", {})
        return not cordoned and node["metadata"]["labels"][EXPORTER] == "true"

    def events(self) -> list[tuple[str, str]]:
        return [(reason, message) for reason, message in super().events() if reason.startswith("Mig")]

    def run_pod(self, name: str, resource: str, owner: str = "ReplicaSet") -> PodSpec:
        """A pod of the cluster that kubelet has admitted."""
        limits = {f"nvidia.com/{resource}": 1}
        body: Object = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "ownerReferences": [
                    {"apiVersion": "apps/v1", "kind": owner, "name": "it", "uid": "1", "controller": True}
                ],
            },
            "spec": {
                "nodeName": NODE,
                "containers": [{"name": "main", "image": "none", "resources": {"limits": dict.fromkeys(limits, "1")}}],
            },
        }
        uid = self.store.create("pods", "team", body)["metadata"]["uid"]
        made = PodSpec("team", name, uid, (Container("main", limits),))
        self.kubelet.admit(made)
        return made

    def end_pod(self, pod: PodSpec) -> None:
        self.kubelet.remove(pod)
        self.store.edit("pods", "team", pod.name, lambda item: item.update(status={"phase": "Succeeded"}))

    def geometry(self) -> dict[int, list[str]]:
        topology = Topology.load(self.conf)
        return {
            gpu.index: sorted(mig.profile for mig in topology.migs if mig.gpu == gpu.index)
            for gpu in topology.gpus
            if gpu.mig
        }


@pytest.fixture
def host() -> Iterator[LabelledHost]:
    with ExitStack() as stack:
        root = Path(stack.enter_context(tempfile.TemporaryDirectory(dir="/tmp")))
        yield LabelledHost(root, stack)


def test_gpus_are_cut_as_the_label_says(host: LabelledHost) -> None:
    plugin = host.cutting()
    host.wait_offered(**FIRST)
    assert host.state is None
    host.label("large")
    host.wait_state("success")
    host.wait_offered(**LARGE)
    assert host.free
    wait(host.events, "an event")
    assert host.events() == [("MigConfigApplied", "the GPUs are cut by MIG configuration large")]
    host.label(None)
    host.wait_state(None)
    assert host.geometry()[2] == ["3g.20gb"] * 2
    assert plugin.terminate() == 0


def test_a_plugin_that_starts_again_leaves_what_is_right(host: LabelledHost) -> None:
    host.label("large")
    first = host.cutting()
    host.wait_state("success")
    host.wait_offered(**LARGE)
    devices = Topology.load(host.conf).migs
    first.kill()
    second = host.cutting()
    host.wait_offered(**LARGE)
    second.wait_ready()
    # A change of the file is looked for now and then, and so is what a label that changed says.
    host.label("gone")
    host.wait_state("failed")
    host.label("large")
    host.wait_state("success")
    assert Topology.load(host.conf).migs == devices


def test_devices_that_a_reset_took_are_made_anew(host: LabelledHost) -> None:
    host.label("large")
    host.cutting()
    host.wait_state("success")
    host.wait_offered(**LARGE)
    assert host.run("quiesce").returncode == 0
    empty(host, 2)
    assert host.run("quiesce", "--resume").returncode == 0
    wait(lambda: host.geometry()[2] == ["3g.20gb"] * 2, "the devices")
    host.wait_offered(**LARGE)
    wait(lambda: host.free, "the end of the cordon")
    host.wait_state("success")


def test_what_cannot_be_had_leaves_the_gpus_as_they_are(host: LabelledHost) -> None:
    before = host.geometry()
    host.label("gone")
    host.cutting()
    host.wait_state("failed")
    host.wait_event("MigConfigFailed", "no configuration gone; there are large, smaller, too-much")
    host.label("too-much")
    host.wait_event("MigConfigFailed", "3 x 3g.20gb does not fit GPU 0")
    assert host.geometry() == before
    assert host.free
    host.configs.unlink()
    host.label("large")
    host.wait_event("MigConfigFailed", "mig-configs.yaml cannot be read")
    assert host.geometry() == before


def test_state_is_reported_again_after_it_is_taken_back(host: LabelledHost) -> None:
    def told() -> str:
        found: str = host.node["metadata"]["annotations"][TEXT]
        return found

    host.label("large")
    host.cutting()
    host.wait_state("success")
    assert told() == checksum(json.dumps(CONFIGS))
    host.configure(CONFIGS | {"mig-configs": CONFIGS["mig-configs"] | {"large": []}})
    host.take_back()
    host.wait_state("failed")
    assert told() == checksum(host.configs.read_text())
    host.take_back()
    host.wait_state("failed")
    host.label(None)
    host.wait_state(None)
    assert TEXT not in host.node["metadata"]["annotations"]


def test_pods_that_hold_what_goes_are_waited_for(host: LabelledHost) -> None:
    host.cutting()
    host.wait_offered(**FIRST)
    goes, stays = host.run_pod("goes", "mig-2g.10gb"), host.run_pod("stays", "mig-3g.20gb")
    host.label("smaller")
    host.wait_event("MigConfigWaiting", "pods hold devices that would go: team/goes; applied when they have ended")
    assert host.state == "pending"
    assert host.free
    host.end_pod(goes)
    host.wait_state("success")
    host.wait_offered(**{"gpu": 2, "mig-1g_5gb": 8, "mig-3g_20gb": 1})
    assert [pod for pod, _ in host.kubelet.held()] == [stays]


def test_pods_that_hold_what_goes_are_evicted(host: LabelledHost) -> None:
    host.cutting("--mig-drain", "--mig-drain-timeout", "60")
    host.wait_offered(**FIRST)
    stays, train = host.run_pod("stays", "mig-3g.20gb"), host.run_pod("train", "mig-2g.10gb")
    host.label("smaller")
    wait(lambda: "deletionTimestamp" in host.store.get("pods", "team", "train")["metadata"], "the eviction")
    assert host.node["spec"]["unschedulable"]
    assert host.node["metadata"]["labels"][EXPORTER] == "paused-for-mig-change"
    assert host.geometry()[1] == ["1g.5gb", "2g.10gb", "3g.20gb"]
    host.end_pod(train)
    host.wait_state("success")
    assert host.free
    assert [pod for pod, _ in host.kubelet.held()] == [stays]
    assert "deletionTimestamp" not in host.store.get("pods", "team", "stays")["metadata"]


def test_pods_that_would_come_back_are_not_evicted(host: LabelledHost) -> None:
    host.cutting("--mig-drain", "--mig-drain-force")
    host.wait_offered(**FIRST)
    host.run_pod("exporter", "mig-2g.10gb", owner="DaemonSet")
    host.label("smaller")
    host.wait_event("MigConfigWaiting", "would return: team/exporter; keep them off the node")
    assert host.free
    assert host.geometry()[1] == ["1g.5gb", "2g.10gb", "3g.20gb"]


def test_who_has_the_driver_let_go_of_is_not_disturbed(host: LabelledHost) -> None:
    before = host.geometry()
    plugin = host.cutting()
    host.wait_offered(**FIRST)
    assert host.run("quiesce").returncode == 0
    host.label("large")
    with pytest.raises(AssertionError):
        wait(lambda: host.state or not host.free or host.geometry() != before, "news", seconds=3)
    assert [line["state"] for line in plugin.logged() if "state" in line][-1] == "quiesced"
    assert host.run("quiesce", "--resume").returncode == 0
    host.wait_state("success")
    host.wait_offered(**LARGE)


def test_gpu_held_open_is_not_tried_again_at_once(host: LabelledHost) -> None:
    def told() -> list[str]:
        lines = [line for line in plugin.logged() if line["message"] == "the node's condition is reported"]
        return [line["status"] for line in lines]

    def let_go() -> int:
        return sum(line.get("state") == "quiesced" for line in plugin.logged())

    host.edit(lambda topology: topology.add_process(2, 11, mem=0, type="-"))
    host.label("large")
    plugin = host.cutting()
    host.wait_event("MigConfigWaiting", f"{host.uuids[2]} cannot be reset, because something on the host holds it")
    # The node was changed, and the plugin is woken by that: by its label's change too, which it would come to later.
    wait(lambda: told()[-1] == "True" and "Unknown" in told(), "the GPUs")
    before = let_go()
    host.label("gone")
    host.wait_state("failed")
    put_back = let_go() - before
    assert (before, put_back) == (1, 1)


def test_full_disk_is_waited_for_and_changes_nothing(host: LabelledHost) -> None:
    before = host.geometry()
    in_the_way = host.root / "state/mig.json"
    in_the_way.mkdir(parents=True)
    host.label("large")
    host.cutting()
    host.wait_event("MigConfigWaiting", "MIG configuration large waits: [Errno 21] Is a directory")
    assert host.state == "pending"
    assert host.free
    assert host.geometry() == before
    in_the_way.rmdir()
    host.wait_state("success")
    host.wait_offered(**LARGE)
    assert host.free


def half_cut(host: LabelledHost) -> None:
    """Leave GPU 0 cut and GPU 2 not, by a plugin that is killed while it cuts."""
    host.edit(lambda topology: topology.wedge("nvmlDeviceSetMigMode"))
    host.label("large")
    plugin = host.cutting()
    wait(lambda: host.geometry().get(0) == ["3g.20gb"] * 2, "the first GPU")
    plugin.kill()
    assert not host.free
    assert 2 not in host.geometry()
    host.edit(lambda topology: topology.wedge(None))


def test_a_plugin_that_was_killed_while_it_cut_goes_on(host: LabelledHost) -> None:
    half_cut(host)
    host.cutting()
    host.wait_state("success")
    host.wait_offered(**LARGE)
    assert host.free


def test_killed_plugins_cut_is_put_back_if_it_cannot_be_done(host: LabelledHost) -> None:
    before = host.geometry()
    half_cut(host)
    host.label("gone")
    host.cutting()
    host.wait_state("failed")
    host.wait_offered(**FIRST)
    assert host.geometry() == before
    assert host.free


def test_a_gpu_that_something_holds_open_keeps_the_node_cordoned(host: LabelledHost) -> None:
    host.edit(lambda topology: topology.add_process(2, 11, mem=0, type="-"))
    host.label("large")
    first = host.cutting()
    host.wait_event("MigConfigWaiting", f"{host.uuids[2]} cannot be reset, because something on the host holds it")
    assert host.state == "pending"
    assert not host.free
    assert first.terminate() == 0
    host.edit(lambda topology: topology.remove_process(11))
    host.cutting()
    host.wait_state("success")
    host.wait_offered(**LARGE)
    assert host.free


def reset(topology: Topology) -> None:
    """GPU 2, whose mode changes with it."""
    topology.gpus[2].mig, topology.gpus[2].mig_pending = 1, None


def test_a_reset_by_hand_does_for_the_reboot(host: LabelledHost) -> None:
    host.edit(lambda topology: setattr(topology.gpus[2], "mig_reset", 1))
    host.label("large")
    host.cutting()
    host.wait_state("rebooting")
    assert host.run("quiesce").returncode == 0
    host.edit(reset)
    assert host.run("quiesce", "--resume").returncode == 0
    host.wait_state("success")
    host.wait_offered(**LARGE)
    assert host.free


def test_corrected_configuration_does_not_wait_for_the_reboot(host: LabelledHost) -> None:
    host.edit(lambda topology: setattr(topology.gpus[2], "mig_reset", 1))
    host.label("large")
    host.cutting()
    host.wait_state("rebooting")
    large = [
        {"devices": [0], "mig-enabled": True, "mig-devices": {"3g.20gb": 1}},
        {"devices": [2], "mig-enabled": False},
    ]
    host.configure(CONFIGS | {"mig-configs": {"large": large}})
    host.take_back()
    host.wait_state("success")
    assert host.free


@pytest.mark.parametrize("takes_effect", [True, False])
def test_a_mode_that_needs_a_reboot_waits_for_it(host: LabelledHost, takes_effect: bool) -> None:
    host.edit(lambda topology: setattr(topology.gpus[2], "mig_reset", 1))
    host.label("large")
    first = host.cutting()
    host.wait_state("rebooting")
    host.wait_event("MigConfigWaiting", f"reboot the node, for the MIG mode of {host.uuids[2]} to change")
    assert not host.free
    first.kill()
    host.boot("second")
    if takes_effect:
        host.edit(reset)
    host.cutting()
    host.wait_state("success" if takes_effect else "failed")
    assert host.free
    if takes_effect:
        host.wait_offered(**LARGE)
    else:
        host.wait_event("MigConfigFailed", f"the MIG mode of {host.uuids[2]} did not change with a reboot")
