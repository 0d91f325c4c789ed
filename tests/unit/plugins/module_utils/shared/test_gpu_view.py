# SPDX-License-Identifier: Apache-2.0
"""What is seen of a cluster's GPUs, and how it is shown."""

from __future__ import annotations

import csv
import io
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube_accel.model import Gpu, GpuHealth, Health, Inventory, Mode, UnreadableGpu
from kube_accel.shared.gpu_view import ClusterView, document, narrowed, totals, view
from kube_accel.shared.gpu_view_text import CSV_COLUMNS, comma_separated, details, gib, summary
from kube_accel.shared.plugin_metrics import read_used
from kube_accel.shared.plugin_pods import metrics_paths
from kube_accel.sharing.inventory_annotation import ANNOTATION, Holding, NodeInventory, encode

GIB = 1 << 30
SIZES = (80 * GIB, 24 * GIB, 16 * GIB - (350 << 20))


def card(node: str, index: int, size: int) -> Gpu:
    return Gpu(f"GPU-{node}-{index}", index, index, f"Card {size // GIB}", size, (9, 0), "0000:01:00.0", None, False)


def node(
    name: str,
    held: dict[int, tuple[Holding, ...]] | None,
    sizes: tuple[int, ...] = SIZES[:2],
    mode: Mode = Mode.VGPU,
    bad: str = "",
    **status: Any,
) -> dict[str, Any]:
    gpus = tuple(card(name, index, size) for index, size in enumerate(sizes))
    health = {gpu.uuid: GpuHealth(Health.HEALTHY) for gpu in gpus}
    if bad:
        health[gpus[0].uuid] = GpuHealth(Health.UNHEALTHY, bad)
    holdings = None if held is None else {gpus[index].uuid: found for index, found in held.items()}
    text = encode(NodeInventory(mode, Inventory("580.1", (13, 0), gpus), health, holdings))
    return {
        "metadata": {"name": name, "annotations": {ANNOTATION: text}, "labels": {"nvidia-device-enable": mode.value}},
        "status": {"addresses": [{"type": "InternalIP", "address": "192.0.2.7"}], **status},
    }


def pod(name: str, limits: dict[str, str], node: str = "", **status: Any) -> dict[str, Any]:
    return {
        "metadata": {"name": name, "namespace": "team"},
        "spec": {"nodeName": node, "containers": [{"name": "main", "image": "i", "resources": {"limits": limits}}]},
        "status": {"phase": "Pending", **status},
    }


def plugin(node: str, namespace: str = "kube-system", port: int = 9445, ready: str = "True") -> dict[str, Any]:
    command = ["kube-accel", "plugin", f"--listen=$(POD_IP):{port}"]
    return {
        "metadata": {"name": f"plugin-{node}", "namespace": namespace},
        "spec": {"nodeName": node, "containers": [{"name": "main", "image": "i", "command": command}]},
        "status": {"phase": "Running", "conditions": [{"type": "Ready", "status": ready}]},
    }


USED = (
    'accel_container_gpu_memory_used_bytes{uuid="GPU-a-0",namespace="team",pod="train",container="main"} 3221225472\n'
)
ENDLESS = '{"version": 1, "mode": "vgpu", "gpus": [{"uuid": "GPU-1", "memoryBytes": Infinity}]}'


def entry(**given: Any) -> dict[str, Any]:
    """A GPU of an annotation."""
    return {"uuid": "GPU-1", "index": 0, "model": "m", "memoryBytes": 1, "health": "healthy", "held": [], **given}


def hostile(key: str, value: Any) -> str:
    """An annotation of which one thing is not as it should be."""
    return json.dumps({"version": 1, "mode": "vgpu", "gpus": [], key: value})


SHARE = {"tencent.com/vcuda-core": "30", "tencent.com/vcuda-memory": "32", "cpu": "1"}
TRAIN = Holding("team", "train", "main", 30, 8 * GIB)


