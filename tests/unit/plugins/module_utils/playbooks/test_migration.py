# SPDX-License-Identifier: Apache-2.0
"""What migrate.yml does to a node, how long it waits, and what it reports in the end."""

from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils.playbooks.migration import (
    Terms,
    has_left,
    offers,
    outcome,
    step,
    turn,
)

HERE, BACK = Terms(back=False, strand=False), Terms(back=True, strand=False)
PATCH, OTHER = {"name": "nvdp", "patch": {"a": 1}}, {"name": "hami", "patch": {"b": 2}}


def node(**changed: Any) -> dict[str, Any]:
    entry = {"state": "due", "from": "nvidia", "title": "NVIDIA's device plugin", "back": {}, "gone": []}
    return {**entry, "problems": [], "returns": [], **changed}


def peer(kind: str = "nvidia", **changed: Any) -> dict[str, Any]:
    entry = {"kind": kind, "title": "NVIDIA's device plugin", "nodes": ["gpu-a"], "migrated": [], "avoid": []}
    return {**entry, "restore": [], "removal": [], **changed}


def migration(entry: dict[str, Any], *peers: dict[str, Any]) -> dict[str, Any]:
    return {"nodes": {"gpu-a": entry}, "peers": list(peers)}


@pytest.mark.parametrize(
    ("entry", "terms", "reason"),
    [
        (node(), HERE, "is taken over from NVIDIA's device plugin"),
        (node(state="begun", title=""), HERE, "is taken over from nvidia"),
        *((node(state=state), HERE, "") for state in ("done", "ours", "none", "refused")),
        (node(state="done", back={"metadata": {}}), BACK, "is given back to NVIDIA's device plugin"),
        (node(), BACK, ""),
    ],
)
def test_node_is_drained_where_something_is_due(entry: dict[str, Any], terms: Terms, reason: str) -> None:
    found = step(migration(entry), "gpu-a", terms)
    assert (found.due, found.reason, found.refusals) == (bool(reason), reason, [])


@pytest.mark.parametrize(
    ("entry", "terms", "leaves"),
    [
        (node(), HERE, True),
        (node(state="begun"), HERE, True),
        (node(driver="gpu.nvidia.com"), HERE, False),
        *((node(state=state), HERE, False) for state in ("done", "ours", "none", "refused")),
        (node(state="done", back={"metadata": {}}), BACK, False),
    ],
)
def test_it_is_known_whether_a_device_plugin_leaves(entry: dict[str, Any], terms: Terms, leaves: bool) -> None:
    assert step(migration(entry), "gpu-a", terms).plugin_leaves is leaves


def test_daemonsets_of_the_plugin_that_serves_avoid_marked_nodes() -> None:
    peers = [peer(avoid=[PATCH]), peer("hami", avoid=[OTHER])]
    assert step(migration(node(), *peers), "gpu-a", HERE).avoid == [PATCH]
    assert step(migration(node(**{"from": ""}), *peers), "gpu-a", HERE).avoid == []


RETURNS = [{"pod": "a/x", "changes": True}, {"pod": "a/x", "changes": True}, {"pod": "a/y", "changes": False}]
GONE = node(back={"metadata": {}}, gone=["default/nvdp"], problems=["It is odd"])


@pytest.mark.parametrize(
    ("entry", "terms", "code", "message"),
    [
        (
            node(state="refused", problems=["It is odd", "It is old"]),
            HERE,
            "migration_problems",
            "Node 'gpu-a': It is odd. It is old.",
        ),
        (
            GONE,
            BACK,
            "peer_gone",
            "Node 'gpu-a' was taken over from DaemonSet default/nvdp, which is gone; install it again first.",
        ),
        (
            node(back={"metadata": {}}, returns=RETURNS),
            BACK,
            "pods_stranded",
            "Node 'gpu-a': NVIDIA's device plugin does not offer what these pods ask for, so they would stay pending "
            "after an eviction: a/x. Change their manifests as the plan says, or set migrate_strand=true.",
        ),
    ],
)
def test_what_cannot_work_is_refused(entry: dict[str, Any], terms: Terms, code: str, message: str) -> None:
    (refusal,) = step(migration(entry), "gpu-a", terms).refusals
    assert (refusal.code, refusal.message) == (code, message)


