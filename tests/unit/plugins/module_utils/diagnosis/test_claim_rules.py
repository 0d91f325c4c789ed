# SPDX-License-Identifier: Apache-2.0
"""Why a pod waits for GPUs that it asks for by claims, and what a support bundle has of them."""

from __future__ import annotations

import copy
import json
from typing import Any
from unittest.mock import patch

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils.diagnosis import collect, support_collect
from ansible_collections.accel.kubernetes.plugins.module_utils.diagnosis import verdict as gpu_diagnosis

from odd_values import Path, cases, fields_read, with_value
from unit.plugins.module_utils.diagnosis.test_odd_diagnosis import Cluster
from unit.plugins.module_utils.shared import test_claim_view as shown

CLASSES = ("gpu.kube-accel.io", "share.kube-accel.io", "mig.kube-accel.io", "fixed-share.kube-accel.io")
WHOLE, SHARE, MIG, FIXED = CLASSES
SUBJECT = "pod team/late"


def wanted(kind: str = CLASSES[1], count: int = 1, **amounts: str) -> dict[str, Any]:
    """The claim of the pod that waits."""
    made = shown.claim("wanted")
    exactly = {"deviceClassName": kind, "count": count, **({"capacity": {"requests": amounts}} if amounts else {})}
    return {**made, "spec": {"devices": {"requests": [{"name": "r", "exactly": exactly}]}}, "status": {}}


def cluster(asked: dict[str, Any], *claims: dict[str, Any], **changed: Any) -> dict[str, list[Any]]:
    pod = shown.pod("late", {"mine": "wanted"}, "main", node="")
    condition = {"type": "PodScheduled", "status": "False", "message": "0/1 nodes: cannot allocate all claims"}
    pod["status"] = {"phase": "Pending", "conditions": [condition]}
    users = [shown.pod(each["metadata"]["name"], {"x": each["metadata"]["name"]}, "main") for each in claims]
    return {
        "Pod": [pod, *users, shown.system()],
        "Node": [shown.node()],
        "ResourceSlice": [shown.slices(shown.device(0), shown.device(1))],
        "ResourceClaim": [asked, *claims],
        "DeviceClass": [{"metadata": {"name": name}, "spec": {}} for name in CLASSES],
        **changed,
    }


def collector(items: dict[str, list[Any]]) -> collect.Collector:
    return collect.Collector(Cluster(items), "kube-system")


def findings(items: dict[str, list[Any]]) -> list[Any]:
    with patch.object(collect, "text_at", lambda client, path, most: ""):
        return gpu_diagnosis.diagnose(collector(items).evidence(("team", "late"), ""))


def diagnosed(items: dict[str, list[Any]]) -> tuple[str, str, str]:
    """Rule, what happened, and all facts, of the finding on the pod."""
    (found,) = [each for each in findings(items) if each.subject == SUBJECT]
    return found.rule, found.what, "; ".join(f"{said.where}: {said.text}" for said in found.evidence)


def test_full_gpus_are_named_with_what_is_left() -> None:
    held = [shown.claim("a", "a", portion=(80, 60)), shown.claim("b", "b", portion=None, index=1)]
    rule, _, facts = diagnosed(cluster(wanted(cores="30", memory="8Gi"), *held))
    assert rule == "no_room"
    assert "request r asks for 1 of class share.kube-accel.io, 30 cores and 8 GiB each" in facts
    assert "node a: 0 of 2 GPUs free; GPU 0 has 20 cores and 20 GiB left" in facts


def test_mig_device_needs_a_gpu_that_is_given_so() -> None:
    rule, what, _ = diagnosed(cluster(wanted(CLASSES[2])))
    assert (rule, "no GPU is given as MIG devices" in what) == ("not_offered", True)
    cut = {"ResourceSlice": [shown.slices(shown.mig(0, 0), shown.device(1))]}
    assert not [each for each in findings(cluster(wanted(CLASSES[2]), **cut)) if each.rule == "not_offered"]


def test_whole_gpus_need_gpus_without_any_tenant() -> None:
    rule, _, facts = diagnosed(cluster(wanted(CLASSES[0], count=2), shown.claim("a", "a", portion=(1, 1))))
    assert (rule, "2 of class gpu.kube-accel.io" in facts) == ("no_room", True)


