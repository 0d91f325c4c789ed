#!/usr/bin/python
# GNU General Public License v3.0+ (see https://www.gnu.org/licenses/gpl-3.0.txt)
# SPDX-License-Identifier: GPL-3.0-or-later

from __future__ import annotations

DOCUMENTATION = r"""
module: nvml_facts
short_description: Read a machine's NVIDIA driver and GPUs
version_added: 0.1.0
description:
  - Reads driver, CUDA version and GPUs from the NVIDIA Management Library and returns them as facts.
  - Loads the driver's own C(libnvidia-ml.so.1), so that the target needs no Python package.
  - Never fails because of the driver. No driver, an unloaded one and one that hangs are facts too, and a machine
    without GPUs has an empty list of them.
options:
  timeout:
    description: Seconds after which a driver that does not answer is reported as hanging.
    type: float
    default: 15
  excluded_gpus:
    description:
      - GPUs to leave out, by UUID, index, PCI address, or model. C(*) stands for any text. The display cards of DGX
        Stations are always left out.
    type: list
    elements: raw
    default: []
  sysfs_root:
    description: Where C(sysfs) is mounted. The NUMA node of a GPU is read there.
    type: path
    default: /sys
extends_documentation_fragment:
  - accel.kubernetes.attributes
  - accel.kubernetes.attributes.info_module
  - accel.kubernetes.nvml
attributes:
  platform:
    platforms: linux
author:
  - Accel Kubernetes contributors (@accel-kubernetes)
"""

EXAMPLES = r"""
- name: Read the GPUs
  accel.kubernetes.nvml_facts:

- name: Report the driver's problem
  ansible.builtin.assert:
    that: ansible_facts.accel_nvml.available
    fail_msg: "{{ ansible_facts.accel_nvml.reason }}"
"""

RETURN = r"""
ansible_facts:
  description: Facts to add to the host.
  returned: always
  type: dict
  contains:
    accel_nvml:
      description: The same as RV(nvml).
      returned: always
      type: dict
nvml:
  description: Facts that NVML reports. A value that could not be read is null.
  returned: always
  type: dict
  contains:
    available:
      description: Whether NVML answers.
      returned: always
      type: bool
      sample: true
    reason:
      description: Why it does not, and what to do. Empty when it does.
      returned: always
      type: str
      sample: ""
    driver_version:
      description: Version of the driver.
      returned: always
      type: str
      sample: 580.159.04
    cuda_version:
      description: Newest CUDA version the driver supports.
      returned: always
      type: str
      sample: "13.0"
    gpus:
      description: The GPUs by index.
      returned: always
      type: list
      elements: dict
      contains:
        index:
          description: NVML's number of the GPU.
          returned: always
          type: int
          sample: 0
        uuid:
          description: UUID of the GPU or device.
          returned: always
          type: str
          sample: GPU-8f2a1c5e-0b7d-4b53-9a3c-1d2e3f405162
        model:
          description: Product name.
          returned: always
          type: str
          sample: NVIDIA H100 80GB HBM3
        memory_bytes:
          description: Memory in bytes. If the GPU uses memory of the host (GB10), the memory of the host.
          returned: always
          type: int
          sample: 85520809984
        compute_capability:
          description: CUDA compute capability.
          returned: always
          type: str
          sample: "9.0"
        pci_address:
          description: PCI address as in C(sysfs).
          returned: always
          type: str
          sample: "0000:1a:00.0"
        numa_node:
          description: The NUMA node it is attached to. Null where there is one node only, too.
          returned: always
          type: int
          sample: 0
        mig:
          description: Whether it can be partitioned, and is in that mode, and the MIG devices it has.
          returned: always
          type: dict
          sample:
            supported: true
            enabled: true
            devices: [{"uuid": "MIG-7f9d1c5e-0b7d-4b53-9a3c-1d2e3f405162", "profile": "1g.18gb", "slot": 0}]
        health:
          description: V(healthy), V(unhealthy), or V(unknown) when it could not be read.
          returned: always
          type: str
          sample: healthy
        reason:
          description: Why it is not healthy. Empty when it is.
          returned: always
          type: str
          sample: ""
    excluded:
      description: The GPUs that are left out.
      returned: always
      type: list
      elements: dict
      contains:
        index:
          description: NVML's number of the GPU.
          returned: always
          type: int
          sample: 4
        uuid:
          description: UUID of the GPU or device.
          returned: always
          type: str
          sample: GPU-8f2a1c5e-0b7d-4b53-9a3c-1d2e3f405162
        model:
          description: Product name.
          returned: always
          type: str
          sample: NVIDIA DGX Display
        pci_address:
          description: PCI address as in C(sysfs).
          returned: always
          type: str
          sample: "0000:c1:00.0"
        by:
          description: The entry of O(excluded_gpus) that names it, or V(display card).
          returned: always
          type: str
          sample: display card
    links:
      description: How each pair of GPUs is connected. A pair that could not be read is left out.
      returned: always
      type: list
      elements: dict
      contains:
        gpus:
          description: The two UUIDs.
          returned: always
          type: list
          elements: str
        ancestor:
          description: What is closest above both on PCIe. V(internal), V(single_switch), V(multiple_switches),
            V(host_bridge), V(node) or V(system).
          returned: always
          type: str
          sample: node
        nvlinks:
          description: Active NVLinks between the two; to the switch where there is one.
          returned: always
          type: int
          sample: 18
"""

from ansible.module_utils.basic import AnsibleModule
from ansible_collections.accel.kubernetes.plugins.module_utils.gpus import nvml
from ansible_collections.accel.kubernetes.plugins.module_utils.shared import gpu_exclusion, nvml_library


def main() -> None:
    """Run the module."""
    module = AnsibleModule(
        argument_spec={
            "timeout": {"type": "float", "default": 15},
            "excluded_gpus": {"type": "list", "elements": "raw", "default": []},
            "sysfs_root": {"type": "path", "default": "/sys"},
            "library": {"type": "str", "default": nvml_library.LIBRARY},
            "driver_root": {"type": "path", "default": "/"},
        },
        supports_check_mode=True,
    )
    library = nvml_library.found(module.params["library"], module.params["driver_root"])
    try:
        exclusions = gpu_exclusion.parse(module.params["excluded_gpus"])
    except ValueError as error:
        module.fail_json(msg=f"excluded_gpus: {error}")
    reading = nvml.read(library, module.params["sysfs_root"], module.params["timeout"], exclusions)
    module.exit_json(changed=False, ansible_facts={"accel_nvml": reading}, nvml=reading)


if __name__ == "__main__":
    main()
