# SPDX-License-Identifier: Apache-2.0
"""What the role scheduler makes of kube-scheduler and the cluster, and what it refuses."""

from __future__ import annotations

import base64
from typing import Any

import pytest
import yaml
from ansible_collections.accel.kubernetes.plugins.module_utils.scheduler import cluster, role
from ansible_collections.accel.kubernetes.plugins.module_utils.scheduler.role import scheduler_progress
from hypothesis import given
from hypothesis import strategies as st

from unit.plugins.scheduler_asked import DEFAULTS, Asked, answered, found

SHARED = {
    *("tencent.com/vcuda-core", "tencent.com/vcuda-memory", "aliyun.com/gpu-mem"),
    *("nvidia.com/mps-core", "nvidia.com/mps-memory"),
}
MANAGED_BY = "app.kubernetes.io/managed-by"


def look(*binders: str) -> dict[str, Any]:
    return {"__scheduler_look": {"changed": False, "binders": list(binders)}}


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
def test_layout_needs_an_extender_where_gpus_are_shared(layout: str, mode: str, expected: str) -> None:
    asked = Asked(layout=layout, hostvars={"b": {"gpu_mode": mode}})
    assert asked.plan()["layout"] == expected
    # As a task has noted them, without the variables of each node.
    noted = Asked(layout=layout)
    noted.asked["modes"] = ["pgpu", mode]
    assert noted.plan()["layout"] == expected


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
def test_layout_does_not_bind_where_another_extender_does(
    planes: list[dict[str, Any]], extenders: list[dict[str, Any]], expected: str
) -> None:
    hosts = {f"cp-{number}": plane for number, plane in enumerate(planes)}
    inventory: dict[str, Any] = {"groups": {"kube_control_plane": list(hosts)}, "extenders": extenders}
    shared = Asked(hostvars={**hosts, "a": {"gpu_mode": "vgpu"}}, **inventory)
    assert shared.plan()["layout"] == expected
    assert shared.plan()["look_for_binders"]
    unshared = Asked(hostvars=hosts, **inventory).plan()
    assert (unshared["layout"], unshared["look_for_binders"]) == ("none", False)


@pytest.mark.parametrize(
    ("words", "state"),
    [
        ({}, "present"),
        ({"binpack_resources": []}, "absent"),
        ({"binpack_resources": [], "extenders": [{"url_prefix": "http://a"}]}, "present"),
        ({"layout": "local", "removing": True}, "absent"),
    ],
)
def test_kube_scheduler_is_given_back_where_nothing_is_wanted(words: dict[str, Any], state: str) -> None:
    assert Asked(**words).plan()["state"] == state


@pytest.mark.parametrize(
    ("there", "distribution", "here"),
    [
        (["manifest"], "", True),
        ([], "", False),
        (["k3s"], "k3s", True),
        (["rke2", "manifest"], "rke2", True),
        (["microk8s"], "", False),
    ],
)
def test_places_on_the_host_tell_how_kube_scheduler_runs(there: list[str], distribution: str, here: bool) -> None:
    plan = Asked(seen={"places": found(*there)}).plan()
    assert (plan["distribution"], plan["here"]) == (distribution, here)
    rooted = Asked(host_root="/host/").plan()
    assert [place["name"] for place in rooted["places"]] == ["microk8s", "k3s", "rke2", "manifest", "authority_key"]
    assert rooted["places"][-2]["path"] == "/host/etc/kubernetes/manifests/kube-scheduler.yaml"
    assert rooted["places"][-1]["path"] == "/host/etc/kubernetes/pki/ca.key"
    assert rooted["files"]["scheduler_conf"] == "/host/etc/kubernetes/scheduler.conf"


