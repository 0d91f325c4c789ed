# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a KubeSchedulerConfiguration has to become to hold our extenders and bin packing. No I/O."""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass, field
from typing import Any, Callable, Dict, FrozenSet, Mapping, Sequence, Tuple

from ansible_collections.accel.kubernetes.plugins.module_utils.documents import yaml_text
from ansible_collections.accel.kubernetes.plugins.module_utils.documents.yaml_edit import edit

from .peers import replaces, resources_of
from .schema import API_VERSION, FIT, ConfigError, check, check_extenders
from .versions import loaded

_DEFAULT_RESOURCES = [{"name": "cpu", "weight": 1}, {"name": "memory", "weight": 1}]
"""What kube-scheduler scores by where a strategy names no resources."""
_DEFAULT_SCHEDULER = "default-scheduler"

_TRUTHS = {"1": "true", "t": "true", "true": "true", "0": "false", "f": "false", "false": "false"}
_CLIENT_FLAGS = {
    "kube-api-content-type": ("contentType", r"[\w.+/;=-]+"),
    "kube-api-qps": ("qps", r"-?\d+(\.\d+)?"),
    "kube-api-burst": ("burst", r"-?\d+"),
}
_PROFILING_FLAGS = {
    "profiling": ("enableProfiling", "|".join(_TRUTHS)),
    "contention-profiling": ("enableContentionProfiling", "|".join(_TRUTHS)),
}
_ELECTION_FLAGS = {
    "leader-elect": "leaderElect",
    "leader-elect-resource-lock": "resourceLock",
    "leader-elect-resource-name": "resourceName",
    "leader-elect-resource-namespace": "resourceNamespace",
}

Flag = Callable[[str], "str | None"]
"""The value of a flag of kube-scheduler, None when it is not given."""

ExtenderKey = Tuple[str, FrozenSet[str]]


@dataclass(frozen=True)
class Wanted:
    """What the configuration is to hold. Extenders in the words of the API."""

    extenders: Sequence[Mapping[str, Any]] = ()
    binpack: Mapping[str, int] = field(default_factory=dict)
    takeover: bool = False
    """Whether extenders of others that these replace are taken out."""


_NOTHING = Wanted()


@dataclass(frozen=True)
class Owned:
    """What in the configuration is our doing."""

    extenders: FrozenSet[ExtenderKey] = frozenset()
    binpack: FrozenSet[str] = frozenset()
    replaced: FrozenSet[ExtenderKey] = frozenset()
    """Extenders of others that were taken out, to be given back."""


def base(kubeconfig: str, leader_elect: bool, flag: Flag = lambda _name: None) -> str:
    """Return a neutral configuration: with a file, kube-scheduler ignores the flags for these fields.

    Raises ConfigError for a flag whose value no file can hold.
    """
    return (
        f"apiVersion: {API_VERSION}\n"
        "kind: KubeSchedulerConfiguration\n"
        "clientConnection:\n"
        f"  kubeconfig: {kubeconfig}\n"
        + "".join(f"  {line}\n" for line in _lines(_CLIENT_FLAGS, flag))
        + "".join(f"{line}\n" for line in _lines(_PROFILING_FLAGS, flag))
        + "leaderElection:\n"
        f"  leaderElect: {'true' if leader_elect else 'false'}\n"
    )


def _lines(fields: Mapping[str, Tuple[str, str]], flag: Flag) -> list[str]:
    lines = []
    for name, (member, form) in fields.items():
        value = flag(name)
        if value is None:
            continue
        if not re.fullmatch(form, value, re.IGNORECASE):
            raise ConfigError(
                f"kube-scheduler's --{name} is {value}, which it ignores once it has a configuration, and no such "
                "file can hold that: write its value there, or take it out"
            )
        lines.append(f"{member}: {_TRUTHS[value.lower()] if name in _PROFILING_FLAGS else value}")
    return lines


def key_of(extender: Mapping[str, Any]) -> ExtenderKey:
    """Return what tells one extender from another: its address and the resources it manages."""
    return str(extender.get("urlPrefix", "")).rstrip("/"), resources_of(extender)


def binders(text: str, path: str, wanted: Wanted = _NOTHING) -> FrozenSet[str]:
    """Addresses of the extenders that bind pods and are not taken out. Raises ConfigError."""
    extenders = loaded(text, path).get("extenders") or ()
    out = [extender for extender in extenders if wanted.takeover and replaces(wanted.extenders, extender)]
    return frozenset(key_of(extender)[0] for extender in extenders if extender.get("bindVerb") and extender not in out)


