# SPDX-License-Identifier: Apache-2.0
"""What a claim was given, and which claims are refused."""

from __future__ import annotations

from typing import Any

import pytest

from kube_accel.dra.claims import Allotted, ClaimError, allotted
from kube_accel.dra.portions import Portion
from unit.kube_accel.dra.api import FakeApi

POOL = "node-1/kube-accel"


def claim(*devices: str, **result: Any) -> dict[str, Any]:
    api = FakeApi()
    api.claim("a", *devices, **result)
    return api.claims["a"]


def test_claim_gets_devices_of_this_driver_alone() -> None:
    document = claim("gpu-00", "gpu-03")
    results = document["status"]["allocation"]["devices"]["results"]
    results[1] |= {"driver": "cpu.example.com", "consumedCapacity": {"cores": "500m"}}
    assert allotted(document, "uid-a", POOL) == (Allotted("gpus", "gpu-00"),)


def test_request_is_named_without_its_alternative() -> None:
    assert allotted(claim("gpu-00", request="gpus/big"), "uid-a", POOL)[0].request == "gpus"


@pytest.mark.parametrize(
    ("toleration", "tolerant"),
    [
        ({"operator": "Exists"}, True),
        ({"key": "gpu.kube-accel.io/unhealthy", "operator": "Exists", "effect": "NoSchedule"}, True),
        ({"key": "gpu.kube-accel.io/unhealthy", "operator": "Equal"}, True),
        ({"key": "gpu.kube-accel.io/unhealthy", "operator": "Equal", "value": "x"}, False),
        ({"key": "example.com/other", "operator": "Exists"}, False),
        ({"operator": "Exists", "effect": "NoExecute"}, False),
    ],
)
def test_toleration_of_our_taint_is_seen(toleration: dict[str, str], tolerant: bool) -> None:
    assert allotted(claim("gpu-00", tolerations=[toleration]), "uid-a", POOL)[0].tolerant is tolerant


@pytest.mark.parametrize(
    ("document", "reason"),
    [
        (claim(), "has no device of gpu.kube-accel.io"),
        (claim("gpu-00", pool="node-2/kube-accel"), "is of pool node-2/kube-accel, not of node-1/kube-accel"),
        (claim("gpu-00", shareID="0f"), "does not say how much of gpu-00 request gpus has"),
        (claim("gpu-00", shareID="0f", consumedCapacity={"cores": "30"}), "does not say how much"),
        (claim("gpu-00", shareID="0f", consumedCapacity={"cores": "a"}), "consumedCapacity.cores cannot be used"),
        (claim("gpu-00", device=7), "device is no text"),
        ({"metadata": {"name": "a", "uid": "other"}}, "made again: it has UID other"),
        ({"metadata": {"name": "a"}}, "metadata.uid is missing"),
        ([], "without metadata"),
    ],
)
def test_claim_that_cannot_be_prepared_says_why(document: object, reason: str) -> None:
    with pytest.raises(ClaimError, match=reason):
        allotted(document, "uid-a", POOL)


def test_configuration_for_the_driver_is_refused() -> None:
    document = claim("gpu-00")
    document["status"]["allocation"]["devices"]["config"] = [{"opaque": {"driver": "gpu.kube-accel.io"}}]
    with pytest.raises(ClaimError, match="takes none; remove it"):
        allotted(document, "uid-a", POOL)


def asking(of: str, requests: dict[str, str] | None, alternative: str = "", **result: Any) -> dict[str, Any]:
    """A claim that asks a class for so much, and what it was given of gpu-00."""
    document = claim("gpu-00", request=f"gpus/{alternative}" if alternative else "gpus", **result)
    asked = {"deviceClassName": of} | ({"capacity": {"requests": requests}} if requests else {})
    request = {"firstAvailable": [{"name": alternative, **asked}]} if alternative else {"exactly": asked}
    document["spec"] = {"devices": {"requests": [{"name": "gpus", **request}]}}
    return document


SIZES = {"cores": "30", "memory": "8Gi"}
ALL = {"cores": "100", "memory": "80Gi"}
WHOLE, SHARE = "gpu.kube-accel.io", "share.kube-accel.io"


@pytest.mark.parametrize("alternative", ["", "small"])
@pytest.mark.parametrize(
    ("of", "requests", "result", "portion"),
    [
        (SHARE, SIZES, {"shareID": "1", "consumedCapacity": SIZES}, Portion(30, 8 << 30)),
        (SHARE, ALL, {"shareID": "1", "consumedCapacity": ALL}, Portion(100, 80 << 30)),
        (SHARE, SIZES, {"shareID": "1", "consumedCapacity": {**ALL, "memory": "8Gi"}}, Portion(100, 8 << 30)),
        (WHOLE, None, {"shareID": "1", "consumedCapacity": {**ALL, "gpu.nvidia.com/memory": "0"}}, None),
        (WHOLE, None, {}, None),
        ("other", {"cores": "30"}, {"shareID": "1", "consumedCapacity": {**ALL, "cores": "30"}}, Portion(30, 80 << 30)),
        (SHARE, SIZES, {"shareID": "1", "adminAccess": True}, None),
    ],
)
def test_share_is_what_was_consumed(
    alternative: str, of: str, requests: Any, result: dict[str, Any], portion: Portion | None
) -> None:
    (found,) = allotted(asking(of, requests, alternative, **result), "uid-a", POOL)
    assert (found.request, found.portion, found.share_id) == ("gpus", portion, result.get("shareID", ""))


@pytest.mark.parametrize(
    ("of", "requests", "result", "reason"),
    [
        (SHARE, SIZES, {}, "the cluster gave it all of gpu-00"),
        (WHOLE, SIZES, {}, "the cluster gave it all of gpu-00"),
        (SHARE, None, {}, "feature gate DRAConsumableCapacity is off"),
        (SHARE, None, {"shareID": "1", "consumedCapacity": ALL}, "no cores and no memory, which is a whole GPU"),
    ],
)
def test_share_that_would_be_a_whole_gpu_is_refused(
    of: str, requests: Any, result: dict[str, Any], reason: str
) -> None:
    with pytest.raises(ClaimError, match=reason):
        allotted(asking(of, requests, **result), "uid-a", POOL)