def test_local_extender_has_every_verb_and_shared_resource() -> None:
    plan = Asked(layout="local", seen={"certificates": {"stdout_lines": ["client client-7"]}}).plan()
    (entry,) = plan["extenders"]
    assert entry["url_prefix"] == "https://127.0.0.1:9446/scheduler"
    assert {key: entry[key] for key in entry if key.endswith("_verb")} == {
        "filter_verb": "predicates",
        "prioritize_verb": "priorities",
        "preempt_verb": "preemption",
        "bind_verb": "bind",
    }
    assert entry["node_cache_capable"] is True
    assert entry["weight"] * 10 > 12 * 100, "a step of the policy outweighs all scores of kube-scheduler's plugins"
    assert Asked(layout="local", policy_weight=1).plan()["extenders"][0]["weight"] == 1
    assert entry["tls_config"]["cert_file"] == "/etc/kubernetes/kube-accel-pki/scheduler/client-7.crt"
    assert {item["name"] for item in entry["managed_resources"]} == SHARED
    assert all(item["ignored_by_scheduler"] is False for item in entry["managed_resources"])
    assert plan["mounts"] == ["/etc/kubernetes/kube-accel-pki/scheduler"]
    assert plan["packages"] == ["python3-ruamel.yaml", "openssl"]
    assert Asked(layout="none").plan()["packages"] == ["python3-ruamel.yaml"]


@pytest.mark.parametrize(
    ("certificates", "client"),
    [({"stdout_lines": ["/x/ca.crt", "client client-9"]}, "client-9"), ({"skipped": True}, "client"), ({}, "client")],
)
def test_kube_scheduler_shows_the_certificate_that_was_named_last(certificates: dict[str, Any], client: str) -> None:
    assert Asked(seen={"certificates": certificates}).plan()["client"] == client


SERVICES = ["gpu-quota-admission", "nvidia-mps-scheduler-plugin"]


@pytest.mark.parametrize(
    ("layout", "peers", "expected"),
    [
        ("none", [], ["kubeadm-config"]),
        ("local", [], ["kubeadm-config", "ValidatingAdmissionPolicy"]),
        ("proxied", [], ["kubeadm-config", *SERVICES, "ValidatingAdmissionPolicy", "NetworkPolicy"]),
        (
            "secondary",
            [{"podSelector": {}}],
            ["kubeadm-config", "ValidatingAdmissionPolicy", "NetworkPolicy", "EndpointSlice", "Node"],
        ),
    ],
)
def test_the_api_server_is_asked_for_what_the_layout_needs(layout: str, peers: list[Any], expected: list[str]) -> None:
    reads = Asked(layout=layout, network_policy_from=peers).plan()["reads"]
    assert [each.get("name", each["kind"]) for each in reads] == expected
    assert {each["subject"] for each in reads} <= {"kubeadm", "services", "admission", "network"}


def test_answers_of_the_api_server_are_told_apart_by_their_subjects() -> None:
    register = {
        "results": [
            *answered("network", {"kind": "NetworkPolicy"}, api_found=True)["results"],
            *answered("network", {"kind": "Node"}, api_found=True)["results"],
            *answered("admission", api_found=False, msg="no such kind")["results"],
        ]
    }
    found = cluster.answers(register)
    assert found["network"] == {"resources": [{"kind": "NetworkPolicy"}, {"kind": "Node"}], "api_found": True}
    assert found["admission"] == {"resources": [], "api_found": False, "msg": "no such kind"}


@pytest.mark.parametrize(
    ("ends", "renewed"),
    [([0, 0], False), ([0, 1], True), ([None, 0], True)],
)
def test_second_scheduler_gets_new_certificates_in_time(ends: list[int | None], renewed: bool) -> None:
    register = {"results": [{} if end is None else {"rc": end} for end in ends]}
    assert Asked(seen={"certificates": register}).plan()["certificates_end"] is renewed


@pytest.mark.parametrize("wanted", [False, True, "false", "yes"])
def test_whole_gpus_go_through_the_extender_on_request_only(wanted: bool | str) -> None:
    asked = wanted in (True, "yes")
    (entry,) = Asked(layout="local", manage_whole_gpus=wanted).plan()["extenders"]
    assert ("nvidia.com/gpu" in {item["name"] for item in entry["managed_resources"]}) is asked
    assert Asked(layout="auto", manage_whole_gpus=wanted).plan()["layout"] == ("local" if asked else "none")


def conf(document: object) -> dict[str, Any]:
    return {"content": base64.b64encode(yaml.safe_dump(document).encode()).decode()}


