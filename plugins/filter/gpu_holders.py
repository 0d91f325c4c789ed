# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter ``accel.kubernetes.gpu_holders``."""

from __future__ import annotations

DOCUMENTATION = r"""
name: gpu_holders
short_description: List the pods that hold GPUs
version_added: 0.1.0
author: Accel Kubernetes contributors (@accel-kubernetes)
description:
  - Finds the pods that ask for what one of our modes offers and have not ended.
  - On a node of mode dra, a pod with a ResourceClaim counts as one of them.
  - A pod that cannot be read counts as one of them. A pod without a name does not.
options:
  _input:
    description: Pods of a node or of all, as the API server has them.
    type: list
    elements: dict
    required: true
  nodes:
    description: Their nodes, as the API server has them.
    type: list
    elements: dict
    required: true
"""

EXAMPLES = r"""
- name: Report the pods that hold the node's GPUs
  ansible.builtin.debug:
    msg: "{{ (pods.resources | accel.kubernetes.gpu_holders(nodes.resources)).all }}"
"""

RETURN = r"""
_value:
  description:
    - All such pods, those that would return after an eviction (C(returning)), and those without a controller
      (C(bare)), each as namespace/name.
  type: dict
  sample: {all: [team-a/train, kube-system/agent], returning: [kube-system/agent], bare: [team-a/train]}
"""

from typing import Any, Callable, Dict, Iterable, List, Mapping

from ansible_collections.accel.kubernetes.plugins.module_utils.shared.holders import holders_on


def gpu_holders(pods: Iterable[Mapping[str, Any]], nodes: Iterable[Mapping[str, Any]]) -> Dict[str, List[str]]:
    """Return the pods that hold GPUs, by what evicting them does."""
    found = holders_on(pods, nodes)
    return {
        "all": list(map(str, found)),
        "returning": [str(pod) for pod in found if pod.returns],
        "bare": [str(pod) for pod in found if pod.bare],
    }


class FilterModule:
    """The filters of this file."""

    def filters(self) -> Dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {"gpu_holders": gpu_holders}
