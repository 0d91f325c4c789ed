# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter ``accel.kubernetes.validation_report``."""

from __future__ import annotations

DOCUMENTATION = r"""
name: validation_report
short_description: Return what the playbook validate found on the controller, in the cluster, and on hosts
version_added: 0.1.0
author: Accel Kubernetes contributors (@accel-kubernetes)
description:
  - Reads the facts that the playbook and the roles that it asks left on control planes and GPU nodes.
  - A host that could not be looked at has a row that says so.
options:
  hosts:
    description: Names of the hosts that were to be looked at. Others have no rows.
    type: list
    elements: str
    required: true
extends_documentation_fragment:
  - accel.kubernetes.inventory
"""

EXAMPLES = r"""
- name: Report what is wrong
  ansible.builtin.debug:
    msg: "{{ (groups | accel.kubernetes.validation_report(hostvars, ansible_play_hosts_all)).lines }}"
"""

RETURN = r"""
_value:
  description:
    - Each finding is one of the C(rows), with C(host), C(verdict), C(what), C(words), and all of them as C(text).
    - The C(artifact) has these rows, and one row for all that is well on a host.
    - The C(lines) are for people, as is the C(table) of what cannot work, each with what mends it.
    - By host C(blocked) says in a sentence what cannot work. The first host answers for controller and cluster.
  type: dict
  sample: {rows: [], artifact: [], lines: [nothing is wrong], table: [], blocked: {}}
"""

from typing import Any, Callable, Dict, Mapping, Sequence

from ansible_collections.accel.kubernetes.plugins.module_utils.playbooks.validation import report
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.inventory import Inventory


def validation_report(
    groups: Mapping[str, Sequence[str]], hostvars: Mapping[str, Mapping[str, Any]], hosts: Sequence[str]
) -> Dict[str, Any]:
    """Return what was found on the hosts."""
    return dict(vars(report(Inventory(hostvars, groups), hosts)))


class FilterModule:
    """The filters of this file."""

    def filters(self) -> Dict[str, Callable[..., Any]]:
        """Return the functions by their names."""
        return {"validation_report": validation_report}
