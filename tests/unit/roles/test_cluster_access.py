# SPDX-License-Identifier: Apache-2.0
"""A kubeconfig of several clusters: every task that is given it is told which of them, too."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from yaml_files import document

ROOT = Path(__file__).parents[3]


def mappings(value: Any) -> Iterator[dict[str, Any]]:
    if isinstance(value, dict):
        yield value
    for item in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from mappings(item)


def test_whatever_is_given_a_kubeconfig_is_given_a_context() -> None:
    files = (*ROOT.glob("playbooks/**/*.yml"), *ROOT.glob("roles/*/tasks/*.yml"))
    given = {path: list(mappings(document(path))) for path in files}
    assert sum("kubeconfig" in each for found in given.values() for each in found) > 50
    assert [path for path, found in given.items() if any("kubeconfig" in e and "context" not in e for e in found)] == []
