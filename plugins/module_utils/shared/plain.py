# Apache License 2.0 (see https://www.apache.org/licenses/LICENSE-2.0)
# SPDX-License-Identifier: Apache-2.0
"""Plain values for Ansible. Pure."""

from __future__ import annotations

from dataclasses import fields, is_dataclass
from typing import Any, Mapping


def plain(value: Any) -> Any:  # noqa: ANN401 - as JSON is
    """Return dataclasses and mappings as dictionaries, sequences as lists, and all other values as they are.

    ``dataclasses.asdict`` makes deep copies, which Ansible's containers refuse.
    """
    if is_dataclass(value):
        return {field.name: plain(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, Mapping):
        return {key: plain(entry) for key, entry in value.items()}
    if isinstance(value, (list, tuple)):
        return [plain(entry) for entry in value]
    return value