@pytest.mark.parametrize(
    ("entry", "terms"),
    [
        (node(returns=RETURNS), HERE),
        (node(problems=["It is odd"]), BACK),
        (node(gone=["default/nvdp"], returns=RETURNS), BACK),
        (node(back={"metadata": {}}, returns=RETURNS[2:]), BACK),
        (node(back={"metadata": {}}, returns=RETURNS), Terms(back=True, strand=True)),
    ],
)
def test_what_does_not_matter_is_not_refused(entry: dict[str, Any], terms: Terms) -> None:
    assert step(migration(entry), "gpu-a", terms).refusals == []


@pytest.mark.parametrize(
    ("entry", "back", "control_planes", "extended", "coming"),
    [
        (node(mode="vgpu", **{"from": "gpu-manager"}), False, True, True, True),
        (node(mode="vgpu", **{"from": "gpu-manager"}), False, False, True, False),
        (node(mode="vgpu", **{"from": "hami"}), False, True, False, False),
        (node(mode="vgpu", back={"metadata": {}}, **{"from": "gpu-manager"}), True, True, False, False),
    ],
)
def test_our_extender_comes_where_the_run_reaches_it(
    entry: dict[str, Any], back: bool, control_planes: bool, extended: bool, coming: bool
) -> None:
    found = step(migration(entry), "gpu-a", Terms(back, strand=False, control_planes=control_planes))
    assert (found.extended, found.extender_coming) == (extended, coming)


def host(**plan: Any) -> dict[str, Any]:
    return {"migrate_plan": {"due": False, "extended": False, **plan}}


HELD = {"migrate_seen": {"migration": {"peers": [{"hold": [PATCH]}, {"hold": [OTHER]}]}}}


@pytest.mark.parametrize(
    ("hosts", "back", "hold"),
    [
        ([host(due=True) | HELD, host() | HELD], False, [PATCH, OTHER]),
        ([host() | HELD, host(due=True) | HELD], False, [PATCH, OTHER]),
        ([host() | HELD], False, []),
        ([host(due=True) | HELD], True, []),
        ([{}], False, []),
        ([], False, []),
    ],
)
def test_ours_is_kept_off_while_a_node_is_due(hosts: list[dict[str, Any]], back: bool, hold: list[Any]) -> None:
    assert turn(hosts, back).hold == hold


@pytest.mark.parametrize(
    ("hosts", "extended", "ends"),
    [
        ([{}, host(extended=True)], True, False),
        ([{}, host()], False, False),
        ([host() | {"migrate_ends": True}, {}], False, True),
        ([host() | {"migrate_ends": False}], False, False),
    ],
)
def test_one_node_decides_about_kube_scheduler(hosts: list[dict[str, Any]], extended: bool, ends: bool) -> None:
    found = turn(hosts, back=False)
    assert (found.extended, found.ends) == (extended, ends)


@pytest.mark.parametrize(
    ("owners", "left"),
    [([], True), (None, True), ([{"uid": "other"}], True), ([{"uid": "other"}, {"uid": "u"}], False)],
)
def test_plugin_has_left_once_none_of_its_pods_is_there(owners: list[Any] | None, left: bool) -> None:
    pods = {"resources": [{"metadata": {}}, {"metadata": {"ownerReferences": owners}}]}
    assert has_left(pods, ["u", "v"]) is left
    assert has_left({"msg": "timeout"}, ["u"])