@pytest.fixture
def cluster() -> ClusterView:
    nodes = [
        node("b", {0: (TRAIN, Holding("team", "train", "aside", 20, 4 * GIB)), 1: ()}),
        node("a", {0: (Holding("other", "all", "main", 100, SIZES[2]),)}, SIZES[2:], Mode.PGPU),
        {"metadata": {"name": "plain"}, "status": {}},
    ]
    told = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "0/2 nodes: no room"}
    pods = [
        pod("late", SHARE, conditions=[told]),
        pod("train", SHARE, "b"),
        pod("over", SHARE, "b", phase="Failed"),
        pod("cpu", {"cpu": "1"}),
        {**pod("all", {}, "a"), "metadata": {"name": "all", "namespace": "other"}},
        plugin("a"),
        plugin("b"),
    ]
    return view(nodes, pods, {("GPU-b-0", "team", "train", "main"): 3 * GIB})


def test_summary_has_exact_sums_and_waiting_pods(cluster: ClusterView) -> None:
    assert summary(cluster) == (
        "NAME  IPADDRESS  GPU0(Allocated/Total)  GPU1(Allocated/Total)  GPU Memory(GiB)\n"
        "a     192.0.2.7  15.66/15.66            -                      15.66/15.66\n"
        "b     192.0.2.7  12/80                  0/24                   12/104\n"
        "------------------------------------------------------------------------------\n"
        "Allocated/Total GPU Memory In Cluster:\n"
        "27.66/119.66 GiB (23%)\n"
        "\n"
        "PENDING\n"
        "NAMESPACE  NAME  NODE  WANTS                                                   REASON\n"
        "team       late  -     tencent.com/vcuda-core=30, tencent.com/vcuda-memory=32  0/2 nodes: no room\n"
    )


def test_the_wide_summary_says_mode_cores_use_models_and_health(cluster: ClusterView) -> None:
    lines = summary(cluster, wide=True).splitlines()
    assert lines[0].split()[-5:] == ["MODE", "CORES(%)", "USED(GiB)", "MODELS", "HEALTHY"]
    assert lines[1].endswith("pgpu  100/100   unknown    1x Card 15              1/1")
    assert lines[2].endswith("vgpu  50/200    unknown    1x Card 80, 1x Card 24  2/2")


def test_details_name_every_pod_with_what_it_has_of_each_gpu(cluster: ClusterView) -> None:
    text = details(narrowed(cluster, "vgpu"))
    assert "NAME:       b\nIPADDRESS:  192.0.2.7\nMODE:       vgpu\n" in text
    assert "train  team       12 (50%)         0                unknown\n" in text
    assert "Allocated : 12 (12%)\nTotal :     104\n" in text
    assert "late" in text
    assert "192.0.2.7" not in details(narrowed(cluster, "mps"))


def test_what_is_used_is_told_when_all_of_it_is_known(cluster: ClusterView) -> None:
    assert cluster.nodes[1].gpus[0].used_bytes is None
    used = {("GPU-b-0", "team", "train", name): 3 * GIB for name in ("main", "aside")}
    found = view([node("b", {0: (TRAIN, Holding("team", "train", "aside", 20, 4 * GIB))})], [], used)
    assert found.nodes[0].gpus[0].used_bytes == 6 * GIB
    assert "12 (50%)" in details(found)
    assert summary(found, wide=True).splitlines()[1].split("/200")[1].split()[0] == "6"


ASSIGNED = {"version": 1, "node": "a", "containers": {"main": [{"uuid": "GPU-a-0", "cores": 30, "memoryBytes": 1}]}}


