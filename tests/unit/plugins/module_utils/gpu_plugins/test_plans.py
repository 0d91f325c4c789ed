# SPDX-License-Identifier: Apache-2.0
"""What the role gpu_plugins decides of a cluster, its image, its nodes' monitors and pods."""

from __future__ import annotations

import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible_collections.accel.kubernetes.plugins.module_utils.gpu_plugins import (
    accounts,
    agreement,
    cluster,
    delivery,
    evacuation,
    image_reach,
    monitors,
    mps,
    plugin_pod,
    state_files,
)
from hypothesis import given
from hypothesis import strategies as st

from file_trees import left, listed, put

ROLE = Path(__file__).parents[5] / "roles/gpu_plugins"
MODES = yaml.safe_load((ROLE / "vars/main/modes.yml").read_text())["__gpu_plugins_modes"]
DEFAULTS = yaml.safe_load((ROLE / "defaults/main.yml").read_text())
Object = dict[str, Any]


def versions(runtime: str, kubelet: str = "v1.33.2+k3s1", name: str = "node-1", mode: str = "pgpu") -> Object:
    head = {"name": name, "labels": {"nvidia-device-enable": mode} if mode else {}}
    return {
        "metadata": head,
        "status": {"nodeInfo": {"kubeletVersion": kubelet, "containerRuntimeVersion": runtime}},
    }


def delivered(
    *nodes: Object, strategy: object = (), configs: object = None, enforcement: str = "auto"
) -> delivery.Delivery:
    options = {"gpu_plugins_device_list_strategy": strategy}
    return delivery.delivery(delivery.Seen({"resources": list(nodes)}, ["named"], options, configs or {}, enforcement))


NEW, OLD = versions("containerd://2.1.4-k3s1"), versions("containerd://1.7.28")
TOLD = {"a": {"flags": {"plugin": {"deviceListStrategy": "envvar"}}}}
BY_CDI = {"a": "flags: {plugin: {deviceListStrategy: cdi-cri}}"}


@pytest.mark.parametrize(
    ("nodes", "strategy", "configs", "expected", "used"),
    [
        ([NEW], [], {}, ["cdi-cri"], True),
        ([versions("cri-o://1.33.1")], [], {}, ["cdi-cri"], True),
        ([OLD], [], {}, [], False),
        ([versions("docker://28.0.1")], [], {}, [], False),
        ([versions("cri-o://1.27.0")], [], {}, [], False),
        ([versions("")], [], {}, [], False),
        ([versions("containerd://2.0.0", "v1.28.9")], [], {}, [], False),
        ([versions("containerd://2.0.0", "")], [], {}, [], False),
        ([NEW, versions("containerd://1.6.8", name="old")], [], {}, [], False),
        ([NEW, versions("containerd://1.6.8", name="other", mode="")], [], {}, ["cdi-cri"], True),
        # Of this run, whatever its labels.
        ([NEW, versions("containerd://1.6.8", name="named", mode="")], [], {}, [], False),
        ([], [], {}, [], False),
        ([{"metadata": {"name": "named"}}], [], {}, [], False),
        ([NEW], ["envvar"], {}, ["envvar"], False),
        ([OLD], ["cdi-annotations"], {}, ["cdi-annotations"], True),
        ([NEW], [], TOLD, [], False),
        ([OLD], [], BY_CDI, [], True),
    ],
)
def test_cdi_is_used_where_every_gpu_node_has_it(
    nodes: list[Object], strategy: list[str], configs: Object, expected: list[str], used: bool
) -> None:
    found = delivered(*nodes, strategy=strategy, configs=configs)
    assert (found.strategies, found.cdi_used) == (expected, used)


@pytest.mark.parametrize(
    ("runtime", "named", "expected"),
    [
        ("containerd://2.1.4", [], ["cdi-cri"]),
        ("containerd://1.7.28", [], []),
        ("containerd://2.1.4", ["envvar"], []),
        ("containerd://1.7.28", ["cdi-cri", "cdi-annotations"], ["cdi-cri"]),
    ],
)
def test_a_share_comes_by_one_cdi_device_or_by_mounts(runtime: str, named: list[str], expected: list[str]) -> None:
    assert delivered(versions(runtime, mode="vgpu"), strategy=named).share_cdi == expected


