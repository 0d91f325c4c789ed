#!/usr/bin/python
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: account_mount_info
short_description: Read what limits the size of the accounts of containers with a share of a GPU
version_added: 0.1.0
description:
  - Looks at the directory where the device plugin keeps the accounts that containers write, and at what is mounted
    there.
  - Returns what to do so that a tmpfs limits the size of all accounts together, and what limits them now.
  - The module leaves a file system alone that another program mounted there. It mounts nothing over accounts of
    containers, because the plugin would no longer find them.
options:
  path:
    description: The directory of the accounts, F(containers) in the plugin's state directory. It need not exist.
    type: path
    required: true
  size_mib:
    description: Size in MiB of all accounts together. V(0) is for no tmpfs.
    type: int
    default: 256
  state:
    description: V(absent) removes the tmpfs even if containers have their accounts in it.
    type: str
    choices: [present, absent]
    default: present
  root:
    description: Path of the host's root directory.
    type: path
    default: /
extends_documentation_fragment:
  - accel.kubernetes.attributes
  - accel.kubernetes.attributes.info_module
author:
  - Accel Kubernetes contributors (@accel-kubernetes)
"""

EXAMPLES = r"""
- name: Read the state of the accounts tmpfs
  accel.kubernetes.account_mount_info:
    path: /var/lib/kube-accel/containers
  register: accounts

- name: Show the state of the accounts tmpfs
  ansible.builtin.debug:
    msg: "{{ accounts.says }}"
"""

RETURN = r"""
unit:
  description: Name of the systemd unit that mounts the tmpfs.
  returned: success
  type: str
  sample: var-lib-kube\x2daccel-containers.mount
unit_state:
  description:
    - State that the unit should have. V(enabled) mounts the tmpfs at each start of the host. V(disabled) keeps the
      unit to unmount the tmpfs later. V(absent) removes the unit.
  returned: success
  type: str
unit_written:
  description: Whether the unit has its file in C(/etc/systemd/system).
  returned: success
  type: bool
where:
  description: The directory without symbolic links, for the unit.
  returned: success
  type: str
source:
  description: Source of the mount, for the unit.
  returned: success
  type: str
  sample: kube-accel-accounts
options:
  description: Options of the mount.
  returned: success
  type: str
  sample: nosuid,nodev,noexec,size=256m,nr_inodes=16384,mode=0700
action:
  description: Action for the unit now. One of V(start), V(reload), V(stop), and V(none).
  returned: success
  type: str
bounded:
  description: Whether a separate file system limits the accounts now.
  returned: success
  type: bool
waits:
  description: Whether the change is not possible now. RV(says) has the reason, and when it will be possible.
  returned: success
  type: bool
says:
  description: The current state, and its reason.
  returned: success
  type: str
foreign:
  description: Whether another program mounted a file system there.
  returned: success
  type: bool
"""

import os
import re
from typing import Tuple

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.accel.kubernetes.plugins.module_utils.host import account_mount

_KEY = re.compile("[0-9a-f]{32}")


def taken(path: str) -> Tuple[int, int]:
    """Return how many containers have an account in a directory, and how many bytes these files take."""
    accounts, blocks = 0, 0
    for directory, names, files in os.walk(path):
        accounts += sum(map(bool, map(_KEY.fullmatch, names))) if directory == path else 0
        for name in files:
            try:
                blocks += os.lstat(os.path.join(directory, name)).st_blocks
            except FileNotFoundError:
                continue
    return accounts, blocks * 512


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "path": {"type": "path", "required": True},
            "size_mib": {"type": "int", "default": 256},
            "state": {"type": "str", "choices": ["present", "absent"], "default": "present"},
            "root": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    path, mib = os.path.realpath(module.params["path"]), module.params["size_mib"]
    if mib < 0:
        module.fail_json(msg=f"size_mib is {mib}; set it to 0 for no tmpfs, or to a number of MiB")
    try:
        with open(os.path.join(module.params["root"], "proc/self/mountinfo"), errors="surrogateescape") as file:
            mount, below = account_mount.placed(file.read(), path)
    except OSError as error:
        module.fail_json(msg=f"{error.filename}: {error.strerror}")
    accounts, used = taken(path)
    systemd = os.path.isdir(os.path.join(module.params["root"], "run/systemd/system"))
    found = account_mount.Found(path, mount, below, accounts, used, systemd)
    plan = account_mount.plan(found, mib, module.params["state"] == "absent")
    unit = account_mount.unit_name(path)
    module.exit_json(
        changed=False,
        unit=unit,
        unit_state=plan.unit,
        unit_written=os.path.exists(os.path.join(module.params["root"], "etc/systemd/system", unit)),
        where=path,
        source=account_mount.SOURCE,
        options=account_mount.options(mib),
        action=plan.action,
        bounded=plan.bounded,
        waits=plan.waits,
        says=plan.says,
        foreign=mount is not None and mount.source != account_mount.SOURCE,
    )


if __name__ == "__main__":
    main()