@pytest.mark.parametrize(
    ("annotation", "mode", "why"),
    [
        (json.dumps({**ASSIGNED, "why": {"main": "the fullest of 2"}}), Mode.VGPU, "the fullest of 2"),
        (json.dumps({**ASSIGNED, "why": {"main": "a\x1b[2J\n" + "b" * 500}}), Mode.VGPU, "a\ufffd[2J " + "b" * 191),
        (json.dumps(ASSIGNED), Mode.VGPU, ""),
        (json.dumps(ASSIGNED).replace("GPU-a-0", "GPU-a-1"), Mode.VGPU, "chosen on the node, instead of"),
        (None, Mode.VGPU, "chosen on the node: no extender assigned it"),
        (None, Mode.PGPU, ""),
        ("[" * 100_000, Mode.VGPU, "its pod's assignment cannot be read"),
        ('{"containers": {"main": 1}, "why": 7}', Mode.VGPU, "its pod's assignment cannot be read"),
    ],
)
def test_why_a_container_has_its_gpu_is_as_its_pod_tells(annotation: str | None, mode: Mode, why: str) -> None:
    item = pod("train", SHARE, "a")
    item["metadata"]["annotations"] = {} if annotation is None else {"kube-accel.io/assignment": annotation}
    found = view([node("a", {0: (TRAIN,)}, mode=mode)], [item])
    [tenant] = found.nodes[0].gpus[0].tenants
    assert tenant.why.startswith(why)
    assert bool(tenant.why) == bool(why)
    assert (f"Why GPU 0 for team/train main: {why}" in details(found)) == bool(why)
    assert document(found)["nodes"][0]["gpus"][0]["containers"][0]["why"] == tenant.why
    assert len(tenant.why) <= 200


def test_a_container_that_asks_for_none_waits_for_nothing() -> None:
    mixed, nothing = pod("mixed", SHARE), pod("nothing", {"nvidia.com/gpu": "0", "aliyun.com/gpu-mem": "0"})
    mixed["spec"]["initContainers"] = [{"name": "init", "resources": {"limits": dict.fromkeys(SHARE, "0")}}]
    [waiting] = view([], [mixed, nothing]).waiting
    assert (waiting.pod, dict(waiting.wants)) == ("mixed", {name: SHARE[name] for name in SHARE if name != "cpu"})


def test_plugins_are_known_by_namespace_and_command() -> None:
    ending = plugin("d")
    ending["metadata"]["deletionTimestamp"] = "2026-01-01T00:00:00Z"
    shell = pod("shell", {}, "c")
    shell["metadata"]["namespace"] = "kube-system"
    driver = plugin("e", port=8)
    driver["spec"]["containers"][0]["command"][1] = "dra"
    found = metrics_paths([plugin("a", port=7), plugin("b", namespace="team"), ending, shell, driver])
    paths = {"a": "plugin-a:7", "e": "plugin-e:8"}
    assert found == {node: f"/api/v1/namespaces/kube-system/pods/{path}/proxy/metrics" for node, path in paths.items()}


@pytest.mark.parametrize("order", [1, -1])
def test_ready_plugin_is_asked_during_a_replacement(order: int) -> None:
    coming = plugin("a", ready="False")
    coming["metadata"]["name"] = "plugin-a-new"
    found = metrics_paths([plugin("a"), coming][::order])
    assert found == {"a": "/api/v1/namespaces/kube-system/pods/plugin-a:9445/proxy/metrics"}


def test_used_bytes_are_read_from_what_a_plugin_says() -> None:
    text = (
        "# TYPE accel_container_gpu_memory_used_bytes gauge\n"
        'accel_container_gpu_memory_used_bytes{uuid="GPU-1",namespace="team",pod="p",container="m",mode="vgpu"} 3e+09\n'
        'accel_container_gpu_memory_used_bytes{node="a",uuid="GPU-1",pod="p"} 5\n'
        'accel_container_gpu_memory_used_bytes{uuid="GPU-2",namespace="t",pod="p",container="m"} NaN\n'
        'accel_gpu_memory_used_bytes{uuid="GPU-1"} 7\n'
    )
    assert read_used(text) == {("GPU-1", "team", "p", "m"): 3_000_000_000}


