# SPDX-License-Identifier: Apache-2.0
"""Which extender the scheduler role brings, what it tells kubeadm, and what it refuses."""

from __future__ import annotations

import base64
import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.template import trust_as_template

from .conftest import ROLES, Evaluate, rendered
from .test_security import SECONDARY

PLACES = ("microk8s", "k3s", "rke2", "manifest")
SHARED = {
    *("tencent.com/vcuda-core", "tencent.com/vcuda-memory", "aliyun.com/gpu-mem"),
    *("nvidia.com/mps-core", "nvidia.com/mps-memory"),
}


def found(*names: str) -> dict[str, Any]:
    """What of a control plane is on the host."""
    return {"results": [{"item": {"name": name}, "stat": {"exists": name in names}} for name in PLACES]}


def given(**changed: Any) -> dict[str, Any]:
    """Registers of a preflight on a bare control plane, and an inventory of whole GPUs."""
    return {
        "groups": {"gpu_nodes": ["a", "b"]},
        "hostvars": {"a": {}, "b": {"gpu_mode": "pgpu"}},
        "scheduler_image": "registry.example/kube-accel:1",
        "__scheduler_found": found("manifest"),
        "__scheduler_plan": {"changed": False},
    } | changed


def ask(evaluate: Evaluate, name: str, **changed: Any) -> Any:
    return evaluate("scheduler", name, {"os_family": "Debian"}, **given(**changed))


@pytest.mark.parametrize(
    ("layout", "mode", "expected"),
    [
        ("auto", "pgpu", "none"),
        ("auto", "vgpu", "local"),
        ("auto", "mps", "local"),
        ("auto", "cgpu", "local"),
        ("none", "vgpu", "none"),
        ("proxied", "pgpu", "proxied"),
    ],
)
def test_an_extender_is_brought_where_gpus_are_shared(
    evaluate: Evaluate, layout: str, mode: str, expected: str
) -> None:
    hosts = {"a": {}, "b": {"gpu_mode": mode}}
    assert ask(evaluate, "__scheduler_layout", scheduler_layout=layout, hostvars=hosts) == expected


def look(*binders: str) -> dict[str, Any]:
    return {"__scheduler_look": {"changed": False, "binders": list(binders)}}


@pytest.mark.parametrize(
    ("planes", "extenders", "expected"),
    [
        ([{}, look()], [], "local"),
        ([{"__scheduler_look": {"skipped": True}}, look()], [], "local"),
        ([look(), look("http://theirs")], [], "proxied"),
        ([look()], [{"url_prefix": "http://a", "bind_verb": "bind"}], "proxied"),
        ([look()], [{"url_prefix": "http://a", "filter_verb": "filter"}], "local"),
    ],
)
def test_ours_does_not_bind_where_another_does_on_any_control_plane(
    evaluate: Evaluate, planes: list[dict[str, Any]], extenders: list[dict[str, Any]], expected: str
) -> None:
    names = [f"cp-{number}" for number in range(len(planes))]
    inventory = {
        "groups": {"gpu_nodes": ["a"], "kube_control_plane": names},
        "hostvars": {"a": {"gpu_mode": "vgpu"}} | dict(zip(names, planes, strict=True)),
        "scheduler_extenders": extenders,
    }
    assert ask(evaluate, "__scheduler_layout", **inventory) == expected
    unshared = inventory | {"hostvars": inventory["hostvars"] | {"a": {}}}  # type: ignore[operator]
    assert ask(evaluate, "__scheduler_layout", **unshared) == "none"


