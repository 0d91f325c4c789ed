# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter ``accel.kubernetes.migration_outcome``."""

from __future__ import annotations

DOCUMENTATION = r"""
name: migration_outcome
short_description: Return the state of a migration
version_added: 0.1.0
author: Accel Kubernetes contributors (@accel-kubernetes)
description:
  - Reports each node, and how to remove what is on no node any more.
options:
  _input:
    description: The C(migration) that M(accel.kubernetes.gpu_migration_info) returned.
    type: dict
    required: true
  back:
    description: Whether nodes were given back to the other plugin.
    type: bool
    default: false
  check:
    description: Whether this is a dry run.
    type: bool
    default: false
"""

EXAMPLES = r"""
- name: Report where every node stands
  ansible.builtin.debug:
    msg: "{{ (seen.migration | accel.kubernetes.migration_outcome).lines }}"
"""

RETURN = r"""
_value:
  description:
    - C(lines) are the outcome for people. C(restore) is the patches that restore DaemonSets of the other plugin.
  type: dict
  sample: {lines: ["gpu-1: migrated, from HAMi"], restore: []}
"""

from typing import Any, Callable, Dict, Mapping

from ansible_collections.accel.kubernetes.plugins.module_utils.playbooks.migration import outcome


def migration_outcome(migration: Mapping[str, Any], back: bool = False, check: bool = False) -> Dict[str, Any]:
    """Return where it stands."""
    return dict(vars(outcome(migration, back, check)))


class FilterModule:
    """The filters of this file."""

    def filters(self) -> Dict[str, Callable[..., Any]]:
        """Return the functions by their names."""
        return {"migration_outcome": migration_outcome}