@pytest.mark.parametrize(
    ("item", "problem"),
    [
        (node("a", None), "kubelet has not told"),
        (
            node("a", {}, conditions=[{"type": "Ready", "status": "Unknown", "message": "stopped posting"}]),
            "stopped posting",
        ),
        ({"metadata": {"name": "a", "labels": {"nvidia-device-enable": "mps"}}}, "mode mps has reported nothing"),
        ({"metadata": {"name": "a", "labels": {"cgpu": "true"}}}, "mode cgpu has reported nothing"),
        ({"metadata": {"name": "a", "annotations": {ANNOTATION: '{"version":9,"gpus":[]}'}}}, "version: not 1"),
        (
            {"metadata": {"name": "a", "annotations": {ANNOTATION: '{"version":1,"mode":"vgpu","gpus":[{}]}'}}},
            "uuid: absent",
        ),
        ({"metadata": {"name": "a", "annotations": {ANNOTATION: "[]"}}}, "not a JSON object"),
        ({"metadata": {"name": "a", "annotations": {ANNOTATION: "[" * 100_000}}}, "nested too deeply"),
        ({"metadata": {"name": "a", "annotations": {ANNOTATION: ENDLESS}}}, "Infinity is no number"),
        ({"metadata": {"name": "a", "annotations": {ANNOTATION: "x" * (256 << 10)}}}, "Expecting value"),
        ({"metadata": {"name": "a", "annotations": {ANNOTATION: "{}" * (256 << 10)}}}, "longer than 262144"),
        (
            {"metadata": {"name": "a", "annotations": {ANNOTATION: hostile("gpus", [entry(memoryBytes=10**400)])}}},
            "digits",
        ),
        (
            {"metadata": {"name": "a", "annotations": {ANNOTATION: hostile("gpus", [entry(memoryBytes=-1)])}}},
            "memoryBytes",
        ),
        ({"metadata": {"name": "a", "annotations": {ANNOTATION: hostile("gpus", [entry(index="0")])}}}, "index"),
        ({"metadata": {"name": "a", "annotations": {ANNOTATION: hostile("gpus", [entry()] * 65)}}}, "0 to 64"),
        (
            {"metadata": {"name": "a", "annotations": {ANNOTATION: hostile("mode", "\x1b[2J")}}},
            "mode: absent or malformed",
        ),
        ({"metadata": {"name": "a", "annotations": {ANNOTATION: '{"version":1,"version":1}'}}}, "given twice"),
    ],
)
def test_what_is_not_known_is_said_and_never_zero(item: dict[str, Any], problem: str) -> None:
    found = view([item], [plugin("a")])
    assert len(found.problems) == 1
    assert problem in found.problems[0]
    assert found.problems[0].startswith("node a: ")
    for text in (summary(found), details(found)):
        assert f"NOT KNOWN: {found.problems[0]}" in text
    assert document(found)["problems"] == list(found.problems)
    if not found.nodes[0].gpus:
        assert summary(found).splitlines()[1].split()[-1] == "unknown"


WELL = {"conditions": [{"type": "Ready", "status": "True"}]}
AWAY = {"conditions": [{"type": "Ready", "status": "Unknown", "message": "stopped posting"}]}
ENDING = {"deletionTimestamp": "2026-01-01T00:00:00Z"}


@pytest.mark.parametrize(
    ("plugins", "status", "problem"),
    [
        ([plugin("b")], WELL, "no plugin of it runs in kube-system, and this was last told"),
        ([plugin("a", ready="False")], WELL, "its plugin kube-system/plugin-a is not ready, and this was last told"),
        ([{**plugin("a"), "metadata": {**plugin("a")["metadata"], **ENDING}}], WELL, "no plugin of it runs"),
        ([plugin("a", ready="False")], AWAY, "it is not ready, and this was last heard: stopped posting"),
        ([plugin("a", ready="False"), plugin("a")], WELL, ""),
    ],
)
def test_report_of_a_stopped_plugin_is_a_problem(
    plugins: list[dict[str, Any]], status: dict[str, Any], problem: str
) -> None:
    items = [pod("train", SHARE, "a"), *plugins]
    found = view([node("a", {0: (TRAIN,)}, **status), node("b", {})], [*items, plugin("b")])
    assert len(found.problems) == bool(problem)
    if problem:
        assert found.problems[0].startswith(f"node a: {problem}")
        assert f"NOT KNOWN: node a: {problem}" in summary(found)


def test_what_a_plugin_that_runs_tells_is_believed() -> None:
    """It follows kubelet, which lets go of a pod some seconds after the API server did."""
    assert view([node("a", {0: (TRAIN,)})], [plugin("a")]).problems == ()


