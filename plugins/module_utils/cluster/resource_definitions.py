# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Custom resource definitions as ConfigMaps (``cf-crl-*``): what they may say, and how they are written. Pure.

Source: the platform documentation condensed in ``CustomResourceLimitation`` ConfigMaps of namespace kube-public, one a
resource, with the labels ``features.alauda.io/{type,group,enabled}``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any, Dict, Iterable, List, Mapping, Sequence, Tuple

from ansible_collections.accel.kubernetes.plugins.module_utils.shared.api_json import (
    ANY,
    ODD,
    named,
    shaped,
    unreadable,
)

NAMESPACE = "kube-public"
DOMAIN = "features.alauda.io"
TYPE = f"{DOMAIN}/type"
GROUP = f"{DOMAIN}/group"
ENABLED = f"{DOMAIN}/enabled"
KIND = "CustomResourceLimitation"
_MARK = {"kube-accel.io/managed-by": "accel.kubernetes"}
"""Annotations of a definition that is written by us, and by nobody else."""

LIMITS = ("disabled", "required", "optional")
REQUESTS = ("disabled", "required", "fromLimits")
INTEGER = "integer"

_DNS_LABEL = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
# A qualified name of apimachinery's IsQualifiedName; without a prefix it would be one of Kubernetes' own resources.
_KEY = re.compile(
    rf"(?P<prefix>{_DNS_LABEL}(?:\.{_DNS_LABEL})*)/(?P<name>[A-Za-z0-9](?:[-A-Za-z0-9_.]{{0,61}}[A-Za-z0-9])?)"
)
_GROUP = re.compile(r"[A-Za-z0-9](?:[-A-Za-z0-9_.]{0,61}[A-Za-z0-9])?")
_NAME = re.compile(rf"{_DNS_LABEL}(?:\.{_DNS_LABEL})*")
_TYPE_NAME = re.compile(r"[a-z][A-Za-z0-9]*")
_WHOLE = re.compile(r"0|[1-9][0-9]*")
_NAME_PREFIX = "cf-crl-"
_NAME_LIMIT = 253
_PREFIX_LIMIT = 253
_QUOTA_PREFIX = "requests."


@dataclass(frozen=True)
class Definition:
    """One resource that users may ask for, as a form shows it."""

    key: str
    """The resource's name, as in a container's limits."""
    custom_name: str
    """What its ConfigMap is called after, beside the resource."""
    group: str = ""
    data_type: str = INTEGER
    default_value: str = ""
    description_en: str = ""
    description_zh: str = ""
    limits: str = "optional"
    requests: str = "disabled"
    enabled: bool = True

    @property
    def name(self) -> str:
        """Return the name of the ConfigMap."""
        return f"{_NAME_PREFIX}{_dashed(self.custom_name)}-{_resource(self.key)}"


def problems(definitions: Sequence[Definition], state: str) -> List[str]:
    """Return everything that is wrong, a sentence each, which names the definition; ``state`` is present or absent."""
    found = []
    names: Dict[str, str] = {}
    keys = set()
    for definition in definitions:
        wrong = _naming(definition) + (_content(definition) if state == "present" else [])
        if definition.key in keys and definition.name not in names and state == "present":
            wrong.append(f"a definition before {definition.name} already defines it, so a form would ask for it twice")
        keys.add(definition.key)
        if definition.name in names:
            other = names[definition.name]
            wrong.append(f"{other} has the ConfigMap {definition.name} already; choose another custom_name")
        names[definition.name] = definition.key
        found += [f"{definition.key or 'a definition without key'}: {words}" for words in wrong]
    return found


def configmap(definition: Definition) -> Dict[str, Any]:
    """Return the ConfigMap of a definition, as it is to be."""
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {
            "name": definition.name,
            "namespace": NAMESPACE,
            "labels": {TYPE: KIND, GROUP: definition.group, ENABLED: "true" if definition.enabled else "false"},
        },
        "data": {
            "key": definition.key,
            "dataType": definition.data_type,
            "defaultValue": definition.default_value,
            "descriptionEn": definition.description_en,
            "descriptionZh": definition.description_zh,
            "group": definition.group,
            "limits": definition.limits,
            "requests": definition.requests,
        },
    }


def readable(item: object) -> Dict[str, Any]:
    """Return a ConfigMap of which every part that is read is what it always is. Raises ApiJsonError, which names it."""
    found: Dict[str, Any] = shaped(item, {"metadata": {"name!": str, "labels": {ANY: str}}, "data": {ANY: str}})
    return found


def definitions_of(items: Iterable[object]) -> Tuple[List[Definition], Dict[str, List[str]]]:
    """Return the definitions of ConfigMaps by name, and what is wrong with each that is not right or is none."""
    found: List[Dict[str, Any]] = []
    wrong: Dict[str, List[str]] = {}
    for item in items:
        try:
            found.append(readable(item))
        except ODD as error:
            see = f"see kubectl --namespace {NAMESPACE} get configmap --output=yaml, and correct or remove it"
            wrong.setdefault(named(item), []).append(f"{unreadable(error)}; {see}")
    found.sort(key=lambda item: str(item["metadata"]["name"]))
    for item in found:
        wrong.setdefault(item["metadata"]["name"], []).extend(problems_of(item))
    return [definition_of(item) for item in found], {name: words for name, words in wrong.items() if words}


