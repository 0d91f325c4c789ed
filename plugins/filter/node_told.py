# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter ``accel.kubernetes.node_told``."""

from __future__ import annotations

DOCUMENTATION = r"""
name: node_told
short_description: What annotations of the collection say of a node
version_added: 0.1.0
author: Accel Kubernetes contributors (@accel-kubernetes)
description:
  - Reads the annotations that plugins and roles of the collection write. Anybody else may have written over them.
  - An annotation that cannot be read counts as absent, and is one of the problems.
options:
  _input:
    description: A node, as the API server has it. What is no node tells nothing.
    type: raw
    required: true
"""

EXAMPLES = r"""
- name: Report annotations that cannot be read
  ansible.builtin.debug:
    msg: "{{ (node | accel.kubernetes.node_told).problems }}"
"""

RETURN = r"""
_value:
  description:
    - Number of healthy GPUs (null if that cannot be read), driver, our taint, the labels that the plugin keeps, and
      problems.
  type: dict
  sample: {healthy: 8, driver: 580.159.04, taint: {}, labels: [nvidia.com/gpu.count], problems: []}
"""

from dataclasses import asdict
from typing import Any, Callable, Dict

from ansible_collections.accel.kubernetes.plugins.module_utils.cluster.annotations import node_told


def told(node: object) -> Dict[str, Any]:
    """Return what annotations say of the node."""
    return asdict(node_told(node))


class FilterModule:
    """The filters of this file."""

    def filters(self) -> Dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {"node_told": told}
