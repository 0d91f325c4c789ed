# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""Answers the filters of the role scheduler, from what the role was asked for and saw to plain values. No I/O."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Sequence

from ..shared.inventory import Inventory
from ..shared.refusal import Refusal
from ..shared.registers import mapping, mappings
from .asked import read_options
from .cluster import answers as answers_by_subject
from .documents import DocumentError, api_server, cluster_configuration
from .kubeadm import kubeadm
from .kubectl_plugin import commands
from .kubectl_plugin import refusals as kubectl_plugin_refusals
from .layout import plan, read_host
from .leftovers import leftovers
from .objects import networks, planned_objects
from .progress import is_rolled, ready_pods
from .refusals import refusals

Hostvars = Mapping[str, Mapping[str, Any]]
Groups = Mapping[str, Sequence[str]]


class _Role:
    """The role on one host."""

    def __init__(self, asked: Mapping[str, Any], hostvars: Hostvars, groups: Groups, cluster: object = None) -> None:
        self.options, self.refusals = read_options(mapping(asked.get("options")))
        self.seen = {**mapping(asked.get("seen")), **answers_by_subject(cluster)}
        self.inventory = Inventory(hostvars, groups)
        self.cluster_configuration: Mapping[str, Any] = {}
        api = ""
        try:
            api = api_server(self.seen.get("scheduler_conf"))
            self.cluster_configuration = cluster_configuration(self.seen.get("kubeadm"))
        except DocumentError as error:
            self.refusals.append(Refusal("document_unreadable", f"{error}."))
        self.host = read_host(str(asked.get("host")), self.seen, api)
        self.plan = plan(self.options, self.host, self.inventory, asked.get("modes"))


def scheduler_plan(asked: Mapping[str, Any], hostvars: Hostvars, groups: Groups) -> Dict[str, Any]:
    """Return what becomes of kube-scheduler on the host, a ``layout.Plan``."""
    return dict(vars(_Role(asked, hostvars, groups).plan))


def scheduler_refusals(
    asked: Mapping[str, Any], hostvars: Hostvars, groups: Groups, cluster: object
) -> List[Dict[str, str]]:
    """Return why that cannot work, each a ``Refusal``. ``cluster`` is what the API server answered."""
    role = _Role(asked, hostvars, groups, cluster)
    network = networks(role.options, role.plan, role.seen.get("network"))
    found = [*role.refusals, *refusals(role.options, role.host, role.plan, role.seen, network)]
    if role.plan.on_host:
        found += kubectl_plugin_refusals(role.options, mapping(role.seen.get("python")))
    return [dict(vars(each)) for each in found]


def scheduler_objects(
    asked: Mapping[str, Any], hostvars: Hostvars, groups: Groups, answers: Mapping[str, Any]
) -> Dict[str, Any]:
    """Return what the templates of the role need beside the plan and the variables, an ``objects.Objects``."""
    role = _Role(asked, hostvars, groups, answers.get("cluster"))
    return dict(vars(planned_objects(role.options, role.plan, role.inventory, {**role.seen, **answers})))


def scheduler_kubeadm(asked: Mapping[str, Any], hostvars: Hostvars, groups: Groups, cluster: object) -> Dict[str, Any]:
    """Return kubeadm's part of the plan, a ``kubeadm.Kubeadm``. ``cluster`` is what the API server answered."""
    role = _Role(asked, hostvars, groups, cluster)
    return dict(vars(kubeadm(role.options, role.plan, role.inventory, role.cluster_configuration, role.seen)))


def scheduler_leftovers(
    asked: Mapping[str, Any], hostvars: Hostvars, groups: Groups, swept: object, files: object = None
) -> Dict[str, Any]:
    """Return what earlier runs left in the cluster and in the directory of certificates, a ``leftovers.Leftovers``."""
    role = _Role(asked, hostvars, groups)
    return dict(vars(leftovers(role.options, role.plan, role.inventory, mapping(swept), mapping(files))))


def scheduler_commands(
    asked: Mapping[str, Any], hostvars: Hostvars, groups: Groups, found: object, sources: Mapping[str, str]
) -> List[Dict[str, str]]:
    """Return what becomes of the commands of kubectl on the host, each a ``kubectl_plugin.Command``."""
    role = _Role(asked, hostvars, groups)
    python = mapping(role.seen.get("python"))
    planned = commands(role.options, role.plan.on_host, python, found, sources)
    return [dict(vars(each)) for each in planned]


def scheduler_progress(found: object, layout: str) -> Dict[str, Any]:
    """Return which of the pods that were found are ready, and whether the workload that was found is rolled out."""
    there = mappings(found)
    return {"ready": ready_pods(there, layout), "rolled": is_rolled(there)}
