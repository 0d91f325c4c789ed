# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter ``accel.kubernetes.gpu_plugins_plan``."""

from __future__ import annotations

DOCUMENTATION = r"""
name: gpu_plugins_plan
short_description: What the role gpu_plugins is to do about a subject
version_added: 0.1.0
author: Accel Kubernetes contributors (@accel-kubernetes)
description:
  - Takes what the role saw and what it is asked for, and returns what it is to do.
  - Each subject is a module of C(plugins/module_utils/gpu_plugins), whose dataclasses name what it takes and returns.
options:
  _input:
    description: What was seen, and what is asked for.
    type: dict
    required: true
  subject:
    description:
      - V(accounts) is the file system that bounds the accounts of containers.
      - V(admission) is which admission policies there are to be.
      - V(cluster) is who else serves GPUs, and whether an extender is missing.
      - V(delivery) is how containers are given devices.
      - V(image) is how the assembled image is named, and what it lacks.
      - V(image_reach) is which nodes lack it.
      - V(monitors) is which monitors leave a node, and which return.
      - V(network) is which network policies there are to be.
      - V(pod) is how the plugin's pod on a node is.
      - V(state) is which files of the state directory are removed.
    type: str
    choices: [accounts, admission, cluster, delivery, image, image_reach, monitors, network, pod, state]
    required: true
"""

EXAMPLES = r"""
- name: Find the files of the plugin
  ansible.builtin.find:
    paths: /var/lib/kube-accel
    recurse: true
  register: found

- name: Name those that are removed
  ansible.builtin.debug:
    msg: "{{ {'directory': '/var/lib/kube-accel', 'paths': paths} | accel.kubernetes.gpu_plugins_plan('state') }}"
  vars:
    paths: "{{ found.files | map(attribute='path') | list }}"
"""

RETURN = r"""
_value:
  description: What the subject's dataclass has, as plain values.
  type: raw
"""

from typing import Any, Callable, Dict, Mapping, Tuple

from ansible.errors import AnsibleFilterError
from ansible_collections.accel.kubernetes.plugins.module_utils.gpu_plugins import (
    accounts,
    cluster,
    delivery,
    image,
    monitors,
    plugin_pod,
    policies,
    state_files,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.gpu_plugins.plain import plain

SUBJECTS: Dict[str, Tuple[Callable[..., Any], Callable[..., Any]]] = {
    "accounts": (accounts.Seen, accounts.accounts),
    "admission": (policies.AdmissionSeen, policies.admission),
    "cluster": (cluster.Seen, cluster.cluster),
    "delivery": (delivery.Seen, delivery.delivery),
    "image": (image.Seen, image.image),
    "image_reach": (image.ReachSeen, image.nodes_without_image),
    "monitors": (monitors.Seen, monitors.monitors),
    "network": (policies.NetworkSeen, policies.network),
    "pod": (plugin_pod.Seen, plugin_pod.plugin_pod),
    "state": (state_files.Seen, state_files.removed_state),
}


def gpu_plugins_plan(seen: Mapping[str, Any], subject: str) -> Any:  # noqa: ANN401 - each subject has an answer of its own
    """Return what is to be done about a subject, as plain values."""
    read, decide = SUBJECTS[subject]
    try:
        return plain(decide(read(**seen)))
    except ValueError as error:
        raise AnsibleFilterError(str(error)) from error


class FilterModule:
    """The filters of this file."""

    def filters(self) -> Dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {"gpu_plugins_plan": gpu_plugins_plan}
