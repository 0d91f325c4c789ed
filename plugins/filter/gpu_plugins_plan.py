# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Filter ``accel.kubernetes.gpu_plugins_plan``."""

from __future__ import annotations

DOCUMENTATION = r"""
name: gpu_plugins_plan
short_description: Plan what the role gpu_plugins does about a subject
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
      - V(admission) is the admission policies that should exist.
      - V(cluster) is who else serves GPUs, and whether an extender is missing.
      - V(delivery) is how containers are given devices.
      - V(dra) is what a cluster is to have for nodes whose GPUs are given by dynamic resource allocation.
      - V(evacuation) is what the node is emptied for, and what keeps it from being emptied.
      - V(findings) is what is wrong with node and cluster, and what is well.
      - V(handover) is what has to be gone before a node goes over from a device plugin to the DRA driver, or back.
      - V(image_reach) is which nodes lack an image that this run assembled.
      - V(mig_label) is what the plugin makes of the label by which GPUs are cut by MIG.
      - V(monitors) is which monitors leave a node, and which return.
      - V(mps) is which MPS control daemons the node is to have.
      - V(network) is the network policies that should exist.
      - V(node) is which mode the node serves, which one it is to serve, and who cordoned it.
      - V(offer) is what the node is to offer of its GPUs, and what it offers.
      - V(pod) is how the plugin's pod on a node is.
      - V(preflight) is what cannot work, before anything is touched.
      - V(state) is which files of the state directory are removed.
      - V(taint) is how the node comes to have our taint.
      - V(trial) is the pod by which the node is tried, and what came of it.
      - V(turn) is why playbooks that take nodes in turn refuse the node.
      - V(uninstall) is what is taken from the node and the cluster.
      - V(unfinished) is which workloads a rollout has neither kept nor put back.
    type: str
    choices:
      - accounts
      - admission
      - cluster
      - delivery
      - dra
      - evacuation
      - findings
      - handover
      - image_reach
      - mig_label
      - monitors
      - mps
      - network
      - node
      - offer
      - pod
      - preflight
      - state
      - taint
      - trial
      - turn
      - unfinished
      - uninstall
    required: true
"""

EXAMPLES = r"""
- name: List the plugin's state files
  ansible.builtin.find:
    paths: /var/lib/kube-accel
    recurse: true
  register: found

- name: Report the state files to remove
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

from typing import Any, Callable, Dict, Mapping

from ansible.errors import AnsibleFilterError
from ansible_collections.accel.kubernetes.plugins.module_utils.gpu_plugins import (
    accounts,
    cluster,
    delivery,
    dra,
    evacuation,
    findings,
    handover,
    image_reach,
    mig_label,
    monitors,
    mps,
    node,
    offer,
    plugin_pod,
    policies,
    preflight,
    rollout_objects,
    state_files,
    taint,
    trial,
    turn,
    uninstall,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.plain import plain
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.registers import resources

SUBJECTS: Dict[str, Callable[..., Any]] = {
    "accounts": lambda **seen: accounts.accounts(accounts.Seen(**seen)),
    "admission": lambda **seen: policies.admission(policies.AdmissionSeen(**seen)),
    "cluster": lambda **seen: cluster.cluster(cluster.Seen(**seen)),
    "delivery": lambda **seen: delivery.delivery(delivery.Seen(**seen)),
    "dra": lambda **seen: dra.dra(dra.Seen(**seen)),
    "evacuation": lambda **seen: evacuation.evacuation(evacuation.Seen(**seen)),
    "findings": lambda **seen: findings.findings(findings.Seen(**seen)),
    "handover": lambda **seen: handover.handover(handover.Seen(**seen)),
    "image_reach": lambda **seen: image_reach.nodes_without_image(image_reach.Seen(**seen)),
    "mig_label": lambda **seen: mig_label.mig_label(mig_label.Seen(**seen)),
    "monitors": lambda **seen: monitors.monitors(monitors.Seen(**seen)),
    "mps": lambda **seen: mps.mps(mps.Seen(**seen)),
    "network": lambda **seen: policies.network(policies.NetworkSeen(**seen)),
    "node": lambda **seen: node.node_state(node.Seen(**seen)),
    "offer": lambda **seen: offer.seen_offer(offer.Seen(**seen)),
    "pod": lambda **seen: plugin_pod.plugin_pod(plugin_pod.Seen(**seen)),
    "preflight": lambda **seen: preflight.preflight(preflight.Seen(**seen)),
    "state": lambda **seen: state_files.removed_state(state_files.Seen(**seen)),
    "taint": taint.taint_plan,
    "trial": lambda **seen: trial.trial(trial.Seen(**seen)),
    "turn": lambda **seen: turn.turn(turn.Seen(**seen)),
    "uninstall": lambda **seen: uninstall.uninstall(uninstall.Seen(**seen)),
    "unfinished": lambda workloads, pods: rollout_objects.unfinished_rollouts(resources(workloads), resources(pods)),
}


def gpu_plugins_plan(seen: Mapping[str, Any], subject: str) -> Any:  # noqa: ANN401 - each subject has an answer of its own
    """Return what is to be done about a subject, as plain values."""
    try:
        return plain(SUBJECTS[subject](**seen))
    except ValueError as error:
        raise AnsibleFilterError(str(error)) from error


class FilterModule:
    """The filters of this file."""

    def filters(self) -> Dict[str, Callable[..., Any]]:
        """Return the filters by name."""
        return {"gpu_plugins_plan": gpu_plugins_plan}
