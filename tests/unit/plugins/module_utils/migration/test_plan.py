# SPDX-License-Identifier: Apache-2.0
"""What a migration plans, from objects as the other plugins' charts write them."""

from __future__ import annotations

import copy
import json
import re
from typing import Any

import pytest
import yaml
from ansible_collections.accel.kubernetes.plugins.module_utils.migration import peers, resources
from ansible_collections.accel.kubernetes.plugins.module_utils.migration.plan import Cluster, Terms, Wanted, plan
from ansible_collections.accel.kubernetes.plugins.module_utils.migration.shown import table
from ansible_collections.accel.kubernetes.plugins.modules.gpu_migration_info import parsed
from hypothesis import assume, given
from hypothesis import strategies as st

from sim.cluster.kinds import matches_node
from sim.cluster.patch import merge
from unit.plugins.module_utils.migration import peer_objects as objects
from unit.plugins.module_utils.migration.peer_objects import DAEMONSETS, SELECTED, Object, chosen, pod

GIB, MIB = 1 << 30, 1 << 20
KINDS = sorted(DAEMONSETS)
NATURAL = {
    "nvidia": "pgpu",
    "gpu-operator": "pgpu",
    "gpu-manager": "vgpu",
    "hami": "vgpu",
    "gpushare": "cgpu",
    "mps": "mps",
    "nvidia-dra": "dra",
    "hami-dra": "dra",
}
SLICED = {"version": "v1", "sharing": {"timeSlicing": {"resources": [{"name": "nvidia.com/gpu", "replicas": 4}]}}}
MPS = {"version": "v1", "sharing": {"mps": {"resources": [{"name": "nvidia.com/gpu", "replicas": 4}]}}}
TAINT = {"key": "nvidia.com/gpu", "value": "present", "effect": "NoSchedule"}


ELSEWHERE = Terms("kube-accel")
"""Our DaemonSets have a namespace of their own."""


def planned(
    daemonsets: list[Object],
    nodes: list[Object],
    *pods: Object,
    mode: str = "pgpu",
    variables: Object | None = None,
    terms: Terms = ELSEWHERE,
    gpus: Any = (),
    **more: Any,
) -> dict[str, Any]:
    """The plan for all nodes."""
    wanted = [Wanted(item["metadata"]["name"], mode, variables or {}, 80 * GIB, gpus) for item in nodes]
    return plan(Cluster(nodes, daemonsets, pods, **more), wanted, terms, parsed)


def of(kind: str, *pods: Object, **options: Any) -> dict[str, Any]:
    """The plan of a node that a kind of plugin serves."""
    options.setdefault("mode", NATURAL[kind])
    entry: dict[str, Any] = planned([DAEMONSETS[kind]()], [chosen(kind)], *pods, **options)["nodes"]["gpu-1"]
    return entry


@pytest.mark.parametrize("kind", KINDS)
def test_each_is_known_by_its_objects_and_serves_what_it_selects(kind: str) -> None:
    beside = [objects.ours(), objects.stranger(), objects.feature_discovery()]
    document = planned([*beside, DAEMONSETS[kind]()], [chosen(kind), objects.node("plain")], mode=NATURAL[kind])
    (peer,) = document["peers"]
    assert (peer["kind"], peer["nodes"]) == (kind, ["gpu-1"])
    assert document["nodes"]["gpu-1"]["state"] == "due"
    assert document["nodes"]["gpu-1"]["problems"] == []
    assert document["nodes"]["plain"]["state"] == "none" or kind == "stranger"


def test_mps_daemons_go_with_their_plugin_but_not_discovery() -> None:
    document = planned(
        [objects.nvidia(), objects.mps_control_daemon(), objects.feature_discovery()], [chosen("nvidia")]
    )
    (peer,) = document["peers"]
    names = ["nvidia-device-plugin/nvdp-nvidia-device-plugin"]
    assert peer["daemonsets"] == [*names, f"{names[0]}-mps-control-daemon"]
    assert [each["name"] for each in peer["avoid"]] == [name.partition("/")[2] for name in peer["daemonsets"]]
    assert peer["removal"] == [
        "helm uninstall nvdp --namespace nvidia-device-plugin",
        "kubectl --namespace nvidia-device-plugin delete daemonset nvdp-nvidia-device-plugin-mps-control-daemon",
    ]


