#!/usr/bin/python
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: node_condition
short_description: Remove a condition from a node
version_added: 0.1.0
description:
  - Removes a condition from a node's status. Use it for a condition whose program is gone, such as C(GpusHealthy) of a
    device plugin that was killed.
  - If the condition or the node does not exist, the module changes nothing.
options:
  node:
    description: Name of the node.
    type: str
    required: true
  type:
    description: Type of the condition, such as V(GpusHealthy). Kubelet restores its own conditions.
    type: str
    required: true
extends_documentation_fragment:
  - kubernetes.core.k8s_auth_options
  - accel.kubernetes.attributes
  - accel.kubernetes.attributes.changing_module
requirements:
  - kubernetes
seealso:
  - module: kubernetes.core.k8s
author:
  - Accel Kubernetes contributors (@accel-kubernetes)
"""

EXAMPLES = r"""
- name: Remove a device plugin's condition from the node
  accel.kubernetes.node_condition:
    node: gpu-1
    type: GpusHealthy
"""

RETURN = r"""
condition:
  description: The condition that was removed, or would be; empty when there was none.
  returned: success
  type: dict
  sample: {"type": "GpusHealthy", "status": "True", "reason": "GpusHealthy", "message": "every GPU can be allocated"}
"""

import contextlib
import copy
from functools import partial
from typing import Any, Dict

from ansible_collections.accel.kubernetes.plugins.module_utils.cluster.api_server import ApiServerError, explained, one
from ansible_collections.accel.kubernetes.plugins.module_utils.shared import printable
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.api_json import entries, shaped
from ansible_collections.kubernetes.core.plugins.module_utils.args_common import AUTH_ARG_SPEC
from ansible_collections.kubernetes.core.plugins.module_utils.k8s.client import K8SClient, get_api_client
from ansible_collections.kubernetes.core.plugins.module_utils.k8s.core import AnsibleK8SModule

with contextlib.suppress(ImportError):  # AnsibleK8SModule says what is missing.
    from kubernetes.dynamic.exceptions import NotFoundError


# A condition of others may be anything, and stays.
_read = partial(shaped, shape={"status": {"conditions": entries}})


def found(client: K8SClient, name: str, kind: str) -> Dict[str, Any]:
    """Return the node's condition of this type, empty when there is none. Raises ApiServerError."""
    try:
        node = one(client, "Node", name, read=_read)
    except NotFoundError:
        return {}
    conditions = (node.get("status") or {}).get("conditions") or []
    mine = (entry for entry in conditions if isinstance(entry, dict) and entry.get("type") == kind)
    return next(map(dict, mine), {})


def main() -> None:
    """Run the module."""
    spec = {"node": {"type": "str", "required": True}, "type": {"type": "str", "required": True}}
    module = AnsibleK8SModule(argument_spec={**copy.deepcopy(AUTH_ARG_SPEC), **spec}, supports_check_mode=True)
    name, kind = module.params["node"], module.params["type"]
    try:
        with explained():
            client = get_api_client(module=module)
            nodes = client.resource("Node", "v1")
            condition = found(client, name, kind)
            if condition and not module.check_mode:
                # By its type and not by its place: kubelet writes conditions meanwhile.
                patch = {"status": {"conditions": [{"type": kind, "$patch": "delete"}]}}
                nodes.status.patch(name=name, body=patch, content_type="application/strategic-merge-patch+json")
    except ApiServerError as error:
        module.fail_json(msg=str(error))
    shown = printable.document(condition)
    module.exit_json(
        changed=bool(condition), condition=shown, diff={"before": shown, "after": {}, "before_header": name}
    )


if __name__ == "__main__":
    main()
