# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What to know of parts of other plugins that a migration leaves where they are. Pure."""

from __future__ import annotations

from typing import List, Sequence

from ansible_collections.accel.kubernetes.plugins.module_utils.migration import peers
from ansible_collections.accel.kubernetes.plugins.module_utils.migration.peers import Object, Peer

_EXTENDERS = ("gpushare-schd-extender", "gpu-admission", "gpu-quota-admission", "nvidia-mps-scheduler-plugin")
"""What the names of Deployments begin with that are others' scheduler extenders."""
_HAMI_WEBHOOK = "vgpu.hami.io"
_NOTE_HAMI = (
    "HAMi's webhook {} sends pods that ask for nvidia.com/gpu to HAMi's scheduler, which does not place them on "
    "migrated nodes. Label these pods, or their namespaces, hami.io/webhook=ignore"
)
_NOTE_EXTENDER = (
    "{0} is a scheduler extender of another plugin. From the first migrated node on, kube-scheduler asks the extender "
    "of this collection instead, and places pods that ask for shares on migrated nodes only. When no node has the "
    "other plugin, remove {0}"
)
_NOTE_RECORD = (
    "annotation {annotation} of node {node} does not have the format of this release, so the labels from before the "
    "migration are unknown. Run kubectl annotate node {node} {annotation}-, and label the node yourself"
)
_NOTE_OPERATOR = (
    "NVIDIA's operator keeps running its driver, toolkit, feature discovery, and DCGM. Its validator asks for "
    "nvidia.com/gpu, and is pending on nodes of modes other than pgpu. Label these nodes "
    "nvidia.com/gpu.deploy.operator-validator=false"
)
_NOTE_DRIVER = (
    "Device classes of {} stay until it is removed, so claims for them are pending where it is on no node. Of two "
    "classes that serve nvidia.com/gpu, Kubernetes takes the younger one. NVIDIA's DRA driver takes its compute "
    "domains along, unless they have a DaemonSet of their own"
)


def notes(
    nodes: Sequence[Object], deployments: Sequence[Object], webhooks: Sequence[Object], found: Sequence[Peer]
) -> List[str]:
    """Return what to know of what stays of others, a text each."""
    said = []
    for webhook in webhooks:
        if any(each.get("name") == _HAMI_WEBHOOK for each in webhook.get("webhooks") or ()):
            said.append(_NOTE_HAMI.format(webhook["metadata"]["name"]))
    for deployment in deployments:
        if deployment["metadata"]["name"].startswith(_EXTENDERS):
            said.append(_NOTE_EXTENDER.format(peers.full_name(deployment)))
    said += [
        _NOTE_RECORD.format(node=node["metadata"]["name"], annotation=peers.RECORD)
        for node in nodes
        if peers.RECORD in peers.annotations_of(node) and not peers.recorded(node)
    ]
    if any(peer.kind.name == "gpu-operator" for peer in found):
        said.append(_NOTE_OPERATOR)
    drivers = [peer.kind.title for peer in found if peer.kind.driver]
    return [*said, *([_NOTE_DRIVER.format(" and ".join(drivers))] if drivers else [])]