def replaced(text: str, wanted: Wanted, owned: Owned, path: str) -> FrozenSet[ExtenderKey]:
    """Return which extenders of others are out once the file is as it is to be. Raises ConfigError."""
    known = owned.extenders.union(map(key_of, wanted.extenders))
    extenders = loaded(text, path).get("extenders") or ()
    found = [each for each in extenders if key_of(each) not in known and replaces(wanted.extenders, each)]
    kept = [key for key in owned.replaced if replaces(wanted.extenders, _as_extender(key))]
    return frozenset(kept).union(map(key_of, found if wanted.takeover else ()))


def _as_extender(key: ExtenderKey) -> Mapping[str, Any]:
    return {"urlPrefix": key[0], "managedResources": [{"name": name} for name in key[1]]}


@dataclass(frozen=True)
class Election:
    """How a scheduler elects its leader."""

    kubeconfig: str
    namespace: str
    name: str


def election(text: str, path: str, flag: Flag = lambda _name: None) -> Election | None:
    """Return the Lease a configuration names, None when the scheduler does not elect. Raises ConfigError.

    The flags of the election win over a configuration, unlike others.
    """
    data = loaded(text, path)
    given = dict(data.get("leaderElection") or {})
    for name, member in _ELECTION_FLAGS.items():
        value = flag(name)
        if value is not None:
            given[member] = value
    if _TRUTHS.get(str(given.get("leaderElect", True)).lower()) == "false":
        return None
    if given.get("resourceLock", "leases") != "leases":
        return None
    kubeconfig = (data.get("clientConnection") or {}).get("kubeconfig", "")
    return Election(
        str(kubeconfig),
        str(given.get("resourceNamespace", "kube-system")),
        str(given.get("resourceName", "kube-scheduler")),
    )


def packed_by(data: Mapping[str, Any]) -> Dict[str, int]:
    """Resources by which pods of the default scheduler are packed, and their weights; empty where they are not."""
    strategy = ((_fit(_profile(data)) or {}).get("args") or {}).get("scoringStrategy") or {}
    if strategy.get("type") != "MostAllocated":
        return {}
    resources: Sequence[Mapping[str, Any]] = strategy.get("resources") or _DEFAULT_RESOURCES
    return {str(item.get("name")): int(item.get("weight") or 1) for item in resources}


def holds(text: str, owned: Owned, path: str) -> bool:
    """Return whether any of what is ours is still in the file."""
    data = loaded(text, path)
    keys = set(map(key_of, data.get("extenders") or ()))
    names = {str(item.get("name")) for item in _resources(data)}
    return bool(keys & owned.extenders or names & owned.binpack)


def plan(text: str, wanted: Wanted, owned: Owned, original: str, path: str) -> str:
    """Return the file holding what is wanted and nothing else of ours; the same text when that is so already.

    ``original`` is the text before our first change: what it lacked and is empty in the end goes. A file of an older
    version becomes one of v1, unless there is nothing to put in or take out. Raises ConfigError.
    """
    before = loaded(text, path)
    first = before if original == text else loaded(original, path)
    data = copy.deepcopy(before)
    _merge_extenders(data, wanted, owned, first, path)
    _merge_binpack(data, wanted.binpack, owned.binpack, first, path)
    check(data, path)
    if data == before and not wanted.extenders and not wanted.binpack:
        return text
    try:
        result: str = edit(text, data, path, strict=True)
    except yaml_text.YamlError as error:
        raise ConfigError(str(error)) from error
    return result


def _merge_extenders(data: Dict[str, Any], wanted: Wanted, owned: Owned, first: Mapping[str, Any], path: str) -> None:
    keys = list(map(key_of, wanted.extenders))
    if len(set(keys)) != len(keys):
        raise ConfigError("two of the extenders given have the same url_prefix and managed_resources; merge them")
    theirs = {key_of(extender): extender for extender in first.get("extenders") or ()}
    present = []
    for item in data.get("extenders") or ():
        key = key_of(item)
        if key in keys or (key not in owned.extenders and not _is_taken_out(item, wanted, path)):
            present.append(item)
        elif key in owned.extenders and key in theirs:
            # One of others that we had changed.
            present.append(copy.deepcopy(theirs[key]))
    _give_back(present, wanted, owned, theirs)
    for extender in wanted.extenders:
        key = key_of(extender)
        found = next((item for item in present if key_of(item) == key), None)
        if found is None:
            present.append(dict(extender))
            continue
        before = theirs.get(key, {})
        for name in list(found):
            if key in owned.extenders and name not in extender and name not in before:
                del found[name]
        # What others gave the same extender and is not asked for is as it was before us.
        kept = {name: value for name, value in before.items() if key in owned.extenders and name not in extender}
        for name, value in {**kept, **extender}.items():
            found[name] = value
    if present:
        data["extenders"] = present
    elif "extenders" in data:
        _empty(data, "extenders", first)
    check_extenders(present, path)


