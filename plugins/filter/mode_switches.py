# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter ``accel.kubernetes.mode_switches``."""

from __future__ import annotations

DOCUMENTATION = r"""
name: mode_switches
short_description: Return the results of the playbook switch_mode
version_added: 0.1.0
author: Accel Kubernetes contributors (@accel-kubernetes)
description:
  - Reads the facts C(switch_mode_due) and C(switch_mode_from), and the mode that the inventory asks for.
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
- name: Report the nodes that serve another mode
  ansible.builtin.debug:
    msg: "{{ (ansible_play_hosts | map('extract', hostvars) | accel.kubernetes.mode_switches).lines }}"
"""

RETURN = r"""
_value:
  description: By host its modes C(from) and C(to), as C(nodes), and the same for people, as C(lines).
  type: dict
  sample: {nodes: {gpu-1: {from: pgpu, to: vgpu}}, lines: ["gpu-1: pgpu, now vgpu"]}
"""

from typing import Any, Callable, Dict, Iterable, Mapping

from ansible_collections.accel.kubernetes.plugins.module_utils.playbooks.switches import switches


def mode_switches(hosts: Iterable[Mapping[str, Any]], check: bool = False) -> Dict[str, Any]:
    """Return what became of the hosts."""
    return dict(vars(switches(hosts, check)))


class FilterModule:
    """The filters of this file."""

    def filters(self) -> Dict[str, Callable[..., Any]]:
        """Return the functions by their names."""
        return {"mode_switches": mode_switches}
