# SPDX-License-Identifier: Apache-2.0
"""The admission policies of both roles: when they are shipped, and that they know what the daemons write."""

from __future__ import annotations

import re
from typing import Any

import pytest

from kube_accel.extender.daemon import QUOTA_CHANGED, ROOM_FOUND
from kube_accel.extender.pods import TAKEN
from kube_accel.model import Assignment, Mode, Share
from kube_accel.plugin.mig import affected
from kube_accel.shared.modes import dra_pool
from kube_accel.shared.wishes import WISHES
from kube_accel.sharing.assignment import pod_annotations
from kube_accel.sharing.inventory_annotation import ANNOTATION as INVENTORY
from kube_accel.sharing.node_labels import OWNED
from kube_accel.sharing.profile import PROFILES
from unit.plugins.scheduler_asked import answered

from .conftest import Evaluate, keeping, rendered
from .test_security import LAYOUTS, SECONDARY

KINDS = ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding")
OLD = {"results": [{"api_found": False, "resources": []}] * 2}
NEW = {"results": [{"api_found": True, "resources": []}] * 2}
WARNING = "kube-accel-plugin-runtime-class"
UNHEEDED = "kube-accel-plugin-annotations"
DRA = {"gpu_mode": "dra"}
DRA_NODE = {"metadata": {"name": "n", "labels": {"nvidia-device-enable": "dra"}}}
MIG = {"gpu_plugins_mig_label": True, "gpu_plugins_drain": True}


def scheduler(layout: str = "local", **variables: Any) -> list[dict[str, Any]]:
    given = {
        "scheduler_layout": layout,
        "scheduler_image": "i",
        "__scheduler_cluster": answered("admission", api_found=True),
    }
    return rendered("scheduler", "objects.yml.j2", **SECONDARY, **(given | variables))


def plugin(**variables: Any) -> list[dict[str, Any]]:
    given = {"__gpu_plugins_admission": NEW, "__gpu_plugins_runtime_classes": {}, **variables}
    return rendered("gpu_plugins", "objects.yml.j2", **given)


def named(objects: list[dict[str, Any]], kind: str = KINDS[0]) -> set[str]:
    return {item["metadata"]["name"] for item in objects if item["kind"] == kind}


def policy(objects: list[dict[str, Any]], name: str) -> str:
    """All expressions of a policy."""
    (found,) = (item for item in objects if item["kind"] == KINDS[0] and item["metadata"]["name"] == name)
    return str(found["spec"])


@pytest.mark.parametrize("number", [0, 4])
@pytest.mark.parametrize("shares", [True, False])
def test_claims_are_held_to_the_classes_that_there_are(shares: bool, number: int) -> None:
    objects = plugin(**DRA, __gpu_plugins_kept_slice=keeping(shares), gpu_plugins_dra_fixed_shares=number)
    classes = {"gpu.kube-accel.io", "mig.kube-accel.io", *(["share.kube-accel.io"] if shares else [])}
    classes |= {"fixed-share.kube-accel.io"} if number else set()
    assert named(objects, "DeviceClass") == classes
    told = policy(objects, "kube-accel-plugin-claims")
    assert ("does not name cores and memory" in told) is shares
    assert ("this cluster has none" in told) is not shares
    assert ("by class fixed-share.kube-accel.io" in told) is (bool(number) and not shares)
    wanted = ("DaemonSet", "kube-accel-dra")
    (daemonset,) = (item for item in objects if (item["kind"], item["metadata"]["name"]) == wanted)
    (container,) = daemonset["spec"]["template"]["spec"]["containers"]
    assert ("--shares" in container["command"]) is shares
    assert ("--fixed-shares" in container["command"]) is bool(number)


def test_every_policy_fails_closed_and_has_a_binding_that_denies() -> None:
    for objects in (plugin(**MIG), plugin(**DRA), scheduler()):
        assert named(objects)
        assert named(objects) == named(objects, KINDS[1])
        for item in objects:
            warns = item["metadata"]["name"] in (WARNING, UNHEEDED)
            if item["kind"] == KINDS[0]:
                assert item["spec"]["failurePolicy"] == ("Ignore" if warns else "Fail")
            if item["kind"] == KINDS[1]:
                assert item["spec"]["policyName"] == item["metadata"]["name"]
                assert item["spec"]["validationActions"] == (["Warn"] if warns else ["Deny"])


