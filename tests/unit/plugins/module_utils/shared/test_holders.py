# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
from __future__ import annotations

from typing import Any

import pytest
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.holders import holders, holders_on


def pod(
    name: str, *containers: dict[str, str] | None, phase: str = "Running", owner: str = "ReplicaSet"
) -> dict[str, Any]:
    """A pod whose containers have these limits; None is a container without any. ``owner`` is a kind or empty."""
    owners = [{"kind": owner, "name": name, "controller": True}] if owner else []
    return {
        "metadata": {"name": name, "namespace": "team", "ownerReferences": owners},
        "spec": {"containers": [{} if limits is None else {"resources": {"limits": limits}} for limits in containers]},
        "status": {"phase": phase},
    }


@pytest.mark.parametrize(
    ("pods", "held"),
    [
        ([], []),
        ([pod("a", {"nvidia.com/gpu": "1"}), pod("b", {"memory": "1Gi"})], ["team/a"]),
        (
            [
                pod("done", {"nvidia.com/gpu": "1"}, phase="Succeeded"),
                pod("failed", {"nvidia.com/gpu": "1"}, phase="Failed"),
            ],
            [],
        ),
        ([pod("starting", {"nvidia.com/mig-1g.10gb": "1"}, phase="Pending")], ["team/starting"]),
        (
            [pod("share", {"tencent.com/vcuda-core": "30"}), pod("mem", {"aliyun.com/gpu-mem": "3"})],
            ["team/share", "team/mem"],
        ),
        ([pod("renamed", {"nvidia.com/t4-shared": "1"}), pod("other", {"x-nvidia.com/gpu": "1"})], ["team/renamed"]),
    ],
)
def test_pods_that_hold_gpus_are_named(pods: list[dict[str, Any]], held: list[str]) -> None:
    assert list(map(str, holders(pods))) == held


def test_a_side_car_holds_gpus_too() -> None:
    side = pod("side", None)
    side["spec"]["initContainers"] = [{"restartPolicy": "Always", "resources": {"limits": {"nvidia.com/gpu": "1"}}}]
    assert list(map(str, holders([side]))) == ["team/side"]


@pytest.mark.parametrize(
    ("owner", "mirror", "returns", "bare"),
    [
        ("ReplicaSet", False, False, False),
        ("DaemonSet", False, True, False),
        ("", False, False, True),
        ("", True, True, False),
    ],
)
def test_what_evicting_does_depends_on_the_owner(owner: str, mirror: bool, returns: bool, bare: bool) -> None:
    one = pod("one", {"nvidia.com/gpu": "1"}, owner=owner)
    one["metadata"]["annotations"] = {"kubernetes.io/config.mirror": "x"} if mirror else {}
    (found,) = holders([one])
    assert (found.returns, found.bare) == (returns, bare)


@pytest.mark.parametrize("containers", ["x", [1], [{"resources": 1}]])
def test_a_pod_that_cannot_be_read_may_hold_gpus(containers: Any) -> None:
    odd = pod("odd", None)
    odd["spec"]["containers"] = containers
    assert list(map(str, holders([odd, {"metadata": {}}]))) == ["team/odd"]


@pytest.mark.parametrize(
    "claims",
    [
        {"spec": {"resourceClaims": [{"name": "gpu", "resourceClaimName": "train"}]}},
        # A device class serves what it asked for as an extended resource.
        {"status": {"phase": "Running", "extendedResourceClaimStatus": {"resourceClaimName": "train"}}},
    ],
)
def test_pod_with_a_claim_holds_gpus_of_a_node_of_mode_dra(claims: dict[str, Any]) -> None:
    nodes = [{"metadata": {"name": name, "labels": {"nvidia-device-enable": name}}} for name in ("dra", "vgpu")]
    pods = []
    for node in ("dra", "vgpu", "unknown", ["odd"], None):
        item = pod(f"on-{node}", None)
        item = item | {key: item[key] | value for key, value in claims.items()}
        pods.append(item | {"spec": item["spec"] | {"nodeName": node}})
    assert list(map(str, holders_on(pods, nodes))) == ["team/on-dra"]
    assert [list(map(str, holders(pods, by_claims))) for by_claims in (False, True)] == [
        [],
        [f"team/{item['metadata']['name']}" for item in pods],
    ]
