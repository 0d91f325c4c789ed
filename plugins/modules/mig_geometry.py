#!/usr/bin/python
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: mig_geometry
short_description: Divide a machine's GPUs by MIG
version_added: 0.1.0
description:
  - Makes MIG mode and MIG devices of the GPUs what a named configuration says. The configurations are those of
    nvidia-mig-parted, a C(mig-configs) document.
  - Works through the driver's own C(libnvidia-ml.so.1), so that the target needs no Python package.
  - Devices that can stay do. Everything is planned before anything is touched, what was made is verified, and when
    something fails the old geometry is put back.
  - Refuses while processes use what would go, and names them. Who holds a GPU open without using it is asked to let go
    (O(plugin_socket)) or stopped meanwhile (O(services)); another such keeps the mode pending, which
    RV(reset_required) says.
options:
  configs:
    description:
      - The document, with C(version) V(v1) and C(mig-configs).
      - An entry has C(devices), which is V(all) or a list of GPU numbers, C(mig-enabled), and C(mig-devices) with the
        number of devices of each profile. It may have C(device-filter) with PCI device IDs, each alone or with its
        board's, such as V(0x25B610DE:0x14A910DE). If a GPU matches several entries, the last one counts. GPUs that
        match no entry stay as they are.
      - Compute instances that share a GPU instance, such as V(1c.3g.20gb), are not supported. The module replaces a
        GPU instance that has them.
    type: dict
    required: true
  config:
    description: Name of the configuration to apply.
    type: str
    required: true
  excluded_gpus:
    description: GPUs to leave alone, by UUID, index, PCI address or model, in which C(*) stands for anything.
    type: list
    elements: raw
    default: []
  plugin_socket:
    description:
      - Socket of the device plugin. The module asks the plugin to release the GPUs while it splits them. If the
        socket does not exist, it asks no plugin.
    type: path
    default: /var/lib/kube-accel/admin.sock
  services:
    description: Units that hold GPUs open and are stopped while they are cut, those of them that run.
    type: list
    elements: str
    default: [nvidia-dcgm, nvidia-persistenced]
  timeout:
    description: Seconds after which a driver that does not answer is reported as hanging.
    type: float
    default: 120
extends_documentation_fragment:
  - accel.kubernetes.attributes
  - accel.kubernetes.attributes.changing_module
  - accel.kubernetes.nvml
attributes:
  check_mode:
    details:
      - Cannot know whether a GPU will need a reset. If processes hold a GPU, warns and returns RV(in_use), because they
        can have ended by the time of the run.
  platform:
    platforms: linux
notes:
  - Needs a driver of branch 510 or newer, and root.
seealso:
  - module: accel.kubernetes.nvml_facts
author:
  - Accel Kubernetes contributors (@accel-kubernetes)
"""

EXAMPLES = r"""
- name: Seven small devices on every H200, the other GPUs whole
  accel.kubernetes.mig_geometry:
    config: seven
    configs:
      version: v1
      mig-configs:
        seven:
          - device-filter: "0x233510DE"
            devices: all
            mig-enabled: true
            mig-devices:
              1g.18gb: 7
        whole:
          - devices: all
            mig-enabled: false

- name: Apply a configuration of nvidia-mig-parted's own file
  accel.kubernetes.mig_geometry:
    config: all-balanced
    configs: "{{ lookup('ansible.builtin.file', 'mig-configs.yaml') | from_yaml }}"
"""

RETURN = r"""
before:
  description: The geometry before, by GPU.
  returned: success
  type: list
  elements: dict
  sample: &geometry
    - index: 0
      uuid: GPU-8f2a1c5e-0b7d-4b53-9a3c-1d2e3f405162
      model: NVIDIA H200
      mig_enabled: true
      mig_devices: {"1g.18gb": 7}
after:
  description: The geometry after, or in check mode what it would be.
  returned: success
  type: list
  elements: dict
  sample: *geometry
reset_required:
  description:
    - UUIDs of GPUs whose new mode needs a reset, because a process holds them open. Their devices do not exist yet.
      Run the module again after the process has released them.
  returned: success
  type: list
  elements: str
  sample: []
reboot_required:
  description: UUIDs of GPUs whose new mode waits for a reboot, as in a virtual machine that cannot reset its GPU.
  returned: success
  type: list
  elements: str
  sample: []
cut:
  description: UUIDs of the GPUs that were changed, or would be.
  returned: success
  type: list
  elements: str
  sample: [GPU-8f2a1c5e-0b7d-4b53-9a3c-1d2e3f405162]
in_use:
  description: In check mode, the GPUs whose processes a run would refuse over, and these.
  returned: success
  type: list
  elements: str
  sample: []
"""

import json
from typing import Any, Dict, Sequence

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.accel.kubernetes.plugins.module_utils.gpus import nvml
from ansible_collections.accel.kubernetes.plugins.module_utils.gpus.release import ReleaseError, release_gpus
from ansible_collections.accel.kubernetes.plugins.module_utils.shared import (
    gpu_exclusion,
    mig_geometry,
    mig_nvml,
    nvml_library,
)


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "configs": {"type": "dict", "required": True},
            "config": {"type": "str", "required": True},
            "excluded_gpus": {"type": "list", "elements": "raw", "default": []},
            "plugin_socket": {"type": "path", "default": "/var/lib/kube-accel/admin.sock"},
            "services": {"type": "list", "elements": "str", "default": ["nvidia-dcgm", "nvidia-persistenced"]},
            "timeout": {"type": "float", "default": 120},
            "library": {"type": "str", "default": nvml_library.LIBRARY},
            "driver_root": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    try:
        result = cut(module)
    except (ValueError, nvml_library.NoAnswer, ReleaseError) as error:
        module.fail_json(msg=str(error))
    if "refused" in result:
        module.fail_json(msg=result["refused"])
    if result["in_use"]:
        module.warn(mig_nvml.refusal(result["in_use"]))
    module.exit_json(
        changed=result["changed"],
        before=result["before"],
        after=result["after"],
        reset_required=result["reset"],
        reboot_required=result["reboot"],
        in_use=result["in_use"],
        cut=result["cut"],
        diff={"before": _text(result["before"]), "after": _text(result["after"])},
    )


def cut(module: AnsibleModule) -> Dict[str, Any]:
    """Return what ``mig_nvml.carry_out`` answers. Where nothing has to change, no service is stopped."""
    document, name, timeout = (module.params[key] for key in ("configs", "config", "timeout"))
    library = nvml_library.found(module.params["library"], module.params["driver_root"])
    mig_geometry.parse(document)
    exclusions = gpu_exclusion.parse(module.params["excluded_gpus"])

    def carry_out(check: bool) -> Dict[str, Any]:
        return nvml.in_child(library, lambda: mig_nvml.carry_out(library, document, name, check, exclusions), timeout)

    def run(command: Sequence[str]) -> int:
        status: int = module.run_command(list(command), handle_exceptions=False)[0]
        return status

    planned = carry_out(check=True)
    if module.check_mode or "refused" in planned or not planned["changed"]:
        return planned
    if planned["in_use"]:
        return {"refused": mig_nvml.refusal(planned["in_use"])}
    try:
        with release_gpus(module.params["plugin_socket"], module.params["services"], timeout + 60, run):
            return carry_out(check=False)
    except OSError as error:
        return {"refused": f"systemctl cannot be run: {error}; leave services empty on a host without systemd"}


def _text(geometry: object) -> str:
    return json.dumps(geometry, indent=2, sort_keys=True) + "\n"


if __name__ == "__main__":
    main()