@pytest.mark.parametrize(
    ("given", "warned"),
    [
        ({}, True),
        ({"gpu_plugins_pgpu_enabled": False}, False),
        ({"container_runtime_default": True}, False),
        ({"gpu_plugins_device_list_strategy": ["cdi-annotations"]}, False),
        ({"gpu_plugins_device_list_strategy": ["envvar"]}, True),
        ({"gpu_plugins_admission_enabled": False}, False),
    ],
)
def test_who_forgets_the_runtime_class_is_warned_where_it_is_needed(given: dict[str, Any], warned: bool) -> None:
    assert (WARNING in named(plugin(**given))) is warned
    assert (WARNING in named(plugin(**given), KINDS[1])) is warned


EXTENDER = {"metadata": {"name": "e", "labels": {"app.kubernetes.io/component": "extender"}}}
BINDS = {"gpu_plugins_extender_coming": True, "hostvars": {"localhost": {"scheduler_modes": ["pgpu", "vgpu"]}}}


@pytest.mark.parametrize(
    ("given", "warned"),
    [
        ({}, True),
        ({"container_runtime_default": True}, True),
        ({"gpu_plugins_pgpu_enabled": False}, True),
        ({"__gpu_plugins_deployments": {"resources": [EXTENDER]}}, False),
        (BINDS, False),
        ({**BINDS, "hostvars": {"localhost": {"scheduler_modes": ["pgpu"]}}}, True),
        ({"gpu_plugins_admission_enabled": False}, False),
    ],
)
def test_wishes_are_warned_of_where_no_extender_heeds_them(given: dict[str, Any], warned: bool) -> None:
    for kind in KINDS:
        assert (UNHEEDED in named(plugin(**given), kind)) is warned


def test_every_wish_of_the_extender_is_warned_of() -> None:
    spec = policy(plugin(), UNHEEDED)
    for wish in WISHES:
        assert f'"{wish}"' in spec


def test_warning_goes_when_an_extender_comes(evaluate: Evaluate) -> None:
    there = [{"kind": kind, "metadata": {"name": UNHEEDED}} for kind in KINDS]
    found = {"results": [{"api_found": True, "resources": there}]}
    for given, gone in (({}, 0), (BINDS, 2), ({"__gpu_plugins_removed": True}, 2)):
        plan = evaluate("gpu_plugins", "__gpu_plugins_admission_plan", {}, __gpu_plugins_admission=found, **given)
        assert len(plan["unwanted"]) == gone


def test_warning_that_is_no_longer_needed_is_removed(evaluate: Evaluate) -> None:
    there = [{"kind": kind, "metadata": {"name": WARNING}} for kind in KINDS]
    found = {"results": [{"api_found": True, "resources": there}]}
    for cdi in (False, True):
        given = {"gpu_plugins_device_list_strategy": ["cdi-cri"]} if cdi else {}
        plan = evaluate("gpu_plugins", "__gpu_plugins_admission_plan", {}, __gpu_plugins_admission=found, **given)
        assert len(plan["unwanted"]) == (2 if cdi else 0)


def test_policies_come_before_what_they_bound() -> None:
    """Permissions and daemons."""
    for objects in (plugin(), scheduler()):
        kinds = [item["kind"] for item in objects]
        assert kinds.index(KINDS[1]) < kinds.index("ClusterRole") < kinds.index("DaemonSet")


def test_old_cluster_gets_none() -> None:
    assert not named(plugin(__gpu_plugins_admission=OLD))
    assert not named(scheduler(__scheduler_cluster=answered("admission", api_found=False)))
    assert not named(scheduler(__scheduler_cluster=answered("admission", msg="not reached")))