def test_proxied_extenders_filter_alone_through_the_api_server() -> None:
    slurped = conf({"clusters": [{"cluster": {"server": "https://10.0.0.1:6443"}}]})
    entries = Asked(layout="proxied", seen={"scheduler_conf": slurped}).plan()["extenders"]
    services = "https://10.0.0.1:6443/api/v1/namespaces/kube-system/services"
    assert {entry["url_prefix"] for entry in entries} == {
        f"{services}/gpu-quota-admission/proxy/scheduler",
        f"{services}/nvidia-mps-scheduler-plugin/proxy/scheduler",
    }
    assert all({key for key in entry if key.endswith("_verb")} == {"filter_verb"} for entry in entries)
    names = [item["name"] for entry in entries for item in entry["managed_resources"]]
    assert sorted(names) == sorted(SHARED)


@pytest.mark.parametrize(
    ("layout", "words"),
    [
        ("local", ["/host/etc/kubernetes/kube-accel-pki", "30", "local"]),
        (
            "proxied",
            [
                *("/host/etc/kubernetes/kube-accel-pki", "30", "proxied"),
                *("/host/etc/kubernetes/pki/ca.crt", "/host/etc/kubernetes/pki/ca.key"),
            ],
        ),
    ],
)
def test_certificates_are_made_below_the_root_of_the_host(layout: str, words: list[str]) -> None:
    plan = Asked(layout=layout, host_root="/host").plan()
    assert (plan["certificate_words"], plan["needs_certificates"]) == (words, True)


TWO_BINDERS = {"failed": True, "code": "two_binders", "msg": "/c: http://x and http://y would both bind pods"}
BINDERS = [{"url_prefix": "http://a", "bind_verb": "bind"}, {"url_prefix": "http://b", "bind_verb": "bind"}]
NOT_OURS = {
    "results": [
        {"resources": [{"metadata": {"name": "gpu-quota-admission"}}]},
        {"resources": [{"metadata": {"name": "x", "labels": {MANAGED_BY: "accel.kubernetes"}}}]},
    ]
}
ANOTHER_BINDS = {
    "layout": "auto",
    "groups": {"gpu_nodes": ["a"], "kube_control_plane": ["cp"]},
    "hostvars": {"a": {"gpu_mode": "vgpu"}, "cp": look("http://theirs")},
    "seen": {"places": found("rke2", "manifest")},
}
WITHOUT_KEY = found("manifest")
WITHOUT_KEY["results"].append({"item": {"name": "authority_key"}, "stat": {"exists": False}})
CILIUM = {"addresses": [], "conditions": [{"type": "NetworkUnavailable", "reason": "CiliumIsUp"}]}
NODES = {"results": [{"resources": [{"kind": "Node", "metadata": {"name": "c1"}, "status": CILIUM}]}]}
PEER = {"podSelector": {"matchLabels": {"app": "prometheus"}}}
CLUSTER_CONFIGURATION = {"resources": [{"data": {"ClusterConfiguration": "scheduler: {extraArgs: no-list}"}}]}


