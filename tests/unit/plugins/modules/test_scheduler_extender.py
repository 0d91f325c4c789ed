# SPDX-License-Identifier: Apache-2.0
from __future__ import annotations

import os
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

from unit.plugins.modules.control_plane import (
    BINPACK,
    CHECKSUM,
    EXTENDER,
    FIXTURES,
    ControlPlane,
    administrator,
    heeded,
)


def test_present_is_foretold_done_once_and_then_left_alone(node: ControlPlane) -> None:
    before = node.files()

    foretold = node.run(check=True, extenders=[EXTENDER], binpack_resources=BINPACK)
    assert foretold["changed"]
    assert node.files() == before

    done = node.run(extenders=[EXTENDER], binpack_resources=BINPACK)
    assert done["changed"], done
    assert done["diff"] == foretold["diff"]
    assert done["scheduler_config_path"] == str(node.config)
    config = yaml.safe_load(node.config.read_text())
    assert config["clientConnection"] == {"kubeconfig": "/etc/kubernetes/scheduler.conf"}
    assert config["extenders"] == [
        {
            "urlPrefix": EXTENDER["url_prefix"],
            "filterVerb": "predicates",
            "bindVerb": "bind",
            "enableHTTPS": True,
            "managedResources": [{"name": "tencent.com/vcuda-core", "ignoredByScheduler": False}],
        }
    ]
    assert "--config=/etc/kubernetes/kube-accel/scheduler.yaml" in node.pod()["spec"]["containers"][0]["command"]
    assert node.kubelet.starts == 2

    assert not node.run(extenders=[EXTENDER], binpack_resources=BINPACK)["changed"]
    assert not node.run(check=True, extenders=[EXTENDER], binpack_resources=BINPACK)["changed"]
    assert node.kubelet.starts == 2


def test_overridden_flags_are_carried_into_the_configuration(node: ControlPlane) -> None:
    flags = "--leader-elect=true\n    - --profiling=false\n    - --kube-api-qps=100"
    node.manifest.write_text(node.manifest.read_text().replace("--leader-elect=true", flags))
    before = node.files()

    assert node.run(binpack_resources=BINPACK)["changed"]

    config = yaml.safe_load(node.config.read_text())
    assert config["enableProfiling"] is False
    assert config["clientConnection"] == {"kubeconfig": "/etc/kubernetes/scheduler.conf", "qps": 100}
    assert not node.run(binpack_resources=BINPACK)["changed"]
    assert node.run(state="absent")["changed"]
    assert node.files() == before


def test_configuration_change_alone_restarts_the_scheduler(node: ControlPlane) -> None:
    node.run(binpack_resources=BINPACK)
    first = node.pod()["metadata"]["annotations"][CHECKSUM]

    assert node.run(binpack_resources=[{"name": "nvidia.com/gpu"}])["changed"]

    assert node.pod()["metadata"]["annotations"][CHECKSUM] != first
    assert node.kubelet.starts == 3


@pytest.mark.parametrize("empty", ["extenders: []\n", "profiles: []  # none\n", "profiles:\nextenders: null\n"])
def test_absent_leaves_an_unchanged_control_plane_alone(node: ControlPlane, empty: str) -> None:
    node.config.parent.mkdir(parents=True)
    head = "apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n"
    node.config.write_text(f"{head}clientConnection:\n  kubeconfig: /etc/kubernetes/scheduler.conf\n{empty}")
    before, starts = node.files(), node.kubelet.starts
    for check in (True, False):
        assert not node.run(state="absent", check=check)["changed"]
    assert node.files() == before
    assert node.kubelet.starts == starts


@pytest.mark.parametrize(
    "manifest",
    ["a: [\n", "kind: Pod\n", "\xff", "--config=/in/image.yaml", "--config=$(FILE)", "sh -c"],
)
def test_absent_demands_nothing_of_an_unchanged_manifest(node: ControlPlane, manifest: str) -> None:
    node.run(state="absent")  # which leaves a directory of its own behind
    if manifest == "sh -c":
        pod = node.pod()
        pod["spec"]["containers"][0]["command"] = ["sh", "-c", "exec kube-scheduler 'x"]
        manifest = yaml.safe_dump(pod)
    elif manifest.startswith("--"):
        manifest = node.manifest.read_text().replace("--leader-elect=true", manifest)
    node.manifest.write_bytes(manifest.encode("latin-1"))
    before = node.files()
    for check in (True, False):
        result = node.run(state="absent", check=check)
        assert not result.get("failed"), result
        assert not result["changed"]
    assert node.run(check=True, binpack_resources=BINPACK)["failed"]
    assert node.files() == before


