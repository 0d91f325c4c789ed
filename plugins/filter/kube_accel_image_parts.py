# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter ``accel.kubernetes.kube_accel_image_parts``."""

from __future__ import annotations

DOCUMENTATION = r"""
name: kube_accel_image_parts
short_description: List the parts of the daemons' image
version_added: 0.1.0
author: Accel Kubernetes contributors (@accel-kubernetes)
description:
  - Takes the variable C(kube_accel_image_assemble), and returns what to assemble the image from, by architecture.
options:
  _input:
    description: The directory in which C(make image) left an image, or what to assemble from by architecture.
    type: raw
    required: true
"""

EXAMPLES = r"""
- name: Report the paths of the wheels
  ansible.builtin.debug:
    msg: "{{ ('/home/admin/accel.kubernetes/.build' | accel.kubernetes.kube_accel_image_parts).amd64.wheels }}"
"""

RETURN = r"""
_value:
  description: >-
    By architecture the C(base), the patterns of C(wheels) and the directory C(native). For a directory each
    architecture has them, whether something is there or not.
  type: dict
"""

from typing import Any, Callable, Dict

from ansible_collections.accel.kubernetes.plugins.module_utils.kube_accel_image.plan import assembly
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.plain import plain


def kube_accel_image_parts(assemble: object) -> Dict[str, Any]:
    """Return what to assemble the image from, as plain values."""
    found: Dict[str, Any] = plain(assembly(assemble))
    return found


class FilterModule:
    """The filters of this file."""

    def filters(self) -> Dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {"kube_accel_image_parts": kube_accel_image_parts}
