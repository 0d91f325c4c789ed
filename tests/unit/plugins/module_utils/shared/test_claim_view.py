# SPDX-License-Identifier: Apache-2.0
"""What is told of GPUs that are given by claims."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from kube_accel.shared.claim_view import ClaimedGpus, ClaimObjects, asks_for_gpus
from kube_accel.shared.gpu_view import ClusterView, document, view
from kube_accel.shared.gpu_view_text import comma_separated, details, summary
from odd_values import Path as FieldPath
from odd_values import cases, fields_read, with_value

GIB = 1 << 30
DRIVER = "gpu.kube-accel.io"
POOL = "a/kube-accel"


def node(name: str = "a", **labels: str) -> dict[str, Any]:
    metadata = {"name": name, "labels": {"nvidia-device-enable": "dra", **labels}}
    return {"metadata": metadata, "status": {"conditions": [{"type": "Ready", "status": "True"}]}}


def device(index: int, sick: bool = False) -> dict[str, Any]:
    taints = [{"key": f"{DRIVER}/unhealthy", "effect": "NoSchedule"}] if sick else []
    attributes = {"uuid": {"string": f"GPU-{index}"}, "productName": {"string": "NVIDIA H100"}}
    return {
        "name": f"gpu-{index:02}",
        "attributes": attributes,
        "capacity": {"memory": {"value": "80Gi"}},
        "taints": taints,
        "allowMultipleAllocations": True,
    }


def slices(*devices: dict[str, Any], generation: int = 1, of: int = 1) -> dict[str, Any]:
    pool = {"name": POOL, "generation": generation, "resourceSliceCount": of}
    spec = {"driver": DRIVER, "nodeName": "a", "pool": pool, "devices": list(devices)}
    return {"metadata": {"name": f"slice-{generation}"}, "spec": spec}


def claim(name: str, *users: str, portion: tuple[int, int] | None = (30, 8), index: int = 0) -> dict[str, Any]:
    """Of a GPU, in cores and GiB; whole without a portion."""
    result: dict[str, Any] = {"request": "r", "driver": DRIVER, "pool": POOL, "device": f"gpu-{index:02}"}
    if portion is not None:
        result |= {"shareID": "s", "consumedCapacity": {"cores": str(portion[0]), "memory": f"{portion[1]}Gi"}}
    kind = "gpu.kube-accel.io" if portion is None else "share.kube-accel.io"
    return {
        "metadata": {"namespace": "team", "name": name},
        "spec": {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": kind, "count": 1}}]}},
        "status": {
            "allocation": {"devices": {"results": [result]}},
            "reservedFor": [{"resource": "pods", "name": user, "uid": "u"} for user in users],
        },
    }


def pod(name: str, claims: dict[str, str], *containers: str, node: str = "a") -> dict[str, Any]:
    """``claims`` are claims by what the pod calls them; each container has all of them."""
    made = [
        {"name": each, "image": "i", "resources": {"claims": [{"name": own} for own in claims]}} for each in containers
    ]
    spec = {
        "nodeName": node,
        "containers": made,
        "resourceClaims": [{"name": own, "resourceClaimName": found} for own, found in claims.items()],
    }
    return {"metadata": {"namespace": "team", "name": name}, "spec": spec, "status": {"phase": "Running"}}


def seen(
    claims: list[dict[str, Any]], *pods: dict[str, Any], slice_: dict[str, Any] | None = None, **used: int
) -> ClusterView:
    objects = ClaimObjects([slice_ or slices(device(0), device(1, sick=True))], claims)
    places = {("GPU-0", "team", name, "main"): amount for name, amount in used.items()}
    return view([node()], [system(), *pods], places, objects=objects)


def system() -> dict[str, Any]:
    """The driver's pod."""
    container = {"name": "kube-accel", "image": "i", "command": ["kube-accel", "dra", "--listen=:9445"]}
    status = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}]}
    metadata = {"namespace": "kube-system", "name": "kube-accel-dra-x"}
    return {"metadata": metadata, "spec": {"nodeName": "a", "containers": [container]}, "status": status}


def mig(index: int, slot: int, gib: int = 40) -> dict[str, Any]:
    made = device(index)
    texts = {"uuid": f"MIG-{slot}", "parentUUID": f"GPU-{index}", "profile": f"3g.{gib}gb"}
    attributes = made["attributes"] | {name: {"string": text} for name, text in texts.items()}
    memory = {"memory": {"value": f"{gib}Gi"}}
    return {**made, "name": f"gpu-{index:02}-mig-3g{gib}gb-{slot}", "attributes": attributes, "capacity": memory}