def fixed(index: int, number: int = 4) -> list[dict[str, Any]]:
    """A GPU's fixed shares."""
    whole = shown.device(index)
    memory = {"memory": {"value": f"{80 // number}Gi"}}
    del whole["allowMultipleAllocations"]
    names = [f"{whole['name']}-{place}of{number}" for place in range(1, number + 1)]
    return [{**whole, "name": name, "capacity": memory} for name in names]


def having(name: str, device: str) -> dict[str, Any]:
    """A claim with all of a device."""
    made = shown.claim(name, name, portion=None)
    made["status"]["allocation"]["devices"]["results"][0]["device"] = device
    return made


CUT = {"ResourceSlice": [shown.slices(*fixed(0), *fixed(1))]}
HELD = [having(f"a{place}", f"gpu-00-{place}of4") for place in range(1, 5)]


@pytest.mark.parametrize(
    ("kind", "devices", "what", "facts", "remedy"),
    [
        (FIXED, [shown.device(0)], "no GPU is cut into fixed shares", f"1 of class {WHOLE}", "gpu_plugins_dra_fixed"),
        (SHARE, fixed(0), "no GPU can be shared so", f"1 GPUs: 1 of class {FIXED}", f"Ask for class {FIXED}"),
        (
            WHOLE,
            [*fixed(0), shown.mig(1, 0)],
            "every GPU is cut",
            f"2 GPUs: 1 of class {FIXED}, 1 of class {MIG}",
            "=0",
        ),
        (MIG, fixed(0), "no GPU is given as MIG devices", f"1 of class {FIXED}", "gpu_plugins_mig_config"),
    ],
)
def test_class_of_which_no_gpu_is_is_told_of(
    kind: str, devices: list[dict[str, Any]], what: str, facts: str, remedy: str
) -> None:
    (found,) = [
        each
        for each in findings(cluster(wanted(kind), ResourceSlice=[shown.slices(*devices)]))
        if each.subject == SUBJECT
    ]
    assert (found.rule, what in found.what, remedy in found.remedy) == ("not_offered", True, True)
    assert facts in "; ".join(said.text for said in found.evidence)


def test_fixed_shares_that_are_taken_are_counted() -> None:
    rule, _, facts = diagnosed(cluster(wanted(FIXED, count=5), *HELD, **CUT))
    assert (rule, "node a: 4 of 8 fixed shares free" in facts) == ("no_room", True)
    assert "ResourceClaim wanted" not in diagnosed(cluster(wanted(FIXED, count=4), *HELD, **CUT))[2]


def test_label_that_claims_keep_from_being_obeyed_is_named() -> None:
    node = shown.node(**{"kube-accel.io/fixed-shares": "4"})
    held = [having("a", "gpu-00"), having("b", "gpu-01")]
    rule, what, facts = diagnosed(cluster(wanted(FIXED), *held, Node=[node]))
    assert (rule, "as the labels of nodes say" in what) == ("not_offered", True)
    assert "fixed-shares=4, and 2 of its 2 GPUs are not cut so; claims hold 2 of these" in facts


def test_label_that_is_no_number_is_named() -> None:
    node = shown.node(**{"kube-accel.io/fixed-shares": "four"})
    assert "is 'four', which is no number" in diagnosed(cluster(wanted(FIXED), Node=[node]))[2]


@pytest.mark.parametrize(("memory", "pends"), [("8Gi", False), ("75Gi", True)])
def test_alternatives_are_all_looked_at(memory: str, pends: bool) -> None:
    amounts = {"capacity": {"requests": {"cores": "30", "memory": memory}}}
    asked = wanted()
    first = [{"name": "whole", "deviceClassName": WHOLE}, {"name": "share", "deviceClassName": SHARE, **amounts}]
    asked["spec"]["devices"]["requests"] = [{"name": "r", "firstAvailable": first}]
    held = [shown.claim("a", "a"), shown.claim("b", "b", index=1)]
    facts = diagnosed(cluster(asked, *held))[2]
    told = [f"asks for 1 of class {WHOLE}" in facts, f"1 of class {SHARE}, 30 cores and {memory[:-2]} GiB" in facts]
    assert told == [pends, pends]


def test_share_larger_than_any_gpu_is_a_wrong_request() -> None:
    rule, what, facts = diagnosed(cluster(wanted(cores="10", memory="81Gi")))
    assert (rule, "larger than any GPU" in what, "80 GiB" in facts) == ("request", True, True)


@pytest.mark.parametrize("kind", CLASSES)
def test_missing_device_class_is_named(kind: str) -> None:
    rule, what, _ = diagnosed(cluster(wanted(kind), DeviceClass=[]))
    assert (rule, kind in what) == ("missing_object", True)


