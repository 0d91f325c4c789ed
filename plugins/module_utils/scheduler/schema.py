# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What kube-scheduler takes for a KubeSchedulerConfiguration. No I/O.

Source of the tables: the Go types of kubescheduler.config.k8s.io/v1 (k8s.io/kube-scheduler/config/v1 and
k8s.io/component-base/config/v1alpha1). kube-scheduler decodes strictly: one unknown field and it does not start.
"""

from __future__ import annotations

from typing import Any, Dict, Mapping, Sequence

API_VERSION = "kubescheduler.config.k8s.io/v1"
KIND = "KubeSchedulerConfiguration"

_PLUGIN_SET = {"enabled": [{"name": str, "weight": int}], "disabled": [{"name": str, "weight": int}]}
_EXTENSION_POINTS = (
    "preEnqueue queueSort preFilter filter postFilter preScore score reserve permit preBind bind postBind multiPoint "
    "placementGenerate placementScore placementFeasible podGroupPostFilter"
)
_SCHEMA: Dict[str, Any] = {
    "apiVersion": str,
    "kind": str,
    "parallelism": int,
    "leaderElection": {
        "leaderElect": bool,
        "leaseDuration": str,
        "renewDeadline": str,
        "retryPeriod": str,
        "resourceLock": str,
        "resourceName": str,
        "resourceNamespace": str,
    },
    "clientConnection": {
        "kubeconfig": str,
        "acceptContentTypes": str,
        "contentType": str,
        "qps": (int, float),
        "burst": int,
    },
    "enableProfiling": bool,
    "enableContentionProfiling": bool,
    "percentageOfNodesToScore": int,
    "percentageOfPlacementsToScore": int,
    "podInitialBackoffSeconds": int,
    "podMaxBackoffSeconds": int,
    "delayCacheUntilActive": bool,
    "profiles": [
        {
            "schedulerName": str,
            "percentageOfNodesToScore": int,
            "percentageOfPlacementsToScore": int,
            "plugins": dict.fromkeys(_EXTENSION_POINTS.split(), _PLUGIN_SET),
            "pluginConfig": [{"name": str, "args": object}],
        }
    ],
    "extenders": [
        {
            "urlPrefix": str,
            "filterVerb": str,
            "preemptVerb": str,
            "prioritizeVerb": str,
            "weight": int,
            "bindVerb": str,
            "enableHTTPS": bool,
            "tlsConfig": {
                "insecure": bool,
                "serverName": str,
                "certFile": str,
                "keyFile": str,
                "caFile": str,
                "certData": str,
                "keyData": str,
                "caData": str,
            },
            "httpTimeout": str,
            "nodeCacheCapable": bool,
            "managedResources": [{"name": str, "ignoredByScheduler": bool}],
            "ignorable": bool,
        }
    ],
}
_RESOURCES = [{"name": str, "weight": int}]
_FIT_ARGS: Dict[str, Any] = {
    "apiVersion": str,
    "kind": str,
    "ignoredResources": [str],
    "ignoredResourceGroups": [str],
    "scoringStrategy": {
        "type": str,
        "resources": _RESOURCES,
        "requestedToCapacityRatio": {"shape": [{"utilization": int, "score": int}]},
    },
}
FIT = "NodeResourcesFit"
_AS_PROFILE = "write what it asks for as plugins and pluginConfig of a profile"
_GONE = {
    "algorithmSource": _AS_PROFILE,
    "policy": _AS_PROFILE,
    "predicates": _AS_PROFILE,
    "priorities": _AS_PROFILE,
    "hardPodAffinitySymmetricWeight": "write it as hardPodAffinityWeight in the pluginConfig of InterPodAffinity",
    "alwaysCheckAllPredicates": "take it out",
    "disablePreemption": "where it is true, disable DefaultPreemption in plugins.postFilter of a profile",
    "bindTimeoutSeconds": "write it in the pluginConfig of VolumeBinding",
    "schedulerName": "write it in a profile",
}
"""Fields of policies and of versions before v1beta1, with what to do about each."""


class ConfigError(Exception):
    """The file cannot be made what was asked for. Says which, why and what to do."""

    code = "refused"


class TwoBindersError(ConfigError):
    """More than one extender of the file would bind pods."""

    code = "two_binders"


def check(data: Mapping[str, Any], path: str) -> None:
    """Raise ConfigError for what kube-scheduler would refuse to start with."""
    version = data.get("apiVersion")
    if version != API_VERSION or data.get("kind") != KIND:
        raise ConfigError(
            f"{path} is {version} {data.get('kind')}, not {API_VERSION} {KIND}, "
            "the only version Kubernetes serves from 1.29 on; convert it, then run again"
        )
    check_fields(data, path)
    for number, profile in enumerate(data.get("profiles") or ()):
        for position, plugin in enumerate(profile.get("pluginConfig") or ()):
            if plugin.get("name") == FIT and plugin.get("args") is not None:
                where = f"profiles[{number}].pluginConfig[{position}].args"
                _check_fields(plugin["args"], _FIT_ARGS, where, path)
    check_extenders(data.get("extenders") or (), path)


def check_fields(data: Mapping[str, Any], path: str) -> None:
    """Raise ConfigError for a field that is none of v1, or of another type. Arguments of plugins are not looked at."""
    _check_fields(data, _SCHEMA, "", path)


def _check_fields(value: object, schema: Any, where: str, path: str) -> None:  # noqa: ANN401
    if value is None or schema is object:
        return
    if isinstance(schema, dict):
        if not isinstance(value, dict):
            raise ConfigError(f"{path}: {where} has to be a mapping")
        for key, item in value.items():
            place = f"{where}.{key}" if where else key
            if key not in schema:
                remedy = _GONE.get(place, "correct or remove it")
                raise ConfigError(
                    f"{path}: {place} is no field of {API_VERSION}; kube-scheduler would not start with it: {remedy}, "
                    "then run again"
                )
            _check_fields(item, schema[key], place, path)
    elif isinstance(schema, list):
        if not isinstance(value, list):
            raise ConfigError(f"{path}: {where} has to be a list")
        for number, item in enumerate(value):
            if item is None:
                raise ConfigError(f"{path}: {where}[{number}] is null; write an entry there or take it out")
            _check_fields(item, schema[0], f"{where}[{number}]", path)
    elif not isinstance(value, schema) or (isinstance(value, bool) and schema is not bool):
        kinds = schema if isinstance(schema, tuple) else (schema,)
        names = " or ".join(kind.__name__ for kind in kinds)
        raise ConfigError(f"{path}: {where} is {value!r}, which is no {names}")


def check_extenders(extenders: Sequence[Mapping[str, Any]], path: str) -> None:
    """Raise ConfigError for extenders that kube-scheduler would not start with together."""
    binders = [extender for extender in extenders if extender.get("bindVerb")]
    if len(binders) > 1:
        urls = " and ".join(str(extender.get("urlPrefix")) for extender in binders)
        raise TwoBindersError(
            f"{path}: {urls} would both bind pods, and kube-scheduler allows one binder: remove bind_verb from the"
            " extender that this module adds"
        )
    managed: Dict[str, str] = {}
    for extender in extenders:
        url = str(extender.get("urlPrefix"))
        if extender.get("prioritizeVerb") and (extender.get("weight") or 0) <= 0:
            raise ConfigError(f"{path}: extender {url} prioritizes, so its weight has to be 1 or more")
        for resource in extender.get("managedResources") or ():
            name = str(resource.get("name"))
            if name in managed:
                raise ConfigError(
                    f"{path}: {name} is managed by both {managed[name]} and {url}, and kube-scheduler allows one "
                    "extender a resource: remove one of them"
                )
            managed[name] = url