def test_absent_gives_back_the_very_bytes(node: ControlPlane) -> None:
    before = node.files()
    node.run(extenders=[EXTENDER])
    node.run(binpack_resources=BINPACK, mounts=["/etc/kubernetes/pki"])

    assert node.run(state="absent", check=True)["changed"]
    assert node.run(state="absent")["changed"]

    assert node.files() == before
    assert not node.config.parent.exists()
    assert node.manifest.stat().st_mode & 0o777 == 0o600
    assert not node.run(state="absent")["changed"]


def test_files_from_windows_keep_their_form(node: ControlPlane) -> None:
    existing_configuration(node, FIXTURES.joinpath("scheduler-config.yaml").read_text())
    before = {name: data.replace(b"\n", b"\r\n") for name, data in node.files().items()}
    for name, data in before.items():
        (node.root / name).write_bytes(data)

    assert node.run(extenders=[EXTENDER], binpack_resources=BINPACK)["changed"]
    after = node.files()
    assert after != before
    assert {name: data.count(b"\n") for name, data in after.items()} == {
        name: data.count(b"\r\n") for name, data in after.items()
    }
    assert not node.run(extenders=[EXTENDER], binpack_resources=BINPACK)["changed"]

    assert node.run(state="absent")["changed"]
    assert node.files() == before


def test_nothing_is_taken_from_a_host_that_never_got_the_library(node: ControlPlane, tmp_path: Path) -> None:
    lacking = tmp_path / "lacking/ruamel/__init__.py"
    lacking.parent.mkdir(parents=True)
    lacking.write_text("raise ImportError('no ruamel')\n")

    def run(**options: Any) -> dict[str, Any]:
        path = {"PYTHONPATH": f"{lacking.parents[1]}:{os.environ.get('PYTHONPATH', '')}"}
        return node.run_module("scheduler_extender", node.arguments(**options), environment=path)

    before = node.files()
    for options in ({"binpack_resources": BINPACK}, {"state": "absent", "extenders": [EXTENDER]}):
        refused = run(**options)
        assert (refused["code"], "ruamel.yaml" in refused["msg"]) == ("missing_library", True)
    result = run(state="absent")
    assert not result.get("failed"), result
    assert not result["changed"]
    assert node.files() == before

    node.run(binpack_resources=BINPACK)
    assert "ruamel.yaml" in run(state="absent")["msg"]


def test_a_scheduler_that_does_not_start_gets_its_old_files(node: ControlPlane) -> None:
    before = node.files()
    node.kubelet.accepts = lambda manifest: CHECKSUM not in manifest

    result = node.run(binpack_resources=BINPACK, timeout=4)

    assert result["failed"]
    assert "does not answer" in result["msg"]
    assert "the previous files are back and the service is well" in result["msg"]
    assert node.files() == before


def test_the_answer_of_the_old_scheduler_counts_for_nothing(node: ControlPlane) -> None:
    before = node.files()
    node.kubelet.manifests = node.root / "elsewhere"
    node.kubelet.manifests.mkdir()
    shutil.copy(node.manifest, node.kubelet.manifests)

    result = node.run(binpack_resources=BINPACK, timeout=4)

    assert result["failed"]
    assert "still answered by the old kube-scheduler" in result["msg"]
    assert "the previous files are back and the service is well" in result["msg"]
    assert node.files() == before


def test_kubelet_never_sees_a_second_manifest(node: ControlPlane) -> None:
    node.run(binpack_resources=BINPACK)
    node.run(state="absent")

    assert node.kubelet.seen == {"kube-scheduler.yaml"}


def existing_configuration(node: ControlPlane, text: str) -> Path:
    """Let the scheduler read a configuration of others, mounted under another path."""
    theirs = node.root / "etc/theirs/sched.yaml"
    theirs.parent.mkdir()
    theirs.write_text(text)
    pod = node.pod()
    container = pod["spec"]["containers"][0]
    container["command"].append("--config=/inside/sched.yaml")
    container["volumeMounts"].append({"name": "theirs", "mountPath": "/inside"})
    pod["spec"]["volumes"].append({"name": "theirs", "hostPath": {"path": "/etc/theirs"}})
    node.manifest.write_text(yaml.safe_dump(pod))
    return theirs