def _is_taken_out(extender: Mapping[str, Any], wanted: Wanted, path: str) -> bool:
    """Return whether an extender of others goes. Raises ConfigError where it would have to, and nobody said so."""
    if not replaces(wanted.extenders, extender):
        return False
    if wanted.takeover:
        return True
    names = ", ".join(sorted(resources_of(extender))) or "all pods"
    raise ConfigError(
        f"{path}: the extender {extender.get('urlPrefix')} is asked for {names}, and kube-scheduler allows one "
        "extender a resource. To use ours instead, set scheduler_takeover=true. The role keeps the other's entry, and "
        "restores it when it is uninstalled"
    )


def _give_back(
    present: list[Dict[str, Any]], wanted: Wanted, owned: Owned, theirs: Mapping[ExtenderKey, Mapping[str, Any]]
) -> None:
    """Put those that were taken out and are no longer replaced where they were among those of others.

    One stays out whose resources somebody else has had another extender asked for meanwhile.
    """
    order = list(theirs)
    for key, extender in theirs.items():
        if key not in owned.replaced or replaces(wanted.extenders, extender):
            continue
        there = list(map(key_of, present))
        if key in there or any(key[1] & resources for _url, resources in there):
            continue
        before = order[: order.index(key)]
        place = 1 + max((place for place, other in enumerate(there) if other in before), default=-1)
        present.insert(place, dict(copy.deepcopy(extender)))


def _empty(data: Dict[str, Any], name: str, first: Mapping[str, Any]) -> None:
    """Leave a list without entries, or its absence, as it was at first."""
    if name not in first:
        del data[name]
    else:
        data[name] = None if first[name] is None else []


def _as_at_first(data: Dict[str, Any], name: str, first: Mapping[str, Any]) -> None:
    """Leave a value that holds nothing, or its absence, as it was at first."""
    if name in first:
        data[name] = copy.deepcopy(first[name])
    else:
        data.pop(name, None)


def _profile(data: Mapping[str, Any]) -> Dict[str, Any] | None:
    """Return the profile of pods that name no scheduler."""
    for profile in data.get("profiles") or ():
        if (profile.get("schedulerName") or _DEFAULT_SCHEDULER) == _DEFAULT_SCHEDULER:
            found: Dict[str, Any] = profile
            return found
    return None


def _fit(profile: Mapping[str, Any] | None) -> Dict[str, Any] | None:
    for plugin in (profile or {}).get("pluginConfig") or ():
        if plugin.get("name") == FIT:
            found: Dict[str, Any] = plugin
            return found
    return None


def _resources(data: Mapping[str, Any]) -> list[Dict[str, Any]]:
    fit = _fit(_profile(data)) or {}
    strategy = (fit.get("args") or {}).get("scoringStrategy") or {}
    return strategy.get("resources") or []


def _scores_by_default(data: Mapping[str, Any]) -> bool:
    """Return whether a strategy is named, and no resources for it."""
    strategy = ((_fit(_profile(data)) or {}).get("args") or {}).get("scoringStrategy") or {}
    return bool(strategy) and not strategy.get("resources")


def _merge_binpack(
    data: Dict[str, Any], wanted: Mapping[str, int], owned: FrozenSet[str], first: Mapping[str, Any], path: str
) -> None:
    if wanted:
        resources = _scored(data, path)
        for name, weight in wanted.items():
            found = next((item for item in resources if item.get("name") == name), None)
            if found is None:
                resources.append({"name": name, "weight": weight})
            elif found.get("weight") != weight:
                found["weight"] = weight
    gone = owned.difference(wanted)
    if gone:
        resources = _resources(data)
        defaults = _scores_by_default(first)
        kept = {str(item.get("name")): item for item in (_DEFAULT_RESOURCES if defaults else _resources(first))}
        resources[:] = [
            dict(kept[str(item.get("name"))]) if item.get("name") in gone.intersection(kept) else item
            for item in resources
            if item.get("name") not in gone.difference(kept)
        ]
        if not resources or (defaults and not wanted and resources == _DEFAULT_RESOURCES):
            _prune(data, first)


