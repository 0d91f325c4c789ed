#!/usr/bin/python
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: cf_crl_info
short_description: Read which custom resources the platform offers
version_added: 0.1.0
description:
  - Reads all ConfigMaps of the kind that M(accel.kubernetes.cf_crl) writes, and returns what is wrong with each.
options:
  group:
    description: Return only definitions of this group.
    type: str
extends_documentation_fragment:
  - kubernetes.core.k8s_auth_options
  - accel.kubernetes.attributes
  - accel.kubernetes.attributes.info_module
requirements:
  - kubernetes
seealso:
  - module: accel.kubernetes.cf_crl
author:
  - Accel Kubernetes contributors (@accel-kubernetes)
"""

EXAMPLES = r"""
- name: Read the resource definitions
  accel.kubernetes.cf_crl_info:
    group: gpu-manager
  register: offered

- name: Copy the resource definitions to another cluster
  accel.kubernetes.cf_crl:
    context: other
    definitions: "{{ offered.definitions }}"
"""

RETURN = r"""
definitions:
  description: The definitions, with the options of M(accel.kubernetes.cf_crl), ordered by ConfigMap.
  returned: success
  type: list
  elements: dict
  sample:
    - key: tencent.com/vcuda-core
      custom_name: gpu-manager
      group: gpu-manager
      data_type: integer
      default_value: "20"
      description_en: Percent of a GPU. 100 is a whole one.
      description_zh: ""
      limits: optional
      requests: disabled
      enabled: true
problems:
  description: Mistakes, by ConfigMap. ConfigMaps without a mistake are left out. A ConfigMap that cannot be read is
    only in this list.
  returned: success
  type: dict
  sample:
    cf-crl-gpu-manager-vcuda-core: ["tencent.com/vcuda-core: group is to be 1 to 63 letters"]
"""

import copy
from dataclasses import asdict

from ansible_collections.accel.kubernetes.plugins.module_utils.cluster import resource_definitions
from ansible_collections.accel.kubernetes.plugins.module_utils.cluster.api_server import (
    ApiServerError,
    explained,
    objects,
)
from ansible_collections.accel.kubernetes.plugins.module_utils.shared import printable
from ansible_collections.kubernetes.core.plugins.module_utils.args_common import AUTH_ARG_SPEC
from ansible_collections.kubernetes.core.plugins.module_utils.k8s.client import get_api_client
from ansible_collections.kubernetes.core.plugins.module_utils.k8s.core import AnsibleK8SModule


def main() -> None:
    """Run the module."""
    spec = {"group": {"type": "str"}}
    module = AnsibleK8SModule(argument_spec={**copy.deepcopy(AUTH_ARG_SPEC), **spec}, supports_check_mode=True)
    selector = {resource_definitions.TYPE: resource_definitions.KIND}
    if module.params["group"] is not None:
        selector[resource_definitions.GROUP] = module.params["group"]
    try:
        with explained():
            client = get_api_client(module=module)
            definitions, problems = resource_definitions.definitions_of(
                objects(
                    client,
                    "ConfigMap",
                    read=lambda item: item,
                    namespace=resource_definitions.NAMESPACE,
                    label_selector=",".join(f"{key}={value}" for key, value in selector.items()),
                )
            )
    except ApiServerError as error:
        module.fail_json(msg=str(error))
    module.exit_json(
        changed=False,
        definitions=[printable.document(asdict(definition)) for definition in definitions],
        problems={printable.line(name): printable.lines(wrong) for name, wrong in problems.items()},
    )


if __name__ == "__main__":
    main()
