# SPDX-License-Identifier: Apache-2.0
"""What the role scheduler tells kubeadm, which writes kube-scheduler's manifest anew at an upgrade."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from unit.plugins.scheduler_asked import CONFIG, Asked

PATH_TYPES = {"", "DirectoryOrCreate", "Directory", "FileOrCreate", "File", "Socket", "CharDevice", "BlockDevice"}
NOTHING = {"layout": "none", "binpack_resources": []}
MOUNT = "/etc/kubernetes/kube-accel-pki/scheduler"


def configuration(scheduler: dict[str, Any] | None, version: str = "v1beta4") -> dict[str, Any]:
    text = {"apiVersion": f"kubeadm.k8s.io/{version}", "kind": "ClusterConfiguration", "clusterName": "c"}
    text |= {"scheduler": scheduler} if scheduler is not None else {}
    return {"resources": [{"data": {"ClusterConfiguration": yaml.safe_dump(text)}}]}


def accepted(scheduler: dict[str, Any], version: str) -> bool:
    """Whether a ControlPlaneComponent of kubeadm's API can be read from it; it refuses unknown fields."""
    types = {"name": str, "hostPath": str, "mountPath": str, "pathType": str, "readOnly": bool}
    volumes = [item for item in scheduler.get("extraVolumes", []) if item["name"] != "theirs"]
    arguments = scheduler.get("extraArgs", [] if version == "v1beta4" else {})
    pairs = arguments.items() if isinstance(arguments, dict) else [tuple(item.values()) for item in arguments]
    return (
        scheduler.keys() <= {"extraArgs", "extraVolumes", "extraEnvs"}
        and isinstance(arguments, list if version == "v1beta4" else dict)
        and all(set(item) == {"name", "value"} for item in arguments if isinstance(item, dict))
        and all(isinstance(word, str) for pair in pairs for word in pair)
        and all(isinstance(item[key], types[key]) for item in volumes for key in item)
        and all(item["pathType"] in PATH_TYPES for item in volumes)
    )


def told(scheduler: dict[str, Any] | None, version: str = "v1beta4", **words: Any) -> dict[str, Any]:
    plan = Asked(**{"layout": "local", "seen": {"kubeadm": configuration(scheduler, version)}, **words}).kubeadm()
    after = plan["after"]
    assert (plan["known"], after["clusterName"]) == (True, "c")
    assert plan["differs"] == (after.get("scheduler") != scheduler)
    found: dict[str, Any] = after.get("scheduler") or {}
    assert accepted(found, version)
    return found


def test_kubeadm_is_told_what_the_manifest_holds() -> None:
    first = told({"extraArgs": [{"name": "v", "value": "4"}], "extraEnvs": []})
    assert first["extraArgs"] == [{"name": "v", "value": "4"}, {"name": "config", "value": CONFIG}]
    assert [item["hostPath"] for item in first["extraVolumes"]] == ["/etc/kubernetes/kube-accel", MOUNT]
    assert told(first) == first
    assert told(first, **NOTHING) == {"extraArgs": [{"name": "v", "value": "4"}], "extraEnvs": []}
    assert told(first, removing=True) == {"extraArgs": [{"name": "v", "value": "4"}], "extraEnvs": []}
    assert told(None, **NOTHING) == {}


def test_older_kubeadm_has_arguments_by_name() -> None:
    first = told({"extraArgs": {"v": "4"}}, "v1beta3")
    assert first["extraArgs"] == {"v": "4", "config": CONFIG}
    assert told(first, "v1beta3", **NOTHING) == {"extraArgs": {"v": "4"}}


def test_configuration_of_others_stays_kubeadms() -> None:
    theirs = {"extraArgs": [{"name": "config", "value": "/etc/theirs.yaml"}], "extraVolumes": [{"name": "theirs"}]}
    found = told(theirs)
    assert found["extraArgs"] == theirs["extraArgs"]
    assert [item["name"] for item in found["extraVolumes"]][:1] == ["theirs"]
    assert [item["hostPath"] for item in found["extraVolumes"][1:]] == [MOUNT]


def planes(register: str = "__scheduler_proposal", **read: str) -> dict[str, Any]:
    """Control planes by the configuration that the kube-scheduler of each reads."""
    registers: dict[str, dict[str, Any]] = {
        host: {register: {"scheduler_config_path": path}} for host, path in read.items()
    }
    return {"groups": {"kube_control_plane": list(read)}, "hostvars": registers}


@pytest.mark.parametrize("register", ["__scheduler_proposal", "__scheduler_configured"])
@pytest.mark.parametrize("before", [{}, {"extraArgs": [{"name": "config", "value": CONFIG}]}])
def test_kubeadm_does_not_get_a_file_a_control_plane_lacks(before: dict[str, Any], register: str) -> None:
    """One whose manifest was edited by hand keeps its own file, and ours is not there."""
    inventory = planes(register, one=CONFIG, two="/etc/kubernetes/scheduler-config.yaml")
    found = told(before, **inventory)
    assert "extraArgs" not in found
    assert [item["hostPath"] for item in found["extraVolumes"]] == [MOUNT]
    asked = Asked(layout="local", seen={"kubeadm": configuration(before)}, **inventory)
    assert asked.kubeadm()["unlike"] == {"two": "/etc/kubernetes/scheduler-config.yaml"}


def test_control_planes_that_read_our_file_are_alike() -> None:
    rooted = planes(one=f"/root-a{CONFIG}", two=f"/root-b{CONFIG}")
    for host, root in (("one", "/root-a"), ("two", "/root-b/")):
        rooted["hostvars"][host]["scheduler_host_root"] = root
    for inventory in (planes(one=CONFIG, two=CONFIG), rooted, planes(one="")):
        assert told({}, **inventory)["extraArgs"]
        asked = Asked(layout="local", seen={"kubeadm": configuration({})}, **inventory)
        assert asked.kubeadm()["unlike"] == {}


def test_earlier_path_that_kubeadm_was_told_of_is_ours() -> None:
    first = told({}, config_path="/etc/before/scheduler.yaml")
    assert told(first, **NOTHING) == {}
    assert told(first)["extraArgs"] == [{"name": "config", "value": CONFIG}]


@pytest.mark.parametrize("found", [{}, {"msg": "not reached"}, {"resources": []}])
def test_cluster_that_kubeadm_did_not_make_is_told_nothing(found: dict[str, Any]) -> None:
    unlike = planes(one="/etc/kubernetes/scheduler-config.yaml")
    plan = Asked(layout="local", seen={"kubeadm": found}, **unlike).kubeadm()
    assert (plan["known"], plan["differs"], plan["unlike"]) == (False, False, {})


@pytest.mark.parametrize(
    ("path", "written"),
    [("/etc/kubernetes/kubescheduler-config.yaml", True), (CONFIG, False), ("", False)],
)
def test_configuration_that_kubespray_wrote_is_known(path: str, written: bool) -> None:
    assert Asked(seen={"configured": {"scheduler_config_path": path}}).kubeadm()["kubespray"] is written
