#!/usr/bin/python
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: cluster_objects_info
short_description: Read objects of several kinds from a cluster
version_added: 0.1.0
description:
  - Asks the API server several questions, and returns the answers in the same order. Each answer has the form that
    M(kubernetes.core.k8s_info) returns in a loop.
options:
  reads:
    description:
      - The questions, each with C(kind), and where they are needed with C(api_version) (V(v1) without it),
        C(namespace), C(name), C(labels), and C(fields). The last two are lists of selectors.
      - C(api_versions) in place of C(api_version) is a list. The first version counts that the API server has.
      - Further keys, such as C(subject), stay in C(item) of the answer.
    type: list
    elements: dict
    required: true
  hidden_fields:
    description: Fields that no answer has, such as V(metadata.managedFields).
    type: list
    elements: str
    default: []
  tolerant:
    description:
      - Whether a question without an answer leaves a C(msg) in the place of the answer. Without it, the module fails
        there.
    type: bool
    default: false
extends_documentation_fragment:
  - kubernetes.core.k8s_auth_options
  - accel.kubernetes.attributes
  - accel.kubernetes.attributes.info_module
requirements:
  - kubernetes
seealso:
  - module: kubernetes.core.k8s_info
author:
  - Accel Kubernetes contributors (@accel-kubernetes)
"""

EXAMPLES = r"""
- name: Read nodes and DaemonSets
  accel.kubernetes.cluster_objects_info:
    reads:
      - kind: Node
      - {api_version: apps/v1, kind: DaemonSet}
    hidden_fields: [metadata.managedFields]
  register: read
"""

RETURN = r"""
results:
  description: The answers.
  returned: success
  type: list
  elements: dict
  contains:
    item:
      description: The question.
      returned: always
      type: dict
      sample: {"kind": "Node"}
    api_found:
      description: Whether the API server has this kind.
      returned: If there was an answer.
      type: bool
      sample: true
    resources:
      description: The objects.
      returned: If there was an answer.
      type: list
      elements: dict
      sample: []
    msg:
      description: Why there are no objects, if the API server lacks the kind or did not answer.
      returned: If so.
      type: str
      sample: Failed to find API for resource with apiVersion "v1" and kind "Widget"
"""

import copy
from typing import Any, Dict, List, Mapping

from ansible_collections.accel.kubernetes.plugins.module_utils.cluster.api_server import ApiServerError, explained
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.printable import line
from ansible_collections.kubernetes.core.plugins.module_utils.args_common import AUTH_ARG_SPEC
from ansible_collections.kubernetes.core.plugins.module_utils.k8s.client import get_api_client
from ansible_collections.kubernetes.core.plugins.module_utils.k8s.core import AnsibleK8SModule
from ansible_collections.kubernetes.core.plugins.module_utils.k8s.service import K8sService

_WORDS = ("api_version", "kind", "namespace", "name")
_LISTS = ("api_versions", "labels", "fields")


def flaws(reads: List[Dict[str, Any]]) -> List[str]:
    """Return what is wrong with questions, a sentence each."""
    return [
        f"item {position} of reads is no question: set its kind, and api_version, namespace, and name to text, "
        "api_versions, labels, and fields to lists of it"
        for position, read in enumerate(reads, 1)
        if "kind" not in read
        or not all(isinstance(read.get(key, ""), str) for key in _WORDS)
        or not all(_are_texts(read.get(key, [])) for key in _LISTS)
    ]


def _are_texts(value: object) -> bool:
    return isinstance(value, list) and all(isinstance(entry, str) for entry in value)


def answer(service: K8sService, read: Mapping[str, Any], hidden: List[str]) -> Dict[str, Any]:
    """Return what the API server has of the first version that it has. Raises ApiServerError."""
    kind = read["kind"]
    found: Dict[str, Any] = {}
    try:
        with explained():
            for api_version in read.get("api_versions") or [read.get("api_version", "v1")]:
                found = service.find(
                    kind,
                    api_version,
                    name=read.get("name"),
                    namespace=read.get("namespace"),
                    label_selectors=read.get("labels"),
                    field_selectors=read.get("fields"),
                    hidden_fields=hidden,
                )
                if found["api_found"]:
                    break
    except ApiServerError as error:
        raise ApiServerError(f"{line(kind)} was not read: {error}", error.status) from error
    return found


def main() -> None:
    """Run the module."""
    spec = {
        "reads": {"type": "list", "elements": "dict", "required": True},
        "hidden_fields": {"type": "list", "elements": "str", "default": []},
        "tolerant": {"type": "bool", "default": False},
    }
    module = AnsibleK8SModule(argument_spec={**copy.deepcopy(AUTH_ARG_SPEC), **spec}, supports_check_mode=True)
    reads: List[Dict[str, Any]] = module.params["reads"]
    wrong = flaws(reads)
    if wrong:
        module.fail_json(msg="; ".join(wrong))
    results: List[Dict[str, Any]] = []
    try:
        with explained():
            service = K8sService(get_api_client(module=module), module)
        for read in reads:
            try:
                results.append({"item": read, **answer(service, read, module.params["hidden_fields"])})
            except ApiServerError as error:
                if not module.params["tolerant"]:
                    raise
                results.append({"item": read, "msg": str(error)})
    except ApiServerError as error:
        if not module.params["tolerant"]:
            module.fail_json(msg=str(error))
        results = [{"item": read, "msg": str(error)} for read in reads]
    module.exit_json(changed=False, results=results)


if __name__ == "__main__":
    main()
