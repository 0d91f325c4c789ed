# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter ``accel.kubernetes.driver_upgrades``."""

from __future__ import annotations

DOCUMENTATION = r"""
name: driver_upgrades
short_description: Return the results of the playbook upgrade_driver
version_added: 0.1.0
author: Accel Kubernetes contributors (@accel-kubernetes)
description:
  - Reads the facts C(upgrade_driver_due) and C(upgrade_driver_from), and those of M(accel.kubernetes.nvml_facts).
options:
  _input:
    description: Variables of the hosts.
    type: list
    elements: dict
    required: true
  check:
    description: Whether this is a dry run.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Report the upgraded nodes
  ansible.builtin.debug:
    msg: "{{ (ansible_play_hosts | map('extract', hostvars) | accel.kubernetes.driver_upgrades).lines }}"
"""

RETURN = r"""
_value:
  description: By host its driver C(from) and C(to), as C(nodes), and the same for people, as C(lines).
  type: dict
  sample: {nodes: {gpu-1: {from: 570.195.03, to: 580.95.05}}, lines: ["gpu-1: 570.195.03, now 580.95.05"]}
"""

from typing import Any, Callable, Dict, Iterable, Mapping

from ansible_collections.accel.kubernetes.plugins.module_utils.driver.upgrades import upgrades


def driver_upgrades(hosts: Iterable[Mapping[str, Any]], check: bool = False) -> Dict[str, Any]:
    """Return what became of the hosts."""
    found = upgrades(hosts, check)
    return {"nodes": found.nodes, "lines": list(found.lines)}


class FilterModule:
    """The filters of this file."""

    def filters(self) -> Dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {"driver_upgrades": driver_upgrades}
