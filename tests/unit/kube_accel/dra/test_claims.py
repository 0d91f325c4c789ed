# SPDX-License-Identifier: Apache-2.0
"""What a claim was given, and which claims are refused."""

from __future__ import annotations

from typing import Any

import pytest

from kube_accel.dra.claims import Allotted, ClaimError, allotted
from unit.kube_accel.dra.api import FakeApi

POOL = "node-1/kube-accel"


def claim(*devices: str, **result: Any) -> dict[str, Any]:
    api = FakeApi()
    api.claim("a", *devices, **result)
    return api.claims["a"]


def test_claim_gets_devices_of_this_driver_alone() -> None:
    document = claim("gpu-00", "gpu-03")
    results = document["status"]["allocation"]["devices"]["results"]
    results[1]["driver"] = "net.example.com"
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
        (claim("gpu-00", shareID="0f"), "has a share of gpu-00"),
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