@pytest.mark.parametrize(
    ("runtimes", "named", "expected"),
    [
        (["containerd://1.7.28"], [], True),
        (["containerd://1.6.8", "cri-o://1.27.0"], [], True),
        (["containerd://1.7.28"], ["volume-mounts"], False),
        (["containerd://1.7.28", "docker://28.0.1"], [], False),
        (["containerd://2.1.4"], [], False),
        ([], [], False),
    ],
)
def test_mounts_come_with_hooks_where_no_runtime_fails_by_them(
    runtimes: list[str], named: list[str], expected: bool
) -> None:
    nodes = [versions(runtime, mode="vgpu", name=f"node-{index}") for index, runtime in enumerate(runtimes)]
    assert delivered(*nodes, strategy=named).share_hooks is expected


@pytest.mark.parametrize(
    ("asked", "ways"),
    [
        ("auto", {"vgpu": "auto", "mps": "auto", "cgpu": "auto"}),
        ("mps", {"vgpu": "auto", "mps": "mps", "cgpu": "auto"}),
        ("dmem", {"vgpu": "dmem", "mps": "auto", "cgpu": "dmem"}),
        ("other", {"vgpu": "auto", "mps": "auto", "cgpu": "auto"}),
    ],
)
def test_each_mode_is_enforced_in_a_way_that_it_has(asked: str, ways: Object) -> None:
    assert delivered(enforcement=asked).enforcement == ways


def test_text_in_place_of_a_list_of_strategies_is_one_of_them() -> None:
    assert delivered(strategy="envvar").strategies == ["envvar"]


@pytest.mark.parametrize("strategy", [5, {"envvar": True}, [["envvar"]]])
def test_what_is_no_list_of_strategies_is_refused(strategy: object) -> None:
    with pytest.raises(ValueError, match=r"gpu_plugins_device_list_strategy is .*; set it to a list of texts"):
        delivered(strategy=strategy)


MADE = "localhost/kube-accel:0.1.0-new"
GIVEN: Object = {"kube_accel_image_here": MADE}


def labelled(name: str, **labels: str) -> Object:
    return {"metadata": {"name": name, "labels": labels}}


@pytest.mark.parametrize(
    ("changed", "without"),
    [
        ({}, []),
        ({"hostvars": {"a": GIVEN, "b": {}}}, ["b"]),
        # What a run before this one gave it.
        ({"hostvars": {"a": GIVEN, "b": {"kube_accel_image_here": "localhost/kube-accel:0.1.0-old"}}}, ["b"]),
        ({"hostvars": {"a": GIVEN, "b": GIVEN | {"gpu_plugins_node_name": "other"}}}, ["b"]),
        ({"hosts": ["a"]}, ["b"]),
        ({"hostvars": {"a": GIVEN, "b": {}}, "running": [MADE]}, []),
        ({"hostvars": {"a": GIVEN, "b": {}}, "running": [MADE, "old"]}, ["b"]),
        ({"hostvars": {"a": GIVEN, "b": {}}, "running": []}, []),
        ({"hostvars": {"a": {}, "b": {}}, "delivery": "push"}, []),
        # An image that was named.
        ({"hostvars": {"a": {}, "b": {}}, "made": ""}, []),
        ({"hostvars": {"a": {}, "b": {}}, "nodes": [labelled("c")]}, []),
        ({"nodes": [{"metadata": {"name": "c"}}, labelled("d", cgpu="true"), labelled("e", cgpu="false")]}, ["d"]),
        # gpu-manager's own.
        ({"nodes": [labelled("c", **{"nvidia-device-enable": "enable"})]}, []),
    ],
)
def test_new_image_rolls_out_once_every_serving_node_has_it(changed: Object, without: list[str]) -> None:
    serving = [labelled(name, **{"nvidia-device-enable": "pgpu"}) for name in ("a", "b")]
    known: Object = {"made": MADE, "wanted": MADE, "delivery": "import", "running": ["old"], "modes": MODES}
    known |= {"hosts": ["a", "b"], "hostvars": {"a": GIVEN, "b": GIVEN}} | changed
    known["nodes"] = {"resources": changed.get("nodes", serving)}
    assert image_reach.nodes_without_image(image_reach.Seen(**known)) == without


def disagreements(hosts: dict[str, Object], assembled: bool = False, mig_labelled: bool = False) -> list[str]:
    names = agreement.common_names(assembled, mig_labelled)
    return agreement.disagreements(hosts, next(iter(hosts)), list(hosts), names, DEFAULTS)