def test_each_is_turned_off_by_its_variable() -> None:
    assert not named(plugin(gpu_plugins_admission_enabled=False))
    assert named(scheduler(scheduler_admission_extender_enabled=False)) == {"kube-accel-shares"}
    assert named(scheduler(scheduler_admission_pods_enabled=False)) == {
        "kube-accel-extender-pods",
        "kube-accel-extender-bindings",
    }


def test_without_an_extender_pods_are_not_refused() -> None:
    assert not named(scheduler("none"))


def test_right_to_evict_and_its_policy_come_together() -> None:
    def may_evict(objects: list[dict[str, Any]]) -> bool:
        rules = [rule for item in objects if item["kind"] == "ClusterRole" for rule in item["rules"]]
        return any("pods/eviction" in rule["resources"] for rule in rules)

    for options in ({}, {"gpu_plugins_mig_label": True}, {"gpu_plugins_drain": True}, MIG):
        objects = plugin(**options)
        assert may_evict(objects) == ("kube-accel-plugin-evictions" in named(objects)) == (options == MIG)


def test_policy_turned_off_is_removed_and_those_of_others_stay(evaluate: Evaluate) -> None:
    there = [{"kind": kind, "metadata": {"name": name}} for kind in KINDS for name in (*named(plugin(**MIG)), "theirs")]
    found = {"results": [{"api_found": True, "resources": there}]}

    def removed(**variables: Any) -> set[str]:
        plan = evaluate("gpu_plugins", "__gpu_plugins_admission_plan", {}, __gpu_plugins_admission=found, **variables)
        return {item["metadata"]["name"] for item in plan["unwanted"]}

    assert removed() == {"kube-accel-plugin-evictions"}
    assert removed(**MIG) == set()
    assert removed(gpu_plugins_admission_enabled=False) == named(plugin(**MIG))


def test_plugin_may_write_every_annotation_and_label_of_the_code() -> None:
    spec = policy(plugin(), "kube-accel-plugin-nodes")
    for name in (INVENTORY, OWNED, affected.TEXT, affected.CORDON, "cuda-major-version", "cuda-minor-version"):
        assert f'"{name}"' in spec
    assert affected.STATE_LABEL.startswith("nvidia.com/")


def test_extender_may_write_all_annotations_and_labels_in_code() -> None:
    shares = Assignment("a", {"main": (Share("GPU-1", 10, 1),)})
    written = {*pod_annotations(shares, Mode.VGPU, ("main",), {"GPU-1": 0}, 1), QUOTA_CHANGED, ROOM_FOUND}
    for name in ("kube-accel-extender-pods", "kube-accel-extender-bindings"):
        spec = policy(scheduler(), name)
        for key in written:
            assert f"'{key}'" in spec or (
                key.startswith("tencent.com/predicate-") and "'tencent.com/predicate-'" in spec
            )
    assert f"'{TAKEN}'" in policy(scheduler(), "kube-accel-extender-pods")


def test_policy_covers_the_resources_of_every_sharing_mode() -> None:
    shared = {
        name for profile in PROFILES.values() for name in (profile.core_resource, profile.memory_resource) if name
    }
    assert {name for name in shared if f'"{name}"' in policy(scheduler(), "kube-accel-shares")} == shared
    assert '"nvidia.com/gpu"' not in policy(scheduler(), "kube-accel-shares")
    assert '"nvidia.com/gpu"' in policy(scheduler(scheduler_manage_whole_gpus=True), "kube-accel-shares")


@pytest.mark.parametrize("layout", LAYOUTS)
def test_schedulers_that_ask_the_extender_are_let_through(layout: str) -> None:
    plan = {"configuration": {"profiles": [{"schedulerName": "default-scheduler"}, {"schedulerName": "batch"}]}}
    variables = {
        "groups": {"kube_control_plane": ["c"]},
        "hostvars": {"c": {"__scheduler_proposal": plan}},
        "scheduler_admission_scheduler_names": ["volcano"],
    }
    spec = policy(scheduler(layout, **variables), "kube-accel-shares")
    names = '["accel-scheduler", "volcano"]' if layout == "secondary" else '["default-scheduler", "batch", "volcano"]'
    assert f"variables.scheduler in {names}" in spec


