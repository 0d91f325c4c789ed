# SPDX-License-Identifier: Apache-2.0
"""What our accounts may do, by the roles in the cluster, and what they did, by the API server's audit log."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from cluster.rig import Rig

_API = "/apis/rbac.authorization.k8s.io/v1"
_CREATED, _FORBIDDEN = 201, 403

Right = tuple[str, str]
"""Resource, with its part if only that is meant, and verb."""


@dataclass(frozen=True, slots=True)
class Deeds:
    """The deeds of one account that were done, and those that were refused."""

    done: frozenset[Right]
    refused: frozenset[Right]


def granted(rig: Rig, account: str) -> frozenset[Right]:
    """By the roles that carry the name of something of ours; those of Kubernetes itself are not looked into."""
    found: set[Right] = set()
    for kind in ("Role", "ClusterRole"):
        rules = {item["metadata"]["name"]: item["rules"] for item in _items(rig, f"{kind.lower()}s")}
        for binding in _items(rig, f"{kind.lower()}bindings"):
            names = {subject["name"] for subject in binding.get("subjects", ())}
            role = binding["roleRef"]
            if account in names and role["kind"] == kind and not role["name"].startswith(("system:", "extension-")):
                for rule in rules[role["name"]]:
                    found |= set(itertools.product(rule["resources"], rule["verbs"]))
    return frozenset(found)


def deeds(lines: Iterable[str], account: str) -> Deeds:
    """What an audit log (audit.k8s.io/v1, a line of JSON each) tells of a service account."""
    done, refused = set(), set()
    for event in map(json.loads, lines):
        target = event.get("objectRef")
        if target and event["user"]["username"].rpartition(":")[2] == account:
            resource = "/".join(filter(None, (target["resource"], target.get("subresource"))))
            code = event.get("responseStatus", {}).get("code", 0)
            (refused if code == _FORBIDDEN else done).add((resource, event["verb"]))
            if code == _CREATED:
                # By PUT it takes two rights, and is told as one.
                done.add((resource, "create"))
    return Deeds(frozenset(done), frozenset(refused))


def _items(rig: Rig, plural: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = rig.api.get(f"{_API}/{plural}")["items"]
    return found