@pytest.mark.parametrize(("layout", "secret"), [("proxied", True), ("secondary", False)])
def test_what_another_layout_needed_goes_and_a_quota_stays(evaluate: Evaluate, layout: str, secret: bool) -> None:
    """A DaemonSet and a Deployment have the same name."""

    def item(kind: str, name: str = "kube-accel-extender") -> dict[str, Any]:
        return {"kind": kind, "metadata": {"name": name}}

    there = [item("DaemonSet"), item("Deployment"), item("ConfigMap", "kube-accel-quota")]
    there.append(item("Secret", "kube-accel-extender-tls"))
    made = {"__scheduler_objects": [item("Deployment")]}
    # A second scheduler is made by localhost.
    unwanted = ask(
        evaluate,
        "__scheduler_unwanted",
        scheduler_layout=layout,
        hostvars={"a": {}, "b": {}, "localhost": made if layout == "secondary" else {}},
        **({} if layout == "secondary" else made),
        __scheduler_swept={"results": [{"resources": there}, {"skipped": True}]},
    )
    assert [found["kind"] for found in unwanted] == ["DaemonSet", *(["Secret"] if secret else [])]


@pytest.mark.parametrize(
    ("planes", "expected"),
    [
        ([{"changed": True}, {"changed": False}], []),
        ([{"changed": True}, None], ["cp-1"]),
        ([{"changed": True}, {"failed": True, "msg": "no"}], ["cp-1"]),
        # A dry run on a bare host.
        ([{"skipped": True}], []),
        ([], []),
    ],
)
def test_an_extender_stays_for_control_planes_that_this_run_did_not_edit(
    evaluate: Evaluate, planes: list[dict[str, Any] | None], expected: list[str]
) -> None:
    hosts = {f"cp-{number}": {"__scheduler_configured": done} if done else {} for number, done in enumerate(planes)}
    words = {"hostvars": hosts, "groups": {"kube_control_plane": list(hosts)}}
    assert ask(evaluate, "__scheduler_unedited", **words) == expected


@pytest.mark.parametrize(
    ("layout", "waits_for"),
    [
        ("local", ("DaemonSet", "kube-accel-extender")),
        ("proxied", ("ReplicaSet", "kube-accel-extender-5d4f")),
        ("secondary", ("ReplicaSet", "accel-scheduler-7c9b")),
    ],
)
def test_a_pod_of_another_layout_is_no_extender_that_is_ready(
    evaluate: Evaluate, layout: str, waits_for: tuple[str, str]
) -> None:
    owners = [
        ("DaemonSet", "kube-accel-extender"),
        ("ReplicaSet", "kube-accel-extender-5d4f"),
        ("ReplicaSet", "accel-scheduler-7c9b"),
    ]

    def pods(ready: str, **metadata: str) -> dict[str, Any]:
        return {
            "resources": [
                {
                    "metadata": {"name": name, "ownerReferences": [{"kind": kind, "name": name}], **metadata},
                    "status": {"conditions": [{"type": "Ready", "status": ready}]},
                }
                for kind, name in owners
            ]
        }

    def ready(found: dict[str, Any]) -> Any:
        return ask(evaluate, "__scheduler_ready", scheduler_layout=layout, __scheduler_pods=found)

    assert ready(pods("True")) == [waits_for[1]]
    assert ready(pods("False")) == []
    assert ready(pods("True", deletionTimestamp="2026-01-01T00:00:00Z")) == []
    assert ready({"failed": True, "msg": "no"}) == []


def test_the_local_extender_has_every_verb_and_shared_resource(evaluate: Evaluate) -> None:
    certificates = {"stdout_lines": ["client client-7"]}
    (entry,) = ask(evaluate, "__scheduler_extenders", scheduler_layout="local", __scheduler_certificates=certificates)
    assert entry["url_prefix"] == "https://127.0.0.1:9446/scheduler"
    verbs = {key: entry[key] for key in entry if key.endswith("_verb")}
    assert verbs == {
        "filter_verb": "predicates",
        "prioritize_verb": "priorities",
        "preempt_verb": "preemption",
        "bind_verb": "bind",
    }
    assert entry["node_cache_capable"] is True
    assert entry["tls_config"]["cert_file"] == "/etc/kubernetes/kube-accel-pki/scheduler/client-7.crt"
    assert {item["name"] for item in entry["managed_resources"]} == SHARED
    assert all(item["ignored_by_scheduler"] is False for item in entry["managed_resources"])
    assert ask(evaluate, "__scheduler_mounts", scheduler_layout="local") == ["/etc/kubernetes/kube-accel-pki/scheduler"]


