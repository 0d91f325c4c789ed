# SPDX-License-Identifier: Apache-2.0
"""What a ResourceClaim was given of this driver's devices. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kube_accel.dra.slices import DRIVER, TAINT
from kube_accel.shared.api_json import ApiJsonError, shaped
from kube_accel.shared.printable import line

_RESULT: Final = {
    "request!": str,
    "driver!": str,
    "pool!": str,
    "device!": str,
    "shareID": str,
    "adminAccess": bool,
    "tolerations": [{"key": str, "operator": str, "effect": str}],
}
_CONFIG: Final = {"opaque": {"driver!": str}}
_SHAPE: Final = {
    "metadata!": {"uid!": str},
    "status": {"allocation": {"devices": {"results": [_RESULT], "config": [_CONFIG]}}},
}


class ClaimError(Exception):
    """A claim cannot be prepared; says why, and what to do, in one harmless line."""

    def __init__(self, message: str) -> None:
        super().__init__(line(message, 1000))


@dataclass(frozen=True, slots=True)
class Allotted:
    """One device of a claim."""

    request: str
    """Name in the claim, without the alternative that was chosen."""
    device: str
    admin: bool = False
    """It watches over a device that others use."""
    tolerant: bool = False
    """It may be a sick one."""


def allotted(claim: object, uid: str, pool: str) -> tuple[Allotted, ...]:
    """Return what the claim with this UID has of our devices in this pool. Raises ClaimError."""
    try:
        document = shaped(claim, _SHAPE)
    except ApiJsonError as error:
        raise ClaimError(f"the claim cannot be read: {error}") from error
    found = document["metadata"]["uid"]
    if found != uid:
        raise ClaimError(f"the claim was deleted and made again: it has UID {found}; delete the pod")
    devices = ((document.get("status") or {}).get("allocation") or {}).get("devices") or {}
    ours = [result for result in devices.get("results") or () if result["driver"] == DRIVER]
    if not ours:
        raise ClaimError(f"the claim has no device of {DRIVER}; wait until the scheduler allocates it")
    if any((each.get("opaque") or {}).get("driver") == DRIVER for each in devices.get("config") or ()):
        raise ClaimError(f"the claim or its class has a configuration for {DRIVER}, which takes none; remove it")
    return tuple(_result(each, pool) for each in ours)


def _result(result: Mapping[str, Any], pool: str) -> Allotted:
    if result["pool"] != pool:
        raise ClaimError(f"device {result['device']} is of pool {result['pool']}, not of {pool}")
    if result.get("shareID"):
        raise ClaimError(f"the claim has a share of {result['device']}, and this driver gives whole GPUs only")
    return Allotted(
        request=result["request"].partition("/")[0],
        device=result["device"],
        admin=bool(result.get("adminAccess")),
        tolerant=_tolerates(result.get("tolerations") or ()),
    )


def _tolerates(tolerations: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether one of them is for our taint, which has no value."""
    return any(
        each.get("key") in (None, "", TAINT)
        and each.get("effect") in (None, "", "NoSchedule")
        and (each.get("operator") == "Exists" or (each.get("key") == TAINT and not each.get("value")))
        for each in tolerations
    )