@pytest.mark.parametrize(
    ("hosts", "said"),
    [
        ({"a": {}, "b": {}}, ""),
        ({"a": {}, "b": {"gpu_plugins_mig_strategy": "mixed"}}, "gpu_plugins_mig_strategy of b differs from that of a"),
        ({"a": {"gpu_plugins_mig_strategy": "mixed"}, "b": {}}, "gpu_plugins_mig_strategy of b differs from that of a"),
        (
            {"a": {}} | {name: {"gpu_plugins_driver_root": "/run/nvidia/driver"} for name in "bcdef"},
            "gpu_plugins_driver_root of b, c, d and 2 more differs from that of a",
        ),
        ({"a": {}, "b": {"gpu_plugins_tolerations": []}}, "gpu_plugins_tolerations of b differs from that of a"),
        # As the default has it, and as another file format writes it.
        ({"a": {"gpu_plugins_mig_strategy": "none"}, "b": {}}, ""),
        ({"a": {"gpu_plugins_takeover": "true"}, "b": {"gpu_plugins_takeover": True}}, ""),
        ({"a": {"gpu_plugins_resources": {"x": 1, "y": 2}}, "b": {"gpu_plugins_resources": {"y": 2, "x": 1}}}, ""),
        # What is a node's own.
        (
            {
                "a": {"gpu_mode": "vgpu", "gpu_plugins_drain": True, "gpu_plugins_host_root": "/a"},
                "b": {"gpu_plugins_mig_config": "x", "gpu_plugins_mig_configs": {}, "gpu_plugins_config": "y"},
                "c": {"gpu_plugins_node_name": "z", "gpu_plugins_taint": {"key": "k"}, "gpu_plugins_mps_multiuser": 0},
            },
            "",
        ),
        ({"a": {}, "b": {"gpu_plugins_kubeconfig": "/other", "gpu_plugins_mig_strategy": "mixed"}}, ""),
    ],
)
def test_cluster_wide_values_are_not_set_for_some_hosts(hosts: dict[str, Object], said: str) -> None:
    assert disagreements(hosts) == ([said] if said else [])


def test_image_and_mig_layout_are_common_to_the_cluster() -> None:
    images = {"a": {"gpu_plugins_image": "x:1"}, "b": {}}
    assert disagreements(images) == ["gpu_plugins_image of b differs from that of a"]
    assert disagreements(images, assembled=True) == []
    drained = {"a": {}, "b": {"gpu_plugins_drain": True}}
    assert disagreements(drained) == []
    assert disagreements(drained, mig_labelled=True) == ["gpu_plugins_drain of b differs from that of a"]


def test_all_that_the_clusters_objects_are_made_of_is_common() -> None:
    names = ("configs", "daemonset", "mig_configs", "objects", "rbac", "runtimeclass")
    text = " ".join((ROLE / f"templates/{name}.yml.j2").read_text() for name in names)
    plans = (ROLE / "vars/main/cluster.yml").read_text().partition("__gpu_plugins_wanted:")[0]
    asked = re.findall(r"'\w+': (gpu_plugins_\w+)", plans)
    made_of = set(re.findall(r"(?<!_)gpu_plugins_[a-z_]+", text)) | set(asked) & set(DEFAULTS)
    common = set(agreement.common_names(False, True))
    assert made_of - common == {"gpu_plugins_node_name", "gpu_plugins_cluster_state"}
    exporter = yaml.safe_load((ROLE.parent / "dcgm_exporter/defaults/main.yml").read_text())
    assert set(exporter) <= common


def own_pod(made: int = 1, template: str = "t1", ready: bool = True, **more: Any) -> Object:
    head = {"name": f"p{made}", "creationTimestamp": f"2026-01-01T00:00:0{made}Z", "labels": more.pop("labels", {})}
    head["annotations"] = {"kube-accel.io/template": template}
    status = {"phase": "Running", "containerStatuses": [{"ready": ready, **more}]}
    return {"metadata": head, "spec": {"nodeName": "node-1", "containers": [{"name": "kube-accel"}]}, "status": status}


def pod_seen(*pods: Object, attempts: int = 0, **more: Any) -> plugin_pod.PluginPod:
    known = {"own": {"resources": list(pods), "attempts": attempts}, "templates": {"plugin": "t1"}} | more
    return plugin_pod.plugin_pod(plugin_pod.Seen("node-1", "kube-system", "plugin", **known))