def test_a_configuration_of_others_is_merged_into(node: ControlPlane) -> None:
    text = (FIXTURES / "scheduler-config.yaml").read_text()
    theirs = existing_configuration(node, text)
    before = node.files()

    result = node.run(extenders=[EXTENDER], health_url="")

    assert result["scheduler_config_path"] == str(theirs)
    assert not node.config.exists()
    urls = [extender["urlPrefix"] for extender in yaml.safe_load(theirs.read_text())["extenders"]]
    assert urls == ["https://storage.example:8443/", EXTENDER["url_prefix"]]
    assert all(line in theirs.read_text() for line in text.splitlines())
    assert CHECKSUM in node.pod()["metadata"]["annotations"]

    node.run(state="absent", health_url="")
    assert node.files() == before


def test_kubespray_writes_the_same_with_the_returned_values(node: ControlPlane) -> None:
    text = (FIXTURES / "kubescheduler-config.yaml").read_text()
    theirs = existing_configuration(node, text)

    result = node.run(extenders=[EXTENDER], binpack_resources=BINPACK)

    # kubespray renders what it has always written, with these two lists where they are not empty.
    lists = {name: result["configuration"][name] for name in ("extenders", "profiles")}
    assert yaml.safe_load(theirs.read_text()) == yaml.safe_load(text) | lists
    theirs.write_text(text + yaml.safe_dump(lists))
    assert not node.run(extenders=[EXTENDER], binpack_resources=BINPACK, check=True)["diff"][0][
        "before_header"
    ].endswith("sched.yaml")


def test_who_else_binds_is_told(node: ControlPlane) -> None:
    binder = {"urlPrefix": "https://theirs:1/x/", "bindVerb": "bind", "managedResources": [{"name": "example.com/a"}]}
    text = yaml.safe_dump(
        yaml.safe_load((FIXTURES / "kubescheduler-config.yaml").read_text()) | {"extenders": [binder]}
    )
    existing_configuration(node, text)
    wanted = {key: value for key, value in EXTENDER.items() if key != "bind_verb"}

    assert node.run(state="absent", check=True)["binders"] == ["https://theirs:1/x"]
    assert node.run(extenders=[wanted])["binders"] == ["https://theirs:1/x"]
    second = node.run(extenders=[{**wanted, "bind_verb": "bind"}])
    assert (second["failed"], second["code"]) == (True, "two_binders")


def test_ours_is_none_that_binds_besides_us(node: ControlPlane) -> None:
    node.run(extenders=[EXTENDER])
    assert node.run(state="absent", check=True)["binders"] == []
    shutil.rmtree(node.root.parent / "backups")
    moved = {**EXTENDER, "managed_resources": [{"name": "other.com/a"}]}
    assert node.run(state="absent", extenders=[moved], check=True)["binders"] == []


def test_an_unknown_field_in_a_configuration_of_others_is_named(node: ControlPlane) -> None:
    text = (FIXTURES / "scheduler-config.yaml").read_text()
    existing_configuration(node, text + "algorithmSource: {}\n")
    before = node.files()

    for check in (True, False):
        result = node.run(extenders=[EXTENDER], check=check)
        assert result["failed"]
        assert "algorithmSource is no field" in result["msg"]
        assert "etc/theirs/sched.yaml" in result["msg"]
    assert node.files() == before


def test_a_manifest_rewritten_by_kubeadm_is_mended(node: ControlPlane) -> None:
    node.run(binpack_resources=BINPACK)
    upgraded = (FIXTURES / "kube-scheduler.yaml").read_text().replace("v1.31.2", "v1.32.0")
    node.manifest.write_text(upgraded)

    assert node.run(check=True, binpack_resources=BINPACK)["changed"]
    assert node.run(binpack_resources=BINPACK)["changed"]
    assert CHECKSUM in node.manifest.read_text()

    node.run(state="absent")
    assert node.manifest.read_text() == upgraded
    assert not node.config.parent.exists()


