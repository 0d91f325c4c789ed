# SPDX-License-Identifier: Apache-2.0
"""How a node is, what that means for playbooks, and what uninstalling takes from it."""

from __future__ import annotations

from dataclasses import asdict
from hashlib import sha256
from typing import Any

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils.gpu_plugins import mig_label, mps, turn, uninstall
from ansible_collections.accel.kubernetes.plugins.module_utils.gpu_plugins.node import NodeState, Seen, node_state
from hypothesis import given
from hypothesis import strategies as st

Object = dict[str, Any]
MODE, CGPU = "nvidia-device-enable", "cgpu"
CORDON, MIG_CORDON = "kube-accel.io/cordoned", "kube-accel.io/mig-cordoned"
HELD = "kube-accel.io/served-by-another"
MODES = ("pgpu", "vgpu", "mps", "cgpu", "dra")


def state(labels: Object, mode: str = "pgpu", annotations: Object | None = None, **more: Any) -> NodeState:
    """The state of a node; ``options`` and ``spec`` may be among ``more``."""
    options = {"gpu_plugins_mode": mode} | more.pop("options", {})
    node = {"metadata": {"name": "n", "labels": labels, "annotations": annotations or {}}, **more}
    return node_state(Seen({"resources": [node]}, options))


@pytest.mark.parametrize(
    ("labels", "mode", "serves", "target", "switching"),
    [
        ({}, "pgpu", "", "pgpu", False),
        ({MODE: "pgpu"}, "pgpu", "pgpu", "pgpu", False),
        ({MODE: "mps"}, "vgpu", "mps", "vgpu", True),
        ({MODE: "cgpu", CGPU: "true"}, "cgpu", "cgpu", "cgpu", False),
        ({MODE: "cgpu", CGPU: "true"}, "pgpu", "cgpu", "pgpu", True),
        ({MODE: "cgpu", CGPU: "false"}, "cgpu", "pgpu", "cgpu", True),
        # Somebody set the label.
        ({MODE: "vgpu", CGPU: "true"}, "vgpu", "cgpu", "cgpu", False),
        ({MODE: "theirs"}, "pgpu", "theirs", "pgpu", True),
    ],
)
def test_a_node_serves_by_its_labels(labels: Object, mode: str, serves: str, target: str, switching: bool) -> None:
    found = state(labels, mode)
    assert (found.serves, found.target, found.switching) == (serves, target, switching)


def test_node_that_becomes_ours_is_kept_for_no_other() -> None:
    assert state({MODE: "vgpu", "kube-accel.io/served-by-another": "gpu-manager"}, "vgpu").wanted_labels == {
        MODE: "vgpu",
        "kube-accel.io/served-by-another": None,
    }
    assert state({MODE: "vgpu"}, "vgpu").wanted_labels == {MODE: "vgpu"}


@pytest.mark.parametrize(("mode", "number", "label"), [("dra", 4, "4"), ("dra", 0, None), ("pgpu", 4, None)])
def test_label_of_fixed_shares_is_as_the_inventory_says(mode: str, number: int, label: str | None) -> None:
    options = {"gpu_plugins_mode": mode, "gpu_plugins_dra_fixed_shares": number}
    labels = {MODE: mode, "kube-accel.io/fixed-shares": "2"}
    nodes = {"resources": [{"metadata": {"name": "n", "labels": labels}}]}
    found = node_state(Seen(nodes, options)).wanted_labels
    assert found == {MODE: mode, "kube-accel.io/fixed-shares": label}
    assert (
        "kube-accel.io/fixed-shares"
        not in node_state(Seen({}, options | {"gpu_plugins_dra_fixed_shares": 0})).wanted_labels
    )


@pytest.mark.parametrize(
    ("mode", "sized", "number", "shares", "accounts"),
    [
        ("vgpu", False, 0, 0, True),
        ("pgpu", True, 4, 0, False),
        ("dra", True, 0, 0, True),
        ("dra", False, 4, 4, True),
        ("dra", False, 0, 0, False),
    ],
)
def test_accounts_are_kept_where_gpus_are_shared(
    mode: str, sized: bool, number: int, shares: int, accounts: bool
) -> None:
    options = {"gpu_plugins_dra_shares": sized, "gpu_plugins_dra_fixed_shares": number}
    found = state({MODE: mode}, mode, options=options)
    assert (found.fixed_shares, found.keeps_accounts) == (shares, accounts)


@given(st.sampled_from(MODES), st.sampled_from(["", *MODES]), st.sampled_from(["", "true", "false"]))
def test_a_node_with_its_labels_serves_its_target(mode: str, label: str, cgpu: str) -> None:
    labels = {name: value for name, value in ((MODE, label), (CGPU, cgpu)) if value}
    before = state(labels, mode)
    after = {name: value for name, value in {**labels, **before.wanted_labels}.items() if value is not None}
    found = state(after, mode)
    assert (found.serves, found.target) == (before.target, before.target)
    assert {**after, **found.wanted_labels} == after