@pytest.mark.parametrize(
    ("waiting", "restarts", "attempts", "stuck"),
    [
        (None, 9, 99, False),
        ("ContainerCreating", 0, 99, False),
        ("ErrImagePull", 0, 1, False),
        ("ImagePullBackOff", 0, 1, True),
        ("CrashLoopBackOff", 2, 99, False),
        ("CrashLoopBackOff", 3, 1, True),
        # Kubelet goes on saying this and nothing worse, also for a while after the image has been imported.
        ("ErrImageNeverPull", 0, 1, False),
        ("ErrImageNeverPull", 0, 30, True),
    ],
)
def test_a_plugin_that_will_not_come_by_itself_is_not_waited_for(
    waiting: str | None, restarts: int, attempts: int, stuck: bool
) -> None:
    state = {"waiting": {"reason": waiting}} if waiting else {"running": {}}
    pod = own_pod(state=state, restartCount=restarts)
    assert pod_seen(pod, attempts=attempts).stuck is stuck


@pytest.mark.parametrize(
    ("pods", "templates", "renewed", "of_before"),
    [
        ([], {}, True, []),
        ([], {"plugin": "t1"}, False, []),
        ([own_pod()], {"plugin": "t1"}, True, []),
        ([own_pod()], {"other": "t2"}, True, []),
        ([own_pod()], {"plugin": "t2"}, False, ["p1"]),
        ([own_pod(ready=False)], {"plugin": "t1"}, False, []),
        # The newest counts.
        ([own_pod(2), own_pod(1, "t0")], {"plugin": "t1"}, True, ["p1"]),
        ([own_pod(1), own_pod(2, "t0")], {"plugin": "t1"}, False, ["p2"]),
    ],
)
def test_plugin_is_current_once_its_newest_pod_has_the_template(
    pods: list[Object], templates: Object, renewed: bool, of_before: list[str]
) -> None:
    found = pod_seen(*pods, templates=templates)
    assert (found.renewed, found.of_before) == (renewed, of_before)
    assert found.template == templates.get("plugin", "")


def test_of_all_pods_those_on_the_node_are_the_plugin() -> None:
    elsewhere = own_pod(3) | {"spec": {"nodeName": "node-2", "containers": [{"name": "kube-accel"}]}}
    other = own_pod(4) | {"spec": {"nodeName": "node-1", "containers": [{"name": "exporter"}]}}
    waiting = own_pod(5) | {"spec": {"containers": [{"name": "kube-accel"}]}}
    left = own_pod(1, labels={"kube-accel.io/released": "plugin"})
    listed = {"resources": [elsewhere, other, waiting, left, own_pod(2)]}
    found = pod_seen(own={}, listed=listed)
    assert (found.name, found.released, found.turns) == ("p2", ["p1"], 5)
    assert pod_seen(own={"skipped": True}, listed=listed).name == "p2"
    assert (pod_seen().name, pod_seen().turns) == ("", 1)


@pytest.mark.parametrize(
    ("pods", "log", "says"),
    [
        (
            [],
            {},
            "No pod of DaemonSet kube-system/plugin is on the node. kubectl describe shows why, for example a taint",
        ),
        ([own_pod()], {}, "Its plugin is pod kube-system/p1: Running."),
        (
            [own_pod(state={"waiting": {"reason": "ImagePullBackOff", "message": "no\nsuch \x1b[2J image"}})],
            {},
            "Its plugin is pod kube-system/p1: ImagePullBackOff: no such \ufffd[2J image.",
        ),
        (
            [own_pod()],
            {"log_lines": ["one", "", "two"]},
            "Its plugin is pod kube-system/p1: Running. Its last messages: one | two",
        ),
    ],
)
def test_why_a_plugin_does_not_serve_is_one_harmless_line(pods: list[Object], log: Object, says: str) -> None:
    assert pod_seen(*pods, log=log).says.startswith(says)


OURS_LABEL, DCGM = "kube-accel.io/dcgm-exporter", "nvidia.com/gpu.deploy.dcgm"
PAUSED = "paused-by-gpu-plugins"
EXPORTER = {"resources": [{"metadata": {"name": "kube-accel-dcgm-exporter"}}]}


