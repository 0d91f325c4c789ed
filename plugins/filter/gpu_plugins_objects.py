# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter ``accel.kubernetes.gpu_plugins_objects``."""

from __future__ import annotations

DOCUMENTATION = r"""
name: gpu_plugins_objects
short_description: List the cluster objects of the device plugins
version_added: 0.1.0
author: Accel Kubernetes contributors (@accel-kubernetes)
description:
  - Leaves out DaemonSets that are turned off, and writes the checksum of its template into each of the others.
options:
  _input:
    description: The objects that templates make.
    type: list
    elements: dict
    required: true
  disabled:
    description: Names of DaemonSets that are turned off.
    type: list
    elements: str
    default: []
"""

EXAMPLES = r"""
- name: Create the objects
  accel.kubernetes.cluster_objects:
    definitions: "{{ (documents | accel.kubernetes.gpu_plugins_objects).objects }}"
"""

RETURN = r"""
_value:
  description:
    - C(objects) to apply, and C(templates) as the checksums of the DaemonSets' templates by name.
  type: dict
  sample: {objects: [], templates: {plugin: 9f86d081}}
"""

from typing import Any, Callable, Collection, Dict, Iterable, Mapping

from ansible_collections.accel.kubernetes.plugins.module_utils.gpu_plugins.objects import wanted_objects
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.plain import plain


def gpu_plugins_objects(documents: Iterable[Mapping[str, Any]], disabled: Collection[str] = ()) -> Dict[str, Any]:
    """Return the objects as plain values."""
    wanted: Dict[str, Any] = plain(wanted_objects(documents, disabled))
    return wanted


class FilterModule:
    """The filters of this file."""

    def filters(self) -> Dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {"gpu_plugins_objects": gpu_plugins_objects}