@pytest.mark.parametrize(
    ("kind", "commands"),
    [
        (
            "gpu-operator",
            "kubectl patch clusterpolicies.nvidia.com/cluster-policy --type merge "
            """--patch '{"spec": {"devicePlugin": {"enabled": false}}}'""",
        ),
        ("hami", "helm uninstall hami --namespace kube-system"),
        ("gpu-manager", "kubectl --namespace kube-system delete daemonset gpu-manager-daemonset"),
    ],
)
def test_how_to_remove_it_is_told_and_left_to_who_owns_it(kind: str, commands: str) -> None:
    assert planned([DAEMONSETS[kind]()], [chosen(kind)])["peers"][0]["removal"] == [commands]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("mode", ["pgpu", "vgpu", "mps", "cgpu", "dra"])
def test_it_leaves_the_node_alone_and_comes_back_as_it_was(kind: str, mode: str) -> None:
    """Through merge patches, as the API server applies them; other nodes stay served throughout."""
    daemonset, first, second = DAEMONSETS[kind](), chosen(kind), chosen(kind, "gpu-2")
    before = copy.deepcopy([daemonset, first, second])
    document = planned([daemonset], [first, second], mode=mode)
    for each in document["peers"][0]["avoid"]:
        daemonset = merge(daemonset, each["patch"])
    assert all(matches_node(daemonset["spec"]["template"]["spec"], item) for item in (first, second))
    first = merge(first, document["nodes"]["gpu-1"]["off"])
    spec = daemonset["spec"]["template"]["spec"]
    assert (matches_node(spec, first), matches_node(spec, second)) == (False, True)
    if document["peers"][0]["avoid"]:
        assert daemonset["spec"]["updateStrategy"] == {"type": "OnDelete"}

    again = planned([daemonset], [first, second], mode=mode)
    assert again["peers"][0]["avoid"] == []
    assert again["nodes"]["gpu-1"]["state"] == "begun"
    assert merge(first, again["nodes"]["gpu-1"]["off"]) == first
    serving = merge(first, {"metadata": {"labels": {"nvidia-device-enable": mode}}})
    assert planned([daemonset], [serving, second], mode=mode)["nodes"]["gpu-1"]["state"] == "done"

    # The role's uninstall takes the label that says what our plugin serves.
    first = merge(serving, {"metadata": {"labels": {"nvidia-device-enable": None}}})
    back = planned([daemonset], [first, second], mode=mode)["nodes"]["gpu-1"]["back"]
    first = merge(first, back)
    for each in planned([daemonset], [first, second], mode=mode)["peers"][0]["restore"]:
        daemonset = merge(daemonset, each["patch"])
    found = json.loads(json.dumps([daemonset, first, second]).replace(', "annotations": {}', ""))
    assert found == before