@pytest.mark.parametrize(
    ("labels", "by_label", "daemonsets", "pause", "back", "leaving"),
    [
        ({}, False, {}, {}, {}, []),
        ({DCGM: "true"}, False, {}, {DCGM: PAUSED}, {}, ["nvidia-dcgm"]),
        ({DCGM: "false"}, False, {}, {}, {}, []),
        ({}, False, EXPORTER, {OURS_LABEL: PAUSED}, {}, ["kube-accel-dcgm-exporter"]),
        ({OURS_LABEL: "false"}, False, EXPORTER, {}, {}, []),
        ({DCGM: PAUSED}, False, {}, {}, {DCGM: "true"}, ["nvidia-dcgm"]),
        ({OURS_LABEL: PAUSED}, False, EXPORTER, {}, {OURS_LABEL: None}, ["kube-accel-dcgm-exporter"]),
        # What the plugin paused is the plugin's to undo, unless it has left that behind.
        ({DCGM: "paused-for-mig-change"}, True, {}, {}, {}, []),
        ({DCGM: "paused-for-mig-change"}, False, {}, {}, {DCGM: "true"}, ["nvidia-dcgm"]),
    ],
)
def test_monitors_leave_by_their_label_and_return(
    labels: Object, by_label: bool, daemonsets: Object, pause: Object, back: Object, leaving: list[str]
) -> None:
    node = {"labels": labels, "mig_cordoned": True, "mig_by_label": by_label}
    found = monitors.monitors(monitors.Seen(node, daemonsets))
    assert (found.pause, found.back, found.leaving) == (pause, back, leaving)


def daemonset(name: str, container: str, image: str = "i:1", component: str = "") -> Object:
    template = {"spec": {"containers": [{"name": container, "image": image}]}}
    head = {"name": name, "namespace": "gpu", "labels": {"app.kubernetes.io/component": component}}
    return {"metadata": head, "spec": {"template": template}}


def seen_cluster(*daemonsets: Object, **more: Any) -> cluster.Cluster:
    return cluster.cluster(cluster.Seen({"resources": list(daemonsets)}, modes=MODES, **more))


@pytest.mark.parametrize(
    ("found", "foreign"),
    [
        (daemonset("anything", "main"), []),
        (daemonset("nvidia-device-plugin-daemonset", "main"), ["gpu/nvidia-device-plugin-daemonset"]),
        (daemonset("gpu-operator-node-feature", "main"), ["gpu/gpu-operator-node-feature"]),
        (daemonset("x", "main", "nvcr.io/nvidia/k8s-device-plugin:v0.17"), ["gpu/x"]),
        (daemonset("x", "main", "registry/gpu-manager@sha256:0"), ["gpu/x"]),
        (daemonset("x", "main", "registry/hami"), ["gpu/x"]),
        (daemonset("x", "main", "registry/gpu-manager-of-mine:1"), []),
        # It has the name of one of ours.
        (daemonset("gpu-manager-daemonset", "main"), ["gpu/gpu-manager-daemonset"]),
        (daemonset("gpu-manager-daemonset", "kube-accel", "registry/gpu-manager:1"), []),
        ({"metadata": {"name": "x", "namespace": "gpu"}, "spec": {}}, []),
    ],
)
def test_other_device_plugins_are_known(found: Object, foreign: list[str]) -> None:
    assert seen_cluster(found).foreign == foreign
    assert seen_cluster(found, found).foreign == foreign


def test_our_daemonsets_are_known_by_their_container() -> None:
    found = seen_cluster(
        daemonset("cgpu-device-plugin-ds", "kube-accel", "a:1"),
        daemonset("x", "y"),
        options={"gpu_plugins_cgpu_enabled": "no"},
    )
    assert (found.ours, found.images) == (["cgpu-device-plugin-ds"], ["a:1"])
    head = {"namespace": "gpu", "name": "cgpu-device-plugin-ds"}
    assert found.disabled == [{"apiVersion": "apps/v1", "kind": "DaemonSet", "metadata": head}]
    assert seen_cluster(daemonset("cgpu-device-plugin-ds", "kube-accel")).disabled == []


def device_class(resource: str | None) -> Object:
    return {"metadata": {"name": "gpu"}, "spec": {"extendedResourceName": resource} if resource else {}}


@pytest.mark.parametrize(
    ("resource", "foreign"),
    [("nvidia.com/gpu", ["gpu"]), ("aliyun.com/gpu-mem", ["gpu"]), ("example.com/fpga", []), (None, [])],
)
def test_device_classes_that_serve_our_resources_are_known(resource: str | None, foreign: list[str]) -> None:
    assert seen_cluster(device_classes={"resources": [device_class(resource)]}).foreign_classes == foreign


