# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter ``accel.kubernetes.node_offer``."""

from __future__ import annotations

DOCUMENTATION = r"""
name: node_offer
short_description: What a node is to offer of its GPUs, and what it does
version_added: 0.1.0
author: Accel Kubernetes contributors (@accel-kubernetes)
description:
  - Says by the rule of the device plugin which extended resources the GPUs of a node make.
  - Compares them with what the node offers.
options:
  _input:
    description: The node, as the API server has it; empty for one that is not registered.
    type: dict
    required: true
  nvml:
    description: Facts of its GPUs, as the module M(accel.kubernetes.nvml_facts) has them.
    type: dict
    default: {}
  mode:
    description: The mode that it is to serve.
    type: str
    required: true
  serves:
    description: The mode that it serves now; empty for none.
    type: str
    default: ""
  mig_strategy:
    description: What becomes of GPUs in MIG mode.
    type: str
    default: none
  configs:
    description: Configurations of the device plugin by name, each as text or as a mapping.
    type: dict
    default: {}
  config:
    description: Name of the configuration that the node is to have; empty for that of its label.
    type: str
    default: ""
  default_config:
    description: Name of the configuration of nodes without the label.
    type: str
    default: ""
"""

EXAMPLES = r"""
- name: Say what is missing
  ansible.builtin.debug:
    msg: "{{ (node | accel.kubernetes.node_offer(ansible_facts.accel_nvml, 'pgpu')).missing }}"
"""

RETURN = r"""
_value:
  description:
    - What is expected, offered, and found by resource, what is missing, and whether all is there.
    - How many GPUs are usable, the driver that the plugin tells of, and the name of the configuration.
    - Whether MPS shares GPUs, and the UUIDs of those that need a control daemon.
    - Why nothing can be offered, or nothing.
  type: dict
  sample:
    expected: {nvidia.com/gpu: 8}
    offered: {nvidia.com/gpu: 7}
    found: {nvidia.com/gpu: 7}
    missing: [7 of 8 nvidia.com/gpu]
    complete: false
    usable: 8
    told_driver: 580.159.04
    config: ""
    by_mps: false
    mps_gpus: []
    problem: ""
"""

from dataclasses import asdict
from typing import Any, Callable, Dict, Mapping, Optional

from ansible_collections.accel.kubernetes.plugins.module_utils.gpu_plugins.offer import Settings, offer


def node_offer(  # noqa: PLR0913 - its parameters are the filter's options
    node: Mapping[str, Any],
    nvml: Mapping[str, Any],
    mode: str,
    serves: str = "",
    mig_strategy: str = "none",
    configs: Optional[Mapping[str, Any]] = None,
    config: str = "",
    default_config: str = "",
) -> Dict[str, Any]:
    """Return what a node is to offer, and what it does."""
    return asdict(offer(node, nvml, serves, Settings(mode, mig_strategy, configs or {}, config, default_config)))


class FilterModule:
    """The filters of this file."""

    def filters(self) -> Dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {"node_offer": node_offer}
