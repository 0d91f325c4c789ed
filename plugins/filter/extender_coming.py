# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter ``accel.kubernetes.extender_coming``."""

from __future__ import annotations

DOCUMENTATION = r"""
name: extender_coming
short_description: Check whether a run of the playbook site installs the extender that GPU nodes need
version_added: 0.1.0
author: Accel Kubernetes contributors (@accel-kubernetes)
description:
  - A control plane counts if C(--limit) includes it and its check set the fact C(scheduler_modes).
  - If the run does not roll out the plugins, the result is true, unless the layout is C(none).
options:
  layout:
    description: The C(scheduler_layout) to use if the inventory has no control planes.
    type: str
    required: true
  run_tags:
    description: The tags that are run.
    type: list
    elements: str
    required: true
  skip_tags:
    description: The tags that are skipped.
    type: list
    elements: str
    required: true
extends_documentation_fragment:
  - accel.kubernetes.inventory
"""

EXAMPLES = r"""
- name: Report whether an extender is coming
  ansible.builtin.debug:
    msg: "{{ groups | accel.kubernetes.extender_coming(hostvars, 'auto', ansible_run_tags, ansible_skip_tags) }}"
"""

RETURN = r"""
_value:
  description: Whether the run installs the extender that the plugins need, or rolls out no plugins.
  type: bool
"""

from typing import Any, Callable, Dict, Mapping, Sequence

from ansible_collections.accel.kubernetes.plugins.module_utils.playbooks.site import extender_coming as is_coming
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.inventory import Inventory


def extender_coming(
    groups: Mapping[str, Sequence[str]],
    hostvars: Mapping[str, Mapping[str, Any]],
    layout: str,
    run_tags: Sequence[str],
    skip_tags: Sequence[str],
) -> bool:
    """Return whether it is so."""
    return bool(is_coming(Inventory(hostvars, groups), layout, run_tags, skip_tags))


class FilterModule:
    """The filters of this file."""

    def filters(self) -> Dict[str, Callable[..., Any]]:
        """Return the functions by their names."""
        return {"extender_coming": extender_coming}