def test_reader_who_may_not_see_plugins_is_told_only_that() -> None:
    nodes = [node(name, {0: (TRAIN,)}) for name in ("a", "b")]
    (problem,) = view(nodes, [pod("mine", SHARE)]).problems
    assert problem.startswith("no pod of namespace kube-system is visible, so reports of nodes may be out of date. ")
    assert problem.endswith(" an account that may list the pods of all namespaces")
    items = [pod("train", SHARE, "a"), plugin("a", "gpu"), plugin("b", "gpu")]
    (problem,) = view(nodes, items).problems
    assert problem == "no plugin is in namespace kube-system, but in gpu; say where plugins run"
    assert view(nodes, items, namespace="gpu").problems == ()
    assert view([{"metadata": {"name": "plain"}, "status": {}}], []).problems == ()


@pytest.mark.parametrize(
    ("status", "node_name", "reason"),
    [
        ({}, "", "no scheduler has tried it"),
        (
            {"conditions": [{"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}]},
            "",
            "SchedulingGated",
        ),
        ({}, "a", "kubelet has not allocated its GPUs yet"),
        (
            {
                "containerStatuses": [
                    {"name": "x", "state": {"waiting": {"reason": "ContainerCreating"}}},
                    {"name": "main", "state": {"waiting": {"reason": "ErrImagePull", "message": "not\nfound"}}},
                ]
            },
            "a",
            "container main: ErrImagePull: not\nfound",
        ),
    ],
)
def test_a_pod_without_gpus_says_why(status: dict[str, Any], node_name: str, reason: str) -> None:
    found = view([node("a", {})], [pod("p", SHARE, node_name, **status), plugin("a")])
    [waiting] = found.waiting
    assert reason in waiting.reason
    assert " ".join(waiting.reason.split()) in summary(found)


def asking_first(**state: Any) -> dict[str, Any]:
    """A pod on node a whose init container alone asks for GPUs."""
    item = pod("first", {}, "a", initContainerStatuses=[{"name": "load", "state": state}])
    item["spec"]["initContainers"] = [{"name": "load", "image": "i", "resources": {"limits": SHARE}}]
    return item


OTHER_VERSION = {"metadata": {"name": "a", "annotations": {ANNOTATION: '{"version":9,"gpus":[]}'}}}
SILENT = {"metadata": {"name": "a", "labels": {"nvidia-device-enable": "mps"}}}


@pytest.mark.parametrize("where", [node("a", {}), node("a", None), OTHER_VERSION, SILENT])
@pytest.mark.parametrize(
    "item",
    [
        pod("p", SHARE, "a", phase="Running"),
        pod("p", SHARE, "a", containerStatuses=[{"name": "main", "state": {"running": {}}}]),
        asking_first(running={}),
        asking_first(terminated={"exitCode": 0}),
    ],
)
def test_a_pod_that_was_let_start_does_not_wait(where: dict[str, Any], item: dict[str, Any]) -> None:
    assert view([where], [item, plugin("a")]).waiting == ()


@pytest.mark.parametrize("where", [node("a", None), OTHER_VERSION, SILENT])
def test_pods_on_a_silent_node_are_not_called_waiting(where: dict[str, Any]) -> None:
    found = view([where], [pod("p", SHARE, "a"), asking_first(waiting={"reason": "PodInitializing"}), plugin("a")])
    assert found.waiting == ()
    assert len(found.problems) == 1


@pytest.mark.parametrize("plugins", [[plugin("a", ready="False")], [plugin("elsewhere")], [plugin("a", "gpu")], []])
def test_a_pod_may_have_got_gpus_since_its_node_told_last(plugins: list[dict[str, Any]]) -> None:
    items = [pod("p", SHARE, "a"), pod("q", SHARE, "strange"), asking_first(waiting={"reason": "ErrImagePull"})]
    first, new, strange = view([node("a", {})], [*items, *plugins]).waiting
    assert first.reason == "container load: ErrImagePull"
    assert {new.reason, strange.reason} == {"scheduled, and whether it has its GPUs yet is not known"}


def test_an_unhealthy_gpu_is_named_with_its_reason() -> None:
    found = view([node("a", {}, bad="XID 79")], [])
    assert "GPU 0 is unhealthy: XID 79" in details(found)
    assert totals(found.nodes)["healthy"] == 1


holdings = st.lists(
    st.builds(
        Holding,
        st.sampled_from(["team", "other"]),
        st.sampled_from(["p", "q", "r"]),
        st.sampled_from(["main", "aside"]),
        st.integers(0, 100),
        st.integers(0, 80 * GIB),
    ),
    max_size=5,
    unique_by=lambda holding: (holding.namespace, holding.pod, holding.container),
)


@given(st.dictionaries(st.sampled_from(["a", "b", "c"]), st.tuples(holdings, holdings), max_size=3))
def test_sums_are_those_of_the_parts_and_within_what_there_is(cluster: dict[str, tuple[list[Holding], ...]]) -> None:
    found = view([node(name, dict(enumerate(map(tuple, held)))) for name, held in cluster.items()], [])
    told = document(found)
    for key, value in told["totals"].items():
        assert value == sum(part["totals"][key] for part in told["nodes"])
    assert told["totals"]["allocated_bytes"] <= told["totals"]["memory_bytes"]
    assert told["totals"]["allocated_cores"] <= told["totals"]["cores"]
    assert told["totals"]["gpus"] == 2 * len(cluster)
    rows = list(csv.DictReader(io.StringIO(comma_separated(found))))
    assert {tuple(row) for row in rows} <= {CSV_COLUMNS}
    containers = [held for gpus in cluster.values() for gpu in gpus for held in gpu]
    assert sorted(row["pod"] for row in rows if row["pod"]) == sorted(held.pod for held in containers)
    assert {row["uuid"] for row in rows} == {f"GPU-{name}-{i}" for name in cluster for i in range(2)}


@pytest.mark.parametrize(("amount", "text"), [(0, "0"), (80 * GIB, "80"), (GIB // 2, "0.5"), (100 * GIB, "100")])
def test_sizes_have_no_needless_digits(amount: int, text: str) -> None:
    assert gib(amount) == text


def test_unreadable_gpus_and_withheld_values_are_shown() -> None:
    gpu = card("a", 0, 80 * GIB)
    dark = (UnreadableGpu(1, "GPU-a-1", "nvmlDeviceGetName: odd; reset it"), UnreadableGpu(2, None, "nvmlX: odd"))
    health = {gpu.uuid: GpuHealth(Health.HEALTHY, faults=("nvmlDeviceGetPowerUsage: odd; look",))}
    told = NodeInventory(Mode.PGPU, Inventory("580.1", (13, 0), (gpu,), unreadable=dark), health, {})
    item = node("a", {}, mode=Mode.PGPU)
    item["metadata"]["annotations"][ANNOTATION] = encode(told)
    found = view([item], [], {})
    lines = [
        "GPU 1 cannot be read and is not offered: nvmlDeviceGetName: odd; reset it",
        "GPU 2 cannot be read and is not offered: nvmlX: odd",
        "GPU 0: nvmlDeviceGetPowerUsage: odd; look",
    ]
    assert [line for line in details(found).splitlines() if line in lines] == lines
    assert all(f"a: {line}" in summary(found).splitlines() for line in lines)
    (shown,) = document(found)["nodes"]
    assert shown["unreadable"] == [
        {"index": 1, "uuid": "GPU-a-1", "reason": "nvmlDeviceGetName: odd; reset it"},
        {"index": 2, "uuid": "", "reason": "nvmlX: odd"},
    ]
    assert shown["gpus"][0]["faults"] == ["nvmlDeviceGetPowerUsage: odd; look"]


@pytest.mark.parametrize("odd", [{"faults": 1}, {"faults": [1]}, {"faults": ["x"] * 65}])
def test_faults_that_no_plugin_wrote_are_refused(odd: dict[str, Any]) -> None:
    item = node("a", {})
    text = json.dumps({"version": 1, "mode": "vgpu", "driver": "1", "gpus": [entry(**odd)]})
    item["metadata"]["annotations"][ANNOTATION] = text
    (seen,) = view([item], [], {}).nodes
    assert "cannot be read" in seen.problem
