# Apache License 2.0 (see https://www.apache.org/licenses/LICENSE-2.0)
# SPDX-License-Identifier: Apache-2.0
"""What a namespace may have of the cluster's GPUs, as an administrator writes it. Pure.

The text is YAML, of which JSON is a part::

    version: 1
    pools:
      training: {gpu-pool: training}        # the labels that make a node one of the pool
      inference: {gpu-pool: inference}
    namespaces:
      team-a:
        pools: [training]                   # the only nodes its pods may use; absent: all nodes
        limits:                             # every one that matches a GPU's model holds
          - {model: H100, cores: 800, memory: 640Gi, cards: 8}
          - {memory: 1Ti}                   # without a model: all GPUs together
      "*":                                  # namespaces without an entry; absent: they have no quota
        limits: [{cores: 100}]

``cores`` are percent of a card and count whole cards with 100 each, ``memory`` counts whole cards with all of theirs,
``cards`` are whole cards alone. A model is a part of the GPU's name, in any case. Limits left out do not hold.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Final

from .quantity import parse_quantity

try:
    import yaml
except ImportError:  # Modules do not read quotas. Filters run on the controller, and Ansible brings it there.
    yaml = None  # type: ignore[assignment,unused-ignore]

EVERY_OTHER_NAMESPACE: Final = "*"
VERSION: Final = 1

_MAX_TEXT = 1 << 20
"""What the API server accepts for a ConfigMap."""
_POOL = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_NAMESPACE = re.compile(rf"\*|{_POOL.pattern}")


class QuotaError(ValueError):
    """The quota text is not one. The text names the line, the key and what may stand there."""


@dataclass(frozen=True)
class Limit:
    """The most a namespace may have of the GPUs whose model contains ``model``. None: no limit."""

    model: str = ""
    """Lower case; empty for all GPUs."""
    cores: int | None = None
    memory_bytes: int | None = None
    cards: int | None = None

    def matches(self, model: str) -> bool:
        """Return whether GPUs of this model count."""
        return self.model in model.lower()


@dataclass(frozen=True)
class NamespaceQuota:
    """What one namespace may have."""

    pools: frozenset[str] | None = None
    """The names of the pools it may use; None for every node."""
    limits: tuple[Limit, ...] = ()


@dataclass(frozen=True)
class Quota:
    """The quota of a cluster. The empty one limits no namespace."""

    pools: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    """By name, the labels of its nodes."""
    namespaces: Mapping[str, NamespaceQuota] = field(default_factory=dict)

    def of(self, namespace: str) -> NamespaceQuota:
        """Return what holds for a namespace."""
        return self.namespaces.get(namespace) or self.namespaces.get(EVERY_OTHER_NAMESPACE) or NamespaceQuota()

    def outside(self, namespace: str, node_labels: Mapping[str, str]) -> str | None:
        """Return why the namespace may have no pod on this node at all; None when it may."""
        pools = self.of(namespace).pools
        if pools is None or any(self.pools[pool].items() <= node_labels.items() for pool in pools):
            return None
        allowed = f"pool{'s' if len(pools) > 1 else ''} {', '.join(sorted(pools))}" if pools else "no pool"
        return f"namespace {namespace} may use {allowed}; this node is not in it"


def parse(text: str) -> Quota:
    """Return the quota a text states, all of it or none. Raises QuotaError."""
    if len(text) > _MAX_TEXT:
        raise QuotaError(f"the text is longer than {_MAX_TEXT} characters")
    try:
        # JSON may be indented with tabs, which YAML does not take; inside its strings there are none.
        root = yaml.compose(text.replace("\t", " "), Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise QuotaError(f"line {line}: not YAML: {error.problem}") from error
    except (yaml.YAMLError, RecursionError) as error:
        raise QuotaError(f"not YAML: {error}") from error
    if root is None:
        raise QuotaError("the text is empty; write at least `version: 1`")
    document = _Entry("", root).mapping(("version", "pools", "namespaces"))
    version = document.get("version")
    if version is None or version.text() != str(VERSION):
        raise QuotaError(f"version: write {VERSION} at the top, the version this release reads")
    pools = {name: _pool(entry) for name, entry in _named(document.get("pools"), _POOL)}
    namespaces = {name: _namespace(entry, pools) for name, entry in _named(document.get("namespaces"), _NAMESPACE)}
    return Quota(pools, namespaces)


@dataclass(frozen=True)
class _Entry:
    """A value of the text and where it stands."""

    path: str
    node: yaml.Node

    def error(self, problem: str) -> QuotaError:
        return QuotaError(f"line {self.node.start_mark.line + 1}: {self.path + ': ' if self.path else ''}{problem}")

    def text(self) -> str:
        if not isinstance(self.node, yaml.ScalarNode) or self.node.tag == "tag:yaml.org,2002:null":
            raise self.error("write a single value")
        return str(self.node.value)

    def mapping(self, known: Collection[str] = ()) -> dict[str, _Entry]:
        """Return its values by key; keys other than the known ones are errors, if any are given."""
        if not isinstance(self.node, yaml.MappingNode):
            raise self.error("write keys with values" + (f": {', '.join(known)}" if known else ""))
        found: dict[str, _Entry] = {}
        for key_node, value in self.node.value:
            key = _Entry(self.path, key_node).text()
            entry = _Entry(f"{self.path}.{key}" if self.path else key, value)
            if known and key not in known:
                meant = get_close_matches(key, known, 1)
                hint = f"did you mean {meant[0]}?" if meant else f"known are {', '.join(known)}"
                raise replace(entry, node=key_node).error(f"unknown key; {hint}")
            if key in found:
                raise replace(entry, node=key_node).error("stands here a second time")
            found[key] = entry
        return found

    def sequence(self) -> list[_Entry]:
        if not isinstance(self.node, yaml.SequenceNode):
            raise self.error("write a list")
        return [_Entry(f"{self.path}[{place}]", node) for place, node in enumerate(self.node.value)]


def _named(parent: _Entry | None, names: re.Pattern[str]) -> Iterator[tuple[str, _Entry]]:
    for name, entry in parent.mapping().items() if parent is not None else ():
        if names.fullmatch(name) is None:
            raise entry.error("not a name Kubernetes takes; write lower-case letters, digits and dashes")
        yield name, entry


def _pool(entry: _Entry) -> dict[str, str]:
    labels = {key: value.text() for key, value in entry.mapping().items()}
    if not labels:
        raise entry.error("write at least one label that the pool's nodes have")
    return labels


def _namespace(entry: _Entry, known_pools: Collection[str]) -> NamespaceQuota:
    keys = entry.mapping(("pools", "limits"))
    pools = None
    if "pools" in keys:
        pools = set()
        for pool in keys["pools"].sequence():
            name = pool.text()
            if name not in known_pools:
                known = f"known are {', '.join(sorted(known_pools))}" if known_pools else "there are none"
                raise pool.error(f"no pool {name} under pools; {known}")
            pools.add(name)
    limits: dict[str, Limit] = {}
    for place in keys["limits"].sequence() if "limits" in keys else ():
        limit = _limit(place)
        if limit.model in limits:
            raise place.error("a second limit for the same model; write one")
        limits[limit.model] = limit
    return NamespaceQuota(None if pools is None else frozenset(pools), tuple(limits.values()))


def _limit(entry: _Entry) -> Limit:
    keys = entry.mapping(("model", "cores", "memory", "cards"))
    model = keys.pop("model").text().strip().lower() if "model" in keys else None
    if model == "":
        raise entry.error("model: write a part of the GPU's name, or leave the key out for all GPUs")
    if not keys:
        raise entry.error("write at least one of cores, memory and cards")
    amounts = {}
    for key, value in keys.items():
        try:
            amounts[key] = parse_quantity(value.text())
        except QuotaError:
            raise
        except ValueError as error:
            raise value.error(str(error)) from error
    return Limit(model or "", amounts.get("cores"), amounts.get("memory"), amounts.get("cards"))