@pytest.mark.parametrize(
    ("classes", "made", "handler"),
    [
        ([], True, ""),
        ([{"metadata": {"name": "nvidia"}, "handler": "other"}], False, "other"),
        (
            [{"metadata": {"labels": {"app.kubernetes.io/managed-by": "accel.kubernetes"}}, "handler": "nvidia"}],
            True,
            "nvidia",
        ),
    ],
)
def test_a_runtime_class_of_others_is_left_alone(classes: list[Object], made: bool, handler: str) -> None:
    found = seen_cluster(runtime_classes={"resources": classes})
    assert (found.runtime_class_made, found.runtime_class_handler) == (made, handler)


@pytest.mark.parametrize(
    ("target", "more", "needed"),
    [
        ("vgpu", {"gpus": 2}, True),
        ("vgpu", {"gpus": 1}, False),
        ("pgpu", {"gpus": 8}, False),
        ("mps", {"gpus": 2, "extender_coming": "yes"}, False),
        ("mps", {"gpus": 2, "extender_coming": "no"}, True),
        ("cgpu", {"gpus": 2, "deployments": {"resources": [daemonset("e", "e", component="extender")]}}, False),
    ],
)
def test_a_mode_that_shares_several_gpus_needs_an_extender(target: str, more: Object, needed: bool) -> None:
    node = {"target": target}
    found = seen_cluster(name="node-1", node=node, **more)
    assert found.needs_extender is needed
    assert f"Mode {target} on node 'node-1' shares {more['gpus']} GPUs" in found.no_extender
    assert not seen_cluster(daemonset("e", "e", component="extender"), node=node, **more).needs_extender


PGPU, SHARES = {"scheduler_modes": ["pgpu"]}, {"scheduler_modes": ["pgpu", "vgpu"]}


@pytest.mark.parametrize(
    ("coming", "scheduler", "counted"),
    [
        (False, {}, True),
        (False, SHARES, True),
        (True, PGPU, True),
        (True, SHARES, False),
        (True, {}, False),
        (True, {**PGPU, "scheduler_manage_whole_gpus": "yes"}, False),
        (True, {**PGPU, "scheduler_layout": "local"}, False),
        (True, {**SHARES, "scheduler_layout": "none"}, True),
    ],
)
def test_plugins_count_pending_pods_where_no_extender_does(coming: bool, scheduler: Object, counted: bool) -> None:
    found = seen_cluster(extender_coming=coming, scheduler=scheduler)
    assert found.counts_pending is counted
    extender = daemonset("e", "e", component="extender")
    # The role scheduler removes one that no mode needs any more.
    assert seen_cluster(extender, extender_coming=coming, scheduler=scheduler).counts_pending is (coming and counted)


@pytest.mark.parametrize(
    ("more", "migrated"),
    [({}, False), ({"migrating": True}, True), ({"node": {"annotations": {"kube-accel.io/migration": "{}"}}}, True)],
)
def test_a_node_that_was_taken_over_is_known(more: Object, migrated: bool) -> None:
    assert seen_cluster(**more).migrated is migrated


PLANNED = {"where": "/srv/50%/containers", "action": "start"}


def plugin(made: int, ready: bool, propagation: str | None) -> dict[str, Any]:
    """A pod of the plugin."""
    mount = {"name": "state"} | ({"mountPropagation": propagation} if propagation else {})
    return {
        "metadata": {"name": f"p{made}", "creationTimestamp": f"2026-01-01T00:00:0{made}Z"},
        "spec": {"containers": [{"volumeMounts": [{"name": "dev"}, mount]}]},
        "status": {"containerStatuses": [{"ready": ready}]},
    }


SEES, BLIND = "HostToContainer", None


@pytest.mark.parametrize(
    ("pods", "unseen"),
    [
        ([], False),
        ([plugin(1, True, SEES)], False),
        ([plugin(1, True, BLIND)], True),
        # An upgrade: kubelet asks the older one until the newer is ready.
        ([plugin(2, False, SEES), plugin(1, True, BLIND)], True),
        ([plugin(2, True, SEES), plugin(1, True, BLIND)], False),
        ([plugin(1, True, SEES) | {"status": {}}], False),
    ],
)
def test_a_plugin_of_before_would_not_see_the_mount(pods: list[Any], unseen: bool) -> None:
    found = accounts.accounts(accounts.Seen("node-1", PLANNED, {"resources": pods}))
    assert (found.unseen, found.state) == (unseen, "" if unseen else "started")
    assert ("of an earlier version and would not see a tmpfs" in found.warning) is unseen


