# SPDX-License-Identifier: Apache-2.0
"""Decides what configure.yml makes in AWX, of what is given and of what AWX has. Pure."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import yaml

Object = Mapping[str, Any]

_PATTERN = re.compile(r"[\[\]*?:,;!&~@\s]")
"""What makes a limit more than a name. AWX lists a group's hosts in an order of its own, another one for each job."""
_OUTSIDE = ("certificate-authority", "client-certificate", "client-key", "tokenFile", "exec", "auth-provider")
"""Keys of a kubeconfig by which it needs files or programs of the machine where it was written."""


@dataclass(frozen=True)
class Plan:
    """What configure.yml goes by. Objects are numbers, since a name may stand for several of them in AWX."""

    refusals: list[str]
    """What cannot work, a sentence each; where there is one, the rest means nothing."""
    inventory: int
    credentials: list[int]
    """Those of every job besides the kubeconfig."""
    project_credential: int
    """For the repository, and 0 for none."""
    image_credential: int
    """For the registry, and 0 for none."""
    canary: str
    """The limit of the first upgrade."""
    first: list[str]
    """The GPU nodes that the canary stands for."""
    rest: list[str]
    """The GPU nodes after it."""


def plan(given: Mapping[str, Any], found: Mapping[str, Sequence[Object]]) -> Plan:
    """Return what to make, of the variables that are ``given`` and of the objects ``found`` in AWX by what they are."""
    organization, inventory = _first(found["organizations"]), _first(found["inventories"])
    credentials = _Credentials(found["credentials"], _number(organization), str(given["organization"]))
    machine = credentials.find("gpu_awx_machine_credential", given["machine_credential"], "ssh")
    names = given["more_credentials"]
    more = [
        credentials.find("gpu_awx_more_credentials", name) for name in ([names] if isinstance(names, str) else names)
    ]
    project = credentials.find("gpu_awx_project_credential", given["project_credential"], "scm")
    image = credentials.find("gpu_awx_image_credential", given["image_credential"], "registry")
    nodes = [str(host["name"]) for host in found["nodes"]]
    canary = str(given["canary"] or "").strip() if "canary" in given else next(iter(nodes), "")
    first = [canary] if canary in nodes else [node for node in nodes if node in _names(found["canary_hosts"])]
    refusals = [*_refuse_given(given), *_refuse_token(_first(found["users"]))]
    if not organization:
        refusals.append(
            f"AWX has no organization '{given['organization']}'; make it, or name another in gpu_awx_organization."
        )
    else:
        refusals += [*_refuse_inventory(given, inventory, nodes), *credentials.refusals]
        refusals += _refuse_kubeconfig(given, found["kubeconfigs"])
    if nodes or "canary" in given:
        refusals += _refuse_canary(canary, first, nodes)
    return Plan(
        refusals=refusals,
        inventory=_number(inventory),
        credentials=[number for number in (machine, *more) if number],
        project_credential=project,
        image_credential=image,
        canary=canary,
        first=first,
        rest=[node for node in nodes if node not in first],
    )


class _Credentials:
    """The credentials that an organization's templates may get: its own, and those of no organization."""

    def __init__(self, found: Sequence[Object], organization: int, name: str) -> None:
        self.refusals: list[str] = []
        self._found, self._organization, self._owner = found, organization, name

    def find(self, variable: str, name: object, kind: str = "") -> int:
        """Return the number of the credential of that name, and 0 where none is named or what is named is refused."""
        if not name and variable != "gpu_awx_machine_credential":
            return 0
        fitting = [one for one in self._found if one["name"] == str(name) and kind in ("", one["kind"])]
        own = [one for one in fitting if one["organization"] == self._organization]
        named = own or [one for one in fitting if one["organization"] is None]
        if len(named) == 1:
            return int(named[0]["id"])
        of_kind = f" of the kind {kind}" if kind else ""
        count, remedy = (f"{len(named)} credentials", "rename all but one") if named else ("no credential", "make it")
        self.refusals.append(
            f"AWX's organization '{self._owner}' has {count}{of_kind} named '{name}'; {remedy}, or name another in"
            f" {variable}."
        )
        return 0


