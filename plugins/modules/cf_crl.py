#!/usr/bin/python
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: cf_crl
short_description: Set which custom resources users of the platform may ask for
version_added: 0.1.0
description:
  - Writes or removes ConfigMaps C(cf-crl-<custom name>-<resource>) in namespace C(kube-public), one a resource. The
    platform's forms offer what they define, such as the share of a GPU.
  - The module checks all definitions before it sends anything. If one is wrong, it changes nothing and names every
    mistake. A resource that is defined twice in one call is a mistake.
  - The module does not change another ConfigMap that offers the same resource, such as one with an earlier
    O(definitions[].custom_name). It warns about it.
  - The module does not change or remove a definition that another program made, such as the platform itself. It warns
    if the definition differs. O(overwrite) changes that. Definitions of this module have an annotation
    C(kube-accel.io/managed-by).
  - If a ConfigMap of the same name is not a definition, the run fails. The module keeps labels, annotations, and data
    that others added to a definition.
options:
  state:
    description: Whether the definitions are there.
    type: str
    choices: [present, absent]
    default: present
  overwrite:
    description: Whether to change definitions of other programs too, or to remove them with O(state=absent).
    type: bool
    default: false
  definitions:
    description: The resources. Resources that belong together have the same O(definitions[].group).
    type: list
    elements: dict
    required: true
    suboptions:
      key:
        description: Name of the resource in a container's limits, such as V(tencent.com/vcuda-core).
        type: str
        required: true
      custom_name:
        description:
          - Part of the ConfigMap's name, such as V(gpu-manager) in C(cf-crl-gpu-manager-vcuda-core). Characters other
            than letters and digits become dashes.
        type: str
        required: true
      group:
        description: Group of the resource. Forms offer the resources of one group together. Required for V(present).
        type: str
        default: ""
      data_type:
        description: Type of the resource's value.
        type: str
        default: integer
      default_value:
        description: Initial value in a form. Empty for none.
        type: str
        default: ""
      description_en:
        description: What it is, in English.
        type: str
        default: ""
      description_zh:
        description: What it is, in Chinese.
        type: str
        default: ""
      limits:
        description: Whether a form asks for a limit.
        type: str
        choices: [disabled, required, optional]
        default: optional
      requests:
        description: Whether a form asks for a request. V(fromLimits) sets the request to the limit.
        type: str
        choices: [disabled, required, fromLimits]
        default: disabled
      enabled:
        description: Whether forms offer the resource.
        type: bool
        default: true
extends_documentation_fragment:
  - kubernetes.core.k8s_auth_options
  - accel.kubernetes.attributes
  - accel.kubernetes.attributes.changing_module
requirements:
  - kubernetes
attributes:
  check_mode:
    details: Reads what the cluster has.
seealso:
  - module: accel.kubernetes.cf_crl_info
author:
  - Accel Kubernetes contributors (@accel-kubernetes)
"""

EXAMPLES = r"""
- name: Offer shares of GPUs
  accel.kubernetes.cf_crl:
    definitions:
      - key: tencent.com/vcuda-core
        custom_name: gpu-manager
        group: gpu-manager
        default_value: "20"
        description_en: Percent of a GPU. 100 is a whole one.
        limits: optional
      - key: tencent.com/vcuda-memory
        custom_name: gpu-manager
        group: gpu-manager
        default_value: "32"
        description_en: GPU memory, in units of 256 MiB.
        limits: optional

- name: Offer another vendor's accelerator
  accel.kubernetes.cf_crl:
    definitions:
      - key: huawei.com/Ascend910
        custom_name: ascend
        group: ascend
        default_value: "1"
        description_en: Ascend 910 cards.
        limits: optional

- name: Remove the resource definitions
  accel.kubernetes.cf_crl:
    state: absent
    definitions:
      - key: huawei.com/Ascend910
        custom_name: ascend
