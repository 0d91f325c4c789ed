# SPDX-License-Identifier: Apache-2.0
"""Grafana's own schema, as its Foundation SDK has it, held against the JSON of a dashboard.

The SDK's ``from_json`` passes over keys and types that the schema does not have, so that its annotations are read here.
"""

from __future__ import annotations

import enum
import importlib
import types
import typing
import warnings
from collections.abc import Iterator
from typing import Any

with warnings.catch_warnings():
    # The schema of the dashboards that every Grafana takes, and no longer its newest.
    warnings.simplefilter("ignore", DeprecationWarning)
    from grafana_foundation_sdk.cog.variants import Dataquery
    from grafana_foundation_sdk.models import dashboard, prometheus

_NUMBERS = (int, float)


def faults(found: Any) -> list[str]:
    """What the schema has against a dashboard, with the place of each."""
    return [*_of_value(found, dashboard.Dashboard, "")]


def _of_value(value: Any, hint: Any, place: str) -> Iterator[str]:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        tried = [[*_of_value(value, each, place)] for each in arguments]
        yield from min(tried, key=len)
    elif origin is typing.Literal:
        if value not in arguments:
            yield f"{place} is {value!r}, none of {arguments}"
    elif origin is list:
        yield from _of_list(value, arguments[0], place)
    elif origin is dict:
        yield from _of_mapping(value, arguments[1], place)
    elif hint in (Any, object):
        return
    elif hint is Dataquery:
        yield from _of_class(value, prometheus.Dataquery, place)
    elif isinstance(hint, type) and issubclass(hint, enum.Enum):
        if value not in [member.value for member in hint]:
            yield f"{place} is {value!r}, none of {[member.value for member in hint]}"
    elif hasattr(hint, "to_json"):
        yield from _of_class(value, hint, place)
    elif not isinstance(value, _NUMBERS if hint is float else hint) or (hint is not bool and isinstance(value, bool)):
        yield f"{place} is {value!r} and has to be of type {hint.__name__}"


def _of_list(value: Any, hint: Any, place: str) -> Iterator[str]:
    if not isinstance(value, list):
        yield f"{place} is no list"
        return
    for index, each in enumerate(value):
        yield from _of_value(each, hint, f"{place}[{index}]")


def _of_mapping(value: Any, hint: Any, place: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{place} is no object"
        return
    for name, each in value.items():
        yield from _of_value(each, hint, f"{place}.{name}")


def _of_class(value: Any, model: Any, place: str) -> Iterator[str]:
    if not isinstance(value, dict):
        yield f"{place} is no object"
        return
    hints = {_spelled(name.removesuffix("_val")): hint for name, hint in typing.get_type_hints(model).items()}
    if model is dashboard.Panel:
        yield from _of_plugin(value, place)
    for name, each in value.items():
        inner = f"{place}.{name}"
        if _spelled(name) not in hints:
            yield f"{inner} is not known to {model.__name__}"
        else:
            yield from _of_value(each, hints[_spelled(name)], inner)


def _of_plugin(panel: dict[str, Any], place: str) -> Iterator[str]:
    """What is the plugin's own in a panel, which the panel's schema leaves open."""
    kind = panel.get("type", "")
    try:
        plugin = importlib.import_module(f"grafana_foundation_sdk.models.{kind.replace('-', '')}")
    except ModuleNotFoundError:
        yield f"{place}.type is {kind!r}, which is no panel"
        return
    yield from _of_class(panel.get("options", {}), plugin.Options, f"{place}.options")
    custom = panel.get("fieldConfig", {}).get("defaults", {}).get("custom", {})
    if custom:
        yield from _of_class(custom, plugin.FieldConfig, f"{place}.fieldConfig.defaults.custom")


def _spelled(name: str) -> str:
    return name.replace("_", "").lower()