def _refuse_given(given: Mapping[str, Any]) -> Iterator[str]:
    for name, remedy in (
        ("project_url", "name the repository of the project, also in a later run."),
        ("image", "name the image of the execution environment, also in a later run."),
    ):
        if not str(given[name] or "").strip():
            yield f"gpu_awx_{name} is empty; {remedy}"


def _refuse_token(user: Object) -> Iterator[str]:
    if not user.get("is_superuser"):
        yield (
            f"AWX's user '{user.get('username', '')}' is no system administrator, and no other may make the execution"
            " environment and the credential type; set CONTROLLER_OAUTH_TOKEN to a system administrator's token."
        )


def _refuse_inventory(given: Mapping[str, Any], inventory: Object, nodes: Sequence[str]) -> Iterator[str]:
    named = f"inventory '{given['inventory']}'"
    if not inventory:
        yield (
            f"AWX's organization '{given['organization']}' has no {named}; make it, or name another in"
            " gpu_awx_inventory."
        )
    elif not nodes:
        yield (
            f"AWX's {named} has no enabled host in the group gpu_nodes; add the GPU nodes to that group, or sync the"
            " inventory's source."
        )


def _refuse_kubeconfig(given: Mapping[str, Any], kept: Sequence[Object]) -> Iterator[str]:
    path, text = given["kubeconfig_file"], given["kubeconfig"]
    if not path:
        if not any(one["inputs"].get("kubeconfig") for one in kept):
            yield "gpu_awx_kubeconfig_file is empty, and AWX has no kubeconfig of an earlier run; name a kubeconfig."
        return
    try:
        content = yaml.safe_load(text)
    except yaml.YAMLError:
        content = None
    if not isinstance(content, dict) or not content.get("clusters"):
        yield f"gpu_awx_kubeconfig_file {path} holds no cluster; name a kubeconfig."
        return
    outside = sorted(set(_outside(content)))
    if outside:
        yield (
            f"gpu_awx_kubeconfig_file {path} needs what jobs in AWX do not have ({', '.join(outside)}); put"
            " certificates, keys or a token into it."
        )


def _outside(value: object) -> Iterator[str]:
    if isinstance(value, dict):
        for key, inner in value.items():
            if key in _OUTSIDE and inner:
                yield key
            else:
                yield from _outside(inner)
    elif isinstance(value, list):
        for inner in value:
            yield from _outside(inner)


def _refuse_canary(canary: str, first: Sequence[str], nodes: Sequence[str]) -> Iterator[str]:
    remedy = "name one host or group of the inventory in gpu_awx_canary, or leave the variable out."
    if not canary:
        yield f"gpu_awx_canary is empty, which would upgrade all nodes before anybody approves; {remedy}"
    elif _PATTERN.search(canary):
        yield f"gpu_awx_canary is '{canary}', a pattern, which means other hosts from job to job; {remedy}"
    elif nodes and not first:
        yield f"gpu_awx_canary is '{canary}', and the inventory has no GPU node of that name or group; {remedy}"
    elif len(nodes) > 1 and len(first) == len(nodes):
        yield f"gpu_awx_canary is '{canary}', which is all GPU nodes and leaves none to approve; {remedy}"


def _first(found: Sequence[Object]) -> Object:
    return found[0] if found else {}


def _number(found: Object) -> int:
    return int(found.get("id", 0))


def _names(found: Sequence[Object]) -> set[str]:
    return {str(one["name"]) for one in found}


def gpu_awx_plan(given: Mapping[str, Any], found: Mapping[str, Sequence[Object]]) -> dict[str, Any]:
    """Return the plan as a template reads it."""
    return asdict(plan(given, found))


class FilterModule:
    """The filters of this file."""

    def filters(self) -> dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {"gpu_awx_plan": gpu_awx_plan}
