# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What kube-scheduler takes for a KubeSchedulerConfiguration. No I/O.

Source of the tables: the Go types of kubescheduler.config.k8s.io/v1 (k8s.io/kube-scheduler/config/v1 and
k8s.io/component-base/config/v1alpha1). kube-scheduler decodes strictly: one unknown field and it does not start.
"""

from __future__ import annotations

from typing import Any, Dict, Mapping, Sequence

from ansible_collections.accel.kubernetes.plugins.module_utils.documents import yaml_text

API_VERSION = "kubescheduler.config.k8s.io/v1"

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


class ConfigError(Exception):
    """The file cannot be made what was asked for. Says which, why and what to do."""

    code = "refused"


class TwoBindersError(ConfigError):
    """More than one extender of the file would bind pods."""

    code = "two_binders"


def check(data: Mapping[str, Any], path: str) -> None:
    """Raise ConfigError for what kube-scheduler would refuse to start with."""
    version = data.get("apiVersion")
    if version != API_VERSION or data.get("kind") != "KubeSchedulerConfiguration":
        raise ConfigError(
            f"{path} is {version} {data.get('kind')}, not {API_VERSION} KubeSchedulerConfiguration, "
            "the only version Kubernetes serves from 1.29 on; convert it, then run again"
        )
    _check_fields(data, _SCHEMA, "", path)
    for number, profile in enumerate(data.get("profiles") or ()):
        for position, plugin in enumerate(profile.get("pluginConfig") or ()):
            if plugin.get("name") == FIT and plugin.get("args") is not None:
                where = f"profiles[{number}].pluginConfig[{position}].args"
                _check_fields(plugin["args"], _FIT_ARGS, where, path)
    check_extenders(data.get("extenders") or (), path)


def loaded(text: str, path: str) -> Dict[str, Any]:
    """Return the configuration. Raises ConfigError for one that kube-scheduler would not start with."""
    try:
        data: Dict[str, Any] = yaml_text.load(text, path, strict=True)
    except yaml_text.YamlError as error:
        raise ConfigError(str(error)) from error
    check(data, path)
    return data


def _check_fields(value: object, schema: Any, where: str, path: str) -> None:  # noqa: ANN401
    if value is None or schema is object:
        return
    if isinstance(schema, dict):
        if not isinstance(value, dict):
            raise ConfigError(f"{path}: {where} has to be a mapping")
        for key, item in value.items():
            place = f"{where}.{key}" if where else key
            if key not in schema:
                raise ConfigError(
                    f"{path}: {place} is no field of {API_VERSION}; kube-scheduler would not start with it: correct or "
                    "remove it, then run again"
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
            f"{path}: {urls} would both bind pods, and kube-scheduler allows one binder: leave bind_verb out of ours"
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
