#!/usr/bin/python
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: python_packages_info
short_description: List the Python packages of the interpreter that runs modules
version_added: 0.1.0
description:
  - Looks for packages where modules run, which on the controller need not be the Python that runs Ansible.
  - Imports none of them.
options:
  requirements:
    description:
      - Lines of a requirements file, each a package's name and the range of its versions.
      - Comments and empty lines are passed over.
    type: list
    elements: str
    required: true
extends_documentation_fragment:
  - accel.kubernetes.attributes
  - accel.kubernetes.attributes.info_module
author:
  - Accel Kubernetes contributors (@accel-kubernetes)
"""

EXAMPLES = r"""
- name: Look up the controller's Python packages
  accel.kubernetes.python_packages_info:
    requirements: "{{ lookup('ansible.builtin.file', 'requirements.txt').splitlines() }}"
  delegate_to: localhost
  register: packages
"""

RETURN = r"""
python:
  description: The interpreter that looked, by its path.
  returned: success
  type: str
  sample: /usr/bin/python3
packages:
  description: The packages in the order of the requirements.
  returned: success
  type: list
  elements: dict
  contains:
    name:
      description: The package's name.
      type: str
      sample: kubernetes
    wanted:
      description: The range, as it is written.
      type: str
      sample: ">=24.2"
    version:
      description: The version that is installed, empty for none.
      type: str
      sample: 36.0.2
"""

import re
import sys
from importlib.metadata import PackageNotFoundError, version

from ansible.module_utils.basic import AnsibleModule

_REQUIREMENT = re.compile(r"\s*([A-Za-z0-9][A-Za-z0-9._-]*)\s*([^#;]*)")


def installed(name: str) -> str:
    """Return the version of a package that is installed, and an empty text for none."""
    try:
        return version(name) or ""
    except PackageNotFoundError:
        return ""


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={"requirements": {"type": "list", "elements": "str", "required": True}},
        supports_check_mode=True,
    )
    found = [_REQUIREMENT.match(text) for text in module.params["requirements"]]
    packages = [{"name": each[1], "wanted": each[2].strip(), "version": installed(each[1])} for each in found if each]
    module.exit_json(changed=False, python=sys.executable, packages=packages)


if __name__ == "__main__":
    main()
