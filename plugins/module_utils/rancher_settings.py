# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""How k3s and rke2 read their settings. No I/O.

Both read ``config.yaml`` and then ``config.yaml.d/*.yaml`` in the order of their names. A key given again replaces the
value before, and one that ends with ``+`` adds to it (k3s, pkg/configfilearg).
"""

from __future__ import annotations

import posixpath
from typing import Any, Dict, List, Mapping, Tuple

from ansible_collections.accel.kubernetes.plugins.module_utils import yaml_text


def load(text: str, path: str) -> Dict[str, Any]:
    """The settings in a file. Raises YamlError."""
    if not any(line.strip() not in ("", "---") and not line.lstrip().startswith("#") for line in text.splitlines()):
        return {}
    data: Dict[str, Any] = yaml_text.load(text, path)
    return data


def merged(files: Mapping[str, Mapping[str, Any]]) -> Dict[str, Any]:
    """The settings in effect, from those of each file by path in the order in which they are read."""
    values: Dict[str, Any] = {}
    for settings in files.values():
        for key, value in settings.items():
            name = key[:-1] if key.endswith("+") else key
            if name != key and name in values:
                values[name] = listed(values[name]) + listed(value)
            else:
                values[name] = value
    return values


def rank(path: str) -> Tuple[bool, str]:
    """A key that sorts files of settings as they are read."""
    return ".d/" in path, posixpath.basename(path)


def listed(value: object) -> List[Any]:
    """A setting's values, of which it may have one that is no list."""
    if value is None:
        return []
    return list(value) if isinstance(value, list) else [value]