@pytest.mark.parametrize(
    ("allocatable", "offered"),
    [
        ({"nvidia.com/gpu": "1"}, True),
        ({"nvidia.com/gpu": "0"}, False),
        ({"nvidia.com/gpu": "0", "nvidia.com/mig-1g.10gb": "7"}, True),
        ({"example.com/nvidia.com/gpu": "1", "cpu": "4"}, False),
        (None, False),
    ],
)
def test_node_is_offered_again_once_it_has_some(allocatable: dict[str, str] | None, offered: bool) -> None:
    assert offers({"resources": [{"status": {"allocatable": allocatable}}]}, r"nvidia\.com/(gpu|mig-)") is offered
    assert not offers({"resources": []}, "nvidia")


@pytest.mark.parametrize(
    ("entry", "check", "line"),
    [
        (node(), False, "gpu-a: served by another plugin, from NVIDIA's device plugin"),
        (node(), True, "gpu-a: served by another plugin, from NVIDIA's device plugin, and would be migrated"),
        (node(state="begun"), True, "gpu-a: left in the middle of it, from NVIDIA's device plugin, and would be"),
        (node(state="done", title=""), True, "gpu-a: migrated, from nvidia"),
        (node(state="ours", **{"from": ""}), False, "gpu-a: ours"),
        (node(state="none", **{"from": ""}), True, "gpu-a: served by none, which site.yml changes"),
        (node(state="refused", **{"from": ""}), False, "gpu-a: served by what is not known"),
    ],
)
def test_node_is_reported_with_where_it_stands(entry: dict[str, Any], check: bool, line: str) -> None:
    (found,) = outcome(migration(entry, peer()), back=False, check=check).lines
    assert found.startswith(line)


def test_plugin_on_no_node_is_reported_with_its_removal() -> None:
    removable = peer(nodes=[], removal=["helm uninstall nvdp", "kubectl delete x"])
    (_, found) = outcome(migration(node(), removable), back=False, check=False).lines
    assert found == "NVIDIA's device plugin is on no node any more; to remove it: helm uninstall nvdp; kubectl delete x"


@pytest.mark.parametrize(
    ("marked", "back", "restored"), [([], True, True), (["gpu-a"], True, False), ([], False, False)]
)
def test_daemonsets_are_restored_once_no_node_is_marked(marked: list[str], back: bool, restored: bool) -> None:
    found = outcome(migration(node(), peer(migrated=marked, restore=[PATCH])), back=back, check=False)
    assert found.restore == ([PATCH] if restored else [])


@pytest.mark.parametrize(
    ("entry", "terms", "extended"),
    [
        (node(**{"from": "gpu-manager", "mode": "vgpu"}), HERE, True),
        (node(**{"from": "mps", "mode": "cgpu"}), HERE, True),
        (node(**{"from": "gpu-manager", "mode": "pgpu"}), HERE, False),
        (node(**{"from": "hami", "mode": "vgpu"}), HERE, False),
        (node(**{"from": "mps", "mode": "mps", "state": "done"}), HERE, False),
        (node(**{"from": "mps", "mode": "mps", "back": {"metadata": {}}}), BACK, False),
    ],
)
def test_other_extender_is_replaced_where_a_node_shares_by_ours(
    entry: dict[str, Any], terms: Terms, extended: bool
) -> None:
    assert step(migration(entry), "gpu-a", terms).extended is extended


@pytest.mark.parametrize(
    ("kind", "ours", "migrated", "back", "check", "ends"),
    [
        ("gpu-manager", False, [], True, False, True),
        ("gpu-manager", True, [], True, False, False),
        ("gpushare", False, ["gpu-b"], True, False, False),
        ("mps", False, [], False, False, False),
        ("mps", False, [], True, True, False),
        ("hami", False, [], True, False, False),
    ],
)
def test_kube_scheduler_is_given_back_once_none_of_ours_is_left(
    kind: str, ours: bool, migrated: list[str], back: bool, check: bool, ends: bool
) -> None:
    document = {**migration(node(), peer(kind, migrated=migrated)), "ours": ours}
    assert outcome(document, back=back, check=check).ends is ends