LABELS = st.dictionaries(st.sampled_from(["a", "b", "gpu", peers.MARK]), st.sampled_from(["", "1", "2"]))
EXPRESSION = st.builds(
    lambda key, operator, values: {
        "key": key,
        "operator": operator,
        **({"values": values} if "E" not in operator else {}),
    },
    st.sampled_from(["a", "b", "gpu"]),
    st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"]),
    st.lists(st.sampled_from(["1", "2"]), min_size=1, max_size=1),
)
TERM = st.builds(
    lambda expressions, fields: {
        **({"matchExpressions": expressions} if expressions else {}),
        **({"matchFields": fields} if fields else {}),
    },
    st.lists(EXPRESSION, max_size=2),
    st.lists(st.just({"key": "metadata.name", "operator": "In", "values": ["gpu-1"]}), max_size=1),
)
AFFINITY = st.one_of(
    st.none(),
    st.just({"podAntiAffinity": {}}),
    st.just({"nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []}}),
    st.builds(
        lambda terms: {
            "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
        },
        st.lists(TERM.filter(bool), min_size=1, max_size=3),
    ),
)


@given(affinity=AFFINITY, selector=LABELS, labels=LABELS)
def test_avoiding_daemonset_still_selects_unmarked_nodes(
    affinity: Object | None, selector: dict[str, str], labels: dict[str, str]
) -> None:
    selector.pop(peers.MARK, None)
    spec = {"nodeSelector": selector} | ({} if affinity is None else {"affinity": affinity})
    item = objects.daemonset("theirs", "there", [{"name": "x", "image": "x"}], **spec)
    node = objects.node("gpu-1")
    node["metadata"]["labels"] = labels
    avoiding = merge(item, peers.merge_patch(item, peers.avoiding(item)))
    expected = peers.selects(item, node) and peers.MARK not in labels
    assert peers.selects(avoiding, node) is expected
    assert matches_node(avoiding["spec"]["template"]["spec"], node) is expected
    assert peers.avoiding(avoiding) == avoiding
    back = merge(avoiding, peers.merge_patch(avoiding, peers.restored(avoiding)))
    assert back["metadata"].pop("annotations") == {}
    assert back == item


def test_edit_by_the_owner_is_avoided_again_and_kept() -> None:
    item = objects.nvidia()
    upgraded = peers.avoiding(item)
    upgraded["spec"]["template"]["spec"]["affinity"] = {"podAntiAffinity": {"preferred": []}}
    again = peers.avoiding(upgraded)
    marked = chosen("nvidia")
    marked["metadata"]["labels"][peers.MARK] = "nvidia"
    assert not peers.selects(again, marked)
    kept = peers.restored(again)
    assert kept["spec"]["template"]["spec"]["affinity"] == {"podAntiAffinity": {"preferred": []}}
    assert kept["spec"]["updateStrategy"] == item["spec"]["updateStrategy"]


@pytest.mark.parametrize(
    ("annotation", "state"), [("nonsense", "due"), ("[]", "due"), ('{"from": "x", "labels": {}}', "due")]
)
def test_a_record_that_is_not_ours_is_none(annotation: str, state: str) -> None:
    found = chosen("nvidia")
    found["metadata"]["annotations"] = {peers.RECORD: annotation}
    entry = planned([objects.nvidia()], [found])["nodes"]["gpu-1"]
    assert (entry["state"], entry["back"]) == (state, {})


def test_migrated_node_reports_that_its_old_plugin_is_gone() -> None:
    done = merge(chosen("hami"), of("hami")["off"] | {})
    done = merge(done, {"metadata": {"labels": {"nvidia-device-enable": "vgpu"}}})
    entry = planned([objects.ours("vgpu")], [done], mode="vgpu")["nodes"]["gpu-1"]
    assert (entry["state"], entry["gone"]) == ("done", ["kube-system/hami-device-plugin"])
    assert entry["back"]


def test_hamis_registration_is_forgotten_once_it_has_left() -> None:
    found = chosen("hami")
    found["metadata"]["annotations"] = {"hami.io/node-nvidia-register": "x", "hami.io/mutex.lock": "x"}
    assert planned([objects.hami()], [found])["nodes"]["gpu-1"]["forget"] == {"hami.io/node-nvidia-register": None}


def test_foreign_cgpu_label_goes_when_the_mode_differs() -> None:
    found = chosen("gpushare")
    found["metadata"]["labels"]["cgpu"] = "true"
    for mode, value in (("pgpu", None), ("cgpu", "true")):
        entry = planned([objects.gpushare()], [found], mode=mode)["nodes"]["gpu-1"]
        after = merge(found, entry["off"])
        assert after["metadata"]["labels"].get("cgpu") == value
        back = merge(after, planned([objects.gpushare()], [after], mode=mode)["nodes"]["gpu-1"]["back"])
        assert back["metadata"]["labels"] == found["metadata"]["labels"]


@pytest.mark.parametrize(
    ("daemonsets", "allocatable", "state", "says"),
    [
        ([objects.nvidia(), objects.operator()], {}, "refused", "NVIDIA's GPU operator"),
        ([objects.stranger()], {"nvidia.com/gpu": "8"}, "refused", "it may be DaemonSet kube-system/cloud-gpu"),
        (
            [],
            {"nvidia.com/gpu": "8", "nvidia.com/pgpu": "0"},
            "refused",
            "it offers 8 nvidia.com/gpu by a plugin that is not known",
        ),
        ([], {"nvidia.com/gpu": "0", "intel.com/sriov": "4"}, "none", ""),
        ([objects.ours("pgpu")], {"nvidia.com/gpu": "8"}, "ours", ""),
    ],
)
def test_who_is_not_known_is_refused_by_name(
    daemonsets: list[Object], allocatable: dict[str, str], state: str, says: str
) -> None:
    found = objects.node("gpu-1", allocatable, nvidia_device_enable="pgpu")
    found["metadata"]["labels"] |= SELECTED["nvidia"] | SELECTED["gpu-operator"]
    entry = planned(daemonsets, [found])["nodes"]["gpu-1"]
    assert entry["state"] == state
    assert says in " ".join(entry["problems"])
    assert bool(entry["problems"]) == bool(says)


@pytest.mark.parametrize(
    "name",
    [
        "volcano.sh/vgpu-number",
        "k8s.amazonaws.com/vgpu",
        "cnvrg.io/metagpu",
        "nvshare.com/gpu",
        "elasticgpu.io/gpu-core",
        "nvidia.com/gpu-10gb",
        "nvidia.com/GA102GL_A10",
    ],
)
@pytest.mark.parametrize("beside", [[], [objects.nvidia()]], ids=["alone", "beside NVIDIA's"])
def test_unknown_sharing_plugin_is_refused_by_name(name: str, beside: list[Object]) -> None:
    volcano = objects.daemonset("volcano-device-plugin", "kube-system", [{"name": "x", "image": "x"}])
    found = chosen("nvidia", **{name.replace("/", "__"): "10"})
    entry = planned([volcano, *beside], [found], mode="vgpu")["nodes"]["gpu-1"]
    assert (entry["state"], entry["off"]) == ("refused", {})
    (problem,) = entry["problems"]
    assert f"10 {name}" in problem
    assert "it may be DaemonSet kube-system/volcano-device-plugin" in problem
    asking = planned(beside, [chosen("nvidia")], pod("share", {name: "1"}))["nodes"]["gpu-1"]
    assert asking["state"] == "refused"
    assert f"pod team/share on it has {name}" in asking["problems"][0]


@pytest.mark.parametrize("annotation", ["gpu-fraction", "gpu-memory"])
def test_pod_that_shares_by_annotation_is_refused_by_name(annotation: str) -> None:
    half = pod("half", {})
    half["metadata"]["annotations"] = {annotation: "0.5"}
    entry = of("nvidia", half)
    assert entry["state"] == "refused"
    assert f"pod team/half on it has {annotation}" in entry["problems"][0]
    half["status"]["phase"] = "Succeeded"
    assert of("nvidia", half)["state"] == "due"


@pytest.mark.parametrize(
    ("script", "state"), [("gpu-kubelet-plugin -v 4", "refused"), ("compute-domain-kubelet-plugin -v 4", "due")]
)
def test_driver_that_gives_gpus_beside_a_plugin_is_refused_by_name(script: str, state: str) -> None:
    driver = objects.dra_driver("dra-kubelet-plugin", script)
    entry = planned([objects.nvidia(), driver], [chosen("nvidia")])["nodes"]["gpu-1"]
    assert entry["state"] == state
    assert ("NVIDIA's DRA driver (dra/dra-kubelet-plugin) are both on it" in str(entry["problems"])) == (
        state == "refused"
    )


def test_names_of_ones_own_are_no_strangers_on_nodes_of_ours() -> None:
    found = objects.node("gpu-1", {"nvidia.com/gpu-a100": "8"}, nvidia_device_enable="pgpu")
    assert planned([objects.ours()], [found])["nodes"]["gpu-1"]["state"] == "ours"


def test_our_node_can_be_returned_beside_any_other_sharer() -> None:
    found = chosen("nvidia", **{"nvshare.com__gpu": "10"})
    begun = merge(found, of("nvidia")["off"])
    entry = planned([objects.nvidia()], [begun])["nodes"]["gpu-1"]
    assert (entry["state"], entry["back"] != {}) == ("begun", True)
    assert "10 nvshare.com/gpu" in entry["problems"][0]
    serving = merge(begun, {"metadata": {"labels": {"nvidia-device-enable": "pgpu"}}})
    assert planned([objects.nvidia()], [serving])["nodes"]["gpu-1"]["back"]


@pytest.mark.parametrize("name", ["amd.com/gpu", "gpu.intel.com/i915", "huawei.com/Ascend910", "rdma/hca"])
def test_devices_of_other_makers_are_no_concern(name: str) -> None:
    found = chosen("nvidia", **{name.replace("/", "__"): "4"})
    assert planned([objects.nvidia()], [found])["nodes"]["gpu-1"]["state"] == "due"
    assert planned([], [found])["nodes"]["gpu-1"]["state"] == "none"


def test_a_node_that_is_not_there_is_refused() -> None:
    document = plan(Cluster([], []), [Wanted("gone", "pgpu")], Terms("kube-system"), parsed)
    assert document["nodes"]["gone"]["problems"] == ["the cluster has no node gone"]


def test_daemonset_with_our_name_needs_another_namespace() -> None:
    problems = of("gpu-manager", terms=Terms("kube-system"))["problems"]
    assert problems == [
        "DaemonSet kube-system/gpu-manager-daemonset has a name that ours has; set gpu_plugins_namespace to another"
    ]


def test_a_taint_that_ours_does_not_tolerate_is_named() -> None:
    found = chosen("nvidia")
    found["spec"]["taints"] = [TAINT, {"key": "node.kubernetes.io/unschedulable", "effect": "NoSchedule"}]
    says = planned([objects.nvidia()], [found])["nodes"]["gpu-1"]["problems"]
    assert says == [
        "its taint nvidia.com/gpu=present:NoSchedule keeps the plugin of this collection off; "
        "add it to gpu_plugins_tolerations"
    ]
    tolerated = {"gpu_plugins_tolerations": [{"key": "nvidia.com/gpu", "operator": "Exists"}]}
    assert planned([objects.nvidia()], [found], variables=tolerated)["nodes"]["gpu-1"]["problems"] == []


@pytest.mark.parametrize("label", ["", "four"])
def test_configurations_have_to_be_in_the_inventory_first(label: str) -> None:
    found = chosen("nvidia")
    found["metadata"]["labels"] |= {"nvidia.com/device-plugin.config": label} if label else {}
    item = objects.nvidia(configured=True, DEFAULT_CONFIG="four", MIG_STRATEGY="mixed")
    files = {"nvidia-device-plugin/nvdp-configs": {"four": yaml.safe_dump(SLICED), "mps": yaml.safe_dump(MPS)}}
    entry = planned([item], [found], files=files)["nodes"]["gpu-1"]
    assert entry["variables"] == {
        "gpu_plugins_configs": {"four": SLICED, "mps": MPS},
        "gpu_plugins_default_config": "four",
        "gpu_plugins_mig_strategy": "mixed",
    }
    assert "set gpu_plugins_configs: " in " ".join(entry["problems"])
    # As text or as a document, and with others beside them.
    configurations = {"four": yaml.safe_dump(SLICED), "mps": MPS, "more": {}}
    present = entry["variables"] | {"gpu_plugins_configs": configurations}
    assert planned([item], [found], files=files, variables=present)["nodes"]["gpu-1"]["problems"] == []
    assert planned([item], [found], files=files, mode="vgpu")["nodes"]["gpu-1"]["variables"] == {}


def test_a_configuration_that_shares_by_mps_is_taken_as_it_is() -> None:
    found = chosen("nvidia")
    found["metadata"]["labels"]["nvidia.com/device-plugin.config"] = "mps"
    files = {"nvidia-device-plugin/nvdp-configs": {"mps": yaml.safe_dump(MPS)}}
    variables = {"gpu_plugins_configs": {"mps": MPS}, "gpu_plugins_default_config": "mps"}
    item = objects.nvidia(configured=True)
    assert planned([item], [found], files=files)["nodes"]["gpu-1"]["variables"] == variables
    assert planned([item], [found], files=files, variables=variables)["nodes"]["gpu-1"]["problems"] == []


def test_where_the_operator_brings_the_driver_ours_has_to_know() -> None:
    found = chosen("gpu-operator")
    found["metadata"]["labels"]["nvidia.com/gpu.deploy.driver"] = "true"
    entry = planned([objects.operator()], [found], mode="vgpu")["nodes"]["gpu-1"]
    assert entry["variables"] == {"gpu_plugins_driver_root": "/run/nvidia/driver"}


def test_pods_without_a_server_are_named_with_new_requests() -> None:
    share = pod("share", {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "3000", "nvidia.com/gpucores": "30"})
    gone = pod("gone", {"nvidia.com/gpu": "1"}) | {"status": {"phase": "Succeeded"}}
    plain = pod("plain", {"cpu": "1"})
    entry = of("hami", share, gone, plain)
    (row,) = entry["pods"]
    assert (row["pod"], row["owner"], row["container"]) == ("team/share", "ReplicaSet/share", "main")
    assert row["becomes"] == {"tencent.com/vcuda-core": 30, "tencent.com/vcuda-memory": 12}
    assert entry["stranded"] == ["team/share"]
    assert "they would stay pending after an eviction: team/share. Change" in " ".join(entry["problems"])
    assert of("hami", share, terms=Terms("kube-accel", strand=True))["problems"] == []
    assert of("nvidia", pod("whole", {"nvidia.com/gpu": "2"}))["stranded"] == []


CARD = resources.Card(80 * GIB)


@pytest.mark.parametrize(
    ("kind", "mode", "limits", "becomes"),
    [
        ("nvidia", "pgpu", {"nvidia.com/gpu": "2", "cpu": "4"}, {"nvidia.com/gpu": 2}),
        ("nvidia", "pgpu", {"nvidia.com/gpu.shared": "1"}, {"nvidia.com/gpu.shared": 1}),
        ("nvidia", "vgpu", {"nvidia.com/gpu": "2"}, {"tencent.com/vcuda-core": 200}),
        ("gpu-manager", "pgpu", {"tencent.com/vcuda-core": "1k"}, {"nvidia.com/gpu": 10}),
        (
            "hami",
            "vgpu",
            {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "16Ki", "nvidia.com/gpucores": 30},
            {"tencent.com/vcuda-core": 30, "tencent.com/vcuda-memory": 64},
        ),
        ("gpu-operator", "pgpu", {"nvidia.com/mig-1g.10gb": "1"}, {"nvidia.com/mig-1g.10gb": 1}),
        ("gpu-operator", "cgpu", {"nvidia.com/gpu": "1"}, {"aliyun.com/gpu-mem": 80}),
        (
            "gpu-manager",
            "vgpu",
            {"tencent.com/vcuda-core": "30", "tencent.com/vcuda-memory": "16"},
            {"tencent.com/vcuda-core": 30, "tencent.com/vcuda-memory": 16},
        ),
        (
            "gpu-manager",
            "pgpu",
            {"tencent.com/vcuda-core": "200", "tencent.com/vcuda-memory": "1"},
            {"nvidia.com/gpu": 2},
        ),
        (
            "gpu-manager",
            "mps",
            {"tencent.com/vcuda-core": "30", "tencent.com/vcuda-memory": "17"},
            {"nvidia.com/mps-core": 30, "nvidia.com/mps-memory": 5},
        ),
        (
            "gpu-manager",
            "cgpu",
            {"tencent.com/vcuda-core": "30", "tencent.com/vcuda-memory": "16"},
            {"aliyun.com/gpu-mem": 4},
        ),
        ("hami", "pgpu", {"nvidia.com/gpu": "2"}, {"nvidia.com/gpu": 2}),
        (
            "hami",
            "pgpu",
            {"nvidia.com/gpu": "1", "nvidia.com/gpucores": "100", "nvidia.com/gpumem": "1"},
            {"nvidia.com/gpu": 1},
        ),
        (
            "hami",
            "vgpu",
            {
                "nvidia.com/gpu": "1",
                "nvidia.com/gpumem-percentage": "50",
                "nvidia.com/gpucores": "20",
                "nvidia.com/priority": "1",
            },
            {"tencent.com/vcuda-core": 20, "tencent.com/vcuda-memory": 160},
        ),
        (
            "hami",
            "vgpu",
            {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "10240"},
            {"tencent.com/vcuda-core": 13, "tencent.com/vcuda-memory": 40},
        ),
        ("hami", "cgpu", {"nvidia.com/gpu": "1", "nvidia.com/gpumem": "1025"}, {"aliyun.com/gpu-mem": 2}),
        ("hami", "pgpu", {"nvidia.com/gpualloc": "2"}, {"nvidia.com/gpu": 2}),
        (
            "hami",
            "vgpu",
            {"nvidia.com/gpualloc": "1", "nvidia.com/gpucores": "50", "nvidia.com/gpumem": "8000"},
            {"tencent.com/vcuda-core": 50, "tencent.com/vcuda-memory": 32},
        ),
        (
            "hami",
            "vgpu",
            {"nvidia.com/vgpu": "1", "nvidia.com/vgpumem": "3000", "nvidia.com/vgpucores": "10"},
            {"tencent.com/vcuda-core": 10, "tencent.com/vcuda-memory": 12},
        ),
        ("gpushare", "cgpu", {"aliyun.com/gpu-mem": "3"}, {"aliyun.com/gpu-mem": 3}),
        (
            "gpushare",
            "vgpu",
            {"aliyun.com/gpu-mem": "8"},
            {"tencent.com/vcuda-core": 10, "tencent.com/vcuda-memory": 32},
        ),
        ("gpushare", "cgpu", {"cpu": "3", "aliyun.com/gpu-mem": "0"}, {}),
    ],
)
def test_what_is_asked_for_instead(kind: str, mode: str, limits: Object, becomes: dict[str, int]) -> None:
    assert resources.translated(kind, mode, limits, CARD).limits == becomes


def test_units_and_replicas_of_the_node_count() -> None:
    small = resources.Card(80 * GIB, unit_bytes=MIB)
    assert resources.translated("gpushare", "cgpu", {"aliyun.com/gpu-mem": "1500"}, small).limits == {
        "aliyun.com/gpu-mem": 2
    }
    sliced = resources.Card(80 * GIB, replicas=4)
    assert resources.translated("nvidia", "vgpu", {"nvidia.com/gpu": "1"}, sliced).limits == {
        "tencent.com/vcuda-core": 25,
        "tencent.com/vcuda-memory": 80,
    }
    label = {"nvidia.com/gpu.sharing-strategy": "time-slicing", "nvidia.com/gpu.replicas": "2"}
    found = chosen("nvidia")
    found["metadata"]["labels"] |= label
    entry = planned([objects.nvidia()], [found], pod("p", {"nvidia.com/gpu": "1"}), mode="vgpu")["nodes"]["gpu-1"]
    assert entry["pods"][0]["becomes"]["tencent.com/vcuda-core"] == 50
    unit = planned(
        [objects.gpushare("MiB")], [chosen("gpushare")], pod("p", {"aliyun.com/gpu-mem": "10k"}), mode="cgpu"
    )
    assert unit["nodes"]["gpu-1"]["pods"][0]["becomes"] == {"aliyun.com/gpu-mem": 10}


@pytest.mark.parametrize(
    ("kind", "mode", "limits", "card", "says"),
    [
        ("gpu-manager", "pgpu", {"tencent.com/vcuda-core": "30", "tencent.com/vcuda-memory": "4"}, CARD, "whole GPUs"),
        ("gpu-manager", "mps", {"tencent.com/vcuda-core": "30"}, CARD, "how much memory"),
        ("hami", "vgpu", {"nvidia.com/gpu": "2", "nvidia.com/gpumem": "100"}, CARD, "a share is of one GPU"),
        ("hami", "mps", {"nvidia.com/gpualloc": "2", "nvidia.com/gpucores": "50"}, CARD, "a share is of one GPU"),
        (
            "hami",
            "vgpu",
            {"nvidia.com/gpu": "1", "nvidia.com/gpumem-percentage": "50"},
            resources.Card(),
            "which is unknown",
        ),
        ("nvidia", "vgpu", {"nvidia.com/mig-1g.10gb": "1"}, CARD, "MIG devices are offered by mode pgpu alone"),
        ("nvidia", "cgpu", {"nvidia.com/gpu": "2"}, CARD, "parts of one GPU"),
        ("nvidia", "mps", {"nvidia.com/gpu": "2"}, CARD, "one GPU at most; ask for nvidia.com/gpu"),
        ("gpu-manager", "mps", {"tencent.com/vcuda-core": "200"}, CARD, "one GPU at most"),
        ("gpushare", "vgpu", {"aliyun.com/gpu-count": "1"}, CARD, "nodes of mode pgpu"),
    ],
)
def test_what_no_mode_has_is_said(kind: str, mode: str, limits: Object, card: resources.Card, says: str) -> None:
    with pytest.raises(resources.Unmatched, match=says):
        resources.translated(kind, mode, limits, card)


def test_alauda_hami_node_is_planned_there_and_back() -> None:
    found = chosen("hami", **{"nvidia.com__gpualloc": "10"})
    entry = planned([objects.hami()], [found], pod("one", {"nvidia.com/gpualloc": "1"}), mode="vgpu")["nodes"]["gpu-1"]
    assert [(row["resource"], row["offered"]) for row in entry["resources"]] == [("nvidia.com/gpualloc", 10)]
    assert entry["pods"][0]["becomes"] == {"tencent.com/vcuda-core": 100}
    assert re.match(entry["offers"], "nvidia.com/gpualloc"), "the way back waits for it"


@pytest.mark.parametrize(
    ("kind", "mode", "limits", "becomes"),
    [
        ("nvidia", "pgpu", {"nvidia.com/gpu": "2"}, {"nvidia.com/gpu": 2}),
        ("nvidia", "pgpu", {"nvidia.com/mig-1g.10gb": "1"}, {"nvidia.com/mig-1g.10gb": 1}),
        ("nvidia", "vgpu", {"tencent.com/vcuda-core": "200"}, {"nvidia.com/gpu": 2}),
        ("hami", "pgpu", {"nvidia.com/gpu": "2"}, {"nvidia.com/gpualloc": 2}),
        (
            "hami",
            "vgpu",
            {"tencent.com/vcuda-core": "30", "tencent.com/vcuda-memory": "12"},
            {"nvidia.com/gpualloc": 1, "nvidia.com/gpumem": 3072, "nvidia.com/gpucores": 30},
        ),
        ("hami", "cgpu", {"aliyun.com/gpu-mem": "2"}, {"nvidia.com/gpualloc": 1, "nvidia.com/gpumem": 2048}),
        ("gpushare", "cgpu", {"aliyun.com/gpu-mem": "2"}, {"aliyun.com/gpu-mem": 2}),
        ("gpushare", "mps", {"nvidia.com/mps-core": "20", "nvidia.com/mps-memory": "5"}, {"aliyun.com/gpu-mem": 5}),
        (
            "gpu-manager",
            "mps",
            {"nvidia.com/mps-core": "20", "nvidia.com/mps-memory": "5"},
            {"tencent.com/vcuda-core": 20, "tencent.com/vcuda-memory": 20},
        ),
        ("nvidia", "vgpu", {"tencent.com/vcuda-core": "30", "tencent.com/vcuda-memory": "12"}, {}),
        ("hami", "pgpu", {"nvidia.com/mig-1g.10gb": "1"}, {}),
    ],
)
def test_pods_of_a_returned_node_get_their_new_requests(
    kind: str, mode: str, limits: Object, becomes: dict[str, int]
) -> None:
    found = chosen(kind, **({"nvidia.com__gpualloc": "0"} if kind == "hami" else {}))
    done = merge(found, planned([DAEMONSETS[kind]()], [found], mode=mode)["nodes"]["gpu-1"]["off"])
    done = merge(done, {"metadata": {"labels": {"nvidia-device-enable": mode}}})
    daemonset = DAEMONSETS[kind]()
    for each in planned([daemonset], [found], mode=mode)["peers"][0]["avoid"]:
        daemonset = merge(daemonset, each["patch"])
    document = planned([daemonset], [done], pod("p", limits), mode=mode)
    entry = document["nodes"]["gpu-1"]
    assert entry["state"] == "done"
    (row,) = entry["returns"]
    assert row["becomes"] == becomes
    assert row["note"] or becomes
    assert any(line.startswith("gpu-1: given back, team/p main") for line in table(document))


HAMI = st.fixed_dictionaries(
    {"nvidia.com/gpu": st.integers(0, 3)},
    optional={
        "nvidia.com/gpumem": st.integers(0, 80 << 10),
        "nvidia.com/gpumem-percentage": st.integers(0, 100),
        "nvidia.com/gpucores": st.integers(0, 100),
    },
)
MANAGER = st.fixed_dictionaries(
    {"tencent.com/vcuda-core": st.one_of(st.integers(0, 99), st.sampled_from([100, 200]))},
    optional={"tencent.com/vcuda-memory": st.integers(0, 320)},
)
ASKS = st.one_of(
    st.tuples(st.just("hami"), HAMI),
    st.tuples(st.just("gpu-manager"), MANAGER),
    st.tuples(st.just("gpushare"), st.fixed_dictionaries({"aliyun.com/gpu-mem": st.integers(0, 80)})),
    st.tuples(st.just("nvidia"), st.fixed_dictionaries({"nvidia.com/gpu": st.integers(0, 8)})),
)


@given(ask=ASKS, mode=st.sampled_from(["pgpu", "vgpu", "mps", "cgpu"]))
def test_nobody_gets_less_and_all_that_is_said_can_be_asked_for(ask: tuple[str, Object], mode: str) -> None:
    kind, limits = ask
    try:
        limited = resources.translated(kind, mode, limits, CARD).limits
    except resources.Unmatched:
        assume(False)
    cores = limited.get("tencent.com/vcuda-core", limited.get("nvidia.com/mps-core", 0))
    memory = 256 * MIB * limited.get("tencent.com/vcuda-memory", 0)
    memory += GIB * (limited.get("nvidia.com/mps-memory", 0) + limited.get("aliyun.com/gpu-mem", 0))
    asked_cores = limits.get("nvidia.com/gpucores", limits.get("tencent.com/vcuda-core", 0))
    asked = (
        limits.get("nvidia.com/gpumem", 0) * MIB
        or limits.get("nvidia.com/gpumem-percentage", 0) * CARD.memory_bytes // 100
    )
    asked += limits.get("tencent.com/vcuda-memory", 0) * 256 * MIB + limits.get("aliyun.com/gpu-mem", 0) * GIB
    same = kind == "gpu-manager" and mode == "vgpu"
    if cores and not same:
        assert cores % 100 == 0 or (cores < 100 and memory > 0)
        assert cores >= min(asked_cores, 100)
    if memory and (not cores or cores % 100) and not same:
        assert min(asked, 80 * GIB) <= memory <= 80 * GIB


def test_other_schedulers_and_the_operator_are_noted() -> None:
    extender = {"metadata": {"name": "gpushare-schd-extender", "namespace": "kube-system"}}
    notes = planned([objects.operator()], [chosen("gpu-operator")], deployments=[extender])["notes"]
    assert [note.split()[0] for note in notes] == ["kube-system/gpushare-schd-extender", "NVIDIA's"]
    assert planned([objects.nvidia()], [chosen("nvidia")], deployments=[{"metadata": {"name": "web"}}])["notes"] == []