def test_driver_that_published_nothing_is_the_cause() -> None:
    rule, what, _ = diagnosed(cluster(wanted(), ResourceSlice=[]))
    assert (rule, "no driver has published any" in what) == ("not_offered", True)


def test_sick_gpus_are_the_cause_where_all_are() -> None:
    sick = [shown.slices(shown.device(0, sick=True))]
    assert diagnosed(cluster(wanted(), ResourceSlice=sick))[0] == "gpu_unhealthy"


def test_room_that_there_is_is_not_denied() -> None:
    rule, _, facts = diagnosed(cluster(wanted(cores="10", memory="1Gi")))
    assert (rule, "cannot allocate all claims" in facts) == ("no_room", True)
    assert "ResourceClaim wanted" not in facts


def test_whole_gpus_by_their_old_name_are_not_a_mismatch() -> None:
    items = cluster(wanted())
    pod = items["Pod"][0]
    pod["spec"] = {"containers": [{"name": "main", "image": "i", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]}
    assert "mode_mismatch" not in {each.rule for each in findings(items)}


def test_node_without_the_drivers_pod_is_told() -> None:
    items = cluster(wanted())
    items["Pod"].pop()
    (found,) = [each for each in findings(items) if each.rule == "plugin_down"]
    assert "no pod of it runs kube-accel dra" in found.evidence[0].text


def test_bundle_has_slices_claims_and_classes_of_the_driver() -> None:
    foreign = shown.claim("foreign")
    foreign["status"]["allocation"]["devices"]["results"][0]["driver"] = "net.example.com"
    foreign["spec"] = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "net.example.com"}}]}}
    secret = {"opaque": {"driver": "gpu.kube-accel.io", "parameters": {"password": "hunter2"}}}
    held = shown.claim("a", "a")
    held["status"]["allocation"]["devices"]["config"] = [secret]
    held["status"]["devices"] = [{"driver": CLASSES[0], "data": {"uuid": "GPU-0", "cores": 30, "memory": "8Gi"}}]
    items = cluster(wanted(), held, foreign)
    with (
        patch.object(collect, "text_at", lambda client, path, most: ""),
        patch.object(collect.Collector, "version", lambda collector: "v1.36.2"),
    ):
        bundle = support_collect.collect(collector(items), None, "a", "2.17")
    names = {name for name in bundle.files if name.startswith("claims/")}
    kinds = ("ResourceSlice", "ResourceClaim", "DeviceClass")
    assert [sum(kind in name for name in names) for kind in kinds] == [1, 2, 4]
    files = {name: json.loads(text) for name, text in bundle.files.items() if name.endswith(".json")}
    (node,) = files["inspection.json"]["nodes"]
    (tenant,) = (each for gpu in node["gpus"] for each in gpu["containers"])
    told = ("team", "a", 30, 8 << 30, "by ResourceClaim a")
    assert tuple(tenant[key] for key in ("namespace", "pod", "cores", "memory_bytes", "why")) == told
    (mine,) = (text for name, text in files.items() if "ResourceClaim" in name and text["metadata"]["name"] == "a")
    (result,) = mine["status"]["allocation"]["devices"]["results"]
    assert (result["device"], result["consumedCapacity"]["memory"]) == ("gpu-00", "8Gi")
    assert mine["status"]["devices"][0]["data"]["uuid"] == "GPU-0"
    assert "hunter2" not in json.dumps({name: str(text) for name, text in bundle.files.items()})


OBJECTS = {
    "slice": shown.slices(shown.device(0)),
    "claim": wanted(cores="10", memory="1Gi"),
    "class": {"metadata": {"name": "x"}},
}


def looked(objects: dict[str, Any]) -> list[Any]:
    changed = {"ResourceSlice": [objects["slice"]], "DeviceClass": [objects["class"]]}
    return findings(cluster(objects["claim"], **changed))


FIELDS = [path for path in fields_read(copy.deepcopy(OBJECTS), looked) if len(path) > 1]


@pytest.mark.parametrize(("path", "values"), cases(FIELDS))
def test_odd_object_leaves_a_diagnosis(path: Path, values: dict[str, Any]) -> None:
    for value in values.values():
        found = looked(with_value(copy.deepcopy(OBJECTS), path, value))
        assert [each.rule for each in found if each.subject == SUBJECT]
        assert all(said.text.isprintable() for each in found for said in each.evidence)
