# Apache License 2.0 (see https://www.apache.org/licenses/LICENSE-2.0)
# SPDX-License-Identifier: Apache-2.0
"""What a pod's containers ask for: one rule for the extender, the plugins and people. Pure.

kube-scheduler calls an extender for each pod of which a container or an init container names a managed resource, in
its requests or its limits, whatever the amount (``IsInterested`` of its ``extender.go``); kubelet allocates what is
more than none. Overhead, ephemeral containers and a pod's own resources count for neither.
"""

from __future__ import annotations

from typing import AbstractSet, Any, Callable, Dict, Iterator, Mapping, Set

from .quantity import parse_quantity


def names_any(spec: Mapping[str, Any], resources: AbstractSet[str]) -> bool:
    """Return whether a pod names one of the resources, 0 of it too. Raises ValueError where that cannot be read."""
    return any(not resources.isdisjoint(amounts) for container in _containers(spec) for amounts in _amounts(container))


def asked(container: Mapping[str, Any], ours: Callable[[str], object]) -> Dict[str, Any]:
    """Return the amounts of the resources that are ``ours`` and of which a container asks for more than none.

    The API server keeps requests and limits of such resources equal; where they are not, the limit counts. An amount
    that is no quantity is returned as it is. Raises ValueError where they are no JSON objects.
    """
    found: Dict[str, Any] = {}
    for amounts in _amounts(container):
        found.update((name, amount) for name, amount in amounts.items() if ours(name))
    return {name: amount for name, amount in found.items() if not _none(amount)}


def names_asked(spec: Mapping[str, Any]) -> Set[str]:
    """Return the resources that a pod names, 0 of them too. Raises ValueError where that cannot be read."""
    return {name for container in _containers(spec) for amounts in _amounts(container) for name in amounts}


def _containers(spec: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    for key in ("containers", "initContainers"):
        entries = spec.get(key) or []
        if not isinstance(entries, list) or not all(isinstance(entry, dict) for entry in entries):
            raise ValueError(f"spec.{key}: not a list of JSON objects")
        yield from entries


def _amounts(container: Mapping[str, Any]) -> Iterator[Mapping[str, Any]]:
    resources = container.get("resources") or {}
    if not isinstance(resources, dict):
        raise ValueError("resources: not a JSON object")
    for key in ("requests", "limits"):
        amounts = resources.get(key) or {}
        if not isinstance(amounts, dict):
            raise ValueError(f"resources.{key}: not a JSON object")
        yield amounts


def _none(amount: object) -> bool:
    """Return whether an amount is 0 in any spelling; Go reads null as 0."""
    try:
        return amount is None or parse_quantity(amount) == 0
    except ValueError:
        return False
