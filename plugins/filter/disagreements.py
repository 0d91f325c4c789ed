# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter ``accel.kubernetes.disagreements``."""

from __future__ import annotations

DOCUMENTATION = r"""
name: disagreements
short_description: List variables whose values differ between hosts of one cluster
version_added: 0.1.0
author: Accel Kubernetes contributors (@accel-kubernetes)
description:
  - Compares variables of the role gpu_plugins between hosts that name the same cluster.
  - Values of other types that are written alike are the same.
options:
  _input:
    description: Variables of all hosts, C(hostvars).
    type: dict
    required: true
  host:
    description: The host with which the others are compared.
    type: str
    required: true
  hosts:
    description: The others.
    type: list
    elements: str
    required: true
  defaults:
    description: The role's defaults, which are the values of hosts that set none.
    type: dict
    required: true
  assembled:
    description: Whether this run assembles the image.
    type: bool
    required: true
  mig_labelled:
    description: Whether plugins cut GPUs by a label.
    type: bool
    required: true
"""

EXAMPLES = r"""
- name: Fail if hosts disagree
  ansible.builtin.assert:
    that: hostvars | accel.kubernetes.disagreements(inventory_hostname, groups.gpu_nodes, {}, false, false) == []
"""

RETURN = r"""
_value:
  description: A sentence for each variable.
  type: list
  elements: str
  sample: [gpu_plugins_mig_strategy of gpu-2 differs from that of gpu-1]
"""

from typing import Any, Callable, Dict, List, Mapping, Sequence

from ansible_collections.accel.kubernetes.plugins.module_utils.gpu_plugins import agreement


def disagreements(
    hostvars: Mapping[str, Any],
    host: str,
    hosts: Sequence[str],
    defaults: Mapping[str, Any],
    assembled: bool,
    mig_labelled: bool,
) -> List[str]:
    """Return a sentence for each variable of which hosts have different values."""
    names = agreement.common_names(assembled, mig_labelled)
    found: List[str] = agreement.disagreements(hostvars, host, hosts, names, defaults)
    return found


class FilterModule:
    """The filters of this file."""

    def filters(self) -> Dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {"disagreements": disagreements}
