# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter ``accel.kubernetes.installed_collections``."""

from __future__ import annotations

DOCUMENTATION = r"""
name: installed_collections
short_description: List the versions of collections that Ansible finds
version_added: 0.1.0
author: Accel Kubernetes contributors (@accel-kubernetes)
description:
  - Looks where Ansible looks for collections, and reads the manifest of each.
options:
  _input:
    description: The entries of C(collections) in a requirements file, each with C(name) and C(version), its range.
    type: list
    elements: dict
    required: true
"""

EXAMPLES = r"""
- name: Report the installed collections
  ansible.builtin.debug:
    msg: "{{ wanted.collections | accel.kubernetes.installed_collections }}"
  vars:
    wanted: "{{ lookup('ansible.builtin.file', 'requirements.yml') | from_yaml }}"
"""

RETURN = r"""
_value:
  description: >-
    Each of them with its C(name), the range C(wanted), and the C(version), which is C(unknown) for a clone, and empty
    for none.
  type: list
  elements: dict
  sample: [{name: kubernetes.core, wanted: ">=5.0.0", version: 6.2.0}]
"""

import json
from importlib import import_module
from pathlib import Path
from typing import Any, Callable, Dict, Iterable, List, Mapping


def installed_collections(wanted: Iterable[Mapping[str, Any]]) -> List[Dict[str, str]]:
    """Return collections with the versions that are installed."""
    return [
        {"name": entry["name"], "wanted": str(entry.get("version", "")), "version": _version(entry["name"])}
        for entry in wanted
    ]


def _version(name: str) -> str:
    """Return the version of a collection, which is not known of one without a manifest, as a clone is."""
    try:
        package = import_module(f"ansible_collections.{name}")
    except ImportError:
        return ""
    manifest = Path(next(iter(package.__path__))) / "MANIFEST.json"
    try:
        return str(json.loads(manifest.read_text())["collection_info"]["version"])
    except (OSError, ValueError, LookupError, TypeError):
        return "unknown"


class FilterModule:
    """The filters of this file."""

    def filters(self) -> Dict[str, Callable[..., Any]]:
        """Return the functions by their names."""
        return {"installed_collections": installed_collections}
