#!/usr/bin/python
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: trusted_path
short_description: Create or check a path that no other user can have made
version_added: 0.1.0
description:
  - Creates a directory for files that root trusts, or checks a file that root is about to run or load.
  - Refuses a path that another user made, can replace, or can write, and names this part of the path. Also checks
    each directory above the path. Symbolic links on the way must belong to root or to the module's user.
  - Trusts root and the user that the module runs as. If the user and the user's group own the path, the group may
    write.
  - Changes nothing that exists, and takes over nothing that others left at a path.
options:
  path:
    description: Absolute path.
    type: path
    required: true
  state:
    description:
      - V(directory) creates the directory and missing parents. The directory may be in F(/tmp), where the module's
        user owns it from the start, but not F(/tmp) itself.
      - V(file) fails if the path is not a trusted regular file.
      - V(absent) removes the file, the link, or the empty directory. A directory with content stays.
    type: str
    choices: [directory, file, absent]
    default: directory
  mode:
    description: Permissions of created directories, in octal.
    type: str
    default: "0700"
extends_documentation_fragment:
  - accel.kubernetes.attributes
  - accel.kubernetes.attributes.changing_module
attributes:
  diff_mode:
    support: none
  platform:
    platforms: linux
author:
  - Accel Kubernetes contributors (@accel-kubernetes)
"""

EXAMPLES = r"""
- name: Create a directory for the archive
  accel.kubernetes.trusted_path:
    path: /var/lib/accel-kubernetes/image

- name: Check the installer that is run next
  accel.kubernetes.trusted_path:
    path: /srv/NVIDIA-Linux-x86_64-580.95.05.run
    state: file
"""

RETURN = r"""
created:
  description: Directories that were created, or would be in check mode, outermost first.
  returned: success
  type: list
  elements: str
  sample: [/var/lib/accel-kubernetes, /var/lib/accel-kubernetes/image]
"""

from typing import Any, Dict

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.accel.kubernetes.plugins.module_utils.host import trusted_path


def run(module: AnsibleModule) -> Dict[str, Any]:
    """Do what is missing and return the result."""
    path, state = module.params["path"], module.params["state"]
    try:
        mode = int(module.params["mode"], 8)
    except ValueError as error:
        raise trusted_path.UntrustedError(f"mode {module.params['mode']!r} is not octal, as '0700' is") from error
    if mode & 0o022:
        raise trusted_path.UntrustedError(f"mode {mode:04o} lets others write; use 0755 or less")
    if state == "file":
        with trusted_path.regular_file(path):
            return {"changed": False, "created": []}
    if state == "absent":
        return {"changed": trusted_path.remove(path, module.check_mode), "created": []}
    created = trusted_path.make_directory(path, mode, module.check_mode)
    return {"changed": bool(created), "created": created}


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "state": {"type": "str", "choices": ["directory", "file", "absent"], "default": "directory"},
            "mode": {"type": "str", "default": "0700"},
        },
        supports_check_mode=True,
    )
    try:
        result = run(module)
    except trusted_path.UntrustedError as error:
        module.fail_json(msg=str(error))
    except OSError as error:
        module.fail_json(msg=f"{error.filename or module.params['path']}: {error.strerror}")
    module.exit_json(**result)


if __name__ == "__main__":
    main()