def _scored(data: Dict[str, Any], path: str) -> list[Dict[str, Any]]:
    """Return the list of resources by which the default profile packs, created with all that is around it."""
    if data.get("profiles") is None:
        data["profiles"] = []
    profiles = data["profiles"]
    profile = _profile(data)
    if profile is None:
        if profiles:
            raise ConfigError(
                f"{path} has profiles but none for {_DEFAULT_SCHEDULER}, so binpack_resources would have no effect: "
                "add one, or leave binpack_resources out"
            )
        profile = {"schedulerName": _DEFAULT_SCHEDULER}
        profiles.append(profile)
    _refuse_without_effect(profile, f"{path}: profiles[{profiles.index(profile)}].plugins")
    if profile.get("pluginConfig") is None:
        profile["pluginConfig"] = []
    fit = _fit(profile)
    if fit is None:
        fit = {"name": FIT, "args": {}}
        profile["pluginConfig"].append(fit)
    if fit.get("args") is None:
        fit["args"] = {}
    found = fit["args"].get("scoringStrategy")
    if not found:
        fit["args"]["scoringStrategy"] = {"type": "MostAllocated"}
    strategy = fit["args"]["scoringStrategy"]
    if strategy.get("type") != "MostAllocated":
        raise ConfigError(
            f"{path} scores nodes by {strategy.get('type')}, which binpack_resources would replace by MostAllocated: "
            "change it there, or leave binpack_resources out"
        )
    if not strategy.get("resources"):
        # Of a strategy that was there the defaults are written out: with any named, they no longer hold.
        strategy["resources"] = [dict(item) for item in _DEFAULT_RESOURCES] if found else []
    resources: list[Dict[str, Any]] = strategy["resources"]
    return resources


def _refuse_without_effect(profile: Mapping[str, Any], where: str) -> None:
    """Raise ConfigError where the profile does not score by what bin packing sets."""
    plugins = profile.get("plugins") or {}
    for point in ("score", "multiPoint"):
        names = {
            key: {str(plugin.get("name")) for plugin in (plugins.get(point) or {}).get(key) or ()}
            for key in ("enabled", "disabled")
        }
        if FIT in names["enabled"]:
            return
        off = names["disabled"].intersection((FIT, "*"))
        if off:
            raise ConfigError(
                f"{where}.{point}.disabled has {FIT if FIT in off else repr('*')}, so nodes are not scored by {FIT} "
                f"and binpack_resources would have no effect: add {FIT} to {point}.enabled, or leave "
                "binpack_resources out"
            )


def _prune(data: Dict[str, Any], first: Mapping[str, Any]) -> None:
    """Take out what surrounds an emptied list of resources, as far as it is bare and was not there at first."""
    profile, fit = _profile(data), _fit(_profile(data))
    first_profile, first_fit = _profile(first), _fit(_profile(first))
    if profile is None or fit is None:
        return
    first_args = (first_fit or {}).get("args") or {}
    args = fit.get("args") or {}
    left = {name: value for name, value in (args.get("scoringStrategy") or {}).items() if name != "resources"}
    if not first_args.get("scoringStrategy") and left in ({}, {"type": "MostAllocated"}):
        _as_at_first(args, "scoringStrategy", first_args)
    elif not first_args.get("scoringStrategy"):
        args["scoringStrategy"].pop("resources", None)
    elif not first_args["scoringStrategy"].get("resources"):
        _as_at_first(args.get("scoringStrategy") or {}, "resources", first_args["scoringStrategy"])
    if "args" in fit and not args and not first_args:
        _as_at_first(fit, "args", first_fit or {})
    if set(fit) <= {"name"} and first_fit is None:
        profile["pluginConfig"] = [item for item in profile["pluginConfig"] if item is not fit]
    if not profile["pluginConfig"]:
        _empty(profile, "pluginConfig", first_profile or {})
    if set(profile) <= {"schedulerName"} and first_profile is None:
        data["profiles"] = [item for item in data["profiles"] if item is not profile]
    if not data["profiles"]:
        _empty(data, "profiles", first)