"""

RETURN = r"""
configmaps:
  description: Names of the ConfigMaps in C(kube-public), in the order of O(definitions).
  returned: success
  type: list
  elements: str
  sample: [cf-crl-gpu-manager-vcuda-core, cf-crl-gpu-manager-vcuda-memory]
duplicates:
  description: Names of other ConfigMaps that offer one of these resources. A form asks for such a resource twice.
  returned: success
  type: list
  elements: str
  sample: []
kept:
  description: Names of ConfigMaps that another program made, and that differ from O(definitions), or should have been
    removed.
  returned: success
  type: list
  elements: str
  sample: []
written:
  description: Names of ConfigMaps that were created, changed, or removed, or would be in check mode.
  returned: always
  type: list
  elements: str
  sample: [cf-crl-gpu-manager-vcuda-core]
"""

import contextlib
import copy
from typing import Any, Dict, List, Tuple

from ansible_collections.accel.kubernetes.plugins.module_utils.cluster import resource_definitions
from ansible_collections.accel.kubernetes.plugins.module_utils.cluster.api_server import (
    ApiServerError,
    explained,
    objects,
    one,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.shared import printable
from ansible_collections.kubernetes.core.plugins.module_utils.args_common import AUTH_ARG_SPEC
from ansible_collections.kubernetes.core.plugins.module_utils.k8s.client import K8SClient, get_api_client
from ansible_collections.kubernetes.core.plugins.module_utils.k8s.core import AnsibleK8SModule

with contextlib.suppress(ImportError):  # AnsibleK8SModule says what is missing.
    from kubernetes.dynamic.exceptions import NotFoundError

Step = Tuple[str, Dict[str, Any], Dict[str, Any]]
"""Name of a ConfigMap, what it is and what it is to be; an empty one is none."""


def plan(
    definitions: List[resource_definitions.Definition],
    existing: Dict[str, Dict[str, Any]],
    state: str,
    overwrite: bool = False,
) -> Tuple[List[Step], List[str]]:
    """Return the ConfigMaps that have to change, and the names of those of others that stay as they are."""
    steps: List[Step] = []
    kept: List[str] = []
    for definition in definitions:
        before = existing[definition.name]
        after: Dict[str, Any] = {}
        if state == "present":
            after = (
                resource_definitions.merged(before, definition)
                if before
                else resource_definitions.marked(resource_definitions.configmap(definition))
            )
        if before == after:
            continue
        if not before or overwrite or resource_definitions.is_marked(before):
            steps.append((definition.name, before, resource_definitions.marked(after) if after else after))
        elif state == "absent" or not resource_definitions.says(before, definition):
            kept.append(definition.name)
    return steps, kept


def get(client: K8SClient, name: str) -> Dict[str, Any]:
    """Return a ConfigMap as it is, empty when there is none. Raises ApiServerError."""
    try:
        return one(client, "ConfigMap", name, resource_definitions.NAMESPACE, resource_definitions.readable)
    except NotFoundError:
        return {}


def others(client: K8SClient, definitions: List[resource_definitions.Definition], odd: List[str]) -> Dict[str, str]:
    """ConfigMaps of others for the same resources; ``odd`` gets those that cannot be read."""
    found = objects(
        client,
        "ConfigMap",
        problems=odd,
        read=resource_definitions.readable,
        namespace=resource_definitions.NAMESPACE,
        label_selector=f"{resource_definitions.TYPE}={resource_definitions.KIND}",
    )
    return resource_definitions.duplicates(definitions, found)


def send(client: K8SClient, configmaps: object, step: Step) -> None:
    """Carry out one step. Raises DynamicApiError."""
    name, before, after = step
    place = {"namespace": resource_definitions.NAMESPACE}
    if not before:
        client.create(configmaps, after, **place)
    elif after:
        # With the version that was read: what others wrote since is a conflict and not lost.
        client.replace(configmaps, after, name=name, **place)
    else:
        client.delete(configmaps, name=name, body={"preconditions": {"uid": before["metadata"]["uid"]}}, **place)


def shown(item: Dict[str, Any]) -> Dict[str, Any]:
    """Return a ConfigMap without what only the API server writes."""
    if not item:
        return {}
    kept = copy.deepcopy(item)
    for key in ("creationTimestamp", "managedFields", "resourceVersion", "uid"):
        kept["metadata"].pop(key, None)
    return kept


DEFINITION: Dict[str, Any] = {
    "key": {"type": "str", "required": True, "no_log": False},
    "custom_name": {"type": "str", "required": True},
    "group": {"type": "str", "default": ""},
    "data_type": {"type": "str", "default": resource_definitions.INTEGER},
    "default_value": {"type": "str", "default": ""},
    "description_en": {"type": "str", "default": ""},
    "description_zh": {"type": "str", "default": ""},
    "limits": {"type": "str", "choices": list(resource_definitions.LIMITS), "default": "optional"},
    "requests": {"type": "str", "choices": list(resource_definitions.REQUESTS), "default": "disabled"},
    "enabled": {"type": "bool", "default": True},
}
ARGUMENTS: Dict[str, Any] = {
    "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
    "overwrite": {"type": "bool", "default": False},
    "definitions": {"type": "list", "elements": "dict", "required": True, "options": DEFINITION},
}


def require_ours(module: AnsibleK8SModule, existing: Dict[str, Any]) -> None:
    """Fail where a ConfigMap of others has the name of a definition."""
    foreign = [name for name, item in existing.items() if item and not resource_definitions.ours(item)]
    if foreign:
        module.fail_json(
            msg=f"ConfigMap {resource_definitions.NAMESPACE}/{foreign[0]} is no definition: it lacks the label "
            f"{resource_definitions.TYPE}={resource_definitions.KIND}. Choose another custom_name, or remove it. "
            "Nothing was changed",
            written=[],
        )


def main() -> None:
    """Run the module."""
    module = AnsibleK8SModule(argument_spec={**copy.deepcopy(AUTH_ARG_SPEC), **ARGUMENTS}, supports_check_mode=True)
    state = module.params["state"]
    definitions = [resource_definitions.Definition(**item) for item in module.params["definitions"]]
    wrong = resource_definitions.problems(definitions, state)
    if wrong:
        module.fail_json(msg="; ".join(wrong) + "; nothing was changed", written=[])
    written: List[str] = []
    odd: List[str] = []
    try:
        with explained():
            client = get_api_client(module=module)
            configmaps = client.resource("ConfigMap", "v1")
            existing = {definition.name: get(client, definition.name) for definition in definitions}
            offered = others(client, definitions, odd) if state == "present" else {}
        require_ours(module, existing)
        steps, kept = plan(definitions, existing, state, module.params["overwrite"])
        for step in steps:
            if not module.check_mode:
                with explained():
                    send(client, configmaps, step)
            written.append(step[0])
    except ApiServerError as error:
        done = f"{', '.join(written)} had been written" if written else "nothing was changed"
        module.fail_json(msg=f"{error}; {done}", written=written)
    for name, key in offered.items():
        module.warn(
            f"ConfigMap {resource_definitions.NAMESPACE}/{name} defines {printable.line(key, 128)} too, so that a form "
            "asks for it twice; remove it with state=absent and its custom_name, or with kubectl"
        )
    for name in kept:
        module.warn(
            f"ConfigMap {resource_definitions.NAMESPACE}/{name} was not made by this module, so it stays as it is; set "
            "overwrite=true to change or remove it"
        )
    for problem in odd:
        module.warn(f"{problem}; whether a form asks for a resource of it twice is not known")
    module.exit_json(
        changed=bool(steps),
        duplicates=list(offered),
        configmaps=[definition.name for definition in definitions],
        kept=kept,
        written=written,
        diff=[{"before": shown(before), "after": shown(after), "before_header": name} for name, before, after in steps],
    )


if __name__ == "__main__":
    main()
