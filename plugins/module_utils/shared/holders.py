# Apache License 2.0 (see https://www.apache.org/licenses/LICENSE-2.0)
# SPDX-License-Identifier: Apache-2.0
"""The pods that hold GPUs of a node, and what becomes of them when they are evicted. Pure."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Iterable, List, Mapping, Optional, Tuple

from .api_json import ODD, checked
from .asked import asked
from .modes import DRA_MODE, MODE_LABEL, mode_of
from .printable import line
from .registers import labels_of, mapping, metadata_of
from .waiting_pods import ENDED

_LONGEST_NAME = 317
"""Characters: a namespace has up to 63, a pod's name 253."""


@dataclass(frozen=True, order=True)
class Pod:
    """A pod that holds GPUs."""

    namespace: str
    name: str
    uid: str = ""
    returns: bool = False
    """It would come back to the node if it were evicted."""
    bare: bool = False
    """No controller recreates it."""

    def __str__(self) -> str:
        return line(f"{self.namespace}/{self.name}", _LONGEST_NAME)


def holders(items: Iterable[Mapping[str, Any]], by_claims: bool = False) -> List[Pod]:
    """Return the pods that ask for GPUs and have not ended, in the order of ``items``; one without a name is left out.

    A pod that cannot be read may ask for anything, and cannot be recreated. Where GPUs are given ``by_claims``, so may
    one with a claim, which does not say for what it is.
    """
    named = ((key_of(item), item) for item in items if not has_ended(item) and asks(item, by_claims))
    return [pod_of(key, item) for key, item in named if key is not None]


def holders_on(items: Iterable[Mapping[str, Any]], nodes: Iterable[Mapping[str, Any]]) -> List[Pod]:
    """Return the pods that hold GPUs of nodes of any mode: on those of mode dra, pods with a claim too."""
    by_claims = {metadata_of(node).get("name") for node in nodes if labels_of(node).get(MODE_LABEL) == DRA_MODE}
    return [pod for item in items for pod in holders([item], _node_of(item) in by_claims)]


def _node_of(item: object) -> object:
    found = mapping(mapping(item).get("spec")).get("nodeName")
    return found if isinstance(found, str) else None


def key_of(item: Mapping[str, Any]) -> Optional[Tuple[str, str]]:
    """Return namespace and name of a pod; None where it has none."""
    metadata = item.get("metadata") if isinstance(item, dict) else None
    namespace, name = (metadata.get(key) if isinstance(metadata, dict) else None for key in ("namespace", "name"))
    return (namespace, name) if isinstance(namespace, str) and isinstance(name, str) else None


def has_ended(item: Mapping[str, Any]) -> bool:
    """Return whether a pod holds nothing any more."""
    status = item.get("status")
    return isinstance(status, dict) and status.get("phase") in ENDED


def asks(item: Mapping[str, Any], by_claims: bool = False) -> bool:
    """Return whether a container of a pod asks for what one of our modes offers, or the pod has a claim."""
    try:
        spec, status = item.get("spec") or {}, item.get("status") or {}
        containers = (*(spec.get("containers") or ()), *(spec.get("initContainers") or ()))
        # The second is of a pod that asked for what a device class serves as an extended resource.
        has_claim = by_claims and bool(spec.get("resourceClaims") or status.get("extendedResourceClaimStatus"))
        return has_claim or any(asked(container, mode_of) for container in containers)
    except ODD:
        return True


def pod_of(key: Tuple[str, str], item: Optional[Mapping[str, Any]]) -> Pod:
    """Return the pod of this namespace and name; None for one that the API server does not know."""
    try:
        metadata = checked(item or {"metadata": {}})["metadata"]
        owners = [owner.get("kind") for owner in metadata.get("ownerReferences") or () if owner.get("controller")]
    except ODD:
        return Pod(*key, bare=True)
    static = "kubernetes.io/config.mirror" in (metadata.get("annotations") or {})
    return Pod(*key, metadata.get("uid", ""), "DaemonSet" in owners or static, not owners and not static)
