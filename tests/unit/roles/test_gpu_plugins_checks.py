# SPDX-License-Identifier: Apache-2.0
"""What the gpu_plugins role refuses, given what a cluster may answer."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.parsing.dataloader import DataLoader
from ansible.template import trust_as_template

from kube_accel.plugin.configuration.file import Configuration, parse
from kube_accel.sharing.cdi import FILE

from .conftest import ROLES, Evaluate


def daemonset(name: str, image: str, container: str = "main", namespace: str = "kube-system") -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": namespace},
        "spec": {"template": {"spec": {"containers": [{"name": container, "image": image}]}}},
    }


def pod(
    name: str, *containers: dict[str, str] | None, phase: str = "Running", owner: str = "ReplicaSet"
) -> dict[str, Any]:
    """A pod whose containers have these limits; None is a container without any. ``owner`` is a kind or empty."""
    owners = [{"kind": owner, "name": name, "controller": True}] if owner else []
    return {
        "metadata": {"name": name, "namespace": "team", "ownerReferences": owners},
        "spec": {"containers": [{} if limits is None else {"resources": {"limits": limits}} for limits in containers]},
        "status": {"phase": phase},
    }


def node(mode: str = "", gpus: str | None = None, cgpu: str = "") -> dict[str, Any]:
    labels = {"kubernetes.io/hostname": "node-1"} | ({"nvidia-device-enable": mode} if mode else {})
    labels |= {"cgpu": cgpu} if cgpu else {}
    allocatable = {"cpu": "64"} | ({"nvidia.com/gpu": gpus} if gpus else {})
    return {"metadata": {"name": "node-1", "labels": labels}, "status": {"allocatable": allocatable}}


GPUS = {"gpus": [{}, {}]}
MIGRATED = node("pgpu", "8")
MIGRATED["metadata"]["annotations"] = {"kube-accel.io/migration": "{}"}
EXTENDER = daemonset("kube-accel-extender", "registry.example/kube-accel:1", "extender")
EXTENDER["metadata"]["labels"] = {"app.kubernetes.io/component": "extender"}
OURS = daemonset("nvidia-device-plugin-ds", "registry.example/kube-accel:1", "kube-accel")
NVIDIA = daemonset("anything", "nvcr.io/nvidia/k8s-device-plugin:v0.17.0")
OPERATOR = daemonset("nvidia-device-plugin-daemonset", "nvcr.io/x", namespace="gpu-operator")
SAME_NAME = daemonset("nvidia-device-plugin-ds", "registry.example/other:1")
PLAIN = daemonset("node-exporter", "quay.io/prometheus/node-exporter:v1")


OLD_CONTAINERD = {"kubeletVersion": "v1.33.2", "containerRuntimeVersion": "containerd://1.5.18"}


def answers(**changed: Any) -> dict[str, Any]:
    """Registers of a preflight on a bare cluster, and the variables it needs."""
    return {
        "gpu_plugins_image": "registry.example/kube-accel:1",
        "__gpu_plugins_found": {"stdout_lines": ["/var/lib/kubelet/device-plugins"]},
        "__gpu_plugins_picked": {"resources": [node()]},
        "__gpu_plugins_daemonsets": {"resources": [PLAIN]},
        "__gpu_plugins_device_classes": {"resources": []},
        "__gpu_plugins_runtime_classes": {"resources": []},
        "__gpu_plugins_pods": {},
    } | changed


TAINT = {"key": "team", "value": "a", "effect": "NoSchedule"}


def device_class(extended: str | None) -> dict[str, Any]:
    return {"metadata": {"name": "gpu.nvidia.com"}, "spec": {"extendedResourceName": extended} if extended else {}}


def problems(evaluate: Evaluate, **changed: Any) -> list[str]:
    facts = {"accel_nvml": changed.pop("gpus")} if "gpus" in changed else {}
    found = evaluate("gpu_plugins", "__gpu_plugins_preflight", facts, **answers(**changed))
    return [refusal["message"] for refusal in found["refusals"]]


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"__gpu_plugins_daemonsets": {"resources": []}},
        {
            "__gpu_plugins_daemonsets": {"resources": [OURS, PLAIN]},
            "__gpu_plugins_picked": {"resources": [node("pgpu", "8")]},
        },
        {"__gpu_plugins_daemonsets": {"resources": [NVIDIA]}, "gpu_plugins_takeover": True},
        {"__gpu_plugins_daemonsets": {"resources": [NVIDIA]}, "gpu_plugins_migrating": True},
        {"__gpu_plugins_daemonsets": {"resources": [NVIDIA]}, "__gpu_plugins_picked": {"resources": [MIGRATED]}},
        {"__gpu_plugins_picked": {"resources": [node(gpus="8")]}, "gpu_plugins_takeover": True},
        {"__gpu_plugins_picked": {"resources": [node(gpus="0")]}},
        {"__gpu_plugins_runtime_classes": {"resources": [{"metadata": {"name": "nvidia"}, "handler": "nvidia"}]}},
        {
            "__gpu_plugins_picked": {"resources": [node("mps")]},
            "__gpu_plugins_pods": {"resources": [pod("idle", None)]},
        },
        {
            # As -e or a survey gives it.
            "gpu_plugins_drain": "true",
            "__gpu_plugins_picked": {"resources": [node("mps")]},
            "__gpu_plugins_pods": {"resources": [pod("train", {"nvidia.com/mps-core": "20"})]},
        },
        {
            "gpu_plugins_drain": True,
            "gpu_plugins_drain_force": True,
            "__gpu_plugins_picked": {"resources": [node("mps")]},
            "__gpu_plugins_pods": {"resources": [pod("bare", {"nvidia.com/mps-core": "20"}, owner="")]},
        },
        {
            "__gpu_plugins_picked": {"resources": [node("mps")]},
            "__gpu_plugins_pods": {"resources": [pod("agent", {"nvidia.com/gpu": "0"}, owner="DaemonSet")]},
        },
        {"gpu_mode": "vgpu", "__gpu_plugins_daemonsets": {"resources": [OURS]}},
        {"gpu_mode": "vgpu", "gpus": {"gpus": [{}]}},
        {"gpus": GPUS},
        {"gpu_mode": "vgpu", "gpus": GPUS, "__gpu_plugins_daemonsets": {"resources": [EXTENDER]}},
        {"gpu_mode": "vgpu", "gpus": GPUS, "__gpu_plugins_deployments": {"resources": [EXTENDER]}},
        {"gpu_mode": "vgpu", "gpus": GPUS, "gpu_plugins_extender_coming": True},
        {"gpu_mode": "vgpu", "gpus": GPUS, "gpu_plugins_extender_required": "false"},
        {"gpu_plugins_vgpu_enabled": False},
        {"__gpu_plugins_device_classes": {"resources": [device_class("example.com/fpga"), device_class(None)]}},
    ],
)
def test_what_can_work_is_not_refused(evaluate: Evaluate, changed: dict[str, Any]) -> None:
    assert problems(evaluate, **changed) == []


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"gpu_mode": "shared"}, "gpu_mode is 'shared'; set it to one of pgpu"),
        ({"gpu_plugins_image": ""}, "gpu_plugins_image is not set"),
        (
            {"gpu_plugins_device_list_strategy": "envvar", "gpu_plugins_kernel_logs": "/var/log/kern.log"},
            "gpu_plugins_device_list_strategy, gpu_plugins_kernel_logs; write gpu_plugins_device_list_str",
        ),
        ({"gpu_plugins_metrics_interval": 0}, "set it to 1 to 300 seconds, or gpu_plugins_metrics_enabled=false"),
        ({"gpu_plugins_configs": {"four": {}, "a/b": {}, "-c": {}}}, "gpu_plugins_configs has a/b, -c; a name is also"),
        (
            {"gpu_plugins_configs": {"four": {}}, "gpu_plugins_config": "five"},
            "gpu_plugins_config is 'five' and gpu_plugins_default_config is ''; gpu_plugins_configs has four.",
        ),
        ({"gpu_plugins_default_config": "four"}, "gpu_plugins_configs has none."),
        ({"__gpu_plugins_found": {"stdout_lines": ["/etc/unit"]}}, "set gpu_plugins_kubelet_dir"),
        ({"__gpu_plugins_picked": {"resources": []}}, "set gpu_plugins_node_name"),
        (
            {"__gpu_plugins_daemonsets": {"resources": [NVIDIA]}},
            "DaemonSet kube-system/anything; take over its nodes with migrate.yml, remove it, or set gpu_plugins_take",
        ),
        ({"__gpu_plugins_daemonsets": {"resources": [OURS, OPERATOR]}}, "gpu-operator/nvidia-device-plugin-daemonset"),
        ({"__gpu_plugins_daemonsets": {"resources": [SAME_NAME]}}, "set gpu_plugins_takeover=true"),
        ({"__gpu_plugins_picked": {"resources": [node(gpus="8")]}}, "already offers 8 nvidia.com/gpu"),
        (
            {"__gpu_plugins_runtime_classes": {"resources": [{"metadata": {"name": "nvidia"}, "handler": "other"}]}},
            "set gpu_plugins_runtime_class",
        ),
        (
            {
                "__gpu_plugins_picked": {"resources": [node("mps")]},
                "__gpu_plugins_pods": {
                    "resources": [pod("train", None, {"nvidia.com/gpu": "2"}), pod("web", {"cpu": "1"})]
                },
            },
            "serves mode mps and these pods hold its GPUs: team/train; remove them",
        ),
        (
            {
                "gpu_plugins_drain": True,
                "__gpu_plugins_picked": {"resources": [node("mps")]},
                "__gpu_plugins_pods": {
                    "resources": [
                        pod("made", {"nvidia.com/mps-core": "1"}),
                        pod("bare", {"nvidia.com/mps-core": "1"}, owner=""),
                    ]
                },
            },
            "have no controller that would create them again: team/bare; remove them before the node becomes pgpu, or",
        ),
        (
            {
                "gpu_plugins_drain": True,
                "gpu_plugins_drain_force": True,
                "__gpu_plugins_picked": {"resources": [node("mps")]},
                "__gpu_plugins_pods": {"resources": [pod("agent", {"nvidia.com/mps-core": "1"}, owner="DaemonSet")]},
            },
            "would return, because they are static or belong to a DaemonSet: team/agent. Keep them off the node",
        ),
        (
            {"gpu_mode": "mps", "gpus": GPUS, "__gpu_plugins_daemonsets": {"resources": [PLAIN]}},
            "Mode mps on node 'node-1' shares 2 GPUs, and no extender",
        ),
        (
            {"__gpu_plugins_device_classes": {"resources": [device_class("nvidia.com/gpu")]}},
            "DeviceClass gpu.nvidia.com serves the same resources by dynamic resource allocation",
        ),
        ({"gpu_mode": "mps", "gpu_plugins_mps_enabled": "false"}, "but gpu_plugins_mps_enabled is false"),
        (
            {"__gpu_plugins_picked": {"resources": [node() | {"status": {"nodeInfo": {"kubeletVersion": "v1.23.9"}}}]}},
            "Node 'node-1': Kubernetes is 1.23.9; 1.25 or newer is needed. Upgrade the control planes",
        ),
        (
            {"__gpu_plugins_picked": {"resources": [node() | {"status": {"nodeInfo": OLD_CONTAINERD}}]}},
            "Node 'node-1': containerd is 1.5.18; 1.6 or newer is needed. Drain the node, and run "
            "apt-get install --only-upgrade containerd.io, or the same of its distribution.",
        ),
        (
            {"gpu_plugins_cgpu_enabled": False, "__gpu_plugins_picked": {"resources": [node(cgpu="true")]}},
            "should serve mode cgpu, but gpu_plugins_cgpu_enabled is false",
        ),
        (
            {
                "__gpu_plugins_picked": {"resources": [node("pgpu", cgpu="false")]},
                "gpu_mode": "cgpu",
                "__gpu_plugins_pods": {"resources": [pod("train", {"nvidia.com/gpu": "1"})]},
            },
            "serves mode pgpu and these pods hold its GPUs: team/train; remove them before the node becomes cgpu",
        ),
    ],
)
def test_what_cannot_work_is_refused_with_its_remedy(evaluate: Evaluate, changed: dict[str, Any], says: str) -> None:
    found = problems(evaluate, **changed)
    assert len(found) == 1, found
    assert says in found[0]


def test_a_taint_that_would_keep_the_plugin_off_is_refused(evaluate: Evaluate) -> None:
    (found,) = problems(evaluate, gpu_plugins_taint=TAINT, gpu_plugins_tolerations=[])
    assert "gpu_plugins_taint has key team, which gpu_plugins_tolerations does not tolerate" in found


def test_a_text_that_is_no_taint_is_refused(evaluate: Evaluate) -> None:
    (found,) = problems(evaluate, gpu_plugins_taint="team=a")
    assert "gpu_plugins_taint is 'team=a', which is not a taint; set it to text such as" in found


def test_a_taint_of_the_key_that_is_tolerated_by_default_is_put(evaluate: Evaluate) -> None:
    taint = {"key": "node-role.kubernetes.io/gpu", "value": "true", "effect": "NoExecute"}
    assert problems(evaluate, gpu_plugins_taint=taint) == []


def test_what_works_less_well_is_warned_of(evaluate: Evaluate) -> None:
    shared = {"gpu_mode": "mps", "gpu_plugins_extender_required": "no", "gpu_plugins_admission_enabled": False}
    odd = node()
    odd["metadata"]["annotations"] = {"kube-accel.io/inventory": "rubbish"}
    given = answers(**shared, __gpu_plugins_picked={"resources": [odd]})
    said = evaluate("gpu_plugins", "__gpu_plugins_preflight", {"accel_nvml": GPUS}, **given)["warnings"]
    assert [words in text for words, text in zip(("no extender chooses", "cannot be read"), said, strict=True)] == [
        True
    ] * 2
    bare = {"results": [{"api_found": False}, {"api_found": False}]}
    for hosts, count in ((["node-1"], 1), (["node-0", "node-1"], 0)):
        given = answers(__gpu_plugins_admission=bare, ansible_play_hosts=hosts)
        said = evaluate("gpu_plugins", "__gpu_plugins_preflight", {}, **given)["warnings"]
        assert ["serves no ValidatingAdmissionPolicies" in text for text in said] == [True] * count


def test_a_driver_that_stays_may_not_be_too_old(evaluate: Evaluate) -> None:
    facts = {"accel_nvml": GPUS | {"driver_version": "450.80.02"}}
    for coming, count in (({}, 1), ({"driver_state": {"installs": True}}, 0)):
        said = evaluate("gpu_plugins", "__gpu_plugins_preflight", facts, **answers(**coming))["words"]
        assert ("NVIDIA driver is 450.80.02; 470 or newer is needed" in said) == bool(count), said


def test_all_problems_are_said_at_once(evaluate: Evaluate) -> None:
    assert len(problems(evaluate, gpu_plugins_image="", __gpu_plugins_picked={"resources": []})) == 2


@pytest.mark.parametrize(
    ("mode", "found", "serves", "labels"),
    [
        ("vgpu", node(), "vgpu", {"nvidia-device-enable": "vgpu"}),
        ("cgpu", node(), "cgpu", {"nvidia-device-enable": "cgpu", "cgpu": "true"}),
        ("cgpu", node("cgpu", cgpu="false"), "cgpu", {"nvidia-device-enable": "cgpu", "cgpu": "true"}),
        ("pgpu", node("cgpu", cgpu="true"), "pgpu", {"nvidia-device-enable": "pgpu", "cgpu": None}),
        # Somebody switched the node by hand: it stays switched.
        ("pgpu", node("pgpu", cgpu="true"), "cgpu", {"nvidia-device-enable": "pgpu"}),
        ("mps", node(cgpu="true"), "cgpu", {"nvidia-device-enable": "mps"}),
    ],
)
def test_the_cgpu_label_is_set_and_cleared_for_our_mode_alone(
    evaluate: Evaluate, mode: str, found: dict[str, Any], serves: str, labels: dict[str, str | None]
) -> None:
    given = answers(gpu_mode=mode, __gpu_plugins_picked={"resources": [found]})
    state = evaluate("gpu_plugins", "gpu_plugins_node_state", {}, **given)
    assert (state["target"], state["wanted_labels"]) == (serves, labels)


def slicing(replicas: int = 4, default_name: bool = False, **entry: Any) -> dict[str, Any]:
    resources = [{"name": "nvidia.com/mig-1g.10gb", "replicas": 2}, {"name": "gpu", "replicas": replicas} | entry]
    return {"version": "v1", "sharing": {"timeSlicing": {"renameByDefault": not default_name, "resources": resources}}}


BY_MPS = {"renameByDefault": True, "resources": [{"name": "gpu", "replicas": 5, "devices": 1}]}
CONFIGS = {
    "four": slicing(),
    "clients": {"version": "v1", "sharing": {"mps": BY_MPS, "timeSlicing": slicing()["sharing"]["timeSlicing"]}},
    "kept": slicing(default_name=True),
    "named": slicing(rename="nvidia.com/turns"),
    "some": slicing(devices=1),
    "text": yaml.safe_dump(slicing(3)),
    "whole": {"version": "v1", "sharing": None},
}


def test_the_configurations_reach_the_plugin_as_they_are(evaluate: Evaluate) -> None:
    template = (Path(__file__).parents[3] / "roles/gpu_plugins/templates/configs.yml.j2").read_text()
    # What YAML reads as no text is a name like any other.
    configs = CONFIGS | dict.fromkeys(("on", "yes", "1", "1e3", "null"), slicing())
    variables = {"gpu_plugins_configs": configs, "rendered": trust_as_template(template)}
    rendered = evaluate("gpu_plugins", "rendered", {}, **variables)
    data = (rendered if isinstance(rendered, dict) else yaml.safe_load(rendered))["data"]
    assert {name: yaml.safe_load(text) for name, text in data.items()} == configs | {"text": slicing(3)}
    assert all(isinstance(parse(text), Configuration) for text in data.values())


@pytest.mark.parametrize(("mode", "by_cdi"), [("pgpu", True), ("pgpu", False), ("vgpu", True), ("vgpu", False)])
def test_plugin_sees_the_driver_only_if_it_delivers_files(evaluate: Evaluate, mode: str, by_cdi: bool) -> None:
    template = (Path(__file__).parents[3] / "roles/gpu_plugins/templates/daemonset.yml.j2").read_text()
    variables = {
        "mode": mode,
        "served": evaluate("gpu_plugins", "__gpu_plugins_modes", {})[mode],
        "gpu_plugins_device_list_strategy": ["cdi-cri"] if by_cdi else ["volume-mounts", "envvar"],
        "gpu_plugins_configs": {"whole": {"version": "v1"}},
        "rendered": trust_as_template(template),
    }
    rendered = evaluate("gpu_plugins", "rendered", {}, **answers(**variables))
    pod = (rendered if isinstance(rendered, dict) else yaml.safe_load(rendered))["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    flags = dict(flag.removeprefix("--").partition("=")[::2] for flag in container["command"][2:])
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    sources = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"]}
    assert mounts.keys() == sources.keys()
    # As NVIDIA's runtime knows it, where it does not listen to the environment of containers without privileges.
    assert (mounts["visible"], sources["visible"]) == ("/var/run/nvidia-container-devices/all", "/dev/null")
    told = "cdi-cri" if by_cdi else "volume-mounts,envvar" if mode == "pgpu" else None
    assert flags.get("device-list-strategy") == told
    assert flags.get("config-map") == ("kube-system/kube-accel-configs" if mode == "pgpu" else None)
    assert mounts.get("driver-root") == flags.get("container-driver-root")
    assert ("driver-root" in mounts) == (by_cdi or mode == "vgpu")
    assert mounts.get("cdi") == (flags["cdi-dir"] if by_cdi else None)


def test_removed_cdi_file_is_the_one_the_plugin_writes(evaluate: Evaluate) -> None:
    assert evaluate("gpu_plugins", "__gpu_plugins_names", {})["cdi_file"] == FILE


@pytest.mark.parametrize("turned_off", [(), ("cgpu",), ("pgpu", "mps")])
def test_modes_that_are_turned_off_lose_their_daemonset(evaluate: Evaluate, turned_off: tuple[str, ...]) -> None:
    names = {
        "pgpu": "nvidia-device-plugin-ds",
        "mps": "nvidia-mps-device-plugin-daemonset",
        "cgpu": "cgpu-device-plugin-ds",
    }
    given = {f"gpu_plugins_{mode}_enabled": False for mode in turned_off}
    found = evaluate("gpu_plugins", "gpu_plugins_cluster_state", {}, **given)
    assert found["disabled_daemonsets"] == [names[mode] for mode in turned_off]


@pytest.mark.parametrize(
    ("given", "refused"),
    [
        ({"gpu_plugins_mode": "vgpu"}, True),
        ({"gpu_plugins_mode": "cgpu"}, True),
        ({"gpu_plugins_mode": "mps"}, False),
        ({"gpu_plugins_mode": "pgpu"}, False),
        ({"gpu_plugins_mode": "vgpu", "gpu_plugins_enforcement": "none"}, False),
        ({"gpu_plugins_mode": "vgpu", "gpu_plugins_allow_unenforced": True}, False),
    ],
)
def test_image_without_interposer_is_refused_for_shares(
    evaluate: Evaluate, given: dict[str, Any], refused: bool, tmp_path: Path
) -> None:
    (tmp_path / "kube_accel-1-py3-none-any.whl").touch()
    parts = {"base": "/srv/base", "wheels": [f"{tmp_path}/*.whl"]}
    common = {"gpu_plugins_image": "", "gpu_plugins_extender_required": False} | given
    found = problems(evaluate, **common, kube_accel_image_assemble={"amd64": parts})
    assert any("without the interposer" in problem for problem in found) == refused
    complete = {"amd64": parts | {"native": "/srv/native/x86_64"}}
    assert problems(evaluate, **common, kube_accel_image_assemble=complete) == []


def test_wherever_nvml_is_asked_it_may_be_below_the_drivers_root() -> None:
    tasks = [path for name in ("roles", "playbooks") for path in (ROLES.parent / name).rglob("*.yml")]
    asking = re.compile(
        r"^( +)accel\.kubernetes\.(?:nvml_facts|mig_geometry):(?: &\w+)?\n((?:\1  .+\n)+)", re.MULTILINE
    )
    found = [options for path in tasks for _, options in asking.findall(path.read_text())]
    assert len(found) == 8
    assert [options for options in found if not re.search(r"driver_root: .*gpu_plugins_driver_root", options)] == []


CHECKED = {"scheduler_modes": ["vgpu"]}


@pytest.mark.parametrize(
    ("changed", "coming"),
    [
        ({}, True),
        ({"ansible_run_tags": ["gpu_plugins", "scheduler"]}, True),
        ({"ansible_run_tags": ["scheduler_extender"]}, True),
        ({"ansible_run_tags": ["gpu_plugins"]}, False),
        ({"ansible_run_tags": ["gpu_plugins_configure"]}, False),
        ({"ansible_skip_tags": ["scheduler"]}, False),
        # --limit leaves out the control planes.
        ({"hostvars": {"control": {}, "localhost": {}}}, False),
        ({"hostvars": {"control": {"scheduler_layout": "none", **CHECKED}}}, False),
        ({"scheduler_layout": "secondary", "groups": {}, "hostvars": {"localhost": CHECKED}}, True),
        ({"scheduler_layout": "secondary", "hostvars": {"localhost": {}, "control": CHECKED}}, False),
        # Other roles alone, host by host.
        ({"ansible_run_tags": ["container_runtime"], "hostvars": {"control": {}}}, True),
        ({"ansible_skip_tags": ["gpu_plugins"], "hostvars": {"control": {}}}, True),
    ],
)
@pytest.mark.parametrize("name", ["Check the GPU nodes", "Install the device plugins"])
def test_the_site_believes_in_an_extender_that_it_brings_itself(
    evaluate: Evaluate, name: str, changed: dict[str, Any], coming: bool
) -> None:
    plays = DataLoader().load_from_file(str(ROLES.parent / "playbooks/site.yml"), trusted_as_template=True)
    (variables,) = [play["vars"] for play in plays if play["name"] == name]
    given = {
        "groups": {"kube_control_plane": ["control"]},
        "hostvars": {"control": CHECKED, "localhost": {}},
        "ansible_run_tags": ["all"],
        "ansible_skip_tags": [],
    }
    assert evaluate("gpu_plugins", "gpu_plugins_extender_coming", {}, **variables | given | changed) is coming


def test_systemd_reloads_the_mps_unit_whichever_run_wrote_it(evaluate: Evaluate) -> None:
    path = ROLES / "gpu_plugins/tasks/mps_present.yml"
    tasks = DataLoader().load_from_file(str(path), trusted_as_template=True)
    name, module = "Start an MPS control daemon for each GPU", "ansible.builtin.systemd_service"
    (start,) = [task[module] for task in tasks if task["name"] == name and module in task]
    given = {"__gpu_plugins_mps_plan": {"wanted": ["GPU-1", "GPU-2"]}, "reload": start["daemon_reload"]}
    assert [evaluate("gpu_plugins", "reload", {}, **given, item=uuid) for uuid in ("GPU-1", "GPU-2")] == [True, False]
