# SPDX-License-Identifier: Apache-2.0
"""From a pod object to what it asks for, or to the reason it cannot have it."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kube_accel.model import ContainerKind, ContainerRequest, GpuConstraints, Mode, PlacementPolicy, PodRequest
from kube_accel.sharing.request import RequestRefused, pod_request

GIB = 1 << 30
CORE, MEMORY = "tencent.com/vcuda-core", "tencent.com/vcuda-memory"
MPS_CORE, MPS_MEMORY = "nvidia.com/mps-core", "nvidia.com/mps-memory"
CGPU = "aliyun.com/gpu-mem"


def container(limits: dict[str, Any], name: str = "main", restart: str | None = None) -> dict[str, Any]:
    found: dict[str, Any] = {"name": name, "resources": {"limits": limits}}
    return found | ({"restartPolicy": restart} if restart else {})


def pod(
    *containers: dict[str, Any], init: tuple[dict[str, Any], ...] = (), hints: dict[str, Any] | None = None
) -> dict[str, Any]:
    return {
        "metadata": {"annotations": {f"kube-accel.io/{key}": value for key, value in (hints or {}).items()}},
        "spec": {"initContainers": list(init), "containers": list(containers)},
    }


def app(**amounts: int) -> ContainerRequest:
    return ContainerRequest("main", ContainerKind.APP, **amounts)


@pytest.mark.parametrize(
    ("limits", "mode", "request_"),
    [
        ({CORE: "30", MEMORY: "32"}, Mode.VGPU, app(cores=30, memory_bytes=8 * GIB)),
        ({CORE: "1", MEMORY: "1"}, Mode.VGPU, app(cores=1, memory_bytes=256 << 20)),
        ({CORE: "99", MEMORY: "1k"}, Mode.VGPU, app(cores=99, memory_bytes=250 * GIB)),
        ({CORE: "100"}, Mode.VGPU, app(whole=1)),
        ({CORE: "1k", MEMORY: "0"}, Mode.VGPU, app(whole=10)),
        ({CORE: "200", MEMORY: "8"}, Mode.VGPU, app(whole=2, memory_bytes=2 * GIB)),
        ({MPS_CORE: "50", MPS_MEMORY: "8"}, Mode.MPS, app(cores=50, memory_bytes=8 * GIB)),
        ({MPS_CORE: "100"}, Mode.MPS, app(whole=1)),
        ({CGPU: 6}, Mode.CGPU, app(memory_bytes=6 * GIB)),
        ({"nvidia.com/gpu": "4"}, Mode.PGPU, app(whole=4)),
    ],
)
def test_what_a_container_may_ask_for(limits: dict[str, object], mode: Mode, request_: ContainerRequest) -> None:
    found = pod_request(pod(container(limits | {"cpu": "2", "memory": "1.5Gi"})))
    assert found is not None
    assert (found.mode, found.containers) == (mode, (request_,))


@pytest.mark.parametrize(
    ("limits", "reason"),
    [
        ({CORE: "150", MEMORY: "8"}, r'container "main" asks for 150 tencent.com/vcuda-core; ask for 1 to 99'),
        ({CORE: "101"}, "asks for 101 .*multiple of 100"),
        ({CORE: "30"}, "asks for 30 tencent.com/vcuda-core and no tencent.com/vcuda-memory; a share .* needs"),
        ({CORE: "30", MEMORY: "0"}, "and no tencent.com/vcuda-memory"),
        ({MEMORY: "8"}, "asks for tencent.com/vcuda-memory without tencent.com/vcuda-core"),
        ({MPS_CORE: "200"}, "asks for 200 .*; MPS serves a container from one GPU. .* use nvidia.com/gpu"),
        ({MPS_CORE: "0", MPS_MEMORY: "8"}, "nvidia.com/mps-memory without nvidia.com/mps-core"),
        ({CORE: "30", MEMORY: "8", CGPU: "1"}, "aliyun.com/gpu-mem and tencent.com/vcuda-core and .*; use .* one mode"),
        ({CORE: "30", MPS_MEMORY: "8"}, "use the resources of one mode"),
        ({CORE: "100", "nvidia.com/gpu": "1"}, "use the resources of one mode"),
        ({CORE: "-30", MEMORY: "8"}, "tencent.com/vcuda-core: '-30' is not a whole number"),
        ({CGPU: "1.5"}, "aliyun.com/gpu-mem: '1.5' is not a whole number"),
        ({CGPU: {}}, "aliyun.com/gpu-mem: dict is not a quantity"),
    ],
)
def test_what_it_may_not_and_what_to_do_instead(limits: dict[str, object], reason: str) -> None:
    with pytest.raises(RequestRefused, match=reason):
        pod_request(pod(container(limits)))


SHARE = {MPS_CORE: "30", MPS_MEMORY: "8"}
SHM = {"volumeMounts": [{"name": "shm", "mountPath": "/dev/shm/"}]}


def test_a_volume_over_what_mps_needs_is_refused() -> None:
    with pytest.raises(RequestRefused, match='container "main" mounts a volume at /dev/shm, which hides the one'):
        pod_request(pod(container(SHARE) | SHM))
    assert pod_request(pod(container(SHARE), container({}, "plain") | SHM)) is not None
    assert pod_request(pod(container({CORE: "30", MEMORY: "8"}) | SHM)) is not None


def test_what_mps_serves_no_more_still_counts_where_it_runs() -> None:
    running = pod(container({MPS_CORE: "200"}) | SHM)
    running["spec"]["nodeName"] = "n"
    found = pod_request(running)
    assert found is not None
    assert found.containers == (app(whole=2),)


def test_two_containers_of_different_modes_are_refused() -> None:
    with pytest.raises(RequestRefused, match=r"aliyun\.com/gpu-mem and nvidia\.com/gpu, which no one node offers"):
        pod_request(pod(container({"nvidia.com/gpu": "1"}, "a"), container({CGPU: "1"}, "b")))


@pytest.mark.parametrize("limits", [{}, {"cpu": "1"}, {CORE: "0"}, {"nvidia.com/gpu": 0, CGPU: "0"}])
def test_a_pod_without_our_resources_is_none_of_ours(limits: dict[str, object]) -> None:
    assert pod_request(pod(container(limits), hints={"placement": "nonsense"})) is None


def test_containers_come_in_kubelets_order_with_their_kinds() -> None:
    share = {CORE: "10", MEMORY: "4"}
    found = pod_request(
        pod(
            container(share, "app-b"),
            container({}, "plain"),
            container(share, "app-a"),
            init=(
                container(share, "fetch"),
                container(share, "retry", "OnFailure"),
                container(share, "proxy", "Always"),
                container({}, "plain-init"),
            ),
        )
    )
    assert found is not None
    assert [(c.name, c.kind) for c in found.containers] == [
        ("fetch", ContainerKind.INIT),
        ("retry", ContainerKind.INIT),
        ("proxy", ContainerKind.SIDECAR),
        ("app-b", ContainerKind.APP),
        ("app-a", ContainerKind.APP),
    ]


def test_hints_in_annotations() -> None:
    found = pod_request(
        pod(
            container({CORE: "10", MEMORY: "4"}),
            hints={
                "placement": "spread",
                "use-gpu-model": "A100, h100",
                "avoid-gpu-model": "PCIe",
                "use-gpu-uuid": "GPU-AB",
                "avoid-gpu-uuid": "GPU-cd,GPU-ef",
                "min-compute-capability": "8.0",
                "min-cuda": "13",
            },
        )
    )
    constraints = GpuConstraints(
        models_in=frozenset({"a100", "h100"}),
        models_out=frozenset({"pcie"}),
        uuids_in=frozenset({"gpu-ab"}),
        uuids_out=frozenset({"gpu-cd", "gpu-ef"}),
        min_compute_capability=(8, 0),
        min_cuda=(13, 0),
    )
    assert found == PodRequest(
        Mode.VGPU, (app(cores=10, memory_bytes=GIB),), PlacementPolicy.SPREAD, constraints, 256 << 20
    )


def test_the_clusters_policy_holds_for_pods_that_say_nothing() -> None:
    asks = container({CGPU: "1"})
    spread = pod_request(pod(asks), policy=PlacementPolicy.SPREAD)
    packed = pod_request(pod(asks, hints={"placement": "binpack"}), policy=PlacementPolicy.SPREAD)
    assert spread is not None
    assert packed is not None
    assert (spread.policy, packed.policy) == (PlacementPolicy.SPREAD, PlacementPolicy.BINPACK)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("placement", "Spread"),
        ("placement", ""),
        ("placement", ["spread"]),
        ("use-gpu-model", ""),
        ("avoid-gpu-model", "a100,,h100"),
        ("use-gpu-uuid", ",".join(["GPU-1"] * 33)),
        ("avoid-gpu-uuid", "G" * 129),
        ("use-gpu-model", 7),
        ("min-compute-capability", "8.x"),
        ("min-compute-capability", "-8"),
        ("min-cuda", "12.4.1"),
        ("min-cuda", "9999"),
        ("min-cuda", 13),
    ],
)
def test_an_annotation_that_cannot_be_read_is_named(key: str, value: object) -> None:
    with pytest.raises(RequestRefused, match=f"annotation kube-accel.io/{key} of the pod: write "):
        pod_request(pod(container({CGPU: "1"}), hints={key: value}))


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: (
        st.lists(inner) | st.dictionaries(st.sampled_from(["spec", "containers", "resources", "limits", CORE]), inner)
    ),
)


@given(st.dictionaries(st.sampled_from(["metadata", "spec"]), json_values))
def test_an_object_that_is_no_pod_is_refused_at_worst(found: dict[str, Any]) -> None:
    try:
        pod_request(found)
    except RequestRefused:
        return


@given(
    st.fixed_dictionaries(
        {
            "name": json_values,
            "restartPolicy": json_values,
            "resources": st.dictionaries(
                st.just("limits"), st.dictionaries(st.sampled_from([CORE, MEMORY, CGPU]), json_values)
            ),
        }
    )
)
def test_a_container_that_is_none_is_refused_at_worst(found: dict[str, Any]) -> None:
    try:
        pod_request({"spec": {"containers": [found]}})
    except RequestRefused:
        return