def test_a_certificate_made_in_this_run_is_the_one_that_counts(evaluate: Evaluate) -> None:
    made = {"stdout_lines": ["/x/ca.crt", "client client-9"]}
    for second, expected in ((made, "client-9"), ({"skipped": True}, "client-7")):
        client = ask(
            evaluate,
            "__scheduler_client",
            __scheduler_certificates={"stdout_lines": ["client client-7"]},
            __scheduler_certificates_made=second,
        )
        assert client == f"/etc/kubernetes/kube-accel-pki/scheduler/{expected}"


def test_whole_gpus_go_through_the_extender_on_request_only(evaluate: Evaluate) -> None:
    for wanted in (False, True):
        (entry,) = ask(evaluate, "__scheduler_extenders", scheduler_layout="local", scheduler_manage_whole_gpus=wanted)
        assert ("nvidia.com/gpu" in {item["name"] for item in entry["managed_resources"]}) is wanted
        layout = ask(evaluate, "__scheduler_layout", scheduler_layout="auto", scheduler_manage_whole_gpus=wanted)
        assert layout == ("local" if wanted else "none")


def test_the_proxied_extenders_filter_alone_through_the_api_server(evaluate: Evaluate) -> None:
    conf = yaml.safe_dump({"clusters": [{"cluster": {"server": "https://10.0.0.1:6443"}}]})
    slurped = {"content": base64.b64encode(conf.encode()).decode()}
    entries = ask(evaluate, "__scheduler_extenders", scheduler_layout="proxied", __scheduler_conf=slurped)
    services = "https://10.0.0.1:6443/api/v1/namespaces/kube-system/services"
    assert {entry["url_prefix"] for entry in entries} == {
        f"{services}/gpu-quota-admission/proxy/scheduler",
        f"{services}/nvidia-mps-scheduler-plugin/proxy/scheduler",
    }
    assert all({key for key in entry if key.endswith("_verb")} == {"filter_verb"} for entry in entries)
    names = [item["name"] for entry in entries for item in entry["managed_resources"]]
    assert sorted(names) == sorted(SHARED)