@pytest.mark.parametrize(
    ("words", "code", "says"),
    [
        ({"layout": "beside"}, "layout_unknown", "scheduler_layout is 'beside'; set it to one of auto, local"),
        ({"policy": "pack"}, "policy_unknown", "set it to binpack or spread"),
        ({"layout": "local", "image": ""}, "image_missing", "scheduler_image is not set"),
        ({"layout": "local", "seen": {"proposal": TWO_BINDERS}}, "two_binders", "Set scheduler_layout=proxied"),
        ({"seen": {"proposal": {"failed": True, "msg": "/c: x is no field"}}}, "configuration_refused", "is no field"),
        # As a task leaves it that is not allowed to fail.
        ({"seen": {"proposal": {"failed": False, "msg": "/c: x is no field"}}}, "configuration_refused", "is no field"),
        (
            {"seen": {"places": found()}, "host_root": "/host"},
            "manifest_missing",
            "/host/etc/kubernetes/manifests/kube-scheduler.yaml does not exist",
        ),
        ({"seen": {"places": found()}}, "manifest_missing", "Set scheduler_manifest_path"),
        (
            {"seen": {"places": found("microk8s")}},
            "control_plane_unsupported",
            "microk8s runs kube-scheduler inside its own process in a way this role cannot edit; leave this host out "
            "of kube_control_plane and set scheduler_layout=secondary for all hosts, or add --config to",
        ),
        (
            {"layout": "proxied", "seen": {"places": found("k3s")}},
            "static_pod_needed",
            "set scheduler_layout to secondary or local",
        ),
        (ANOTHER_BINDS, "static_pod_needed", "secondary, or remove the extender that binds pods: http://theirs"),
        (
            {"layout": "proxied", "seen": {"services": NOT_OURS}},
            "services_taken",
            "gpu-quota-admission belongs to another program; remove that",
        ),
        (
            {"layout": "local", "seen": {"kubeadm": {"failed": False, "msg": "refused\nby x"}}},
            "api_unreachable",
            "The API server cannot be asked from the controller: refused by x; set scheduler_kubeconfig",
        ),
        ({"extenders": BINDERS}, "several_binders", "allows one extender with bind_verb"),
        (
            {"layout": "local", "extenders": BINDERS[:1]},
            "several_binders",
            "ours have 2; set scheduler_layout=proxied",
        ),
        (
            {"layout": "proxied", "seen": {"places": WITHOUT_KEY}},
            "authority_key_missing",
            "/etc/kubernetes/pki/ca.key does not exist",
        ),
        (
            {"quota": {"names\x1bpaces": {}}},
            "quota_unreadable",
            "scheduler_quota cannot be read: names\ufffdpaces: unknown key; did you mean namespaces?.",
        ),
        (
            {"quota": {"namespaces": {"a": {"limits": [{"cores": "8h"}]}}}},
            "quota_unreadable",
            "scheduler_quota cannot be read: namespaces.a.limits[0].cores: '8h' is not a quantity",
        ),
        (
            {"layout": "proxied", "network_policy_from": [{"namespace": "monitoring"}]},
            "network_peers",
            "scheduler_network_policy_from: peer 1 is ",
        ),
        (
            {"layout": "proxied", "network_policy_from": [PEER]},
            "network_cilium",
            "but Cilium does not match nodes by ipBlock",
        ),
        (
            {"layout": "proxied", "seen": {"scheduler_conf": conf({"clusters": []})}},
            "document_unreadable",
            "/etc/kubernetes/scheduler.conf: no cluster with a server",
        ),
        (
            {"seen": {"scheduler_conf": conf("{")}},
            "document_unreadable",
            "/etc/kubernetes/scheduler.conf: not a mapping",
        ),
        ({"seen": {"scheduler_conf": {"content": "é"}}}, "document_unreadable", "/etc/kubernetes/scheduler.conf"),
        ({"seen": {"kubeadm": CLUSTER_CONFIGURATION}}, "document_unreadable", "ConfigMap kube-system/kubeadm-config"),
        (
            {"manage_whole_gpus": "maybe"},
            "option_type",
            "scheduler_manage_whole_gpus is 'maybe'; set it to true or false",
        ),
        (
            {"metrics_port": "http"},
            "option_type",
            "scheduler_metrics_port is 'http'; set it to a number from 0 to 65535",
        ),
        ({"extender_port": 65536}, "option_type", "scheduler_extender_port is 65536"),
        ({"extenders": "http://a"}, "option_type", "scheduler_extenders is 'http://a'; set it to a list of mappings"),
        ({"quota": ["team-a"]}, "option_type", "scheduler_quota is ['team-a']; set it to a mapping"),
    ],
)
def test_what_cannot_work_is_refused_with_its_remedy(words: dict[str, Any], code: str, says: str) -> None:
    (refusal,) = Asked(**words).refusals(network=NODES)
    assert refusal["code"] == code
    assert says in refusal["message"]