def test_exempt_namespaces_are_left_out() -> None:
    (item,) = (
        item
        for item in scheduler(scheduler_admission_exempt_namespaces=["monitoring"])
        if item["kind"] == KINDS[1] and item["metadata"]["name"] == "kube-accel-shares"
    )
    (term,) = item["spec"]["matchResources"]["namespaceSelector"]["matchExpressions"]
    assert term == {"key": "kubernetes.io/metadata.name", "operator": "NotIn", "values": ["monitoring"]}


def test_validate_expects_the_policies_that_both_roles_make(evaluate: Evaluate) -> None:
    labels = {"app.kubernetes.io/managed-by": "accel.kubernetes", "app.kubernetes.io/component": "extender"}
    bare = {"metadata": {"labels": {"app.kubernetes.io/managed-by": "accel.kubernetes"}}}

    def expected(*workloads: dict[str, Any], **variables: Any) -> set[str]:
        answers = {"results": [{"resources": list(workloads)}]}
        given = {"groups": {}, "hostvars": {}, "__gpu_plugins_workloads": answers} | variables
        return set(evaluate("gpu_plugins", "__gpu_plugins_admission_plan", {}, **given)["expected"])

    plugins = named(plugin()) - {WARNING, UNHEEDED}
    assert expected(bare) == plugins
    assert expected(bare, {"metadata": {"labels": labels}}) == plugins | named(scheduler())
    # The scheduler's variable is the control plane's.
    hosts = {"c": {"scheduler_admission_pods_enabled": False}}
    off = {"groups": {"kube_control_plane": ["c"]}, "hostvars": hosts, "gpu_plugins_admission_enabled": False}
    assert expected({"metadata": {"labels": labels}}, **off) == named(scheduler()) - {"kube-accel-shares"}


def test_trial_pod_asks_the_second_scheduler_where_there_is_one() -> None:
    template = {"spec": {"template": {"spec": {"containers": [{"image": "i"}]}}}}
    node = {"metadata": {"name": "node-1", "labels": {"nvidia-device-enable": "vgpu"}}, "status": {}}
    seen = {
        "__gpu_plugins_trial_daemonset": {"resources": [template]},
        "__gpu_plugins_picked": {"resources": [node]},
        "__gpu_plugins_pods": {"resources": []},
        "ansible_check_mode": False,
    }
    second = {"resources": [{"metadata": {"name": "accel-scheduler"}}]}
    (without,) = rendered("gpu_plugins", "trial.yml.j2", **seen, gpu_plugins_mode="vgpu")
    (made,) = rendered(
        "gpu_plugins", "trial.yml.j2", **seen, gpu_plugins_mode="vgpu", __gpu_plugins_trial_schedulers=second
    )
    assert "schedulerName" not in without["spec"]
    assert made["spec"]["schedulerName"] == "accel-scheduler"


def test_expressions_name_no_template_that_was_not_filled_in() -> None:
    for objects in (plugin(**MIG), scheduler()):
        for name in named(objects):
            assert not re.search(r"\{\{|\}\}|__", policy(objects, name))


def test_slices_are_bound_to_the_drivers_own_node_where_it_serves() -> None:
    name = "kube-accel-plugin-slices"
    assert name not in named(plugin())
    objects = plugin(**DRA)
    assert {name, "kube-accel-plugin-claim-status", "kube-accel-plugin-claims"} == named(objects) - named(plugin())
    assert "s.spec.?nodeName.orValue('') == variables.own" in policy(objects, name)
    assert f"s.spec.pool.name == variables.own + '{dra_pool('')}'" in policy(objects, name)
    accounts = {item["metadata"]["name"] for item in objects if item["kind"] == "ServiceAccount"}
    for each in (name, "kube-accel-plugin-nodes", "kube-accel-plugin-events"):
        assert all(f"kube-system:{account}" in policy(objects, each) for account in accounts)