def test_a_manifest_that_kubeadm_wrote_with_our_part_loses_it(node: ControlPlane) -> None:
    bare = yaml.safe_load(node.manifest.read_text().replace("v1.31.2", "v1.32.0"))
    node.run(binpack_resources=BINPACK)
    upgraded = node.pod()
    del upgraded["metadata"]["annotations"]
    upgraded["spec"]["containers"][0]["image"] = bare["spec"]["containers"][0]["image"]
    node.manifest.write_text(yaml.safe_dump(upgraded))

    node.run(binpack_resources=BINPACK)
    node.run(state="absent")

    assert node.pod() == bare
    assert not node.config.parent.exists()


def test_absent_keeps_what_others_changed_in_the_manifest(node: ControlPlane) -> None:
    before = yaml.safe_load(node.manifest.read_text())
    node.run(extenders=[EXTENDER], health_url="")
    node.manifest.write_text(
        node.manifest.read_text().replace("--leader-elect=true", "--leader-elect=true\n    - --v=4")
    )

    node.run(state="absent", health_url="")

    before["spec"]["containers"][0]["command"].append("--v=4")
    assert node.pod() == before
    assert not node.config.parent.exists()


def test_absent_keeps_what_others_wrote_into_our_file(node: ControlPlane) -> None:
    node.run(extenders=[EXTENDER], binpack_resources=BINPACK)
    node.config.write_text(node.config.read_text() + "parallelism: 32\n")

    assert node.run(state="absent")["changed"]

    left = yaml.safe_load(node.config.read_text())
    assert left["parallelism"] == 32
    assert "extenders" not in left
    assert "profiles" not in left
    assert "--config=/etc/kubernetes/kube-accel/scheduler.yaml" in node.manifest.read_text()
    assert not node.run(state="absent")["changed"]


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({}, ["binpack_resources", "state=absent"]),
        ({"extenders": [{**EXTENDER, "managed_resources": []}]}, ["managed_resources", EXTENDER["url_prefix"]]),
        ({"extenders": [{"url_prefix": "https://x"}]}, ["managed_resources"]),
        ({"binpack_resources": BINPACK, "manifest_path": "/etc/none.yaml"}, ["etc/none.yaml", "manifest_path"]),
        (
            {"extenders": [{**EXTENDER, "tls_config": {"ca_file": "/etc/ssl/x/ca.crt"}}]},
            ["/etc/ssl/x/ca.crt", "add /etc/ssl/x to mounts"],
        ),
        ({"binpack_resources": BINPACK, "health_url": "https://127.0.0.1:port/"}, ["health_url", "127.0.0.1:port"]),
    ],
)
def test_what_cannot_work_is_refused(node: ControlPlane, options: dict[str, Any], words: list[str]) -> None:
    before = node.files()

    result = node.run(**options)

    assert result["failed"]
    assert all(word in result["msg"] for word in words)
    # Ansible itself refuses an option that is missing.
    assert result.get("code", "refused") == "refused"
    assert node.files() == before


@pytest.mark.parametrize("flag", ["--bind-address=$(HOST_IP)", "--secure-port=$(PORT)"])
def test_health_address_is_demanded_before_anything_changes(node: ControlPlane, flag: str) -> None:
    node.manifest.write_text(node.manifest.read_text().replace("--bind-address=127.0.0.1", flag))
    before = node.files()
    for check in (True, False, False):
        refused = node.run(check=check, binpack_resources=BINPACK, health_url=None)
        assert refused.get("failed"), refused
        assert flag.replace("=", " is ") in refused["msg"]
        assert "health_url" in refused["msg"]
        assert node.files() == before
    assert not node.run(state="absent", health_url=None)["changed"]
    assert node.run(check=True, binpack_resources=BINPACK)["changed"]
    assert node.run(check=True, binpack_resources=BINPACK, health_url="")["changed"]


def test_a_second_manifest_of_the_same_pod_is_refused(node: ControlPlane) -> None:
    copy = node.manifest.with_name("kube-scheduler.yaml.bak")
    shutil.copy(node.manifest, copy)
    node.manifest.with_name("kube-apiserver.yaml").write_text(
        node.manifest.read_text().replace("name: kube-scheduler", "name: kube-apiserver")
    )
    before = node.files()
    for check in (True, False):
        result = node.run(check=check, binpack_resources=BINPACK)
        assert result["failed"]
        assert f"{copy} is a manifest of the same pod" in result["msg"]
        assert "move it out" in result["msg"]
        assert node.files() == before
    assert not node.run(state="absent").get("failed")
    copy.unlink()
    assert node.run(check=True, binpack_resources=BINPACK)["changed"]


