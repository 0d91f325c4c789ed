#!/usr/bin/python
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_migration_info
short_description: List what a migration of GPU nodes from another device plugin changes
version_added: 0.1.0
description:
  - Finds NVIDIA's device plugin and GPU operator, tkestack gpu-manager, HAMi and Alibaba's gpushare by their
    DaemonSets, and which nodes they serve.
  - Returns for each node the new labels and resources, the pods that have its GPUs, and what these pods must request
    instead. Also returns the variables that match the settings of the other plugin, and what prevents the migration.
options:
  hosts:
    description: The nodes, as the inventory has them.
    type: list
    elements: dict
    required: true
    suboptions:
      node:
        description: Name of the node.
        type: str
        required: true
      mode:
        description: Mode that the node will serve.
        type: str
        choices: [pgpu, vgpu, mps, cgpu, dra]
        required: true
      variables:
        description: Variables of the role gpu_plugins that may have to match the settings of the other plugin, by
          name.
        type: dict
        default: {}
      memory_bytes:
        description: Memory of the smallest GPU of the node. With 0, the module uses the label C(nvidia.com/gpu.memory).
        type: int
        default: 0
      gpus:
        description: GPUs of the node, as M(accel.kubernetes.nvml_facts) returns them, including excluded ones.
        type: list
        elements: dict
        default: []
  plugins_namespace:
    description: Namespace of the device plugins of this collection.
    type: str
    default: kube-system
  strand:
    description: Whether pods may be evicted whose manifests ask for what the node will not offer any more.
    type: bool
    default: false
extends_documentation_fragment:
  - kubernetes.core.k8s_auth_options
  - accel.kubernetes.attributes
  - accel.kubernetes.attributes.info_module
requirements:
  - kubernetes
  - PyYAML
author:
  - Accel Kubernetes contributors (@accel-kubernetes)
"""

EXAMPLES = r"""
- name: Plan the migration
  accel.kubernetes.gpu_migration_info:
    hosts:
      - {node: gpu-1, mode: pgpu}
  register: migration

- name: Show the migration plan
  ansible.builtin.debug:
    msg: "{{ migration.table }}"
"""

RETURN = r"""
migration:
  description: The plan.
  returned: success
  type: dict
  contains:
    nodes:
      description:
        - By name. C(state) is C(due), C(begun), C(done), C(ours), C(none) or C(refused); C(problems) are reasons not to
          begin, in words.
        - C(off) is the merge patch of the node that takes the other plugin off, C(back) the one that lets it return.
      type: dict
    peers:
      description:
        - The other plugins, with the nodes they select, and the merge patches of DaemonSets that keep them off marked
          nodes.
      type: list
      elements: dict
    notes:
      description: What else in the cluster belongs to them.
      type: list
      elements: str
table:
  description: The plan line by line, for a person.
  returned: success
  type: list
  elements: str
"""

import copy
from functools import partial
from typing import Any, Dict, List

from ansible_collections.accel.kubernetes.plugins.module_utils.cluster.api_server import (
    ApiServerError,
    explained,
    objects,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.migration import plan as migration_plan
from ansible_collections.accel.kubernetes.plugins.module_utils.migration.peers import peers
from ansible_collections.accel.kubernetes.plugins.module_utils.migration.settings import configmaps
from ansible_collections.accel.kubernetes.plugins.module_utils.migration.shapes import SHAPES
from ansible_collections.accel.kubernetes.plugins.module_utils.migration.shown import shown, table
from ansible_collections.accel.kubernetes.plugins.module_utils.shared import printable
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.api_json import ODD, shaped
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.gpu_givers import API_VERSIONS
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.modes import NODE_MODES
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.plugin_pods import NAMESPACE
from ansible_collections.kubernetes.core.plugins.module_utils.args_common import AUTH_ARG_SPEC
from ansible_collections.kubernetes.core.plugins.module_utils.k8s.client import K8SClient, get_api_client
from ansible_collections.kubernetes.core.plugins.module_utils.k8s.core import AnsibleK8SModule

try:
    from kubernetes.dynamic.exceptions import ResourceNotFoundError
except ImportError:  # AnsibleK8SModule says what is missing.
    ResourceNotFoundError = None

try:
    import yaml
except ImportError:  # AnsibleK8SModule says what is missing.
    yaml = None


def cluster(client: K8SClient) -> migration_plan.Cluster:
    """Return what the API server has of all that may matter."""
    problems: List[str] = []

    def listed(kind: str, api_version: str = "v1", **selected: str) -> List[Dict[str, Any]]:
        read = partial(shaped, shape=SHAPES[kind])
        return list(objects(client, kind, api_version, problems, read, **selected))

    def claimed(kind: str) -> List[Dict[str, Any]]:
        """Return objects of the first version that the API server has: v1 came with Kubernetes 1.34."""
        for api_version in API_VERSIONS:
            try:
                return listed(kind, api_version)
            except ResourceNotFoundError:
                continue
        return []

    daemonsets = listed("DaemonSet", "apps/v1")
    files: Dict[str, Dict[str, str]] = {}
    for name in {name: None for peer in peers(daemonsets) for item in peer.plugins for name in configmaps(item)}:
        namespace, _slash, own = name.partition("/")
        found = listed("ConfigMap", namespace=namespace, field_selector=f"metadata.name={own}")
        files[name] = dict(found[0].get("data") or {}) if found else {}
    return migration_plan.Cluster(
        nodes=listed("Node"),
        daemonsets=daemonsets,
        pods=listed("Pod"),
        deployments=listed("Deployment", "apps/v1"),
        slices=claimed("ResourceSlice"),
        claims=claimed("ResourceClaim"),
        webhooks=listed("MutatingWebhookConfiguration", "admissionregistration.k8s.io/v1"),
        files=files,
        problems=problems,
    )


def parsed(text: str) -> object:
    """Return a document in YAML. Raises ValueError."""
    try:
        return yaml.safe_load(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    except (yaml.YAMLError, *ODD) as error:
        raise ValueError(str(error)) from error


def main() -> None:
    """Run the module."""
    host = {
        "node": {"type": "str", "required": True},
        "mode": {"type": "str", "choices": list(NODE_MODES), "required": True},
        "variables": {"type": "dict", "default": {}},
        "memory_bytes": {"type": "int", "default": 0},
        "gpus": {"type": "list", "elements": "dict", "default": []},
    }
    spec = {
        "hosts": {"type": "list", "elements": "dict", "required": True, "options": host},
        "plugins_namespace": {"type": "str", "default": NAMESPACE},
        "strand": {"type": "bool", "default": False},
    }
    module = AnsibleK8SModule(argument_spec={**copy.deepcopy(AUTH_ARG_SPEC), **spec}, supports_check_mode=True)
    wanted = [migration_plan.Wanted(**each) for each in module.params["hosts"]]
    terms = migration_plan.Terms(module.params["plugins_namespace"], module.params["strand"])
    try:
        with explained():
            found = cluster(get_api_client(module=module))
    except ApiServerError as error:
        module.fail_json(msg=str(error))
    document = migration_plan.plan(found, wanted, terms, parsed)
    module.exit_json(changed=False, migration=shown(document), table=printable.lines(table(document)))


if __name__ == "__main__":
    main()