@pytest.mark.parametrize(
    "words",
    [
        {},
        {"image": ""},
        {"layout": "local"},
        {"layout": "local", "seen": {"places": found("k3s")}},
        {"layout": "local", "seen": {"places": found("rke2")}},
        {"extenders": [BINDERS[0], {"url_prefix": "http://b"}]},
        {"extender_port": "9446", "metrics_port": "9447", "admission_pods_enabled": "no"},
        # Nothing is configured on the controller.
        {"layout": "secondary", "host": "localhost", "seen": {"places": found()}},
        # A bare host has no library for the plan yet; the run installs it.
        {"seen": {"proposal": {"failed": True, "code": "missing_library", "msg": "Failed to import ruamel.yaml"}}},
        {"layout": "proxied", "network_policy_from": []},
        {"layout": "secondary", "network_policy_from": [PEER]},
    ],
)
def test_what_can_work_is_not_refused(words: dict[str, Any]) -> None:
    assert Asked(**words).refusals(network=NODES) == []


ODD = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner, max_size=2) | st.dictionaries(st.text(max_size=3), inner, max_size=2),
    max_leaves=4,
)
OPTIONS = sorted(Asked().asked["options"])
SEEN = (*("places", "proposal", "services", "scheduler_conf", "kubeadm", "certificates", "configured"),)


@given(st.sampled_from(OPTIONS), ODD, st.sampled_from(["auto", "local", "proxied", "secondary"]))
def test_variable_of_any_type_is_planned_with_or_refused(name: str, value: Any, layout: str) -> None:
    asked = Asked(layout=layout, hostvars={"a": {"gpu_mode": "vgpu"}})
    asked.asked["options"][name] = value
    asked.plan(), asked.objects(), asked.kubeadm(), asked.leftovers()
    assert all(refusal.keys() == {"code", "message"} for refusal in asked.refusals())


@given(st.sampled_from(SEEN), ODD, st.sampled_from(["local", "proxied"]))
def test_register_of_any_form_is_planned_with(name: str, value: Any, layout: str) -> None:
    asked = Asked(layout=layout, seen={name: value})
    asked.plan(), asked.refusals(), asked.kubeadm(), asked.leftovers()


@given(ODD, ODD, st.sampled_from(["kubeadm", "services", "admission", "network"]))
def test_answer_of_any_form_is_planned_with(whole: Any, value: Any, subject: str) -> None:
    asked = Asked(layout="proxied")
    for register in (whole, {"results": [{"item": {"subject": subject}, "resources": value, "msg": value}]}):
        role.scheduler_refusals(asked.asked, asked.hostvars, asked.groups, register)
        role.scheduler_kubeadm(asked.asked, asked.hostvars, asked.groups, register)
        role.scheduler_objects(asked.asked, asked.hostvars, asked.groups, {"cluster": register})


def item(kind: str, name: str = "kube-accel-extender") -> dict[str, Any]:
    return {"kind": kind, "metadata": {"name": name}}


@pytest.mark.parametrize(
    ("layout", "unwanted"),
    [
        ("local", ["DaemonSet", "Secret"]),
        ("proxied", ["DaemonSet", "Secret", "Lease"]),
        ("secondary", ["DaemonSet"]),
    ],
)
def test_objects_of_another_layout_go_and_a_quota_stays(layout: str, unwanted: list[str]) -> None:
    """A DaemonSet and a Deployment have the same name."""
    there = [item("DaemonSet"), item("Deployment"), item("ConfigMap", "kube-accel-quota")]
    there += [item("Secret", "kube-accel-extender-tls"), item("Lease")]
    made = {"scheduler_objects": [item("Deployment")]}
    # A second scheduler is made by localhost.
    asked = Asked(layout=layout, hostvars={"localhost" if layout == "secondary" else "cp": made})
    left = asked.leftovers(*there)
    assert [found["kind"] for found in left["unwanted"]] == unwanted
    assert (left["remove"], left["report"]) == (True, "")
    removing = Asked(layout=layout, removing=True, hostvars=asked.hostvars)
    assert removing.leftovers(*there)["unwanted"] == there
    assert removing.leftovers()["remove"]
    assert not asked.leftovers()["remove"]


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
def test_extender_stays_for_control_planes_outside_this_run(
    planes: list[dict[str, Any] | None], expected: list[str]
) -> None:
    hosts = {f"cp-{number}": {"__scheduler_configured": done} if done else {} for number, done in enumerate(planes)}
    left = Asked(hostvars=hosts, groups={"kube_control_plane": list(hosts)}).leftovers(item("Deployment"))
    assert left["unedited"] == expected
    assert left["remove"] is (not expected)
    assert left["report"] == ("Deployment kube-accel-extender" if expected else "")


