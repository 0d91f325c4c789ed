# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter ``accel.kubernetes.kube_accel_image_plan``."""

from __future__ import annotations

DOCUMENTATION = r"""
name: kube_accel_image_plan
short_description: Plan the name of the daemons' image
version_added: 0.1.0
author: Accel Kubernetes contributors (@accel-kubernetes)
description:
  - Takes what the role kube_accel_image is asked for and what was assembled, and returns how the image is named.
options:
  _input:
    description: >-
      Variables of the role as C(options), the files of the C(wheels) by architecture, the host's C(machine), and what
      was C(assembled), the results of M(accel.kubernetes.oci_archive).
    type: dict
    required: true
"""

EXAMPLES = r"""
- name: Fail if the image cannot be assembled
  ansible.builtin.fail:
    msg: "{{ plan.words }}"
  vars:
    plan: "{{ {'options': options} | accel.kubernetes.kube_accel_image_plan }}"
    options:
      kube_accel_image_assemble: {amd64: {base: /srv/base.tar, wheels: [/srv/wheels/*.whl]}}
      kube_accel_image_reference: localhost/kube-accel:0.1.0
      kube_accel_image_delivery: import
  when: plan.refusals | length > 0
"""

RETURN = r"""
_value:
  description: >-
    The C(repository), the C(tag) that names the content, both as C(name), the host's C(architecture), and the
    C(digests) of its image. C(unserved) is why the host cannot have the image. C(parts) and C(wheels) are what to
    assemble it from, by architecture. C(refusals) each have a C(code) and a C(message). C(words) has them all as
    text.
  type: dict
"""

from typing import Any, Callable, Dict, Mapping

from ansible_collections.accel.kubernetes.plugins.module_utils.kube_accel_image.plan import Seen, plan
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.plain import plain


def kube_accel_image_plan(seen: Mapping[str, Any]) -> Dict[str, Any]:
    """Return how the assembled image is named, as plain values."""
    found: Dict[str, Any] = plain(plan(Seen(**seen)))
    return found


class FilterModule:
    """The filters of this file."""

    def filters(self) -> Dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {"kube_accel_image_plan": kube_accel_image_plan}
