# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What the filters of the role scheduler take."""

from __future__ import annotations


class ModuleDocFragment:
    """The options that these filters have in common."""

    DOCUMENTATION = r"""
options:
  _input:
    description:
      - The role's variable C(__scheduler_asked), with its options for a host and what it saw there. C(host) is the
        host's name in the inventory. C(options) are variables by name, and C(seen) are results of tasks. C(modes), if
        not null, are the modes of all GPU nodes.
    type: dict
    required: true
  hostvars:
    description: The variables of all hosts.
    type: dict
    required: true
  groups:
    description: The hosts of each group.
    type: dict
    required: true
"""
