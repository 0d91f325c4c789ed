#!/usr/bin/python
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_inspect_info
short_description: List which container holds which part of a cluster's GPUs
version_added: 0.1.0
description:
  - Reads nodes and pods from the API server.
  - Lists the parts of each GPU that containers hold, and the pods that are pending, each with the reason.
  - The device plugin of a node writes its GPUs and the pods that hold them to the annotation
    C(kube-accel.io/inventory), which follows kubelet.
options:
  nodes:
    description: Names of the nodes to include. Empty includes all. The module fails if one does not exist.
    type: list
    elements: str
    default: []
  mode:
    description: Mode of the nodes to include. By default, the module includes all modes.
    type: str
    choices: [pgpu, vgpu, mps, cgpu, dra]
  used:
    description:
      - Whether to read from the plugins how much memory containers use. Needs the right to C(get) C(pods/proxy) in
        O(plugins_namespace).
      - If a plugin does not answer, RV(inspection) lists that among its problems.
    type: bool
    default: false
  plugins_namespace:
    description: Namespace of the device plugins.
    type: str
    default: kube-system
  query:
    description:
      - JMESPath expression to apply to RV(inspection). RV(result) has the result.
    type: str
extends_documentation_fragment:
  - kubernetes.core.k8s_auth_options
  - accel.kubernetes.attributes
  - accel.kubernetes.attributes.info_module
requirements:
  - kubernetes
  - jmespath, with O(query)
author:
  - Accel Kubernetes contributors (@accel-kubernetes)
"""

EXAMPLES = r"""
- name: Read the allocations of all GPUs
  accel.kubernetes.gpu_inspect_info:
  register: seen

- name: Show the allocations
  ansible.builtin.debug:
    msg: "{{ seen.details }}"

- name: List the pods on unhealthy GPUs
  accel.kubernetes.gpu_inspect_info:
    query: "nodes[].gpus[?health != 'healthy'][].containers[].[namespace, pod]"
  register: endangered
"""

RETURN = r"""
inspection:
  description:
    - Nodes with their GPUs and containers, and pending pods.
    - Sizes are in bytes, and cores in percent of one GPU. An unknown value is null.
  returned: success
  type: dict
  contains:
    version:
      description: Version of this structure. The number grows when a key is removed or changes its meaning.
      type: int
      sample: 1
    nodes:
      description: Nodes, sorted by name.
      type: list
      elements: dict
    waiting:
      description: Pods that ask for GPUs and have none yet, each with the reason.
      type: list
      elements: dict
    totals:
      description: Sums over all GPUs of all models.
      type: dict
      sample:
        gpus: 2
        healthy: 2
        cores: 200
        allocated_cores: 30
        memory_bytes: 171798691840
        allocated_bytes: 8589934592
    problems:
      description: Values that are unknown, each with its cause.
      type: list
      elements: str
complete:
  description: Whether every value is known.
  returned: success
  type: bool
result:
  description: Result of O(query).
  returned: when O(query) is given
  type: raw
summary:
  description: The table of C(kubectl inspect gpu -o wide), line by line.
  returned: success
  type: list
  elements: str
details:
  description: The tables of C(kubectl inspect gpu -d), line by line.
  returned: success
  type: list
  elements: str
csv:
  description: CSV text with one row for each container and GPU.
  returned: success
  type: str
"""

import copy
import traceback
from functools import partial
from typing import List, Optional

from ansible.module_utils.basic import missing_required_lib
from ansible_collections.accel.kubernetes.plugins.module_utils.cluster.api_server import (
    ApiServerError,
    explained,
    objects,
    text_at,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.cluster.claims import claim_objects
from ansible_collections.accel.kubernetes.plugins.module_utils.shared import (
    gpu_view,
    gpu_view_text,
    plugin_metrics,
    plugin_pods,
    printable,
)
from ansible_collections.kubernetes.core.plugins.module_utils.args_common import AUTH_ARG_SPEC
from ansible_collections.kubernetes.core.plugins.module_utils.k8s.client import get_api_client
from ansible_collections.kubernetes.core.plugins.module_utils.k8s.core import AnsibleK8SModule

JMESPATH_MISSING = None
try:
    import jmespath
    from jmespath.exceptions import JMESPathError
except ImportError:
    jmespath, JMESPathError = None, ValueError
    JMESPATH_MISSING = traceback.format_exc()


def main() -> None:
    """Run the module."""
    spec = {
        "nodes": {"type": "list", "elements": "str", "default": []},
        "mode": {"type": "str", "choices": ["pgpu", "vgpu", "mps", "cgpu", "dra"]},
        "used": {"type": "bool", "default": False},
        "plugins_namespace": {"type": "str", "default": plugin_pods.NAMESPACE},
        "query": {"type": "str"},
    }
    module = AnsibleK8SModule(argument_spec={**copy.deepcopy(AUTH_ARG_SPEC), **spec}, supports_check_mode=True)
    compiled = _compiled(module)
    odd: List[str] = []
    try:
        with explained():
            client = get_api_client(module=module)
            nodes, pods = (list(objects(client, kind, problems=odd)) for kind in ("Node", "Pod"))
        claimed = claim_objects(client, nodes, odd)
        namespace = module.params["plugins_namespace"]
        paths = plugin_pods.metrics_paths(pods, namespace) if module.params["used"] else {}
        away = gpu_view.not_ready(nodes)
        paths = {name: path for name, path in paths.items() if name not in away}
        pages = plugin_metrics.at_once(partial(text_at, client, most=plugin_metrics.PAGE_BYTES), paths)
        used, problems = plugin_metrics.read_pages(pages, ApiServerError)
    except ApiServerError as error:
        module.fail_json(msg=str(error))
    found = gpu_view.view(nodes, pods, used, [*odd, *problems], namespace, claimed)
    missing = gpu_view.absent(found, module.params["nodes"])
    if missing:
        known = ", ".join(node.name for node in found.nodes) or "none"
        module.fail_json(msg=printable.line(f"no node with GPUs has the name {', '.join(missing)}; there are: {known}"))
    found = gpu_view.narrowed(found, module.params["mode"] or "", module.params["nodes"])
    inspection = printable.document(gpu_view.document(found))
    module.exit_json(
        changed=False,
        inspection=inspection,
        complete=not found.problems,
        summary=gpu_view_text.summary(found, wide=True).splitlines(),
        details=gpu_view_text.details(found).splitlines(),
        csv=gpu_view_text.comma_separated(found),
        **({} if compiled is None else {"result": compiled.search(inspection)}),
    )


def _compiled(module: AnsibleK8SModule) -> Optional[object]:
    """Return the query, compiled before any request is made; None without one."""
    query = module.params["query"]
    if query is None:
        return None
    if jmespath is None:
        module.fail_json(msg=missing_required_lib("jmespath", reason="for query"), exception=JMESPATH_MISSING)
    try:
        return jmespath.compile(query)
    except JMESPathError as error:
        module.fail_json(msg=f"query is not a JMESPath expression: {error}")


if __name__ == "__main__":
    main()