@pytest.mark.parametrize(
    ("layout", "waits_for"),
    [
        ("local", ("DaemonSet", "kube-accel-extender")),
        ("proxied", ("ReplicaSet", "kube-accel-extender-5d4f")),
        ("secondary", ("ReplicaSet", "accel-scheduler-7c9b")),
    ],
)
def test_ready_pods_are_those_of_the_layout(layout: str, waits_for: tuple[str, str]) -> None:
    owners = [
        ("DaemonSet", "kube-accel-extender"),
        ("ReplicaSet", "kube-accel-extender-5d4f"),
        ("ReplicaSet", "accel-scheduler-7c9b"),
    ]

    def pods(ready: str, **metadata: str) -> list[dict[str, Any]]:
        return [
            {
                "metadata": {"name": name, "ownerReferences": [{"kind": kind, "name": name}], **metadata},
                "status": {"conditions": [{"type": "Ready", "status": ready}]},
            }
            for kind, name in owners
        ]

    assert scheduler_progress(pods("True"), layout)["ready"] == [waits_for[1]]
    assert scheduler_progress(pods("False"), layout)["ready"] == []
    assert scheduler_progress(pods("True", deletionTimestamp="2026-01-01T00:00:00Z"), layout)["ready"] == []
    assert scheduler_progress("no answer", layout) == {"ready": [], "rolled": False}


DAEMONSET = {
    "metadata": {"generation": 3},
    "status": {
        **{"observedGeneration": 3, "desiredNumberScheduled": 2, "updatedNumberScheduled": 2},
        **{"numberReady": 2, "currentNumberScheduled": 2},
    },
}
DEPLOYMENT = {
    "metadata": {"generation": 1},
    "spec": {"replicas": 1},
    "status": {"observedGeneration": 1, "updatedReplicas": 1, "readyReplicas": 1, "replicas": 1},
}


@pytest.mark.parametrize(
    ("workload", "changed", "rolled"),
    [
        (DAEMONSET, {}, True),
        (DAEMONSET, {"observedGeneration": 2}, False),
        (DAEMONSET, {"updatedNumberScheduled": 1}, False),
        (DAEMONSET, {"numberReady": 1}, False),
        (DAEMONSET, {"currentNumberScheduled": 3}, False),
        (DEPLOYMENT, {}, True),
        (DEPLOYMENT, {"replicas": 2}, False),
        (DEPLOYMENT, {"readyReplicas": 0}, False),
        (DEPLOYMENT, {"updatedReplicas": 0}, False),
    ],
)
def test_workload_is_rolled_out_once_all_pods_match_it(
    workload: dict[str, Any], changed: dict[str, int], rolled: bool
) -> None:
    found = [workload | {"status": workload["status"] | changed}]
    assert scheduler_progress(found, "local")["rolled"] is rolled
    assert scheduler_progress([], "local")["rolled"] is False


@pytest.mark.parametrize(
    ("given_image", "version", "image"),
    [
        ("", "v1.31.2+k3s1", "registry.k8s.io/kube-scheduler:v1.31.2"),
        ("", "v1.30.0-gke.100", "registry.k8s.io/kube-scheduler:v1.30.0"),
        ("mirror.example/scheduler:1", "v1.31.2", "mirror.example/scheduler:1"),
    ],
)
def test_second_scheduler_has_the_version_of_the_cluster(given_image: str, version: str, image: str) -> None:
    cluster = {"version": {"server": {"kubernetes": {"gitVersion": version}}}}
    assert Asked(secondary_image=given_image).objects(version=cluster)["second_image"] == image


def test_every_default_of_the_role_is_accepted() -> None:
    assert set(Asked().asked["options"]) <= {*DEFAULTS, "kube_accel_image_delivery"}
    assert Asked().refusals() == []