@pytest.mark.parametrize(
    ("plan", "state", "warning", "due"),
    [
        ({}, "", "", False),
        ({"skipped": True}, "", "", False),
        ({"action": "none", "says": "It is bounded."}, "", "", False),
        ({"action": "reload", "says": "x"}, "reloaded", "", True),
        ({"action": "stop", "says": "x"}, "stopped", "", True),
        ({"action": "none", "waits": True, "says": "Later."}, "", "Later.", False),
    ],
)
def test_the_unit_is_brought_to_a_state(plan: dict[str, Any], state: str, warning: str, due: bool) -> None:
    found = accounts.accounts(accounts.Seen("node-1", plan))
    assert (found.state, found.warning, found.due) == (state, warning, due)


@pytest.mark.parametrize("check_mode", [False, True])
@pytest.mark.parametrize("written", [False, True])
def test_a_dry_run_foretells_units_without_a_file(written: bool, check_mode: bool) -> None:
    """systemd answers about all others."""
    foretold = check_mode and not written
    plan = {"action": "start", "unit_written": written}
    found = accounts.accounts(accounts.Seen("node-1", plan, check_mode=check_mode))
    assert (found.foretold, found.state) == (foretold, "started")
    offer = {"by_mps": True, "mps_gpus": ["GPU-1", "GPU-2"]}
    units = ["kube-accel-mps@.service", "kube-accel-mps@GPU-2.service"] if written else []
    seen = mps.Seen(offer, {"stdout_lines": [f"/etc/{name}" for name in units]}, check_mode=check_mode)
    assert mps.mps(seen).foretold == (offer["mps_gpus"] if foretold else [])
    assert mps.mps(replace(seen, driver=False, offer=offer | {"mps_gpus": []})).foretold == ["each GPU"] * foretold
    assert mps.mps(replace(seen, removed=True)).foretold == []


def test_daemons_that_are_kept_are_those_that_were_there() -> None:
    units = [f"/etc/systemd/system/kube-accel-mps@{name}.service" for name in ("GPU-1", "GPU-3", "")]
    found = mps.mps(mps.Seen({"by_mps": True, "mps_gpus": ["GPU-1", "GPU-2"]}, {"stdout_lines": units}))
    assert (found.wanted, found.kept, found.unwanted) == (["GPU-1", "GPU-2"], ["GPU-1"], ["GPU-3"])


@pytest.mark.parametrize(
    ("records", "outdated"), [([], ["GPU-1", "GPU-2"]), (["GPU-1", "GPU-9"], ["GPU-2"]), (["GPU-1", "GPU-2"], [])]
)
def test_daemons_that_another_command_set_up_are_reloaded(records: list[str], outdated: list[str]) -> None:
    units = [f"/etc/systemd/system/kube-accel-mps@GPU-{number}.service" for number in (1, 2, 3)]
    current = [f"/var/lib/kube-accel-mps/{uuid}.command" for uuid in records]
    seen = mps.Seen({"by_mps": True, "mps_gpus": ["GPU-1", "GPU-2", "GPU-4"]}, {"stdout_lines": [*units, *current]})
    assert mps.mps(seen).outdated == outdated
    assert mps.mps(mps.Seen(seen.offer, {"stdout_lines": current})).present is False


KEY = "0123456789abcdef" * 2
STATE = (
    *(
        "ledger.db",
        "ledger.db-wal",
        "ledger.db-shm",
        "ledger.db.damaged-1700000000",
        "ledger.db.moved-1700000000",
        "admin.sock",
        "handover.sock",
    ),
    *("configuration.json", "health.json", "mig.json", "reported.json", ".reported.json.0a1b2c3d"),
    ".admin.sock.0a1b2c",
    *(
        "tellers",
        "mig.lock",
        "modes.lock",
        "mode-vgpu.lock",
        "claims.json",
        "sockets.lock",
        "containers/.lock",
        f"containers/{KEY}/policy",
    ),
    f"containers/.spare-0a1b2c3d/{KEY[:16]}/state",
    *(f"shim/{KEY}/libcuda.so.1", "shim/.0a1b2c3d/libcuda.so.1"),
)


def removed_state(tree: Path, *names: str, mounted: bool = False) -> list[str]:
    """What is removed of a directory with these files, of which ``find`` lists two levels."""
    put(tree, *names)
    return state_files.removed_state(state_files.Seen(str(tree), listed(tree, 2), mounted))


def test_of_a_directory_with_the_plugins_state_only_that_goes(tmp_path: Path) -> None:
    theirs = {"dpkg/status", "containers/storage/db.sql", "notes.json"}
    assert removed_state(tmp_path, *theirs) == []
    removed = removed_state(tmp_path, *STATE)
    assert left(tmp_path, removed) == theirs
    assert {"shim", "containers", ""} & {*removed} == {"shim"}