def test_scheduler_without_health_server_takes_an_empty_url(node: ControlPlane) -> None:
    node.manifest.write_text(node.manifest.read_text().replace("--bind-address=127.0.0.1", "--secure-port=0"))
    refused = node.run(check=True, binpack_resources=BINPACK, health_url=None)
    assert "--secure-port is 0" in refused["msg"]
    assert "health_url to an empty string" in refused["msg"]
    assert node.run(check=True, binpack_resources=BINPACK, health_url="")["changed"]


def test_microk8s_is_told_apart(node: ControlPlane) -> None:
    arguments = node.root / "var/snap/microk8s/current/args/kube-scheduler"
    arguments.parent.mkdir(parents=True)
    arguments.write_text("--kubeconfig=${SNAP_DATA}/credentials/scheduler.config\n")
    options = {"manifest_path": "/etc/none.yaml", "binpack_resources": BINPACK}
    refused = node.run(check=True, **options)
    assert str(arguments) in refused["msg"]
    assert "scheduler_layout: secondary" in refused["msg"]
    assert not node.run(state="absent", manifest_path="/etc/none.yaml")["changed"]


def test_a_scheduler_says_that_it_took_the_configuration(node: ControlPlane) -> None:
    admin = administrator(node.kubelet, node.root / "etc/kubernetes/admin.conf")
    node.kubelet.heeds = lambda: heeded(node.config)
    before = node.files()

    assert node.run(check=True, extenders=[EXTENDER])["effect"] == ""
    done = node.run(extenders=[EXTENDER])
    assert done["changed"], done
    assert done["effect"].endswith(f"/configz, asked with {admin}, calls {EXTENDER['url_prefix']}")
    for check in (True, False):
        again = node.run(check=check, extenders=[EXTENDER])
        assert (again["changed"], again["effect"]) == (False, done["effect"])

    gone = node.run(state="absent")
    assert gone["effect"].endswith("calls no extender")
    assert node.files() == before
    assert "read back" not in str(done.get("warnings"))


def test_scheduler_that_ignores_our_file_gets_its_old_files(node: ControlPlane) -> None:
    administrator(node.kubelet, node.root / "etc/kubernetes/admin.conf")
    theirs = {"extenders": [{"urlPrefix": "https://theirs:1", "managedResources": [{"name": "example.com/a"}]}]}
    node.kubelet.heeds = lambda: theirs
    before = node.files()

    result = node.run(extenders=[EXTENDER], timeout=4)

    assert result["failed"]
    assert f"calls https://theirs:1, not {EXTENDER['url_prefix']}" in result["msg"]
    assert "the previous files are back and the service is well" in result["msg"]
    assert node.files() == before


def test_files_that_are_right_and_not_heeded_are_no_success(node: ControlPlane) -> None:
    admin = administrator(node.kubelet, node.root / "etc/kubernetes/admin.conf")
    kubeconfig = admin.read_text()
    admin.unlink()
    node.kubelet.heeds = lambda: {}
    done = node.run(extenders=[EXTENDER])
    assert done["changed"], done
    assert "could not be read back: there is no" in str(done["warnings"])
    assert not node.run(extenders=[EXTENDER])["changed"]

    admin.write_text(kubeconfig)
    for check in (True, False):
        result = node.run(check=check, extenders=[EXTENDER])
        assert result["failed"]
        assert "does not use them" in result["msg"]
        assert "crictl stop" in result["msg"]


def test_absent_after_kubeadms_rewrite_waits_for_no_restart(node: ControlPlane) -> None:
    before = node.files()
    node.run(binpack_resources=BINPACK)
    node.manifest.write_bytes(before["etc/kubernetes/manifests/kube-scheduler.yaml"])
    while node.kubelet.starts < 3:
        time.sleep(0.02)
    result = node.run(state="absent", timeout=5)
    assert result["changed"], result
    assert node.files() == before
    assert node.kubelet.starts == 3