OURS = "app.kubernetes.io/managed-by"
BINDER = {"failed": True, "code": "two_binders", "msg": "/c: http://x and http://y would both bind pods, and ..."}


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"scheduler_layout": "beside"}, "scheduler_layout is 'beside'; set it to one of auto, local"),
        ({"scheduler_policy": "pack"}, "set it to binpack or spread"),
        ({"scheduler_layout": "local", "scheduler_image": ""}, "scheduler_image is not set"),
        ({"scheduler_layout": "local", "__scheduler_plan": BINDER}, "set scheduler_layout=proxied"),
        ({"__scheduler_plan": {"failed": True, "msg": "/c: extenders[0].x is no field"}}, "is no field"),
        # As a task leaves it that is not allowed to fail.
        ({"__scheduler_plan": {"failed": False, "msg": "/c: extenders[0].x is no field"}}, "is no field"),
        ({"__scheduler_found": found()}, "/etc/kubernetes/manifests/kube-scheduler.yaml does not exist"),
        ({"__scheduler_found": found("microk8s")}, "scheduler_layout=secondary for all hosts, or add --config to"),
        (
            {"scheduler_layout": "proxied", "__scheduler_found": found("k3s")},
            "set scheduler_layout to secondary or local",
        ),
        (
            {
                "scheduler_layout": "auto",
                "groups": {"gpu_nodes": ["a"], "kube_control_plane": ["cp"]},
                "hostvars": {"a": {"gpu_mode": "vgpu"}, "cp": look("http://theirs")},
                "__scheduler_found": found("rke2", "manifest"),
            },
            "secondary, or remove the extender that binds pods: http://theirs",
        ),
        (
            {
                "scheduler_layout": "proxied",
                "__scheduler_services": {
                    "results": [
                        {"resources": [{"metadata": {"name": "gpu-quota-admission"}}]},
                        {"resources": [{"metadata": {"name": "x", "labels": {OURS: "accel.kubernetes"}}}]},
                    ]
                },
            },
            "somebody else has gpu-quota-admission; remove what it belongs to",
        ),
        (
            {"scheduler_layout": "local", "__scheduler_kubeadm_found": {"failed": False, "msg": "refused"}},
            "The API server cannot be asked from the controller: refused; set scheduler_kubeconfig",
        ),
        (
            {"scheduler_layout": "local", "scheduler_extenders": [{"url_prefix": "http://a", "bind_verb": "bind"}]},
            "ours have 2; set scheduler_layout=proxied",
        ),
        (
            {"scheduler_layout": "proxied", "__scheduler_ca_key": {"stat": {"exists": False}}},
            "/etc/kubernetes/pki/ca.key does not exist",
        ),
        (
            {
                "__scheduler_quota_check": {
                    "rc": 1,
                    "stderr_lines": ["Traceback", "a.b.QuotaError: line 2: unknown key"],
                }
            },
            "scheduler_quota cannot be read: line 2: unknown key.",
        ),
    ],
)
def test_what_cannot_work_is_refused_with_its_remedy(evaluate: Evaluate, changed: dict[str, Any], says: str) -> None:
    problems = ask(evaluate, "__scheduler_problems", **changed)
    assert len(problems) == 1, problems
    assert says in problems[0]


@pytest.mark.parametrize(
    "changed",
    [
        {},
        {"scheduler_image": ""},
        {"scheduler_layout": "local"},
        {"scheduler_layout": "local", "__scheduler_found": found("k3s")},
        {"scheduler_layout": "local", "__scheduler_found": found("rke2")},
        # Nothing is configured on the controller.
        {"scheduler_layout": "secondary", "inventory_hostname": "localhost", "__scheduler_found": found()},
        # A bare host has no library for the plan yet; the run installs it.
        {"__scheduler_plan": {"failed": True, "code": "missing_library", "msg": "Failed to import ruamel.yaml"}},
    ],
)
def test_what_can_work_is_not_refused(evaluate: Evaluate, changed: dict[str, Any]) -> None:
    assert ask(evaluate, "__scheduler_problems", **changed) == []


def kubeadm(scheduler: dict[str, Any] | None, version: str = "v1beta4") -> dict[str, Any]:
    text = {"apiVersion": f"kubeadm.k8s.io/{version}", "kind": "ClusterConfiguration", "clusterName": "c"}
    text |= {"scheduler": scheduler} if scheduler is not None else {}
    return {"resources": [{"data": {"ClusterConfiguration": yaml.safe_dump(text)}}]}


PATH_TYPES = {"", "DirectoryOrCreate", "Directory", "FileOrCreate", "File", "Socket", "CharDevice", "BlockDevice"}


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


def told(evaluate: Evaluate, found: dict[str, Any], **changed: Any) -> dict[str, Any]:
    after = ask(evaluate, "__scheduler_kubeadm_after", __scheduler_kubeadm_found=found, **changed)
    assert after["clusterName"] == "c"
    found_scheduler: dict[str, Any] = json.loads(json.dumps(after["scheduler"]))
    assert accepted(found_scheduler, after["apiVersion"].rpartition("/")[2])
    return found_scheduler


CONFIG = "/etc/kubernetes/kube-accel/scheduler.yaml"


