# SPDX-License-Identifier: Apache-2.0
"""KubeSchedulerConfiguration v1, decoded as strictly as kube-scheduler does."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

from sim.cluster.kinds import Object

API_VERSION = "kubescheduler.config.k8s.io/v1"


class ConfigError(Exception):
    """The scheduler ends with this message."""


_ANY: Object = {}
_NAMED_WEIGHT = [{"name": str, "weight": int}]
_SET = {"enabled": _NAMED_WEIGHT, "disabled": _NAMED_WEIGHT}
_POINTS = (
    *("preEnqueue", "queueSort", "preFilter", "filter", "postFilter", "preScore", "score", "reserve", "permit"),
    *("preBind", "bind", "postBind", "multiPoint", "placementGenerate", "placementScore"),
)
_FIT = {
    "apiVersion": str,
    "kind": str,
    "ignoredResources": [str],
    "ignoredResourceGroups": [str],
    "scoringStrategy": {
        "type": str,
        "resources": _NAMED_WEIGHT,
        "requestedToCapacityRatio": {"shape": [{"utilization": int, "score": int}]},
    },
}
_EXTENDER = {
    "urlPrefix": str,
    "filterVerb": str,
    "preemptVerb": str,
    "prioritizeVerb": str,
    "weight": int,
    "bindVerb": str,
    "enableHTTPS": bool,
    "tlsConfig": dict.fromkeys(("serverName", "certFile", "keyFile", "caFile", "certData", "keyData", "caData"), str)
    | {"insecure": bool},
    "httpTimeout": str,
    "nodeCacheCapable": bool,
    "managedResources": [{"name": str, "ignoredByScheduler": bool}],
    "ignorable": bool,
}
_SCHEMA = {
    "apiVersion": str,
    "kind": str,
    "parallelism": int,
    "leaderElection": dict.fromkeys(
        ("leaseDuration", "renewDeadline", "retryPeriod", "resourceLock", "resourceName", "resourceNamespace"), str
    )
    | {"leaderElect": bool},
    "clientConnection": {"kubeconfig": str, "acceptContentTypes": str, "contentType": str, "qps": float, "burst": int},
    "enableProfiling": bool,
    "enableContentionProfiling": bool,
    "percentageOfNodesToScore": int,
    "podInitialBackoffSeconds": int,
    "podMaxBackoffSeconds": int,
    "delayCacheUntilActive": bool,
    "profiles": [
        {
            "schedulerName": str,
            "percentageOfNodesToScore": int,
            "plugins": dict.fromkeys(_POINTS, _SET),
            "pluginConfig": [{"name": str, "args": _ANY}],
        }
    ],
    "extenders": [_EXTENDER],
}


class _Loader(yaml.SafeLoader):
    """Safe YAML that refuses a key given twice."""

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        keys = [self.construct_object(key) for key, _ in node.value]
        for key in keys:
            if keys.count(key) > 1:
                raise ConfigError(f'strict decoding error: key "{key}" already set in map')
        return super().construct_mapping(node, deep)


def _check(value: Any, schema: Any, path: str) -> None:
    if value is None or schema is _ANY:
        return
    if isinstance(schema, dict):
        if not isinstance(value, dict):
            raise ConfigError(f"json: cannot unmarshal into {path or 'KubeSchedulerConfiguration'}: not an object")
        for key, item in value.items():
            where = f"{path}.{key}" if path else str(key)
            if key not in schema:
                raise ConfigError(f'strict decoding error: unknown field "{where}"')
            _check(item, schema[key], where)
    elif isinstance(schema, list):
        if not isinstance(value, list):
            raise ConfigError(f"json: cannot unmarshal into {path}: not an array")
        for index, item in enumerate(value):
            _check(item, schema[0], f"{path}[{index}]")
    elif not isinstance(value, (int, float) if schema is float else schema) or (
        schema in (int, float) and isinstance(value, bool)
    ):
        raise ConfigError(f"json: cannot unmarshal {type(value).__name__} into {path} of type {schema.__name__}")


@dataclass(frozen=True, slots=True)
class Scoring:
    """How NodeResourcesFit scores a node in one profile."""

    type: str = "LeastAllocated"
    resources: tuple[tuple[str, int], ...] = (("cpu", 1), ("memory", 1))
    shape: tuple[tuple[int, int], ...] = ()


@dataclass(frozen=True, slots=True)
class SchedulerConfig:
    """What of the configuration the scheduler loop acts on."""

    profiles: dict[str, Scoring]
    extenders: tuple[Object, ...] = ()
    kubeconfig: str = ""
    leader_elect: bool = True
    lease: tuple[str, str] = ("kube-system", "kube-scheduler")
    ignored: frozenset[str] = field(default_factory=frozenset)
    """Resources left to extenders."""


def load(path: Path, seen: Callable[[str], Path | None]) -> SchedulerConfig:
    """Decode and validate the file. ``seen`` maps a path in the scheduler's container to the host's, None if unmounted.

    Raises ConfigError with the message kube-scheduler would end with, or close to it.
    """
    try:
        document = yaml.load(path.read_text(), _Loader)
    except OSError as error:
        raise ConfigError(f"open {path}: {(error.strerror or '').lower()}") from error
    except yaml.YAMLError as error:
        raise ConfigError(f"couldn't parse {path} as YAML: {error}") from error
    if not isinstance(document, dict):
        raise ConfigError("couldn't get version/kind; json parse error")
    version, kind = document.get("apiVersion", ""), document.get("kind", "")
    if (version, kind) != (API_VERSION, "KubeSchedulerConfiguration"):
        raise ConfigError(f'no kind "{kind}" is registered for version "{version}"')
    _check(document, _SCHEMA, "")
    profiles: dict[str, Scoring] = {}
    for index, profile in enumerate(document.get("profiles") or [{}]):
        name = profile.get("schedulerName", "default-scheduler")
        if name in profiles:
            raise ConfigError(f'profiles[{index}].schedulerName: Duplicate value: "{name}"')
        profiles[name] = _scoring(profile, f"profiles[{index}]")
    extenders = tuple(document.get("extenders") or ())
    for index, extender in enumerate(extenders):
        _check_extender(extender, f"extenders[{index}]", seen)
    if sum(bool(item.get("bindVerb")) for item in extenders) > 1:
        raise ConfigError("extenders: Invalid value: only one extender can implement bind")
    kubeconfig = (document.get("clientConnection") or {}).get("kubeconfig", "")
    _readable(kubeconfig, seen)
    election = document.get("leaderElection") or {}
    lease = (election.get("resourceNamespace", "kube-system"), election.get("resourceName", "kube-scheduler"))
    managed = [item for extender in extenders for item in extender.get("managedResources", ())]
    ignored = frozenset(item["name"] for item in managed if item.get("ignoredByScheduler"))
    return SchedulerConfig(profiles, extenders, kubeconfig, election.get("leaderElect", True), lease, ignored)


def _readable(path: str, seen: Callable[[str], Path | None]) -> Path | None:
    if not path:
        return None
    host = seen(path)
    if host is None or not host.is_file():
        raise ConfigError(f"stat {path}: no such file or directory")
    return host


def _scoring(profile: Object, path: str) -> Scoring:
    for index, entry in enumerate(profile.get("pluginConfig") or ()):
        if entry.get("name") != "NodeResourcesFit":
            continue
        args, where = entry.get("args") or {}, f"{path}.pluginConfig[{index}].args"
        _check(args, _FIT, where)
        strategy = args.get("scoringStrategy") or {}
        type_ = strategy.get("type", "LeastAllocated")
        if type_ not in ("LeastAllocated", "MostAllocated", "RequestedToCapacityRatio"):
            raise ConfigError(f'{where}.scoringStrategy.type: Unsupported value: "{type_}"')
        resources = tuple((item["name"], item.get("weight", 1)) for item in strategy.get("resources") or ())
        ratio = strategy.get("requestedToCapacityRatio") or {}
        shape = tuple((item["utilization"], item["score"]) for item in ratio.get("shape", ()))
        if type_ == "RequestedToCapacityRatio" and (
            not shape or sorted({x for x, _ in shape}) != [x for x, _ in shape]
        ):
            raise ConfigError(f"{where}.scoringStrategy.requestedToCapacityRatio.shape: Invalid value: must be sorted")
        return Scoring(type_, resources or Scoring().resources, shape)
    return Scoring()


def _check_extender(extender: Object, path: str, seen: Callable[[str], Path | None]) -> None:
    if not extender.get("urlPrefix"):
        raise ConfigError(f"{path}.urlPrefix: Required value")
    if extender.get("prioritizeVerb") and extender.get("weight", 0) <= 0:
        raise ConfigError(f"{path}.weight: Invalid value: must have a positive weight applied to it")
    for key in ("caFile", "certFile", "keyFile"):
        _readable((extender.get("tlsConfig") or {}).get(key, ""), seen)
