#!/usr/bin/python
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: node_taint
short_description: Set or remove one taint of a node
version_added: 0.1.0
description:
  - Adds a taint to a node, replaces the one that an earlier run added, or removes it.
  - An annotation C(kube-accel.io/taint) of the node says which taint this module added. It changes in the same request
    as the taints. Taints of others stay.
  - If another client changes the node at the same time, the module reads the node again and repeats the request.
options:
  node:
    description: Name of the node. It must exist.
    type: str
    required: true
  taint:
    description:
      - The wanted taint, with the keys C(key), C(value), and C(effect), or text such as V(team=a:NoSchedule).
      - Empty removes the taint that the module added.
    type: raw
    default: {}
extends_documentation_fragment:
  - kubernetes.core.k8s_auth_options
  - accel.kubernetes.attributes
  - accel.kubernetes.attributes.changing_module
requirements:
  - kubernetes
attributes:
  check_mode:
    details: The API server checks the request, and keeps nothing of it.
seealso:
  - module: kubernetes.core.k8s_taint
author:
  - Accel Kubernetes contributors (@accel-kubernetes)
"""

EXAMPLES = r"""
- name: Keep pods without a GPU off a node
  accel.kubernetes.node_taint:
    node: gpu-1
    taint: {key: node-role.kubernetes.io/gpu, value: "true", effect: NoSchedule}

- name: Remove that taint
  accel.kubernetes.node_taint:
    node: gpu-1
"""

RETURN = r"""
taints:
  description: All taints of the node afterwards.
  returned: success
  type: list
  elements: dict
  sample: [{"key": "node-role.kubernetes.io/gpu", "value": "true", "effect": "NoSchedule"}]
"""

import copy
from functools import partial
from typing import Any, Dict, List, Mapping, Tuple

from ansible_collections.accel.kubernetes.plugins.module_utils.cluster.api_server import ApiServerError, explained, one
from ansible_collections.accel.kubernetes.plugins.module_utils.gpu_plugins.taint import read_taint, taint_plan
from ansible_collections.accel.kubernetes.plugins.module_utils.shared import printable
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.api_json import entries, shaped
from ansible_collections.kubernetes.core.plugins.module_utils.args_common import AUTH_ARG_SPEC
from ansible_collections.kubernetes.core.plugins.module_utils.k8s.client import K8SClient, get_api_client
from ansible_collections.kubernetes.core.plugins.module_utils.k8s.core import AnsibleK8SModule

_TRIES = 5
_CHANGED_MEANWHILE = (409, 422)
"""HTTP status of a patch whose tests fail, and of one that meets another write."""
_read = partial(shaped, shape={"spec": {"taints": entries}})


def found(client: K8SClient, name: str) -> Dict[str, Any]:
    """Return the node. Raises ApiServerError."""
    with explained():
        return one(client, "Node", name, read=_read)


def keep(client: K8SClient, name: str, wanted: Mapping[str, Any]) -> Tuple[List[Any], List[Any], bool]:
    """Give a node the wanted taint, and return its taints before and after, and whether it was changed.

    Raises ApiServerError.
    """
    refused: List[Dict[str, Any]] = []
    left = _TRIES
    while True:
        left -= 1
        node = found(client, name)
        plan = taint_plan(node, wanted)
        before = (node.get("spec") or {}).get("taints") or []
        if not plan.due:
            return before, before, False
        try:
            with explained():
                nodes = client.resource("Node", "v1")
                client.patch(nodes, plan.patch, name=name, content_type="application/json-patch+json")
        except ApiServerError as error:
            # The same request would be refused for the same reason.
            if error.status not in _CHANGED_MEANWHILE or not left or plan.patch == refused:
                raise
            refused = plan.patch
        else:
            return before, plan.taints, True


def main() -> None:
    """Run the module."""
    spec = {"node": {"type": "str", "required": True}, "taint": {"type": "raw", "default": {}}}
    module = AnsibleK8SModule(argument_spec={**copy.deepcopy(AUTH_ARG_SPEC), **spec}, supports_check_mode=True)
    name, wanted = module.params["node"], read_taint(module.params["taint"])
    if wanted is None:
        module.fail_json(
            msg=f"taint of node {name} is '{printable.line(module.params['taint'])}', which is no taint; set it to "
            "text such as team=a:NoSchedule, or to a mapping with key, value, and effect"
        )
    try:
        with explained():
            client = get_api_client(module=module)
        before, after, changed = keep(client, name, wanted)
    except ApiServerError as error:
        module.fail_json(msg=f"the taints of node {name} were not changed: {error}")
    shown = printable.document({"before": {"taints": before}, "after": {"taints": after}})
    module.exit_json(changed=changed, taints=shown["after"]["taints"], diff={**shown, "before_header": name})


if __name__ == "__main__":
    main()