def test_kubeadm_is_told_what_the_manifest_holds(evaluate: Evaluate) -> None:
    first = told(evaluate, kubeadm({"extraArgs": [{"name": "v", "value": "4"}]}), scheduler_layout="local")
    assert first["extraArgs"] == [{"name": "v", "value": "4"}, {"name": "config", "value": CONFIG}]
    assert [item["hostPath"] for item in first["extraVolumes"]] == [
        "/etc/kubernetes/kube-accel",
        "/etc/kubernetes/kube-accel-pki/scheduler",
    ]
    assert told(evaluate, kubeadm(first), scheduler_layout="local") == first
    gone = told(evaluate, kubeadm(first), scheduler_layout="none", scheduler_binpack_resources=[])
    assert gone == {"extraArgs": [{"name": "v", "value": "4"}]}


def test_the_older_kubeadm_has_arguments_by_name(evaluate: Evaluate) -> None:
    found = told(evaluate, kubeadm({"extraArgs": {"v": "4"}}, "v1beta3"), scheduler_layout="local")
    assert found["extraArgs"] == {"v": "4", "config": CONFIG}
    gone = told(evaluate, kubeadm(found, "v1beta3"), scheduler_layout="none", scheduler_binpack_resources=[])
    assert gone == {"extraArgs": {"v": "4"}}


def test_a_configuration_of_others_stays_kubeadms(evaluate: Evaluate) -> None:
    theirs = {"extraArgs": [{"name": "config", "value": "/etc/theirs.yaml"}], "extraVolumes": [{"name": "theirs"}]}
    found = told(evaluate, kubeadm(theirs), scheduler_layout="local")
    assert found["extraArgs"] == theirs["extraArgs"]
    assert [item["name"] for item in found["extraVolumes"]][:1] == ["theirs"]
    assert [item["hostPath"] for item in found["extraVolumes"][1:]] == ["/etc/kubernetes/kube-accel-pki/scheduler"]


def planes(**read: str) -> dict[str, Any]:
    """Control planes by the configuration that each one's kube-scheduler reads."""
    registers = {host: {"__scheduler_plan": {"scheduler_config_path": path}} for host, path in read.items()}
    return {"groups": {"gpu_nodes": ["a"], "kube_control_plane": list(read)}, "hostvars": {"a": {}} | registers}


def test_kubeadm_is_not_told_of_a_file_that_a_control_plane_lacks(evaluate: Evaluate) -> None:
    """One whose manifest was edited by hand keeps its own file, and ours is not there."""
    unlike = planes(one=CONFIG, two="/etc/kubernetes/scheduler-config.yaml")
    for before in ({}, {"extraArgs": [{"name": "config", "value": CONFIG}]}):
        found = told(evaluate, kubeadm(before), scheduler_layout="local", **unlike)
        assert "extraArgs" not in found
        assert [item["hostPath"] for item in found["extraVolumes"]] == ["/etc/kubernetes/kube-accel-pki/scheduler"]
    expected = {"two": "/etc/kubernetes/scheduler-config.yaml"}
    assert ask(evaluate, "__scheduler_kubeadm_unlike", **unlike) == expected
    alike = planes(one=CONFIG, two=CONFIG)
    assert told(evaluate, kubeadm({}), scheduler_layout="local", **alike)["extraArgs"]
    assert ask(evaluate, "__scheduler_kubeadm_unlike", **alike) == {}
    rooted = planes(one=f"/root-a{CONFIG}", two=f"/root-b{CONFIG}")
    for host, root in (("one", "/root-a"), ("two", "/root-b/")):
        rooted["hostvars"][host]["scheduler_host_root"] = root
    assert ask(evaluate, "__scheduler_kubeadm_unlike", **rooted) == {}