def definition_of(item: Mapping[str, Any]) -> Definition:
    """Return the reverse of ``configmap``.

    What a ConfigMap leaves out is empty; the name of a foreign one is not kept.
    """
    metadata = item.get("metadata") or {}
    labels, data = metadata.get("labels") or {}, item.get("data") or {}
    key = str(data.get("key") or "")
    tail = f"-{_resource(key)}"
    name = str(metadata.get("name") or "")
    custom = name[len(_NAME_PREFIX) : -len(tail)] if name.startswith(_NAME_PREFIX) and name.endswith(tail) else ""
    return Definition(
        key=key,
        custom_name=custom,
        group=str(labels.get(GROUP) or ""),
        data_type=str(data.get("dataType") or ""),
        default_value=str(data.get("defaultValue") or ""),
        description_en=str(data.get("descriptionEn") or ""),
        description_zh=str(data.get("descriptionZh") or ""),
        limits=str(data.get("limits") or ""),
        requests=str(data.get("requests") or ""),
        enabled=labels.get(ENABLED) == "true",
    )


def problems_of(item: Mapping[str, Any]) -> List[str]:
    """Return what is wrong with an existing ConfigMap."""
    definition = definition_of(item)
    if definition.custom_name:
        found = problems([definition], "present")
    else:
        found = [f"its name is not {_NAME_PREFIX}<custom name>-{_resource(definition.key) or '<resource>'}"]
    if (item.get("data") or {}).get("group") != definition.group:
        found.append(f"its label {GROUP} and its data disagree about the group")
    return found


def ours(item: Mapping[str, Any]) -> bool:
    """Return whether a ConfigMap is a definition at all."""
    return ((item.get("metadata") or {}).get("labels") or {}).get(TYPE) == KIND


def says(item: Mapping[str, Any], definition: Definition) -> bool:
    """Return whether a ConfigMap means the same to the platform; what one leaves out is empty."""
    return configmap(definition_of(item)) == configmap(definition)


def marked(item: Mapping[str, Any]) -> Dict[str, Any]:
    """Return a ConfigMap as one that we made."""
    metadata = dict(item["metadata"])
    metadata["annotations"] = {**(metadata.get("annotations") or {}), **_MARK}
    return {**item, "metadata": metadata}


def is_marked(item: Mapping[str, Any]) -> bool:
    """Return whether we made a ConfigMap, and may change and remove it."""
    annotations = (item.get("metadata") or {}).get("annotations") or {}
    return bool(_MARK.items() <= annotations.items())


def duplicates(definitions: Sequence[Definition], items: Iterable[Mapping[str, Any]]) -> Dict[str, str]:
    """ConfigMaps beside those of ``definitions`` that are offered for the same resource, with its name."""
    names = {definition.name for definition in definitions}
    keys = {definition.key for definition in definitions if definition.enabled}
    found = {}
    for item in items:
        name, other = str(item["metadata"]["name"]), definition_of(item)
        if other.enabled and other.key in keys and name not in names:
            found[name] = other.key
    return dict(sorted(found.items()))


def merged(existing: Mapping[str, Any], definition: Definition) -> Dict[str, Any]:
    """Return an existing ConfigMap as it is to be: what others wrote beside our labels and data stays."""
    wanted = configmap(definition)
    metadata = dict(existing.get("metadata") or {})
    metadata["labels"] = {**(metadata.get("labels") or {}), **wanted["metadata"]["labels"]}
    return {**existing, "metadata": metadata, "data": {**(existing.get("data") or {}), **wanted["data"]}}


def _dashed(text: str) -> str:
    return re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-")


def _resource(key: str) -> str:
    """Return the part of a ConfigMap's name that stands for the resource."""
    return _dashed(key.rpartition("/")[2])


def _naming(definition: Definition) -> List[str]:
    found = []
    match = _KEY.fullmatch(definition.key)
    if match is None or len(match["prefix"]) > _PREFIX_LIMIT:
        found.append("key is not the name of an extended resource such as nvidia.com/gpu")
    elif match["prefix"].endswith("kubernetes.io"):
        found.append("key belongs to Kubernetes; an extended resource needs its own domain")
    if not _dashed(definition.custom_name):
        found.append("custom_name has no letter and no digit")
    elif len(definition.name) > _NAME_LIMIT or not _NAME.fullmatch(definition.name):
        found.append(f"custom_name makes the ConfigMap's name longer than {_NAME_LIMIT} characters")
    return found


def _content(definition: Definition) -> List[str]:
    found = []
    if definition.key.startswith(_QUOTA_PREFIX):
        found.append(
            f"key begins with {_QUOTA_PREFIX}, like names in quotas; Kubernetes does not accept such a resource"
        )
    if not _GROUP.fullmatch(definition.group):
        found.append("group must be a label's value: 1 to 63 letters, digits, '-', '_', or '.'")
    if not _TYPE_NAME.fullmatch(definition.data_type):
        found.append(f"data_type must be a word such as {INTEGER}")
    elif (
        definition.data_type == INTEGER and definition.default_value and not _WHOLE.fullmatch(definition.default_value)
    ):
        found.append(
            f"default_value {definition.default_value!r} is not a whole number, which data_type {INTEGER} needs"
        )
    for option, value, known in (
        ("limits", definition.limits, LIMITS),
        ("requests", definition.requests, REQUESTS),
    ):
        if value not in known:
            found.append(f"{option} must be one of {', '.join(known)}")
    if definition.requests in ("required", "fromLimits") and definition.limits == "disabled":
        found.append(
            f"requests is {definition.requests} and limits is disabled, but Kubernetes does not accept a request"
            " without a limit; set limits to required or optional"
        )
    return found
