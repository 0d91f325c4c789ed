# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What containers ask of DRA drivers by ResourceClaims, beside their limits. Pure."""

from __future__ import annotations

from collections import Counter
from typing import Any, Dict, Iterable, Iterator, List, Mapping, Tuple

from ansible_collections.accel.kubernetes.plugins.module_utils.migration.peers import Object
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.modes import DRA_SHARE_CLASS

SHARE_OF = "share of "
"""Before the name of a device class of others, of which a claim names capacities."""

Asked = Mapping[Tuple[str, str], Mapping[str, Tuple[str, int]]]
"""By namespace and name of a claim, and name of its request: what is asked for, and how often."""


def asked_by(claims: Iterable[Object]) -> Asked:
    """Return what claims ask for. Of alternatives, the first counts."""
    found: Dict[Tuple[str, str], Dict[str, Tuple[str, int]]] = {}
    for claim in claims:
        requests = ((claim.get("spec") or {}).get("devices") or {}).get("requests") or ()
        head = claim["metadata"]
        found[head["namespace"], head["name"]] = {each["name"]: _wish(each) for each in requests}
    return found


def _wish(request: Object) -> Tuple[str, int]:
    # In v1beta1, a request is what "exactly" is later.
    one: Mapping[str, Any] = request.get("exactly") or next(iter(request.get("firstAvailable") or ()), request)
    name = str(one.get("deviceClassName") or "")
    is_part = bool((one.get("capacity") or {}).get("requests")) and name != DRA_SHARE_CLASS
    return (f"{SHARE_OF}{name}" if is_part else name), int(one.get("count") or 1)


def limits(pod: Object, asked: Asked) -> List[Tuple[str, Mapping[str, Any]]]:
    """Return what each container asks for, by its name: its limits, and the device classes of its claims."""
    spec = pod["spec"]
    names = dict(_claims(pod))
    found: List[Tuple[str, Mapping[str, Any]]] = []
    for container in (*(spec.get("initContainers") or ()), *spec["containers"]):
        resources = container.get("resources") or {}
        amounts: Counter[str] = Counter()
        for use in resources.get("claims") or ():
            wishes = asked.get((pod["metadata"]["namespace"], names.get(use["name"], "")), {})
            for request, (name, count) in wishes.items():
                amounts[name] += count if use.get("request") in (None, "", request) else 0
        found.append((container["name"], {**(resources.get("limits") or {}), **+amounts}))
    return found


def _claims(pod: Object) -> Iterator[Tuple[str, str]]:
    """Yield the names of a pod's claims: the pod's own, and the object's."""
    told = (pod.get("status") or {}).get("resourceClaimStatuses") or ()
    for each in (*(pod["spec"].get("resourceClaims") or ()), *told):
        if each.get("resourceClaimName"):
            yield each["name"], each["resourceClaimName"]