def test_what_kubeadm_was_told_of_an_earlier_path_is_ours(evaluate: Evaluate) -> None:
    first = told(evaluate, kubeadm({}), scheduler_layout="local", scheduler_config_path="/etc/before/scheduler.yaml")
    gone = told(evaluate, kubeadm(first), scheduler_layout="none", scheduler_binpack_resources=[])
    assert gone == {}
    moved = told(evaluate, kubeadm(first), scheduler_layout="local")
    assert moved["extraArgs"] == [{"name": "config", "value": CONFIG}]


def certificates(action: str, directory: Path, days: int = 30, *more: str) -> list[str]:
    script = (ROLES / "scheduler/files/certificates.sh").read_text()
    command = ["sh", "-s", action, str(directory), str(days), *(more or ("local",))]
    return subprocess.run(command, input=script, capture_output=True, text=True, check=True).stdout.splitlines()


def verified(ca: Path, certificate: Path) -> bool:
    return subprocess.run(["openssl", "verify", "-CAfile", ca, certificate], capture_output=True).returncode == 0


def test_certificates_are_made_once_and_belong_together(tmp_path: Path) -> None:
    missing = certificates("check", tmp_path)
    assert len(missing) == 6
    assert not list(tmp_path.iterdir())
    client = certificates("make", tmp_path)[-1].split()[1]
    assert certificates("check", tmp_path) == [f"client {client}"]
    assert verified(tmp_path / "scheduler/ca.crt", tmp_path / "extender/server.crt")
    assert verified(tmp_path / "extender/ca.crt", tmp_path / f"scheduler/{client}.crt")
    keys = list(tmp_path.rglob("*.key"))
    assert len(keys) == 3
    assert all(key.stat().st_mode & 0o077 == 0 for key in keys)
    assert not list(tmp_path.rglob("*.new"))
    assert {path.name for path in (tmp_path / "scheduler").iterdir()} == {"ca.crt", f"{client}.crt", f"{client}.key"}


def test_certificates_that_end_soon_or_are_damaged_are_made_anew(tmp_path: Path) -> None:
    certificates("make", tmp_path)
    assert len(certificates("check", tmp_path, 3651)) == 4
    before = (tmp_path / "ca/ca.crt").read_bytes()
    (tmp_path / "extender/server.crt").write_text("damaged")
    assert certificates("check", tmp_path)[0].endswith("server.crt")
    certificates("make", tmp_path)
    assert len(certificates("check", tmp_path)) == 1
    assert (tmp_path / "ca/ca.crt").read_bytes() == before


def test_a_lost_ca_renews_all_and_gives_the_client_another_name(tmp_path: Path) -> None:
    certificates("make", tmp_path)
    old = tmp_path / "scheduler/client-1"
    (found,) = (tmp_path / "scheduler").glob("client-*.crt")
    found.rename(old.with_suffix(".crt"))
    found.with_suffix(".key").rename(old.with_suffix(".key"))
    (tmp_path / "ca/ca.key").unlink()
    new = certificates("make", tmp_path)[-1].split()[1]
    assert new != "client-1"
    assert old.with_suffix(".crt").exists()
    assert verified(tmp_path / "extender/ca.crt", tmp_path / f"scheduler/{new}.crt")


@pytest.mark.parametrize("name", ["ca/ca", "extender/server", "scheduler/client"])
def test_a_certificate_that_is_not_of_its_key_is_made_anew(tmp_path: Path, name: str) -> None:
    """As of a machine that stopped between the two."""
    certificates("make", tmp_path)
    (key,) = tmp_path.glob(f"{name}*.key")
    certificates("make", tmp_path / "other")
    key.write_bytes((tmp_path / "other/extender/server.key").read_bytes())

    assert str(key.with_suffix(".crt")) in certificates("check", tmp_path) or name.startswith("scheduler")
    assert len(certificates("check", tmp_path)) > 1
    client = certificates("make", tmp_path)[-1].split()[1]

    assert len(certificates("check", tmp_path)) == 1
    for made in (tmp_path / "extender/server.crt", tmp_path / f"scheduler/{client}.crt"):
        assert verified(tmp_path / "extender/ca.crt", made)