def test_absent_removes_ours_beside_a_foreign_configuration(node: ControlPlane) -> None:
    before = node.files()
    node.run(extenders=[EXTENDER], binpack_resources=BINPACK)
    theirs = node.root / "etc/theirs/scheduler.yaml"
    theirs.parent.mkdir()
    theirs.write_text("apiVersion: kubescheduler.config.k8s.io/v1\nkind: KubeSchedulerConfiguration\n")
    pod = node.pod()
    container = pod["spec"]["containers"][0]
    flag = container["command"].index("--config=/etc/kubernetes/kube-accel/scheduler.yaml")
    container["command"][flag] = "--config=/etc/theirs/scheduler.yaml"
    container["volumeMounts"].append({"name": "theirs", "mountPath": "/etc/theirs"})
    pod["spec"]["volumes"].append({"name": "theirs", "hostPath": {"path": "/etc/theirs"}})
    node.manifest.write_text(yaml.safe_dump(pod))

    result = node.run(state="absent")

    assert result["changed"], result
    text = node.manifest.read_text()
    assert "--config=/etc/theirs/scheduler.yaml" in text
    assert "kube-accel" not in text
    assert node.files().keys() == {*before, "etc/theirs/scheduler.yaml"}
    assert not node.run(state="absent")["changed"]


OLDER = """# ours since 2021
apiVersion: kubescheduler.config.k8s.io/v1beta2
kind: KubeSchedulerConfiguration
clientConnection: {kubeconfig: /etc/kubernetes/scheduler.conf}   # as kubeadm has it
leaderElection:
  leaderElect: false
  resourceLock: endpointsleases
extenders:
- urlPrefix: https://192.0.2.10:6443/api/v1/namespaces/kube-system/services/gpu-quota-admission/proxy/scheduler
  filterVerb: predicates
  managedResources:
  - name: tencent.com/vcuda-core
    ignoredByScheduler: false
"""


def test_older_configuration_is_converted_and_given_back(node: ControlPlane) -> None:
    theirs = existing_configuration(node, OLDER)
    before = node.files()

    refused = node.run(extenders=[EXTENDER])
    assert refused["failed"]
    assert "services/gpu-quota-admission/proxy/scheduler is asked for tencent.com/vcuda-core" in refused["msg"]
    assert node.files() == before

    done = node.run(extenders=[EXTENDER], takeover=True)
    assert done["changed"], done
    (url,) = done["replaced"]
    assert url.endswith("/gpu-quota-admission/proxy/scheduler")
    assert done["converted"][0] == "leaderElection.resourceLock is leases, which endpointsleases held as well"
    config = yaml.safe_load(theirs.read_text())
    assert config["apiVersion"] == "kubescheduler.config.k8s.io/v1"
    assert [each["urlPrefix"] for each in config["extenders"]] == [EXTENDER["url_prefix"]]
    assert "# ours since 2021" in theirs.read_text()

    again = node.run(extenders=[EXTENDER])
    assert not again["changed"]
    assert (again["replaced"], again["converted"]) == ([url], [])
    assert node.run(state="absent")["changed"]
    assert node.files() == before


def test_older_configuration_comes_back_as_v1_after_upgrade(node: ControlPlane) -> None:
    node.manifest.write_text(node.manifest.read_text().replace(":v1.31.2", ":v1.27.9"))
    theirs = existing_configuration(node, OLDER)
    node.run(extenders=[EXTENDER], takeover=True)
    node.manifest.write_text(node.manifest.read_text().replace(":v1.27.9", ":v1.28.0"))

    gone = node.run(state="absent")

    assert gone["changed"], gone
    assert "kube-scheduler 1.28 no longer reads" in str(gone["warnings"])
    config = yaml.safe_load(theirs.read_text())
    assert config["apiVersion"] == "kubescheduler.config.k8s.io/v1"
    assert config["extenders"] == yaml.safe_load(OLDER)["extenders"]


def test_what_others_change_between_runs_is_there_without_us(node: ControlPlane) -> None:
    theirs = existing_configuration(node, FIXTURES.joinpath("scheduler-config.yaml").read_text())
    node.run(extenders=[EXTENDER])
    theirs.write_text(theirs.read_text() + "parallelism: 7\n")
    before = yaml.safe_load(FIXTURES.joinpath("scheduler-config.yaml").read_text())

    assert node.run(extenders=[EXTENDER], binpack_resources=BINPACK)["changed"]
    assert node.run(state="absent")["changed"]

    assert yaml.safe_load(theirs.read_text()) == {**before, "parallelism": 7}
