# SPDX-License-Identifier: Apache-2.0
"""What a ResourceClaim was given of this driver's devices. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

from kube_accel.dra.portions import Portion
from kube_accel.dra.slices import DRIVER, TAINT
from kube_accel.shared.api_json import ANY, ApiJsonError, fit, named, shaped
from kube_accel.shared.claim_devices import MIG, cut
from kube_accel.shared.modes import CORES, DRA_SHARE_CLASS
from kube_accel.shared.printable import line
from kube_accel.shared.quantity import parse_quantity

_RESULT: Final = {
    "request!": str,
    "pool!": str,
    "device!": str,
    "shareID": str,
    "consumedCapacity": {ANY: parse_quantity},
    "adminAccess": bool,
    "tolerations": [{"key": str, "operator": str, "effect": str}],
}
_CONFIG: Final = {"opaque": {"driver!": str}}
_ASKED: Final = {"deviceClassName": str, "capacity": {"requests": {ANY: str}}}
_REQUEST: Final = {"name!": str, "exactly": _ASKED, "firstAvailable": [{"name!": str, **_ASKED}]}
_SHAPE: Final = {
    "metadata!": {"uid!": str},
    "spec": {"devices": {"requests": [_REQUEST]}},
    "status": {"allocation": {"devices": {"results": [{"driver!": str}], "config": [_CONFIG]}}},
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
    share_id: str = ""
    """What tells it from other allocations of the same device; empty where there can be none."""
    portion: Portion | None = None
    """None for all of the device, which may be a fixed share."""
    admin: bool = False
    """It watches over a device that others use."""
    tolerant: bool = False
    """It may be a sick one."""


def allotted(claim: object, uid: str, pool: str) -> tuple[Allotted, ...]:
    """Return what the claim with this UID has of our devices in this pool. Raises ClaimError."""
    try:
        document = shaped(claim, _SHAPE)
        devices = ((document.get("status") or {}).get("allocation") or {}).get("devices") or {}
        # What other drivers give is theirs to understand.
        ours = [result for result in devices.get("results") or () if result["driver"] == DRIVER]
        fit(ours, [_RESULT], named(document), ("status", "allocation", "devices", "results"))
    except ApiJsonError as error:
        raise ClaimError(f"the claim cannot be read: {error}") from error
    found = document["metadata"]["uid"]
    if found != uid:
        raise ClaimError(f"the claim was deleted and made again: it has UID {found}; delete the pod")
    if not ours:
        raise ClaimError(f"the claim has no device of {DRIVER}; wait until the scheduler allocates it")
    if any((each.get("opaque") or {}).get("driver") == DRIVER for each in devices.get("config") or ()):
        raise ClaimError(f"the claim or its class has a configuration for {DRIVER}, which takes none; remove it")
    asked = dict(_asked(document))
    return tuple(_result(each, asked.get(each["request"], {}), pool) for each in ours)


def allocated(claim: Mapping[str, Any], pool: str) -> bool:
    """Return whether a claim has devices of ours in this pool."""
    try:
        found = claim["status"]["allocation"]["devices"]["results"]
        return any((each["driver"], each["pool"]) == (DRIVER, pool) for each in found)
    except (KeyError, TypeError):
        return False


def _asked(claim: Mapping[str, Any]) -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Yield what a claim asks for, by the names that results have for it."""
    for request in ((claim.get("spec") or {}).get("devices") or {}).get("requests") or ():
        yield request["name"], request.get("exactly") or {}
        for alternative in request.get("firstAvailable") or ():
            yield f"{request['name']}/{alternative['name']}", alternative


def _result(result: Mapping[str, Any], asked: Mapping[str, Any], pool: str) -> Allotted:
    if result["pool"] != pool:
        raise ClaimError(f"device {result['device']} is of pool {result['pool']}, not of {pool}")
    admin = bool(result.get("adminAccess"))
    return Allotted(
        request=result["request"].partition("/")[0],
        device=result["device"],
        share_id=result.get("shareID") or "",
        portion=None if admin or MIG in result["device"] else _portion(result, asked),
        admin=admin,
        tolerant=_tolerates(result.get("tolerations") or ()),
    )


def _portion(result: Mapping[str, Any], asked: Mapping[str, Any]) -> Portion | None:
    """Return the share that a claim was given; None for all of the device, which it then asked for.

    Raises ClaimError.
    """
    of_shares, request = asked.get("deviceClassName") == DRA_SHARE_CLASS, result["request"]
    sized = bool((asked.get("capacity") or {}).get("requests"))
    if not result.get("shareID"):
        if (sized or of_shares) and not cut(result["device"])[1]:
            raise ClaimError(
                f"request {request} asks for a share, and the cluster gave it all of {result['device']}: its feature"
                f" gate DRAConsumableCapacity is off. Enable the gate, or ask class {DRIVER} for a whole GPU"
            )
        return None
    consumed = result.get("consumedCapacity") or {}
    if "cores" not in consumed or "memory" not in consumed:
        raise ClaimError(
            f"the cluster does not say how much of {result['device']} request {request} has; delete the claim"
        )
    portion = Portion(parse_quantity(consumed["cores"]), parse_quantity(consumed["memory"]))
    if sized or portion.cores < CORES:
        return portion
    if of_shares:
        raise ClaimError(
            f"request {request} asks class {DRA_SHARE_CLASS} for no cores and no memory, which is a whole GPU. Name"
            f" both in capacity.requests, or ask class {DRIVER} for whole GPUs"
        )
    return None


def _tolerates(tolerations: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether one of them is for our taint, which has no value."""
    return any(
        each.get("key") in (None, "", TAINT)
        and each.get("effect") in (None, "", "NoSchedule")
        and (each.get("operator") == "Exists" or (each.get("key") == TAINT and not each.get("value")))
        for each in tolerations
    )
