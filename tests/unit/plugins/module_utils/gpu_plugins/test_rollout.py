# SPDX-License-Identifier: Apache-2.0
"""What a rollout writes, puts back, finds harmful, and decides."""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils.gpu_plugins.objects import wanted_objects
from ansible_collections.accel.kubernetes.plugins.module_utils.gpu_plugins.rollout_objects import (
    RolloutObjects,
    rollout_objects,
    unfinished_rollouts,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.gpu_plugins.rollout_plan import (
    Asked,
    Plan,
    rollout_plan,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.gpu_plugins.rollout_state import (
    cluster_state,
    harm,
    read_state,
)
from hypothesis import given
from hypothesis import strategies as st

BEFORE, TEMPLATE = "kube-accel.io/previous-object", "kube-accel.io/template"
APPLIED = "kubectl.kubernetes.io/last-applied-configuration"
Object = dict[str, Any]


def daemonset(image: str = "accel:2", mark: str = "", strategy: str = "RollingUpdate", **notes: str) -> Object:
    template = {"metadata": {"labels": {}}, "spec": {"containers": [{"name": "kube-accel", "image": image}]}}
    if mark:
        template["metadata"]["annotations"] = {TEMPLATE: mark}
    return {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "plugin", "namespace": "kube-system", **({"annotations": notes} if notes else {})},
        "spec": {"template": template, "updateStrategy": {"type": strategy}},
    }


CLASS: Object = {"apiVersion": "v1", "kind": "RuntimeClass", "metadata": {"name": "nvidia"}, "handler": "nvidia"}


def planned(wanted: Object, there: Object | None, check: bool = False) -> RolloutObjects:
    return rollout_objects([{"item": wanted, "resources": [there] if there else []}], check)


@pytest.mark.parametrize(
    ("there", "note"),
    [
        (None, "null"),
        (daemonset("accel:1", **{APPLIED: '{"kind": "DaemonSet"}'}), '{"kind": "DaemonSet"}'),
        # Of a rollout that was cut off.
        (daemonset("accel:1", **{APPLIED: "{}", BEFORE: "null"}), "null"),
        (daemonset("accel:1"), None),
    ],
)
def test_an_object_is_applied_with_a_note_of_before(there: Object | None, note: str | None) -> None:
    found = planned(daemonset(mark="t2"), there)
    assert found.changes == ["DaemonSet plugin"]
    (noted,), (held,) = found.noted, found.held
    assert noted["metadata"].get("annotations", {}).get(BEFORE) == note
    assert noted["spec"] == daemonset(mark="t2")["spec"]
    assert held["spec"] == daemonset(mark="t2", strategy="OnDelete")["spec"]
    assert held["metadata"] == noted["metadata"]


def test_an_object_that_is_no_daemonset_is_not_held() -> None:
    found = planned(CLASS, None)
    assert found.held == found.noted == [CLASS | {"metadata": {"name": "nvidia", "annotations": {BEFORE: "null"}}}]


def test_check_mode_shows_the_change_without_notes() -> None:
    found = planned(daemonset(), None, check=True)
    assert found.held == found.noted == [daemonset()]
    assert found.changes == ["DaemonSet plugin"]


def test_what_was_noted_is_put_back_or_removed() -> None:
    was = daemonset("accel:1", "t1")
    back = planned(daemonset(mark="t2"), daemonset(mark="t2", **{BEFORE: json.dumps(was)}))
    assert (back.put_back, back.remove, back.templates, back.problems) == ([was], [], {"plugin": "t1"}, [])
    new = planned(daemonset(mark="t2"), daemonset(mark="t2", **{BEFORE: "null"}))
    assert (new.put_back, new.remove, new.templates) == ([], [daemonset(mark="t2")], {})
    other = planned(daemonset(), daemonset())
    assert (other.put_back, other.remove, other.templates, other.problems) == ([], [], {}, [])
    assert planned(daemonset(), None).remove == []


def test_a_note_that_cannot_be_read_is_a_problem() -> None:
    found = planned(daemonset(), daemonset(**{BEFORE: "rubbish"}))
    assert (found.put_back, found.remove) == ([], [])
    assert "annotation kube-accel.io/previous-object cannot be read" in found.problems[0]


def test_templates_have_checksums_and_unused_modes_are_left_out() -> None:
    other = daemonset("accel:3") | {"metadata": {"name": "other", "namespace": "kube-system"}}
    found = wanted_objects([daemonset(), CLASS, other], ["other"])
    assert [item["metadata"]["name"] for item in found.objects] == ["plugin", "nvidia"]
    mark = found.objects[0]["spec"]["template"]["metadata"]["annotations"][TEMPLATE]
    assert found.templates == {"plugin": mark}
    assert wanted_objects([daemonset()]).templates == {"plugin": mark}
    assert wanted_objects([daemonset("accel:1")]).templates != {"plugin": mark}


def pod_of(node: str, template: str) -> Object:
    head = {"labels": {"app.kubernetes.io/name": "plugin"}, "annotations": {TEMPLATE: template}}
    return {"metadata": {"namespace": "kube-system"} | head, "spec": {"nodeName": node}}


NOTED = '{"spec": {"template": {"spec": {"containers": [{"image": "accel:1"}]}}}}'
EXTENDER = daemonset() | {"kind": "Deployment", "spec": {"template": daemonset()["spec"]["template"]}}


@pytest.mark.parametrize(
    ("workload", "says"),
    [
        (daemonset(), None),
        (daemonset(**{"kube-accel.io/other": "x"}), None),
        (
            daemonset("accel:2", "new", "OnDelete", **{BEFORE: NOTED}),
            "DaemonSet kube-system/plugin "
            "(from image accel:1 to accel:2; held, OnDelete; not yet changed on node-2, node-3)",
        ),
        (
            daemonset("accel:1", "new", "OnDelete"),
            "DaemonSet kube-system/plugin (image accel:1; held, OnDelete; not yet changed on node-2, node-3)",
        ),
        (daemonset("accel:1", **{BEFORE: NOTED}), "DaemonSet kube-system/plugin (image accel:1)"),
        (
            EXTENDER | {"metadata": EXTENDER["metadata"] | {"annotations": {BEFORE: "null"}}},
            "Deployment kube-system/plugin (image accel:2, new)",
        ),
    ],
)
def test_a_rollout_that_was_stopped_is_named(workload: Object, says: str | None) -> None:
    pods = [pod_of("node-3", "old"), pod_of("node-2", "old"), pod_of("node-1", "new")]
    found = [(item.name, item.says) for item in unfinished_rollouts([workload], pods)]
    assert found == ([("plugin", says)] if says else [])


def test_an_unreadable_note_of_a_stopped_rollout_is_told() -> None:
    (found,) = unfinished_rollouts([daemonset(**{BEFORE: "rubbish"})])
    assert "(image accel:2; DaemonSet kube-system/plugin: annotation" in found.says


def node(status: str = "True", message: str = "") -> Object:
    condition = {"type": "GpusHealthy", "status": status, "message": message}
    return {"metadata": {"name": "gpu-1"}, "status": {"conditions": [condition] if status else []}}


def pod(name: str = "train", phase: str = "Running", restarts: int = 0, **more: Any) -> Object:
    head = {"namespace": "team", "name": name, "uid": f"uid-{name}"} | more.pop("head", {})
    container = {"restartCount": restarts, "state": more.pop("state", {"running": {}})}
    status = {"phase": phase, "containerStatuses": [container]}
    return {"metadata": head, "spec": {"nodeName": "gpu-1"} | more, "status": status}


OURS = {"labels": {"app.kubernetes.io/managed-by": "accel.kubernetes"}}
WAITS = {"waiting": {"reason": "CrashLoopBackOff"}}
LOST = "Pods with GPUs that no longer run: team/train."


@pytest.mark.parametrize(
    ("before", "now", "lost", "said"),
    [
        ([pod()], [pod()], 0, []),
        ([pod()], [], 0, []),
        ([pod()], [pod(phase="Failed")], 0, [LOST]),
        ([pod()], [pod(phase="Failed")], 1, []),
        ([pod()], [pod(phase="Succeeded")], 0, []),
        ([pod()], [pod(state=WAITS)], 0, [LOST]),
        ([pod()], [pod(phase="Failed", head={"deletionTimestamp": "2026-01-01T00:00:00Z"})], 0, []),
        ([pod(phase="Pending")], [pod(phase="Failed")], 0, []),
        ([pod("web")], [pod("web", phase="Failed")], 0, []),
        # Restarts count for pods of ours alone, and those of a new one from its first.
        ([pod()], [pod(restarts=1)], 0, []),
        ([pod("p", head=OURS)], [pod("p", restarts=1, head=OURS)], 0, ["Pod team/p restarted."]),
        ([pod("p", restarts=1, head=OURS)], [pod("p", restarts=1, head=OURS)], 0, []),
        ([], [pod("p", restarts=1, head=OURS)], 0, ["Pod team/p restarted."]),
        # It has no node yet.
        ([], [{"metadata": pod(head=OURS)["metadata"], "spec": {}, "status": {}}], 0, []),
    ],
)
def test_pods_that_fail_meanwhile_are_harm(before: list[Object], now: list[Object], lost: int, said: list[str]) -> None:
    was, found = (cluster_state([node()], pods, ["team/train"]) for pods in (before, now))
    assert harm(was, found, lost) == said
    assert harm(cluster_state([node()], now, []), found, lost) == []


@pytest.mark.parametrize(
    ("before", "now", "said"),
    [
        ({}, {}, []),
        ({"healthy": 2}, {"healthy": 1}, ["Node gpu-1 reports 1 healthy GPUs, 2 before."]),
        ({"healthy": 1}, {"healthy": 2}, []),
        ({"healthy": None}, {"healthy": 0}, []),
        ({"healthy": 2}, {"healthy": None}, []),
        ({}, {"bad": "GPU 0 lost"}, ["Node gpu-1 has the condition GpusHealthy=False: GPU 0 lost"]),
        ({"bad": "GPU 0 lost"}, {"bad": "GPU 1 lost"}, []),
    ],
)
def test_nodes_that_lose_gpus_are_harm(before: Object, now: Object, said: list[str]) -> None:
    was, found = (read_state({"nodes": {"gpu-1": {"healthy": 2, "bad": ""} | each}}) for each in (before, now))
    assert harm(was, found, 0) == said
    assert harm(was, read_state({}), 0) == harm(read_state({}), found, 0) == []


@pytest.mark.parametrize(
    ("status", "message", "bad"),
    [
        ("True", "x", ""),
        ("", "", ""),
        ("False", "", "no reason given"),
        ("False", "GPU 0:\nlost \x1b[2J", "GPU 0: lost \ufffd[2J"),
    ],
)
def test_what_a_node_says_of_its_gpus_is_one_harmless_line(status: str, message: str, bad: str) -> None:
    assert cluster_state([node(status=status, message=message)], [], []).nodes["gpu-1"].bad == bad


def test_an_annotation_that_cannot_be_read_is_told() -> None:
    item = {"metadata": {"name": "gpu-1", "annotations": {"kube-accel.io/inventory": "rubbish"}}}
    state = cluster_state([item], [], [])
    assert state.nodes["gpu-1"].healthy is None
    assert "node gpu-1: annotation kube-accel.io/inventory cannot be read" in state.problems[0]


NODES, GROUPS = ("a", "b", "c"), {"gpu_nodes": ["a", "b", "c"], "kube_control_plane": ["control", "other"]}
NUMBERS = {"rollout_first": 1, "rollout_soak": "30", "rollout_pods_lost": 0}
CHANGED = {"rollout_extender_changes": ["Deployment extender"]}
PLUGINS = {"rollout_plugin_changes": ["DaemonSet plugin"], "gpu_plugins_rollout_mode": "pgpu"}
OVER = {"a": PLUGINS | {"rollout_over": True}, "control": CHANGED | {"rollout_extender_over": True}}


def plan(hosts: dict[str, Object] | None = None, groups: Object = GROUPS, **asked: Any) -> Plan:
    known = {name: {"gpu_plugins_rollout_mode": "pgpu"} for name in NODES} | {
        "control": {},
        "localhost": {},
        "other": {},
    }
    for name, facts in (hosts or {}).items():
        known[name] = known[name] | facts
    return rollout_plan(known, groups, Asked(**{"numbers": NUMBERS} | asked))


@pytest.mark.parametrize(
    ("given", "refused"),
    [
        ({}, ""),
        ({"numbers": NUMBERS | {"rollout_first": "2"}}, ""),
        (
            {"numbers": NUMBERS | {"rollout_first": 0}},
            "rollout_first is '0'; set it to a number of 1 or more.",
        ),
        ({"numbers": NUMBERS | {"rollout_soak": "soon"}}, "rollout_soak is 'soon'; set it to a number of 0 or more."),
        ({"numbers": NUMBERS | {"rollout_soak": True}}, "rollout_soak is 'True'; set it to a number of 0 or more."),
        ({"numbers": NUMBERS | {"rollout_pods_lost": -1}}, "rollout_pods_lost is '-1'; set it to a number of 0 or"),
        ({"numbers": NUMBERS | {"rollout_pods_lost": "1\n"}}, "rollout_pods_lost is '1"),
        ({"played": ["a", "b", "c", "control", "other", "localhost"]}, ""),
        (
            {"played": ["a", "control", "other"]},
            "but --limit leaves out b, c, localhost; remove --limit, and set rollout_first",
        ),
        ({"groups": {}, "played": ["web"]}, "The inventory has no host in the group 'gpu_nodes'"),
    ],
)
def test_what_cannot_be_rolled_out_is_refused(given: Object, refused: str) -> None:
    found = plan(**given)
    assert bool(found.refused) == bool(refused)
    assert refused in found.refused


@pytest.mark.parametrize(
    ("first", "hosts"),
    [(1, ["a", "b"]), ("2", ["a", "b", "c"])],
)
def test_first_hosts_are_the_first_of_each_mode(first: object, hosts: list[str]) -> None:
    found = plan({"b": {"gpu_plugins_rollout_mode": "vgpu"}}, numbers=NUMBERS | {"rollout_first": first})
    assert found.first_hosts == hosts
    assert found.goes_on


@pytest.mark.parametrize(
    ("given", "extender", "secondary"),
    [
        ({}, "control", False),
        ({"layout": "secondary"}, "localhost", True),
        ({"groups": {"gpu_nodes": ["a"]}}, "", False),
        ({"groups": {"gpu_nodes": ["a"], "kube_control_plane": []}}, "", False),
    ],
)
def test_one_host_rolls_out_the_extender(given: Object, extender: str, secondary: bool) -> None:
    found = plan(**given)
    assert (found.extender, found.secondary) == (extender, secondary)


RENEWED, SERVES = {"rollout_renewed": True}, {"rollout_serves": True}


@pytest.mark.parametrize(
    ("step", "hosts", "failure"),
    [
        ("rollout_extender_changes", {"control": CHANGED}, ""),
        ("rollout_extender_changes", {"control": {"rollout_extender_changes": []}}, ""),
        ("rollout_extender_changes", {}, "control could not be reached."),
        ("rollout_extender_changes", {"control": {"rollout_failed": "No pod."}}, "No pod."),
        ("rollout_renewed", {"a": RENEWED}, ""),
        ("rollout_renewed", {}, "a could not be read."),
        ("rollout_renewed", {"a": {"rollout_failed": "Stuck."}}, "Stuck."),
        ("rollout_serves", dict.fromkeys(NODES, SERVES), ""),
        ("rollout_serves", {"b": SERVES}, "a could not be read. c could not be read."),
        ("rollout_serves", {"b": {"rollout_failed": "X."}, "c": {"rollout_failed": "X."}}, "X."),
        ("rollout_serves", {"b": {"rollout_failed": "X."}, "c": {"rollout_failed": "Y."}}, "X. Y."),
        # Why it failed first stays the reason.
        ("", {"a": {"rollout": {"failure": "First."}}, "b": {"rollout_failed": "X."}}, "First."),
    ],
)
def test_a_host_that_fails_or_is_lost_undoes_the_rollout(step: str, hosts: dict[str, Object], failure: str) -> None:
    found = plan(hosts, step=step)
    assert found.failure == failure
    assert found.goes_on == (failure == "")
    assert found.undoes == (failure != "")
    assert found.result == ("undone" if failure else "unfinished")
    assert found.done is False


@pytest.mark.parametrize("step", ["rollout_renewed", "rollout_serves"])
def test_a_check_waits_for_no_node(step: str) -> None:
    assert plan(step=step).failure != ""
    assert plan(step=step, check=True).failure == ""


def test_a_check_that_failed_puts_nothing_back() -> None:
    found = plan({"control": {"rollout_failed": "No pod."}}, step="rollout_extender_changes", check=True)
    assert (found.failure, found.undoes, found.goes_on) == ("No pod.", False, False)


def test_a_cluster_without_control_planes_waits_for_no_extender() -> None:
    hosts = {"a": PLUGINS | {"rollout_over": True}}
    found = plan(hosts, {"gpu_nodes": ["a"]}, step="rollout_extender_changes")
    assert (found.failure, found.done, found.changes) == ("", True, ["DaemonSet plugin"])


@pytest.mark.parametrize(
    ("step", "hosts", "looks"),
    [
        ("rollout_renewed", {"a": PLUGINS | RENEWED}, True),
        ("rollout_renewed", {"a": RENEWED, "control": CHANGED}, False),
        ("rollout_renewed", {"a": PLUGINS}, False),
        ("rollout_serves", dict.fromkeys(NODES, SERVES) | {"control": CHANGED}, True),
        ("rollout_serves", dict.fromkeys(NODES, SERVES), False),
    ],
)
def test_nodes_and_pods_are_looked_at_where_something_changed(step: str, hosts: dict[str, Object], looks: bool) -> None:
    assert plan(hosts, step=step).looks is looks
    assert not plan(hosts, step=step, check=True).looks
    assert not plan(hosts, step=step, check=True).goes_on


STAYS = {"rollout_stays": "It waits."}
FAILED = {"rollout": {"failure": "Stuck."}}
BACK = "Stuck. The rollout was undone. The previous version is restored, "


@pytest.mark.parametrize(
    ("hosts", "check", "result", "message"),
    [
        (
            OVER,
            False,
            "kept",
            "Rolled out Deployment extender, DaemonSet plugin; every node serves as before.",
        ),
        (OVER, True, "kept", "Would roll out Deployment extender, DaemonSet plugin"),
        (
            {"a": {"rollout_over": True}, "control": {"rollout_extender_over": True}},
            False,
            "nothing to do",
            "The daemons are up to date.",
        ),
        ({"a": OVER["a"]}, False, "unfinished", "The rollout was interrupted by the failure above."),
        ({"control": OVER["control"]}, False, "unfinished", "The rollout was interrupted"),
        (OVER | {"a": OVER["a"] | FAILED}, False, "undone", BACK + "and every node serves with it."),
        (OVER | {"a": FAILED, "b": STAYS, "c": STAYS}, False, "undone", BACK + "but not all nodes serve: It waits."),
        (OVER | {"a": FAILED, "control": STAYS}, False, "undone", BACK + "but not all nodes serve: It waits."),
        (OVER | {"a": FAILED}, True, "undone", "Stuck. Nothing was changed."),
    ],
)
def test_what_became_of_it_is_told(hosts: dict[str, Object], check: bool, result: str, message: str) -> None:
    found = plan(hosts, check=check)
    assert found.result == result
    assert found.message.startswith(message)
    assert found.done == (result in ("kept", "nothing to do"))


@given(st.sampled_from(["", *CHANGED, *RENEWED, *SERVES]), st.dictionaries(st.sampled_from(NODES), st.text(min_size=1)))
def test_no_rollout_goes_on_over_a_host_that_failed(step: str, failed: dict[str, str]) -> None:
    found = plan({name: {"rollout_failed": why} for name, why in failed.items()}, step=step)
    assert not failed or not found.goes_on
    assert all(why in found.failure for why in failed.values())
