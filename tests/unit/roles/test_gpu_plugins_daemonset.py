# SPDX-License-Identifier: Apache-2.0
"""What the DaemonSets of the gpu_plugins role let the daemon see and do."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from programs import program

from .conftest import keeping, rendered, runtime


@pytest.fixture
def container() -> Any:
    """``container(**variables)``: the daemon's container and the volumes of its pod."""

    def value(**variables: Any) -> tuple[dict[str, Any], list[dict[str, Any]]]:
        (found,) = rendered("gpu_plugins", "daemonset.yml.j2", **{"mode": "pgpu", **variables})
        spec = found["spec"]["template"]["spec"]
        groups = spec.get("securityContext", {}).get("supplementalGroups")
        return spec["containers"][0] | {"groups": groups, "hostPID": spec.get("hostPID", False)}, spec["volumes"]

    return value


def kernel_logs(found: dict[str, Any]) -> list[str]:
    return [word.partition("=")[2] for word in found["command"] if word.startswith("--kernel-log=")]


def test_the_daemon_has_no_more_rights_than_it_needs(container: Any) -> None:
    found, volumes = container()
    assert found["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert not found["securityContext"]["allowPrivilegeEscalation"]
    assert "privileged" not in found["securityContext"]
    assert kernel_logs(found) == ["/host/var/log/kern.log", "/host/var/log/messages"]
    mounts = {mount["mountPath"]: mount for mount in found["volumeMounts"]}
    assert mounts["/host/var/log"]["readOnly"]
    assert found["groups"] == [4]
    assert [volume["hostPath"]["path"] for volume in volumes].count("/var/log") == 1
    assert not found["hostPID"]
    assert found["securityContext"]["seLinuxOptions"] == {"type": "spc_t"}
    assert not [word for word in found["command"] if "enforcement" in word or "shim" in word]
    assert not {variable["name"] for variable in found["env"]} & {"DP_DISABLE_HEALTHCHECKS", "DP_ENABLE_HEALTHCHECKS"}


def test_the_kernels_own_log_takes_a_privileged_container(container: Any) -> None:
    found, volumes = container(gpu_plugins_kernel_logs=["/dev/kmsg"])
    assert found["securityContext"]["privileged"]
    assert "allowPrivilegeEscalation" not in found["securityContext"]
    assert kernel_logs(found) == ["/host/dev/kmsg"]
    assert [volume["hostPath"]["path"] for volume in volumes].count("/dev") == 1


def test_mps_daemons_are_mounted_if_a_configuration_has_them(container: Any) -> None:
    by_mps = {"sharing": {"mps": {"resources": [{"name": "gpu", "replicas": 2}]}}}
    for configs, seen in (({}, False), ({"turns": {"sharing": {"timeSlicing": None}}}, False), ({"m": by_mps}, True)):
        found, volumes = container(gpu_plugins_configs=configs)
        assert ("--mps-root=/run/nvidia/mps" in found["command"]) == seen
        assert ("/run/nvidia/mps" in {mount["mountPath"] for mount in found["volumeMounts"]}) == seen
        assert ("mps" in {volume["name"] for volume in volumes}) == seen
        variables = {variable["name"]: variable.get("value") for variable in found["env"]}
        assert ("compute" in variables["NVIDIA_DRIVER_CAPABILITIES"]) == seen, "it asks them by their program"


def test_health_checks_are_switched_as_with_the_peer(container: Any) -> None:
    found, _ = container(gpu_plugins_disable_healthchecks=48, gpu_plugins_enable_healthchecks="31,all")
    variables = {variable["name"]: variable.get("value") for variable in found["env"]}
    assert variables["DP_DISABLE_HEALTHCHECKS"] == "48"
    assert variables["DP_ENABLE_HEALTHCHECKS"] == "31,all"


def test_mig_manager_gets_the_configurations_and_the_right(container: Any) -> None:
    found, volumes = container(gpu_plugins_mig_label=True, gpu_plugins_drain=True)
    assert "--mig-configs=/etc/kube-accel/mig/config.yaml" in found["command"]
    assert "--mig-drain" in found["command"]
    assert "--mig-drain-force" not in found["command"]
    assert not [word for word in found["command"] if word.startswith("--mig-strategy")]
    assert {"name": "mig-configs", "configMap": {"name": "kube-accel-mig-configs"}} in volumes
    assert {"name": "NVIDIA_MIG_CONFIG_DEVICES", "value": "all"} in found["env"]
    assert found["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["SYS_ADMIN"]}
    plain, _ = container(gpu_plugins_mig_strategy="mixed")
    assert not [word for word in plain["command"] if word.startswith("--mig-configs")]
    assert "NVIDIA_MIG_CONFIG_DEVICES" not in {variable["name"] for variable in plain["env"]}


@pytest.mark.parametrize("mode", ["vgpu", "mps", "cgpu"])
def test_sharing_daemon_has_only_the_rights_it_needs(container: Any, mode: str) -> None:
    found, volumes = container(mode=mode)
    assert found["hostPID"]
    assert found["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert not found["securityContext"]["allowPrivilegeEscalation"]
    mounts = {mount["mountPath"]: mount for mount in found["volumeMounts"]}
    assert mounts["/host/driver-root"]["readOnly"]
    assert {"name": "driver-root", "hostPath": {"path": "/"}} in volumes
    flags = {word.partition("=")[0]: word.partition("=")[2] for word in found["command"]}
    assert flags["--enforcement"] == "auto"
    assert flags["--shim-dir"] == "/usr/lib/kube-accel/native"
    assert flags["--quota-overrides"] == "kube-system/kube-accel-quota-overrides"
    assert "--allow-unenforced" not in flags
    assert "--device-list-strategy" not in flags


@pytest.mark.parametrize(
    ("wanted", "expected"),
    [
        ("none", {"vgpu": "none", "mps": "auto", "cgpu": "none"}),
        ("mps", {"vgpu": "auto", "mps": "mps", "cgpu": "auto"}),
        ("interposer", dict.fromkeys(("vgpu", "mps", "cgpu"), "interposer")),
    ],
)
def test_a_mode_has_the_way_to_enforce_shares_that_it_knows(
    container: Any, wanted: str, expected: dict[str, str]
) -> None:
    for mode, way in expected.items():
        found, _ = container(mode=mode, gpu_plugins_enforcement=wanted, gpu_plugins_allow_unenforced=True)
        assert f"--enforcement={way}" in found["command"]
        assert "--allow-unenforced" in found["command"]


def test_shares_come_by_cdi_where_it_is_named(container: Any) -> None:
    found, volumes = container(mode="vgpu", gpu_plugins_device_list_strategy=["cdi-annotations", "envvar"])
    assert "--device-list-strategy=cdi-annotations" in found["command"]
    assert {mount["mountPath"] for mount in found["volumeMounts"]} >= {"/var/run/cdi", "/host/driver-root"}
    assert "cdi" in {volume["name"] for volume in volumes}


def test_shares_by_mounts_may_have_hooks_by_cdi(container: Any) -> None:
    found, volumes = container(mode="cgpu", __gpu_plugins_nodes={"resources": [runtime("containerd://1.7.28")]})
    assert {"--hooks-by-cdi", "--cdi-dir=/var/run/cdi"} <= set(found["command"])
    assert not [flag for flag in found["command"] if flag.startswith("--device-list-strategy")]
    assert "/var/run/cdi" in {mount["mountPath"] for mount in found["volumeMounts"]}
    assert "cdi" in {volume["name"] for volume in volumes}


def test_shares_have_the_capabilities_that_are_named(container: Any) -> None:
    for given, flag in (({}, "compute,utility"), ({"gpu_plugins_share_capabilities": ["video"]}, "video")):
        assert f"--share-capabilities={flag}" in container(mode="mps", **given)[0]["command"]
    assert not [flag for flag in container(mode="pgpu")[0]["command"] if flag.startswith("--share-capabilities")]


def test_metrics_interval_is_as_asked_for_or_off(container: Any) -> None:
    for variables, word in (
        ({}, "--metrics-interval=10"),
        ({"gpu_plugins_metrics_interval": 30}, "--metrics-interval=30"),
        ({"gpu_plugins_metrics_enabled": False}, "--metrics-interval=0"),
    ):
        found, _ = container(**variables)
        assert [argument for argument in found["command"] if argument.startswith("--metrics-interval")] == [word]


def test_other_exporters_names_are_served_where_asked_for(container: Any) -> None:
    assert "--metrics-aliases" not in container()[0]["command"]
    assert "--metrics-aliases" in container(gpu_plugins_metrics_aliases=True)[0]["command"]


@pytest.mark.parametrize("mode", ["pgpu", "vgpu"])
def test_counters_are_read_where_asked_for_by_who_may(container: Any, mode: str) -> None:
    plain, _ = container(mode=mode)
    found, _ = container(mode=mode, gpu_plugins_metrics_profiling=True)
    assert "--metrics-profiling" not in plain["command"]
    assert "SYS_ADMIN" not in plain["securityContext"]["capabilities"].get("add", [])
    assert "--metrics-profiling" in found["command"]
    assert found["securityContext"]["capabilities"] == {"drop": ["ALL"], "add": ["SYS_ADMIN"]}


@pytest.mark.parametrize(
    ("variables", "told"),
    [
        ({}, True),
        ({"mode": "vgpu"}, False),
        ({"container_runtime_default": True}, False),
        ({"gpu_plugins_device_list_strategy": ["cdi-cri"]}, False),
        ({"gpu_plugins_metrics_pending": False}, False),
        ({"gpu_plugins_extender_coming": True}, False),
    ],
)
def test_plugin_knows_the_runtime_class_that_pods_need(container: Any, variables: dict[str, Any], told: bool) -> None:
    found, _ = container(**variables)
    assert ("--runtime-class=nvidia" in found["command"]) is told


@pytest.mark.parametrize(
    ("variables", "counts"),
    [
        ({}, True),
        ({"gpu_plugins_metrics_pending": "no"}, False),
        ({"gpu_plugins_metrics_enabled": False}, False),
        ({"gpu_plugins_extender_coming": True}, False),
    ],
)
def test_plugins_that_count_pending_pods_may_list_them(container: Any, variables: dict[str, Any], counts: bool) -> None:
    found, _ = container(**variables)
    assert ("--metrics-pending" in found["command"]) is counts
    (role,) = (
        item
        for item in rendered("gpu_plugins", "rbac.yml.j2", **variables)
        if item["kind"] == "ClusterRole" and item["metadata"]["name"] == "kube-accel"
    )
    assert [rule["verbs"] for rule in role["rules"] if rule["resources"] == ["pods"]] == ([["list"]] if counts else [])


@pytest.mark.parametrize(
    ("account", "mode"), [("kube-accel", "pgpu"), ("kube-accel-share", "vgpu"), ("kube-accel-share", "mps")]
)
@pytest.mark.parametrize("has_slices", [True, False])
def test_plugin_looks_for_dra_drivers_where_there_may_be(
    container: Any, account: str, mode: str, has_slices: bool
) -> None:
    asked = {"__gpu_plugins_device_classes": {"results": [{"api_found": has_slices, "resources": []}]}}
    found, _ = container(mode=mode, **asked)
    assert ("--watch-resource-slices" in found["command"]) is has_slices
    (role,) = (
        item
        for item in rendered("gpu_plugins", "rbac.yml.j2", **asked)
        if item["kind"] == "ClusterRole" and item["metadata"]["name"] == account
    )
    verbs = [rule["verbs"] for rule in role["rules"] if rule["resources"] == ["resourceslices"]]
    assert verbs == ([["list", "watch"]] if has_slices else [])


def dra(**variables: Any) -> dict[str, dict[str, Any]]:
    """What the role makes for nodes of mode dra, by kind."""
    found = rendered("gpu_plugins", "objects.yml.j2", **variables)
    return {item["kind"]: item for item in found if item["metadata"]["name"] in ("kube-accel-dra", "gpu.kube-accel.io")}


def test_objects_of_dra_exist_only_while_a_node_has_the_mode() -> None:
    made = {"ServiceAccount", "ClusterRole", "ClusterRoleBinding", "DeviceClass", "DaemonSet"}
    other = {"groups": {"gpu_nodes": ["node-1", "node-2"]}, "hostvars": {"node-2": {"gpu_mode": "dra"}}}
    labeled = runtime("containerd://2.1.4")
    labeled["metadata"]["labels"] = {"nvidia-device-enable": "dra"}
    assert dra() == {}
    for variables in ({"gpu_mode": "dra"}, other, {"__gpu_plugins_nodes": {"resources": [labeled]}}):
        assert dra(**variables).keys() == made


def verbs_of(role: dict[str, Any], resource: str) -> list[list[str]]:
    return [rule["verbs"] for rule in role["rules"] if rule["resources"] == [resource]]


def test_dra_driver_is_called_where_kubelet_knows_it() -> None:
    spec = dra(gpu_mode="dra")["DaemonSet"]["spec"]
    pod = spec["template"]["spec"]
    (container,) = pod["containers"]
    assert spec["updateStrategy"]["rollingUpdate"] == {"maxSurge": 1, "maxUnavailable": 0}
    assert not pod.get("hostNetwork")
    mounts = {mount["name"]: mount["mountPath"] for mount in container["volumeMounts"]}
    sources = {volume["name"]: volume["hostPath"]["path"] for volume in pod["volumes"]}
    assert mounts.keys() == sources.keys()
    for name in ("plugins", "registry", "state", "cdi", "pod-resources"):
        assert mounts[name] == sources[name]
    flags = dict(word.removeprefix("--").partition("=")[::2] for word in container["command"][2:])
    assert flags["kubelet-plugins-dir"] == mounts["plugins"] == "/var/lib/kubelet/plugins"
    assert flags["kubelet-registry-dir"] == mounts["registry"] == "/var/lib/kubelet/plugins_registry"
    assert flags["container-driver-root"] == mounts["driver-root"]
    assert flags["pod-resources-socket"] == f"{mounts['pod-resources']}/kubelet.sock"
    command = [program("kube-accel"), "dra", "--help"]
    told = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    assert [flag for flag in flags if f"--{flag}" not in told.split()] == []


@pytest.mark.parametrize(
    ("variables", "flags"),
    [
        ({}, ["--metrics-interval=10", "--metrics-pending", "--metrics-pending-all"]),
        ({"gpu_plugins_extender_coming": True}, ["--metrics-interval=10", "--metrics-pending"]),
        ({"gpu_plugins_metrics_enabled": False}, ["--metrics-interval=0"]),
        (
            {
                "gpu_plugins_metrics_aliases": True,
                "gpu_plugins_metrics_profiling": True,
                "gpu_plugins_metrics_pending": False,
            },
            ["--metrics-interval=10", "--metrics-aliases", "--metrics-profiling"],
        ),
    ],
)
def test_dra_driver_serves_metrics_as_plugins_do(variables: dict[str, Any], flags: list[str]) -> None:
    found = dra(gpu_mode="dra", **variables)
    (container,) = found["DaemonSet"]["spec"]["template"]["spec"]["containers"]
    assert [word for word in container["command"] if word.startswith("--metrics")] == flags
    assert ("add" in container["securityContext"]["capabilities"]) == ("--metrics-profiling" in flags)
    lists = "--metrics-pending" in flags
    assert (["list"] in verbs_of(found["ClusterRole"], "pods")) is lists
    assert (["get"] in verbs_of(found["ClusterRole"], "resourceclaimtemplates")) is lists


@pytest.mark.parametrize(("kept", "number", "shares"), [(True, 0, True), (False, 0, False), (False, 4, True)])
def test_dra_driver_looks_at_processes_where_gpus_are_shared(kept: bool, number: int, shares: bool) -> None:
    found = dra(gpu_mode="dra", __gpu_plugins_kept_slice=keeping(kept), gpu_plugins_dra_fixed_shares=number)
    assert found["DaemonSet"]["spec"]["template"]["spec"].get("hostPID", False) is shares
    assert (["get"] in verbs_of(found["ClusterRole"], "pods")) is shares


def test_dra_driver_may_make_mig_devices_where_they_are_offered() -> None:
    offers = [{"gpus": ["NVIDIA H200*", 3], "profiles": ["1g.18gb", "1g.18gb+me"]}]
    pods = [dra(gpu_mode="dra", **more)["DaemonSet"] for more in ({"gpu_plugins_dra_mig_offers": offers}, {})]
    made, plain = (pod["spec"]["template"]["spec"]["containers"][0] for pod in pods)
    (told,) = (word for word in made["command"] if word.startswith("--mig-offers="))
    assert json.loads(told.partition("=")[2]) == [{"gpus": ["NVIDIA H200*", "3"], "profiles": offers[0]["profiles"]}]
    assert made["securityContext"]["capabilities"]["add"] == ["SYS_ADMIN"]
    names = [{each["name"] for each in container["env"]} for container in (made, plain)]
    assert names[0] - names[1] == {"NVIDIA_MIG_CONFIG_DEVICES", "NVIDIA_MIG_MONITOR_DEVICES"}
    assert not [word for word in plain["command"] if word.startswith("--mig-offers")]
