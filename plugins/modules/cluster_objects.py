#!/usr/bin/python
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: cluster_objects
short_description: Create or change a list of objects in a cluster
version_added: 0.1.0
description:
  - Creates or changes objects as C(kubectl apply) does, in the order of the list. Objects that are as wanted stay.
  - The API server checks every object by a dry run first. If it refuses one, the module fails and changes nothing.
    So the namespaces of the objects exist before.
  - Fields of an object that O(definitions) does not name, and that no earlier run applied, stay as others wrote them.
options:
  definitions:
    description: The objects. Each has C(apiVersion), C(kind), and C(metadata.name).
    type: list
    elements: dict
    required: true
extends_documentation_fragment:
  - kubernetes.core.k8s_auth_options
  - accel.kubernetes.attributes
  - accel.kubernetes.attributes.changing_module
requirements:
  - kubernetes
attributes:
  check_mode:
    details: The API server checks the requests, and keeps nothing of them.
  diff_mode:
    details: One difference for each object that changes.
seealso:
  - module: kubernetes.core.k8s
author:
  - Accel Kubernetes contributors (@accel-kubernetes)
"""

EXAMPLES = r"""
- name: Create a namespace's quota and limits
  accel.kubernetes.cluster_objects:
    definitions: "{{ lookup('ansible.builtin.file', 'team-a.yml') | from_yaml_all }}"
"""

RETURN = r"""
differing:
  description: Those of O(definitions) that the cluster lacked or had otherwise, in their order.
  returned: success
  type: list
  elements: dict
  sample: [{"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "a", "namespace": "kube-system"}}]
applied:
  description: Kind, namespace, and name of each object that was created or changed, or would be in check mode.
  returned: always
  type: list
  elements: str
  sample: [ServiceAccount kube-system/a]
"""

import copy
from dataclasses import dataclass, field
from typing import Any, Dict, Iterable, List, Mapping

from ansible_collections.accel.kubernetes.plugins.module_utils.cluster.api_server import (
    ApiServerError,
    explained,
    explanation,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.shared import printable
from ansible_collections.accel.kubernetes.plugins.module_utils.shared.registers import mapping, metadata_of
from ansible_collections.kubernetes.core.plugins.module_utils.args_common import AUTH_ARG_SPEC
from ansible_collections.kubernetes.core.plugins.module_utils.k8s.client import get_api_client
from ansible_collections.kubernetes.core.plugins.module_utils.k8s.core import AnsibleK8SModule
from ansible_collections.kubernetes.core.plugins.module_utils.k8s.exceptions import CoreException
from ansible_collections.kubernetes.core.plugins.module_utils.k8s.runner import perform_action
from ansible_collections.kubernetes.core.plugins.module_utils.k8s.service import K8sService

_APPLY = {"state": "present", "apply": True}
_NEEDED = ("apiVersion", "kind")


def title(item: Mapping[str, Any]) -> str:
    """Return kind, namespace, and name of an object."""
    head = metadata_of(item)
    place = "/".join(str(head[key]) for key in ("namespace", "name") if head.get(key))
    return printable.line(f"{item.get('kind')} {place}")


def flaws(definitions: List[Dict[str, Any]]) -> List[str]:
    """Return what keeps definitions from being objects, a sentence each."""
    return [
        f"item {position} of definitions is no object: set its apiVersion, kind, and metadata.name"
        for position, item in enumerate(definitions, 1)
        if not all(isinstance(item.get(key), str) for key in _NEEDED)
        or not isinstance(mapping(item.get("metadata")).get("name"), str)
    ]


def apply(service: K8sService, item: Mapping[str, Any]) -> Dict[str, Any]:
    """Apply an object, and return ``changed``, and ``diff`` if it is asked for. Raises ApiServerError."""
    try:
        with explained():
            try:
                answer: Dict[str, Any] = perform_action(service, copy.deepcopy(dict(item)), _APPLY)
            except CoreException as error:
                # Its text has the answer as the bytes that came.
                cause = error.__cause__
                if cause is None or getattr(cause, "status", None) is None:
                    raise ApiServerError(str(error)) from error
                raise explanation(cause) from error
    except ApiServerError as error:
        raise ApiServerError(f"{title(item)} was not applied: {error}", error.status) from error
    return answer


@dataclass
class Outcome:
    """What became of the objects so far."""

    differing: List[Dict[str, Any]] = field(default_factory=list)
    applied: List[str] = field(default_factory=list)
    """Titles of those that were created or changed, or would be in check mode."""
    differences: List[Dict[str, Any]] = field(default_factory=list)


def carry_out(service: K8sService, definitions: Iterable[Dict[str, Any]], check: bool, outcome: Outcome) -> None:
    """Apply objects once the API server has taken all of them in a dry run. Raises ApiServerError."""
    service.client.dry_run = True
    foretold = [(item, apply(service, item)) for item in definitions]
    service.client.dry_run = check
    for item, answer in foretold:
        if not answer["changed"]:
            continue
        outcome.differing.append(item)
        done = answer if check else apply(service, item)
        if done["changed"]:
            name = title(item)
            outcome.applied.append(name)
            if "diff" in done:
                outcome.differences.append({**done["diff"], "before_header": name, "after_header": name})


def main() -> None:
    """Run the module."""
    spec = {"definitions": {"type": "list", "elements": "dict", "required": True}}
    module = AnsibleK8SModule(argument_spec={**copy.deepcopy(AUTH_ARG_SPEC), **spec}, supports_check_mode=True)
    definitions: List[Dict[str, Any]] = module.params["definitions"]
    wrong = flaws(definitions)
    if wrong:
        module.fail_json(msg="; ".join(wrong) + "; nothing was changed", applied=[])
    outcome = Outcome()
    try:
        with explained():
            client = get_api_client(module=module)
        carry_out(K8sService(client, module), definitions, module.check_mode, outcome)
    except ApiServerError as error:
        before = f"applied before it: {', '.join(outcome.applied)}" if outcome.applied else "nothing was changed"
        module.fail_json(msg=f"{error}; {before}", applied=outcome.applied)
    module.exit_json(
        changed=bool(outcome.applied), applied=outcome.applied, differing=outcome.differing, diff=outcome.differences
    )


if __name__ == "__main__":
    main()
