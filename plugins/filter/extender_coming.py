# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter ``accel.kubernetes.extender_coming``."""

from __future__ import annotations

DOCUMENTATION = r"""
name: extender_coming
short_description: Whether a run of the playbook site brings the extender that GPU nodes need
version_added: 0.1.0
author: Accel Kubernetes contributors (@accel-kubernetes)
description:
  - A control plane counts where C(--limit) has left it and its check has left the fact C(scheduler_modes).
  - Where the plugins are not rolled out no extender is missed.
options:
  layout:
    description: The C(scheduler_layout) where no control plane has one.
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
  description: Whether it is so.
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
