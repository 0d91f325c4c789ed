# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Reads a KubeSchedulerConfiguration of versions v1beta2 and v1beta3 as version v1 has it. No I/O.

Source of the tables: the Go types and defaults of kubescheduler.config.k8s.io/v1beta2, v1beta3 and v1, and what
kube-scheduler validates of each.
"""

from __future__ import annotations

import copy
import re
from dataclasses import dataclass
from typing import Any, Dict, List, Mapping, Sequence, Set

from ansible_collections.accel.kubernetes.plugins.module_utils.documents import yaml_text

from .schema import API_VERSION, KIND, ConfigError, check, check_fields

_GROUP = API_VERSION.partition("/")[0]
_OLDER = {f"{_GROUP}/v1beta2": 27, f"{_GROUP}/v1beta3": 28}
"""By version, the last minor version of Kubernetes whose kube-scheduler reads it."""
_INSECURE = ("healthzBindAddress", "metricsBindAddress")
_LOCKS = ("endpointsleases", "configmapsleases")
"""Locks that hold the Lease too, so that a scheduler which takes the Lease alone is never a second leader."""
_RISEN = {"TaintToleration": 3, "NodeAffinity": 2, "InterPodAffinity": 2}
"""Weights of v1beta3 and v1, by plugin, where v1beta2 has 1 for one that nobody weighs."""
_IDLE = ("AzureDiskLimits", "CinderLimits", "EBSLimits", "GCEPDLimits")
"""Plugins without an effect since NodeVolumeLimits counts their volumes."""
_SPREAD, _SUCCESSOR = "SelectorSpread", "PodTopologySpread"
_SCORING = "set scoringStrategy of NodeResourcesFit in pluginConfig"
_REMOVED = {
    "NodeLabel": "use NodeAffinity, and addedAffinity in its pluginConfig",
    "NodePreferAvoidPods": "use taints of effect PreferNoSchedule",
    "NodeResourcesLeastAllocated": _SCORING,
    "NodeResourcesMostAllocated": _SCORING,
    "RequestedToCapacityRatio": _SCORING,
    "ServiceAffinity": "use InterPodAffinity",
}
"""Plugins that no version from v1beta2 on takes, and what does their work."""


@dataclass(frozen=True)
class Reading:
    """A configuration in the words of v1."""

    data: Dict[str, Any]
    older: str
    """The version the file is of, empty for v1."""
    notes: Sequence[str]
    """What v1 says otherwise, for people."""


def read(text: str, path: str) -> Reading:
    """Return the configuration. Raises ConfigError for one that v1 has no words for, by the field's name."""
    try:
        data: Dict[str, Any] = yaml_text.load(text, path, strict=True)
    except yaml_text.YamlError as error:
        raise ConfigError(str(error)) from error
    version = str(data.get("apiVersion"))
    if data.get("kind") != KIND or version not in _OLDER:
        check(data, path)
        return Reading(data, "", ())
    conversion = _Conversion(data, path, version.rpartition("/")[2])
    check(conversion.data, path)
    return Reading(conversion.data, version.rpartition("/")[2], conversion.notes)


def loaded(text: str, path: str) -> Dict[str, Any]:
    """Return the configuration as v1 has it. Raises ConfigError for one that kube-scheduler would not start with."""
    return read(text, path).data


def is_read_by(text: str, path: str, minor: int | None) -> bool:
    """Return whether kube-scheduler 1.``minor`` reads a file of this version; true where the minor is not known."""
    older = read(text, path).older
    return minor is None or not older or minor <= _OLDER[f"{_GROUP}/{older}"]


