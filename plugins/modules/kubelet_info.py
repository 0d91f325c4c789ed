#!/usr/bin/python
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: kubelet_info
short_description: Read how a node's kubelet places containers on NUMA nodes
version_added: 0.1.0
description:
  - Reads C(configz) of a node's kubelet, through the API server's proxy for nodes. The user of the kubeconfig may
    C(get) C(nodes/proxy).
  - Says which policies kubelet's managers of topology, processors and memory have. Without a policy of its topology
    manager kubelet heeds no NUMA node that a device plugin names.
options:
  node:
    description: Name of the node.
    type: str
    required: true
extends_documentation_fragment:
  - kubernetes.core.k8s_auth_options
  - accel.kubernetes.attributes
  - accel.kubernetes.attributes.info_module
requirements:
  - kubernetes
author:
  - Accel Kubernetes contributors (@accel-kubernetes)
"""

EXAMPLES = r"""
- name: Read kubelet's settings
  accel.kubernetes.kubelet_info:
    node: gpu-1
  delegate_to: localhost
  register: kubelet

- name: Show kubelet's topology manager policy
  ansible.builtin.debug:
    msg: "{{ kubelet.settings.topology_manager_policy | default('not known: ' ~ kubelet.reason) }}"
"""

RETURN = r"""
settings:
  description: Settings that kubelet reports. Empty if kubelet did not answer.
  returned: success
  type: dict
  contains:
    topology_manager_policy:
      description: V(none), V(best-effort), V(restricted) or V(single-numa-node).
      returned: when kubelet could be asked
      type: str
    topology_manager_scope:
      description: Whether it looks at each V(container) or at a V(pod) as a whole.
      returned: when kubelet could be asked
      type: str
    cpu_manager_policy:
      description: V(none) or V(static).
      returned: when kubelet could be asked
      type: str
    memory_manager_policy:
      description: V(None) or V(Static).
      returned: when kubelet could be asked
      type: str
reason:
  description: Why kubelet did not answer. Empty if it did.
  returned: success
  type: str
  sample: ""
"""

import copy
from dataclasses import asdict

from ansible_collections.accel.kubernetes.plugins.module_utils.cluster.api_server import (
    ApiServerError,
    explained,
    text_at,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.cluster.kubelet import (
    MOST,
    configz_path,
    kubelet_settings,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.shared import printable
from ansible_collections.kubernetes.core.plugins.module_utils.args_common import AUTH_ARG_SPEC
from ansible_collections.kubernetes.core.plugins.module_utils.k8s.client import get_api_client
from ansible_collections.kubernetes.core.plugins.module_utils.k8s.core import AnsibleK8SModule


def main() -> None:
    """Run the module."""
    spec = {"node": {"type": "str", "required": True}}
    module = AnsibleK8SModule(argument_spec={**copy.deepcopy(AUTH_ARG_SPEC), **spec}, supports_check_mode=True)
    settings, reason = {}, ""
    try:
        with explained():
            client = get_api_client(module=module)
        settings = asdict(kubelet_settings(text_at(client, configz_path(module.params["node"]), MOST)))
    except ApiServerError as error:
        reason = str(error)
    except ValueError as error:
        reason = f"what kubelet says of its configuration cannot be read: {error}"
    module.exit_json(changed=False, settings=printable.document(settings), reason=printable.line(reason))


if __name__ == "__main__":
    main()