@pytest.mark.parametrize(
    ("annotations", "mode", "mig_label", "cordoned", "left_for"),
    [
        ({}, "pgpu", False, False, ""),
        ({CORDON: "pgpu"}, "pgpu", False, True, ""),
        ({CORDON: "vgpu"}, "pgpu", False, True, "vgpu"),
        ({MIG_CORDON: "true"}, "pgpu", False, True, ""),
        # The plugin undoes its own, where it looks after MIG.
        ({MIG_CORDON: "true"}, "pgpu", "yes", False, ""),
        ({MIG_CORDON: "true"}, "dra", "yes", True, ""),
    ],
)
def test_a_cordon_has_an_owner(
    annotations: Object, mode: str, mig_label: object, cordoned: bool, left_for: str
) -> None:
    options = {"gpu_plugins_mig_label": mig_label}
    found = state({MODE: "pgpu"}, mode, annotations, options=options, spec={"unschedulable": True})
    assert (found.cordoned, found.keeps_cordon, found.left_for) == (cordoned, not cordoned, left_for)


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("label", [True, False])
def test_plugins_of_whole_gpus_alone_obey_the_label_of_mig(mode: str, label: bool) -> None:
    """A node is labeled with the mode that it comes from until it goes over."""
    found = state({MODE: "pgpu"}, mode, options={"gpu_plugins_mig_label": label})
    assert found.mig_by_label is (label and mode == "pgpu")


@pytest.mark.parametrize(("mode", "cutting"), [("pgpu", True), ("vgpu", False)])
def test_only_whole_gpus_are_cut_whatever_was_planned(mode: str, cutting: bool) -> None:
    node = {"metadata": {"name": "n", "labels": {MODE: mode}}}
    found = node_state(Seen({"resources": [node]}, {"gpu_plugins_mode": mode}, {"cut": ["GPU-1"]}))
    assert found.mig_cutting is cutting


def test_a_node_that_is_not_registered_is_empty() -> None:
    found = node_state(Seen({"resources": []}, {"gpu_plugins_mode": "vgpu"}))
    assert (found.object, found.serves, found.target, found.unschedulable) == ({}, "", "vgpu", False)


def turned(found: NodeState, mode: str = "pgpu", *classes: str, **node: Any) -> turn.Turn:
    cluster = {"daemonset": "plugin", "ours": ["plugin"], "device_classes": classes}
    return turn.turn(turn.Seen("n", mode, "small", asdict(found) | node, cluster))


@pytest.mark.parametrize(
    ("serves", "mode", "number", "classes", "refused"),
    [
        ("pgpu", "dra", 2, ["gpu.kube-accel.io"], True),
        ("pgpu", "dra", 2, ["gpu.kube-accel.io", "fixed-share.kube-accel.io"], False),
        ("pgpu", "dra", 0, ["gpu.kube-accel.io"], False),
        ("pgpu", "vgpu", 2, [], False),
        # There is nothing to switch.
        ("dra", "dra", 2, ["gpu.kube-accel.io"], False),
    ],
)
def test_no_node_is_cut_where_no_claim_can_have_its_shares(
    serves: str, mode: str, number: int, classes: list[str], refused: bool
) -> None:
    found = state({MODE: serves}, mode, options={"gpu_plugins_dra_fixed_shares": number})
    assert ("run site.yml --limit n first" in turned(found, mode, *classes).switch_mode) is refused


def test_playbooks_take_a_node_that_serves() -> None:
    assert turned(state({MODE: "pgpu"})) == turn.Turn("", "", "")


@pytest.mark.parametrize(
    ("labels", "node", "switch_mode", "upgrade_driver", "rollout"),
    [
        ({}, {}, "does not serve yet", "", "does not serve yet"),
        ({MODE: "mps"}, {}, "", "serves mode mps, but should serve pgpu", "but should serve pgpu; run site.yml first."),
        ({MODE: "pgpu", CGPU: "true"}, {}, "kubectl label node n cgpu-", "", ""),
        ({MODE: "pgpu"}, {"mig_cutting": True}, "", "MIG configuration small; run site.yml", "MIG configuration small"),
        # An earlier upgrade left a GPU without its devices.
        ({MODE: "pgpu"}, {"mig_cutting": True, "cordoned": True}, "", "", "MIG configuration small"),
    ],
)
def test_playbooks_refuse_what_they_do_not_do(
    labels: Object, node: Object, switch_mode: str, upgrade_driver: str, rollout: str
) -> None:
    found = turned(state(labels), **node)
    for says, part in (
        (found.switch_mode, switch_mode),
        (found.upgrade_driver, upgrade_driver),
        (found.rollout, rollout),
    ):
        assert (part in says) if part else not says