class _Conversion:
    """One file of an older version."""

    def __init__(self, data: Mapping[str, Any], path: str, version: str) -> None:
        self.data: Dict[str, Any] = copy.deepcopy(dict(data))
        self.notes: List[str] = []
        self._path = path
        self._version = version
        self.data["apiVersion"] = API_VERSION
        for name in _INSECURE:
            self._drop_address(name)
        check_fields(self.data, path)
        self._convert_lock()
        if version == "v1beta2":
            self._tell_weights()
        for number, profile in enumerate(self.data.get("profiles") or ()):
            self._convert_plugins(profile, f"profiles[{number}]")
            self._convert_arguments(profile, f"profiles[{number}].pluginConfig")

    def _refusal(self, field: str, why: str, remedy: str) -> ConfigError:
        return ConfigError(
            f"{self._path} is of version {self._version}, and its {field} {why}, which {API_VERSION} has nothing for: "
            f"{remedy}, then run again"
        )

    def _drop_address(self, name: str) -> None:
        if name not in self.data:
            return
        value = self.data.pop(name)
        if value and not re.fullmatch(r".*:0+", str(value)):
            raise self._refusal(
                name,
                f"is {value!r}",
                "kube-scheduler has served --secure-port alone since Kubernetes 1.23; take it out",
            )

    def _convert_lock(self) -> None:
        election = self.data.get("leaderElection") or {}
        lock = election.get("resourceLock")
        if lock in _LOCKS:
            election["resourceLock"] = "leases"
            self.notes.append(f"leaderElection.resourceLock is leases, which {lock} held as well")
        elif lock not in (None, "", "leases") and election.get("leaderElect") is not False:
            raise self._refusal(
                "leaderElection.resourceLock",
                f"is {lock}",
                "change it on all control planes to endpointsleases, and then to leases",
            )

    def _tell_weights(self) -> None:
        """Note which plugins weigh more than before: those that a profile neither weighs itself nor disables."""
        risen: Set[str] = set()
        for profile in self.data.get("profiles") or [{}]:
            named = {name for key in ("enabled", "disabled") for name in _names(profile, ("score", "multiPoint"), key)}
            risen.update(name for name in _RISEN if not named & {name, "*"})
        if risen:
            weights = ", ".join(f"{name} {weight}" for name, weight in _RISEN.items() if name in risen)
            self.notes.append(f"plugins that no profile weighs count by v1's weights, in place of 1: {weights}")

    def _convert_plugins(self, profile: Dict[str, Any], where: str) -> None:
        points = profile.get("plugins") or {}
        for point, plugins in list(points.items()):
            for key in ("enabled", "disabled"):
                listed = list(enumerate((plugins or {}).get(key) or ()))
                for number, plugin in reversed(listed):
                    name = str(plugin.get("name"))
                    place = f"{where}.plugins.{point}.{key}[{number}]"
                    if key == "enabled" and name in _REMOVED:
                        raise self._refusal(place, f"is {name}", f"take it out, and {_REMOVED[name]}")
                    if key == "enabled" and name == _SPREAD and self._takes_over(profile, point, place):
                        plugin["name"] = _SUCCESSOR
                        self.notes.append(f"{place} is {_SUCCESSOR}, which does the work of {_SPREAD}")
                    elif name in (_SPREAD, *_IDLE, *_REMOVED):
                        del plugins[key][number]
                        self.notes.append(f"{place}, {name}, is left out: v1 is without it")
                if listed and not plugins[key]:
                    del plugins[key]
                    if not plugins:
                        del points[point]
                    if not points:
                        del profile["plugins"]

    def _takes_over(self, profile: Mapping[str, Any], point: str, place: str) -> bool:
        """Return whether the successor has to be enabled in the place of SelectorSpread; it may be by default.

        Raises ConfigError where it was made to do something else.
        """
        arguments: Any = next(
            (each.get("args") for each in profile.get("pluginConfig") or () if each.get("name") == _SUCCESSOR), None
        )
        disabled = _names(profile, (point, "multiPoint"), "disabled")
        defaulting = arguments.get("defaultingType") if isinstance(arguments, dict) else None
        if _SUCCESSOR in disabled or defaulting == "List":
            how = "is disabled" if _SUCCESSOR in disabled else "has constraints of its own (defaultingType List)"
            raise self._refusal(
                place,
                f"is {_SPREAD}",
                f"{_SUCCESSOR} does its work, and {how} in this profile; choose one of them",
            )
        return "*" in disabled and _SUCCESSOR not in _names(profile, (point, "multiPoint"), "enabled")

    def _convert_arguments(self, profile: Dict[str, Any], where: str) -> None:
        configured = profile.get("pluginConfig") or []
        before = len(configured)
        for number, plugin in reversed(list(enumerate(configured))):
            name, arguments = str(plugin.get("name")), plugin.get("args")
            place = f"{where}[{number}]"
            if name in _REMOVED and arguments:
                raise self._refusal(place, f"is of {name}", f"take it out, and {_REMOVED[name]}")
            if name in (_SPREAD, *_REMOVED):
                del configured[number]
                self.notes.append(f"{place}, of {name}, is left out: v1 is without it")
            elif isinstance(arguments, dict) and arguments.get("apiVersion") in _OLDER:
                arguments["apiVersion"] = API_VERSION
        if before and not configured:
            del profile["pluginConfig"]


def _names(profile: Mapping[str, Any], points: Sequence[str], key: str) -> List[str]:
    """Return the plugins that a profile enables or disables at extension points."""
    plugins = profile.get("plugins") or {}
    return [str(each.get("name")) for point in points for each in (plugins.get(point) or {}).get(key) or ()]