def test_a_directory_of_the_plugins_own_goes_with_its_state(tmp_path: Path) -> None:
    assert removed_state(tmp_path, *STATE)[-1] == ""


def test_a_directory_that_no_plugin_wrote_to_goes(tmp_path: Path) -> None:
    (tmp_path / "containers").mkdir()
    assert removed_state(tmp_path) == ["containers", ""]
    assert removed_state(tmp_path, mounted=True) == []
    assert removed_state(tmp_path, "dpkg/status") == []


def test_a_directory_that_is_a_mount_of_others_stays(tmp_path: Path) -> None:
    removed = removed_state(tmp_path, *STATE, mounted=True)
    assert {"containers", ""} & {*removed} == set()
    assert left(tmp_path, removed) == set()


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(), lambda x: st.lists(x) | st.dictionaries(st.text(), x)
)


@given(JSON)
def test_whatever_a_cluster_answers_is_no_error(value: Any) -> None:
    item = {"metadata": {"name": "n", "uid": "u", "namespace": "x", "labels": value}, "spec": value, "status": value}
    seen_cluster(item)
    delivered(item)
    pod_seen(item)


BENCHMARK = "kube-accel-benchmark-1"


class Lazy(dict[str, Any]):
    """As Ansible has it, whose items are no set."""

    def items(self) -> Any:
        yield from super().items()


def pod_of(namespace: str = "kube-system", kind: str = "Job", name: str = BENCHMARK, controller: bool = True) -> Object:
    owner = Lazy({"kind": kind, "name": name, "controller": controller})
    limits = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}
    head = {"namespace": namespace, "name": "x", "labels": {"app.kubernetes.io/instance": BENCHMARK}}
    return {"metadata": head | {"ownerReferences": [owner]}, "spec": {"containers": [limits]}}


@pytest.mark.parametrize(
    ("pod", "leaving", "held"),
    [
        (pod_of(), True, []),
        (pod_of(), False, ["kube-system/x"]),
        (pod_of(namespace="team"), True, ["team/x"]),
        (pod_of(kind="ReplicaSet"), True, ["kube-system/x"]),
        (pod_of(name="another"), True, ["kube-system/x"]),
        (pod_of(controller=False), True, ["kube-system/x"]),
    ],
)
def test_pods_that_a_dry_run_leaves_are_not_in_the_way(pod: Object, leaving: bool, held: list[str]) -> None:
    options = {f"gpu_plugins_{name}": False for name in ("drain", "drain_force")}
    options |= {"gpu_plugins_drain_reason": "", "gpu_plugins_mig_config": "", "gpu_plugins_mode": "vgpu"}
    node = {"switching": True, "mig_cutting": False, "serves": "pgpu"}
    job = {"namespace": "kube-system", "job": BENCHMARK} if leaving else {}
    found = evacuation.evacuation(evacuation.Seen("node-1", node, options, tuple(MODES), "", {"resources": [pod]}, job))
    assert found.holders == held
    assert [refusal.code for refusal in found.refusals] == (["pods_hold_gpus"] if held else [])


@pytest.mark.parametrize(
    ("serves", "driver", "slices", "held"),
    [
        ("", "gpu.nvidia.com", [], ["team/x"]),
        ("", "", [{"spec": {"driver": "gpu.nvidia.com", "nodeName": "node-1", "devices": [{}]}}], ["team/x"]),
        ("dra", "", [], ["team/x"]),
        ("pgpu", "", [], []),
    ],
)
def test_pods_with_claims_have_gpus_of_a_driver(
    serves: str, driver: str, slices: list[Object], held: list[str]
) -> None:
    """Of a driver that a run takes off, although its slices may be gone when the node is looked at."""
    options = {f"gpu_plugins_{name}": True for name in ("drain", "drain_force")}
    options |= {"gpu_plugins_drain_reason": "goes", "gpu_plugins_mig_config": "", "gpu_plugins_mode": "dra"}
    node = {"switching": False, "mig_cutting": False, "serves": serves}
    pods = [{"metadata": {"namespace": "team", "name": "x"}, "spec": {"resourceClaims": [{"name": "gpu"}]}}]
    seen = evacuation.Seen(
        "node-1", node, options, pods={"resources": pods}, slices={"resources": slices}, driver=driver
    )
    assert evacuation.evacuation(seen).holders == held
