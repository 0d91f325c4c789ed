# SPDX-License-Identifier: Apache-2.0
"""Which of several configurations a node has, and whether its pods can live with it. Pure."""

from __future__ import annotations

from collections.abc import Container, Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from kube_accel.kube.podresources import PodDevices
from kube_accel.model import Mode
from kube_accel.plugin.configuration.file import ConfigError, Configuration, parse
from kube_accel.shared import label_names
from kube_accel.sharing.fraction import gpu_of
from kube_accel.sharing.profile import mode_of

LABEL: Final = label_names.CONFIG
"""The node label that names a configuration."""

_SHOWN = 5
"""Pods named in a refusal; there may be hundreds."""


class NotChosenError(Exception):
    """A configuration that is not to be used; ``reason`` is one word for an Event, the message is for a person."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


@dataclass(frozen=True, slots=True)
class Chosen:
    """A configuration, and where it came from."""

    name: str
    """Its key in the ConfigMap; empty for none, which leaves the GPUs whole."""
    text: str
    configuration: Configuration


NONE = Chosen("", "", Configuration())


def choose(configs: Mapping[str, object], label: str | None, default: str) -> Chosen:
    """Return the configuration that the node's label names, or ``default``, or none where that is empty.

    Raises NotChosenError when there is none of that name or when it has a mistake.
    """
    name = label or default
    if not name:
        return NONE
    by = f"label {LABEL}={label}" if label else "the default of the plugin"
    text = configs.get(name)
    if text is None:
        there = ", ".join(sorted(configs)) or "none"
        raise NotChosenError("ConfigurationMissing", f"{by} names configuration {name}; there are: {there}")
    if not isinstance(text, str):
        raise NotChosenError("ConfigurationInvalid", f"configuration {name} is no text; nothing of it was applied")
    try:
        return Chosen(name, text, parse(text))
    except ConfigError as error:
        raise NotChosenError(
            "ConfigurationInvalid", f"configuration {name}: {error}; nothing of it was applied"
        ) from error


def in_the_way(
    listed: Iterable[PodDevices], hardware: Container[str], wanted: Mapping[str, Container[str]]
) -> NotChosenError | None:
    """Return why pods keep the node from offering ``wanted``, ids by resource; None when they do not.

    What pods hold of ``hardware``, by UUID, must go on being offered by the same names, or they would have a GPU that
    is not accounted for.
    """
    pods = sorted(
        {
            f"{entry.namespace}/{entry.pod} ({entry.resource})"
            for entry in listed
            if mode_of(entry.resource) is Mode.PGPU
            for device in entry.device_ids
            if gpu_of(device) in hardware and device not in wanted.get(entry.resource, ())
        }
    )
    if not pods:
        return None
    more = f" and {len(pods) - _SHOWN} more" if len(pods) > _SHOWN else ""
    return NotChosenError(
        "ConfigurationRefused",
        f"pods hold devices that it does not have: {', '.join(pods[:_SHOWN])}{more}; applied when they have ended",
    )
