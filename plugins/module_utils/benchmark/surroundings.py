# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later
"""What a benchmark finds in a cluster before its pods run: the node, and where and how pods can run there."""

from __future__ import annotations

from typing import Any, Dict, Mapping

from ansible_collections.kubernetes.core.plugins.module_utils.k8s.client import K8SClient

from ..cluster.api_server import ApiServerError, explained, objects, one
from ..shared.registers import metadata_of
from . import jobs, rows
from .options import Refused

NOT_FOUND = 404
_SCHEDULER = "accel-scheduler"


def namespace_of(params: Mapping[str, Any]) -> str:
    """Return the namespace that the pods run in."""
    return str(params["namespace"].strip() or params["plugins_namespace"])


def look(client: K8SClient, node: str, namespace: str) -> rows.Seen:
    """Return the node and its pods, of which those of its Job in this namespace are known. Raises ApiServerError."""
    try:
        with explained():
            found = one(client, "Node", node)
    except ApiServerError as error:
        if error.status != NOT_FOUND:
            raise
        raise ApiServerError(f"node {node} does not exist; see kubectl get nodes", NOT_FOUND) from None
    with explained():
        pods = list(objects(client, "Pod", problems=[], field_selector=f"spec.nodeName={node}"))
    return rows.Seen(found, tuple(pods), rows.OwnJob(namespace, jobs.job_name(node)))


def place(client: K8SClient, params: Mapping[str, Any], seen: rows.Seen) -> jobs.Place:
    """Return where and how the pods run. Raises ApiServerError or Refused."""
    plugin = jobs.plugin_of(seen.pods, params["plugins_namespace"])
    namespace = namespace_of(params)
    if not params["image"].strip() and not plugin.image:
        raise Refused(
            f"node {params['node']}: no device plugin runs there in {params['plugins_namespace']}, so its image is"
            " not known; set plugins_namespace, or name an image"
        )
    exists(client, "Namespace", "v1", namespace, "name an existing one")
    if params["runtime_class"]:
        remedy = "name an existing one, or an empty one if the default runtime mounts the driver"
        exists(client, "RuntimeClass", "node.k8s.io/v1", params["runtime_class"], remedy)
    secrets, chosen = tuple(params["image_pull_secrets"]), scheduler(client)
    if params["image"].strip():
        return jobs.Place(namespace, params["image"].strip(), "IfNotPresent", secrets, params["runtime_class"], chosen)
    return jobs.Place(
        namespace,
        plugin.image,
        plugin.pull_policy,
        secrets or plugin.pull_secrets,
        params["runtime_class"],
        chosen,
    )


def exists(client: K8SClient, kind: str, api_version: str, name: str, remedy: str) -> None:
    """Raise Refused, with this remedy, if there is no object of this kind and name. Raises ApiServerError."""
    with explained():
        found = [metadata_of(each).get("name") for each in objects(client, kind, api_version, problems=[])]
    if name not in found:
        raise Refused(f"{kind} {name} does not exist; {remedy}")


def scheduler(client: K8SClient) -> str:
    """Return the second scheduler, which alone asks the extender beside it; empty where there is none."""
    selected: Dict[str, Any] = {
        "label_selector": "app.kubernetes.io/managed-by=accel.kubernetes,app.kubernetes.io/component=extender",
        "field_selector": f"metadata.name={_SCHEDULER}",
    }
    with explained():
        found = list(objects(client, "Deployment", "apps/v1", problems=[], **selected))
    return _SCHEDULER if found else ""
