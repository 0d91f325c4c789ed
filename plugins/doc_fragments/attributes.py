# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Attributes of modules: what each declares, and what those that read, and those that change something, have in common.

A module states only what differs.
"""

from __future__ import annotations


class ModuleDocFragment:
    """Documentation fragment ``accel.kubernetes.attributes``."""

    DOCUMENTATION = r"""
options: {}
attributes:
  check_mode:
    description: Can run in C(check_mode) and return the changed status a run would have, without changing the target.
  diff_mode:
    description: Returns what has changed, or would change, when in diff mode.
  idempotent:
    description: A second run with the same options changes nothing.
  platform:
    description: Target operating systems.
  action_group:
    description: Use C(group/accel.kubernetes.accel) in C(module_defaults) to set defaults for this module.
    support: full
    membership: [accel.kubernetes.accel]
"""

    INFO_MODULE = r"""
options: {}
attributes:
  check_mode:
    support: full
    details: Changes nothing in any case.
  diff_mode:
    support: none
  idempotent:
    support: full
  platform:
    support: full
    platforms: posix
"""

    CHANGING_MODULE = r"""
options: {}
attributes:
  check_mode:
    support: full
  diff_mode:
    support: full
  idempotent:
    support: full
  platform:
    support: full
    platforms: posix
"""
