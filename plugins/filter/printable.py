# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter ``accel.kubernetes.printable``."""

from __future__ import annotations

DOCUMENTATION = r"""
name: printable
short_description: Return text from a cluster as one line without control characters
version_added: 0.1.0
author: Accel Kubernetes contributors (@accel-kubernetes)
description:
  - Replaces controls, escapes, what changes the direction of text, and what takes no room. Letters of all scripts stay.
  - A line break becomes a space, so that text of a cluster cannot pass for a line of Ansible.
  - Text of more than 4096 characters ends in C(...).
options:
  _input:
    description: Text from another author, such as a condition's message or the end of a pod's log.
    type: raw
    required: true
"""

EXAMPLES = r"""
- name: Report why the pod does not start
  ansible.builtin.debug:
    msg: "{{ pod.status.containerStatuses[0].state.waiting.message | accel.kubernetes.printable }}"
"""

RETURN = r"""
_value:
  description: The line.
  type: str
  sample: Failed to pull image
"""

from typing import Any, Callable, Dict

from ansible_collections.accel.kubernetes.plugins.module_utils.shared.printable import line

_LONGEST = 4096


def printable(value: object) -> str:
    """Return the text as one harmless line."""
    shown: str = line(" ".join(str(value).split()), _LONGEST)
    return shown


class FilterModule:
    """The filters of this file."""

    def filters(self) -> Dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {"printable": printable}
