# Apache License 2.0 (see https://www.apache.org/licenses/LICENSE-2.0)
# SPDX-License-Identifier: Apache-2.0
"""Reads what modules returned to a role, and what a cluster answered, which may be of any form. Pure."""

from __future__ import annotations

from typing import Any, List, Mapping


def mapping(value: object) -> Mapping[str, Any]:
    """Return the value where it is a mapping, and otherwise an empty one."""
    return value if isinstance(value, Mapping) else {}


def entries(value: object) -> List[Any]:
    """Return the entries of a list, and none of what is no list."""
    return list(value) if isinstance(value, (list, tuple)) else []


def mappings(value: object) -> List[Mapping[str, Any]]:
    """Return those entries of a list that are mappings."""
    return [entry for entry in entries(value) if isinstance(entry, Mapping)]


def results(register: object) -> List[Mapping[str, Any]]:
    """Return the results of a task with a loop; none of one that was skipped."""
    return mappings(mapping(register).get("results"))


def resources(register: object) -> List[Mapping[str, Any]]:
    """Return the objects that ``kubernetes.core.k8s_info`` found, with a loop or without."""
    return [item for answer in [mapping(register), *results(register)] for item in mappings(answer.get("resources"))]


def metadata_of(item: object) -> Mapping[str, Any]:
    """Return the metadata of an object of the cluster."""
    return mapping(mapping(item).get("metadata"))


def annotations_of(item: object) -> Mapping[str, Any]:
    """Return the annotations of an object of the cluster."""
    return mapping(metadata_of(item).get("annotations"))


def labels_of(item: object) -> Mapping[str, Any]:
    """Return the labels of an object of the cluster."""
    return mapping(metadata_of(item).get("labels"))


def lines(register: object) -> List[str]:
    """Return the lines that a command printed; none of one that was skipped."""
    return [str(text) for text in entries(mapping(register).get("stdout_lines"))]
