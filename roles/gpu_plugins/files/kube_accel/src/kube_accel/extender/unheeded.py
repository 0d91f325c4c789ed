# SPDX-License-Identifier: Apache-2.0
"""Annotations of ours by which a pod wants something that nobody gives it. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

from kube_accel.shared.asked import names_asked
from kube_accel.shared.wishes import UNHEEDED, WISHES, no_effect
from kube_accel.sharing.assignment import ANNOTATION

REASON: Final = UNHEEDED
OURS: Final = frozenset({ANNOTATION, "kube-accel.io/quota-changed", "kube-accel.io/room-found"})
"""What the extender itself writes to pods."""
_PREFIX = "kube-accel.io/"
_OF_NVIDIA = "nvidia.com/"


def unheeded(item: Mapping[str, Any], managed: bool) -> str:
    """Return what to say of a waiting pod's annotations that nobody heeds, empty where there are none.

    ``managed`` says whether the extender is asked about the pod. Raises ValueError where its containers are no JSON.
    """
    metadata, spec = item.get("metadata") or {}, item.get("spec") or {}
    annotations = metadata.get("annotations") or {}
    wished = sorted(name for name in annotations if name.startswith(_PREFIX)) if isinstance(annotations, dict) else []
    if not wished or spec.get("nodeName"):
        return ""
    if managed:
        odd = [name for name in wished if name not in WISHES and name not in OURS]
        known = ", ".join(sorted(WISHES))
        return f"no annotation of this name is known: {', '.join(odd)}; there are {known}" if odd else ""
    wishes = [name for name in wished if name in WISHES]
    resources = sorted(name for name in names_asked(spec) if name.startswith(_OF_NVIDIA))
    if not wishes or not resources:
        return ""
    return no_effect(", ".join(wishes), ", ".join(resources))