def left(labels: Object, *holders: str, **options: Any) -> uninstall.Uninstall:
    known = {"gpu_plugins_mode": "pgpu"} | options
    monitors = {"back": {"monitor": "true"}}
    return uninstall.uninstall(uninstall.Seen("n", asdict(state(labels)), known, monitors, holders))


def test_uninstalling_under_pods_says_what_becomes_of_them() -> None:
    assert left({MODE: "dra"}).refusal == ""
    plugins, claims = (left({MODE: mode}, "team/a", "team/b").refusal for mode in ("vgpu", "dra"))
    assert "These pods hold GPUs of node 'n': team/a, team/b." in plugins
    assert "they keep running, and the node no longer accounts for their GPUs" in plugins
    assert "hang in Terminating" in claims
    assert "hang in Terminating" not in plugins


def test_uninstalling_takes_the_labels_of_ours() -> None:
    assert left({MODE: "pgpu"}).labels == {MODE: None}
    assert left({MODE: "cgpu", CGPU: "true"}).labels == {MODE: None, CGPU: None}
    # Somebody else set it.
    assert left({MODE: "pgpu", CGPU: "true"}).labels == {MODE: None}
    # A killed run left it. Migration has another's name there.
    assert left({MODE: "dra", HELD: "dra"}).labels == {MODE: None, HELD: None}
    assert left({MODE: "dra", HELD: "nvidia"}).labels == {MODE: None}
    by_label = {"gpu_plugins_config": "four", "gpu_plugins_mig_config": "small", "gpu_plugins_mig_label": "true"}
    found = left({MODE: "pgpu"}, **by_label)
    assert [*found.labels] == [MODE, "nvidia.com/device-plugin.config", "nvidia.com/mig.config"]
    assert found.later_labels == {"nvidia.com/mig.config.state": None, "monitor": "true"}


UNIT = "/etc/systemd/system/kube-accel-mps@{}.service"


@pytest.mark.parametrize(
    ("by_mps", "removed", "wanted", "unwanted"),
    [(True, False, ["GPU-1"], ["GPU-2"]), (False, False, [], ["GPU-1", "GPU-2"]), (True, True, [], ["GPU-1", "GPU-2"])],
)
def test_gpus_that_mps_shares_have_a_daemon(
    by_mps: bool, removed: bool, wanted: list[str], unwanted: list[str]
) -> None:
    units = {"stdout_lines": [UNIT.format(name) for name in ("GPU-1", "GPU-2", "GPU-2", "")]}
    programs, there = ["nvidia-cuda-mps-control", "nvidia-smi"], {"stdout_lines": ["/usr/bin/nvidia-smi"]}
    offer = {"by_mps": by_mps, "mps_gpus": ["GPU-1"]}
    found = mps.mps(mps.Seen(offer, units, programs, there, removed=removed))
    assert (found.wanted, found.unwanted, found.present) == (wanted, unwanted, True)
    assert found.missing == ["nvidia-cuda-mps-control"]


LABELED = {"nvidia.com/mig.config": "small", "nvidia.com/mig.config.state": "success"}


@pytest.mark.parametrize(
    ("labels", "cutting", "due"),
    [
        (LABELED, False, False),
        (LABELED, True, True),
        (LABELED | {"nvidia.com/mig.config": "big"}, False, True),
        (LABELED | {"nvidia.com/mig.config.state": "failed"}, False, True),
        ({}, False, True),
    ],
)
def test_a_node_is_labeled_where_it_is_not_as_wanted(labels: Object, cutting: bool, due: bool) -> None:
    found = mig_label.mig_label(mig_label.Seen("small", {"labels": labels, "mig_cutting": cutting}))
    assert (found.due, found.labels["nvidia.com/mig.config"], found.state) == (due, "small", "pending")


@pytest.mark.parametrize(("text", "state", "ended"), [("now", "failed", True), ("before", "pending", False)])
def test_a_state_is_about_the_configurations_of_now(text: str, state: str, ended: bool) -> None:
    head = {
        "labels": {"nvidia.com/mig.config.state": "failed"},
        "annotations": {"kube-accel.io/mig-configs": sha256(text.encode()).hexdigest()},
    }
    given = {"resources": [{"data": {"config.yaml": "now"}}]}
    node = {"labels": {}, "mig_cutting": False}
    found = mig_label.mig_label(mig_label.Seen("small", node, {"resources": [{"metadata": head}]}, given))
    assert (found.state, found.ended) == (state, ended)