def test_a_ca_that_cannot_sign_is_named(tmp_path: Path) -> None:
    for name in ("cluster", "other"):
        certificates("make", tmp_path / name)
    words = ("proxied", str(tmp_path / "cluster/ca/ca.crt"), str(tmp_path / "other/ca/ca.key"))
    with pytest.raises(subprocess.CalledProcessError) as refusal:
        certificates("make", tmp_path / "pki", 30, *words)
    assert "other/ca/ca.key cannot sign with" in refusal.value.stderr


def test_the_proxied_client_is_signed_by_the_cluster(tmp_path: Path) -> None:
    certificates("make", tmp_path / "cluster")
    ca = tmp_path / "cluster/ca/ca.crt"
    words = ("proxied", str(ca), str(ca.with_suffix(".key")))
    client = certificates("make", tmp_path / "pki", 30, *words)[-1].split()[1]
    assert verified(ca, tmp_path / f"pki/scheduler/{client}.crt")
    assert not (tmp_path / "pki/ca").exists()
    assert len(certificates("check", tmp_path / "pki", 30, *words)) == 1


@pytest.mark.parametrize(
    ("layout", "port", "listens", "scraped"),
    [
        ("local", 0, [], []),
        ("local", 9447, ["--metrics-listen=0.0.0.0:9447"], [{"name": "metrics", "containerPort": 9447}]),
        ("proxied", 0, [], [{"name": "metrics", "containerPort": 9446}]),
    ],
)
def test_the_extender_is_scraped_where_prometheus_reaches_it(
    evaluate: Evaluate, layout: str, port: int, listens: list[str], scraped: list[dict[str, Any]]
) -> None:
    template = trust_as_template((ROLES / "scheduler/templates/container.yml.j2").read_text())
    words = {"scheduler_layout": layout, "scheduler_metrics_port": port, "template": template}
    container = yaml.safe_load(ask(evaluate, "template", **words))
    assert [word for word in container["command"] if "metrics" in word] == listens
    assert container.get("ports", []) == scraped


@pytest.mark.parametrize("layout", ["proxied", "secondary"])
def test_an_imported_image_is_run_where_it_was_imported(layout: str) -> None:
    made = {"__gpu_plugins_image_here": "localhost/kube-accel:1-abc"}
    words: dict[str, Any] = {
        "groups": {"gpu_nodes": ["a", "b", "absent"], "kube_control_plane": ["cp"]},
        "hostvars": {"a": made, "b": made | {"gpu_plugins_node_name": "b.example"}, "absent": {}, "cp": made},
        "gpu_plugins_image_assemble": {"amd64": {}},
        "gpu_plugins_image": "localhost/kube-accel:1-abc",
        "scheduler_layout": layout,
        **SECONDARY,
    }

    def pod(**changed: Any) -> dict[str, Any]:
        template = "secondary.yml.j2" if layout == "secondary" else "extender.yml.j2"
        objects = rendered("scheduler", template, **(words | changed))
        (found,) = [item["spec"]["template"]["spec"] for item in objects if item["kind"] == "Deployment"]
        spec: dict[str, Any] = found
        return spec

    required = pod()["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    fields = [field for term in required["nodeSelectorTerms"] for field in term["matchFields"]]
    assert [field["values"] for field in fields] == [["a"], ["b.example"], ["cp"]]
    assert {field["key"] for field in fields} == {"metadata.name"}
    assert "node-role.kubernetes.io/gpu" in {item["key"] for item in pod()["tolerations"]}
    for elsewhere in (
        {"gpu_plugins_image_delivery": "push"},
        {"gpu_plugins_image_assemble": {}},
        {"scheduler_image": "registry.example/own:1"},
    ):
        assert not {"affinity", "tolerations"} & pod(**elsewhere).keys()
