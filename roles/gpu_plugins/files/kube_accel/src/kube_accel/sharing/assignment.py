# SPDX-License-Identifier: Apache-2.0
"""The pod annotations that say which GPUs a pod was assigned. Anyone may have written what is read here."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

from kube_accel.model import Assignment, Mode, Share
from kube_accel.shared import label_names
from kube_accel.shared.reading import read_document, read_number, read_objects, read_text

ANNOTATION: Final = label_names.ASSIGNMENT
VERSION: Final = 1

_MAX_TEXT = 64 << 10
_MAX_ENTRIES = 64
"""Containers of a pod, and GPUs of a container."""
_MAX_MEMORY = 2**63 - 1
_UUID = re.compile(r"[A-Za-z0-9-]{1,64}")
_CONTAINER = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")
_NODE = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")


def encode(assignment: Assignment, why: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return the annotation's text; the same assignment always gives the same text.

    ``why`` says by container how its GPUs were chosen. It is for people: ``decode`` leaves it out.
    """
    containers = {
        name: [{"uuid": share.uuid, "cores": share.cores, "memoryBytes": share.memory_bytes} for share in shares]
        for name, shares in sorted(assignment.containers.items())
    }
    document = {"version": VERSION, "node": assignment.node, "containers": containers}
    document |= {"why": dict(sorted(why.items()))} if why else {}
    return json.dumps(document, separators=(",", ":"))


def decode(text: str) -> Assignment:
    """Return the assignment an annotation's text states. Keys it does not know are left to later versions.

    Raises ValueError for everything that ``encode`` cannot have written, whatever the text.
    """
    document = read_document(text, VERSION, _MAX_TEXT)
    containers = document.get("containers")
    if not isinstance(containers, dict) or not 0 < len(containers) <= _MAX_ENTRIES:
        raise ValueError(f"containers: not 1 to {_MAX_ENTRIES} of them")
    for name in containers:
        if _CONTAINER.fullmatch(name) is None:
            raise ValueError("containers: a malformed name")
    return Assignment(
        read_text(document, "node", _NODE), {name: _shares(shares) for name, shares in containers.items()}
    )


def pod_annotations(
    assignment: Assignment,
    mode: Mode,
    app_containers: tuple[str, ...],
    gpu_index: Mapping[str, int],
    now_ns: int,
    why: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, str]:
    """Return all annotations of an assignment, ``tencent.com/*`` for vgpu included.

    ``app_containers`` are the names of the pod's ``spec.containers`` in order, which number the predicate annotations;
    ``gpu_index`` gives the index of each assigned UUID; ``now_ns`` is the time in nanoseconds since 1970. ``why`` is as
    for ``encode``.
    """
    found = {ANNOTATION: encode(assignment, why)}
    if mode is Mode.VGPU:
        found["tencent.com/predicate-node"] = assignment.node
        found["tencent.com/predicate-time"] = str(now_ns)
        found["tencent.com/gpu-assigned"] = "false"
        for number, name in enumerate(app_containers):
            if name in assignment.containers:
                indexes = (str(gpu_index[share.uuid]) for share in assignment.containers[name])
                found[f"tencent.com/predicate-gpu-idx-{number}"] = ",".join(indexes)
    return found


def _shares(value: object) -> tuple[Share, ...]:
    shares = tuple(
        Share(
            uuid=read_text(entry, "uuid", _UUID),
            cores=read_number(entry, "cores", 100),
            memory_bytes=read_number(entry, "memoryBytes", _MAX_MEMORY),
        )
        for entry in read_objects(value, "shares of a container", _MAX_ENTRIES, least=1)
    )
    if len({share.uuid for share in shares}) < len(shares):
        raise ValueError("a container has two shares of one GPU")
    return shares
