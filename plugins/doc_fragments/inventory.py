# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What filters take that look at the hosts of the inventory."""

from __future__ import annotations


class ModuleDocFragment:
    """The options that these filters have in common."""

    DOCUMENTATION = r"""
options:
  _input:
    description: The hosts of each group.
    type: dict
    required: true
  hostvars:
    description: The variables of all hosts.
    type: dict
    required: true
"""