def test_mig_devices_are_told_of_with_their_gpu() -> None:
    had = claim("cut", "cut", portion=None)
    had["status"]["allocation"]["devices"]["results"][0]["device"] = "gpu-00-mig-3g40gb-1"
    made = slices(mig(0, 0), mig(0, 1), device(1))
    found = seen([had], pod("cut", {"x": "cut"}, "main"), slice_=made)
    assert [(gpu.uuid, gpu.index, gpu.memory_bytes // GIB, gpu.mig) for gpu in found.nodes[0].gpus] == [
        ("GPU-0", 0, 80, ("3g.40gb",)),
        ("GPU-1", 1, 80, ()),
    ]
    assert tenants(found) == [("cut", "main", 50, 40)]
    (tenant,) = found.nodes[0].gpus[0].tenants
    assert tenant.why == "by ResourceClaim cut, as MIG 3g.40gb"


def to_be_made(index: int, start: int, gib: int = 40) -> dict[str, Any]:
    """A MIG device that is made when a claim has it."""
    made = mig(index, 0, gib)
    del made["attributes"]["uuid"]
    return {**made, "name": f"gpu-{index:02}-mig-3g{gib}gb-at-{start}"}


@pytest.mark.parametrize("whole", [True, False])
def test_mig_device_counts_while_it_is_made(whole: bool) -> None:
    had = claim("cut", "cut", portion=None)
    had["status"]["allocation"]["devices"]["results"][0]["device"] = "gpu-00-mig-3g40gb-at-4"
    made = slices(*([device(0)] if whole else []), to_be_made(0, 0), to_be_made(0, 4), to_be_made(0, 0, 80))
    counters = copy.deepcopy(made)
    del counters["spec"]["devices"]
    counters["spec"]["sharedCounters"] = [{"name": "gpu-00", "counters": {"slices": {"value": "7"}}}]
    for each in (made, counters):
        each["spec"]["pool"]["resourceSliceCount"] = 2
    for claims, profiles, held in (([], (), []), ([had], ("3g.40gb",), [("cut", "main", 50, 40)])):
        found = view(
            [node()], [system(), pod("cut", {"x": "cut"}, "main")], objects=ClaimObjects([counters, made], claims)
        )
        (gpu,) = found.nodes[0].gpus
        assert (gpu.memory_bytes // GIB, gpu.mig, tenants(found)) == (80, profiles, held)


def tenants(found: ClusterView, gpu: int = 0) -> list[tuple[str, str, int, int]]:
    return [(t.pod, t.container, t.cores, t.memory_bytes // GIB) for t in found.nodes[0].gpus[gpu].tenants]


def test_gpus_are_those_of_the_slices_with_their_health() -> None:
    found = seen([])
    assert found.problems == ()
    assert [(gpu.index, gpu.uuid, gpu.memory_bytes // GIB, gpu.health) for gpu in found.nodes[0].gpus] == [
        (0, "GPU-0", 80, "healthy"),
        (1, "GPU-1", 80, "unhealthy"),
    ]


def test_shares_and_whole_gpus_are_told_with_their_containers() -> None:
    claims = [claim("one", "a"), claim("two", "b", portion=(20, 4)), claim("three", "c", portion=None, index=1)]
    pods = [pod(name, {"mine": each}, "main") for name, each in (("a", "one"), ("b", "two"), ("c", "three"))]
    found = seen(claims, *pods, a=3 * GIB)
    assert tenants(found) == [("a", "main", 30, 8), ("b", "main", 20, 4)]
    assert tenants(found, 1) == [("c", "main", 100, 80)]
    assert found.nodes[0].gpus[0].tenants[0].used_bytes == 3 * GIB
    assert document(found)["totals"]["allocated_bytes"] == 92 * GIB
    assert "12/80" in summary(found)
    assert "8 (30%)" in details(found)
    assert "by ResourceClaim one" in details(found)
    assert "a,,dra,0,GPU-0,NVIDIA H100,healthy,85899345920,team,a,main,30,8589934592,3221225472" in comma_separated(
        found
    )


def test_gpu_of_fixed_shares_is_told_once_with_their_containers() -> None:
    parts = [
        {**device(0), "name": f"gpu-00-{place}of4", "capacity": {"memory": {"value": "20Gi"}}} for place in range(1, 5)
    ]
    claims = [claim("one", "a", portion=None), claim("two", "b", portion=None)]
    for place, each in enumerate(claims, 2):
        each["status"]["allocation"]["devices"]["results"][0]["device"] = f"gpu-00-{place}of4"
    pods = [pod(name, {"mine": each}, "main") for name, each in (("a", "one"), ("b", "two"))]
    found = seen(claims, *pods, slice_=slices(*parts, device(1)))
    assert [(gpu.index, gpu.memory_bytes // GIB) for gpu in found.nodes[0].gpus] == [(0, 80), (1, 80)]
    assert tenants(found) == [("a", "main", 25, 20), ("b", "main", 25, 20)]


@pytest.mark.parametrize(
    ("users", "pods", "told"),
    [
        (["a"], [pod("a", {"x": "one"}, "main", "side")], ("a", "")),
        (["a", "b"], [pod("a", {"x": "one"}, "main"), pod("b", {"x": "one"}, "main")], ("resourceclaim/one", "")),
        (["a"], [], ("a", "")),
        ([], [], ("resourceclaim/one", "")),
    ],
)
def test_claim_of_several_is_told_as_metrics_do(users: list[str], pods: list[Any], told: tuple[str, str]) -> None:
    assert tenants(seen([claim("one", *users)], *pods)) == [(*told, 30, 8)]


def test_claims_of_templates_and_of_extended_resources_are_found() -> None:
    templated = pod("a", {"x": "one"}, "main")
    templated["spec"]["resourceClaims"] = [{"name": "x", "resourceClaimTemplateName": "t"}]
    templated["status"]["resourceClaimStatuses"] = [{"name": "x", "resourceClaimName": "one"}]
    extended = pod("b", {}, "main")
    mapping = {"containerName": "main", "resourceName": "nvidia.com/gpu", "requestName": "r"}
    status = {"resourceClaimName": "two", "requestMappings": [mapping]}
    extended["status"]["extendedResourceClaimStatus"] = status
    found = seen([claim("one", "a"), claim("two", "b", portion=None, index=1)], templated, extended)
    assert (tenants(found), tenants(found, 1)) == ([("a", "main", 30, 8)], [("b", "main", 100, 80)])


def test_watchers_other_drivers_and_new_claims_have_nothing() -> None:
    watcher, other, unallocated = claim("one", "a"), claim("two", "b"), claim("three")
    watcher["status"]["allocation"]["devices"]["results"][0]["adminAccess"] = True
    other["status"]["allocation"]["devices"]["results"][0]["driver"] = "gpu.nvidia.com"
    unallocated["status"] = {}
    assert tenants(seen([watcher, other, unallocated])) == []


def test_amounts_of_other_drivers_cost_a_claim_nothing() -> None:
    mixed = claim("one", "a")
    results, requests = mixed["status"]["allocation"]["devices"]["results"], mixed["spec"]["devices"]["requests"]
    results.append({"driver": "cpu.example.com", "consumedCapacity": {"cores": "500m"}})
    asked = {"deviceClassName": "cpu.example.com", "capacity": {"requests": {"cores": "500m"}}}
    requests.append({"name": "cpu", "exactly": asked})
    found = seen([mixed], pod("a", {"x": "one"}, "main"))
    assert (tenants(found), found.problems) == ([("a", "main", 30, 8)], ())
    assert asks_for_gpus(mixed)


def test_part_of_a_percent_is_rounded_up_as_kube_scheduler_does() -> None:
    wanted = claim("one")
    wanted["spec"]["devices"]["requests"][0]["exactly"]["capacity"] = {"requests": {"cores": "33500m"}}
    (request,) = ClaimedGpus(ClaimObjects([], [wanted]), lambda name: None, {}, []).requests(pod("a", {"x": "one"}))
    assert (request.cores, request.memory_bytes) == (34, None)


def test_only_the_latest_generation_counts_and_must_be_complete() -> None:
    objects = ClaimObjects([slices(device(0)), slices(device(1), generation=2, of=2)], [])
    found = view([node()], [system()], objects=objects)
    assert [gpu.index for gpu in found.nodes[0].gpus] == [1]
    assert "publishing its GPUs" in found.problems[0]


def test_node_without_slices_or_claims_unread_says_so() -> None:
    assert "published no GPUs" in view([node()], [system()], objects=ClaimObjects([], [])).problems[0]
    assert "claims, and these were not read" in view([node()], [system()]).problems[0]


def test_pod_that_waits_for_a_claim_is_told_with_what_it_wants() -> None:
    waiting = pod("a", {"x": "one", "y": "two"}, "main", node="")
    condition = {"type": "PodScheduled", "status": "False", "message": "0/1 nodes: cannot allocate all claims"}
    waiting["status"] = {"phase": "Pending", "conditions": [condition]}
    claims = [claim("one"), claim("two")]
    for each in claims:
        each["status"] = {}
    (found,) = seen(claims, waiting).waiting
    assert (found.pod, dict(found.wants)) == ("a", {"share.kube-accel.io": "2"})
    assert "cannot allocate all claims" in found.reason
    other = pod("b", {"x": "elsewhere"}, "main", node="")
    assert seen(claims, other).waiting == ()


OBJECTS = {"slice": slices(device(0)), "claim": claim("one", "a"), "pod": pod("a", {"x": "one"}, "main")}


def looked(objects: dict[str, Any]) -> ClusterView:
    """Beside a claim and a pod that are well."""
    claims = [objects["claim"], claim("well", "b", portion=(10, 1))]
    pods = [system(), objects["pod"], pod("b", {"x": "well"}, "main")]
    return view([node()], pods, objects=ClaimObjects([objects["slice"], slices(device(0))], claims))


FIELDS = [path for path in fields_read(copy.deepcopy(OBJECTS), looked) if len(path) > 1]


@pytest.mark.parametrize(("path", "values"), cases(FIELDS))
def test_odd_object_costs_itself_alone(path: FieldPath, values: dict[str, Any]) -> None:
    for value in values.values():
        found = looked(with_value(copy.deepcopy(OBJECTS), path, value))
        assert all(map(str.isprintable, found.problems))
        for text in (summary(found), details(found), comma_separated(found)):
            assert "\x1b" not in text
        if path[0] != "slice":
            assert ("b", "main", 10, 1) in tenants(found)


def test_objects_of_nobody_are_nobodys() -> None:
    made = ClaimedGpus(ClaimObjects([], []), lambda name: None, {}, [])
    assert made.of_node("a")[0] == ()
